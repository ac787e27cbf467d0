"""Fit a model in each fold, or bring it up to date from fold to fold, and score it."""

from __future__ import annotations

import copy
import inspect
import re
import threading
import warnings
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from joblib import effective_n_jobs
from joblib.parallel import get_active_backend
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import get_tags
from sklearn.utils.metadata_routing import get_routing_for_object
from sklearn.utils.parallel import Parallel, delayed

from fedrecsk._utils.kernels import timed
from fedrecsk._utils.sklearn_compat import BaseScorer, cached_call, safe_indexing
from fedrecsk._utils.user_warnings import warn
from fedrecsk.metrics._held_out import unwrap
from fedrecsk.metrics._scorers import RankingScorer, RecommenderScorer
from fedrecsk.model_selection._comparison import COSTS, ERRORS, POWERS, TIMES

# Only scikit-learn's routing passes metadata on inside a Pipeline.
_ROUTING = {"enable_metadata_routing": True}


class Outcome(NamedTuple):
    """Result of one estimator on one fold: values by column, those that apply, and an error."""

    name: str
    fold: int
    values: dict
    error: str = ""
    estimator: object = None
    per_user: pd.DataFrame | None = None

    @property
    def fitted(self):
        """Return whether fit succeeded."""
        return "fit_seconds" in self.values


class Data(NamedTuple):
    """All rows, and metadata of the fit by name."""

    X: Any
    y: Any
    metadata: dict
    users: np.ndarray

    def rows(self, which):
        """Return positional arguments, X and perhaps y, and the metadata of some rows."""
        arrays = [self.X] if self.y is None else [self.X, self.y]
        metadata = {name: safe_indexing(one, which) for name, one in self.metadata.items()}
        return [safe_indexing(one, which) for one in arrays], metadata

    def taken_by_fit(self, estimator):
        """Return the same with the metadata that the estimator's fit takes; weights it must."""
        wanted = get_routing_for_object(estimator).consumes("fit", self.metadata)
        if hasattr(estimator, "set_fit_request"):
            # Only its own requests, even if it passes metadata on to others.
            asked = estimator._get_metadata_request().fit.requests
            wanted |= {name for name in self.metadata if name in asked and asked[name] is None}
        if "sample_weight" in self.metadata and "sample_weight" not in wanted:
            raise TypeError(
                f"{type(estimator).__name__}.fit takes no sample_weight; leave out the weights or "
                "the estimator."
            )
        return self._replace(metadata={name: self.metadata[name] for name in wanted})


class RowErrors:
    """Compute a mean error, and keep the error and weight of each row."""

    def __init__(self, name):
        self.name = name
        self.errors = None

    def __call__(self, y_true, y_pred, sample_weight=None):
        self.errors = np.abs(np.subtract(y_true, y_pred, dtype=float))
        self.weights = np.ones(len(self.errors)) if sample_weight is None else sample_weight
        return ERRORS[self.name](y_true, y_pred, sample_weight=sample_weight)


def scorers_for(estimator, scorers):
    """Return the scorers that apply; those that compare predictions with y need a rating model."""
    if predicts_y(estimator):
        return scorers
    return {
        name: scorer
        for name, scorer in scorers.items()
        if isinstance(scorer, RecommenderScorer) or not isinstance(scorer, BaseScorer)
    }


def predicts_y(estimator):
    """Return whether an estimator is a rating model."""
    tags = get_tags(estimator)
    if tags.estimator_type == "regressor" or tags.target_tags.required:
        return True
    y = inspect.signature(estimator.fit).parameters.get("y")
    return y is not None and y.default is y.empty and hasattr(estimator, "predict")


# A warning of an estimator: its name, the category, and the text.
Said = tuple[str, type[Warning], str]


def run(tasks, how, n_jobs, report):
    """Return outcomes and warnings of all tasks, or of those that ended before an interrupt."""
    found: list[tuple[list[Outcome], list[Said]]] = [([], []) for _ in tasks]
    as_they_end = get_active_backend()[0].supports_return_generator
    parallel = Parallel(n_jobs=n_jobs, return_as="generator_unordered" if as_they_end else "list")
    n_workers = min(effective_n_jobs(n_jobs), len(tasks))
    try:
        # Tasks in this process fill in `found` themselves, so that an interrupt loses no fold.
        for number, result in parallel(
            delayed(_with_warnings)(number, found[number], *task, **how)
            for number, task in enumerate(tasks)
        ):
            found[number] = result
            for outcome in result[0] if report else ():
                print(report.line(outcome, n_workers), flush=True)
    except KeyboardInterrupt:
        if not any(outcomes for outcomes, _ in found):
            raise
    return [[one for part in parts for one in part] for parts in zip(*found, strict=True)]


class Progress:
    """Lines about fits as they end."""

    def __init__(self, names, n_folds):
        self.n_folds = n_folds
        self.seconds = {name: [] for name in names}

    def line(self, outcome, n_workers):
        """Return a line about a fit that has just ended."""
        values = outcome.values
        self.seconds[outcome.name].append(sum(values.get(time, 0.0) for time in TIMES))
        n_done, n_fits = sum(map(len, self.seconds.values())), len(self.seconds) * self.n_folds
        shown = [f"{name} {values[name]:.3f}" for name in values if name not in {*TIMES, *COSTS}]
        shown += [f"fit {values['fit_seconds']:.1f} s"] if outcome.fitted else []
        text = ", ".join([*shown, *([outcome.error] if outcome.error else [])])
        minutes = self.seconds_left() / n_workers / 60
        left = f"; about {minutes:.0f} min left" if minutes >= 1 else ""
        return f"[{n_done}/{n_fits}] {outcome.name}, fold {outcome.fold}: {text}{left}"

    def seconds_left(self):
        """Estimate the seconds of the other fits: the model's own mean, or that of all models."""
        means = {name: np.mean(own) for name, own in self.seconds.items() if own}
        typical = np.mean(list(means.values()))
        return sum(
            (self.n_folds - len(own)) * means.get(name, typical)
            for name, own in self.seconds.items()
        )


def _with_warnings(number, found, name, *args, **kwargs):
    """Fill in the outcomes of a chain of folds and the warnings on the way; return both."""
    outcomes, told = found
    if threading.current_thread() is not threading.main_thread():
        # Threads share what is done with warnings.
        _fit_and_keep_up(outcomes, name, *args, **kwargs)
        return number, found
    try:
        with warnings.catch_warnings(record=True) as said:
            try:
                _fit_and_keep_up(outcomes, name, *args, **kwargs)
            finally:
                told += [(name, one.category, str(one.message)) for one in said]
    except Exception:
        repeat(told)
        raise
    return number, found


def repeat(said):
    """Give each estimator's warnings once, whatever the numbers in them."""
    texts = {}
    for name, category, text in said:
        texts.setdefault((name, category, re.sub(r"\d+", "", text)), text)
    for (name, category, _), text in texts.items():
        # Some are made of other arguments than a text.
        plain = all(
            one.__module__ == "builtins" or "__init__" not in vars(one) for one in category.__mro__
        )
        warn(f"{name}: {text}", category if plain else UserWarning)


def _fit_and_keep_up(outcomes, name, chain, estimator, data, scorers, update, *, raises, keep):
    """Fit an estimator in a chain's first fold, bring it up to date in the others; score it."""
    model = before = None
    for fold, (train, test) in chain:
        if outcomes and not outcomes[-1].fitted:
            outcomes.append(outcomes[-1]._replace(fold=fold))
            continue
        new = train if before is None else train[~np.isin(train, before)]
        try:
            applicable = scorers_for(estimator, scorers)
            of_fit = data.taken_by_fit(estimator)
            if before is None:
                model, seconds = timed(_fit, estimator, of_fit.rows(train))
            else:
                model = copy.deepcopy(model) if keep else model
                rows = of_fit.rows(train if update == "fold_in" else new)
                model, seconds = timed(_update, model, update if len(new) else "none", rows)
            costs = _costs(model)
            if before is not None and (update != "partial_fit" or not len(new)):
                # What the ledger has is of the fit.
                costs |= dict.fromkeys(costs.keys() - {"epsilon"}, 0.0)
            values = costs | {"fit_seconds": seconds}
        except Exception as error:  # an estimator's error goes into its row; `compare` continues
            if raises:
                raise
            outcomes.append(Outcome(name, fold, {}, _told(error)))
            continue
        before, X_train = train, safe_indexing(data.X, train)
        kept = {score: _keeping(scorer, X_train) for score, scorer in applicable.items()}
        (scores, error), seconds = timed(_score, model, kept, data, test, raises)
        per_user = _per_user(data.users[test], kept)
        if per_user is not None:
            per_user = per_user.assign(estimator=name, fold=fold)
        values |= scores | {"score_seconds": seconds}
        outcomes.append(Outcome(name, fold, values, error, model if keep else None, per_user))


def _told(error):
    """Return an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _fit(estimator, rows):
    with config_context(**_ROUTING if rows[1] else {}):
        return clone(estimator).fit(*rows[0], **rows[1])


def _update(model, update, rows):
    """Return the model, brought up to date in place."""
    if update == "fold_in":
        return model.fold_in(*rows[0], **rows[1], replace=True)
    return model.partial_fit(*rows[0], **rows[1]) if update == "partial_fit" else model


def _score(model, scorers, data, test, raises):
    """Return scores by name, NaN for those that fail, and what failed in one line."""
    arguments, metadata = data.rows(test)
    weight = metadata.get("sample_weight")
    # Predictions and rankings are shared.
    caller, scores, errors = partial(cached_call, {}), {}, {}
    for name, scorer in scorers.items():
        try:
            if isinstance(scorer, BaseScorer):
                asked = scorer.get_metadata_routing().score.requests.get("sample_weight")
                weighs = (
                    weight is not None and asked is not False and scorer._accept_sample_weight()
                )
                weights = {"sample_weight": weight} if weighs else {}
                score = scorer._score(caller, model, *arguments, **weights)
            else:
                score = scorer(model, *arguments)
            scores[name] = float(score)
        except Exception as error:
            if raises:
                raise
            scores[name] = float("nan")
            errors.setdefault(_told(error), []).append(name)
    return scores, "; ".join(f"{', '.join(of)}: {error}" for error, of in errors.items())


def _keeping(scorer, X_train):
    """Return a copy of a scorer that keeps what each user or row has; others as they are."""
    if isinstance(scorer, RankingScorer):
        return scorer.trained_on(X_train)
    keeps = isinstance(getattr(scorer, "_score_func", None), RowErrors)
    return copy.deepcopy(scorer) if keeps else scorer


def _per_user(users, scorers):
    """Return the scores by user of one fold, and its rows' total weight; None if there are none."""
    columns, n_rows = {}, None
    known, codes = np.unique(users, return_inverse=True)
    for score, scorer in scorers.items():
        kept = getattr(scorer, "_score_func", None)
        if isinstance(scorer, RankingScorer) and scorer.by_user is not None:
            columns[score] = pd.Series(scorer.by_user[1], scorer.by_user[0])
        elif isinstance(kept, RowErrors) and kept.errors is not None:
            power = POWERS[kept.name]
            n_rows = np.bincount(codes, kept.weights)
            means = np.bincount(codes, kept.weights * kept.errors**power) / n_rows
            columns[score] = pd.Series(means ** (1 / power), known)
    if not columns:
        return None
    n_rows = np.bincount(codes) if n_rows is None else n_rows
    table = pd.DataFrame({"n_rows": pd.Series(n_rows, known), **columns})
    return table.rename_axis("user").reset_index()


def _costs(estimator):
    try:
        _, model = unwrap(estimator)
    except (TypeError, NotFittedError):
        return {}
    if not hasattr(model, "communication_"):
        return {}
    return {name: -scorer(estimator, None) / unit for name, (scorer, unit) in COSTS.items()}
