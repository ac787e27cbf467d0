"""LightFR: federated recommendation with binary codes (Zhang et al., TOIS 2023, algorithm 1)."""

from __future__ import annotations

import copy
import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from fedrecsk._utils.constraints import Above0To1, AtLeast1
from fedrecsk._utils.docs import documented
from fedrecsk._utils.integers import FRACTION_BITS
from fedrecsk.base import RankingMixin
from fedrecsk.base._item_prior import ItemContent
from fedrecsk.data._checks import hint
from fedrecsk.data.interactions import id_columns
from fedrecsk.federated import _lightfr_new_items
from fedrecsk.federated._lightfr import LightFRAlgorithm, LightFRParameters, vectors_of
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.models._codes import pack_codes, unpack_codes
from fedrecsk.protocol.messages import Message

__all__ = ["LightFR"]


@documented
@dataclass(eq=False, repr=False)
class LightFR(LightFRParameters, ItemContent, RankingMixin, FederatedRecommender):
    """Federated recommendation with binary codes, fitted and searched in Hamming space.

    Every item is a code of `n_bits` signs; the server sends and the device stores nothing else of
    it. A user vector stays on the device. Its entries are odd integers of `user_bits` bits, so that
    items are ranked by XOR and popcount; with one bit it is the paper's code.

    The similarity ``s_ui = 1/2 + b_u . d_i / (2 f (2^user_bits - 1))`` in [0, 1] is fitted to a
    target for each pair of user and item, by least squares. In each round, every client of the
    cohort optimises its users' vectors entry by entry with the items fixed, and uploads the
    gradient in the items; the server updates the items' bits. Sums are taken in integers and
    are exact, so the model does not depend on the number of threads or the order of clients.

    Parameters
    ----------
    n_bits : int, default=64
        Number of bits of an item's code (f). Codes are stored in words of 64 bits.
    n_rounds : int, default=50
        Number of rounds in total (T).
    aggregation : {"full", "gradient", "parameter"}, default="full"
        What clients upload, and how the server updates the items. "full": every pair without a
        row is a negative of weight 1, which takes an n_bits x n_bits matrix from each client. The
        server descends a quadratic model of the loss, bit by bit, until nothing changes. The
        other two are the paper's, with sampled negatives: with "gradient" the new code is the sign
        of the summed gradients, with "parameter" the sign of the clients' votes on the items
        that they visit.
    user_bits : int in [1, 16], default=4
        Number of bits of each entry of a user's vector; the paper uses 1.
    targets : {"implicit", "ratings"}, default="implicit"
        "implicit": rows with y > 0 are positives, others are left out. "ratings": rows
        have y scaled to [0, 1], and `predict` gives ratings.
    alpha : float or "auto", default="auto"
        Extra weight of a row of weight 1, on top of the weight 1 of every pair; only with "full".
        "auto": the power of two that is nearest to ``sqrt(n_items / n)`` for a user with n rows,
        from 1 to 64: 4 for a user with a sixteenth of the items.
    n_negatives : int, default=4
        Number of negatives per row, redrawn in each round from the items without a row of the
        user. No effect with "full".
    reg_user : float, default=1000.0
        Weight of the squared distance between a user's vector and a mean vector, in pairs of
        weight 1. With "full" it is the mean vector of the last cohort of at least ten users, so
        that users with few rows are recommended popular items: those with n < 12 rows have the
        weight 12000 / n if that is more. With the other aggregations it is zero.
    balance_user, balance_item : float, default=0.0
        Weights (lambda) of the terms that balance the codes of users and items: as many
        +1 as -1 within a code.
    upload : {"visited", "all"}, default="visited"
        "visited": each client sends the rows of its visited items with their indices. "all": it
        sends the whole matrix, so that a secure sum hides the visited items.
    rating_scale : tuple (low, high) or None, default=None
        The ends of the rating scale for ``targets="ratings"``. If None, the range of y.
    {item_features}
        Items of `add_items` are given the signs of codes predicted from features. Items of the
        catalogue without ratings are trained as items without positives.
    {shared parameters}

    Attributes
    ----------
    user_codes_ : ndarray of shape (n_users, user_bits, n_words), dtype uint64
        Packed; plane p of a vector has the weight 2^p. Private to the client.
    item_codes_ : ndarray of shape (n_items, n_words), dtype uint64
        Packed as by :func:`fedrecsk.federated.pack_codes`; n_words is ceil(n_bits / 64).
    user_factors_, item_factors_ : ndarray of shape (n_users, n_bits) and (n_items, n_bits)
        The same unpacked (computed on access): odd integers, and +1 and -1.
    rating_scale_ : tuple of float
        The ratings of similarity 0 and 1.
    {shared attributes}

    Raises
    ------
    ValueError
        By fit: if no row is positive; if ratings are all equal without a `rating_scale`, or
        outside of it; if exact sums might not fit into 64 bits; if the federation has
        `local_dp` or `compression`.

    Notes
    -----
    *Algorithm*::

        each round
          1  server sends the packed codes of all items           broadcast
          2  clients unpack them                                  decode
          3  ... draw negatives                                   update_clients: visit
          4  ... move their users' vectors entry by entry         update_clients: fit_user
          5  ... upload gradients of visited items, and a a'      update_clients: add_gradients
          6  ... or vote on the items' bits                       update_clients: add_votes
          7  server moves bits by the loss's quadratic model      kernel step_by_curvature
          8  ... or by the sign of its total                      kernel step_by_sign
        in the end
          9  clients fit their users to the final codes           personalize

    *What is sent.* Down, each round: the packed codes of all items, and with "full" the mean
    vector, ``4 n_bits`` bytes. Up, with "full": for each of the client's rated items its index,
    n_bits integers (int64) and the sum of its weights; an n_bits x n_bits matrix, n_bits integers
    and the number of users. With "gradient": n_bits integers and the index of each visited item,
    negatives included. With "parameter": n_bits bits and the index. There is no set-up.

    *What it reveals.* In plaintext, one upload of one client gives its code and all its ratings,
    up to mirroring both (:func:`fedrecsk.audit.measure_leak`), and its row indices which items it
    has visited. Secure sums of integers with ``upload="all"`` hide single clients, but for items
    that one client holds: their sums are its own. With ``alpha="auto"`` they show its number of
    rows within a factor of four, which is why `alpha` is then a power of two.

    *Losses.* The training loss is the weighted mean squared error of similarities over the pairs
    of a round's clients, after their step. Early stopping measures the same on held-out rows and
    a share of the items without a row (with "ratings", the squared error of ratings).

    *The paper's literal method* is ``LightFR(aggregation="gradient", user_bits=1,
    targets="ratings", n_negatives=0, reg_user=0, balance_user=0.5, balance_item=0.5)`` with
    ``N_SWEEPS = 1`` and ``SERVER_DECAY = 1``.

    *Fixed point.* Weights and targets are rounded to multiples of 2^-20. An unknown user or item
    has similarity 1/2.

    References
    ----------
    .. [1] H. Zhang, F. Luo, J. Wu, X. He and Y. Li, "LightFR: Lightweight Federated
       Recommendation with Privacy-preserving Matrix Factorization", ACM Transactions on
       Information Systems, 2023, sections 3.2 and 3.3, equations 4 to 21, algorithm 1.

    Examples
    --------
    >>> from fedrecsk import LightFR
    >>> from fedrecsk.datasets import make_ratings
    >>> X, _ = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> model = LightFR(n_rounds=5, random_state=0).fit(X)
    >>> items, scores = model.recommend(X[:2, 0], n_recommendations=3)
    >>> items.shape
    (2, 3)
    >>> model.item_codes_.nbytes, model.item_factors_.shape
    (320, (40, 64))
    """

    _: KW_ONLY
    n_rounds: AtLeast1 = 50
    client_fraction: Above0To1 = 0.6

    _kind = LightFRAlgorithm
    # False is the paper's ablation.
    _trains_items = True
    _moves_users = True
    # What `fit` sets.
    user_codes_: ClassVar[np.ndarray]
    item_codes_: ClassVar[np.ndarray]
    n_bits_: ClassVar[int]

    # ------------------------------------------------------------------------------ checks

    @property
    def _sees_ratings(self):
        return self.targets == "ratings"

    def _require_y(self, y):
        if y is None and self.targets == "ratings":
            raise ValueError('targets="ratings" needs y; pass the rating of each row.')

    def _check_before_fit(self):
        if self.aggregation == "parameter" and self.upload == "all":
            raise ValueError(
                'upload="all" hides the visited items among sums, but a vote on an item is +1 or '
                '-1, never 0; use upload="visited" with aggregation="parameter".'
            )
        super()._check_before_fit()

    def _check_setting(self, plan, data, blocks):
        if self.targets == "implicit" and not (data.values > 0).any():
            raise ValueError(
                "No row of X has y > 0, so there are no positives. Pass y=None to count every "
                'row, shift y so that positives are above 0, or use targets="ratings".'
            )
        algorithm = plan.algorithm
        self._check_rows(data, algorithm.scale((data.values.min(), data.values.max())))
        scheme = plan.federation.secure_aggregation
        if scheme is None:
            return
        n_clients = plan.sampling.cohort_size(data.n_clients)
        n_users = np.diff(data.client_indptr).max()
        weight = 1 + algorithm.largest_alpha + self.n_negatives
        weight = n_users * (data.weights.max() * weight + 1)
        largest = 2.0**FRACTION_BITS * 2 * algorithm.max_dot * algorithm.max_entry * weight
        if largest > scheme.max_integer(n_clients):
            raise ValueError(
                f"LightFR's integers may be as large as {largest:.3g}, but {scheme} holds "
                f"{scheme.max_integer(n_clients):.3g} in a sum over {n_clients} clients; use "
                f"SecAggPlus(max_abs={math.ceil(largest / 2**17)}), CKKS(8192, (60, 60, 60)), or "
                "Paillier(fraction_bits=0)."
            )

    def _limits(self, is_fit):
        return super()._limits(is_fit) if self.targets == "ratings" else None

    def _check_rows(self, data, scale):
        """Raise for ratings that are all equal, and for weights too large for exact sums."""
        if self.targets == "ratings" and scale[0] == scale[1]:
            raise ValueError(
                f'All ratings are {scale[0]:g}, which is no scale for targets="ratings"; pass '
                'rating_scale=(low, high), for example (1, 5), or use targets="implicit".'
            )
        if self._largest_sum(data) >= 2**62:
            raise ValueError(
                "The exact sums of LightFR may not fit into 64-bit integers with these weights and "
                f"parameters. {hint(self, data)} Fewer n_bits, user_bits or n_negatives help too."
            )

    def _largest_sum(self, data):
        """Return a bound on every integer that occurs, as a float."""
        algorithm = self._algorithm()
        max_dot, max_entry = algorithm.max_dot, algorithm.max_entry
        if self.aggregation == "full":
            own = data.weights * (algorithm.largest_alpha + 1)
            weight = max(np.bincount(data.items, own).max(), np.bincount(data.users, own).max())
            weight += (1 + own.max()) * (data.n_users + data.n_items)
        elif self.aggregation == "parameter":
            # What adds up over clients are signs.
            weight = np.bincount(data.clients, data.weights).max() * (1 + self.n_negatives)
        else:
            weight = data.weights.sum() * (1 + self.n_negatives) * self.SERVER_DECAY
        balance = self.balance_user + self.balance_item
        balance *= max(data.n_users, data.n_items, max_dot) * max_dot
        weight = weight + max(self.reg_user, self.SPARSE_REG) + balance
        return 2.0**FRACTION_BITS * 4 * max_dot * max_entry * weight

    # ---------------------------------------------------------------- new users, new items

    def _new_user_attributes(self, data):
        if data.n_users:
            self._check_rows(data, self.rating_scale_)
        # Section 3.3.3: new users' codes are not balanced.
        model = copy.copy(self)
        model.balance_user = 0.0
        return super(LightFR, model)._new_user_attributes(data)

    def _with_items(self, rows):
        signs = self._new_rows(self.item_factors_.astype(float), rows)
        return self._with_codes(np.concatenate([self.item_codes_, pack_codes(signs)]))

    def _with_codes(self, codes):
        """Return the attributes that change with the items' codes."""
        field = replace(self._final_message["item_codes"], values=codes.copy())
        message = Message(**self._final_message | {"item_codes": field})
        return {"item_codes_": codes, "_final_message": message}

    def fold_in_items(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        n_rounds: int = 20,
    ) -> Self:
        """Add items that were not in fit, without retraining (the paper's section 3.3.3).

        This takes a few rounds with all users, whose codes stay fixed: those that have rows of a
        new item upload what they would in fit, and the server sets only the bits of the new
        items, without a balance term. These rounds are not in `communication_`.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`. Rows of users unknown to the model are left out.
        n_rounds : int, default=20
            Largest number of rounds; they end when no bit changes.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If an item is already known, no row has a user that the model knows, y is required but
            missing or outside the scale, or weights are too large for exact sums.
        """
        check_is_fitted(self)
        self._require_y(y)
        X, y = self._checked(X, y)
        items = id_columns(X)[1]
        known = self._items.codes(items) >= 0
        if known.any():
            raise ValueError(
                f"Item {items[known.argmax()]!s} is already known; fold_in_items adds new items "
                "only. Drop its rows, or refit with them."
            )
        new = self._encoded(X, y, None, sample_weight, item_ids=None)
        users = self._users.codes(new.user_ids.values)[new.users]
        rows = np.flatnonzero(users >= 0)
        if not len(rows):
            raise ValueError(
                "No row of X has a user that the model knows and a weight above 0, so there is no "
                "data to learn the items from; fold_in their users first."
            )
        self._check_rows(new, self.rating_scale_)
        kept, items = np.unique(new.items[rows], return_inverse=True)
        ids = self._items.followed_by(new.item_ids.values[kept])
        given = users[rows], self.n_items_ + items, new.values[rows], new.weights[rows]
        block = _lightfr_new_items.joined(self, *given, len(ids))
        codes = _lightfr_new_items.fitted_codes(self, block, n_rounds)
        self._take_items(ids, self._with_codes(codes) | {"_seen": (block.indptr, block.items)})
        return self

    # ---------------------------------------------------------------------- predictions

    @property
    def user_factors_(self) -> NDArray[np.int64]:
        """Users' vectors unpacked, shape (n_users, n_bits): odd integers, +-1 for one bit."""
        return vectors_of(self.user_codes_, self.n_bits_)

    @property
    def item_factors_(self) -> NDArray[np.int8]:
        """Items' codes unpacked, shape (n_items, n_bits): +1 and -1."""
        return unpack_codes(self.item_codes_, self.n_bits_)

    def size_report(self) -> dict[str, float]:
        """Return the bytes kept and sent, and those of float32 numbers of the same lengths.

        Returns
        -------
        report : dict
            ``item_codes`` and ``user_code`` (on one device), ``download`` (one client, one
            round), ``upload`` (mean over clients and rounds), and ``item_factors_float32``,
            ``user_factors_float32``, ``download_float32``: as many float32 as there are bits in
            a code.
        """
        check_is_fitted(self)
        entries = [e for e in self.communication_.entries if e["phase"] == "round"]
        n_uploads = sum(entry["participants"] for entry in entries)
        return {
            "item_codes": self.item_codes_.nbytes,
            "user_code": self.user_codes_[0].nbytes,
            "download": entries[0]["bytes_down"] / max(entries[0]["messages_down"], 1),
            "upload": sum(entry["bytes_up"] for entry in entries) / max(n_uploads, 1),
            "item_factors_float32": self.n_items_ * self.n_bits_ * 4,
            "user_factors_float32": self.n_bits_ * 4,
            "download_float32": self.n_items_ * self.n_bits_ * 4,
        }
