"""LightFR: federated recommendation with binary codes (Zhang et al., TOIS 2023, algorithm 1)."""

from __future__ import annotations

import copy
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fedrecsk import _kernels
from fedrecsk._codes import pack_codes, random_codes, unpack_codes
from fedrecsk._docs import documented
from fedrecsk._fixed_point import FRACTION_BITS, fixed
from fedrecsk._hamming_search import HammingSearch
from fedrecsk._sklearn import Interval, StrOptions
from fedrecsk.attacks._inversion_lightfr import lightfr as invert
from fedrecsk.base import RankingMixin
from fedrecsk.federated._lightfr_checks import check_parameters, check_rows, check_setting
from fedrecsk.federated._lightfr_items import ItemFoldIn
from fedrecsk.federated._lightfr_step import Listing, by_curvature, by_sign
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.simulation.messages import Dense, Derived, Message, Summed, Uploads
from fedrecsk.uploads import Form, Ragged

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

AGGREGATIONS = ("full", "gradient", "parameter")
# Purposes of the keys that negatives are drawn with.
TRAINING_DRAWS, FINAL_DRAWS = "negatives of a user", "negatives in the end"
# The mean vector of fewer users would reveal too much of each to the others.
LEAST_USERS = 10


@documented
@dataclass(eq=False, repr=False)
class LightFR(HammingSearch, ItemFoldIn, RankingMixin, FederatedRecommender):
    """Federated recommendation with binary codes, fitted and searched in Hamming space.

    Every item has a code of `n_bits` signs. Codes are all that the server sends and the device
    stores of the items: 64 bits take 1/32 of the space of 64 float32. A user's vector stays on
    the device. Its entries are odd integers of `user_bits` bits, so that the vector is stored as
    `user_bits` codes and items are ranked by XOR and popcount; with one bit it is the paper's
    code.

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
        "implicit": rows with y > 0 have `positive_target`, others are left out. "ratings": rows
        have y scaled to [0, 1], and `predict` gives ratings.
    positive_target : float in [0, 1], default=0.65
        Target similarity of positives.
    negative_target : float in [0, 1], default=0.5
        Target similarity of negatives.
    alpha : float, default=4.0
        Extra weight of a row of weight 1, on top of the weight 1 of every pair; only with "full".
    n_negatives : int, default=4
        Number of negatives per row, redrawn in each round from the items without a row of the
        user. No effect with "full".
    reg_user, reg_item : float, default=0.0
        Weights of the balance terms (lambda) on users and items.
    balance : {"code", "bits"}, default="code"
        What is balanced: "code", each code has as many +1 as -1, as in the paper's update
        rules; "bits", each bit is +1 for as many users, or items, as it is -1, as in its
        objective.
    shrinkage : float, default=1000.0
        Weight of the squared distance between a user's vector and `prior`, in pairs of weight 1.
    prior : {"crowd", "zero"}, default="crowd"
        What users' vectors are shrunk towards. "crowd": the mean vector of the last cohort
        of at least ten users, so that users with few rows get what is popular. It needs no
        further upload, because ``aggregation="full"`` uploads the sum of the vectors anyway; the
        other aggregations always use zero. "zero": zero.
    sparse_shrinkage : float, default=12000.0
        Towards a mean vector, a user with n rows that count is shrunk by sparse_shrinkage / n if
        that is more than `shrinkage`; with the default, a user with fewer than 12 rows.
    memory : int, default=4
        The server keeps a total of the rounds' sums, of which 1/memory is dropped in each round; 1
        is the paper's server. No effect with "full".
    n_sweeps : int or None, default=3
        Number of sweeps over a user's bits per round, fewer if nothing changes. None: until nothing
        changes. The paper has 1.
    init : "random" or ndarray of shape (n_items, n_bits), default="random"
        First item codes. An array's signs are taken, for example those of a real-valued
        model's factors, with rows in ascending order of the items' ids.
    train_items : bool, default=True
        Whether to train the items at all. False, with `init`, is the paper's ablation.
    upload : {"visited", "all"}, default="visited"
        "visited": each client sends the rows of its visited items with their indices. "all":
        it sends the whole matrix, so that a secure sum hides which items it has visited.
    rating_scale : tuple (low, high) or None, default=None
        The ends of the rating scale for ``targets="ratings"``. None: the range of y.
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
        outside of it; if `init` has another shape; if exact sums might not fit into 64 bits; if
        the federation has `local_dp` or `compression`.

    Notes
    -----
    *Algorithm*::

        each round
          1  server sends the packed codes of all items           _model
          2  clients unpack them                                  _on_receipt
          3  ... draw negatives                                   kernel fit_users: visit
          4  ... move their users' vectors bit by bit             kernel fit_users: fit_user
          5  ... upload gradients of visited items, and a a'      kernel send: add_gradients
          6  ... or vote on the items' bits                       kernel send: add_votes
          7  server moves bits by the loss's quadratic model      kernel step_by_curvature
          8  ... or by the sign of what it remembers              kernel step_by_sign
        in the end
          9  clients fit their users to the final codes           _personalize

    *What is sent.* Down, each round: the packed codes of all items, and with ``prior="crowd"`` the
    mean vector, ``4 n_bits`` bytes. Up, with "full": for
    each of the client's rated items its index, n_bits integers (int64) and the sum of its
    weights; an n_bits x n_bits matrix, n_bits integers and the number of users. With
    "gradient": n_bits integers and the index of each visited item, negatives included. With
    "parameter": n_bits bits and the index. With ``balance="bits"`` and `reg_user`, clients also
    upload the sum of the users' vectors and receive that of the last cohort. There is no set-up.

    *What it reveals.* In plaintext, one upload of one client gives its code and all its
    ratings, up to mirroring both (:func:`fedrecsk.attacks.measure_leak`); with "full" the
    vector can be read from it. Row indices reveal which items were visited. Secure sums of integers
    with ``upload="all"`` hide single clients. With ``prior="crowd"`` each client receives the mean
    vector of the last cohort of at least ten users; smaller ones leave it as it was.

    *Losses.* The training loss is the weighted mean squared error of similarities over the pairs
    of a round's clients, after their step. Early stopping measures the same on held-out rows and
    a share of the items without a row (with "ratings", the squared error of ratings).

    *The paper's literal method* is ``LightFR(aggregation="gradient", user_bits=1,
    targets="ratings", n_negatives=0, memory=1, reg_user=0.5, reg_item=0.5, n_sweeps=1)``.

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

    n_bits: int = 64
    _: KW_ONLY
    n_rounds: int = 50
    aggregation: Literal["full", "gradient", "parameter"] = "full"
    user_bits: int = 4
    targets: Literal["implicit", "ratings"] = "implicit"
    positive_target: float = 0.65
    negative_target: float = 0.5
    alpha: float = 4.0
    n_negatives: int = 4
    reg_user: float = 0.0
    reg_item: float = 0.0
    balance: Literal["code", "bits"] = "code"
    shrinkage: float = 1000.0
    prior: Literal["crowd", "zero"] = "crowd"
    sparse_shrinkage: float = 12000.0
    memory: int = 4
    n_sweeps: int | None = 3
    init: Literal["random"] | NDArray[Any] = "random"
    train_items: bool = True
    upload: Literal["visited", "all"] = "visited"
    rating_scale: tuple[float, float] | None = None
    client_fraction: float = 0.6

    _parameter_constraints: ClassVar[dict] = FederatedRecommender._parameter_constraints | {
        "n_bits": [Interval(Integral, 1, None, closed="left")],
        "aggregation": [StrOptions(set(AGGREGATIONS))],
        "user_bits": [Interval(Integral, 1, 16, closed="both")],
        "targets": [StrOptions({"implicit", "ratings"})],
        "positive_target": [Interval(Real, 0, 1, closed="both")],
        "negative_target": [Interval(Real, 0, 1, closed="both")],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "n_negatives": [Interval(Integral, 0, None, closed="left")],
        "reg_user": [Interval(Real, 0, None, closed="left")],
        "reg_item": [Interval(Real, 0, None, closed="left")],
        "balance": [StrOptions({"code", "bits"})],
        "shrinkage": [Interval(Real, 0, None, closed="left")],
        "sparse_shrinkage": [Interval(Real, 0, None, closed="left")],
        "prior": [StrOptions({"crowd", "zero"})],
        "memory": [Interval(Integral, 1, None, closed="left")],
        "n_sweeps": [Interval(Integral, 1, None, closed="left"), None],
        "init": [StrOptions({"random"}), np.ndarray],
        "train_items": ["boolean"],
        "upload": [StrOptions({"visited", "all"})],
        "rating_scale": [tuple, list, None],
    }

    _single_uploads = True
    _inversion = staticmethod(invert)

    # ------------------------------------------------------------------- the server begins

    def _init_server(self, catalogue, key):
        if isinstance(self.init, str):
            codes = random_codes(key, "item codes", np.arange(catalogue.n_items), 1, self.n_bits)
            codes = codes[:, 0]
        else:
            codes = pack_codes(self.init)
        server = {
            "item_codes": codes,
            "rating_scale": self._scale(catalogue.rating_range),
            "crowd": np.zeros(self.n_bits, dtype=np.int64),
        }
        if self._leans:
            server["mean_user"] = np.zeros(self.n_bits, dtype=np.float32)
        if self.aggregation != "full":
            server["memory"] = np.zeros((catalogue.n_items, self.n_bits), dtype=np.int64)
        return server

    def _announce(self, server):
        if self.targets == "implicit":
            return Message()
        return Message(scale=Dense(np.array(server["rating_scale"])))

    # ---------------------------------------------------------------------- each round

    def _model(self, server):
        fields = {"item_codes": Dense(server["item_codes"], dtype="uint64", learned=True)}
        if self._crowded:
            fields["crowd"] = Dense(server["crowd"], dtype="int64")
        if self._leans:
            fields["mean_user"] = Dense(server["mean_user"])
        return Message(**fields)

    def _on_receipt(self, message, key):
        signs = unpack_codes(message["item_codes"].values, self.n_bits)
        products = np.zeros((0, 0), dtype=np.int64)
        if self.aggregation == "full":
            # In float64 the sums are exact, and BLAS does them.
            real = signs.astype(np.float64)
            products = (real.T @ real).astype(np.int64)
        return Message(
            **message,
            item_signs=Derived(signs),
            item_sums=Derived(signs.sum(axis=0, dtype=np.int64)),
            item_products=Derived(products),
        )

    def _init_clients(self, block, message, key):
        key = key.private.at(-1)
        codes = random_codes(key, "user codes", block.users, self.user_bits, self.n_bits)
        return self._targets(block, message) | {"codes": codes}

    def _upload_forms(self, n_items):
        f, full = self.n_bits, self.aggregation == "full"
        rows = "all" if self.upload == "all" else "chosen"
        if not self.train_items:
            return {}
        if self.aggregation == "parameter":
            forms = {"votes": Form((n_items, f), rows="chosen", bits=True)}
        else:
            # The last column has the sums of the weights.
            forms = {"rows": Form((n_items, f + full), rows=rows, dtype="int64")}
        if full:
            forms["gram"] = Form((f, f), dtype="int64")
            forms["n_users"] = Form((1,), dtype="uint32", learned=False)
        if full or self._crowded:
            forms["total"] = Form((f,), dtype="int64")
        return forms

    def _client_update(self, block, state, message, turn, key):
        uploads, loss = self._step(block, state, message, turn, key, sends=self.train_items)
        return state, uploads, loss

    def _aggregate(self, server, message, upload, key):
        if upload is None:
            return server
        server = server | {"item_codes": server["item_codes"].copy()}
        sums = {name: np.ascontiguousarray(total.sum) for name, total in upload.items()}
        if self._crowded:
            server["crowd"] = sums["total"]
        if self._leans and sums["n_users"][0] >= LEAST_USERS:
            server["mean_user"] = (sums["total"] / sums["n_users"][0]).astype(np.float32)
        codes, rule = server["item_codes"], self._server_rule()
        if self.aggregation == "full":
            by_curvature(codes, self.n_bits, sums, rule)
            return server
        old = server["memory"]
        sent = sums["votes" if self.aggregation == "parameter" else "rows"]
        server["memory"] = old - old // self.memory + sent
        by_sign(codes, self.n_bits, server["memory"], rule)
        return server

    def _item_vectors(self, message):
        return message["item_signs"].values

    def _upload_moving(self, view, rows, moves):
        # Only signs move: the pulls decide if they exceed all others, and votes have one size.
        signs = np.sign(view.item_vectors[rows] + moves)
        if self.aggregation == "parameter":
            return {"votes": signs}
        if self.aggregation == "gradient":
            pulls = self.memory * np.abs(view.mean("rows")).max(initial=0)
            return {"rows": view.n_senders / view.n_own * pulls * signs}
        # Twice what all pairs together can pull, if everybody held the items.
        base, base_pull = self._base
        pulls = 2 * (1 + self.alpha) * base * np.abs(view.mean("gram")).sum(axis=1)
        pulls = pulls + np.abs(base_pull * view.mean("total"))
        pulls = view.n_senders / view.n_own * pulls * signs
        # The last column has weights, of which there are none.
        return {"rows": np.column_stack([pulls, np.zeros(len(rows))])}

    # ------------------------------------------------------------------------- the end

    def _personalize(self, block, state, message, turn, key):
        state = dict(state or self._init_clients(block, message, key))
        state["codes"] = state["codes"].copy()
        # Not those of a round: held-out rows are measured with negatives of their own.
        self._step(block, state, message, turn, key, sends=False, draws=FINAL_DRAWS)
        return state

    def _server_attributes(self, message):
        return {
            "item_codes_": message["item_codes"].values,
            "rating_scale_": self._scale_of(message),
            "n_bits_": self.n_bits,
        }

    def _user_attributes(self, block, state):
        return {"user_codes_": state["codes"]}

    def _private_vectors(self, state):
        return _vectors(state["codes"], self.n_bits)

    # ------------------------------------------------------------------- its single lines

    @property
    def _limit(self):
        """The largest entry of a user's vector."""
        return 2**self.user_bits - 1

    @property
    def _top(self):
        """The largest dot product, that of similarity 1."""
        return self.n_bits * self._limit

    @property
    def _crowded(self):
        return self.balance == "bits" and self.reg_user > 0

    @property
    def _leans(self):
        """Whether users' vectors are shrunk towards the mean vector."""
        full = self.aggregation == "full" and self.train_items
        strength = max(self.shrinkage, self.sparse_shrinkage)
        return full and self.prior == "crowd" and strength > 0

    @property
    def _base(self):
        """Weight and pull of every pair of user and item, before its own row adds to them."""
        if self.aggregation != "full":
            return 0, 0
        return 2**FRACTION_BITS, int(self._pulls(1.0, self.negative_target))

    def _pulls(self, weights, targets):
        """Weight times the dot product whose similarity is the target, in fixed point."""
        return fixed(weights * (2 * np.asarray(targets) - 1) * self._top)

    def _fixed_balance(self, reg):
        # The paper's rule times 2 f^2, like everything else.
        return int(fixed(4 * reg * self._top**2))

    def _scale(self, rating_range):
        if self.targets == "implicit":
            return 0.0, 1.0
        low, high = self.rating_scale or rating_range
        return float(low), float(high)

    def _scale_of(self, message):
        return self._scale(None if self.targets == "implicit" else message["scale"].values)

    def _aims(self, data, scale):
        """Which rows count, and their targets."""
        if self.targets == "implicit":
            return data.values > 0, np.full(len(data.values), float(self.positive_target))
        low, high = scale
        return np.ones(len(data.values), dtype=bool), (data.values - low) / (high - low)

    def _targets(self, block, message):
        """What a client's rows pull at the codes, in fixed point."""
        chosen, aims = self._aims(block, self._scale_of(message))
        base, base_pull = self._base
        own = 1 + self.alpha * block.weights if base else block.weights
        return {
            "rows": _kernels.lightfr.Rows(
                block.indptr,
                block.items,
                chosen,
                self._pulls(own, aims) - base_pull,
                fixed(own) - base,
                self._pulls(block.weights, self.negative_target),
            )
        }

    def _client_rule(self, message, moves):
        reg_user = self._fixed_balance(self.reg_user)
        crowd = np.zeros(self.n_bits, dtype=np.int64)
        if self._crowded:
            crowd = reg_user * message["crowd"].values
        mean = np.zeros(self.n_bits)
        if self._leans:
            mean = message["mean_user"].values.astype(np.float64)
        within = self.balance == "code"
        return _kernels.lightfr.Rule(
            self._limit,
            moves,
            self.n_sweeps or 0,
            reg_user if within else 0,
            int(fixed(self.shrinkage)),
            int(fixed(self.sparse_shrinkage)) if mean.any() else 0,
            mean,
            crowd,
            bool(crowd.any()),
            self._fixed_balance(self.reg_item) if within else 0,
        )

    def _server_rule(self):
        # Voters have balanced their codes themselves.
        balances = self.aggregation != "parameter" or self.balance == "bits"
        return _kernels.lightfr.ServerRule(
            *self._base,
            self._fixed_balance(self.reg_item) if balances else 0,
            self.balance == "bits",
        )

    def _negatives(self, users, key, draws):
        """How the kernels draw them: a seed for each of these users, and how many per row."""
        if self.aggregation == "full":
            return None
        seeds = key.private.hashed(draws, users)
        return _kernels.lightfr.Negatives(seeds, self.n_negatives)

    def _step(
        self, block, state, message, turn, key, *, sends=True, moves=True, draws=TRAINING_DRAWS
    ):
        """One update of the clients: what they send (None if nothing), and their loss.

        `draws` is the purpose of the key under which negatives are drawn.
        """
        kernels, full = _kernels.lightfr, self.aggregation == "full"
        codes = message["item_codes"].values
        items = kernels.Items(codes, message["item_sums"].values, *self._base)
        products = message["item_products"].values if full else None
        signs = None if full else message["item_signs"].values
        rule = self._client_rule(message, moves)
        listing = Listing(block, turn.active, 1 if full else 1 + self.n_negatives, self.n_bits)
        visits, scratch = listing.room()
        out = self._out(block, listing, turn, len(visits.items)) if sends else None
        ballots = self._ballots(block, visits) if self.aggregation == "parameter" else None
        delivers = turn.active if turn.separate else turn.delivers
        loss, weight, written = 0.0, 0.0, (0, 0)
        for run, indptr, places, runs in listing.pieces():
            users, clients = listing.users[places], listing.clients[run]
            negatives = self._negatives(block.users[users], key, draws)
            for first, last in runs:
                loss, weight = kernels.fit_users(
                    first,
                    last,
                    loss,
                    weight,
                    users,
                    state["rows"],
                    negatives,
                    items,
                    products,
                    rule,
                    state["codes"],
                    visits,
                    scratch,
                )
            if sends:
                written = kernels.send(
                    clients, indptr, delivers[clients], *written, visits, rule, out, signs, ballots
                )
        loss /= (2.0 * rule.limit * self.n_bits) ** 2
        return self._uploads(block, turn, out) if sends else None, (loss, weight)

    def _out(self, block, listing, turn, n_visits):
        """Where the kernel writes what is sent."""
        f, full, n_items = self.n_bits, self.aggregation == "full", block.n_items
        n_out = len(listing.clients) if turn.separate else 1
        n_own = n_items
        if turn.separate:
            n_own = int(np.minimum(listing.most_rows, n_items).sum())
        return _kernels.lightfr.Upload(
            turn.separate,
            np.zeros(block.n_clients, dtype=np.int64),
            np.empty(n_own, dtype=np.int64),
            np.zeros((n_own, f + full), dtype=np.int64),
            np.zeros((n_out, f, f if full else 0), dtype=np.int64),
            np.zeros((n_out, f), dtype=np.int64),
            np.zeros(-(-n_items // 64), dtype=np.uint64),
            np.empty(n_items, dtype=np.int64),
            *np.empty((2, n_visits), dtype=np.int64),
        )

    def _ballots(self, block, visits):
        return _kernels.lightfr.Ballots(
            np.empty(block.n_items, dtype=np.int64),
            np.empty(len(visits.items), dtype=np.int64),
            np.empty(self.n_bits, dtype=np.int64),
        )

    def _uploads(self, block, turn, out):
        """What is sent of the items visited, and what is sent of the users alone."""
        forms, n_users = self._upload_forms(block.n_items), np.diff(block.client_indptr)
        if turn.separate:
            indptr = np.concatenate([[0], np.cumsum(out.n_rows)])
            n_own = indptr[-1]
            rows = Ragged(indptr, out.rows[:n_own], out.values[:n_own])
            n_users = n_users[turn.active, None]
            fields = {"gram": out.gram, "total": out.total, "n_users": n_users}
            fields = {n: _of_each(fields[n], turn.active) for n in forms.keys() & fields}
        else:
            rows = out.values
            if self.upload == "visited":
                rows = Summed(rows, n_rows=out.n_rows)
            n_users = n_users[turn.active & turn.delivers].sum(keepdims=True)
            fields = {"gram": out.gram[0], "total": out.total[0], "n_users": n_users}
        fields |= {"rows": rows, "votes": rows}
        return Uploads(**{name: fields[name] for name in forms})

    # ------------------------------------------------------------- checks, early stopping

    @property
    def _sees_ratings(self):
        return self.targets == "ratings"

    def _check_before_fit(self):
        check_parameters(self)
        super()._check_before_fit()

    def _check_setting(self, federation, data, blocks):
        check_setting(self, federation, data)

    def _new_user_attributes(self, data):
        check_rows(self, data, self.rating_scale_)
        # Section 3.3.3: new users' codes are not balanced.
        model = copy.copy(self)
        model.reg_user = 0.0
        return super(LightFR, model)._new_user_attributes(data)

    def _as_newcomers(self, block):
        # All begin and draw alike: a user's code must not depend on which others are computed.
        return replace(block, users=np.zeros_like(block.users))

    def _validation_losses(self, held_out):
        """The objective on held-out rows.

        Held-out rows count with their weight; the items without a row of the user are
        negatives, divided among its held-out rows.
        """
        if self.targets == "ratings":
            return super()._validation_losses(held_out)
        chosen, aims = self._aims(held_out, None)
        similarity = self._score_pairs(held_out.users, held_out.items)
        users, n_users, n_items = held_out.users, held_out.n_users, held_out.n_items
        vectors, signs = self.user_factors_.astype(float), self.item_factors_.astype(float)
        goal = (2 * self.negative_target - 1) * self._top
        squares = np.sum((vectors @ (signs.T @ signs)) * vectors, axis=1)
        squares += n_items * goal**2 - 2 * goal * (vectors @ signs.sum(axis=0))
        seen_indptr, seen_items = self._seen
        seen_users = np.repeat(np.arange(n_users), np.diff(seen_indptr))
        seen = (self._score_pairs(seen_users, seen_items) - self.negative_target) ** 2
        n_seen = np.diff(seen_indptr)
        unseen = squares / (2 * self._top) ** 2 - np.bincount(seen_users, seen, n_users)
        if self.aggregation == "full":
            weights = held_out.weights * self.alpha + 1
            shares = 1 / np.maximum(np.bincount(users, chosen, n_users), 1)[users]
        else:
            weights = held_out.weights
            shares = weights * self.n_negatives / np.maximum(n_items - n_seen, 1)[users]
        losses = weights * (aims - similarity) ** 2 + shares * unseen[users]
        return np.where(chosen, losses, 0), np.where(chosen, weights, 0)

    # ---------------------------------------------------------------------- predictions

    @property
    def user_factors_(self) -> NDArray[np.int64]:
        """Users' vectors unpacked, shape (n_users, n_bits): odd integers, +-1 for one bit."""
        return _vectors(self.user_codes_, self.n_bits_)

    @property
    def item_factors_(self) -> NDArray[np.int8]:
        """Items' codes unpacked, shape (n_items, n_bits): +1 and -1."""
        return unpack_codes(self.item_codes_, self.n_bits_)

    def size_report(self) -> dict[str, float]:
        """Bytes kept and sent, and those of float32 numbers of the same lengths.

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

    @property
    def _user_planes(self):
        return self.user_codes_


def _vectors(codes, n_bits):
    """Users' vectors from their planes, shape (n_users, n_bits)."""
    planes = unpack_codes(codes, n_bits).astype(np.int64)
    return np.tensordot(2 ** np.arange(planes.shape[1]), planes, (0, 1))


def _of_each(values, active):
    """One small array for each active client."""
    n, n_rows = values.shape[:2]
    indptr = np.concatenate([[0], np.cumsum(active * n_rows)])
    return Ragged(indptr, np.tile(np.arange(n_rows), n), values.reshape(-1, *values.shape[2:]))
