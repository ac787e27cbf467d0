"""The search where the data are, against a plain loop that fits every candidate anew."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.stats import loguniform, randint
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import ParameterGrid
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils import check_random_state

from fedrecsk import (
    FedEASE,
    FedEB,
    Federation,
    FedItemKNN,
    FedMF,
    LocALS,
    Popularity,
    RFRec,
    RFRecF,
)
from fedrecsk.attacks import Promotion
from fedrecsk.datasets import make_ratings
from fedrecsk.metrics import bytes_up_scorer, evaluate_ranking
from fedrecsk.model_selection import UserKFold, compare
from fedrecsk.preprocessing import IdEncoder
from fedrecsk.privacy import CentralDP, LaplaceMechanism, PrivacyBudget, SecAggPlus
from fedrecsk.privacy.accounting import Event, epsilon_of, noise_for
from fedrecsk.protocol.keys import Key
from fedrecsk.selection import FederatedSearch
from fedrecsk.selection._halving import rungs_of
from tests.listed import needs_callbacks
from tests.reference.search import halving, split

X, Y = make_ratings(n_users=50, n_items=30, n_ratings=1000, random_state=0)
X = X[:, :2].astype(int)
FADING = {"history_half_life": 3.0, "pair_half_life": 4.0}
GRID = {"reg_user": [0.01, 0.04, 0.16], "learning_rate": [0.05, 0.1, 0.2]}


def search(estimator=None, grid=GRID, **parameters):
    estimator = RFRec(3, n_rounds=20, random_state=1) if estimator is None else estimator
    return FederatedSearch(estimator, grid, **{"random_state": 0} | parameters)


@pytest.fixture(scope="module")
def found():
    return search().fit(X, Y)


# ------------------------------------------------------------------ what the plain loop gives


@pytest.mark.parametrize(
    ("method", "grid", "y"),
    [
        (RFRec(3, n_rounds=20, random_state=1), GRID, Y),
        (LocALS(3, random_state=1), {"alpha": [0.5, 1.0, 2.0], "reg_user": [10.0, 30.0]}, None),
        (
            FedMF(3, n_rounds=20, client_fraction=0.5, random_state=1),
            {"learning_rate": [0.1, 0.5, 1.0], "reg": [1e-3, 2e-3]},
            None,
        ),
    ],
    ids=["RFRec", "LocALS", "FedMF"],
)
def test_it_finds_what_a_plain_loop_finds(method, grid, y):
    assert_finds_the_same(search(method, grid).fit(X, y), method, grid, X, y)


@pytest.mark.parametrize("estimator", [LocALS(3, history_half_life=3.0), FedItemKNN(**FADING)])
def test_it_finds_what_is_best_for_the_latest_rows(estimator):
    estimator.set_params(random_state=1)
    # Times are the order of the rows.
    timed = np.column_stack([X, np.random.default_rng(0).permutation(len(X))])
    grid = {"history_half_life": [1.0, 3.0, 1e6]}
    ours = search(estimator, grid, validation_rows="latest").fit(timed)
    assert_finds_the_same(ours, estimator, grid, timed, None, latest=True)
    at_random = search(estimator, grid).fit(timed)
    assert at_random.cv_results_["mean_test_score"][0] != ours.cv_results_["mean_test_score"][0]


def assert_finds_the_same(ours, method, grid, X, y, **options):
    now = method.get_params()
    default = {name: now[name] for name in grid}
    params = [default, *(one for one in ParameterGrid(grid) if one != default)]
    methods = [clone(method).set_params(**one) for one in params]
    cuts = halving(methods, X, y, ours.n_resources_, 3, **options)
    table = pd.DataFrame(ours.cv_results_)
    assert len(cuts) == ours.n_iterations_
    for number, (ranked, scores) in enumerate(cuts):
        rows = table[table["iter"] == number]
        assert rows["params"].tolist() == [params[one] for one in sorted(ranked)]
        wanted = [scores[one] for one in sorted(ranked)]
        np.testing.assert_allclose(rows["mean_test_score"], wanted, rtol=1e-6)
        assert (rows["n_resources"] == ours.n_resources_[number]).all()
    assert ours.best_params_ == params[cuts[-1][0][0]]
    assert ours.best_score_ == pytest.approx(max(cuts[-1][1].values()), rel=1e-6)


@pytest.mark.parametrize("fraction", [1.0, 0.25])
def test_a_part_of_the_clients_evaluates_where_rounds_send_rows(fraction):
    n_clients = 200
    X, _ = make_ratings(n_users=n_clients, n_items=40, n_ratings=3000, random_state=0)
    X = X[:, :2].astype(int)
    method = LocALS(3, client_fraction=fraction, random_state=1)
    grid = {"alpha": [0.5, 1.0, 2.0], "reg_user": [10.0, 30.0, 60.0]}
    ours = search(method, grid).fit(X)
    assert ours.n_candidates_ == [9, 3]
    # At least 50 clients, and a client receives some two models at a cut.
    shares = [max(50 / n_clients, 2 / 9), 2 / 3]
    assert_finds_the_same(ours, method, grid, X, None, shares=shares)
    if fraction == 1:
        rounds = pd.DataFrame(ours.history_)["bytes_down"]
        whole, (first, last) = 40 * 3 * 4, ours.n_resources_
        # Beside what a round sends.
        extra = [rounds[first] - rounds[first - 1], rounds[last] - rounds[last - 1]]
        assert extra == [9 * 50 * whole, 3 * np.ceil(2 / 3 * n_clients) * whole]


def test_bytes_are_those_of_all_candidates(found):
    # Of one fit: a round's model and uploads, and the set-up.
    one = RFRec(3, n_rounds=1, random_state=1).fit(X, Y).communication_.to_frame()
    one = one.set_index("phase")[["bytes_down", "bytes_up"]]
    catalogue, setup, round, final = (
        one.loc[phase].to_numpy() for phase in ("catalogue", "setup", "round", "final")
    )
    assert found.n_candidates_ == [9, 3]
    assert found.n_resources_ == [5, 15]
    n_clients, n_evaluations = 50, 9 + 3
    # What is equal for several of them is sent once: the catalogue, the set-up, the first model,
    # and after a step the models of each learning rate.
    candidates = catalogue + setup + (9 * 5 + 3 * 10) * round
    candidates[0] -= (8 + 6) * round[0]
    # Those that end have received one more model; two numbers of eight bytes answer it.
    candidates += np.array([9 * round[0], n_evaluations * 16 * n_clients])
    last = catalogue + setup + 5 * round + final
    # The set-up of the warm fit knows all rows.
    assert found.communication_.bytes_down == candidates[0] + last[0]
    assert found.communication_.bytes_up == candidates[1] + last[1]
    refit = found.best_estimator_.communication_
    assert (refit.bytes_down, refit.bytes_up) == tuple(last)
    rounds = pd.DataFrame(found.history_)
    assert rounds["candidates"].tolist() == [9] * 6 + [3] * 10
    assert rounds["bytes_up"].sum() == candidates[1] - setup[1]
    assert rounds["score"].dropna().index.tolist() == [5, 15]
    # Messages that travel together are one.
    assert found.communication_.entries[2]["messages_down"] == n_clients


@pytest.mark.parametrize("n_jobs", [2, 3])
def test_any_number_of_threads_finds_the_same(found, n_jobs):
    other = search(n_jobs=n_jobs).fit(X, Y)
    assert other.communication_ == found.communication_
    np.testing.assert_array_equal(other.predict(X), found.predict(X))
    np.testing.assert_array_equal(
        other.cv_results_["mean_test_score"], found.cv_results_["mean_test_score"]
    )


# --------------------------------------------------------------------------- the last rounds


def test_the_winner_goes_on_with_all_rows(found):
    model = found.best_estimator_
    assert found.refit_ == "warm"
    assert (model.n_rounds, model.n_rounds_) == (20, 5)
    assert model.get_params()["reg_user"] == found.best_params_["reg_user"]
    anew = search(refit="anew").fit(X, Y)
    assert anew.refit_ == "anew"
    whole = clone(model).fit(X, Y)
    np.testing.assert_array_equal(anew.predict(X), whole.predict(X))
    assert anew.best_estimator_.communication_ == whole.communication_
    # All rows are known to both, and the warm model is not far from the other one.
    assert all(np.array_equal(a, b) for a, b in zip(model._seen, whole._seen, strict=True))
    assert np.abs(found.predict(X) - whole.predict(X)).mean() < 0.1


def test_sums_are_fitted_anew():
    ours = search(FedEASE(), {"reg": [10.0, 100.0, 1000.0]}).fit(X)
    assert ours.refit_ == "anew"
    assert ours.n_resources_ == [1]
    whole = clone(ours.best_estimator_).fit(X)
    np.testing.assert_array_equal(ours.predict(X), whole.predict(X))


def test_without_refit_there_is_no_model():
    ours = search(refit=False).fit(X, Y)
    assert ours.best_params_ == search().fit(X, Y).best_params_
    assert not hasattr(ours, "best_estimator_")
    assert not hasattr(ours, "predict")
    assert ours.refit_ is None
    assert [e["phase"] for e in ours.communication_.entries][-1] == "stop"


def test_the_model_can_be_updated_later():
    method = RFRec(3, n_rounds=20, random_state=1, warm_start=True)
    ours = search(method).fit(X[:900], Y[:900])
    ours.best_estimator_.partial_fit(X[900:], Y[900:])
    plain = search().fit(X, Y).best_estimator_
    assert getattr(plain, "_run", None) is None


# -------------------------------------------------------------------------------- a searcher


def test_it_is_a_meta_estimator(found):
    other = clone(found)
    assert not hasattr(other, "best_estimator_")
    assert other.get_params()["estimator__n_rounds"] == 20
    other.set_params(estimator__n_rounds=10, factor=2)
    assert other.fit(X, Y).n_candidates_ == [9, 5, 3, 2]
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.predict(X), found.predict(X))
    items, _ = found.recommend([X[0, 0]], 3)
    assert items.shape == (1, 3)
    assert found.score(X, Y) == found.best_estimator_.score(X, Y)
    assert 0 < evaluate_ranking(found, X, k=5, exclude_seen=False)["ndcg@5"] <= 1


def test_results_have_the_names_of_scikit_learn(found):
    table = pd.DataFrame(found.cv_results_)
    best = table.loc[found.best_index_]
    assert best["params"] == found.best_params_
    assert best["mean_test_score"] == found.best_score_
    assert best["iter"] == found.n_iterations_ - 1
    assert best["param_reg_user"] == found.best_params_["reg_user"]
    last = table[table["iter"] == table["iter"].max()]
    assert last["rank_test_score"].min() == best["rank_test_score"]


def test_the_estimator_as_it_is_stays_until_the_last_cut():
    # It is worse than all others.
    method = RFRec(3, n_rounds=20, random_state=1, learning_rate=1e-6)
    ours = search(method).fit(X, Y)
    table = pd.DataFrame(ours.cv_results_)
    defaults = table[table["param_learning_rate"] == 1e-6]
    assert defaults["iter"].tolist() == list(range(ours.n_iterations_))
    assert ours.best_params_["learning_rate"] > 1e-6
    assert ours.gain_ == ours.best_score_ - defaults["mean_test_score"].iloc[-1] > 0


def test_the_gain_is_0_if_the_estimator_as_it_is_wins():
    ours = search(grid={"learning_rate": [1e-6, 1e-7]}).fit(X, Y)
    assert ours.best_params_ == {"learning_rate": RFRec().learning_rate}
    assert ours.gain_ == 0
    assert not hasattr(clone(ours), "gain_")


def test_cuts_come_between_a_tenth_and_three_quarters_of_the_rounds():
    assert rungs_of(100, 27, 3, "auto") == [10, 30, 75]
    assert rungs_of(100, 9, 3, "auto") == [25, 75]
    assert rungs_of(100, 2, 3, "auto") == [75]
    assert rungs_of(100, 27, 3, 20) == [20, 60, 75]
    assert rungs_of(100, 27, 3, 90) == [90]
    assert rungs_of(10, 27, 3, "auto") == [1, 3, 7]
    assert rungs_of(100, 1000, 3, "auto") == [10, 30, 75]
    assert [rungs_of(n, 27, 3, "auto") for n in (1, 2, 4)] == [[1], [1], [1, 3]]


def test_candidates_are_drawn():
    spaces = {"reg_user": loguniform(0.01, 0.1), "n_factors": randint(2, 5)}
    ours = search(grid=spaces, n_candidates=6).fit(X, Y)
    assert ours.n_candidates_[0] == 6
    assert ours.cv_results_["params"][0] == {"n_factors": 3, "reg_user": 0.04}
    other = search(grid=spaces, n_candidates=6).fit(X, Y)
    assert other.cv_results_["params"] == ours.cv_results_["params"]
    few = search(n_candidates=4).fit(X, Y)
    assert few.n_candidates_[0] == 4
    two = search(grid=[{"reg_user": [0.1]}, {"reg_item": [0.1]}]).fit(X, Y)
    assert two.cv_results_["params"][1:] == [{"reg_user": 0.1}, {"reg_item": 0.1}]


def test_parts_of_an_estimator_are_searched():
    pipeline = make_pipeline(IdEncoder(), RFRec(3, n_rounds=20, federation=Federation()))
    grid = {"rfrec__reg_user": [0.01, 0.1], "rfrec__federation__dropout": [0.0, 0.5]}
    ours = search(pipeline, grid).fit(X, Y)
    assert isinstance(ours.best_estimator_, Pipeline)
    dropout = ours.best_params_["rfrec__federation__dropout"]
    assert ours.best_estimator_[-1].federation.dropout == dropout
    assert np.isfinite(ours.predict(X)).all()
    assert not hasattr(ours, "recommend")
    alone = search(grid={"federation__dropout": [0.0, 0.5]}).fit(X, Y)
    assert set(alone.best_params_) == {"federation__dropout"}


def test_it_is_compared_with_its_costs(found):
    models = {"search": search(), "default": RFRec(3, n_rounds=20), "popular": Popularity()}
    result = compare(models, X, Y, cv=UserKFold(2), scoring=["rmse"], error_score="raise")
    rows = result.summary.set_index("estimator")
    assert rows.loc["search", "mean_mb_up"] > 2 * rows.loc["default", "mean_mb_up"]
    assert -bytes_up_scorer(found, X) * 50 == found.communication_.bytes_up
    budget = PrivacyBudget(epsilon=1).charge(found)
    assert budget.report.n_uploads == found.privacy_.n_uploads


def test_clients_with_several_users():
    ours = search().fit(X, Y, clients=X[:, 0] % 7)
    assert len(ours.communication_.client_ids) == 7
    weighted = search().fit(X, Y, sample_weight=np.ones(len(X)))
    np.testing.assert_array_equal(weighted.predict(X), search().fit(X, Y).predict(X))


def test_a_matrix_is_searched():
    likes = sparse.csr_array((np.ones(len(X)), (X[:, 0], X[:, 1])))
    ours = search(LocALS(3), {"alpha": [1.0, 2.0, 4.0]}).fit(likes)
    rows = search(LocALS(3, items=np.arange(likes.shape[1])), {"alpha": [1.0, 2.0, 4.0]}).fit(X)
    np.testing.assert_array_equal(ours.predict(X), rows.predict(X))


# ----------------------------------------------------------------------- what may go wrong


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"grid": {"reg_user": [0.04]}}, "only one candidate"),
        ({"grid": {}}, "only one candidate"),
        ({"grid": {"regg": [1, 2]}}, "Invalid parameter 'regg'.*reg_user"),
        ({"grid": {"reg_user": [0.1, -1.0]}}, "'reg_user' parameter of RFRec"),
        ({"grid": {"n_rounds": [10, 20]}}, "'n_rounds' cannot be searched: rounds are"),
        ({"grid": {"random_state": [0, 1]}}, "'random_state' cannot be searched"),
        ({"min_rounds": 1}, "min_rounds=1, but the first cut must come after 2 to 20"),
        ({"min_rounds": 21}, "min_rounds=21"),
        ({"scoring": "rmsee"}, "Unknown metric 'rmsee'"),
        ({"scoring": "ndcg@31"}, "the catalogue has 30 items"),
        ({"estimator": RFRec(early_stopping=True)}, "set early_stopping=False"),
        (
            {
                "estimator": make_pipeline(IdEncoder(), RFRec()),
                "grid": {"idencoder__x": [1, 2]},
            },
            "begins with 'rfrec__'",
        ),
    ],
)
def test_bad_input_is_refused_before_any_work(parameters, message, monkeypatch):
    monkeypatch.setattr("fedrecsk.simulation.run.Run.set_up", None)
    with pytest.raises(ValueError, match=message):
        search(**parameters).fit(X, Y)


def test_other_models_and_rows_without_a_pair_are_refused():
    with pytest.raises(TypeError, match=r"federated method.*Popularity"):
        search(Popularity()).fit(X)
    alone = np.stack([np.arange(10), np.arange(10) % 3], axis=1)
    with pytest.raises(ValueError, match=r"no row to hold out.*search"):
        search().fit(alone, np.arange(10.0))


@pytest.mark.parametrize(
    ("estimator", "grid", "message"),
    [
        (LocALS(), {"alpha": [1.0, 2.0]}, "Set timestamps and history_half_life, or use"),
        (
            LocALS(history_half_life=2.0, timestamps=None),
            {"alpha": [1.0]},
            "does not read the times",
        ),
        (
            LocALS(history_half_life=2.0),
            {"history_half_life": [None]},
            "times.*: {'history_half_life",
        ),
        (FedEB(), {"n_factors": [2]}, "Set timestamps, or use"),
        (RFRec(), {"reg_user": [1.0]}, r"\. Use validation_rows"),
        (LocALS(history_half_life=2.0), {"timestamps": [3]}, "'timestamps' cannot be searched"),
        (
            LocALS(history_half_life=2.0, federation=Federation(adversary=Promotion(0.1, item=0))),
            {"alpha": [1.0]},
            "adversary adds would be the latest",
        ),
    ],
)
def test_the_latest_rows_need_times(estimator, grid, message):
    with pytest.raises(ValueError, match=message):
        search(estimator, grid, validation_rows="latest").fit(X)
    with pytest.raises(ValueError, match="'validation_rows' parameter of FederatedSearch"):
        search(validation_rows="last").fit(X, Y)


@pytest.mark.parametrize("refit", [True, "anew", False])
def test_a_winner_that_diverged_warns(refit):
    # Its predictions, clipped to the scale, are finite.
    diverging = RFRec(3, n_rounds=20, random_state=1, learning_rate=1e6)
    with pytest.warns(UserWarning, match="RFRec diverged: scores of training rows reach"):
        search(diverging, {"reg_user": [0.01, 0.04]}, refit=refit).fit(X, Y)


def test_candidates_that_diverge_lose():
    rates = {"learning_rate": [0.1, 1e14], "optimizer": ["gd"], "prox": [0.0]}
    with pytest.warns(FitFailedWarning, match=r"of 3 candidates have diverged"):
        ours = search(grid=rates).fit(X, Y)
    scores = ours.cv_results_["mean_test_score"]
    assert np.isnan(scores).any()
    assert np.isfinite(ours.best_score_)
    assert ours.cv_results_["rank_test_score"][np.isnan(scores)].max() == len(scores)
    diverging = RFRec(3, n_rounds=20, learning_rate=1e14, optimizer="gd", prox=0.0)
    with pytest.warns(FitFailedWarning, match=r"1 of 3 candidates have diverged"):
        assert np.isnan(search(diverging, {"learning_rate": [0.1, 0.2]}).fit(X, Y).gain_)


def test_cohorts_that_hold_out_nothing_do_not_count():
    # Most clients have one row, so that in some cohorts nobody holds out any.
    _, first = np.unique(X[:, 0], return_index=True)
    rows = np.union1d(first, np.flatnonzero(X[:, 0] < 2))
    method = RFRec(3, n_rounds=20, client_fraction=0.1, random_state=1)
    ours = search(method, {"reg_user": [0.04, 0.16]}).fit(X[rows], Y[rows])
    assert np.isfinite(ours.cv_results_["mean_test_score"]).all()


def test_an_interrupt_leaves_the_search_as_it_was(found, monkeypatch):
    ours = copy.deepcopy(found)
    before = dict(vars(ours))

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedrecsk.simulation.continuing.update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ours.fit(X, Y)
    assert vars(ours) == before


# ---------------------------------------------------------------------- settings of a federation


def test_masked_sums_find_the_same(found):
    federation = Federation(secure_aggregation=SecAggPlus())
    masked = RFRec(3, n_rounds=20, random_state=1, federation=federation)
    ours = search(masked, {"reg_user": [0.04, 0.16]}).fit(X, Y)
    methods = [clone(masked).set_params(reg_user=reg) for reg in (0.04, 0.16)]
    [(_, scores)] = halving(methods, X, Y, ours.n_resources_, 3)
    # Masked numbers are rounded.
    wanted = [scores[0], scores[1]]
    np.testing.assert_allclose(ours.cv_results_["mean_test_score"], wanted, rtol=1e-5)
    assert "neighbours" in ours.privacy_.trust


def test_a_round_that_sends_nothing_is_evaluated_too():
    method = RFRecF(3, n_rounds=30, random_state=1)
    ours = search(method, {"learning_rate": [0.02, 0.04, 0.08]}).fit(X, Y)
    assert np.isfinite(ours.cv_results_["mean_test_score"]).all()


# -------------------------------------------------------------------------- central privacy


PUBLIC = {"items": np.unique(X[:, 1]), "rating_scale": (1, 5), "aggregation": "clients"}


def private(method=None, **mechanism):
    method = RFRec(3, n_rounds=20, random_state=1, **PUBLIC) if method is None else method
    mechanism = {"clip": 0.5, "epsilon": 20.0, "delta": 1e-3} | mechanism
    return method.set_params(federation=Federation(central_dp=CentralDP(**mechanism)))


@pytest.mark.parametrize("refit", [True, "anew"])
def test_the_whole_search_spends_the_budget(refit):
    pytest.importorskip("dp_accounting")
    ours = search(private(), epsilon_scores=5.0, refit=refit).fit(X, Y)
    assert (ours.n_candidates_, ours.n_resources_) == ([9, 3], [5, 15])
    z = ours.best_estimator_.federation.central_dp.noise_multiplier
    n_left = 5 if refit is True else 20
    # All candidates, the three that go on, and the winner with all rows; there is no set-up.
    n_releases = 9 * 5 + 3 * 10 + n_left
    # Of all scores together.
    scores = noise_for([Event("gaussian", 1.0, 9 + 3)], 5.0, 1e-3)
    by_hand = [Event("gaussian", z, n_releases), Event("gaussian", scores, 9 + 3)]
    assert epsilon_of(by_hand, 1e-3) == pytest.approx(20.0, rel=1e-6)
    assert 20.0 * (1 - 1e-6) < ours.privacy_.epsilon <= 20.0
    assert ours.privacy_.trust == "the server"
    entries = [entry for entry in ours.communication_.entries if entry["phase"] == "round"]
    assert len(entries) == 15 + n_left


def test_without_a_seed_the_noise_is_secret():
    pytest.importorskip("dp_accounting")
    method = private(RFRec(3, n_rounds=20, **PUBLIC))
    ours = search(method, {"reg_user": [0.04, 0.1]}, epsilon_scores=5.0, random_state=None)
    assert ours.fit(X, Y).best_estimator_.random_state is None
    assert ours.privacy_.epsilon == pytest.approx(20.0, rel=1e-6)


def test_set_ups_are_releases_too():
    pytest.importorskip("dp_accounting")
    method = private(LocALS(3, items=PUBLIC["items"], upload="all"), setup_share=0.3)
    ours = search(method, {"alpha": [0.5, 1.0, 2.0, 4.0]}, epsilon_scores=5.0).fit(X)
    assert ours.privacy_.epsilon == pytest.approx(20.0, rel=1e-6)
    counts = sum(e.count for e in ours.privacy_.events)
    n_rounds = 4 * ours.n_resources_[0] + 2 * (ours.n_resources_[1] - ours.n_resources_[0]) + 3
    assert counts == n_rounds + 5 + sum(ours.n_candidates_)


def test_scores_have_the_noise_they_are_charged_for():
    pytest.importorskip("dp_accounting")
    exact, grid = private(clip=20.0, noise_multiplier=1e-6, epsilon=None), {"reg_user": [0.01, 0.2]}
    ours = search(exact, grid, epsilon_scores=5e5).fit(X, Y)
    noisy = search(exact, grid, epsilon_scores=0.1).fit(X, Y)
    scores = [one.cv_results_["mean_test_score"] for one in (ours, noisy)]
    assert np.abs(scores[0] - scores[1]).max() > 0.1
    key = Key(int(check_random_state(1).randint(2**31 - 1)))
    train, (rows, y) = split(exact, X, Y, key)
    model = clone(exact).set_params(n_rounds=ours.n_resources_[0]).fit(*train)
    errors = (model.predict(rows) - y) ** 2
    each = [errors[rows[:, 0] == user].mean() for user in np.unique(rows[:, 0])]
    # Clients without a held-out row count too, and none has more than half of the scale.
    total = np.minimum(each, 4.0).sum()
    assert scores[0][0] == pytest.approx(-np.sqrt(total / 50), rel=1e-3)


@pytest.mark.parametrize(
    ("method", "parameters", "message"),
    [
        (private(), {}, "set epsilon_scores"),
        (private(), {"epsilon_scores": 20.0}, "leaves nothing"),
        (private(noise="clients"), {"epsilon_scores": 1.0}, "noise by the clients"),
        (private(quantile=0.5), {"epsilon_scores": 1.0}, "adaptive clip"),
        (private(), {"epsilon_scores": 1.0, "scoring": "loss"}, "no bound"),
        (
            private(RFRec(3, client_fraction=0.5, **PUBLIC)),
            {"epsilon_scores": 1.0},
            "client_fraction below 1",
        ),
        (
            private(),
            {"grid": {"client_fraction": [0.5, 1.0]}, "epsilon_scores": 1.0},
            "client_fraction below 1",
        ),
        (private(noise_multiplier=0.1), {"epsilon_scores": 1.0}, "whole search would spend"),
        (private(RFRec(3)), {"epsilon_scores": 1.0}, "catalogue must be public"),
        (RFRec(3), {"epsilon_scores": 1.0}, "nothing keeps it"),
        (
            RFRec(3, federation=Federation(local_dp=LaplaceMechanism(0.2, 0.04)), **PUBLIC),
            {},
            "local_dp does not protect",
        ),
        (
            RFRec(3, **PUBLIC),
            {"grid": {"federation__local_dp": [None, LaplaceMechanism(0.2, 0.04)]}},
            "local_dp does not protect",
        ),
        (
            private(),
            {"grid": {"federation__central_dp__epsilon": [1, 2]}, "epsilon_scores": 1.0},
            "calibrated together",
        ),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(method, parameters, message, monkeypatch):
    pytest.importorskip("dp_accounting")
    monkeypatch.setattr("fedrecsk.simulation.run.Run.set_up", None)
    with pytest.raises(ValueError, match=message):
        search(method, **parameters).fit(X, Y)


# ------------------------------------------------------------------------------- callbacks


class Watcher:
    """A callback that keeps which steps it has seen, and stops after some of them."""

    def __init__(self, n_steps=np.inf):
        self.n_steps, self.names = n_steps, []

    def setup(self, estimator, context):
        pass

    def teardown(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context, **_):
        pass

    def on_fit_task_end(self, estimator, context, *, fitted_estimator):
        self.names.append(context.task_name)
        assert np.isfinite(fitted_estimator.predict(X)).all()
        return len(self.names) >= self.n_steps


@needs_callbacks
def test_callbacks_watch_and_stop_it(found):
    watcher, stopper = Watcher(), Watcher(10)
    ours = search().set_callbacks(watcher).fit(X, Y)
    np.testing.assert_array_equal(ours.predict(X), found.predict(X))
    assert watcher.names == ["round"] * 16 + ["fit"]
    stopped = search().set_callbacks(stopper).fit(X, Y)
    # Evaluated once more, and the winner goes on.
    assert stopped.n_resources_ == [5, 10]
    assert stopped.n_rounds_ == 20
