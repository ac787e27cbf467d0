"""The `implicit` library, imported when a model is fitted, with this package's interface."""

from __future__ import annotations

import contextlib
import functools
import importlib
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral
from typing import Any, ClassVar, Literal

import numpy as np
from scipy import sparse
from scipy.special import expit
from sklearn.utils import check_random_state

from fedrecsk._utils.constraints import AtLeast1, Jobs, NotNegative, Positive, Seed
from fedrecsk._utils.docs import documented
from fedrecsk._utils.sklearn_compat import get_threadpool_controller
from fedrecsk._utils.threads import n_threads
from fedrecsk.base import RankingMixin, Recommender, check_likes, fitted_copy
from fedrecsk.base._fading import FadingHistory, fading
from fedrecsk.base._item_prior import ItemContent
from fedrecsk.base._item_weights import liked
from fedrecsk.data._checks import hint
from fedrecsk.models import Factors
from fedrecsk.models._model import linear_scores
from fedrecsk.portable import Ridge

PAIRS_PER_STEP = 16


@dataclass(eq=False, repr=False)
class ImplicitRecommender(RankingMixin, Recommender):
    """Base class of the adapters: fit, and the scores of unknown users."""

    n_factors: AtLeast1 = 64
    _: KW_ONLY
    reg: NotNegative = 0.01
    n_epochs: AtLeast1 = 15
    n_jobs: Jobs = None
    random_state: Seed = None

    # Module and class of the library, parameters handed on beside those above, and the columns of
    # its users' and items' factors that hold biases.
    _library: ClassVar[tuple[str, str]]
    _handed_on: ClassVar[tuple[str, ...]] = ()
    _bias_columns: ClassVar[dict[str, int]] = {}

    @abstractmethod
    def _newcomers(self, likes) -> dict[str, Any]:
        """Return the per-user attributes of the rows of `likes`, with the items as they are."""

    def _library_class(self) -> type:
        module, name = self._library
        return getattr(importlib.import_module(f"implicit.cpu.{module}"), name)

    def _library_model(self, seed, **options):
        """Return the library's model, not fitted."""
        options |= {name: getattr(self, name) for name in self._handed_on}
        return self._library_class()(
            factors=self.n_factors,
            regularization=float(self.reg),
            iterations=self.n_epochs,
            num_threads=n_threads(self.n_jobs),
            random_state=seed,
            **options,
        )

    def _n_tasks(self, data):
        return self.n_epochs

    def _least_bytes(self, data):
        return 4 * self.n_factors * (data.n_users + data.n_items)

    def _fit(self, data, report):
        # The library's draws go by row, so rows are in the order of ids, whatever the clients.
        order = np.argsort(data.user_ids.values, kind="stable")
        likes = _likes(data)[order]
        # Also its draws by item, so these are the items with rows and not the whole catalogue.
        items = np.flatnonzero(np.bincount(data.items, minlength=data.n_items))
        check_likes(data)
        seed = self.random_state
        if not isinstance(seed, Integral):
            seed = check_random_state(seed).randint(2**31 - 1)
        n_done, close = 0, report.step("iteration")

        def attributes():
            fitted = self._attributes(model, likes, items)
            for name in [name for name in fitted if name.startswith("user_")]:
                fitted[name] = fitted[name][np.argsort(order)]
            return fitted | {"n_epochs_": n_done, "_seed": int(seed)}

        def after_iteration(*_):
            nonlocal n_done, close
            n_done += 1
            self._check_finite(model, n_done, data)
            if close(attributes):
                raise _Stop
            if n_done < self.n_epochs:
                close = report.step("iteration")

        blas = get_threadpool_controller().limit(limits=1, user_api="blas")
        with blas, contextlib.suppress(_Stop):
            model = self._library_model(int(seed))
            some = likes[:, items] if len(items) < data.n_items else likes
            model.fit(some, show_progress=False, callback=after_iteration)
        return attributes()

    def _attributes(self, model, likes, items):
        """Return the fitted attributes of the library's model; copies."""
        n_likes, d = np.bincount(likes.indices, minlength=likes.shape[1]), self.n_factors
        everything = np.zeros((likes.shape[1], model.item_factors.shape[1]), np.float32)
        everything[items] = model.item_factors
        tables = {"user": model.user_factors, "item": everything}
        fitted = {f"{side}_factors_": table[:, :d].copy() for side, table in tables.items()}
        for side, column in self._bias_columns.items():
            fitted[f"{side}_bias_"] = tables[side][:, column].copy()
        if "item_bias_" in fitted:
            fitted["item_bias_"][n_likes == 0] = fitted["item_bias_"][n_likes > 0].min()
        likers = np.diff(likes.indptr) > 0
        mean = {
            name: rows[likers].mean(axis=0, dtype=float)
            for name, rows in fitted.items()
            if name.startswith("user_")
        }
        for name, value in mean.items():
            fitted[name][~likers] = value
        return fitted | {"_mean_user": mean, "_popularity": n_likes / likes.nnz}

    def _new_user_attributes(self, data):
        likes = self._histories(data)
        with get_threadpool_controller().limit(limits=1, user_api="blas"):
            users = self._newcomers(likes)
        for name, rows in users.items():
            rows[np.diff(likes.indptr) == 0] = self._mean_user[name]
        return users

    def _histories(self, data):
        """Return the likes that users' own vectors are computed from."""
        return _likes(data)

    def _check_finite(self, model, n_done, data):
        if not (np.isfinite(model.user_factors).all() and np.isfinite(model.item_factors).all()):
            raise ValueError(
                f"{type(self).__name__} diverged: its factors are infinite or NaN after iteration "
                f"{n_done}. {hint(self, data)}"
            )

    def _model(self):
        mean, items = self._mean_user, self.item_factors_
        bias = mean.get("user_bias_", 0.0)
        return MeanUser.of(vars(self), unknown=lambda: items @ mean["user_factors_"], bias=bias)


@dataclass(frozen=True, eq=False, kw_only=True)
class MeanUser(Factors):
    """Vectors and biases; unknown users have the mean user's, even for unknown items."""

    bias: float

    def _with_unknown(self, scores, users, items=None):
        scores[users < 0] += self.bias
        return super()._with_unknown(scores, users, items)


@documented
@dataclass(eq=False, repr=False)
class ImplicitALS(ItemContent, FadingHistory, ImplicitRecommender):
    """Alternating least squares on implicit feedback, by the `implicit` library.

    Minimises over user vectors p_u and item vectors q_i::

        sum over ALL u, i of c_ui (t_ui - p_u . q_i)^2
          + reg (sum_u |p_u|^2 + sum_i |q_i|^2)

    where t_ui = 1 and c_ui = alpha * weight * y if user u has a row with item i and y > 0,
    and t_ui = 0, c_ui = 1 otherwise. At the end each item gets the bias b_i that minimises the same
    sum with ``p_u . q_i + b_i`` as the score, so that users with few rows are ranked by popularity.

    Parameters
    ----------
    {implicit n_factors}
    reg : float, default=10.0
        Weight of the squared norms (lambda). As a baseline, search it from 1 to 100 together
        with `alpha`. implicit's own default, 0.01, is too small for most data: the model then
        ranks worse than :class:`Popularity` if users have few rows.
    alpha : float, default=1.0
        Confidence of a row with y = 1 and weight 1. The paper's is 1 + its own alpha; with 1,
        liked items count no more than others.
    reg_exponent : float, default=0.0
        Exponent with which penalties grow with frequency (nu): `reg` is multiplied by ``(mean_i
        c_ui)^nu`` for a user and by ``(mean_u c_ui)^nu`` for an item, means over all items with a
        row and over all users. implicit itself uses 0. See Notes.
    n_epochs : int, default=15
        Number of sweeps over users, then items (`iterations` in implicit).
    item_bias : bool, default=True
        Whether to add item biases after the last sweep. If False, scores are those of implicit.
    solver : {"cg", "cholesky"}, default="cg"
        Three steps of conjugate gradients from the last sweep's vectors (`use_cg=True` in
        implicit), or the exact and slower solution.
    n_jobs : int or None, default=None
        Threads; None means 1, -1 all (`num_threads` in implicit). The fitted model does not
        depend on it.
    {implicit random_state}
    {timestamps}
    {history_half_life}
    {item_features}
    {items}

    Attributes
    ----------
    {float factors}
    item_bias_ : ndarray of shape (n_items,), dtype float32
        b_i; absent without `item_bias`.
    {implicit attributes}

    Raises
    ------
    ValueError
        By fit: if no y is positive, if the factors become infinite or NaN, or if the exact
        solver meets a singular system (then raise `reg`).

    See Also
    --------
    ImplicitBPR : Ranks a user's items above others.
    ImplicitLMF : Models the probability that a user likes an item.

    Notes
    -----
    Centralised: all rows are in one place, and `clients` is checked and otherwise ignored.

    Rows with y <= 0 count as if they were absent, except that `recommend` leaves out their
    items too. An item without y > 0, in X or only in `items`, has the zero vector and scores 0,
    the target of items that are not liked. So does an unknown item. A user without y > 0, known
    or not, has the mean of the other users' vectors.

    `fold_in` solves for a new user's p_u exactly. For a user who was in fit this is not quite
    the fitted vector, because items are solved for after users in the last sweep.

    With ``alpha = 1 + 1 / alpha0`` and ``reg = lambda alpha0^(nu - 1) (n_items n_users)^(nu / 2)``
    the objective is that of [3]_, up to a constant and to the lengths of p_u and q_i, of
    which only the products matter. The library knows one penalty only, so others cost
    n_factors more entries of the sparse matrix for each user and item.

    References
    ----------
    .. [1] Y. Hu, Y. Koren, C. Volinsky, "Collaborative filtering for implicit feedback
       datasets", ICDM 2008.
    .. [2] G. Takacs, I. Pilaszy, D. Tikk, "Applications of the conjugate gradient method for
       implicit feedback collaborative filtering", RecSys 2011 (``solver="cg"``).
    .. [3] S. Rendle, W. Krichene, L. Zhang, Y. Koren, "Revisiting the performance of iALS on item
       recommendation benchmarks", RecSys 2022 (`reg_exponent`).

    Examples
    --------
    >>> from fedrecsk import ImplicitALS
    >>> X = [["ann", "alien"], ["ann", "aliens"], ["bob", "alien"], ["bob", "aliens"],
    ...      ["bob", "predator"], ["cat", "emma"], ["cat", "persuasion"]]
    >>> model = ImplicitALS(n_factors=2, alpha=5, reg=1, random_state=0).fit(X)
    >>> model.recommend(["ann"], 1)[0].tolist()
    [['predator']]
    >>> model.recommend(["dan"], 1, interactions=[["dan", "emma"]])[0].tolist()
    [['persuasion']]
    """

    _: KW_ONLY
    reg: NotNegative = 10.0
    reg_exponent: NotNegative = 0.0
    alpha: Positive = 1.0
    item_bias: bool = True
    solver: Literal["cg", "cholesky"] = "cg"

    _library = "als", "AlternatingLeastSquares"

    def _fit(self, data, report):
        attributes = super()._fit(data, report)
        if not self._fades or data.times is None:
            return attributes
        # Items are learned from whole histories, and users from what has not faded.
        fitted = fitted_copy(self, report.static | attributes)
        return attributes | fitted._new_user_attributes(data)

    def _least_bytes(self, data):
        # With an index of 4 bytes for each.
        return super()._least_bytes(data) * (3 if self.reg_exponent else 1)

    def _library_class(self):
        library, exponent = super()._library_class(), self.reg_exponent
        if not exponent:
            return library

        class Scaled(library):
            @property
            def solver(self):
                return functools.partial(_solve_scaled, super().solver, exponent)

        return Scaled

    def _library_model(self, seed, **options):
        options |= {"alpha": float(self.alpha), "use_cg": self.solver == "cg"}
        return super()._library_model(seed, **options)

    def _attributes(self, model, likes, items):
        attributes = super()._attributes(model, likes, items)
        if self.item_bias:
            bias = self._biases(attributes["user_factors_"], attributes["item_factors_"], likes)
            attributes["item_bias_"] = bias.astype(np.float32)
        n_likes = np.bincount(likes.indices, minlength=likes.shape[1])
        return self._with_content(attributes, n_likes, shrunk=False)

    def _biases(self, users, items, likes):
        """Return each item's mean of target less score, over the users who like something."""
        n_likes = np.diff(likes.indptr)
        likers, pairs = np.flatnonzero(n_likes), np.repeat(np.arange(len(users)), n_likes)
        liked, extra = likes.indices.astype(np.int64), self.alpha * likes.data.astype(float) - 1
        # By a kernel, because the vectors of all pairs take gigabytes.
        none = np.zeros(len(users)), np.zeros(len(items), dtype=np.float32)
        scores = linear_scores(pairs, liked, 0.0, *none, users, items)
        errors = (1 + extra) - extra * scores
        total = np.bincount(liked, errors, minlength=len(items))
        total -= items @ users[likers].sum(axis=0, dtype=float)
        total_weight = len(likers) + np.bincount(liked, extra, minlength=len(items))
        # With tiny weights, rounding may leave nothing of an item that everybody likes.
        return total / np.maximum(total_weight, 1e-9)

    def _model(self):
        return replace(super()._model(), make_rule=self._equations)

    def _equations(self):
        """Return the rule by which a user's vector is found."""
        items = self.item_factors_.astype(float)
        return Ridge.of(
            self.item_factors_,
            items.T @ items,
            reg=float(self.reg),
            reg_exponent=float(self.reg_exponent),
            n_items=self._n_liked,
            offset=getattr(self, "item_bias_", np.zeros(len(items), np.float32)),
            rates=False,
            confidence=float(self.alpha),
            shift=1.0,
            counts_values=True,
        )

    def _kept_rows(self, user):
        # A user's last step comes before the items' last one, so its vector does not solve for it.
        return None

    def _histories(self, data):
        likes = _likes(data)
        likes.data *= fading(liked(data), self.history_half_life)
        return likes

    @property
    def _n_liked(self):
        return int(np.count_nonzero(self._popularity))

    def _newcomers(self, likes):
        if self.reg_exponent:
            exact = importlib.import_module("implicit.cpu._als").least_squares
            users = np.zeros((likes.shape[0], self.item_factors_.shape[1]), np.float32)
            problem = (self.alpha * likes).tocsr(), users, self.item_factors_, float(self.reg)
            threads = {"num_threads": n_threads(self.n_jobs), "n_columns": self._n_liked}
            _solve_scaled(exact, self.reg_exponent, *problem, **threads)
            return {"user_factors_": users}
        model = self._library_model(self._seed)
        # The library takes no array of a file that is mapped into memory, which is read-only.
        model.item_factors = np.require(self.item_factors_, requirements="W")
        model.factors = self.item_factors_.shape[1]
        return {"user_factors_": model.recalculate_user(np.arange(likes.shape[0]), likes)}


def _solve_scaled(solver, exponent, C, X, Y, reg, num_threads, n_columns=None):
    """Solve for X as the library does, with penalties ``reg (mean confidence)^exponent``.

    A row's own penalty is its confidence in disliking d more columns, whose vectors are those of
    the identity. The library adds their squares to Y'Y, and multiplies those by confidence - 1.
    """
    d, n_likes = X.shape[1], np.diff(C.indptr)
    extra = np.ravel(C.sum(axis=1)) - n_likes
    confidence = 1 + extra / (n_columns or len(Y))
    regs = np.where(n_likes > 0, reg * confidence**exponent, 0.0)
    own = sparse.csr_matrix(np.repeat(-regs[:, None], d, axis=1).astype(np.float32))
    Y = np.vstack([Y, np.eye(d, dtype=Y.dtype)])
    solver(sparse.hstack([C, own], "csr"), X, Y, 0.0, num_threads=num_threads)


@documented
@dataclass(eq=False, repr=False)
class ImplicitBPR(ImplicitRecommender):
    """Bayesian personalised ranking, by the `implicit` library.

    Maximises over user vectors p_u, item vectors q_i and item biases b_i the mean, over
    pairs of a positive item i of user u and another item j, of::

        ln sigmoid(s_ui - s_uj),    s_ui = p_u . q_i + b_i

    less ``reg / 2`` times the squares of the parameters, by stochastic gradient
    steps. An item is drawn as j in proportion to its number of positives.

    Parameters
    ----------
    {implicit n_factors}
    learning_rate : float, default=0.01
        Step size (alpha).
    reg : float, default=0.01
        Weight of the penalty in each step (lambda).
    n_epochs : int, default=100
        Number of epochs, each of as many steps as there are rows with y > 0 (`iterations` in
        implicit).
    verify_negative_samples : bool, default=True
        Whether to skip a step if j is a positive of user u, too.
    n_jobs : int or None, default=None
        Threads; None means 1, -1 all (`num_threads` in implicit). With more than one the
        steps of different threads race, and fits differ even with the same `random_state`.
    {implicit random_state}
    {items}

    Attributes
    ----------
    {float factors}
    item_bias_ : ndarray of shape (n_items,), dtype float32
        b_i.
    {implicit attributes}

    Raises
    ------
    {implicit errors}

    See Also
    --------
    ImplicitALS : Least squares; no learning rate, and usually the better ranking.

    Notes
    -----
    Centralised: all rows are in one place, and `clients` is checked and otherwise ignored.

    {likes of biased models}

    Only whether y > 0 matters: the library draws all such rows alike, so larger y and
    `sample_weight` (unless it is 0) change nothing. An unknown item scores 0.

    `fold_in` takes as many steps as fit for a user with as many items, with the items
    fixed, j drawn by the popularity in fit, and 16 pairs per step instead of one. The result
    depends only on the user's own rows and `random_state`.

    References
    ----------
    .. [1] S. Rendle, C. Freudenthaler, Z. Gantner, L. Schmidt-Thieme, "BPR: Bayesian
       personalized ranking from implicit feedback", UAI 2009.

    Examples
    --------
    >>> from fedrecsk import ImplicitBPR
    >>> X = [["ann", "alien"], ["ann", "aliens"], ["bob", "alien"], ["bob", "aliens"],
    ...      ["bob", "predator"], ["cat", "emma"], ["cat", "persuasion"]]
    >>> model = ImplicitBPR(n_factors=2, learning_rate=0.1, random_state=0).fit(X)
    >>> model.recommend(["ann"], 1)[0].tolist()
    [['predator']]
    >>> model.recommend(["dan"], 1, interactions=[["dan", "emma"]])[0].tolist()
    [['persuasion']]
    """

    _: KW_ONLY
    learning_rate: Positive = 0.01
    n_epochs: AtLeast1 = 100
    verify_negative_samples: bool = True

    _library = "bpr", "BayesianPersonalizedRanking"
    _handed_on = "learning_rate", "verify_negative_samples"
    # Beside it, users have 1.
    _bias_columns: ClassVar[dict[str, int]] = {"item": -1}

    def _newcomers(self, likes):
        factors = [self._newcomer(items) for items, _ in _rows(likes)]
        return {"user_factors_": np.array(factors, dtype=np.float32)}

    def _newcomer(self, items):
        user = np.zeros(self.item_factors_.shape[1])
        rng = np.random.default_rng(self._seed)
        n_pairs = len(items) * self.n_epochs_
        liked = rng.choice(items, n_pairs)
        other = rng.choice(len(self._popularity), n_pairs, p=self._popularity)
        if self.verify_negative_samples:
            kept = ~np.isin(other, items)
            liked, other = liked[kept], other[kept]
        shrinkage = max(0.0, 1 - self.learning_rate * self.reg)
        for start in range(0, len(liked), PAIRS_PER_STEP):
            i, j = (which[start : start + PAIRS_PER_STEP] for which in (liked, other))
            apart = self.item_factors_[i] - self.item_factors_[j]
            lead = apart @ user + self.item_bias_[i] - self.item_bias_[j]
            user *= shrinkage ** len(i)
            user += self.learning_rate * (expit(-lead) @ apart)
        return user


@documented
@dataclass(eq=False, repr=False)
class ImplicitLMF(ImplicitRecommender):
    """Logistic matrix factorisation, by the `implicit` library.

    User u likes item i with probability sigmoid(s_ui), s_ui = p_u . q_i + b_u + b_i.
    Maximises the log-likelihood::

        sum over liked (u, i) of c_ui ln sigmoid(s_ui)
          + sum over sampled (u, j) of ln(1 - sigmoid(s_uj))

    with c_ui = weight * y, less ``reg / 2`` times the squares of the parameters,
    by AdaGrad on all users, then all items. In a user's step item j is sampled as often as
    users like it, and in an item's step user u as often as u likes items.

    Parameters
    ----------
    {implicit n_factors}
    learning_rate : float, default=1.0
        AdaGrad's step size (gamma).
    reg : float, default=0.6
        Weight of the penalty (lambda).
    n_epochs : int, default=30
        Steps of users, then of items (`iterations` in implicit).
    neg_prop : int, default=30
        Number of sampled items per liked one, but implicit 0.7 never samples more than
        ``n_factors + 2`` in a step, however many are liked.
    n_jobs : int or None, default=None
        Threads; None means 1, -1 all (`num_threads` in implicit). Every thread samples on its
        own, so the same `random_state` gives the same model for the same `n_jobs` only.
    {implicit random_state}
    {items}

    Attributes
    ----------
    {float factors}
    user_bias_, item_bias_ : ndarray of shape (n_users,) and (n_items,), dtype float32
        b_u and b_i, in log-odds.
    {implicit attributes}

    Raises
    ------
    {implicit errors}

    See Also
    --------
    ImplicitALS : Least squares; no learning rate, and usually the better ranking.

    Notes
    -----
    Centralised: all rows are in one place, and `clients` is checked and otherwise ignored.

    {likes of biased models}

    `predict` gives s_ui, in log-odds, as the library does. An unknown item adds nothing to the
    user's bias.

    `fold_in` takes the user's half of fit's steps with the items held fixed, and the sampled
    sum replaced by its expectation; nothing in it is random.

    References
    ----------
    .. [1] C. C. Johnson, "Logistic matrix factorization for implicit feedback data", NIPS 2014
       workshop on distributed machine learning and matrix computations.

    Examples
    --------
    >>> from fedrecsk import ImplicitLMF
    >>> X = [["ann", "alien"], ["ann", "aliens"], ["bob", "alien"], ["bob", "aliens"],
    ...      ["bob", "predator"], ["cat", "emma"], ["cat", "persuasion"]]
    >>> model = ImplicitLMF(n_factors=2, n_epochs=200, random_state=0).fit(X)
    >>> model.recommend(["ann"], 1)[0].tolist()
    [['predator']]
    >>> model.recommend(["dan"], 1, interactions=[["dan", "emma"]])[0].tolist()
    [['persuasion']]
    """

    n_factors: AtLeast1 = 30
    _: KW_ONLY
    learning_rate: Positive = 1.0
    reg: NotNegative = 0.6
    n_epochs: AtLeast1 = 30
    neg_prop: AtLeast1 = 30

    _library = "lmf", "LogisticMatrixFactorization"
    _handed_on = "learning_rate", "neg_prop"
    # Beside them, the other side has 1.
    _bias_columns: ClassVar[dict[str, int]] = {"user": -1, "item": -2}

    def _newcomers(self, likes):
        items = np.column_stack([self.item_factors_, np.ones(self.n_items_)])
        users = np.array([self._newcomer(items, *row) for row in _rows(likes)], dtype=np.float32)
        return {"user_factors_": users[:, :-1], "user_bias_": users[:, -1]}

    def _newcomer(self, vectors, items, confidences):
        user, squares = np.zeros((2, vectors.shape[1]))
        n_sampled = min(len(user) + 1, len(items) * self.neg_prop)
        for _ in range(self.n_epochs_):
            likely = expit(vectors @ user + self.item_bias_)
            slopes = -n_sampled * self._popularity * likely
            slopes[items] += confidences * (1 - likely[items])
            gradient = slopes @ vectors - self.reg * user
            squares += gradient**2
            user += self.learning_rate / np.sqrt(1e-6 + squares) * gradient
        return user


class _Stop(Exception):
    """A callback asked the fit to stop."""


def _likes(data):
    """Return the rows with y > 0 as a matrix users x items of weight * y."""
    liked = data.take(data.values > 0)
    confidences = (liked.weights * liked.values).astype(np.float32)
    shape = (data.n_users, data.n_items)
    return sparse.csr_matrix((confidences, liked.items, liked.indptr), shape=shape)


def _rows(matrix):
    """Yield columns and values of each row of a CSR matrix."""
    cuts = matrix.indptr[1:-1]
    return zip(np.split(matrix.indices, cuts), np.split(matrix.data, cuts), strict=True)
