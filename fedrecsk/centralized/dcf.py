"""DCF: matrix factorisation with binary codes (Zhang et al., SIGIR 2016)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.utils import check_random_state

from fedrecsk._utils.docs import documented
from fedrecsk._utils.fixed_point import FRACTION_BITS, fixed
from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.sklearn_compat import Interval, StrOptions, get_threadpool_controller
from fedrecsk.base import RatingMixin, Recommender
from fedrecsk.base._hamming import HammingSearch, n_words, pack_codes, random_codes, unpack_codes
from fedrecsk.centralized._sgd import Rows, narrowed
from fedrecsk.data._checks import hint
from fedrecsk.data._rating_scale import check_ratings, check_scale, scale_of
from fedrecsk.protocol.keys import Key

if TYPE_CHECKING:
    from typing import Self

    from numpy.random import RandomState
    from numpy.typing import NDArray

dcf_kernels: LazyModule = LazyModule("fedrecsk.centralized._dcf_kernels")

# Sweeps of the real-valued start.
N_RELAXED = 10


@documented
@dataclass(eq=False, repr=False)
class DCF(HammingSearch, RatingMixin, Recommender):
    """Discrete collaborative filtering: binary codes of users and items, fitted to ratings.

    Users have codes b_u and items codes d_i of `n_bits` signs. The similarity
    ``1/2 + b_u.d_i / (2 n_bits)`` in [0, 1] is one less the Hamming distance divided by `n_bits`,
    and is fitted to ratings by least squares. Items are ranked by XOR and popcount, and 64 bits
    take 1/32 of the space of 64 float32.

    Parameters
    ----------
    n_bits : int, default=64
        Number of bits of a code (r). Codes are stored in words of 64 bits.
    n_epochs : int, default=15
        Largest number of iterations; they end when no bit changes.
    balance_user : float, default=2e-5
        Weight of balance and decorrelation of the users' bits (alpha), in units in which a
        rating's error counts in bits. See Notes.
    balance_item : float, default=1e-4
        Likewise of the items' bits (beta).
    init : {"relaxed", "random"}, default="relaxed"
        First codes. "relaxed": the signs of real-valued vectors, after 10 sweeps on the same
        objective with a penalty. "random": random signs.
    reg : float, default=0.1
        Weight of the penalty on the vectors of the relaxed start, per rating, where ratings are
        scaled to [-1, 1].
    n_sweeps : int or None, default=5
        Most sweeps over the bits of a code per iteration; fewer if nothing changes. None: until
        nothing changes.
    rating_scale : tuple (low, high) or None, default=None
        Ratings of similarity 0 and 1. None: the range of y.
    random_state : int, RandomState instance or None, default=None
        Seed of the start.
    {items}

    Attributes
    ----------
    user_codes_ : ndarray of shape (n_users, n_words), dtype uint64
        Packed as by :func:`fedrecsk.federated.pack_codes`; n_words is ceil(n_bits / 64).
    item_codes_ : ndarray of shape (n_items, n_words), dtype uint64
        Likewise.
    user_factors_, item_factors_ : ndarray of shape (n_users, n_bits_) and (n_items, n_bits_)
        The same unpacked (computed on access): +1 and -1, dtype int8.
    n_bits_ : int
        Number of bits of a code.
    n_epochs_ : int
        Iterations done.
    mean_rating_ : float
        Weighted mean of y, which is predicted for unknown users and items.
    rating_scale_ : tuple of float
        The ratings of similarity 0 and 1.
    loss_curve_ : list of float
        Weighted mean squared error on the training rows after each iteration, in squared ratings.
    {ids}

    Raises
    ------
    ValueError
        By fit: if `rating_scale` is not (low, high) with low < high or a rating lies outside, or
        if weights are so large that exact sums might not fit into 64 bits.

    See Also
    --------
    DDL : The same with item features.
    LightFR : Binary codes, federated.

    Notes
    -----
    Centralised: all rows are in one place, and `clients` is checked and otherwise ignored.

    Minimises, over signs B and D::

        sum w_ui (s_ui - b_u.d_i)^2 - 2 alpha tr(B'X) - 2 beta tr(D'Y)

    where s_ui is the rating scaled to [-n_bits, n_bits], and X and Y are the nearest matrices to B
    and D whose columns have mean 0 and are orthogonal (balance and decorrelation of bits).

    *Algorithm*::

        1  vectors P, Q of the relaxed problem, B = sign(P), D = sign(Q)  kernel relax
        each iteration
          2  X: the nearest balanced, decorrelated matrix to B            delegate
          3  users' codes, bit by bit until nothing changes               kernel descend
          4  Y: the nearest balanced, decorrelated matrix to D            delegate
          5  items' codes, bit by bit                                     kernel descend

    Sums are taken in integers: w, w s, alpha X and beta Y are rounded to multiples of 2^-20. A bit
    whose update is exactly 0 stays as it is.

    An item of `items` without ratings keeps its random code, with a similarity of about 1/2.
    `fold_in` computes codes of new users without balance, starting from the signs of their
    rating-weighted sum of item codes.

    For rankings, add unrated items as rows with y = 0 (docs/methods/ddl.md): codes that are fitted
    to ratings alone do not learn which items users choose.

    References
    ----------
    .. [1] H. Zhang, F. Shen, W. Liu, X. He, H. Luan and T.-S. Chua, "Discrete Collaborative
       Filtering", SIGIR 2016, equations 5, 9, 11 and 13 to 17, algorithm 1.

    Examples
    --------
    >>> from fedrecsk import DCF
    >>> from fedrecsk.datasets import make_ratings
    >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> model = DCF(n_bits=32, random_state=0).fit(X, y)
    >>> model.item_codes_.nbytes, model.item_factors_.shape
    (320, (40, 32))
    >>> items, ratings = model.recommend(X[:2, 0], n_recommendations=3)
    >>> items.shape
    (2, 3)
    """

    n_bits: int = 64
    _: KW_ONLY
    n_epochs: int = 15
    balance_user: float = 2e-5
    balance_item: float = 1e-4
    init: Literal["relaxed", "random"] = "relaxed"
    reg: float = 0.1
    n_sweeps: int | None = 5
    rating_scale: tuple[float, float] | None = None
    random_state: int | RandomState | None = None

    _parameter_constraints: ClassVar[dict] = Recommender._parameter_constraints | {
        "n_bits": [Interval(Integral, 1, None, closed="left")],
        "n_epochs": [Interval(Integral, 1, None, closed="left")],
        "balance_user": [Interval(Real, 0, None, closed="left")],
        "balance_item": [Interval(Real, 0, None, closed="left")],
        "init": [StrOptions({"relaxed", "random"})],
        "reg": [Interval(Real, 0, None, closed="left")],
        "n_sweeps": [Interval(Integral, 1, None, closed="left"), None],
        "rating_scale": [tuple, list, None],
        "random_state": ["random_state"],
    }

    # ------------------------------------------------------------------------------ fit

    def _fit(self, data, report):
        rows = Rows.of(data)
        scale = scale_of(self.rating_scale, rows.range)
        self._check_rows(data, scale)
        key = Key(int(check_random_state(self.random_state).randint(2**31 - 1)))
        problem = Problem.of(rows, scale, self.n_bits)
        with get_threadpool_controller().limit(limits=1, user_api="blas"):
            state = self._start(problem, key)
            self._begin_content(data, problem, state, key)
            for t in range(self.n_epochs):
                close = report.step("iteration")
                changed = self._iterate(problem, state, key.at(t))
                if close(lambda: self._finished(problem, state)) or not changed:
                    break
        return self._finished(problem, state)

    def _start(self, problem, key):
        """First codes of users and items."""
        codes = [
            random_codes(key, f"{side} codes", np.arange(n), 1, self.n_bits)[:, 0]
            for side, n in (("user", problem.n_users), ("item", problem.n_items))
        ]
        if self.init == "relaxed":
            P, Q = self._relaxed(problem, key)
            codes = [pack_codes(P), np.where(problem.rated[:, None], pack_codes(Q), codes[1])]
        return State(*codes)

    def _relaxed(self, problem, key):
        """Real-valued vectors of users and items (equation 17)."""
        P = key.generator("user vectors").standard_normal((problem.n_users, self.n_bits))
        Q = key.generator("item vectors").standard_normal((problem.n_items, self.n_bits))
        ridge, rated = self.reg * self.n_bits, problem.rated
        for t in range(N_RELAXED):
            sweep = key.at(t)
            X = self.balance_user * delegate(P, sweep.generator("relaxed users"))
            relax(problem.users, Q, X, ridge, P)
            Y = np.zeros(Q.shape)
            Y[rated] = self.balance_item * delegate(Q[rated], sweep.generator("relaxed items"))
            relax(problem.items, P, Y, ridge, Q)
        return P, Q

    def _iterate(self, problem, state, key):
        """Iterate once, changing `state`; return the number of bits that changed."""
        r, rated = self.n_bits, problem.rated
        X = delegate(unpack_codes(state.users, r), key.generator("users"))
        linear = fixed(self.balance_user * X)
        _, user_bits = descend(problem.users, state.items, linear, self.n_sweeps, state.users)
        linear = np.zeros((problem.n_items, r), dtype=np.int64)
        Y = delegate(unpack_codes(state.items[rated], r), key.generator("items"))
        linear[rated] = fixed(self.balance_item * Y)
        linear += self._content_pull(problem, state)
        loss, item_bits = descend(problem.items, state.users, linear, self.n_sweeps, state.items)
        state.loss_curve.append(loss * problem.per_error)
        return user_bits + item_bits + self._learn_content(problem, state, key)

    # What DDL adds: codes are also drawn towards what the items' features say.

    def _begin_content(self, data, problem, state, key):
        """Get ready before the first iteration."""

    def _content_pull(self, problem, state):
        """Linear term of the items' codes, in fixed point."""
        return 0

    def _learn_content(self, problem, state, key):
        """Move towards the items' codes; the number of reasons to go on."""
        return 0

    def _content_attributes(self, state):
        """Fitted attributes about the features."""
        return {}

    def _finished(self, problem, state):
        """Fitted attributes as if the fit ended here; new arrays."""
        return {
            "user_codes_": state.users[problem.rank_of_user],
            "item_codes_": state.items.copy(),
            "n_bits_": int(self.n_bits),
            "n_epochs_": len(state.loss_curve),
            "rating_scale_": problem.scale,
            "mean_rating_": problem.mean,
            "loss_curve_": list(state.loss_curve),
        } | self._content_attributes(state)

    def _n_tasks(self, data):
        return self.n_epochs

    def _least_bytes(self, data):
        # Signs, vectors or linear terms, in 8 bytes each.
        return 8 * self.n_bits * max(data.n_users, data.n_items)

    def _check_before_fit(self):
        super()._check_before_fit()
        if self.rating_scale is not None:
            check_scale(self.rating_scale)

    def _check_rows(self, data, scale):
        """Raise for ratings off their scale, and for weights too large for exact sums."""
        check_ratings(data.values, scale)
        total_weight = max(
            np.bincount(codes, data.weights).max() for codes in (data.items, data.users)
        )
        linear = self._largest_pull(max(data.n_users, data.n_items))
        if 2.0**FRACTION_BITS * (4 * self.n_bits * total_weight + linear) >= 2**62:
            raise ValueError(
                "The exact sums of the updates may not fit into 64-bit integers with these weights "
                f"and parameters. {hint(self, data)} Fewer n_bits help too."
            )

    def _largest_pull(self, n_rows):
        """Bound on what draws at a bit apart from ratings."""
        return max(self.balance_user, self.balance_item) * np.sqrt(n_rows)

    # -------------------------------------------------------------------------- predict

    @property
    def user_factors_(self) -> NDArray[np.int8]:
        """Users' codes unpacked, shape (n_users, n_bits): +1 and -1."""
        return unpack_codes(self.user_codes_, self.n_bits_)

    @property
    def item_factors_(self) -> NDArray[np.int8]:
        """Items' codes unpacked, shape (n_items, n_bits): +1 and -1."""
        return unpack_codes(self.item_codes_, self.n_bits_)

    @property
    def _user_planes(self):
        return self.user_codes_[:, None]

    @property
    def _unknown_similarity(self):
        low, high = self.rating_scale_
        return (self.mean_rating_ - low) / (high - low) if high > low else 0.5

    def _new_user_attributes(self, data):
        check_ratings(data.values, self.rating_scale_)
        rows = Rows.of(data)
        # With the fitted model's length of codes, whatever has been set since.
        problem = Problem.of(rows, self.rating_scale_, self.n_bits_)
        side = problem.users
        items = unpack_codes(self.item_codes_, self.n_bits_).astype(np.int64)
        shape = problem.n_users, len(items)
        sums = sparse.csr_array((fixed(side.pulls), side.others, side.indptr), shape=shape) @ items
        codes = pack_codes(sums >= 0)
        linear = np.zeros((problem.n_users, self.n_bits_), dtype=np.int64)
        descend(side, self.item_codes_, linear, None, codes)
        return {"user_codes_": codes[rows.rank_of_user]}


class Problem(NamedTuple):
    """The data of a fit.

    Attributes
    ----------
    users, items : Side
        Weights and targets in float64; targets in bits, from -n_bits to n_bits.
    rated : ndarray of shape (n_items,), dtype bool
        Items with ratings.
    rank_of_user : ndarray of shape (n_users,)
        Place of the user with each code, in the order of ids.
    scale : tuple of float
    mean : float
        Mean rating.
    per_error : float
        Squared ratings per unit of the kernel's loss.
    """

    users: NamedTuple
    items: NamedTuple
    rated: np.ndarray
    rank_of_user: np.ndarray
    scale: tuple[float, float]
    mean: float
    per_error: float

    @property
    def n_users(self) -> int:
        return len(self.users.indptr) - 1

    @property
    def n_items(self) -> int:
        return len(self.items.indptr) - 1

    @classmethod
    def of(cls, rows: Rows, scale: tuple[float, float], n_bits: int) -> Self:
        """Return the problem of `rows` (Rows)."""
        Side = dcf_kernels.Side
        low, high = scale
        span = high - low if high > low else 1.0
        targets = n_bits * (2 * (rows.values - low) / span - 1)
        by_item = np.argsort(narrowed(rows.items), kind="stable")
        counts = np.bincount(rows.items, minlength=rows.n_items)
        pulls = rows.weights * targets
        return cls(
            Side(rows.indptr, rows.items, rows.weights, pulls),
            Side(
                np.concatenate([[0], np.cumsum(counts)]),
                *(a.take(by_item) for a in (rows.users, rows.weights, pulls)),
            ),
            counts > 0,
            rows.rank_of_user,
            (low, high),
            rows.mean,
            (span / (2 * n_bits)) ** 2 / 2.0**FRACTION_BITS / rows.weights.sum(),
        )


class State:
    """Codes of the moment, packed, and the losses of the iterations so far."""

    def __init__(self, users: np.ndarray, items: np.ndarray) -> None:
        self.users: np.ndarray = users
        self.items: np.ndarray = items
        self.loss_curve: list[float] = []


def delegate(B: np.ndarray, generator: np.random.Generator) -> NDArray[np.float64]:
    """Return the matrix nearest to B whose columns have mean 0, norm sqrt(n), and are orthogonal.

    Directions that the centred columns of B do not span are filled with random ones, as far as
    there are enough rows; otherwise they are 0 (equations 13 to 16).

    Parameters
    ----------
    B : ndarray of shape (n, r)
    generator : numpy Generator

    Returns
    -------
    X : ndarray of shape (n, r)
    """
    centred = B - B.mean(axis=0, dtype=np.float64)
    n, r = centred.shape
    values, right = np.linalg.eigh(centred.T @ centred)
    spans = values > 1e-10 * max(n, values.max(initial=0))
    left = np.zeros((n, r))
    left[:, spans] = centred @ right[:, spans] / np.sqrt(values[spans])
    found = int(spans.sum())
    missing = min(r, n - 1) - found
    if missing > 0:
        more = generator.standard_normal((n, missing))
        for _ in range(2):
            # Twice, because once leaves rounding errors.
            more -= more.mean(axis=0)
            more -= left @ (left.T @ more)
        left[:, np.flatnonzero(~spans)[:missing]] = np.linalg.qr(more)[0]
    return np.sqrt(n) * left @ right.T


def descend(
    side: Any,
    others: np.ndarray,
    linear: np.ndarray,
    n_sweeps: int | None,
    codes: np.ndarray,
) -> tuple[float, int]:
    """Kernel `descend` on all rows; squared errors and the number of bits that changed."""
    exact = side._replace(weights=fixed(side.weights), pulls=fixed(side.pulls))
    n_bits, most = linear.shape[1], int(np.diff(side.indptr).max(initial=1))
    scratch = dcf_kernels.Scratch(
        np.empty(most, dtype=np.int64),
        np.empty((n_words(n_bits), most), dtype=np.uint64),
        np.empty(n_bits, dtype=np.int64),
    )
    loss = np.zeros(2)
    dcf_kernels.descend(exact, others, linear, codes, n_sweeps or 0, scratch, loss)
    return float(loss[0]), int(loss[1])


def relax(
    side: Any, others: np.ndarray, linear: np.ndarray, ridge: float, vectors: np.ndarray
) -> None:
    """Kernel `relax` on all rows."""
    most = int(np.diff(side.indptr).max(initial=1))
    scratch = dcf_kernels.Scratch(
        np.empty(most), np.empty((linear.shape[1], most)), np.empty(0, dtype=np.int64)
    )
    dcf_kernels.relax(side, others, linear, float(ridge), vectors, scratch)
