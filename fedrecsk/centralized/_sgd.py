"""Stochastic gradient descent: epochs, early stopping, warm starts; rating factorisations."""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.utils import check_random_state

from fedrecsk._utils.constraints import (
    Above0To1,
    AtLeast1,
    Between0And1,
    NotNegative,
    Positive,
    Seed,
)
from fedrecsk.base import RatingMixin, Recommender, fitted_copy
from fedrecsk.base._recommender import check_resumable
from fedrecsk.data._checks import hint
from fedrecsk.data.item_features import fingerprint
from fedrecsk.models import Factors, clipped
from fedrecsk.protocol.early_stopping import EarlyStopping
from fedrecsk.protocol.keys import Key

DTYPE = np.float32


@dataclass(eq=False, repr=False)
class Epochs(Recommender):
    """Base class of models fitted by passes over the rows in an order of their own."""

    _: KW_ONLY
    n_epochs: AtLeast1 = 60
    learning_rate: Positive = 0.02
    learning_rate_decay: Above0To1 = 0.96
    early_stopping: bool = False
    validation_fraction: Between0And1 = 0.1
    n_iter_no_change: AtLeast1 = 10
    tol: NotNegative = 1e-4
    warm_start: bool = False
    random_state: Seed = None

    # ------------------------------------------------------------------------- the method

    @abstractmethod
    def _start(self, rows, key):
        """Return the parameters before the first epoch: a dict of arrays of DTYPE."""

    @abstractmethod
    def _arranged(self, rows, key):
        """Arrange once in a fit what `_pass` passes over."""

    @abstractmethod
    def _pass(self, rows, arranged, run):
        """Pass over the rows once, changing `run.state`; return the mean loss."""

    def _validation_rows(self, rows, held_out, key):
        """Return what `_validation_loss` needs of training and held-out rows."""
        return held_out

    @abstractmethod
    def _validation_loss(self, rows, held_out):
        """Return the mean loss of the fitted model on what `_validation_rows` has returned."""

    @abstractmethod
    def _fitted(self, rows, state) -> dict[str, Any]:
        """Return the fitted attributes; new arrays, with users in the order of their codes."""

    # ------------------------------------------------------------------------ the machinery

    def _n_tasks(self, data):
        return self.n_epochs

    def _fit(self, data, report):
        run = begun(self, data, "n_epochs")
        rows, held_out = Rows.of(data), None
        if self.early_stopping:
            rows, held_out = hold_out(rows, self.validation_fraction, run.key)
            held_out = self._validation_rows(rows, held_out, run.key)
        arranged = self._arranged(rows, run.key)
        if run.state is None:
            run.state = self._start(rows, run.key)
            if self.early_stopping:
                self._validate(run, rows, held_out)
        run.stopping.tol = self.tol
        run.stopping.be_patient(self.n_iter_no_change)
        while run.n_epochs < self.n_epochs and not run.stopping.stopped:
            close = report.step("epoch")
            run.loss_curve.append(float(self._pass(rows, arranged, run)))
            self._check_finite(run, data)
            if self.early_stopping:
                self._validate(run, rows, held_out)
            if close(lambda: self._finished(run, rows)):
                break
        attributes = self._finished(run, rows)
        self._run = run if self.warm_start else None
        return attributes

    def _rate(self, run):
        """Return the learning rate of the epoch that begins."""
        return DTYPE(self.learning_rate * self.learning_rate_decay**run.n_epochs)

    def _check_finite(self, run, data):
        arrays = run.state.values()
        if not all(np.isfinite(array).all() for array in (run.loss_curve[-1], *arrays)):
            raise ValueError(
                f"{type(self).__name__} diverged: its parameters are infinite or NaN after epoch "
                f"{run.n_epochs}. {hint(self, data)}"
            )

    def _validate(self, run, rows, held_out):
        """Measure the model of the moment on the held-out rows; remember it if it is the best."""
        sizes = {"n_users_": rows.n_users, "n_items_": rows.n_items}
        model = fitted_copy(self, self._fitted(rows, run.state) | sizes)
        loss = model._validation_loss(rows, held_out)
        run.validation_curve.append(loss)
        run.stopping.judge(loss, run.n_epochs, lambda: copy.deepcopy(run.state))

    def _finished(self, run, rows):
        """Return the fitted attributes as if the epochs ended here; copies."""
        best = run.stopping.message
        attributes = self._fitted(rows, run.state if best is None else best)
        attributes |= {"n_epochs_": run.n_epochs, "loss_curve_": list(run.loss_curve)}
        if self.early_stopping:
            attributes["best_epoch_"] = run.stopping.best_round
            attributes["validation_curve_"] = list(run.validation_curve)
        return attributes


@dataclass(eq=False, repr=False)
class GradientDescent(RatingMixin, Epochs):
    """Base class of rating factorisations fitted by stochastic gradient descent.

    Inside, ratings are centred and divided by their standard deviation, so that the
    hyperparameters mean the same on every scale.
    """

    n_factors: AtLeast1 = 20
    _: KW_ONLY
    reg: NotNegative = 0.05
    shrinkage: NotNegative = 3.0
    INIT_STD = 0.03

    @abstractmethod
    def _decays(self, rows):
        """Return strengths of decay per rating, as the kernel takes them."""

    @abstractmethod
    def _epoch(self, arranged, state, rate):
        """Pass over the ratings, changing `state`; return the sum of weighted squared errors."""

    @abstractmethod
    def _parameters(self, rows, state):
        """Return the fitted vectors and biases by name, inside, with users in Rows' order."""

    def _center(self, rows):
        """Return what is subtracted from all ratings."""
        return rows.mean

    def _arranged(self, rows, key):
        decays, rows = self._decays(rows), shuffled(rows, key)
        targets = rows.targets(self._center(rows))
        return (rows.users, rows.items, targets, rows.relative_weights()), tuple(decays)

    def _pass(self, rows, arranged, run):
        loss = self._epoch(arranged, run.state, self._rate(run))
        return loss * rows.scale**2 / len(rows.values)

    def _least_bytes(self, data):
        return 4 * self.n_factors * (data.n_users + data.n_items)

    def _validation_loss(self, rows, held_out):
        users = np.argsort(rows.rank_of_user)[held_out.users]
        predicted = self._model().predict(users, held_out.items)
        return float(np.average((held_out.values - predicted) ** 2, weights=held_out.weights))

    def _fitted(self, rows, state):
        scale = rows.scale
        fitted = {"global_bias_": self._center(rows), "rating_range_": rows.range, "_scale": scale}
        # In rating units again.
        for name, value in self._parameters(rows, state).items():
            factor = np.sqrt(scale) if name.endswith("factors_") else scale
            # A new array, so that writing into the model does not change a running fit.
            value = (value * factor).astype(value.dtype)
            fitted[name] = value[rows.rank_of_user] if name.startswith("user_") else value
        return fitted

    def _model(self):
        return Factors.of(vars(self), response=clipped(*self.rating_range_))


@dataclass(eq=False)
class Run:
    """A fit in progress: all that warm_start needs to continue exactly where it ended."""

    key: Key
    fingerprint: bytes | None
    parameters: dict
    stopping: EarlyStopping
    state: Any = None
    loss_curve: list = field(default_factory=list)
    validation_curve: list = field(default_factory=list)
    # Of a Bayesian model.
    samples: list = field(default_factory=list)

    @property
    def n_epochs(self):
        """Return the number of epochs so far."""
        return len(self.loss_curve)

    @property
    def n_samples(self):
        """Return the number of samples so far."""
        return len(self.samples)


def begun(estimator, data, total):
    """Return the Run that a fit continues, or a new one; `total` is the parameter of its length."""
    # The fingerprint of the data has `items`.
    free = {"items", total, "warm_start", "n_iter_no_change", "tol", "n_jobs"}
    parameters = {n: v for n, v in estimator._all_params(deep=False).items() if n not in free}
    features = parameters.pop("item_features", None)
    if features is not None:
        parameters["item_features"] = fingerprint(features)
    run = getattr(estimator, "_run", None) if estimator.warm_start else None
    if run is not None:
        n_total = getattr(estimator, total)
        check_resumable(run, data, parameters, total, n_total, getattr(run, total))
    # Steps change the state in place: a fit that fails half-way must not be continued.
    estimator._run = None
    if run is not None:
        return run
    key = Key(int(check_random_state(estimator.random_state).randint(2**31 - 1)))
    rows_known = data.fingerprint() if estimator.warm_start else None
    return Run(key, rows_known, parameters, EarlyStopping(tol=0.0, patience=1))


class Side(NamedTuple):
    """The ratings by row of one side, users or items: row a's are ``indptr[a]:indptr[a + 1]``."""

    indptr: np.ndarray
    # Row of the other side.
    others: np.ndarray
    values: np.ndarray
    weights: np.ndarray


class Rows(NamedTuple):
    """Ratings with users in the order of their ids, whichever clients they belong to."""

    # Of each rating, (n,): users ascending and a user's items too, int32; the others float64.
    users: np.ndarray
    items: np.ndarray
    values: np.ndarray
    weights: np.ndarray
    n_users: int
    n_items: int
    # Place in this order of the user with each code, (n_users,).
    rank_of_user: np.ndarray
    # Weighted mean and standard deviation, 1 where all ratings are equal; least and greatest one.
    mean: float
    scale: float
    range: tuple[float, float]

    @classmethod
    def of(cls, data):
        """Return the rows of Interactions."""
        rank = np.empty(data.n_users, dtype=np.int64)
        rank[np.argsort(data.user_ids.values, kind="stable")] = np.arange(data.n_users)
        users = rank[data.users].astype(np.int32)
        columns = users, data.items, data.values, data.weights
        _, users, items, values, weights = grouped(users, data.n_users, *columns)
        mean = float(np.average(values, weights=weights))
        scale = float(np.sqrt(np.average((values - mean) ** 2, weights=weights)))
        # Below this a deviation is rounding.
        scale = scale if scale > 1e-12 * max(1.0, abs(mean)) else 1.0
        extremes = float(values.min()), float(values.max())
        sizes = data.n_users, data.n_items
        return cls(users, items, values, weights, *sizes, rank, mean, scale, extremes)

    def take(self, which):
        """Return some of the rows, in the order given; all else stays."""
        columns = "users", "items", "values", "weights"
        return self._replace(**{name: getattr(self, name)[which] for name in columns})

    @property
    def indptr(self):
        """Return where each user's ratings begin, while rows are by user."""
        counts = np.bincount(self.users, minlength=self.n_users)
        return np.concatenate([[0], np.cumsum(counts)])

    @property
    def n_ratings(self):
        """Return each item's number of ratings, by relative weight."""
        return np.bincount(self.items, self.weights / self.weights.mean(), self.n_items)

    def targets(self, center):
        """Return (rating - center) / scale, of DTYPE."""
        return ((self.values - center) / self.scale).astype(DTYPE)

    def relative_weights(self):
        """Return weights divided by their mean: the learning rate is that of a mean row."""
        return (self.weights / self.weights.mean()).astype(DTYPE)

    def decays(self, reg, shrinkage, learning_rate, user_shrinkage=None):
        """Return each user's and item's strength of decay per rating: reg + shrinkage / its weight.

        Over a user's ratings this sums to the gradient of ``(reg n_u + shrinkage) |p_u|^2 / 2``.
        `user_shrinkage`, (n_users,), replaces it for users. No step takes a parameter past 0.
        """
        x = learning_rate * float(self.weights.max() / self.weights.mean())
        most = (1 + 2 * x) / x
        strengths = []
        for codes, n, least in (
            (self.users, self.n_users, shrinkage if user_shrinkage is None else user_shrinkage),
            (self.items, self.n_items, shrinkage),
        ):
            total_weight = np.bincount(codes, self.weights, minlength=n)
            share = np.divide(least, total_weight, out=np.zeros(n), where=total_weight > 0)
            strengths.append(np.minimum(reg + share, most).astype(DTYPE))
        return strengths


def hold_out(rows, fraction, key):
    """Return training and held-out rows, which depend on the data and the key alone, or raise."""
    mask = key.uniform("held-out row", np.arange(len(rows.values))) < fraction
    if not mask.any() or mask.all():
        raise ValueError(
            f"early_stopping has no rows for training and validation among {len(rows.values)}; "
            "change validation_fraction or use early_stopping=False."
        )
    return rows.take(~mask), rows.take(mask)


def vectors(n, n_factors, std, generator):
    """Return normal vectors of DTYPE."""
    return (std * generator.normal(size=(n, n_factors))).astype(DTYPE)


def item_vectors(rows, n_factors, std, generator):
    """Return `vectors` for the items that have rows, and 0 for others, which nothing moves."""
    rated = np.flatnonzero(np.bincount(rows.items, minlength=rows.n_items))
    drawn = vectors(len(rated), n_factors, std, generator)
    everything = np.zeros((rows.n_items, drawn.shape[1]), dtype=DTYPE)
    everything[rated] = drawn
    return everything


def shuffled(rows, key):
    """Return the rows in random order within random groups of 64 users."""
    # Neighbours have different users and can be computed at once, and a group's vectors stay in the
    # processor's nearest cache.
    generator = key.generator("order of ratings")
    order = generator.permutation(len(rows.values))
    group = generator.permutation(rows.n_users) // 64
    return rows.take(order[np.argsort(narrowed(group)[rows.users[order]], kind="stable")])


def narrowed(codes):
    """Return the codes in as few bits as they need, to sort them."""
    # NumPy sorts 16-bit integers by radix, an order of magnitude faster than longer ones.
    return codes.astype(np.uint16) if len(codes) and codes.max() < 2**16 else codes


def grouped(codes, n_groups, *arrays):
    """Return where the rows of each code begin, (n_groups + 1,), and arrays in this order."""
    # Calls, between which an interrupt arrives, unlike between brackets.
    order = np.argsort(narrowed(codes), kind="stable")
    counts = np.bincount(codes, minlength=n_groups)
    return np.concatenate([[0], np.cumsum(counts)]), *(array.take(order) for array in arrays)


def implicit_sums(indptr, items, Y):
    """Return |R_u|^-1/2 sum_{j in R_u} y_j of each user; 0 for a user without ratings."""
    n_rated = np.diff(indptr)
    ones = np.ones(len(items), Y.dtype)
    sums = sparse.csr_array((ones, items, indptr), shape=(len(n_rated), len(Y))) @ Y
    return (sums / np.sqrt(np.maximum(n_rated, 1))[:, None]).astype(Y.dtype)


def ridge_by_user(data, residuals, design, prior):
    """Return theta of each user, minimal sum_k w_k (residual_k - theta . design_k)^2 + prior."""
    # Which is ``theta' diag(prior(the user's total weight)) theta``.
    theta = []
    for first, last in zip(data.indptr[:-1], data.indptr[1:], strict=True):
        weights, rows = data.weights[first:last], design[data.items[first:last]]
        gram = (rows.T * weights) @ rows + np.diag(prior(weights.sum()))
        right = rows.T @ (weights * residuals[first:last])
        # The least-norm solution where nothing is regularised and ratings are few.
        theta.append(np.linalg.lstsq(gram, right, rcond=None)[0])
    return np.array(theta)
