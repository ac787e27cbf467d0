"""Early stopping: who measures which model, what is kept, and when a fit ends."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from fedrecsk import LightFR, LocALS, RFRec
from fedrecsk.data.interactions import encode
from fedrecsk.protocol import blocks
from fedrecsk.protocol.early_stopping import EarlyStopping, HoldOut, hold_out
from fedrecsk.protocol.keys import Key
from tests.conftest import make_toy


def judged(losses, *, tol=0.0, patience=99, n_cohorts=1, rounds_in_all=None):
    """An EarlyStopping that has judged these losses, or those until the fit ended."""
    stopping = EarlyStopping(tol, patience, n_cohorts)
    for round, loss in enumerate(losses):
        stopping.judge(
            loss,
            round,
            lambda round=round: f"model {round}",
            by_everybody=n_cohorts == 1,
            is_last=round + 1 == rounds_in_all,
        )
        if stopping.stopped:
            break
    return stopping, round


@pytest.mark.parametrize("patience", [1, 2, 3])
def test_a_fit_ends_with_the_last_round_of_its_patience(patience):
    losses = [5.0, 3.0, 4.0, 3.0, 3.5, 6.0, 2.0]
    stopping, last = judged(losses, patience=patience)
    assert (stopping.stopped, last) == (True, 1 + patience)
    assert (stopping.best_loss, stopping.best_round, stopping.message) == (3.0, 1, "model 1")


def test_only_a_decrease_by_more_than_tol_is_an_improvement():
    """The decrease is that since the last improvement, and the best model is the best of all."""
    losses = [16.0, 15.0, 14.0, 13.0, 12.0, 11.0]
    stopping, last = judged(losses, tol=2.0, patience=2)
    assert (stopping.stopped, last, stopping.best_round) == (True, 2, 2)
    assert not judged(losses, tol=2.0, patience=3)[0].stopped
    assert not judged(losses, tol=1.5, patience=2)[0].stopped
    assert not judged(losses, tol=0.5, patience=1)[0].stopped


def test_models_of_cohorts_are_judged_by_the_mean_over_a_pass():
    losses = [9.0, 1.0, 2.0, np.nan, 6.0, 7.0, 3.0]
    #         the passes' means: 4, 3, 5, 16/3
    stopping, _ = judged(losses, n_cohorts=3)
    assert (stopping.best_loss, stopping.best_round, stopping.message) == (3.0, 4, "model 4")
    for n_rounds, best in ((2, (np.inf, -1)), (3, (4.0, 2))):
        stopping, _ = judged(losses[:n_rounds], n_cohorts=3)
        assert (stopping.best_loss, stopping.best_round) == best
    # Fewer rounds than a pass: all that there are.
    stopping, _ = judged(losses[:2], n_cohorts=3, rounds_in_all=2)
    assert (stopping.best_loss, stopping.best_round) == (5.0, 1)


def test_the_patience_of_cohorts_is_in_passes():
    stopping, last = judged([1.0] * 20, patience=2, n_cohorts=3)
    # The first pass ends with round 2, and two more without progress with round 8.
    assert (stopping.stopped, last) == (True, 8)
    for patience, stopped in ((3, False), (2, True), (1, True)):
        stopping.be_patient(patience)
        assert stopping.stopped is stopped


def test_the_server_knows_how_many_cohorts_there_are():
    X, _ = make_toy()
    early = {"client_fraction": 0.25, "early_stopping": True, "validation_fraction": 0.3}
    model = LocALS(2, n_rounds=99, n_iter_no_change=2, tol=1e9, random_state=0, **early)
    # Nothing counts as progress after the first pass of four rounds.
    assert model.fit(X).n_rounds_ == 4 + 2 * 4
    # With fewer rounds than a pass the last cohort decides.
    model.set_params(n_rounds=2).fit(X)
    assert model.best_round_ == 1
    (final,) = (e for e in model.communication_.entries if e["phase"] == "final")
    # Everybody gets the last model, once, and the cohort that would be next evaluates it.
    assert (final["messages_down"], final["messages_up"]) == (12, 3)
    assert final["bytes_down"] == 12 * 9 * 2 * 4


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.99])
def test_a_share_of_every_users_rows_is_held_out_but_never_all(fraction):
    data = encode(*make_toy(60, 9))
    lengths, counts = np.diff(data.indptr), []
    for seed in range(30):
        training, held_out = hold_out(data, HoldOut(fraction), Key(seed))
        counts.append(np.bincount(held_out.users, minlength=60))
        assert (counts[-1] + np.bincount(training.users, minlength=60) == lengths).all()
    assert (np.min(counts, axis=0) >= np.minimum(np.floor(fraction * lengths), lengths - 1)).all()
    assert (np.max(counts, axis=0) <= np.minimum(np.ceil(fraction * lengths), lengths - 1)).all()
    if fraction < 0.9:
        assert np.mean(counts) == pytest.approx(fraction * lengths.mean(), rel=0.05)


def test_the_latest_rows_are_held_out_and_ties_by_chance():
    X, y = make_toy(60, 9)
    times = np.random.default_rng(0).integers(5, size=len(X)).astype(float)
    times[times == 0] = np.nan
    data = encode(X, y, times=times)
    for seed in range(3):
        training, held_out = hold_out(data, HoldOut(0.4, latest=True), Key(seed))
        # As many as at random.
        plain = hold_out(data, HoldOut(0.4), Key(seed))[1]
        np.testing.assert_array_equal(held_out.indptr, plain.indptr)
        for user in range(60):
            kept, last = (
                np.nan_to_num(one.times[one.indptr[user] : one.indptr[user + 1]])
                for one in (training, held_out)
            )
            assert not len(last) or kept.max() <= last.min()
    items = {tuple(hold_out(data, HoldOut(0.4, latest=True), Key(s))[1].items) for s in range(9)}
    assert len(items) > 1


def stopped_early(**parameters):
    defaults = {"n_factors": 3, "n_rounds": 6, "early_stopping": True, "n_iter_no_change": 99}
    return RFRec(**defaults | {"validation_fraction": 0.3, "random_state": 0} | parameters)


@pytest.mark.parametrize("predict_with", ["global", "local"])
def test_models_are_measured_alike_however_the_clients_are_cut(predict_with, monkeypatch):
    monkeypatch.setattr(RFRec, "_dtype", np.float64)
    X, y = make_toy(30, 20)
    losses = []
    for size in (10**6, 40, 1):
        monkeypatch.setattr(blocks, "block_size", lambda *_, size=size: size)
        model = stopped_early(predict_with=predict_with, optimizer="gd").fit(X, y)
        losses.append([row["validation_loss"] for row in model.history_])
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-9)


def test_more_patience_lets_a_stopped_fit_go_on():
    X, y = make_toy(40, 20, 0.5)
    model = stopped_early(n_rounds=60, n_iter_no_change=1, learning_rate=1.0, warm_start=True)
    first = model.fit(X, y).n_rounds_
    again = model.set_params(n_iter_no_change=20).fit(X, y).n_rounds_
    scratch = stopped_early(n_rounds=60, n_iter_no_change=20, learning_rate=1.0).fit(X, y)
    assert first < again == scratch.n_rounds_


def test_where_no_held_out_row_counts_the_last_model_is_kept():
    X = np.array([(u, i) for u in range(10) for i in range(4)])
    y = (X[:, 1] == 0).astype(float)
    model = LightFR(4, n_rounds=2, early_stopping=True, validation_fraction=0.05)
    places = []
    for seed in range(6):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            model.set_params(random_state=seed).fit(X, y)
        assert np.isfinite(model.predict(X)).all()
        places += [w.filename for w in caught if "No held-out row counts" in str(w.message)]
    assert set(places) == {__file__}
