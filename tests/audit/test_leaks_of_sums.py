"""What sums over cohorts, and differences of such sums, reveal."""

import numpy as np
import pytest

from fedrecsk import FedEASE, FedMF, GlobSGD, LightFR, LocALS, RFRec
from fedrecsk.audit import measure_leak
from fedrecsk.audit._server_view import Differences, Singles, by_pairs, combinations_of
from fedrecsk.simulation.run import watch
from tests.conftest import make_toy


@pytest.fixture
def toy():
    return make_toy(n_users=24, n_items=60, density=0.2)


def watched(model, X, y, receipts, n_rounds=2):
    """Let these receipts take note of the same rounds."""
    data = model._prepared(X, y)
    for round, (server, _, seen) in enumerate(watch(model, data, n_rounds)):
        for one in receipts:
            message = server.announcement() | seen.message
            one.take(server.key.at(round), message, list(seen.tiles()))


@pytest.mark.parametrize("cohort", [5, 24])
@pytest.mark.parametrize(
    "model",
    [LocALS(4, reg_user=1.0), FedMF(4), RFRec(4, rating_scale=(1, 5)), FedEASE()],
    ids=str,
)
def test_two_sums_of_a_round_differ_by_one_clients_upload(model, cohort, toy):
    model = model.set_params(random_state=0) if "random_state" in model.get_params() else model
    model = model.set_params(federation=None)
    singles, differences = Singles(np.arange(24)), Differences(24, cohort, 24, None)
    if hasattr(model, "client_fraction"):
        model.set_params(client_fraction=1.0)
    watched(model, *toy, [singles, differences], n_rounds=1)
    own = singles.singles
    for client, exchanges in differences.singles.items():
        for mine, theirs in zip(exchanges, own[client], strict=True):
            for name, (rows, change) in theirs.upload.items():
                whole = np.zeros(mine.upload[name].change.shape)
                whole[rows] = change
                np.testing.assert_allclose(mine.upload[name].change, whole, atol=1e-9)


@pytest.mark.parametrize("cohort", [5, "all"])
def test_no_more_clients_of_the_sums_are_measured_than_asked_for(cohort, toy):
    """A sum can be taken apart as well as before."""
    X, _ = toy
    few, many = (measure_leak(FedEASE(), X, cohort=cohort, max_clients=n) for n in (3, 24))
    assert (few.n_clients, many.n_clients) == (3, 24)
    if cohort == "all":
        assert few.n_profiles == many.n_profiles > 0
        assert "cohort=24, n_profiles=" in repr(few)
    else:
        assert 0 < few.n_profiles <= 6


def test_differences_of_two_rounds_isolate_clients_once_the_others_hold_still(toy):
    """LocALS converges, and then the same items bring the same uploads."""
    model = LocALS(3, reg_user=30.0, upload="all", random_state=0)
    early, late = (
        measure_leak(model, *toy, cohort=4, differences="next round", n_rounds=n, max_clients=8)
        for n in (2, 120)
    )
    assert late.cosine > 0.95
    assert late.cosine >= early.cosine


def test_a_sum_over_few_clients_of_locals_is_separated(toy):
    report = measure_leak(LocALS(8, reg_user=1.0, upload="all", random_state=0), *toy, cohort=3)
    assert report.n_profiles > 18
    assert report.interactions > 0.7
    assert report.directions > 0.7
    whole = measure_leak(GlobSGD(4, reg_user=1.0, upload="all", random_state=0), *toy, cohort="all")
    assert whole.vectors == 0.0
    assert whole.interactions <= whole.chance["interactions"]


def test_rows_are_combinations_of_few_lines_even_of_more_lines_than_columns():
    lines = np.vstack([np.eye(6), np.full((1, 6), 1 / np.sqrt(6))])
    parts = np.zeros((5, 7))
    parts[0, 6], parts[1, 0], parts[2, [1, 4]], parts[3, [3, 6]] = 2, 3, (-1, 2), (4, -1)
    # Whatever their size.
    parts[4, [0, 5]] = 1e-9, 5e-9
    np.testing.assert_allclose(combinations_of(lines, parts @ lines, 1e-3), parts, atol=1e-14)
    of_all = np.arange(1.0, 7.0)[None] ** 2
    np.testing.assert_array_equal(combinations_of(lines, of_all, 1e-3), np.zeros((1, 7)))


def test_pairs_of_a_sum_give_one_client_after_the_other():
    """Each client but the last has an item of its own once those before are known."""
    own = [[0, 1, 2], [2, 1, 3], [3, 2, 4], [4, 3]]
    pairs = np.zeros((5, 5))
    for items in own:
        pairs[np.ix_(items, items)] += 1
    lower = np.tril_indices(5)

    class Sum:
        upload = {"gram": (slice(None), pairs[lower])}  # noqa: RUF012

    found = sorted(guess.items.tolist() for guess in by_pairs(None, [Sum], 5))
    assert found == sorted(sorted(items) for items in own)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cohort": 25}, "cohort=25 is more than the 24 clients of X; lower it"),
        ({"cohort": 0}, r"'cohort' .* must be an int in the range \[1, inf"),
        ({"differences": "both"}, r"'differences' .* must be a str among .*Got 'both'"),
        ({"differences": "next round"}, "but n_rounds=1; set n_rounds=2 or more"),
        ({"cohort": 1, "differences": "same round"}, "With cohorts of one client, the second"),
    ],
)
def test_cohorts_that_make_no_sense_are_refused(options, message, toy):
    with pytest.raises(ValueError, match=message):
        measure_leak(LocALS(3, reg_user=1.0, random_state=0), *toy, **options)


def test_a_model_fitted_on_other_data_is_refused(toy):
    X, y = toy
    model = LocALS(3, reg_user=1.0, random_state=0, n_rounds=2).fit(X, y)
    assert measure_leak(model, X, y, max_clients=3).vectors == 1.0
    fewer = X[:, 0] != X[0, 0]
    with pytest.raises(ValueError, match=r"fitted on other data: user .* is in the data of fit"):
        measure_leak(model, X[fewer], y[fewer])
    more = np.vstack([X, [[X[0, 0], 999_999]]])
    with pytest.raises(ValueError, match="item 999999 is in X, but not in the data of fit"):
        measure_leak(model, more)


def test_a_difference_of_two_rounds_that_is_no_upload_is_still_measured():
    """LightFR's squares can then be negative, of which no root is taken."""
    X, _ = make_toy(n_users=24, n_items=40, density=0.3)
    setting = {"n_rounds": 3, "cohort": 8, "differences": "next round"}
    report = measure_leak(LightFR(random_state=0), X, max_clients=6, **setting)
    assert 0 <= report.cosine < 0.9
