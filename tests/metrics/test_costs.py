"""Cost scorers and the choice within a budget."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline

from fedrecsk import BiasOnly, Federation, RFRec
from fedrecsk.metrics import (
    best_within,
    bytes_down_scorer,
    bytes_scorer,
    bytes_up_scorer,
    epsilon_scorer,
    make_ranking_scorer,
    rounds_scorer,
)
from fedrecsk.privacy import LaplaceMechanism

COSTS = {
    "bytes_up": bytes_up_scorer,
    "bytes_down": bytes_down_scorer,
    "bytes": bytes_scorer,
    "rounds": rounds_scorer,
    "epsilon": epsilon_scorer,
}


def costs(model):
    """What the model's own report says."""
    ledger = model.communication_
    n_clients = len(ledger.client_ids)
    return {
        "bytes_up": ledger.bytes_up / n_clients,
        "bytes_down": ledger.bytes_down / n_clients,
        "bytes": (ledger.bytes_up + ledger.bytes_down) / n_clients,
        "rounds": model.n_rounds_,
        "epsilon": model.privacy_.epsilon,
    }


def private():
    federation = Federation(local_dp=LaplaceMechanism(clip=0.2, scale=0.1))
    return RFRec(
        n_rounds=4,
        federation=federation,
        aggregation="clients",
        rating_scale=(1, 5),
        items=range(5000),
        random_state=0,
    )


def test_costs_are_the_models_own_report_with_a_minus(toy):
    X, y = toy
    piped = make_pipeline("passthrough", private())
    for model in (
        RFRec(n_rounds=3, random_state=0).fit(X, y),
        RFRec(n_rounds=3, client_fraction=0.5, random_state=0).fit(X, y, clients=X[:, 0] % 4),
        private().fit(X, y),
    ):
        for name, expected in costs(model).items():
            assert COSTS[name](model, X, y) == COSTS[name](model, X) == pytest.approx(-expected)
            assert expected > 0
    assert np.isfinite(expected)
    for outer in (piped, GridSearchCV(piped, {}, cv=2)):
        outer.fit(X, y)
        assert {name: -COSTS[name](outer, X, y) for name in COSTS} == costs(model)
    for name, scorer in COSTS.items():
        assert scorer(BiasOnly().fit(X, y), X, y) == (-np.inf if name == "epsilon" else 0)


@pytest.mark.parametrize("name", COSTS)
def test_bad_models_are_named(name, toy):
    X, y = toy
    with pytest.raises(NotFittedError):
        COSTS[name](RFRec(), X, y)
    with pytest.raises(TypeError, match="LinearRegression is not a recommender"):
        COSTS[name](LinearRegression().fit(X, y), X, y)
    callback = pytest.importorskip("sklearn.callback")
    monitor = callback.ScoringMonitor(scoring=COSTS[name])
    with pytest.raises(ValueError, match="RFRec has no communication_ yet"):
        RFRec(n_rounds=2).set_callbacks(monitor).fit(X, y)


# ----------------------------------------------------------------------------- best_within


def results(values, costs):
    return {
        "mean_test_ndcg@10": np.array(values),
        "mean_test_bytes_up": -np.array(costs, dtype=float),
        "params": [{"n": i} for i in range(len(values))],
    }


@pytest.mark.parametrize(
    ("values", "costs", "best"),
    [
        ([0.1, 0.3, 0.2], [10, 30, 20], 2),
        ([0.1, 0.3, 0.2], [10, 25, 20], 1),
        ([0.3, 0.3, 0.2], [20, 10, 5], 1),
        ([np.nan, 0.1, 0.3], [1, 2, np.nan], 1),
        ([0.1, 0.9], [25, np.inf], 0),
    ],
)
def test_the_best_that_the_budget_allows(values, costs, best):
    index = best_within(25)(results(values, costs))
    assert index == best
    assert isinstance(index, int)


@pytest.mark.parametrize(
    ("values", "costs", "message"),
    [
        (
            [0.1, 0.3],
            [30, 40],
            r"budget of 25: the cheapest, {'n': 0}, has a mean 'bytes_up' of 30",
        ),
        ([np.nan, 0.3], [1, 40], r"the cheapest, {'n': 1}, has a mean 'bytes_up' of 40"),
        ([np.nan], [1], "No candidate has both"),
        ([0.1], [-30], "'bytes_up' is not a cost"),
    ],
)
def test_no_candidate_within_the_budget(values, costs, message):
    with pytest.raises(ValueError, match=message):
        best_within(25)(results(values, costs))
    with pytest.raises(ValueError, match="no score 'a'; it has ndcg@10, bytes_up"):
        best_within(25, metric="a")(results(values, costs))
    with pytest.raises(ValueError, match="'budget' parameter of best_within must be a float in"):
        best_within(-1)


def test_one_search_answers_the_question(toy):
    X, y = toy
    scoring = {**make_ranking_scorer(["ndcg"], 3), "bytes_up": bytes_up_scorer}
    search = GridSearchCV(
        RFRec(random_state=0),
        {"n_rounds": [1, 2, 3, 8]},
        cv=KFold(2, shuffle=True, random_state=0),
        scoring=scoring,
        refit=False,
    ).fit(X, y)
    ndcg = search.cv_results_["mean_test_ndcg@3"]
    cost = -search.cv_results_["mean_test_bytes_up"]
    budget = cost[2]
    chosen = clone(search).set_params(refit=best_within(budget, metric="ndcg@3")).fit(X, y)
    assert ndcg[chosen.best_index_] == ndcg[cost <= budget].max()
    assert chosen.best_estimator_.n_rounds_ == chosen.best_params_["n_rounds"] <= 3
    assert pickle.loads(pickle.dumps(chosen)).best_index_ == chosen.best_index_
    tight = clone(search).set_params(refit=best_within(1, metric="ndcg@3"))
    with pytest.raises(ValueError, match=r"the cheapest, {'n_rounds': 1}"):
        tight.fit(X, y)
