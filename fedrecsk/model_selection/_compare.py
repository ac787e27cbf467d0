"""Comparison of recommenders on the same folds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from numbers import Integral
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import FitFailedWarning
from sklearn.metrics import get_scorer, get_scorer_names, make_scorer
from sklearn.model_selection import check_cv
from sklearn.utils.validation import check_consistent_length

from fedrecsk._utils.constraints import ArrayLike, Jobs
from fedrecsk._utils.given import check_given, check_numbers
from fedrecsk._utils.parameters import limits_of, suggest
from fedrecsk._utils.sklearn_compat import validate_parameter_constraints
from fedrecsk._utils.user_warnings import warn
from fedrecsk.data.frames import library_of
from fedrecsk.data.ids import factorized
from fedrecsk.data.interactions import as_table, id_columns
from fedrecsk.metrics import make_ranking_scorer
from fedrecsk.metrics._held_out import REPEATED, TOLERATED_SHARE
from fedrecsk.metrics._ranking import METRICS, OF_LISTS, key_of
from fedrecsk.metrics._scorers import RankingScorer, RankingScorers
from fedrecsk.model_selection import _fold
from fedrecsk.model_selection._comparison import (
    COSTS,
    ERRORS,
    INTERRUPTED,
    TIMES,
    Comparison,
    error_lines,
)
from fedrecsk.model_selection._splitters import UserKFold

# A bootstrap over fewer users gives intervals that are too narrow.
LEAST_USERS = 30


@suggest
def compare(
    estimators: Mapping[str, BaseEstimator] | Sequence[BaseEstimator],
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    cv: Annotated[int | Iterable[Any] | None, "cv_object"] = None,
    scoring: str | Sequence[str] | Mapping[str, Any] | Callable[..., Any] | None = None,
    update: Literal["fit", "partial_fit", "fold_in", "none"] = "fit",
    clients: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    n_jobs: Jobs = None,
    return_estimator: bool = False,
    error_score: Literal["raise"] | Annotated[float, "nan"] = np.nan,
    verbose: Annotated[int, "verbose"] = 0,
) -> Comparison:
    """Cross-validate recommenders on the same folds, and show quality and cost in one table.

    You can compare rating and ranking models, federated and centralised ones, of this package and
    of others. Scores and costs that do not apply to an estimator are NaN.

    Parameters
    ----------
    estimators : dict of str to estimator, or list of estimators
        Recommenders that follow scikit-learn's conventions, even inside a Pipeline or a search. In
        a list, estimators are named by their classes, with numbers if a class occurs twice.
        Estimators are cloned, not changed. For those of other packages see Notes.
    X : array-like or DataFrame of shape (n_samples, n_features >= 2)
        One row per interaction: column 0 is the user's id, column 1 the item's id.
    y : array-like of shape (n_samples,), default=None
        Rating or preference of each row. Rating models require it.
    cv : int, splitter or iterable of (train, test), default=None
        How to split the rows. An int: number of folds of :class:`UserKFold`, shuffled with seed 0.
        If None, 5 of them, so that each fold tests 20% of each user's rows and each row is tested
        once.
    scoring : str, list of str, callable or dict of str to str or callable, default=None
        As in :func:`sklearn.model_selection.cross_validate`, or by the names of the columns
        here: "rmse", "mae", "ndcg@5", "hit_rate@20", "auc" and so on. If None, "rmse" and "mae" if
        there is a y, and "ndcg@10" and "hit_rate@10" over the full catalogue, with y > 0 as
        relevant. "rmse" and "mae" are errors: smaller is better. All other scores are as the scorer
        returns them: larger is better. Scorers that compare predictions with y (scikit-learn's own,
        and those of :func:`sklearn.metrics.make_scorer`) apply to rating models only; a warning
        names the estimators that are left out.
    update : {"fit", "partial_fit", "fold_in", "none"}, default="fit"
        How a model gets from one fold to the next. "fit": by a fit to the training rows of the
        fold. With all others it is fitted in the first fold only, and the training rows must grow
        from fold to fold, as those of :class:`RollingOrigin` do. "partial_fit" brings it up to date
        with the new rows (`warm_start` is set where it needs that). "fold_in" recomputes the user
        parameters from all training rows, without any upload, and does not change the items. "none"
        does not change the model. Seconds and costs are those of the last step.
    clients : array-like of shape (n_samples,), default=None
        Id of the client that holds each row, passed to each `fit` that takes it.
    sample_weight : array-like of shape (n_samples,), default=None
        Weights of the rows, passed to each `fit` and to the scorers that take them. Estimators
        that take no weights fail.
    n_jobs : int, default=None
        Number of fits that run at once. If None, 1, unless in a joblib context. -1: all processors.
    return_estimator : bool, default=False
        Whether to keep the fitted estimators.
    error_score : "raise" or NaN, default=np.nan
        What happens if a fit or a score fails. NaN: it is NaN, and the column `error` holds the
        reason. "raise": the error is raised.
    verbose : int, default=0
        If above 0, print a line for each finished fit: its scores and seconds, and an estimate of
        the time left if that is a minute or more. Unless `update` is "fit", the lines of a model
        come after its last fold.

    Returns
    -------
    comparison : Comparison
        Its `per_fold`, `per_user` and `summary` are DataFrames; ``against(name)`` says which
        differences are more than luck.

    Raises
    ------
    ValueError
        If there is no estimator or no fold, a fold is empty or out of range, two estimators have
        the same name, a score is unknown or has the name of another column, lengths differ,
        training rows do not grow from fold to fold although `update` needs it, or every fit fails.
    TypeError
        If `estimators` is neither a dict nor a list, or an estimator is a class, has no `fit`, or
        does not have the method that `update` names.

    Warns
    -----
    FitFailedWarning
        If some fits failed.
    UserWarning
        If some scores failed, a score does not apply to an estimator, or if test rows of a fold are
        among its training rows, have pairs that are there, or repeat pairs. If an interrupt leaves
        the comparison partial. If a rating model has larger errors than
        :class:`~fedrecsk.BiasOnly`, or a ranking model ranks worse than
        :class:`~fedrecsk.Popularity`: only if that baseline is among the estimators, there are at
        least 30 test users, the 95% interval of the difference leaves out 0, the fit did not warn
        of the same on its training rows, and its federation has no adversary.

    See Also
    --------
    sklearn.model_selection.cross_validate : What it is built on.
    fedrecsk.plotting.CostDisplay : Draws accuracy against megabytes.

    Notes
    -----
    A model is a rating model if scikit-learn calls it a regressor, or if its tags or its `fit`
    require y. Ranking scores apply to all models; rating models rank by their predictions.

    **Interrupts.** All models are fitted in the first fold before any is fitted in the second.
    Ctrl-C, or a notebook's stop button, ends a comparison early: finished fits are kept,
    `is_partial` is True, and the rows of other fits are NaN with the error "interrupted". Before
    the first fit has ended there is nothing to keep, and KeyboardInterrupt is raised. In other
    processes, a model that is brought up to date from fold to fold is kept once its last fold ends.

    **Models of other packages** need `get_params`, ``fit(X, y)`` and ``predict(X)``: a subclass of
    :class:`sklearn.base.BaseEstimator` with two methods will do. They are ranked by `predict` over
    the items of the fold's training rows, without those that users have there: see the notes of
    :func:`fedrecsk.metrics.evaluate_ranking`.

    Seconds are wall-clock time, without compilation of this package's numerical code in the first
    fits after installation. Parallel fits slow one another down; to compare times, use
    ``n_jobs=1``.

    Examples
    --------
    >>> from fedrecsk import BiasOnly, Popularity, RFRec
    >>> from fedrecsk.datasets import make_ratings
    >>> from fedrecsk.model_selection import compare
    >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=1000, random_state=0)
    >>> models = {"RFRec": RFRec(n_rounds=3, random_state=0), "popularity": Popularity()}
    >>> comparison = compare(models, X, y, cv=3)
    >>> comparison.summary[["estimator", "mean_rounds"]]
        estimator  mean_rounds
    0       RFRec          3.0
    1  popularity          NaN
    >>> comparison.per_fold["error"].unique().tolist()
    ['']
    """
    given = {name: value for name, value in locals().items() if name != "estimators"}
    # Not by a decorator, which would name `compare` in the estimators' own errors.
    validate_parameter_constraints(limits_of(compare), given, caller_name="compare")
    estimators = _updatable(_named(estimators), update)
    metadata = {"clients": clients, "sample_weight": sample_weight}
    metadata = {name: value for name, value in metadata.items() if value is not None}
    for name, values in {"X": X, **metadata}.items():
        check_given(values, name)
    check_numbers(y, "y")
    check_consistent_length(X, y, *metadata.values())
    scorers = _scorers(scoring, y)
    folds = _folds(cv, X, y)

    users, items = id_columns(as_table(X))
    _warn_of_pairs(users, items, folds, scorers.values())

    chains = [[one] for one in enumerate(folds)]
    if update != "fit":
        _check_growing(folds, update)
        chains = [list(enumerate(folds))]

    data, how = _fold.Data(X, y, metadata, users), {"raises": error_score == "raise"}
    done, said = _fold.run(
        [
            (name, chain, estimator, data, scorers, update)
            for chain in chains
            for name, estimator in estimators.items()
        ],
        how | {"keep": return_estimator},
        n_jobs,
        _fold.Progress(list(estimators), len(folds)) if verbose else None,
    )
    names = list(estimators)
    done.sort(key=lambda one: (names.index(one.name), one.fold))
    said.sort(key=lambda one: names.index(one[0]))
    _fold.repeat(said)
    _warn_or_raise(done, asked=() if scoring is None else scorers)
    ended = {(one.name, one.fold): one for one in done}
    outcomes = [
        ended.get((name, fold), _fold.Outcome(name, fold, {}, INTERRUPTED))
        for name in names
        for fold in range(len(folds))
    ]
    columns = [*scorers, *TIMES, *COSTS]
    blank = dict.fromkeys(columns, float("nan"))
    rows = [
        {"estimator": one.name, "fold": one.fold, **(blank | one.values), "error": one.error}
        for one in outcomes
    ]
    fitted = {name: [one.estimator for one in outcomes if one.name == name] for name in estimators}
    fitted = fitted if return_estimator else None
    per_user = [one.per_user for one in outcomes if one.per_user is not None]
    per_user = pd.concat(per_user, ignore_index=True) if per_user else None
    unknown = {"users": _share_unknown(users, folds), "items": _share_unknown(items, folds)}
    comparison = Comparison(rows, columns, unknown, fitted, per_user, library_of(X))
    if comparison.is_partial:
        warn(f"Interrupted after {len(done)} of {len(outcomes)} fits; the others are NaN.")
    _warn_if_weak(comparison, estimators, said)
    return comparison


# -------------------------------------------------------------------------------- arguments


def _named(estimators):
    if isinstance(estimators, Mapping):
        named = {str(name): estimator for name, estimator in estimators.items()}
        if len(named) < len(estimators):
            raise ValueError(
                f"Two estimators have the same name: {', '.join(map(repr, estimators))}."
            )
    elif isinstance(estimators, list | tuple):
        classes = [type(estimator).__name__ for estimator in estimators]
        named = {}
        for i, (name, estimator) in enumerate(zip(classes, estimators, strict=True)):
            number = f"-{classes[: i + 1].count(name)}" if classes.count(name) > 1 else ""
            named[name + number] = estimator
    else:
        raise TypeError(
            "estimators must be a dict of names to estimators, or a list of estimators, got "
            f"{type(estimators).__name__}; put a single one in a list."
        )
    if not named:
        raise ValueError("estimators is empty; give at least one.")
    for name, estimator in named.items():
        if isinstance(estimator, type):
            name = estimator.__name__
            raise TypeError(f"{name!r} is a class; pass an instance, {name}().")
        if not hasattr(estimator, "fit"):
            raise TypeError(f"{name!r} is not an estimator: {estimator!r} has no fit.")
    return named


def _updatable(estimators, update):
    """Return the estimators, which must have the method that brings them up to date."""
    if update not in ("partial_fit", "fold_in"):
        return estimators
    ready = {}
    for name, estimator in estimators.items():
        if not hasattr(estimator, update) and "warm_start" in estimator.get_params():
            estimator = clone(estimator).set_params(warm_start=True)
        if not hasattr(estimator, update):
            raise TypeError(
                f"{name!r} has no {update}; leave it out, or compare it with update='fit'."
            )
        ready[name] = estimator
    return ready


def _check_growing(folds, update):
    for number, ((before, _), (now, _)) in enumerate(pairwise(folds), start=1):
        n_lost = int((~np.isin(before, now)).sum())
        if n_lost:
            raise ValueError(
                f"With update={update!r} a model goes on from fold to fold, but {n_lost} training "
                f"rows of fold {number - 1} are none of fold {number}; use cv=RollingOrigin(), or "
                "update='fit'."
            )


def _folds(cv, X, y):
    """Return pairs of train and test rows, checked before anything is fitted."""
    if cv is None or isinstance(cv, Integral):
        cv = UserKFold(5 if cv is None else cv, shuffle=True, random_state=0)
    elif isinstance(cv, Iterable):
        cv = list(cv)
        if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in cv):
            raise ValueError(
                "cv must give pairs (train, test) of arrays of rows; put a single pair in a list: "
                "cv=[(train, test)]."
            )
    n_rows = len(X) if hasattr(X, "__len__") else X.shape[0]
    folds = [[_positions(rows, n_rows) for rows in pair] for pair in check_cv(cv).split(X, y)]
    if not folds:
        raise ValueError("cv gives no folds; give at least one pair of train and test rows.")
    for number, (train, test) in enumerate(folds):
        for rows, name in ((train, "train"), (test, "test")):
            if len(rows) == 0:
                raise ValueError(f"Fold {number} of cv has no {name} rows.")
            if (
                rows.ndim != 1
                or rows.dtype.kind not in "iu"
                or rows.max() >= n_rows
                or rows.min() < -n_rows
            ):
                raise ValueError(
                    f"The {name} rows of fold {number} of cv are not positions in X, which has "
                    f"{n_rows} rows."
                )
        n_both = int(np.isin(test % n_rows, train % n_rows).sum())
        if n_both:
            warn(
                f"{n_both} of the {len(test)} test rows of fold {number} are training rows "
                "too, so scores are too good; use a splitter that keeps them apart."
            )
    return folds


def _positions(rows, n_rows):
    rows = np.asarray(rows)
    return np.flatnonzero(rows) if rows.dtype == bool and rows.shape == (n_rows,) else rows


def _warn_of_pairs(users, items, folds, scorers):
    """Warn of pairs that are in training and test rows of a fold, or in several of its test rows.

    Rows that are both have been reported before.
    """
    (users, _), (items, known) = factorized(users), factorized(items)
    pairs, both, repeated = users * len(known) + items, [], []
    for train, test in folds:
        own = pairs[test]
        both.append(np.mean(np.isin(own, pairs[train]) & ~np.isin(test, train)))
        repeated.append(1 - len(np.unique(own)) / len(own))
    both, repeated = float(np.mean(both)), float(np.mean(repeated))
    ranking = [one for one in scorers if isinstance(one, RankingScorer)]
    if both > TOLERATED_SHARE and not all(getattr(one, "ranks_seen", False) for one in scorers):
        warn(
            f"{both:.0%} of the test rows have a pair of user and item that is in the training "
            "rows of the fold too, so scores are too good. Keep the first row of each pair only, "
            "or rank all items: make_ranking_scorer(exclude_seen=False)."
        )
    if repeated > TOLERATED_SHARE and any(one.counts_repeated for one in ranking):
        warn(REPEATED.format(f"{repeated:.0%} of the test rows of a fold"))


def _share_unknown(ids, folds):
    """Return the mean share of the test rows whose ids have no training row."""
    return float(np.mean([np.mean(~np.isin(ids[test], ids[train])) for train, test in folds]))


def _scorers(scoring, y):
    """Return the requested scorers, by the names of their columns."""
    if scoring is None:
        scoring = ["ndcg@10", "hit_rate@10"]
        if y is not None:
            scoring = [*ERRORS, *scoring]
    if isinstance(scoring, str):
        scoring = [scoring]
    if isinstance(scoring, list | tuple):
        if not all(isinstance(name, str) for name in scoring):
            raise ValueError("A list of scores must hold names; pass scorers in a dict by name.")
        scoring = dict(zip(scoring, scoring, strict=True))
    elif isinstance(scoring, Mapping | RankingScorers):
        scoring = {**scoring}
    else:
        scoring = {"score": scoring}
    taken = {"estimator", "fold", "error", *TIMES, *COSTS}.intersection(scoring)
    if taken:
        raise ValueError(
            f"scoring has {min(taken)!r}, which is a column of every comparison; rename it, or "
            "leave it out, because times and costs are always computed."
        )
    return {name: _scorer_of(scorer) for name, scorer in scoring.items()}


def _scorer_of(name):
    """Return the scorer of a column or of a name of scikit-learn; return a scorer as it is."""
    if not isinstance(name, str):
        if not callable(name):
            raise ValueError(f"scoring holds {name!r}, which is neither a name nor callable.")
        return name
    if name in ERRORS:
        return make_scorer(_fold.RowErrors(name))
    metric, at, k = name.partition("@")
    if metric == "auc":
        if at:
            raise ValueError(f"{name!r} has a cutoff, but AUC has none; write 'auc'.")
        return make_ranking_scorer(metric)
    if k.isdecimal():
        return make_ranking_scorer(metric, k=int(k))
    if name not in get_scorer_names():
        raise ValueError(
            f"Unknown score {name!r}; choose from {', '.join(ERRORS)}, "
            f"{', '.join(key_of(metric, 10) for metric in METRICS)} (or another cutoff), and the "
            "names of sklearn.metrics.get_scorer_names(). Costs need no scorer: the columns "
            f"{', '.join(COSTS)} are always computed."
        )
    return get_scorer(name)


# ------------------------------------------------------------------------------- results


def _warn_or_raise(outcomes, asked):
    unfitted = [one for one in outcomes if not one.fitted]
    unscored = [one for one in outcomes if one.fitted and one.error]
    hint = "error_score='raise' shows where."
    if len(unfitted) == len(outcomes):
        raise ValueError(f"All {len(outcomes)} fits failed; {hint}\n{_listed(unfitted)}")
    if unfitted:
        message = f"{len(unfitted)} of {len(outcomes)} fits failed, and their rows hold NaN; {hint}"
        warn(f"{message}\n{_listed(unfitted)}", FitFailedWarning)
    if unscored:
        message = f"Scores failed in {len(unscored)} of {len(outcomes)} rows, and are NaN; {hint}"
        warn(f"{message}\n{_listed(unscored)}")
    without = {}
    for one in outcomes:
        missing = ", ".join(score for score in asked if score not in one.values)
        if one.fitted and missing:
            without.setdefault(missing, {})[one.name] = None
    for missing, names in without.items():
        message = (
            f"{missing}: not for {', '.join(names)}. It compares predictions with y, so it applies "
            "to rating models only: regressors, and models whose fit requires y."
        )
        warn(message)


def _listed(outcomes):
    return "\n".join(error_lines((one.name, one.fold, one.error) for one in outcomes))


def _warn_if_weak(comparison, estimators, said):
    """Warn of models that are worse than biases or popularity alone, unless their fits have."""
    kinds = {type(estimator).__name__: name for name, estimator in estimators.items()}
    has_warned = {name for name, _, text in said if " alone would: " in text}
    attacked = {
        name
        for name, estimator in estimators.items()
        if getattr(getattr(estimator, "federation", None), "adversary", None) is not None
    }
    left_out = {*has_warned, *attacked, kinds.get("RandomRecommender")}
    if comparison._users["user"].nunique() < LEAST_USERS:
        return
    for kind, rates, scores, text in (
        ("BiasOnly", True, ERRORS, "predicts the test rows worse than biases alone"),
        ("Popularity", False, METRICS.keys() - OF_LISTS, "ranks worse than popularity alone"),
    ):
        if kind not in kinds:
            continue
        worse = {}
        for row in comparison._differences(kinds[kind]):
            if row["score"].partition("@")[0] in scores and row["better"] is False:
                interval = f"95% interval {row['low']:+.2g} to {row['high']:+.2g}"
                shown = f"{row['score']} {row['difference']:+.2g} ({interval})"
                worse.setdefault(row["estimator"], []).append(shown)
        for name in worse:
            if name not in left_out and _fold.predicts_y(estimators[name]) is rates:
                warn(
                    f"{name!r} {text}: {', '.join(worse[name])}. Allow more rounds or less noise, "
                    "or search for other parameters."
                )
