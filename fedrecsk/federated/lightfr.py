"""LightFR: federated recommendation with binary codes (Zhang et al., TOIS 2023, algorithm 1)."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Literal

import numpy as np
from sklearn.base import clone
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from fedrecsk import _kernels
from fedrecsk.base import RankingMixin
from fedrecsk.federated._codes import n_words, pack_codes, random_codes, unpack_codes
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.interactions import Ids, encode, id_columns
from fedrecsk.simulation.blocks import Block, ClientStates, cut
from fedrecsk.simulation.keys import Key
from fedrecsk.simulation.messages import (
    INDEX_BYTES,
    Dense,
    Derived,
    Message,
    Rows,
    Total,
)
from fedrecsk.simulation.participation import cohort_size

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import ArrayLike, NDArray

    from fedrecsk.simulation.federation import Federation

# Weights and targets are rounded to multiples of 2**-FRACTION_BITS; the rest is integers.
FRACTION_BITS = 20
OWN = {"full": 0, "gradient": 1, "parameter": 2}


class LightFR(RankingMixin, FederatedRecommender):
    """Federated recommendation with binary codes, which fit and search in Hamming space.

    An item is a code of `n_bits` signs. It is all that the server sends and the device stores:
    64 bits take 1/32 of the room of 64 float32. A user's vector, kept on the device, has odd
    integers of `user_bits` bits, so that it is a few codes itself and items are still ranked by
    XOR and popcount; one bit makes it the paper's code.

    The similarity ``s_ui = 1/2 + b_u . d_i / (2 f (2^user_bits - 1))`` in [0, 1] is fitted to a
    target for each pair of user and item, in squared error. Each round every client of the
    cohort moves its users' vectors bit by bit to their optimum with the items fixed and
    uploads the gradient in the items; the server moves the items' bits. All sums are exact in
    integers, so the model depends neither on threads nor on the order of clients.

    Parameters
    ----------
    n_bits : int, default=64
        Bits of an item's code (f); multiples of 64 waste none.
    n_rounds : int, default=50
        Rounds in total (T).
    aggregation : {"full", "gradient", "parameter"}, default="full"
        What clients upload, and how the server moves the items. "full": every pair without a
        row is a negative of weight 1, by an n_bits x n_bits matrix from each client, and the
        server goes down a quadratic model of the loss, bit by bit until nothing changes. The
        others are the paper's, with sampled negatives: "gradient", the sign of the gradients'
        sum; "parameter", the sign of the clients' votes on the items that they visit.
    user_bits : int in [1, 16], default=4
        Bits of each entry of a user's vector; 1 is the paper's.
    targets : {"implicit", "ratings"}, default="implicit"
        "implicit": rows with y > 0 have `positive_target`, others are left out. "ratings": rows
        have y scaled to [0, 1], and `predict` gives ratings.
    positive_target, negative_target : float in [0, 1], default=0.65 and 0.5
        Similarities aimed at for positives and for negatives.
    alpha : float, default=4.0
        Weight that a row of weight 1 has on top of the 1 of every pair; with "full" alone.
    n_negatives : int, default=4
        Negatives per row and round, drawn anew among the items that the user has no row of;
        not with "full".
    reg_user, reg_item : float, default=0.0
        Weights of the balance terms (lambda) on users and items.
    balance : {"code", "bits"}, default="code"
        What is balanced: "code", each code has as many +1 as -1, as in the paper's update
        rules; "bits", each bit is +1 for as many users, or items, as it is -1, as in its
        objective.
    shrinkage : float, default=1000.0
        Weight of the squared length of a user's vector, in pairs of weight 1. It changes
        nothing with ``user_bits=1``.
    memory : int, default=4
        The server adds each round's sum to what it remembers, and forgets 1/memory of that; 1
        is the paper's server. Not with "full".
    n_sweeps : int or None, default=3
        Sweeps over a user's bits in a round, fewer if nothing changes; None: until nothing
        changes. 1 is the paper's.
    init : "random" or ndarray of shape (n_items, n_bits), default="random"
        First item codes. An array's signs are taken, for example those of a real-valued
        model's factors, with rows in the order of ``np.unique(items)``.
    train_items : bool, default=True
        Whether items move at all. False is the paper's ablation, with `init`.
    upload : {"visited", "all"}, default="visited"
        "visited": each client sends the rows of its visited items with their numbers. "all":
        it sends the whole matrix, so that a secure sum hides which items it has visited.
    rating_scale : tuple (low, high) or None, default=None
        The ends of the rating form for ``targets="ratings"``. None: the range of y.
    client_fraction : float in (0, 1], default=0.6
        Share of the clients in a round's cohort (p).
    early_stopping, validation_fraction, n_iter_no_change, tol, warm_start
        As in :class:`LocALS`; the loss is the squared error of similarities (with "ratings", of
        ratings).
    n_jobs, random_state, federation
        As in :class:`LocALS`.

    Attributes
    ----------
    user_codes_ : ndarray of shape (n_users, user_bits, n_words), dtype uint64
        Packed; plane p of a vector counts 2^p times. Each client keeps its users'; for what
        uploads tell of them see the Notes.
    item_codes_ : ndarray of shape (n_items, n_words), dtype uint64
        Packed as by :func:`fedrecsk.federated.pack_codes`; n_words is ceil(n_bits / 64).
    user_factors_, item_factors_ : ndarray of shape (n_users, n_bits) and (n_items, n_bits)
        The same unpacked (made when asked for): odd integers, and +1 and -1.
    rating_scale_ : tuple of float
        What similarities 0 and 1 mean.
    user_ids_, item_ids_, n_users_, n_items_
        As in :class:`LocALS`.
    n_rounds_, best_round_, history_, communication_, privacy_
        As in :class:`LocALS`.
    loss_curve_ : list of float
        Weighted mean squared error of similarities over the pairs of each round's clients, after
        their step. It crosses no wire.

    Raises
    ------
    ValueError
        By fit: if no row is positive; if ratings are all equal without a `rating_scale`, or
        outside of it; if `init` has another shape; if exact sums might not fit into 64 bits; if
        the federation has `local_dp` or `compression`.

    Notes
    -----
    *What crosses the wire.* Down, each round: the packed codes of all items. Up, with "full": for
    each of the client's rated items its number, n_bits integers (int64) and the sum of its
    weights; an n_bits x n_bits matrix, n_bits integers and the number of users. With
    "gradient": n_bits integers and the number of each visited item, negatives included. With
    "parameter": one bit a bit and the number. With ``balance="bits"`` and `reg_user`, the sum of
    the users' vectors goes up and that of the last cohort comes down. Nothing is enrolled.

    *What it reveals.* The paper claims that binary codes protect ratings. They do not: in
    plaintext one upload of one client gives its code and all its ratings, up to mirroring both
    (``python -m benchmarks.lightfr privacy``); with "full" the vector is sent as it is. Row
    numbers tell the items visited. Secure sums of integers with ``upload="all"`` hide single
    clients.

    *What is ours.* The paper's literal method is ``LightFR(aggregation="gradient", user_bits=1,
    targets="ratings", n_negatives=0, memory=1, reg_user=0.5, reg_item=0.5, n_sweeps=1)``; a
    balance of .2 to 1 outweighs its data term and it learns nothing. The full form, users of
    several bits, fresh negatives, the memory and the defaults, chosen on validation data,
    are ours. On the final model every client fits its codes once more. An unknown user or item
    has similarity 1/2.

    *Fixed point.* Weights and targets are rounded to multiples of 2^-20.

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

    _parameter_constraints: dict = FederatedRecommender._parameter_constraints | {
        "n_bits": [Interval(Integral, 1, None, closed="left")],
        "aggregation": [StrOptions(set(OWN))],
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
        "memory": [Interval(Integral, 1, None, closed="left")],
        "n_sweeps": [Interval(Integral, 1, None, closed="left"), None],
        "init": [StrOptions({"random"}), np.ndarray],
        "train_items": ["boolean"],
        "upload": [StrOptions({"visited", "all"})],
        "rating_scale": [tuple, list, None],
    }

    def __init__(
        self,
        n_bits: int = 64,
        *,
        n_rounds: int = 50,
        aggregation: Literal["full", "gradient", "parameter"] = "full",
        user_bits: int = 4,
        targets: Literal["implicit", "ratings"] = "implicit",
        positive_target: float = 0.65,
        negative_target: float = 0.5,
        alpha: float = 4.0,
        n_negatives: int = 4,
        reg_user: float = 0.0,
        reg_item: float = 0.0,
        balance: Literal["code", "bits"] = "code",
        shrinkage: float = 1000.0,
        memory: int = 4,
        n_sweeps: int | None = 3,
        init: Literal["random"] | NDArray = "random",
        train_items: bool = True,
        upload: Literal["visited", "all"] = "visited",
        rating_scale: tuple[float, float] | None = None,
        client_fraction: float = 0.6,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-4,
        warm_start: bool = False,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        federation: Federation | None = None,
    ):
        self.n_bits = n_bits
        self.n_rounds = n_rounds
        self.aggregation = aggregation
        self.user_bits = user_bits
        self.targets = targets
        self.positive_target = positive_target
        self.negative_target = negative_target
        self.alpha = alpha
        self.n_negatives = n_negatives
        self.reg_user = reg_user
        self.reg_item = reg_item
        self.balance = balance
        self.shrinkage = shrinkage
        self.memory = memory
        self.n_sweeps = n_sweeps
        self.init = init
        self.train_items = train_items
        self.upload = upload
        self.rating_scale = rating_scale
        self.client_fraction = client_fraction
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.federation = federation

    # ---------------------------------------------------------------------- the algorithm

    def _init_server(self, catalogue, enrolment, key):
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
        if self.aggregation != "full":
            server["memory"] = np.zeros((catalogue.n_items, self.n_bits), dtype=np.int64)
        return server

    def _announce(self, server):
        if self.targets == "implicit":
            return Message()
        return Message(form=Dense(np.array(server["rating_scale"])))

    def _model(self, server):
        codes = server["item_codes"]
        signs = unpack_codes(codes, self.n_bits)
        fields = {
            "item_codes": Dense(codes, dtype="uint64", learned=True),
            "item_signs": Derived(signs),
        }
        if self.aggregation == "full":
            fields["products"] = Derived(_products(signs))
        if self._crowded:
            fields["crowd"] = Dense(server["crowd"], dtype="int64")
        return Message(**fields)

    def _init_clients(self, block, message, key):
        codes = random_codes(key.at(-1), "user codes", block.users, self.user_bits, self.n_bits)
        return self._rows(block, message) | {"codes": codes}

    def _client_update(self, block, state, message, key):
        sums = self._empty_sums(block)
        loss = self._step(block, state, message, key, block.active, block.delivers, sums)
        state["training_loss"] = np.array(loss)
        if not self.train_items:
            return state, None
        return state, self._upload(block, sums)

    def _aggregate(self, server, message, upload, key):
        if upload is None:
            return server
        server = server | {"item_codes": server["item_codes"].copy()}
        if self._crowded:
            server["crowd"] = upload["total"].sum
        if self.aggregation == "full":
            _kernels.lightfr.step_by_curvature(
                server["item_codes"],
                self.n_bits,
                np.ascontiguousarray(upload["rows"].sum[:, :-1]),
                np.ascontiguousarray(upload["rows"].sum[:, -1]),
                upload["gram"].sum,
                upload["total"].sum,
                max(int(upload["n_users"].sum[0]), 1),
                self._base,
                self._fixed_balance(self.reg_item),
                self.balance == "bits",
            )
            return server
        old = server["memory"]
        server["memory"] = old - old // self.memory + upload["rows"].sum
        # The voters have balanced their codes themselves.
        server_balances = self.aggregation == "gradient" or self.balance == "bits"
        _kernels.lightfr.step_by_sign(
            server["item_codes"],
            self.n_bits,
            server["memory"],
            self._fixed_balance(self.reg_item) if server_balances else 0,
            self.balance == "bits",
        )
        return server

    def _personalize(self, block, state, message, key):
        state = dict(state or self._init_clients(block, message, key))
        state["codes"] = state["codes"].copy()
        everyone = np.ones(block.n_clients, dtype=bool)
        self._step(block, state, message, key, everyone, ~everyone, self._empty_sums(block))
        return state

    def _attributes(self, server, states):
        return {
            "user_codes_": states.by_user("codes"),
            "item_codes_": server["item_codes"],
            "rating_scale_": server["rating_scale"],
            "n_bits_": self.n_bits,
        }

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
    def _base(self):
        """Weight and pull of every pair of user and item, before its own row adds to them."""
        if self.aggregation != "full":
            return 0, 0
        return 2**FRACTION_BITS, int(self._pulls(1.0, self.negative_target))

    def _pulls(self, weights, targets):
        """Weight times the dot product whose similarity is the target, in fixed point."""
        return _fixed(weights * (2 * np.asarray(targets) - 1) * self._top)

    def _fixed_balance(self, reg):
        # The paper's rule times 2 f^2, like everything else.
        return int(_fixed(4 * reg * self._top**2))

    def _scale(self, rating_range):
        low, high = self.rating_scale or rating_range
        return (0.0, 1.0) if self.targets == "implicit" else (float(low), float(high))

    def _aims(self, data, scale):
        """Which rows count, and their targets."""
        if self.targets == "implicit":
            return data.values > 0, np.full(len(data.values), float(self.positive_target))
        low, high = scale
        return np.ones(len(data.values), dtype=bool), (data.values - low) / (high - low)

    def _rows(self, block, message):
        """What a client's rows pull at the codes, in fixed point."""
        scale = message["form"].values if "form" in message else None
        chosen, aims = self._aims(block, scale)
        base, base_pull = self._base
        own = 1 + self.alpha * block.weights if base else block.weights
        return {
            "chosen": chosen,
            "pulls": self._pulls(own, aims) - base_pull,
            "weights": _fixed(own) - base,
            "negative_pulls": self._pulls(block.weights, self.negative_target),
        }

    def _empty_sums(self, block):
        f = self.n_bits
        shapes = (block.n_items, f), (block.n_items,), (f, f), (f,), (block.n_clients,)
        return tuple(np.zeros(shape, dtype=np.int64) for shape in shapes)

    def _step(self, block, state, message, key, active, senders, sums, *, free=True):
        """One update of the clients; adds up what the senders upload and returns the loss."""
        products = message["products"].values if "products" in message else np.zeros((0, 0), int)
        reg_user = self._fixed_balance(self.reg_user)
        crowd = np.zeros(self.n_bits, dtype=np.int64)
        if self._crowded:
            crowd = reg_user * message["crowd"].values
        signs = message["item_signs"].values
        rule = (
            self.n_bits,
            self._limit,
            0 if self.balance == "bits" else reg_user,
            int(_fixed(self.shrinkage)),
            crowd,
            self.n_sweeps or 0,
            not free,
            OWN[self.aggregation],
        )
        n_negatives = 0 if self.aggregation == "full" else self.n_negatives
        layout = block.client_indptr, block.indptr, block.items
        rows = state["chosen"], state["pulls"], state["weights"], state["negative_pulls"]
        world = key.hashed("negatives of a user", block.users), n_negatives, block.n_items
        everyone = products, signs.sum(axis=0, dtype=np.int64), block.n_items, *self._base
        codes, users = message["item_codes"].values, state["codes"]
        loss = _kernels.lightfr.clients(
            layout, rows, world, active, senders, rule, everyone, (codes, signs), users, sums
        )
        if self.aggregation == "parameter":
            balance = 0 if self.balance == "bits" else self._fixed_balance(self.reg_item)
            rule = self.n_bits, self._limit, balance
            voters = active & senders
            _kernels.lightfr.votes(layout, rows, world, voters, rule, codes, users, *sums[:2])
        return loss

    def _upload(self, block, sums):
        """What is sent of the items visited, and what is sent of the users alone."""
        rows, mass, gram, total, n_visited = sums
        fields = {}
        if self.aggregation == "full":
            rows = np.column_stack([rows, mass])
            fields["gram"] = Dense(gram, dtype="int64")
            n_users = np.diff(block.client_indptr)[block.delivers].sum()
            fields["n_users"] = Dense(np.array([n_users]), dtype="uint32")
        if self.aggregation == "full" or self._crowded:
            fields["total"] = Dense(total, dtype="int64")
        if self.aggregation == "parameter":
            fields["rows"] = Votes(rows, n_rows=n_visited)
        elif self.upload == "all":
            fields["rows"] = Dense(rows, dtype="int64")
        else:
            fields["rows"] = Rows(rows, dtype="int64", n_rows=n_visited)
        return Message(**fields)

    # ------------------------------------------------------------- checks, early stopping

    @property
    def _sees_ratings(self):
        return self.targets == "ratings"

    def _check_before_fit(self):
        super()._check_before_fit()
        if self._world().secure_aggregation is not None and self.upload == "visited":
            raise ValueError(
                "Under secure_aggregation LightFR must send whole matrices, because rows of some "
                'items only do not add up encrypted; set upload="all", with aggregation="full" or '
                '"gradient".'
            )
        if self._world().compression is not None:
            raise ValueError(
                f"{type(self._world().compression).__name__} shortens real numbers, but LightFR "
                "sends codes and integers; set compression=None, and n_bits for shorter codes."
            )
        if self._world().local_dp is not None:
            raise ValueError(
                "LightFR has no local_dp: noise on the scale of its gradients would drown the "
                "signs that they are taken for. Use RFRec under local differential privacy."
            )
        if self.rating_scale is not None:
            _check_scale(self.rating_scale)
        if self.aggregation == "parameter" and self.upload == "all":
            raise ValueError(
                'upload="all" hides the visited items among sums, but a vote on an item is +1 or '
                '-1, never 0; use upload="visited" with aggregation="parameter".'
            )
        if isinstance(self.init, np.ndarray):
            if self.init.ndim != 2 or self.init.shape[1] != self.n_bits:
                raise ValueError(
                    f"init has shape {self.init.shape}, but with n_bits={self.n_bits} it must be "
                    f"(n_items, {self.n_bits}); set n_bits to its number of columns."
                )
            if not np.isfinite(self.init.astype(float)).all():
                raise ValueError("init contains NaN or infinity; give finite item factors.")

    def _check_world(self, federation, data, blocks):
        if isinstance(self.init, np.ndarray) and len(self.init) != data.n_items:
            raise ValueError(
                f"init has {len(self.init)} rows, but X has {data.n_items} items; give one row an "
                "item, in the order of np.unique(items)."
            )
        if self.targets == "implicit" and not (data.values > 0).any():
            raise ValueError(
                "No row of X has y > 0, so nobody likes anything. Pass y=None to count every row, "
                'shift y so that what is liked is above 0, or use targets="ratings".'
            )
        self._check_rows(data, self._scale((data.values.min(), data.values.max())))
        if federation.secure_aggregation is not None:
            self._check_scheme(federation.secure_aggregation, data)

    def _check_scheme(self, scheme, data):
        n_clients = cohort_size(data.n_clients, self.client_fraction)
        n_users = np.diff(data.client_indptr).max()
        weight = n_users * (data.weights.max() * (1 + self.alpha + self.n_negatives) + 1)
        largest = 2.0**FRACTION_BITS * 2 * self._top * self._limit * weight
        if largest > scheme.max_value(n_clients):
            raise ValueError(
                f"LightFR's integers may be as large as {largest:.3g}, but {scheme} holds "
                f"{scheme.max_value(n_clients):.3g} in a sum over {n_clients} clients; use "
                "CKKS(8192, (60, 60, 60)), or Paillier(fraction_bits=0), which is exact."
            )

    def _check_rows(self, data, scale):
        if self.targets == "ratings":
            _check_ratings(data.values, scale)
        if self._largest_sum(data) >= 2**62:
            raise ValueError(
                "The exact sums of these weights may not fit into 64-bit integers; scale "
                "sample_weight down, or lower n_bits, user_bits or n_negatives."
            )

    def _largest_sum(self, data):
        """Bound of every integer that comes up, as a float."""
        own = data.weights * (self.alpha + 1)
        if self.aggregation == "full":
            mass = max(np.bincount(data.items, own).max(), np.bincount(data.users, own).max())
            heaviest = 1 + own.max()
            mass += heaviest * (data.n_users + data.n_items)
        else:
            mass = data.weights.sum() * (1 + self.n_negatives) * self.memory
        regs = (self.reg_user + self.reg_item) * max(data.n_users, data.n_items, self._top)
        return (
            2.0**FRACTION_BITS
            * 4
            * self._top
            * self._limit
            * (mass + self.shrinkage + regs * self._top)
        )

    def _finished(self, world):
        attributes = super()._finished(world)
        # Serving users and adding items takes the codes only.
        attributes["_server"].pop("memory", None)
        return attributes

    def _new_user_attributes(self, data):
        self._check_rows(data, self.rating_scale_)
        # Section 3.3.3: new users' codes are not balanced.
        model = clone(self).set_params(reg_user=0.0)
        message = Message(**model._announce(self._server), **model._model(self._server))
        blocks = cut(data)
        # All begin and draw alike: nobody's code may depend on who else is served.
        alike = [replace(block, users=np.zeros_like(block.users)) for block in blocks]
        states = [model._personalize(block, None, message, Key(0)) for block in alike]
        return {"user_codes_": ClientStates(blocks, states).by_user("codes")}

    def _validation_losses(self, held_out):
        """The objective on what a client did not train on.

        Held-out rows count with their weight; the items that the user has no row of are
        negatives, shared out over its held-out rows.
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

    # ---------------------------------------------------------- predictions, added items

    @property
    def user_factors_(self) -> NDArray[np.int64]:
        """Users' vectors unpacked, shape (n_users, n_bits): odd integers, +-1 for one bit."""
        planes = unpack_codes(self.user_codes_, self.n_bits_)
        return np.tensordot(2 ** np.arange(planes.shape[1]), planes.astype(np.int64), (0, 1))

    @property
    def item_factors_(self) -> NDArray[np.int8]:
        """Items' codes unpacked, shape (n_items, n_bits): +1 and -1."""
        return unpack_codes(self.item_codes_, self.n_bits_)

    def size_report(self) -> dict[str, float]:
        """Bytes on the device and on the wire, and those of float32 numbers of the same lengths.

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

    def fold_in_items(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        n_rounds: int = 20,
    ) -> Self:
        """Add items that were not in fit, without retraining (the paper's section 3.3.3).

        A few rounds with all users, whose codes stay as they are: those that have rows of a new
        item upload what they would in fit, and the server sets the bits of the new items
        alone. No balance is asked for. These rounds are not in `communication_`.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`. Rows of users unknown to the model are left out.
        n_rounds : int, default=20
            Rounds at most; they end when no bit changes.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If an item is already known, no row has a user that the model knows, y is needed and
            missing or outside of the scale, or weights are too large for exact sums.
        """
        check_is_fitted(self)
        if y is None and self.targets == "ratings":
            raise ValueError('targets="ratings" needs y; pass the ratings of the new items.')
        X, y = self._checked(X, y)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(
                sample_weight, X, dtype=np.float64, ensure_non_negative=True
            )
        users, items = id_columns(X)
        known = self._items.codes(items) >= 0
        if known.any():
            raise ValueError(
                f"Item {items[known.argmax()]!s} is already known; fold_in_items adds new items "
                "only. Drop its rows, or fit again with them."
            )
        if not (self._users.codes(users) >= 0).any():
            raise ValueError(
                "No row of X has a user that the model knows, so nobody can say anything about "
                "the items; fold_in their users first."
            )
        new = encode(X, y, sample_weight=sample_weight)
        self._check_rows(new, self.rating_scale_)
        users = self._users.codes(new.user_ids.values)[new.users]
        rows = np.flatnonzero(users >= 0)
        kept, items = np.unique(new.items[rows], return_inverse=True)
        ids = np.concatenate([self.item_ids_, new.item_ids.values[kept]])
        items = items + self.n_items_
        block = self._with_new_rows(
            users[rows], items, new.values[rows], new.weights[rows], len(ids)
        )
        codes = self._coded(block, len(kept), n_rounds)
        self._server = self._server | {"item_codes": codes}
        self.item_codes_ = codes.copy()
        self._seen = block.indptr, block.items
        self.item_ids_, self.n_items_ = ids, len(ids)
        self._items = Ids(ids, self._items.name)
        return self

    def _with_new_rows(self, users, items, values, weights, n_items):
        """All users' rows, each user a client; of the old ones only the items matter."""
        seen_indptr, seen_items = self._seen
        owners = np.concatenate([np.repeat(np.arange(self.n_users_), np.diff(seen_indptr)), users])
        order = np.argsort(owners, kind="stable")
        lengths = np.bincount(owners, minlength=self.n_users_)
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        everyone = np.ones(self.n_users_, dtype=bool)
        old = np.full(len(seen_items), self.rating_scale_[1]), np.ones(len(seen_items))
        return Block(
            clients=np.arange(self.n_users_),
            users=np.arange(self.n_users_),
            client_indptr=np.arange(self.n_users_ + 1),
            indptr=indptr,
            items=np.concatenate([seen_items, items])[order].astype(np.int32),
            values=np.concatenate([old[0], values])[order],
            weights=np.concatenate([old[1], weights])[order],
            n_items=n_items,
            active=everyone,
            delivers=everyone,
        )

    def _coded(self, block, n_new, n_rounds):
        """Codes of all items after rounds in which those of the last n_new alone may change."""
        model = copy.copy(self)
        model.reg_item, n_old = 0.0, block.n_items - n_new
        index = np.arange(n_old, block.n_items)
        fresh = random_codes(Key(0), "item codes", index, 1, self.n_bits)[:, 0]
        server = self._server | {
            "item_codes": np.concatenate([self.item_codes_, fresh]),
            "memory": np.zeros((block.n_items, self.n_bits), dtype=np.int64),
        }
        for t in range(n_rounds):
            message = Message(**model._announce(server), **model._model(server))
            state = model._rows(block, message) | {"codes": self.user_codes_}
            sums = model._empty_sums(block)
            here = block.active
            model._step(block, state, message, Key(0, t), here, here, sums, free=False)
            upload = {
                name: Total(field.values, block.n_clients)
                for name, field in model._upload(block, sums).items()
            }
            stepped = model._aggregate(server, message, upload, Key(0, t))
            codes = stepped["item_codes"]
            codes[:n_old] = server["item_codes"][:n_old]
            ended = model._settled(codes, server["item_codes"])
            server = stepped
            if ended:
                break
        return server["item_codes"]

    def _settled(self, codes, before):
        # Sampled negatives are drawn anew every round.
        return self.aggregation == "full" and np.array_equal(codes, before)

    def _response(self, scores):
        low, high = self.rating_scale_
        return low + (high - low) * scores

    @property
    def _farthest(self):
        """The largest distance between codes of the fitted lengths."""
        return self.n_bits_ * (2 ** self.user_codes_.shape[1] - 1)

    def _similarities(self, distances):
        return np.where(distances < 0, 0.5, 1 - distances / self._farthest)

    def _score_pairs(self, users, items):
        distances = np.empty(len(users), dtype=np.int64)
        _kernels.hamming.pairs(users, items, self.user_codes_, self.item_codes_, distances)
        return self._response(self._similarities(distances))

    def _score_all(self, users):
        distances = np.empty((len(users), self.n_items_), dtype=np.int64)
        _kernels.hamming.board(users, self.user_codes_, self.item_codes_, distances)
        return self._similarities(distances)

    def _best_items(self, users, n, eligible, barred):
        if (users < 0).any():
            return super()._best_items(users, n, eligible, barred)
        order = np.lexsort((barred[1], barred[0]))
        rows, items = (np.asarray(part)[order] for part in barred)
        indptr = np.searchsorted(rows, np.arange(len(users) + 1))
        best = np.zeros((len(users), n), dtype=np.int64)
        distances = np.full(best.shape, -1)
        choice = np.empty(0, dtype=np.int64) if eligible is None else eligible
        _kernels.hamming.nearest_of_users(
            users, self.user_codes_, self.item_codes_, choice, indptr, items, best, distances
        )
        return best, np.where(distances < 0, -np.inf, 1 - distances / self._farthest)


@dataclass(frozen=True, eq=False)
class Votes(Rows):
    """Rows of +1 and -1, which each client sends packed into 64-bit words."""

    def nbytes(self, block, wire_dtype):
        """Bytes of the field for each client, the items' numbers included."""
        return self.payload_nbytes(block, wire_dtype) + self.n_rows * INDEX_BYTES

    def payload_nbytes(self, block, wire_dtype):
        """Those of the codes alone."""
        return self.n_rows * 8 * n_words(self.values.shape[1])


def _products(signs):
    # In float64 the sums are exact, and BLAS does them.
    signs = signs.astype(np.float64)
    return (signs.T @ signs).astype(np.int64)


def _fixed(numbers):
    """To fixed point: the nearest integer to each number times 2**FRACTION_BITS."""
    return np.rint(np.asarray(numbers) * 2.0**FRACTION_BITS).astype(np.int64)


def _check_scale(scale):
    numbers = len(scale) == 2 and all(isinstance(end, Real) for end in scale)
    if not (numbers and np.isfinite(scale).all() and scale[0] < scale[1]):
        raise ValueError(f"rating_scale must be (low, high) with low < high, got {scale!r}.")


def _check_ratings(values, scale):
    low, high = scale
    if low == high:
        raise ValueError(
            f'All ratings are {low:g}, which is no scale for targets="ratings"; pass '
            'rating_scale=(low, high), for example (1, 5), or use targets="implicit".'
        )
    outside = (values < low) | (values > high)
    if outside.any():
        raise ValueError(
            f"y has the rating {values[outside][0]:g}, outside rating_scale=({low:g}, {high:g})."
        )
