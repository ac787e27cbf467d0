"""RankingEnsemble and RatingEnsemble: the sums, the contract, and the search for weights."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import VotingRegressor
from sklearn.model_selection import GridSearchCV

from fedrecsk import (
    EASE,
    BiasOnly,
    FedEASE,
    FedEB,
    Federation,
    FedMF,
    FedSpectral,
    LightFR,
    LocALS,
    Popularity,
    RFRec,
)
from fedrecsk.data.interactions import encode
from fedrecsk.ensemble import RankingEnsemble, RatingEnsemble, _held_out
from fedrecsk.metrics import epsilon_scorer, evaluate_ranking
from fedrecsk.privacy import CentralDP, LaplaceMechanism
from tests import test_contract as contract
from tests import test_newcomers as newcomers
from tests.conftest import make_toy


def rankers():
    return [
        ("ease", FedEASE(3.0)),
        ("als", LocALS(3, reg_user=0.5, n_rounds=3, random_state=0)),
        ("popularity", Popularity()),
    ]


def ranking(**parameters):
    return RankingEnsemble(rankers(), **parameters)


def rating(**parameters):
    parts = [("rfrec", RFRec(3, n_rounds=3, random_state=0)), ("bias", BiasOnly())]
    return RatingEnsemble(parts, **parameters)


def searched(**parameters):
    return ranking(weights="search", random_state=0, **parameters)


every_ensemble = pytest.mark.parametrize("Ensemble", [ranking, rating, searched])

# ------------------------------------------------------------------- as every recommender

# What may be asked of a model without a default; scikit-learn's own checks make up their own data.
CONTRACT = [
    contract.test_ids_of_any_kind_give_the_same_model,
    contract.test_every_estimator_in_short,
    contract.test_further_interactions_can_be_left_out,
    contract.test_bad_requests_are_named,
    contract.test_works_in_pipelines_and_searches,
    contract.test_clients_are_routed,
    newcomers.test_users_are_served_from_what_they_bring,
    contract.test_callbacks_see_and_do_not_disturb,
]


# A search changes `fit` alone.
@pytest.mark.parametrize("Ensemble", [ranking, rating])
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_keeps_the_contract(Ensemble, check, toy):
    check(Ensemble, toy)


def test_the_search_does_not_depend_on_the_rows(toy):
    X, y = toy
    contract.assert_same_fit(searched().fit(X, y), searched().fit(X[::-1], y[::-1]))


# ------------------------------------------------------------------------------- the sums


def test_scores_are_standardised_user_by_user_and_added_up(toy):
    X, y = toy
    model = ranking(weights=[2, 1, 1]).fit(X, y)
    assert model.weights_.tolist() == [0.5, 0.25, 0.25]
    for user in model.user_ids_:
        pairs = [[user, item] for item in model.item_ids_]
        expected = np.zeros(9)
        for weight, part in zip([0.5, 0.25, 0.25], model.estimators_, strict=True):
            scores = part.predict(pairs)
            expected += weight * (scores - scores.mean()) / scores.std()
        np.testing.assert_allclose(model.predict(pairs), expected, atol=1e-5)
        # In any order, and among those of other users.
        mixed = model.predict([*pairs[::-1], [-1, 5]])
        np.testing.assert_allclose(mixed[8::-1], model.predict(pairs), rtol=1e-12)


def test_a_part_that_tells_nothing_apart_adds_nothing(toy):
    parts = [("one", FedMF(n_rounds=1, random_state=0)), ("two", FedMF(n_rounds=1))]
    model = RankingEnsemble(parts).fit(*toy)
    assert not model.predict([[-1, item] for item in model.item_ids_]).any()
    assert not model.predict([[toy[0][0, 0], -1]]).any()


def test_ratings_are_averaged(toy):
    X, y = toy
    model = rating(weights=[3, 1]).fit(X, y)
    voting = VotingRegressor(rating().estimators, weights=[3, 1]).fit(X, y)
    np.testing.assert_allclose(model.predict(X), voting.predict(X))


@every_ensemble
def test_parts_are_fitted_with_the_clients_and_weights(Ensemble, toy):
    X, y = toy
    weight = np.random.default_rng(0).uniform(0.5, 2, len(y))
    model = Ensemble().fit(X, y, clients=X[:, 0] % 3, sample_weight=weight)
    for (name, part), fitted in zip(Ensemble().estimators, model.estimators_, strict=True):
        alone = clone(part).fit(X, y, clients=X[:, 0] % 3, sample_weight=weight)
        np.testing.assert_array_equal(fitted.user_ids_, model.user_ids_)
        np.testing.assert_allclose(fitted.predict(X), alone.predict(X), atol=1e-12)
        assert model.named_estimators_[name] is fitted


# ----------------------------------------------------------------------- the parts' params


def test_parameters_of_parts_are_the_ensembles(toy):
    model = ranking().set_params(ease__reg=7.0, als__federation__dropout=0.2)
    assert model.get_params()["ease__reg"] == 7.0
    assert clone(model).estimators[1][1].federation.dropout == 0.2
    model.set_params(als=FedSpectral(3), popularity="drop", weights=[1, 2, 3]).fit(*toy)
    assert list(model.named_estimators_) == ["ease", "als"]
    assert model.weights_ == pytest.approx([1 / 3, 2 / 3])
    grid = {"ease__reg": [1.0, 10.0], "weights": [None, [1, 0, 0]]}
    search = GridSearchCV(ranking(), grid, cv=2, error_score="raise").fit(*toy)
    assert search.best_params_.keys() == grid.keys()


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (RankingEnsemble([EASE()]), ValueError, r"list of \(name, estimator\)"),
        (RankingEnsemble([("a", EASE()), ("a", EASE())]), ValueError, "not unique"),
        (RankingEnsemble([("a", BiasOnly())]), TypeError, "must be a ranking model.*BiasOnly"),
        (RankingEnsemble([("a", EASE)]), TypeError, "'a' is <class"),
        (RatingEnsemble([("a", EASE())]), TypeError, "must be a rating model.*EASE"),
        (RankingEnsemble([("a", EASE(items=[1, 2]))]), ValueError, "set items= of the Ranking"),
        (RankingEnsemble([("a", "drop")]), ValueError, "keep at least one"),
        (ranking(weights=[1, 2]), ValueError, "there are 3 estimators"),
        (ranking(weights=[1, -2, 1]), ValueError, "not negative"),
        (rating(weights="search"), ValueError, "'weights' parameter"),
        (RankingEnsemble([("a", EASE(-1.0))]), ValueError, "'reg' parameter of EASE"),
        (
            RankingEnsemble(
                [("a", FedSpectral(4, federation=Federation(central_dp=CentralDP(epsilon=3.0))))],
                weights="search",
                items=range(40),
            ),
            ValueError,
            "the privacy of 'a' does not cover that choice",
        ),
        (
            RankingEnsemble(
                [("a", LocALS(federation=Federation(local_dp=LaplaceMechanism(1, 1))))]
            ),
            ValueError,
            "has no local_dp",
        ),
    ],
)
def test_bad_parameters_are_named_before_any_work(model, error, message, toy, monkeypatch):
    monkeypatch.setattr(EASE, "_fit", None)
    monkeypatch.setattr(FedEASE, "_fit", None)
    with pytest.raises(error, match=message):
        model.fit(*toy)


# ----------------------------------------------------------------------- the parts' costs


def test_costs_of_federated_parts_are_added_up(toy):
    model = ranking().fit(*toy)
    ease, als, _ = model.estimators_
    assert model.n_rounds_ == 4
    assert model.communication_.entries == ease.communication_.entries + als.communication_.entries
    # One part is centralised, and sees everything.
    assert not hasattr(model, "privacy_")
    with_own = RankingEnsemble(rankers()[:2]).fit(*toy)
    assert with_own.privacy_.n_uploads == ease.privacy_.n_uploads + als.privacy_.n_uploads
    assert with_own.privacy_.server_sees == "exact sums"
    assert not hasattr(RankingEnsemble([("a", EASE())]).fit(*toy), "communication_")
    assert epsilon_scorer(model, *toy) == -np.inf
    twice, entries = searched().fit(*toy), model.communication_.entries
    assert twice.n_rounds_ == 2 * model.n_rounds_
    assert twice.communication_.entries[-len(entries) :] == entries
    assert model.communication_.bytes_up < twice.communication_.bytes_up


def test_privacy_is_composed(toy):
    X, y = toy
    federation = Federation(local_dp=LaplaceMechanism(clip=0.2, scale=0.1))
    one = RFRec(2, n_rounds=2, aggregation="clients", rating_scale=(1, 5), federation=federation)
    items = np.unique(X[:, 1])
    model = RatingEnsemble([("a", one), ("b", clone(one))], items=items).fit(X, y)
    alone = clone(one).set_params(items=items).fit(X, y)
    assert model.privacy_.mechanism == "laplace"
    assert model.privacy_.epsilon == pytest.approx(2 * alone.privacy_.epsilon)
    bare = RatingEnsemble([("a", one), ("b", RFRec(2, n_rounds=2))], items=items).fit(X, y)
    assert bare.privacy_.mechanism == "none"
    assert np.isinf(bare.privacy_.epsilon)


# ---------------------------------------------------------------------------- the search


def test_a_liked_row_of_each_user_that_has_two_is_held_out():
    X = np.array([[1, 1], [2, 1], [2, 2], [3, 1], [3, 2], [4, 1], [4, 2], [4, 3]])
    y = np.array([1.0, -1, 1, -1, -1, 1, 1, 1])
    data = encode(X, y)
    chosen = np.zeros(len(X))
    for seed in range(50):
        mask = _held_out(data, np.random.RandomState(seed))
        assert mask.sum() == 1
        chosen += mask
    assert (chosen > 0).tolist() == [False, False, False, False, False, True, True, True]
    with pytest.raises(ValueError, match="no row to hold out"):
        _held_out(encode(X[:5], y[:5]), np.random.RandomState(0))


@pytest.mark.parametrize("n_negatives", [None, 3])
def test_scores_are_those_of_a_model_fitted_without_the_held_out_rows(n_negatives):
    """By hand: fit, hold out, and evaluate with the package's own metrics."""
    X, y = make_toy(40, 15, density=0.4, seed=5)
    model = searched(n_negatives=n_negatives, items=np.unique(X[:, 1])).fit(X, y)
    found = model.search_results_
    assert len(found["weights"]) == 66 == len(np.unique(found["weights"], axis=0))
    np.testing.assert_allclose(found["weights"].sum(axis=1), 1)
    assert model.weights_ == pytest.approx(found["weights"][found["score"].argmax()])
    data = encode(X, y)
    mask = _held_out(data, np.random.RandomState(0))
    rows = np.column_stack([data.user_ids.values[data.users], data.item_ids.values[data.items]])
    place = 17
    by_hand = ranking(weights=found["weights"][place], items=model.items)
    by_hand.fit(rows[~mask], data.values[~mask])
    if n_negatives is None:
        expected = evaluate_ranking(by_hand, rows[mask], metrics="ndcg", k=10)
        # Ties count at their middle here, and by expectation there.
        assert found["score"][place] == pytest.approx(expected["ndcg@10"], abs=1e-3)
    else:
        assert found["score"][place] > 0.6


def test_the_search_prefers_what_ranks_well():
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 80)
    X = np.array([[u, 20 * group[u] + i] for u in range(80) for i in rng.permutation(20)[:12]])
    bad = LightFR(1, n_rounds=1, user_bits=1, random_state=0)
    parts = [("bad", bad), ("good", EASE(10.0))]
    model = RankingEnsemble(parts, weights="search", random_state=0).fit(X)
    assert model.weights_[1] >= 0.7


def test_standard_deviations_are_those_of_the_mixture(toy):
    X, y = toy
    parts = [(f"run {k}", FedEB(3, n_rounds=5, random_state=k)) for k in range(3)]
    model = RatingEnsemble(parts, weights=[1, 1, 2]).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    runs = [part.predict(X, return_std=True) for part in model.estimators_]
    second = sum(w * (s**2 + m**2) for w, (m, s) in zip([0.25, 0.25, 0.5], runs, strict=True))
    np.testing.assert_allclose(std, np.sqrt(second - mean**2), rtol=1e-6)
    with pytest.raises(ValueError, match="BiasOnly has no standard deviations"):
        RatingEnsemble([("a", BiasOnly())]).fit(X, y).predict(X, return_std=True)
