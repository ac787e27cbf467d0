"""LightFR's algorithm: clients fit codes of their users, the server codes of the items."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral
from typing import Annotated, Any, Literal

import numpy as np

from fedrecsk._utils.constraints import AtLeast0, AtLeast1, NotNegative, RatingRange
from fedrecsk._utils.integers import FRACTION_BITS, fixed
from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.parameters import constant
from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk.base._item_prior import ItemFeatures, ItemPrior
from fedrecsk.data._checks import scale_of
from fedrecsk.models._codes import BinaryCodes, random_codes, unpack_codes
from fedrecsk.protocol.algorithm import Algorithm, Traits
from fedrecsk.protocol.messages import Dense, Derived, Form, Message
from fedrecsk.protocol.states import PerItem, PerUser
from fedrecsk.updates import FieldSpec, SparseRows, Summed, Updates

lightfr_kernels: LazyModule = LazyModule("fedrecsk.federated._lightfr_kernels")

# Purposes of the keys that negatives are drawn with.
TRAINING_DRAWS, FINAL_DRAWS = "negatives of a user", "negatives in the end"
# The mean vector of fewer users would reveal too much of each to the others.
LEAST_USERS = 10
# Of alpha="auto".
LARGEST_ALPHA = 64.0
REFUSES = {
    "local_dp": "noise on the scale of its gradients would drown their signs. Use RFRec for local "
    "differential privacy.",
    "compression": "it sends codes and integers, and compressors shorten real numbers; set "
    "compression=None, and n_bits for shorter codes.",
}


@dataclass(frozen=True)
class LightFRServer:
    """What the server knows: the items' codes, and what users' vectors are like on average."""

    codes: PerItem
    rating_scale: tuple[float, float]
    # Of the last cohort of enough users; zero before the first.
    mean_user: np.ndarray
    prior: ItemPrior | None = None
    # (n_items, n_bits), what has arrived so far, for codes that are its signs.
    total: np.ndarray | int = 0


@dataclass
class LightFRClients:
    """Users of a block: their rows in fixed point, and their packed vectors."""

    rows: tuple[np.ndarray, ...]
    codes: PerUser


@dataclass(eq=False, repr=False)
class LightFRParameters:
    """Parameters of LightFR."""

    n_bits: AtLeast1 = 64
    _: KW_ONLY
    aggregation: Literal["full", "gradient", "parameter"] = "full"
    user_bits: Annotated[int, Interval(Integral, 1, 16, closed="both")] = 4
    targets: Literal["implicit", "ratings"] = "implicit"
    alpha: NotNegative | Literal["auto"] = "auto"
    n_negatives: AtLeast0 = 4
    reg_user: NotNegative = 1000.0
    balance_user: NotNegative = 0.0
    balance_item: NotNegative = 0.0
    upload: Literal["visited", "all"] = "visited"
    rating_scale: RatingRange = None
    # Similarities that are aimed at.
    POSITIVE_TARGET: float = constant(0.65)
    NEGATIVE_TARGET: float = constant(0.5)
    # How often users' vectors are swept in a round; None: until nothing changes.
    N_SWEEPS: int | None = constant(3)
    # Except in "full", 1/SERVER_DECAY of the server's total is dropped per round.
    SERVER_DECAY: int = constant(4)
    # Whether "full" uses the mean vector, whose weight for a user with n rows is SPARSE_REG / n, if
    # that is more.
    MEAN_PRIOR: bool = constant(True)
    SPARSE_REG: float = constant(12000.0)


@dataclass(kw_only=True, eq=False)
class LightFRAlgorithm(LightFRParameters, Algorithm[LightFRServer, LightFRClients]):
    """Clients fit their users' vectors entry by entry, and the server moves the items' bits."""

    trains_items: bool = True
    # Not where items are added.
    moves_users: bool = True
    item_content: ItemFeatures

    @property
    def traits(self):
        return Traits(single_uploads=True, refuses=REFUSES)

    def downloads(self, n_items):
        codes = Form((n_items, -(-self.n_bits // 64)), "uint")
        forms = {"item_codes": codes, "mean_user": Form((self.n_bits,))}
        return forms | ({"scale": Form((2,))} if self.targets == "ratings" else {})

    # ------------------------------------------------------------------- the server begins

    def begin(self, catalogue, sums, key):
        items = np.arange(catalogue.n_items)
        return LightFRServer(
            random_codes(key, "item codes", items, 1, self.n_bits)[:, 0],
            self.scale(catalogue.rating_range),
            np.zeros(self.n_bits, dtype=np.float32),
            self.item_content.prior(np.ones(catalogue.n_items)),
        )

    def announce(self, server):
        rates = self.targets == "ratings"
        return Message(scale=Dense(np.array(server.rating_scale))) if rates else Message()

    # ---------------------------------------------------------------------- each round

    def broadcast(self, server, key):
        message = Message(item_codes=Dense(server.codes, dtype="uint64", learned=True))
        if self.has_prior:
            message["mean_user"] = Dense(server.mean_user)
        return message

    def decode(self, message, key):
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

    def fields(self, n_items):
        f = self.n_bits
        rows = "all" if self.upload == "all" else "chosen"
        if not self.trains_items:
            return {}
        if self.aggregation == "parameter":
            return {"votes": FieldSpec((n_items, f), rows="chosen", bits=True)}
        if self.aggregation == "gradient":
            return {"rows": FieldSpec((n_items, f), rows=rows, dtype="int64")}
        return {
            # The last column has the sums of the weights.
            "rows": FieldSpec((n_items, f + 1), rows=rows, dtype="int64"),
            "gram": FieldSpec((f, f), dtype="int64"),
            "n_users": FieldSpec((1,), dtype="uint32", learned=False),
            "total": FieldSpec((f,), dtype="int64"),
        }

    def enter(self, block, message, key):
        key = key.private.at(-1)
        codes = random_codes(key, "user codes", block.users, self.user_bits, self.n_bits)
        return LightFRClients(self.rows(block, message), codes)

    def update(self, block, clients, message, turn, key):
        given = block, clients, message, turn, key, TRAINING_DRAWS
        return clients, *self.local_step(*given, sends=self.trains_items)

    def local_step(self, block, clients, message, turn, key, draws, *, sends):
        """Update the clients' codes; return what they send, if anything, and their loss."""
        names = "item_codes", "item_signs", "item_sums", "item_products"
        items = lightfr_kernels.Items(*(message[name].values for name in names), *self.base)
        mean = message["mean_user"].values if self.has_prior else np.zeros(self.n_bits)
        rule = lightfr_kernels.Rule(
            self.max_entry,
            self.moves_users,
            self.N_SWEEPS or 0,
            0 if self.aggregation == "full" else self.n_negatives,
            self.fixed_balance(self.balance_user),
            int(fixed(self.reg_user)),
            int(fixed(self.SPARSE_REG)) if mean.any() else 0,
            mean.astype(np.float64),
            self.aggregation == "parameter",
            self.fixed_balance(self.balance_item),
        )
        active = np.flatnonzero(turn.active)
        n_rows = np.diff(block.indptr[block.client_indptr])[active]
        n_visits, seeds = n_rows * (1 + rule.n_negatives), key.private.hashed(draws, block.users)
        full, f = self.aggregation == "full", self.n_bits
        visits = lightfr_kernels.visits_of(block, n_visits.max(initial=0), f)
        out = lightfr_kernels.empty_upload(block, turn, n_visits, f, full, sends)
        users, rows = block.client_indptr, clients.rows
        loss, weight = lightfr_kernels.update_clients(
            active, users, rows, seeds, items, rule, clients.codes, visits, out
        )
        loss /= (2.0 * self.max_dot) ** 2
        return self.sent(block, turn, out) if sends else None, (loss, weight)

    def sent(self, block, turn, out):
        """Return what is sent of the items visited, and of the users alone."""
        specs, n_users = self.fields(block.n_items), np.diff(block.client_indptr)
        if turn.separate:
            indptr = np.concatenate([[0], np.cumsum(out.n_rows)])
            rows = SparseRows(indptr, out.rows[: indptr[-1]], out.values[: indptr[-1]])
            fields = {"gram": out.gram, "total": out.total, "n_users": n_users[:, None]}
            fields = {name: SparseRows.stacked(values) for name, values in fields.items()}
        else:
            rows = out.values
            if self.upload == "visited":
                rows = Summed(rows, n_rows=out.n_rows)
            n_users = n_users[turn.active & turn.delivers].sum(keepdims=True)
            fields = {"gram": out.gram[0], "total": out.total[0], "n_users": n_users}
        fields |= {"rows": rows, "votes": rows}
        return Updates({name: fields[name] for name in specs})

    def step(self, server, upload, key):
        if upload is None:
            return server
        codes, mean_user, total = server.codes.copy(), server.mean_user, server.total
        signs = unpack_codes(codes, self.n_bits)
        sums = {name: np.ascontiguousarray(field.sum) for name, field in upload.items()}
        balance = self.fixed_balance(self.balance_item)
        if self.aggregation == "full":
            if self.has_prior and sums["n_users"][0] >= LEAST_USERS:
                mean_user = (sums["total"] / sums["n_users"][0]).astype(np.float32)
            model = self.quadratic_model(signs, sums)
            lightfr_kernels.step_by_curvature(codes, signs, *model, sums["gram"], balance)
        else:
            votes = self.aggregation == "parameter"
            total = total - total // self.SERVER_DECAY + sums["votes" if votes else "rows"]
            # Voters have balanced their codes themselves.
            lightfr_kernels.step_by_sign(codes, signs, total, 0 if votes else balance)
        return replace(server, codes=codes, mean_user=mean_user, total=total)

    def quadratic_model(self, signs, sums):
        """Return the gradient of the loss over all pairs, and the curvature's factor by item."""
        base, base_target = self.base
        gram, rows = sums["gram"], sums["rows"]
        # BLAS where float64 holds all sums exactly.
        if np.abs(gram.astype(np.float64)).sum(axis=0).max(initial=0) < 2.0**53:
            dots = (signs.astype(np.float64) @ gram.astype(np.float64)).astype(np.int64)
        else:
            dots = signs.astype(np.int64) @ gram
        gradients = rows[:, : self.n_bits] + (base_target * sums["total"] - base * dots)
        return gradients, base + rows[:, self.n_bits] // max(int(sums["n_users"][0]), 1)

    # ------------------------------------------------------------------------- the end

    def final(self, server):
        return self.broadcast(server, None)

    def personalize(self, block, clients, message, turn, key):
        if clients is None:
            clients = self.enter(block, message, key)
        clients = replace(clients, codes=clients.codes.copy())
        # Not those of a round: held-out rows are measured with negatives of their own.
        self.local_step(block, clients, message, turn, key, FINAL_DRAWS, sends=False)
        return clients

    # ------------------------------------------------------------------------ fixed point

    @property
    def max_entry(self):
        """The largest entry of a user's vector."""
        return 2**self.user_bits - 1

    @property
    def max_dot(self):
        """The largest dot product, that of similarity 1."""
        return self.n_bits * self.max_entry

    @property
    def base(self):
        """Weight and weighted target of every pair, before its own row adds to them."""
        if self.aggregation != "full":
            return 0, 0
        return 2**FRACTION_BITS, int(self.weighted_targets(1.0, self.NEGATIVE_TARGET))

    def weighted_targets(self, weights, targets):
        """Return weights times the dot products of the target similarities, in fixed point."""
        return fixed(weights * (2 * np.asarray(targets) - 1) * self.max_dot)

    def fixed_balance(self, weight):
        """Return the weight of a term that balances codes, in fixed point."""
        # The paper's rule times 2 f^2, like everything else.
        return int(fixed(4 * weight * self.max_dot**2))

    def scale(self, rating_range):
        """Return the ratings of similarity 0 and 1, given the smallest and the largest."""
        if self.targets == "implicit":
            return 0.0, 1.0
        return scale_of(self.rating_scale, rating_range)

    def aims(self, data, scale):
        """Return which rows count, and their target similarities."""
        if self.targets == "implicit":
            return data.values > 0, np.full(len(data.values), self.POSITIVE_TARGET)
        low, high = scale
        return np.ones(len(data.values), dtype=bool), (data.values - low) / (high - low)

    def rows(self, block, message):
        """Return the clients' rows in fixed point."""
        scale = message["scale"].values if "scale" in message else None
        chosen, aims = self.aims(block, scale)
        base, base_target = self.base
        own = block.weights
        if base:
            alphas = self.alphas(np.diff(block.indptr), block.n_items)
            own = 1 + alphas[block.rating_users] * own
        return lightfr_kernels.Rows(
            block.indptr,
            block.items,
            chosen,
            self.weighted_targets(own, aims) - base_target,
            fixed(own) - base,
            self.weighted_targets(block.weights, self.NEGATIVE_TARGET),
        )

    def alphas(self, n_rows, n_items):
        """Return the extra weight of each user's rows, by their number.

        Powers of two, because a sum over clients shows it for an item that one client holds.
        """
        if self.alpha != "auto":
            return np.full(len(n_rows), float(self.alpha))
        exponents = np.log2(n_items / np.maximum(n_rows, 1)) / 2
        return np.exp2(np.rint(exponents)).clip(1.0, LARGEST_ALPHA)

    @property
    def largest_alpha(self):
        """Return the largest extra weight of a row, whatever the data."""
        return LARGEST_ALPHA if self.alpha == "auto" else float(self.alpha)

    @property
    def has_prior(self):
        """Whether users' vectors are shrunk towards the mean vector."""
        full = self.aggregation == "full" and self.trains_items
        return full and self.MEAN_PRIOR and max(self.reg_user, self.SPARSE_REG) > 0

    # ------------------------------------------------------------------------ the model

    def server_attributes(self, message):
        scale = message["scale"].values if "scale" in message else None
        return {
            "item_codes_": message["item_codes"].values,
            "rating_scale_": self.scale(scale),
            "n_bits_": self.n_bits,
        }

    def user_attributes(self, block, clients):
        return {"user_codes_": clients.codes}

    def model(self, fitted):
        return BinaryCodes.of(fitted, fitted["user_codes_"])

    def losses(self, model: Any, held_out, seen):
        """Return the objective on held-out rows, which share the items without a row."""
        if self.targets == "ratings":
            return super().losses(model, held_out, seen)
        max_dot, (chosen, aims) = self.max_dot, self.aims(held_out, None)
        similarity = model.predict(held_out.users, held_out.items)
        users, n_users, n_items = held_out.users, held_out.n_users, held_out.n_items
        vectors = vectors_of(model.users, self.n_bits).astype(float)
        signs = unpack_codes(model.items, self.n_bits).astype(float)
        goal = (2 * self.NEGATIVE_TARGET - 1) * max_dot
        squares = np.sum((vectors @ (signs.T @ signs)) * vectors, axis=1)
        squares += n_items * goal**2 - 2 * goal * (vectors @ signs.sum(axis=0))
        seen_indptr, seen_items = seen
        n_seen = np.diff(seen_indptr)
        seen_users = np.repeat(np.arange(n_users), n_seen)
        errors = (model.predict(seen_users, seen_items) - self.NEGATIVE_TARGET) ** 2
        unseen = squares / (2 * max_dot) ** 2 - np.bincount(seen_users, errors, n_users)
        if self.aggregation == "full":
            weights = held_out.weights * self.alphas(n_seen, n_items)[users] + 1
            shares = 1 / np.maximum(np.bincount(users, chosen, n_users), 1)[users]
        else:
            weights = held_out.weights
            shares = weights * self.n_negatives / np.maximum(n_items - n_seen, 1)[users]
        losses = weights * (aims - similarity) ** 2 + shares * unseen[users]
        return np.where(chosen, losses, 0), np.where(chosen, weights, 0)

    def item_vectors(self, message):
        return message["item_signs"].values

    def private_vectors(self, clients):
        return vectors_of(clients.codes, self.n_bits)

    def as_newcomers(self, block):
        # All begin and draw alike: a user's code must not depend on which others are computed.
        return replace(block, users=np.zeros_like(block.users))


def vectors_of(codes, n_bits):
    """Return users' vectors from their planes, shape (n_users, n_bits)."""
    planes = unpack_codes(codes, n_bits).astype(np.int64)
    return np.tensordot(2 ** np.arange(planes.shape[1]), planes, (0, 1))
