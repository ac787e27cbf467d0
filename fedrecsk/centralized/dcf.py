"""DCF: matrix factorisation with binary codes (Zhang et al., SIGIR 2016)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import check_random_state

from fedrecsk._utils.constraints import AtLeast1, NotNegative, RatingRange, Seed
from fedrecsk._utils.docs import documented
from fedrecsk._utils.integers import FRACTION_BITS, fixed
from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.sklearn_compat import get_threadpool_controller
from fedrecsk.base import RatingMixin, Recommender
from fedrecsk.centralized._sgd import Rows
from fedrecsk.data._checks import hint, scale_of
from fedrecsk.models._codes import BinaryCodes, pack_codes, random_codes, unpack_codes
from fedrecsk.protocol.keys import Key

dcf_kernels: LazyModule = LazyModule("fedrecsk.centralized._dcf_kernels")

# Sweeps of the real-valued start.
N_RELAXED = 10


@documented
@dataclass(eq=False, repr=False)
class DCF(RatingMixin, Recommender):
    """Discrete collaborative filtering: binary codes of users and items, fitted to ratings.

    Users have codes b_u and items codes d_i of `n_bits` signs. The similarity
    ``1/2 + b_u.d_i / (2 n_bits)`` in [0, 1] is one less the Hamming distance divided by `n_bits`,
    and is fitted to ratings by least squares. Items are ranked by XOR and popcount, and 64 bits
    take 1/32 of the space of 64 float32.

    Parameters
    ----------
    {n_bits}
    n_epochs : int, default=15
        Largest number of iterations; they end when no bit changes.
    {codes parameters}
    random_state : int, RandomState instance or None, default=None
        Seed of the start.
    {items}

    Attributes
    ----------
    {codes attributes}
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

    n_bits: AtLeast1 = 64
    _: KW_ONLY
    n_epochs: AtLeast1 = 15
    balance_user: NotNegative = 2e-5
    balance_item: NotNegative = 1e-4
    init: Literal["relaxed", "random"] = "relaxed"
    reg: NotNegative = 0.1
    n_sweeps: AtLeast1 | None = 5
    rating_scale: RatingRange = None
    random_state: Seed = None

    # ------------------------------------------------------------------------------ fit

    def _fit(self, data, report):
        rows = Rows.of(data)
        scale = scale_of(self.rating_scale, rows.range)
        self._check_rows(data)
        key = Key(int(check_random_state(self.random_state).randint(2**31 - 1)))
        problem = dcf_kernels.Problem.of(rows, scale, self.n_bits)
        with get_threadpool_controller().limit(limits=1, user_api="blas"):
            state = self._start(problem, key)
            for t in range(self.n_epochs):
                close = report.step("iteration")
                changed = self._iterate(problem, state, key.at(t))
                if close(lambda: self._finished(problem, state)) or not changed:
                    break
        return self._finished(problem, state)

    def _start(self, problem, key):
        """Return the first signs of users and items, and the losses of the iterations so far."""
        rows, rated, r = problem.rows, problem.rated, self.n_bits
        users, items = (
            unpack_codes(random_codes(key, f"{side} codes", np.arange(n), 1, r)[:, 0], r)
            for side, n in (("user", rows.n_users), ("item", rows.n_items))
        )
        if self.init == "relaxed":
            P, Q = self._relaxed(problem, key)
            users, items[rated] = signs_of(P), signs_of(Q[rated])
        return {"users": users, "items": items, "loss_curve": []}

    def _relaxed(self, problem, key):
        """Return real-valued vectors of users and items (equation 17)."""
        rows, rated, ridge = problem.rows, problem.rated, float(self.reg * self.n_bits)
        P = key.generator("user vectors").standard_normal((rows.n_users, self.n_bits))
        Q = key.generator("item vectors").standard_normal((rows.n_items, self.n_bits))
        delegate, Y = dcf_kernels.delegate, np.zeros(Q.shape)
        for t in range(N_RELAXED):
            sweep = key.at(t)
            X = self.balance_user * delegate(P, sweep.generator("relaxed users"))
            dcf_kernels.relax(problem.users, Q, X, ridge, P)
            Y[rated] = self.balance_item * delegate(Q[rated], sweep.generator("relaxed items"))
            dcf_kernels.relax(problem.items, P, Y, ridge, Q)
        return P, Q

    def _iterate(self, problem, state, key, content=0):
        """Iterate once, with a linear term of items' codes; return how many bits have changed."""
        users, items, rated = state["users"], state["items"], problem.rated
        delegate, descend = dcf_kernels.delegate, dcf_kernels.descend
        exact = dcf_kernels.exact
        linear = fixed(self.balance_user * delegate(users, key.generator("users")))
        n_sweeps = self.n_sweeps or 0
        _, user_bits = descend(exact(problem.users), items, linear, users, n_sweeps)
        linear = np.zeros(items.shape, dtype=np.int64)
        linear[rated] = fixed(self.balance_item * delegate(items[rated], key.generator("items")))
        loss, item_bits = descend(exact(problem.items), users, linear + content, items, n_sweeps)
        state["loss_curve"].append(loss * problem.per_error)
        return user_bits + item_bits

    def _finished(self, problem, state):
        """Return fitted attributes as if the fit ended here; new arrays."""
        return {
            "user_codes_": pack_codes(state["users"][problem.rows.rank_of_user]),
            "item_codes_": pack_codes(state["items"]),
            "n_bits_": int(self.n_bits),
            "n_epochs_": len(state["loss_curve"]),
            "rating_scale_": problem.scale,
            "mean_rating_": problem.rows.mean,
            "loss_curve_": list(state["loss_curve"]),
        }

    def _n_tasks(self, data):
        return self.n_epochs

    def _least_bytes(self, data):
        # Signs, vectors or linear terms, in 8 bytes each.
        return 8 * self.n_bits * max(data.n_users, data.n_items)

    def _check_rows(self, data):
        """Raise for weights too large for exact sums."""
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

    def _model(self):
        low, high = self.rating_scale_
        unknown = (self.mean_rating_ - low) / (high - low) if high > low else 0.5
        return BinaryCodes.of(vars(self), self.user_codes_[:, None], unknown_similarity=unknown)

    def _new_user_attributes(self, data):
        rows = Rows.of(data)
        # With the fitted model's length of codes, whatever has been set since.
        problem = dcf_kernels.Problem.of(rows, self.rating_scale_, self.n_bits_)
        side = dcf_kernels.exact(problem.users)
        items = unpack_codes(self.item_codes_, self.n_bits_)
        shape = rows.n_users, len(items)
        sums = sparse.csr_array((side.values, side.others, side.indptr), shape=shape) @ items
        signs, linear = np.where(sums >= 0, 1, -1).astype(np.int8), np.zeros_like(sums)
        dcf_kernels.descend(side, items, linear, signs, 0)
        return {"user_codes_": pack_codes(signs[rows.rank_of_user])}


def signs_of(numbers: NDArray[np.floating]) -> NDArray[np.int8]:
    """Return 1 where a number is above 0, and -1 elsewhere."""
    return np.where(numbers > 0, 1, -1).astype(np.int8)
