"""Live the life of a model in settings that cover all pairs; see machine.py."""

import warnings

import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import settings as profile
from hypothesis.stateful import run_state_machine_as_test

from tests.life import settings as S
from tests.life import table
from tests.life.machine import Life

N_STEPS = 8


def where(place):
    """Return whether a program in this place can have a setting, as a function."""
    return lambda s: s["where"] == place and S.can_be(s) and table.can_fit(s)


COVERING, DEPLOYED, DASK = (S.covering(where(place)) for place in S.AXES["where"])


def live(setting, n_programs, first=0):
    """Run programs in a setting; the first takes one step after the other."""
    if setting["rows"] == "Arrow":
        pytest.importorskip("pyarrow")
    machine = type("Life", (Life,), {"setting": setting, "first": first})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_state_machine_as_test(
            machine,
            settings=profile(
                max_examples=n_programs,
                stateful_step_count=N_STEPS,
                deadline=None,
                derandomize=True,
                database=None,
                report_multiple_bugs=False,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            ),
        )


@pytest.mark.parametrize("number", range(len(COVERING)), ids=map(S.name_of, COVERING))
def test_nothing_is_silent(number, request):
    n_programs = 1 if request.config.option.markexpr == "not full" else 10
    live(COVERING[number], n_programs, first=5 * number)


@pytest.mark.full
@pytest.mark.parametrize("number", range(len(DEPLOYED)), ids=map(S.name_of, DEPLOYED))
def test_nothing_is_silent_through_the_two_halves(number):
    pytest.importorskip("cryptography", reason="needs fedrecsk[privacy]")
    live(DEPLOYED[number], 1, first=5 * number)


@pytest.fixture(scope="module")
def cluster():
    """A Dask cluster of one worker, in this process, which is the default while the tests run."""
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.mark.full
@pytest.mark.parametrize("number", range(len(DASK)), ids=map(S.name_of, DASK))
def test_nothing_is_silent_on_a_cluster(number, cluster):
    live(DASK[number], 1, first=5 * number)


def test_all_pairs_of_settings_are_covered():
    """Print how many pairs there are; each is of a setting that a test above has."""
    for place, settings in zip(S.AXES["where"], (COVERING, DEPLOYED, DASK), strict=True):
        possible = S.all_pairs(where(place))
        covered = set().union(*map(S.pairs, settings))
        print(f"{place}: {len(settings)} settings have {len(covered)} pairs of {len(possible)}")
        assert set(possible) <= covered


OF_FITS = [rule for rule in table.RULES if rule.steps == ("fit",)]


@pytest.mark.parametrize("rule", OF_FITS, ids=lambda rule: rule.why.replace(" ", "_"))
def test_a_refused_fit_says_why(rule):
    """In the plainest setting that it is about."""
    values = {axis: value for axis, (value, *_) in rule.values.items()}
    setting = S.completed(values, lambda s: S.can_be(s) and table.rule_of("fit", s) == rule)
    if setting["where"] != "Dask":
        live(setting, 1)


def test_the_page_has_the_tables_of_now():
    pytest.importorskip("torch", reason="the page has neural methods too")
    assert table.page(table.PAGE.read_text()) == table.PAGE.read_text()
