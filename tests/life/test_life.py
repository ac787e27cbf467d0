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


def allowed(setting):
    """Return whether a program in this process can have a setting."""
    return S.can_be(setting) and setting["where"] == "here" and table.can_fit(setting)


COVERING = S.covering(allowed)


def live(setting, n_programs, first=0):
    """Run programs in a setting; the first takes one step after the other."""
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
