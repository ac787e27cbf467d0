import re
import threading
import warnings
from multiprocessing.dummy import DummyProcess

import numpy as np
import pandas as pd
import pytest
from joblib import parallel_config
from sklearn import config_context
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.dummy import DummyRegressor
from sklearn.exceptions import FitFailedWarning, InconsistentVersionWarning
from sklearn.linear_model import Ridge
from sklearn.metrics import make_scorer, root_mean_squared_error
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

from fedrecsk import BiasOnly, Federation, LocALS, Popularity, RandomRecommender, RFRec
from fedrecsk.attacks import SignFlip
from fedrecsk.datasets import make_interactions, make_ratings
from fedrecsk.metrics import (
    bytes_up_scorer,
    evaluate_ranking,
    make_ranking_scorer,
    rounds_scorer,
)
from fedrecsk.model_selection import UserKFold, _compare, _fold, compare
from fedrecsk.privacy import LaplaceMechanism
from tests.conftest import make_toy
from tests.metrics.models import Peer

COSTS = ["mb_up", "mb_down", "rounds", "epsilon"]
TIMES = ["fit_seconds", "score_seconds"]


@pytest.fixture
def ratings():
    """Enough items for a cutoff at 10."""
    return make_toy(n_users=14, n_items=16, density=0.6)


def rfrec(**params):
    return RFRec(**({"n_factors": 3, "n_rounds": 3, "random_state": 0} | params))


def locals_(**params):
    return LocALS(**({"n_factors": 3, "n_rounds": 2, "random_state": 0} | params))


class RatingPeer(RegressorMixin, BaseEstimator):
    """Another library's rating model, which fails where a user is missing from training."""

    def __init__(self, needs_user=None):
        self.needs_user = needs_user

    def fit(self, X, y, sample_weight=None):
        X = np.asarray(X)
        if self.needs_user is not None and self.needs_user not in X[:, 0]:
            raise RuntimeError(f"no user {self.needs_user}")
        self.item_ids_ = np.unique(X[:, 1])
        self.mean_ = float(np.average(y, weights=sample_weight))
        self.rows_ = X
        return self

    def predict(self, X):
        return np.full(len(X), self.mean_)

    def recommend(self, users, n_recommendations=10):
        raise AssertionError("scorers rank by predict")


class Plain(BaseEstimator):
    """A fit and a predict; what is learned has no name that scikit-learn knows."""

    def fit(self, X, y):
        X = np.asarray(X)
        self.level = np.mean(y)
        self.means = {item: np.mean(y[X[:, 1] == item]) for item in np.unique(X[:, 1])}
        return self

    def predict(self, X):
        return np.array([self.means.get(item, self.level) for item in np.asarray(X)[:, 1]])


class Lister(BaseEstimator):
    """Recommends, and predicts nothing."""

    def fit(self, X, y=None):
        self.item_ids_ = np.unique(X[:, 1])
        return self

    def recommend(self, users, n_recommendations=10):
        return np.tile(self.item_ids_[:n_recommendations], (len(users), 1))


# --------------------------------------------------------------------------- what is in it


def test_it_is_cross_validate_on_the_same_folds(ratings):
    X, y = ratings
    cv = UserKFold(3, shuffle=True, random_state=1)
    table = compare([rfrec()], X, y, cv=cv).per_fold
    ranking = make_ranking_scorer(["ndcg", "hit_rate"])
    scoring = {"rmse": make_scorer(root_mean_squared_error), **ranking, "up": bytes_up_scorer}
    expected = cross_validate(rfrec(), X, y, cv=cv, scoring=scoring)
    assert table["fold"].tolist() == [0, 1, 2]
    for column in ("rmse", "ndcg@10", "hit_rate@10"):
        np.testing.assert_array_equal(table[column], expected[f"test_{column}"])
    np.testing.assert_allclose(table["mb_up"], -expected["test_up"] / 1e6)
    assert (table["fit_seconds"] > 0).all()


@pytest.mark.parametrize("n_jobs", [None, pytest.param(2, marks=pytest.mark.full)])
def test_every_estimator_sees_the_same_folds(ratings, n_jobs):
    X, y = ratings
    models, how = {"a": RatingPeer(), "b": RatingPeer()}, {"n_jobs": n_jobs}
    both = compare(models, X, y, scoring={}, return_estimator=True, **how)
    assert all(vars(model) == {"needs_user": None} for model in models.values())
    for one, other in zip(both.estimators["a"], both.estimators["b"], strict=True):
        np.testing.assert_array_equal(one.rows_, other.rows_)
    default = UserKFold(5, shuffle=True, random_state=0).split(X)
    for model, (train, _) in zip(both.estimators["a"], default, strict=True):
        np.testing.assert_array_equal(model.rows_, X[train])


def test_rating_and_ranking_models_stand_side_by_side(ratings):
    X, y = ratings
    noise = Federation(local_dp=LaplaceMechanism(clip=1, scale=2))
    models = {
        "rating": rfrec(),
        "noisy": rfrec(rating_scale=(1, 5), items=np.unique(X[:, 1]), federation=noise),
        "ranking": locals_(),
        "popular": Popularity(),
        "bias": BiasOnly(),
        "dummy": DummyRegressor(),
        "peer": Peer(),
        "rating peer": RatingPeer(),
        "pipeline": make_pipeline(FunctionTransformer(), rfrec()),
        "search": GridSearchCV(rfrec(), {"n_rounds": [1, 2]}, cv=UserKFold(2)),
    }
    result = compare(models, X, y, cv=2, return_estimator=True)
    table = result.per_fold.set_index("estimator")
    assert (table["error"] == "").all()
    rank = ["ranking", "popular", "peer"]
    no_costs = ["popular", "bias", "dummy", "peer", "rating peer"]
    assert table.drop(rank)[["rmse", "mae"]].notna().all(axis=None)
    assert table.loc[rank, ["rmse", "mae"]].isna().all(axis=None)
    assert table[["ndcg@10", "hit_rate@10", *TIMES]].notna().all(axis=None)
    assert table.drop(no_costs)[COSTS].notna().all(axis=None)
    assert table.loc[no_costs, COSTS].isna().all(axis=None)
    for column in ("rmse", "mb_up"):
        assert table.loc["pipeline", column].tolist() == table.loc["rating", column].tolist()
    assert table.loc["search", "rounds"].isin([1, 2]).all()
    assert table.loc["rating", "rounds"].tolist() == [3, 3]
    for row in result.per_fold[:4].to_dict("records"):
        model = result.estimators[row["estimator"]][row["fold"]]
        ledger = model.communication_
        assert row["mb_up"] == pytest.approx(ledger.bytes_up / 14 / 1e6)
        assert row["mb_down"] == pytest.approx(ledger.bytes_down / 14 / 1e6)
        assert row["epsilon"] == model.privacy_.epsilon
    summary = result.summary.set_index("estimator")
    assert summary.loc["rating", ["mean_epsilon", "std_epsilon"]].tolist() == [np.inf, 0]
    assert np.isfinite(summary.loc["noisy", "mean_epsilon"])
    assert summary.index.tolist() == list(models)
    assert summary.loc["rating", "mean_rmse"] == pytest.approx(table.loc["rating", "rmse"].mean())
    spread = table.loc["rating", "rmse"].std(ddof=0)
    assert summary.loc["rating", "std_rmse"] == pytest.approx(spread)


def test_without_y_only_ranking_is_scored(ratings):
    X, _ = ratings
    result = compare([locals_(), Popularity()], X, cv=2)
    assert "rmse" not in result.per_fold
    assert result.per_fold["ndcg@10"].notna().all()
    with pytest.warns(FitFailedWarning, match="RFRec estimator requires y"):
        result = compare([rfrec(), Popularity()], X, cv=2)
    assert result.summary["n_failed"].tolist() == [2, 0]


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_a_model_warns_once_for_all_folds(n_jobs):
    X, y = make_ratings(n_users=40, n_items=30, n_ratings=600, random_state=0)
    with pytest.warns(UserWarning, match="y looks like ratings") as warned:
        compare({"A": locals_(), "B": locals_(), "C": rfrec()}, X, y, cv=3, n_jobs=n_jobs)
    assert [str(one.message)[:2] for one in warned] == ["A:", "B:"]
    assert {one.filename for one in warned} == {__file__}


def test_warnings_of_any_class_survive(ratings):
    X, y = ratings

    class Warns(Popularity):
        def fit(self, X, y=None, **others):
            numbers = {"current_sklearn_version": "2", "original_sklearn_version": "1"}
            warning = InconsistentVersionWarning(estimator_name="EASE", **numbers)
            warnings.warn(warning, stacklevel=2)
            return super().fit(X, y, **others)

    with pytest.warns(UserWarning, match=r"A: .*EASE"):
        compare({"A": Warns()}, X, y, cv=2)


# --------------------------------------------------------------------------- what may fail


def test_a_fold_that_fails_is_a_row_that_says_so(ratings):
    X, y = ratings
    user = X[0, 0]
    folds = list(GroupKFold(3).split(X, y, groups=X[:, 0]))
    (bad,) = (i for i, (train, _) in enumerate(folds) if user not in X[train, 0])
    models = {"fragile": RatingPeer(needs_user=user), "RFRec": rfrec()}
    with pytest.warns(FitFailedWarning, match=f"1 of 6 fits failed.*\n.*fold {bad}") as warned:
        result = compare(
            models, X, y, cv=folds, scoring={"rmse": make_scorer(_rmse)}, return_estimator=True
        )
    assert warned[0].filename == __file__
    table = result.per_fold
    message = f"RuntimeError: no user {user}"
    failed = (table["estimator"] == "fragile") & (table["fold"] == bad)
    assert table.loc[failed, "error"].tolist() == [message]
    assert table.loc[failed, ["rmse", *TIMES, *COSTS]].isna().all(axis=None)
    assert (table.loc[~failed, "error"] == "").all()
    assert table.loc[~failed, "rmse"].notna().all()
    summary = result.summary.set_index("estimator")
    assert summary["n_failed"].to_dict() == {"fragile": 1, "RFRec": 0}
    assert [model is None for model in result.estimators["fragile"]] == [
        fold == bad for fold in range(3)
    ]
    kept = table.loc[~failed].query("estimator == 'fragile'")["rmse"]
    assert summary.loc["fragile", "mean_rmse"] == pytest.approx(kept.mean())
    assert f"fragile, fold {bad}: {message}" in repr(result)
    _, _, fragile, whole, *_ = repr(result).splitlines()
    assert re.search(r"^fragile +\d\.\d{3} ± \d\.\d{3} \(2 of 3\) ", fragile)
    assert "(" not in whole


def _rmse(y, predicted):
    return float(np.sqrt(np.mean((y - predicted) ** 2)))


def test_a_score_that_fails_leaves_the_others(ratings):
    X, y = ratings
    scoring = {"rmse": make_scorer(_rmse), "deep": make_ranking_scorer(k=500)}
    with pytest.warns(UserWarning, match="Scores failed in 2 of 2 rows"):
        table = compare([rfrec()], X, y, cv=2, scoring=scoring).per_fold
    assert table["deep"].isna().all()
    assert table[["rmse", "mb_up", "fit_seconds"]].notna().all(axis=None)
    assert table["error"].str.startswith("deep: ValueError: k=500 is more than the").all()
    with pytest.raises(ValueError, match="k=500"):
        compare([rfrec()], X, y, cv=2, scoring=scoring, error_score="raise")


@pytest.mark.parametrize(
    ("model", "owner"),
    [
        (rfrec(n_rounds=-1), "'n_rounds' parameter of RFRec must"),
        (rfrec(federation=Federation(dropout=7)), "'dropout' parameter of Federation must"),
    ],
)
def test_a_bad_parameter_is_said_to_be_the_estimators(model, owner, ratings):
    X, y = ratings
    with pytest.warns(FitFailedWarning, match=owner):
        result = compare({"bad": model, "good": Popularity()}, X, y, cv=2)
    assert result.per_fold["error"][0].startswith(f"InvalidParameterError: The {owner}")
    with pytest.raises(ValueError, match=f"^The {owner}"):
        compare([model], X, y, cv=2, error_score="raise")
    with pytest.raises(ValueError, match=rf"All 2 fits failed.*\nRFRec, folds 0, 1: .*{owner}"):
        compare([model], X, y, cv=2)


def test_an_error_of_many_lines_is_told_in_one(ratings):
    class Wordy(Plain):
        def predict(self, X):
            raise RuntimeError("first\n  second\n\nthird")

    models = {"wordy": Wordy(), "good": BiasOnly()}
    with pytest.warns(UserWarning, match="Scores failed") as warned:
        result = compare(models, *ratings, cv=2, scoring=["rmse", "mae", "ndcg@3"])
    error = "rmse, mae, ndcg@3: RuntimeError: first second third"
    assert result.per_fold["error"].tolist() == [error, error, "", ""]
    line = f"wordy, folds 0, 1: {error}"
    assert repr(result).splitlines()[-1] == line
    assert str(warned[0].message).splitlines()[1:] == [line]


def test_the_share_of_unknown_users_is_told(ratings):
    X, y = ratings
    folds = list(GroupKFold(3).split(X, y, groups=X[:, 0]))
    result = compare([BiasOnly()], X, y, cv=folds)
    assert result.unknown["users"] == 1
    assert "Of the test rows, 100% have a user and 0% an item without training" in repr(result)
    assert "without training" not in repr(compare([BiasOnly()], X, y, cv=2))


FOLD = np.arange(9), np.arange(80, 90)
BAD = [
    ({"estimators": []}, ValueError, "empty"),
    ({"estimators": Popularity()}, TypeError, "put a single one in a list"),
    ({"estimators": {1: Popularity(), "1": BiasOnly()}}, ValueError, "the same name: 1, '1'"),
    ({"estimators": [Popularity]}, TypeError, r"pass an instance, Popularity\(\)"),
    ({"estimators": {"word": "popular"}}, TypeError, "'word' is not an estimator"),
    ({"scoring": {"rounds": rounds_scorer}}, ValueError, "'rounds', which is a column of every"),
    ({"scoring": [rounds_scorer]}, ValueError, "pass scorers in a dict"),
    ({"scoring": "ndcg"}, ValueError, "Unknown score 'ndcg'; choose from rmse, .*get_scorer_nam"),
    ({"scoring": {"error of mine": "rmsee"}}, ValueError, "Unknown score 'rmsee'"),
    ({"scoring": "bytes_up"}, ValueError, "Costs need no scorer: the columns mb_up, .* are always"),
    ({"scoring": "ndgc@5"}, ValueError, "Unknown metric 'ndgc'; choose from ndcg"),
    ({"scoring": "ndcg@0"}, ValueError, "k must be an integer of at least 1"),
    ({"scoring": {"mine": None}}, ValueError, "scoring holds None"),
    ({"scoring": "auc@10"}, ValueError, "AUC has none; write 'auc'"),
    ({"scoring": ["diversity@1"]}, ValueError, "needs k of at least 2"),
    ({"X": "ab" * 66}, ValueError, "'X' parameter of compare must be an array-like"),
    ({"n_jobs": 0}, ValueError, r"'n_jobs' parameter of compare must be an int in the range \[1"),
    ({"sample_weight": [1]}, ValueError, "inconsistent numbers of samples"),
    ({"cv": []}, ValueError, "cv gives no folds"),
    ({"cv": FOLD}, ValueError, r"cv=\[\(train, test\)\]"),
    ({"cv": [(FOLD[0], [])]}, ValueError, "Fold 0 of cv has no test rows"),
    ({"cv": [(FOLD[0], [10**6])]}, ValueError, "test rows of fold 0 of cv are not posi"),
    ({"cv": [(FOLD[0], [0.5])]}, ValueError, "test rows of fold 0 of cv are not posi"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD)
def test_what_cannot_be_compared_is_named_before_any_fit(change, error, message, ratings):
    class NeverFitted(BiasOnly):
        def fit(self, *arguments, **metadata):
            raise AssertionError("it was fitted")

    X, y = ratings
    call = {"estimators": [NeverFitted()], "X": X, "y": y, "cv": [FOLD]} | change
    with pytest.raises(error, match=message):
        compare(**call)


# ----------------------------------------------------------------------- whom it works on


def test_a_fit_and_a_predict_are_enough(ratings):
    X, y = ratings
    result = compare([Plain()], X, y, cv=3, return_estimator=True)
    folds = UserKFold(3, shuffle=True, random_state=0).split(X)
    rows, models = result.per_fold.to_dict("records"), result.estimators["Plain"]
    for row, model, (train, test) in zip(rows, models, folds, strict=True):
        rmse = root_mean_squared_error(y[test], model.predict(X[test]))
        assert row["rmse"] == pytest.approx(rmse)
        ranks = evaluate_ranking(model, X[test], y[test], X_train=X[train])
        assert row["ndcg@10"] == pytest.approx(ranks["ndcg@10"])
    assert (result.per_fold["error"] == "").all()


def test_a_pipeline_of_scikit_learns_parts_is_ranked_by_its_ids(ratings):
    X, y = ratings
    linear = make_pipeline(OneHotEncoder(handle_unknown="ignore"), Ridge())
    expected = compare([linear], X, y, cv=2).per_fold[["rmse", "ndcg@10"]]
    assert expected.notna().all(axis=None)
    frame = pd.DataFrame({"who": [f"user {u}" for u in X[:, 0]], "what": X[:, 1]})
    table = compare([linear], frame, y, cv=2).per_fold
    assert (table["error"] == "").all()
    np.testing.assert_allclose(table[["rmse", "ndcg@10"]], expected)


def test_a_list_of_recommendations_is_not_ranked(ratings):
    with pytest.warns(UserWarning, match="Lister cannot be ranked: it has no predict") as warned:
        result = compare([Lister(), Popularity()], *ratings, cv=2)
    assert len(warned) == 1
    table = result.per_fold.set_index("estimator")
    assert table.loc["Lister", "fit_seconds"].notna().all()
    assert table.loc["Lister", "ndcg@10"].isna().all()
    assert table.loc["Popularity", "ndcg@10"].notna().all()


def test_scores_asked_for_and_not_given_have_a_reason(ratings):
    X, y = ratings
    models = {"popular": Popularity(), "lister": Lister(), "plain": Plain(), "bias": BiasOnly()}
    scoring = ["rmse", "neg_mean_absolute_error"]
    with pytest.warns(UserWarning, match=f"^{', '.join(scoring)}: not for popular, list") as warned:
        table = compare(models, X, y, cv=2, scoring=scoring).per_fold
    assert [one.filename for one in warned] == [__file__]
    table = table.set_index("estimator")
    assert table.loc[["plain", "bias"], scoring].notna().all(axis=None)
    assert table.loc[["popular", "lister"], scoring].isna().all(axis=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compare([Popularity(), BiasOnly()], X, y, cv=2)
        compare([Popularity(), BiasOnly()], X, y, cv=2, scoring="ndcg@5")


def test_scores_go_by_the_names_of_their_columns(ratings):
    X, y = ratings
    names = ["rmse", "mae", "ndcg@10", "hit_rate@10"]
    chosen = compare([BiasOnly()], X, y, cv=2, scoring=names).per_fold
    default = compare([BiasOnly()], X, y, cv=2).per_fold
    pd.testing.assert_frame_equal(chosen[names], default[names])
    assert "recall@3" in str(compare([BiasOnly()], X, y, cv=2, scoring="recall@3"))
    others = ["map@5", "auc", "coverage@5", "novelty@5", "diversity@5"]
    found = compare([BiasOnly(), Popularity()], X, y, cv=2, scoring=others).per_fold[others]
    assert np.isfinite(found.to_numpy()).all()
    renamed = compare([BiasOnly()], X, y, cv=2, scoring={"quality": "ndcg@10"}).per_fold
    assert renamed["quality"].tolist() == default["ndcg@10"].tolist()
    ranking = make_ranking_scorer(["mrr", "ndcg"], k=3)
    assert compare([BiasOnly()], X, y, cv=2, scoring=ranking).per_fold["mrr@3"].notna().all()
    size = compare([BiasOnly()], X, y, cv=2, scoring=lambda estimator, X, y: len(X)).per_fold
    assert size["score"].sum() == len(X)


def test_names_come_from_classes_or_are_given(ratings):
    X, y = ratings
    listed = compare([rfrec(), Popularity(), rfrec()], X, y, cv=2, scoring={})
    assert listed.summary["estimator"].tolist() == ["RFRec-1", "Popularity", "RFRec-2"]
    numbers = compare({4: rfrec(), 8: Popularity()}, X, y, cv=2, return_estimator=True)
    assert numbers.summary["estimator"].tolist() == list(numbers.estimators) == ["4", "8"]
    assert "\n4 " in repr(numbers)


# ------------------------------------------------------------------------------- metadata


def test_clients_and_weights_reach_fit_and_weights_reach_scores(ratings):
    X, y = ratings
    silos = X[:, 0] % 3
    weight = np.random.default_rng(0).integers(1, 4, len(y)).astype(float)
    train, test = next(UserKFold(2, shuffle=True, random_state=0).split(X))
    model = rfrec().fit(X[train], y[train], clients=silos[train], sample_weight=weight[train])
    expected = root_mean_squared_error(y[test], model.predict(X[test]), sample_weight=weight[test])
    mean = np.average(y[train], weights=weight[train])
    models = {
        "alone": rfrec(),
        "pipeline": make_pipeline(FunctionTransformer(), rfrec()),
        "unasked": RatingPeer(),
    }
    with config_context(enable_metadata_routing=True):
        plain = make_scorer(root_mean_squared_error).set_score_request(sample_weight=False)
    scoring = {"rmse": make_scorer(root_mean_squared_error), "plain": plain}
    folds = [(train, test)]
    metadata = {"clients": silos, "sample_weight": weight}
    result = compare(models, X, y, cv=folds, scoring=scoring, return_estimator=True, **metadata)
    table = result.per_fold.set_index("estimator")
    for model in (result.estimators["alone"][0], result.estimators["pipeline"][0][-1]):
        assert len(model.communication_.client_ids) == 3
    assert table.loc["alone", "rmse"] == table.loc["pipeline", "rmse"] == pytest.approx(expected)
    assert table["plain"]["alone"] == pytest.approx(
        root_mean_squared_error(y[test], model.predict(X[test]))
    )
    assert result.estimators["unasked"][0].mean_ == pytest.approx(mean)


def test_what_takes_no_weights_is_not_compared_without(ratings):
    X, y = ratings
    with pytest.warns(FitFailedWarning, match="Peer.fit takes no sample_weight"):
        result = compare([Peer(), Popularity()], X, y, cv=2, sample_weight=np.ones(len(y)))
    assert result.summary["n_failed"].tolist() == [2, 0]


# ---------------------------------------------------------------------------------- forms


def test_it_prints_what_applies(ratings):
    X, y = ratings
    shown = repr(compare({"RFRec": rfrec(), "popular": Popularity()}, X, y, cv=2))
    title, header, first, second, *notes = shown.splitlines()
    assert title == "2 recommenders on 2 folds, mean ± standard deviation"
    assert header.split()[:2] == ["rmse", "mae"]
    assert "score_seconds" not in header
    assert first.startswith("RFRec")
    assert "±" in first
    assert first.endswith("inf")
    assert len(second.replace("~", "").split()) == 1 + 3 * 3  # two rankings and a time, as a ± b
    assert all(note.startswith("~: not distinguishable") for note in notes)
    central = repr(compare([Popularity()], X, cv=[(np.arange(80), np.arange(80, len(X)))]))
    assert "1 recommender on 1 fold" in central
    assert not any(word in central for word in ("±", "rmse", "mb_up", "epsilon"))


def test_rows_that_are_both_trained_on_and_tested_are_reported(ratings):
    X, y = ratings
    with pytest.warns(UserWarning, match="20 of the 30 test rows of fold 0 are training rows too"):
        compare([BiasOnly()], X, y, cv=[(np.arange(100), np.arange(80, 110))], scoring="rmse")


# ------------------------------------------------------------------------- better, or luck?


def test_per_user_scores_add_up_to_those_of_the_fold(ratings):
    X, y = ratings
    scoring = ["rmse", "mae", "ndcg@5", "hit_rate@5", "coverage@5"]
    weights = np.random.default_rng(0).uniform(0.5, 2, len(y)).round(2)
    comparison = compare([rfrec(), BiasOnly()], X, y, cv=2, scoring=scoring, sample_weight=weights)
    assert [*comparison.per_user] == ["estimator", "fold", "user", "n_rows", *scoring[:-1]]
    folds = comparison.per_fold.set_index(["estimator", "fold"])
    for key, own in comparison.per_user.groupby(["estimator", "fold"]):
        rmse = np.sqrt(np.average(own["rmse"] ** 2, weights=own["n_rows"]))
        assert rmse == pytest.approx(folds.loc[key, "rmse"])
        assert np.average(own["mae"], weights=own["n_rows"]) == pytest.approx(folds.loc[key, "mae"])
        assert own["ndcg@5"].mean() == pytest.approx(folds.loc[key, "ndcg@5"])
        assert own["hit_rate@5"].mean() == pytest.approx(folds.loc[key, "hit_rate@5"])
        assert set(own["user"]) == set(X[:, 0])


def per_user(**scores):
    """A comparison whose estimators have these scores, a value for each user."""
    tables = [
        pd.DataFrame(
            {
                "estimator": name,
                "fold": 0,
                "user": range(len(own)),
                "n_rows": 2.0,
                **own.to_dict("list"),
            }
        )
        for name, own in scores.items()
    ]
    rows = [
        {"estimator": name, "fold": 0, **own.mean().to_dict(), "error": ""}
        for name, own in scores.items()
    ]
    columns = [*next(iter(scores.values()))]
    unknown = {"users": 0.0, "items": 0.0}
    return _compare.Comparison(rows, columns, unknown, None, pd.concat(tables, ignore_index=True))


def test_against_equals_a_plain_paired_bootstrap():
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 40))
    scores = {"A": pd.DataFrame({"ndcg@10": a}), "B": pd.DataFrame({"ndcg@10": b})}
    (found,) = per_user(**scores).against("B", n_resamples=3000).to_dict("records")
    differences = [(a - b)[rng.integers(40, size=40)].mean() for _ in range(3000)]
    assert found["difference"] == pytest.approx((a - b).mean())
    assert [found["low"], found["high"]] == pytest.approx(
        np.percentile(differences, [2.5, 97.5]), abs=0.02
    )
    p = 2 * min(np.mean(np.array(differences) <= 0), np.mean(np.array(differences) >= 0))
    assert found["p"] == pytest.approx(p, abs=0.05)
    assert found["better"] is None
    comparison = per_user(**scores)
    with pytest.raises(ValueError, match=r"No estimator is called 'C'; name one of \['A', 'B'\]"):
        comparison.against("C")
    with pytest.raises(ValueError, match="'n_resamples' parameter of against"):
        comparison.against("A", n_resamples=0)
    alone = {name: table[:1] for name, table in scores.items()}
    assert per_user(**alone).against("B").empty
    assert "~" not in str(per_user(**alone))


def test_against_knows_better_from_luck():
    rng = np.random.default_rng(1)
    hard = rng.random(200)
    users = {
        "good": pd.DataFrame({"rmse": hard + 0.9, "ndcg@10": hard}),
        "same": pd.DataFrame({"rmse": hard + 0.9 + 0.1 * rng.normal(size=200), "ndcg@10": hard}),
        "bad": pd.DataFrame({"rmse": hard + 1.0, "ndcg@10": hard - 0.1}),
    }
    comparison = per_user(**users)
    found = comparison.against("bad").set_index(["estimator", "score"])
    # The users differ far more than the models do, but the models are compared user by user.
    assert found["better"].eq(True).all()
    assert (found["p"] < 0.01).all()
    assert (found["difference"]["good"] * [1, -1] < 0).all()
    found = comparison.against("same").set_index(["estimator", "score"])
    assert found.loc[("good", "rmse"), "better"] is None
    assert found.loc[("good", "ndcg@10"), ["difference", "p"]].tolist() == [0, 1]
    shown = {line.split()[0]: line for line in str(comparison).splitlines()[2:]}
    assert "~" in shown["good"] + shown["same"]
    assert "~" not in shown["bad"]
    assert "paired bootstrap" in shown["~:"]
    assert r"\approx" in comparison.to_latex()
    assert "~" in comparison.to_html()
    for text in (str(comparison), comparison.to_latex()):
        text.encode("cp1252")  # as print does on Windows


def test_failed_folds_are_left_out_of_the_differences(ratings):
    X, y = ratings
    user = X[0, 0]
    folds = list(GroupKFold(2).split(X, y, groups=X[:, 0]))
    with pytest.warns(FitFailedWarning):
        comparison = compare(
            {"peer": RatingPeer(user), "biases": BiasOnly()}, X, y, cv=folds, scoring="rmse"
        )
    kept = comparison.per_user.groupby("fold")["estimator"].nunique() == 2
    assert kept.sum() == 1
    (found,) = comparison.against("biases").to_dict("records")
    errors = comparison.per_fold[comparison.per_fold["fold"] == kept.idxmax()].set_index(
        "estimator"
    )
    assert found["difference"] == pytest.approx(errors["rmse"]["peer"] - errors["rmse"]["biases"])


# ------------------------------------------------------------------------------ long work


class Stopped(Plain):
    """Ctrl-C comes in the third fit of all."""

    n_fits = 0

    def fit(self, X, y):
        type(self).n_fits += 1
        if self.n_fits == 3:
            raise KeyboardInterrupt
        return super().fit(X, y)

    def partial_fit(self, X, y):
        return self.fit(X, y)


@pytest.fixture
def stopped(monkeypatch):
    monkeypatch.setattr(Stopped, "n_fits", 0)
    return Stopped()


def test_an_interrupt_keeps_the_fits_that_have_ended(stopped, ratings):
    models = {"biases": BiasOnly(), "stopped": stopped}
    with pytest.warns(UserWarning, match="Interrupted after 5 of 8 fits; the others"):
        result = compare(models, *ratings, cv=4, scoring="rmse", return_estimator=True)
    assert result.is_partial
    table = result.per_fold
    assert table["estimator"].tolist() == ["biases"] * 4 + ["stopped"] * 4
    assert table["error"].tolist() == [""] * 3 + ["interrupted"] + [""] * 2 + ["interrupted"] * 2
    whole = compare({"biases": BiasOnly(), "stopped": Plain()}, *ratings, cv=4, scoring="rmse")
    assert not whole.is_partial
    has_ended = table["error"] == ""
    assert table["rmse"][has_ended].tolist() == whole.per_fold["rmse"][has_ended].tolist()
    assert table.loc[~has_ended, ["rmse", *TIMES]].isna().all(axis=None)
    assert [one is None for one in result.estimators["stopped"]] == [False, False, True, True]
    caption = "2 recommenders on 4 folds, mean ± standard deviation, interrupted after 5 of 8 fits"
    assert repr(result).splitlines()[0] == caption
    assert caption in result.to_html()
    assert "stopped, folds 2, 3: interrupted" in repr(result)
    assert "interrupted" not in repr(whole)


def test_an_interrupt_keeps_the_fits_of_threads(stopped, ratings):
    with (
        parallel_config("threading"),
        pytest.warns(UserWarning, match="Interrupted after"),
    ):
        result = compare([BiasOnly(), stopped], *ratings, cv=4, scoring="rmse", n_jobs=2)
    # When the third fit begins, at most one of the four tasks before it is still running.
    assert (result.per_fold["error"] == "").sum() >= 3
    assert result.is_partial
    # A fit that is running goes on; what it does with warnings must not reach into other tests.
    for one in threading.enumerate():
        if isinstance(one, DummyProcess):
            one.join()


def test_an_interrupt_keeps_the_folds_of_a_model_that_is_kept_up(stopped, ratings):
    folds = [(np.arange(40 + 20 * i), np.arange(40 + 20 * i, 60 + 20 * i)) for i in range(4)]
    how = {"cv": folds, "scoring": "rmse", "update": "partial_fit"}
    with pytest.warns(UserWarning, match="Interrupted after 2 of 4 fits"):
        result = compare([stopped], *ratings, **how)
    assert result.per_fold["error"].tolist() == ["", "", "interrupted", "interrupted"]


def test_an_interrupt_of_the_first_fit_goes_through(stopped, ratings, monkeypatch):
    monkeypatch.setattr(Stopped, "n_fits", 2)
    with pytest.raises(KeyboardInterrupt):
        compare([stopped, BiasOnly()], *ratings, cv=2)


@pytest.mark.parametrize("n_jobs", [None, pytest.param(2, marks=pytest.mark.full)])
def test_each_fit_is_reported_as_it_ends(n_jobs, ratings, capsys):
    X, y = ratings
    models = {"fragile": RatingPeer(needs_user=X[0, 0]), "biases": BiasOnly()}
    folds = list(GroupKFold(2).split(X, y, groups=X[:, 0]))
    how = {"cv": folds, "scoring": ["rmse", "ndcg@3"], "n_jobs": n_jobs}
    with pytest.warns(FitFailedWarning):
        result = compare(models, X, y, verbose=True, **how)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    shown = {line.split(maxsplit=1)[1] for line in lines}
    for row in result.per_fold.to_dict("records"):
        scores = f"rmse {row['rmse']:.3f}, ndcg@3 {row['ndcg@3']:.3f}"
        text = row["error"] or f"{scores}, fit {row['fit_seconds']:.1f} s"
        assert f"{row['estimator']}, fold {row['fold']}: {text}" in shown
    with pytest.warns(FitFailedWarning):
        compare(models, X, y, **how)
    assert capsys.readouterr().out == ""


def test_the_time_left_is_that_of_the_model_or_of_those_before():
    progress = _fold.Progress(["slow", "fast", "new"], n_folds=3)

    def line(name, fold, seconds, n_workers=1):
        values = {"rmse": 1.0, "fit_seconds": seconds - 1, "score_seconds": 1.0}
        return progress.line(_fold.Outcome(name, fold, values), n_workers)

    begin = "[1/9] slow, fold 0: rmse 1.000, fit 599.0 s; about "
    assert line("slow", 0, 600.0) == begin + "80 min left"
    # Twice 10 minutes, twice 2, and three times the mean of both.
    assert line("fast", 0, 120.0).endswith("; about 42 min left")
    assert line("slow", 1, 600.0, n_workers=2).endswith("; about 16 min left")
    assert "left" not in line("slow", 2, 600.0, n_workers=60)


class Worse(Plain):
    """Predicts the opposite of what it has learned."""

    def predict(self, X):
        return 2 * self.level - super().predict(X)


def weak_ones(warned):
    return sorted(str(one.message).partition(":")[0] for one in warned if "alone" in str(one))


def test_models_that_are_worse_than_their_baseline_are_named():
    X, y = make_ratings(n_users=60, n_items=40, n_ratings=1000, random_state=0)
    models = {"worse": Worse(), "same": BiasOnly(), "biases": BiasOnly()}
    scoring = ["rmse", "ndcg@10"]
    with pytest.warns(UserWarning, match="alone") as warned:
        result = compare(models, X, y, cv=2, scoring=scoring)
    assert weak_ones(warned) == ["'worse' predicts the test rows worse than biases alone"]
    row = result.against("biases").set_index(["estimator", "score"]).loc[("worse", "rmse")]
    assert f"alone: rmse {row['difference']:+.2g} (95% interval {row['low']:+.2g} to" in str(
        warned[-1].message
    )
    assert warned[-1].filename == __file__
    few = np.isin(X[:, 0], np.unique(X[:, 0])[:20])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compare(models, X[few], y[few], cv=2, scoring=scoring)
        compare({"worse": Worse()}, X, y, cv=2, scoring=scoring)


class Unpopular(BaseEstimator):
    """Recommends what few users have."""

    def fit(self, X, y=None):
        self.counts = {item: np.sum(X[:, 1] == item) for item in np.unique(X[:, 1])}
        return self

    def predict(self, X):
        return np.array([-self.counts.get(item, 0) for item in np.asarray(X)[:, 1]])


def test_models_that_rank_worse_than_popularity_are_named():
    X = make_interactions(60, 40, 1000, random_state=0)
    models = {
        "unpopular": Unpopular(),
        "popular": Popularity(),
        "as popular": Popularity(),
        "random": RandomRecommender(random_state=0),
    }
    with pytest.warns(UserWarning, match="alone") as warned:
        compare(models, X, cv=2, scoring=["ndcg@5", "novelty@5", "auc"])
    assert weak_ones(warned) == ["'unpopular' ranks worse than popularity alone"]
    text = str(warned[-1].message)
    assert ["ndcg@5" in text, "auc" in text, "novelty" in text] == [True, True, False]


def test_a_fit_that_has_warned_of_its_training_rows_is_not_named_twice():
    X, y = make_ratings(n_users=300, n_items=200, n_ratings=25_000, random_state=0)
    attacked = rfrec(n_rounds=1, federation=Federation(adversary=SignFlip(0.1)))
    models = {"short": rfrec(n_rounds=1), "attacked": attacked, "biases": BiasOnly()}
    with pytest.warns(UserWarning, match="alone") as warned:
        result = compare(models, X, y, cv=2, scoring="rmse")
    # In a study of attacks the reason is known.
    assert result.against("biases")["better"].tolist() == [False, False]
    assert [str(one.message)[:28] for one in warned if "alone" in str(one)] == [
        "short: RFRec predicts the tr"
    ]
