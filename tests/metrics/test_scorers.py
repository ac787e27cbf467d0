"""Ranking scorers in scikit-learn's machinery."""

import numpy as np
import pytest
from sklearn import config_context
from sklearn.compose import TransformedTargetRegressor
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.metrics import check_scoring
from sklearn.model_selection import GridSearchCV, KFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from fedrecsk import BiasOnly, Popularity
from fedrecsk.metrics import _evaluate, bytes_up_scorer, evaluate_ranking, make_ranking_scorer
from tests.conftest import make_toy
from tests.metrics.models import Given, Peer

CV = KFold(3, shuffle=True, random_state=0)
KEYS = ["ndcg@2", "ndcg@5", "mrr@2", "mrr@5"]


@pytest.fixture
def data():
    return make_toy(25, 20, density=0.4)


@pytest.fixture
def n_rankings(monkeypatch):
    """A list that grows by one with every ranking."""
    rankings = []
    rank = _evaluate.rank

    def counted(*arguments, **options):
        rankings.append(1)
        return rank(*arguments, **options)

    monkeypatch.setattr(_evaluate, "rank", counted)
    return rankings


def several(**options):
    return make_ranking_scorer(["ndcg", "mrr"], [2, 5], **options)


@pytest.mark.parametrize("Model", [BiasOnly, Popularity, Given, Peer])
@pytest.mark.parametrize("options", [{}, {"n_negatives": 4, "random_state": 0}])
def test_scores_are_evaluate_rankings(Model, options, data):
    X, y = data
    model = Model().fit(X[:-60], y[:-60])
    held_out = X[-60:], y[-60:] - 2
    expected = evaluate_ranking(model, *held_out, metrics=["ndcg", "mrr"], k=[2, 5], **options)
    assert several(**options)(model, *held_out) == expected
    for key, value in expected.items():
        metric, k = key.split("@")
        assert make_ranking_scorer(metric, int(k), **options)(model, *held_out) == value
    options |= {"threshold": 1.5}
    one = make_ranking_scorer(k=5, **options)(model, *held_out)
    assert one == evaluate_ranking(model, *held_out, k=5, **options)["ndcg@5"]


@pytest.mark.parametrize("y_given", [True, False])
def test_cross_validate_takes_every_form(data, y_given, n_rankings):
    X, y = data
    y = y if y_given else None
    one = make_ranking_scorer("ndcg", k=5)
    runs = {
        "float": cross_validate(Popularity(), X, y, cv=CV, scoring=one),
        "dict": cross_validate(Popularity(), X, y, cv=CV, scoring=several()),
        "merged": cross_validate(
            Popularity(), X, y, cv=CV, scoring={**several(), "bytes": bytes_up_scorer}
        ),
        "by hand": cross_validate(
            Popularity(),
            X,
            y,
            cv=CV,
            scoring={"first": make_ranking_scorer("mrr", 5), "ndcg@5": make_ranking_scorer(k=5)},
        ),
    }
    assert len(n_rankings) == 4 * 3
    for name, run in runs.items():
        score = run["test_score" if name == "float" else "test_ndcg@5"]
        np.testing.assert_array_equal(score, runs["float"]["test_score"])
    assert [k.removeprefix("test_") for k in runs["dict"] if k.startswith("test_")] == KEYS


def test_rankings_are_shared_only_where_they_are_alike(data, n_rankings):
    X, y = data
    model = Popularity().fit(X)
    scoring = {
        "deep": make_ranking_scorer(k=5),
        "deeper": make_ranking_scorer(k=6),
        "drawn": make_ranking_scorer(k=5, n_negatives=5, random_state=0),
        "other draw": make_ranking_scorer(k=5, n_negatives=5, random_state=1),
        "all": make_ranking_scorer(k=5, exclude_seen=False),
        "auc": make_ranking_scorer("auc"),
        "covered": make_ranking_scorer("coverage", k=4),
    }
    scores = check_scoring(model, scoring)(model, X, y)
    # Those with another depth, with all items, or with lists rank the catalogue again.
    assert len(n_rankings) == 7
    for name, scorer in scoring.items():
        assert scores[name] == scorer(model, X, y)
    del n_rankings[:]
    check_scoring(model, {name: scoring[name] for name in ("deeper", "deep")})(model, X, y)
    assert len(n_rankings) == 1
    del n_rankings[:]
    together = make_ranking_scorer(["ndcg", "auc", "coverage"], k=5)
    scores = check_scoring(model, {**together})(model, X, y)
    assert list(scores) == ["ndcg@5", "auc", "coverage@5"]
    assert len(n_rankings) == 1


def test_scorers_look_through_pipelines_and_searches(data):
    X, y = data
    train, test = slice(None, -60), slice(-60, None)
    scorer = several(n_negatives=4, random_state=0)
    users, items = np.unique(X[:, 0]), np.unique(X[:, 1])
    new = {user: np.setdiff1d(items, X[X[:, 0] == user, 1]) for user in users}
    given = several(negatives=new)
    direct = BiasOnly().fit(X[train], y[train])
    expected, of_given = (one(direct, X[test], y[test]) for one in (scorer, given))
    shift = FunctionTransformer(lambda X: X + np.array([1000, 5]))
    inner = GridSearchCV(BiasOnly(), {"reg_item": [10.0]}, cv=CV)
    for model in (
        make_pipeline(shift, BiasOnly()),
        TransformedTargetRegressor(BiasOnly(), transformer=None),
        inner,
        make_pipeline(shift, inner),
        GridSearchCV(make_pipeline(shift, BiasOnly()), {}, cv=CV, scoring=scorer, refit="mrr@2"),
    ):
        assert scorer(model.fit(X[train], y[train]), X[test], y[test]) == expected
        assert given(model, X[test], y[test]) == of_given
    assert model.best_score_ == model.cv_results_["mean_test_mrr@2"].max()


def test_weights_reach_the_scorer(data):
    X, y = data
    weights = np.where(np.arange(len(y)) % 4, 1.0, 0.0)
    model = Popularity().fit(X)
    kept = weights > 0
    weighted = several()(model, X, y, sample_weight=weights)
    # With exclude_seen off, rows of weight zero and absent rows are the same.
    free = several(exclude_seen=False)
    assert free(model, X, y, sample_weight=weights) == free(model, X[kept], y[kept])
    with config_context(enable_metadata_routing=True):
        for scoring, key in (
            (make_ranking_scorer(k=5), "score"),
            (several(), "ndcg@5"),
            ({**several(), "bytes": bytes_up_scorer}, "ndcg@5"),
        ):
            cv = [(np.arange(len(y)), np.arange(len(y)))]
            run = cross_validate(
                Popularity(), X, y, cv=cv, scoring=scoring, params={"sample_weight": weights}
            )
            routed = Popularity().fit(X, y, sample_weight=weights)
            expected = several()(routed, X, y, sample_weight=weights)["ndcg@5"]
            assert run[f"test_{key}"] == pytest.approx([expected])
    assert weighted != several()(model, X, y)


def test_an_error_while_scoring_follows_error_score(data):
    X, y = data
    scoring = {"ndcg": make_ranking_scorer(k=21), "recall": make_ranking_scorer("recall", 3)}
    with pytest.warns(UserWarning, match="k=21 is more than the 20 items"):
        run = cross_validate(Popularity(), X, y, cv=CV, scoring=scoring)
    assert np.isnan(run["test_ndcg"]).all()
    assert np.isfinite(run["test_recall"]).all()
    with pytest.raises(ValueError, match="k=21 is more than the 20 items"):
        cross_validate(Popularity(), X, y, cv=CV, scoring=make_ranking_scorer(["mrr"], 21))


def test_wrong_arguments_are_named():
    for arguments, message in (
        ({"metric": "ap"}, "Unknown metric 'ap'"),
        ({"k": 0}, "k must be an integer"),
        ({"metric": []}, "metric is empty"),
        ({"n_negatives": 9, "negatives": {1: [2]}}, "pass only one"),
    ):
        with pytest.raises(ValueError, match=message):
            make_ranking_scorer(**arguments)
