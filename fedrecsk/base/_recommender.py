"""The base class of all recommenders, and what models of ratings and of preferences add to it."""

from __future__ import annotations

import copy
import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_array, check_is_fitted, check_X_y, validate_data

from fedrecsk import metrics
from fedrecsk._utils import memory
from fedrecsk._utils.constraints import ArrayLike
from fedrecsk._utils.given import check_numbers
from fedrecsk._utils.parameters import PlainParameters, checked, suggest
from fedrecsk._utils.sklearn_compat import (
    CallbackSupportMixin,
    check_sample_weight,
    fit_context,
    safe_indexing,
)
from fedrecsk.base._public_half import PublicHalf
from fedrecsk.base._recommend import Recommends
from fedrecsk.cluster import _frames
from fedrecsk.data import _checks
from fedrecsk.data._mistakes import (
    warn_about_entries,
    warn_about_lone_items,
    warn_about_target,
    warn_about_unknown_pairs,
)
from fedrecsk.data.ids import catalogue_ids
from fedrecsk.data.interactions import (
    Interactions,
    as_table,
    encode,
    id_columns,
    matrix_rows,
    shape_of_ids,
)
from fedrecsk.models import Factors

if TYPE_CHECKING:
    from sklearn.utils import Tags

    from fedrecsk.data.interactions import Population
    from fedrecsk.models import Model

    R = TypeVar("R", bound="Recommender")

# Number of rows of a score that are looked at for known users and items before all others.
ROWS_LOOKED_AT = 1000


def attributes_of(data: Population) -> dict[str, Any]:
    """Return the fitted attributes about users and items that every model has."""
    return {
        "user_ids_": data.user_ids.values.copy(),
        "item_ids_": data.item_ids.values.copy(),
        "n_users_": data.n_users,
        "n_items_": data.n_items,
        "_users": data.user_ids,
        "_items": data.item_ids,
        "_seen": data.seen(),
    }


def fitted_copy(estimator: R, attributes: Mapping[str, Any]) -> R:
    """Return a copy of an estimator that has these fitted attributes."""
    model = copy.copy(estimator)
    vars(model).update(attributes)
    return model


class FitReport:
    """Reports a running fit, with X, y and sample_weight as given, to scikit-learn's callbacks."""

    def __init__(
        self,
        estimator: Any,
        X: Any,
        y: Any,
        sample_weight: Any,
        data: Population,
        n_tasks: int | None = None,
    ) -> None:
        self.static: dict[str, Any] = attributes_of(data)
        self._estimator = estimator
        # ScoringMonitor does nothing if y is None.
        rows_here = hasattr(X, "__len__") and not _frames.is_frame(X)
        y = np.ones(len(X)) if y is None and rows_here else y
        metadata = None if sample_weight is None else {"sample_weight": sample_weight}
        self._arguments = {"X": X, "y": y, "metadata": metadata}
        n_tasks = estimator._n_tasks(data) if n_tasks is None else n_tasks
        self._context = estimator._init_callback_context(max_subtasks=n_tasks)

    def begin(self) -> None:
        """Report that the fit begins."""
        self._context.call_on_fit_task_begin(estimator=self._estimator, **self._arguments)

    def end(self) -> None:
        """Report that the fit has ended and the estimator is fitted."""
        self._context.call_on_fit_task_end(
            estimator=self._estimator,
            **self._arguments,
            reconstruction_attributes=lambda: copy.deepcopy(
                {name: value for name, value in vars(self._estimator).items() if name[-1] == "_"}
            ),
        )

    def step(self, name: str) -> Callable[[Callable[[], dict[str, Any]]], bool]:
        """Open a step of the fit, and return what closes it, given a function for attributes."""
        context = self._context.subcontext(task_name=name)
        context.call_on_fit_task_begin(estimator=self._estimator, **self._arguments)

        def close(attributes):
            # True stops the fit. Attributes are computed only if a callback needs them.
            return context.call_on_fit_task_end(
                estimator=self._estimator,
                **self._arguments,
                reconstruction_attributes=lambda: self.static | attributes(),
            )

        return close


_INSTEAD = {
    "partial_fit": "call fit with all rows, old and new, or fold_in to add users.",
    "forget": "call fit with the rows of all other users.",
}
# Parameters that determine the size of the model.
_SIZES = ("n_factors", "n_bits")


@dataclass(eq=False, repr=False)
class Recommender(Recommends, PublicHalf, CallbackSupportMixin, PlainParameters, ABC):
    """Base class of all recommenders: reads input, predicts and recommends.

    A subclass defines `_fit`, which returns factors and biases under their usual names (any of
    them may be missing), or else its own `_model`. Decorate it with
    ``@dataclass(eq=False, repr=False)``: its annotated names become constructor parameters.

    Parameters
    ----------
    items : array-like of shape (n_items,), default=None
        The public catalogue. If None, the items of X.
    """

    _: KW_ONLY
    items: ArrayLike | None = None

    __metadata_request__fit: ClassVar[dict] = {"clients": True, "sample_weight": True}
    __metadata_request__score: ClassVar[dict] = {"sample_weight": True}

    # ------------------------------------------------------------ what a subclass defines

    @abstractmethod
    def _fit(self, data, report):
        """Learn from `data` (Interactions), reporting to a FitReport; return fitted attributes."""

    def _n_tasks(self, data):
        """Return the largest number of steps that `_fit` reports to callbacks; 0 for none."""
        return 0

    def _check_before_fit(self):
        """Raise if parameters contradict one another."""
        scale = getattr(self, "rating_scale", None)
        if scale is not None:
            _checks.check_scale(scale)

    def _least_bytes(self, data):
        """Return a lower bound, never too large, on the bytes that a fit to Interactions needs."""
        return 0

    @abstractmethod
    def _new_user_attributes(self, data):
        """Return per-user fitted attributes (a dict of arrays) for the users of `data` alone."""

    def _model(self) -> Model:
        """Return the fitted model, which scores users and items by their codes."""
        return Factors.of(vars(self))

    def _rows_of_items(self):
        """Return arrays by name, among which are those with a row for each item."""
        return vars(self)

    def _with_rows_of_items(self, arrays):
        """Return the fitted attributes, given arrays in the place of those of the same names."""
        return arrays

    def _forget_users(self, users):
        """Drop further state of replaced users, in new arrays: copies share the fitted ones."""

    # -------------------------------------------------------------------------- parameters

    @classmethod
    def _get_param_names(cls):
        """Return the parameters' names; raise if one was lost or added by accident."""
        return list(_parameters_of(cls))

    if not TYPE_CHECKING:  # so that type checkers know which attributes there are

        def __getattr__(self, name):
            """Say what to call instead of a method that this model does not have."""
            instead = _INSTEAD.get(name)
            if instead is None or hasattr(type(self), name):
                return object.__getattribute__(self, name)
            raise AttributeError(
                f"{type(self).__name__} has no {name}; {instead}", name=name, obj=self
            )

    # ------------------------------------------------------------------------- fit, score

    @suggest
    @fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        clients: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Fit the model to interactions.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features >= 2)
            One row per interaction: column 0 is the user's id, column 1 the item's id
            (integers, floats or strings). Later columns are ignored and may hold anything.
            A ranking model also takes a scipy.sparse matrix of shape (n_users, n_items): ids are
            the numbers of its rows and columns, all columns are in the catalogue, and an entry is
            the weight of a row with y = 1 or, if negative, with y = -1, which is not a positive.
        y : array-like of shape (n_samples,), default=None
            Rating or preference of each row. Rating models require it. For ranking models, None
            means implicit feedback: every row counts as 1.
        clients : array-like of shape (n_samples,), default=None
            Id of the client that holds each row (of a sparse matrix: each user). If None, each user
            is a client of its own. Centralised models ignore it.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights. Repeated (user, item) rows are merged: their y is the weighted
            mean and their weight the sum. Rows of weight zero count as absent.

        Returns
        -------
        self : object
            The fitted model.

        Raises
        ------
        ValueError
            If ids, ratings or weights are NaN, infinite or of mixed types, a user has rows
            on two clients, X has items that are not in `items`, or nothing is left to fit.
        TypeError
            If an id is neither a string nor a number, or if X is sparse and the model is a rating
            model, or y or sample_weight are given as well.
        """
        if _frames.is_frame(X):
            return self._fit_on_cluster(X, y, clients, sample_weight)
        X, y, sample_weight, data = self._read_fit(X, y, clients, sample_weight)
        return self._learn(data, FitReport(self, X, y, sample_weight, data), self._fit)

    def _read_fit(self, X, y, clients, sample_weight):
        """Check everything before a fit; return X, y and weights as rows, and encoded."""
        catalogue = None
        if sparse.issparse(X):
            if y is not None or self.__sklearn_tags__().target_tags.required:
                as_table(X)  # raises
            X, y, clients, sample_weight, catalogue = matrix_rows(X, clients, sample_weight)
            warn_about_entries(type(self).__name__, y * sample_weight)
        return X, y, sample_weight, self._prepared(X, y, clients, sample_weight, catalogue)

    def _fit_on_cluster(self, X, y, clients, sample_weight):
        """Fit to a Dask DataFrame, with users on its workers."""
        raise TypeError(
            f"X is a Dask DataFrame, and {type(self).__name__} has no clients that could stay on "
            "its workers; pass X.compute(), or use a federated method."
        )

    def _learn(self, data, report, fit):
        """Call `fit`, and take over the fitted attributes that it returns."""
        if isinstance(data, Interactions):
            self._require_memory(data)
        report.begin()
        attributes = fit(data, report)
        _checks.check_fitted(self, data, attributes)
        # Remove attributes of an earlier fit that this fit does not have.
        for name in [name for name in vars(self) if name[-1] == "_" and name[0] != "_"]:
            if name not in ("n_features_in_", "feature_names_in_"):
                delattr(self, name)
        for name, value in (report.static | attributes).items():
            setattr(self, name, value)
        self._check_after_fit(data)
        report.end()
        return self

    def _check_after_fit(self, data):
        """Warn if the fitted model is of little use."""

    def _require_memory(self, data):
        """Raise, before any work, if less memory is available than the fit needs."""
        sizes = [name for name in _SIZES if name in self.get_params(deep=False)]
        given = " with " + ", ".join(f"{n}={getattr(self, n)}" for n in sizes) if sizes else ""
        memory.require(
            int(self._least_bytes(data)),
            f"The vectors and sums of {type(self).__name__}{given}, for {data.n_users} users, "
            f"{data.n_items} items and {len(data.items)} ratings,",
            f"Lower {' or '.join(sizes)}, or leave out rare users and items."
            if sizes
            else "Leave out rare users and items.",
        )

    def _prepared(self, X, y=None, clients=None, sample_weight=None, catalogue=None):
        """Check everything before a fit, and encode the data; `items` precede the catalogue."""
        own = self._catalogue()
        catalogue = catalogue if own is None else own
        _checks.check_parameters(self)
        self._check_before_fit()
        data = self._read(X, y, clients, sample_weight, item_ids=catalogue, all_users=True)
        if getattr(self, "item_features", None) is None:
            warn_about_lone_items(data.items, data.n_users)
        return self._with_features(data, fitted=False)

    def _catalogue(self):
        """Return the public catalogue (Ids); None for the items of X."""
        return None if self.items is None else catalogue_ids(self.items)

    def _read(self, X, y=None, clients=None, sample_weight=None, *, reset=True, **options):
        """Check and encode the input of `fit` or, without `reset`, of `fold_in`."""
        # Items that are not in `item_ids` are an error in `fit`. With `all_users`, X is not of one
        # device or of new users only, so that its times must differ.
        self._require_y(y)
        X, y = self._checked(X, y, reset=reset)
        if reset:
            warn_about_target(type(self).__name__, X, y, rates=_checks.estimates_y(self))
        options |= {"drop_other_items": not reset, "is_fit": reset}
        return self._encoded(X, y, clients, sample_weight, **options)

    def _encoded(self, X, y, clients, sample_weight, *, all_users=False, is_fit=False, **options):
        """Encode X and y, which `_checked` has returned."""
        if sample_weight is not None:
            sample_weight = check_sample_weight(sample_weight, X, allow_all_zero_weights=True)
        _checks.check_rows(y, sample_weight, self._limits(is_fit))
        times = self._times_of(X, all_users=all_users)
        return encode(X, y, clients=clients, sample_weight=sample_weight, times=times, **options)

    def _limits(self, is_fit):
        """Return the ends of the scale on which y must be, in a fit or later; None for any."""
        return getattr(self, "rating_scale" if is_fit else "rating_scale_", None)

    def _with_features(self, data, *, fitted):
        """Return data of a fit, or of users of a fitted model, with what else is known of them."""
        return data

    # Whether a fit reads the times of rows.
    _reads_times = False

    def _times_of(self, X, *, all_users=False):
        """Return the times of the rows (NaN where missing), or None if the model uses none."""
        return None

    def _require_y(self, y):
        if y is None and self.__sklearn_tags__().target_tags.required:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y "
                "is None."
            )

    # Sums of huge numbers, by which scikit-learn looks for NaN.
    @np.errstate(invalid="ignore", over="ignore")
    def _checked(self, X, y=None, *, reset=False):
        X = as_table(X)
        check_numbers(y, "y")
        missing = np.flatnonzero(np.ravel(pd.isna(np.asarray(y)))) if y is not None else []
        if len(missing):
            raise ValueError(
                f"Input y contains NaN (first in row {missing[0]}); leave rows without a rating "
                "out, for example with frame.dropna()."
            )
        required = reset and self.__sklearn_tags__().target_tags.required
        min_features = 2 if reset else 1
        # Only the ids must be finite, which `id_columns` checks.
        options = {"dtype": None, "ensure_all_finite": False, "ensure_min_features": min_features}
        if hasattr(X, "columns"):
            # A DataFrame is read column by column, each with its own type; later ones are not read.
            validate_data(self, X, skip_check_array=True, reset=reset)
            table = shape_of_ids(X)
            if y is None and not required:
                check_array(table, input_name="X", estimator=self, **options)
                return X, y
            return X, check_X_y(table, y, y_numeric=True, estimator=self, **options)[1]
        if y is None and not required:
            return validate_data(self, X, reset=reset, **options), y
        return validate_data(self, X, y, y_numeric=True, reset=reset, **options)

    # ----------------------------------------------------------------------------- predict

    @suggest
    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Estimate the rating or preference of (user, item) pairs.

        An unknown item adds nothing to the score, which leaves the user's bias plus the global
        mean. For unknown users see the Notes of `recommend`.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features)
            As many columns as in fit; column 0 is the user's id, column 1 the item's.
        return_std : bool, default=False
            Whether to return standard deviations too. Only Bayesian models have them.

        Returns
        -------
        y_pred : ndarray of shape (n_samples,), dtype float64
        y_std : ndarray of shape (n_samples,), dtype float64
            With ``return_std=True``: the predicted standard deviation of the rating. Its mean is
            `y_pred`, before clipping.

        Raises
        ------
        ValueError
            With ``return_std=True``, if the model has no standard deviations.
        """
        check_is_fitted(self)
        checked("predict", {"return_std": ["boolean"]}, return_std=return_std)
        if _frames.is_frame(X):
            return _frames.on_workers(self, "predict", X, return_std=return_std)
        X, _ = self._checked(X)
        users, items = id_columns(X)
        codes = self._users.codes(users), self._items.codes(items)
        warn_about_unknown_pairs(users, items, codes, (self._users, self._items))
        spread = deviations(self, *codes) if return_std else None
        predicted = self._model().predict(*codes)
        return predicted if spread is None else (predicted, spread)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # Ids may be strings. The tag `string` is not set because scikit-learn's checks would then
        # pass objects of any type, and ids of mixed types are an error here.
        tags.target_tags.required = False
        return tags


def deviations(
    estimator: Recommender, users: NDArray[np.int64], items: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return standard deviations of ratings of pairs of codes, -1 for unknown; shape (n,)."""
    found = estimator._model().deviations
    if found is None:
        raise ValueError(
            f"{type(estimator).__name__} has no standard deviations; use return_std=False, or a "
            "Bayesian model: FedEB or BayesianSVDpp."
        )
    return found(users, items)


@functools.cache
def _parameters_of(cls):
    """Return the names of a class's parameters, read from its signature once."""
    names = super(Recommender, cls)._get_param_names()
    lost = [name for name in _annotated_parameters(cls) if name not in names]
    if lost:
        raise TypeError(
            f"{cls.__name__} annotates {lost[0]!r}, which did not become a parameter. Decorate "
            f"{cls.__name__} with @dataclass(eq=False, repr=False); annotate names that are "
            "not parameters with ClassVar, or not at all."
        )
    odd = [name for name in names if name.startswith("_") or name.endswith("_")]
    if odd:
        raise TypeError(
            f"{cls.__name__} annotates {odd[0]!r}, which became a parameter. Annotate it with "
            "ClassVar, or not at all."
        )
    return tuple(names)


def _annotated_parameters(cls):
    """Public names that a class and its bases annotate, up to one with its own ``__init__``."""
    found = {one.name: False for one in fields(cls) if not one.init}
    for base in cls.__mro__:
        if "__init__" in vars(base) and "__dataclass_fields__" not in vars(base):
            break
        for name, kind in inspect.get_annotations(base).items():
            if not (name.startswith("_") or name.endswith("_")):
                found.setdefault(name, "ClassVar" not in str(kind))
    return [name for name, is_parameter in found.items() if is_parameter]


# ------------------------------------------------------------------------------ warm start


def check_resumable(run, data, parameters, total, n_total, n_done):
    """Raise if a run cannot go on with these data and parameters, or has run that long already."""
    steps = total.removeprefix("n_")
    if run.fingerprint != data.fingerprint():
        raise ValueError(
            f"warm_start continues the {steps} of the last fit, but X, y, clients, "
            "sample_weight or items have changed since; fit with warm_start=False, or use "
            "fold_in to add users."
        )
    check_unchanged(run, parameters, f"warm_start continues the {steps} of the last fit")
    if n_total < n_done:
        raise ValueError(
            f"{total}={n_total} must be larger or equal to the {n_done} {steps} already run when "
            "warm_start=True."
        )


def check_unchanged(run, now, what):
    """Raise if parameters that a run must keep are no longer as they were."""
    before = run.parameters
    changed = [n for n in before | now if not np.array_equal(before.get(n), now.get(n))]
    if changed:
        name = min(changed)
        raise ValueError(
            f"{what}, but {name} has changed from {before.get(name)!r} to {now.get(name)!r} since; "
            "set it back or fit with warm_start=False."
        )


# ------------------------------------------------------------------ ratings and preferences


class RatingMixin(RegressorMixin):
    """A model of ratings: y is required, and `score` is R^2."""

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Coefficient of determination R^2 of the predicted ratings.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Ratings.
        sample_weight : array-like of shape (n_samples,), default=None

        Returns
        -------
        r2 : float
            1 at best; 0 for a model that predicts the mean of y for all pairs.

        Raises
        ------
        ValueError
            If a rating or a weight is NaN, infinite or larger than 1e15.

        Warns
        -----
        UserWarning
            If the model knows at most 5% of the users, or of the items.
        """
        check_is_fitted(self)
        if _frames.is_frame(X):
            return _frames.on_workers(self, "score", X, y, sample_weight=sample_weight)
        table, ratings = self._checked(X, y)
        if sample_weight is not None:
            sample_weight = check_sample_weight(sample_weight, table)
        _checks.check_rows(ratings, sample_weight)
        known = SimpleNamespace(user_ids=self._users, item_ids=self._items)
        # As a rule the first rows have a known user and item, and all rows need not be read twice.
        for rows in (safe_indexing(table, slice(ROWS_LOOKED_AT), axis=0), table):
            users, items = id_columns(rows)
            codes = self._users.codes(users), self._items.codes(items)
            if all(map(metrics.are_known, codes)):
                break
        else:
            metrics.warn_if_unknown(known, users, codes[0], items, codes[1])
        return super().score(X, y, sample_weight)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # Shrinkage is strong by design: with one rating a user and item there is no signal.
        tags.regressor_tags.poor_score = True
        return tags


class RankingMixin:
    """A model of preferences: y is optional, and `score` is NDCG@10."""

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.estimator_type = "recommender"
        return tags

    def score(
        self, X: ArrayLike, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """NDCG@10 over the full catalogue, `item_ids_`.

        For each user of X, all items are ranked except those that the user had in fit; items of
        X are always ranked. Tied items count with the expectation over a random order, and
        unknown items as never found.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features)
        y : array-like of shape (n_samples,), default=None
            Relevance. Rows with y <= 0 are not relevant. If None, all rows are.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, by which the relevance of the rows is multiplied.

        Returns
        -------
        ndcg : float
            Mean over all users with a relevant row, in [0, 1].

        Raises
        ------
        ValueError
            If no row is relevant.
        """
        check_is_fitted(self)
        if _frames.is_frame(X):
            return _frames.on_workers(self, "score", X, y, sample_weight=sample_weight)
        X, y = self._checked(X, y)
        return metrics.catalogue_ndcg(self, X, y, sample_weight)


def check_likes(data: Interactions) -> None:
    """Raise a ValueError if no row of `data` (Interactions) has y > 0."""
    if not (data.values > 0).any():
        raise ValueError(
            "No row of X has y > 0, so there are no positives. Pass y=None to count every row, "
            "or shift y so that positives are above 0."
        )
