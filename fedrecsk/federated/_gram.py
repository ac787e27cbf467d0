"""What FedEASE and FedSpectral share: X'X, one sum over clients, and what noise leaves of it."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from scipy import sparse
from scipy.linalg import eigh
from scipy.stats import norm

from fedrecsk._utils import memory
from fedrecsk._utils.constraints import AtLeast1
from fedrecsk._utils.user_warnings import warn
from fedrecsk.base import RankingMixin, _item_weights, check_likes
from fedrecsk.base._fading import FadingPairs, life_of
from fedrecsk.base._item_weights import (
    Direction,
    dense_gram,
    diagonal,
    histories,
    liked,
    lower_part,
    n_pairs,
    numbers_of,
    pair_column,
    pairs_of,
    popularity,
    single_grams,
    sparse_gram,
    whole,
)
from fedrecsk.base._ordered_pairs import (
    OF_ALL,
    OF_OWN,
    ordered_gram,
    ordered_pairs,
    squares_of_pairs,
)
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.protocol.algorithm import Algorithm, SendsOnce, Traits
from fedrecsk.protocol.blocks import Block
from fedrecsk.protocol.messages import Dense, Form, Message
from fedrecsk.protocol.states import PerClient, PerItem
from fedrecsk.updates import FieldSpec, SparseRows, Summed, Updates

# At most this many float64 per pair of items at a time: sums, X'X and results computed from it.
MATRICES = 6
# Most bytes that a sparse sum, and what is computed from it, takes for each pair sent.
PAIR_BYTES = 64
# Clients number pairs by an int32; where pairs have a direction, fewer items have so many numbers.
MOST_ITEMS = 2**16 - 1
# Items are left out if their own count is below this many standard deviations of the noise.
STANDARD_DEVIATIONS = 3.0
# Share of the budget of central privacy that these counts spend.
COUNTS_SHARE = 0.1
# An item's share of the counts, times the number of clients and `clip`, must be above this many
# standard deviations of the counts' noise, which are 4 of the noise on the sum of pairs.
LEAST_SHARE = 4 / 3


NO_LOCAL_DP = (
    "noise on every pair of items would drown the few that a client has, and the pairs that it "
    "sends reveal which items it holds. Use central_dp, whose noise is added to the sum, or "
    "RFRec for local differential privacy."
)
NO_DIRECTION = "its noise hides what came first in pairs of items; set backward_weight=1."
NO_COMPRESSION = (
    "its clients send counts of pairs of items only once, so there is nothing to gain; set "
    "compression=None."
)


# ------------------------------------------------------------------------------ the algorithm


@dataclass(frozen=True)
class GramServer:
    """What the server knows: X'X, a triangle or a sparse column of pairs, and its noise.

    Under central privacy it also knows the items' own counts, 0 where noise hides them. `squares`
    are the products of users' pairs with themselves, if it learns how much direction matters.
    """

    gram: Any
    n_items: int
    noise_variance: float = 0.0
    clear_counts: PerItem | None = None
    squares: np.ndarray | None = None

    @property
    def noise_std(self) -> float:
        """Return the standard deviation of the noise on each entry."""
        return float(np.sqrt(self.noise_variance))

    @property
    def counts(self) -> np.ndarray:
        """Return how many like each item, 0 where noise hides it."""
        if self.clear_counts is None:
            return diagonal(self.gram, self.n_items)
        return self.clear_counts

    def visible_gram(self) -> np.ndarray:
        """Return the triangle of X'X without most of its noise."""
        if self.noise_std == 0:
            return self.gram
        items = np.flatnonzero(self.counts)
        return lower_part(without_noise(whole(self.gram, self.n_items), items, self.noise_std))

    @cached_property
    def models(self) -> list[Message]:
        """Return the model of this sum, once it is known; a state with another sum has none."""
        return []


@dataclass
class GramClients:
    """Users of a block: what they like, and which clients have sent that, or take it back.

    In `sent`, items whose counts the noise hides have the weight 0. `direction` is what the final
    model says of it.
    """

    likes: Block
    sent: Block
    has_sent: PerClient
    takes_back: bool = False
    direction: Direction | None = None


@dataclass(eq=False, repr=False)
class GramParameters:
    """Parameters of FedEASE, FedSpectral and FedItemKNN."""

    _: KW_ONLY
    upload: Literal["auto", "local", "all"] = "auto"


@dataclass(kw_only=True, eq=False)
class GramAlgorithm(GramParameters, Algorithm[GramServer, Any], SendsOnce[GramClients]):
    """Clients add up X'X once, and the server solves for a model: `solve` is the method's own."""

    # Whether `solve` takes a sparse column in place of a triangle.
    solves_sparse: ClassVar[bool] = False
    # Whether pairs are added up by what came first, and whether the sum says how much that matters.
    has_direction: ClassVar[bool] = False
    learns_direction: ClassVar[bool] = False

    pair_half_life: float | Literal["auto"] | None
    # Whether the server must not learn which items a client holds.
    hides_items: bool
    # Bound on the counts of items that clients send first under central privacy. None: they do not.
    clip: float | None
    dtype: type[np.floating] = np.float32

    @property
    def traits(self):
        # By cohorts that take turns every client is reached once in a pass.
        why = {"local_dp": NO_LOCAL_DP, "compression": NO_COMPRESSION}
        if self.has_direction:
            why["central_dp"] = NO_DIRECTION
        return Traits(
            single_uploads=True,
            rotates=True,
            goes_on=True,
            sends_once=True,
            setup_share=COUNTS_SHARE,
            refuses=why,
        )

    @property
    def sends_pairs(self) -> bool:
        """Return whether clients send their own pairs only."""
        return self.upload == "local" or (self.upload == "auto" and not self.hides_items)

    def keeps_sparse(self, n_items: int) -> bool:
        """Return whether the sum is kept sparse."""
        return self.solves_sparse and self.sends_pairs and n_items >= _item_weights.MANY_ITEMS

    @property
    def n_orders(self) -> int:
        """Return how many triangles the sum has: one, or by what came first."""
        return 1 if not self.has_direction else OF_OWN if self.sends_pairs else OF_ALL

    def downloads(self, n_items):
        return {"request": Form((1,), "uint"), "clear_items": Form((n_items,), "bool")}

    # --------------------------------------------------------------- before the rounds

    def setup_fields(self, n_items):
        if self.clip is None:
            return {}
        return {"item_counts": FieldSpec((n_items,), learned=False)}

    def answer(self, block, message, key):
        likes = liked(block)
        counts = np.bincount(likes.rows, likes.weights, len(likes.row_items))
        return Updates({"item_counts": SparseRows(likes.row_indptr, likes.row_items, counts)})

    def begin(self, catalogue, sums, key):
        n_items = catalogue.n_items
        sizes = self.n_orders * n_pairs(n_items)
        gram = sparse.csc_array((sizes, 1)) if self.keeps_sparse(n_items) else np.zeros(sizes)
        if sums is None or self.clip is None:
            return GramServer(gram, n_items)
        counts = sums["item_counts"]
        least = LEAST_SHARE * counts.noise_std / (self.clip * catalogue.n_clients)
        return GramServer(gram, n_items, 0.0, clear_counts(counts.sum, counts.noise_std, least))

    def announce(self, server):
        if self.clip is None:
            return Message()
        return Message(clear_items=Dense(server.counts > 0, dtype="uint8"))

    # ---------------------------------------------------------------------- each round

    def broadcast(self, server, key):
        # Clients need no part of the model to answer; one byte requests their upload.
        return Message(request=Dense(np.ones(1, dtype=np.uint8), dtype="uint8"))

    def fields(self, n_items):
        rows, size = "chosen" if self.sends_pairs else "all", self.n_orders * n_pairs(n_items)
        squares = {"squares": FieldSpec((2,), learned=False)} if self.learns_direction else {}
        if self.keeps_sparse(n_items):
            return {"gram": FieldSpec((size, 1), rows, sparse=True)} | squares
        return {"gram": FieldSpec((size,), rows)} | squares

    def enter(self, block, message, key):
        likes = liked(block)
        sent = likes
        if self.clip is not None:
            # Positions of a history count the other items, too.
            clear, known = np.zeros(block.n_items), message["clear_items"].values
            clear[: len(known)] = known  # the others were added after the fit
            sent = replace(likes, weights=likes.weights * clear[likes.items])
        return GramClients(likes, sent, np.zeros(block.n_clients, dtype=bool))

    def update(self, block, clients, message, turn, key):
        likes, sign = clients.sent, -1 if clients.takes_back else 1
        # Those who take back are those who have sent.
        fresh = clients.has_sent if clients.takes_back else ~clients.has_sent
        senders = turn.active & fresh
        if not senders.any():
            return clients, None, None
        is_sparse = self.keeps_sparse(block.n_items)
        if self.has_direction:
            gram = self.directed_upload(likes, senders, turn, sign)
        elif turn.separate:
            indptr, numbers, values = single_grams(likes, self.pair_half_life, senders)
            values = values[:, None] if is_sparse else values
            gram = SparseRows(indptr, numbers, sign * values)
        else:
            gram_of = sparse_gram if is_sparse else dense_gram
            sums = gram_of(likes, self.pair_half_life, senders & turn.delivers)
            gram = Summed(sign * sums, n_pairs(likes.row_counts))
        # A client does not know whether its upload arrives, so it never sends another.
        clients = replace(clients, has_sent=clients.has_sent | senders)
        upload = {"gram": gram}
        if self.learns_direction:
            squares = sign * squares_of_pairs(likes, self.pair_half_life, senders)
            is_in = turn.delivers[:, None]
            upload["squares"] = (
                SparseRows.stacked(squares) if turn.separate else (squares * is_in).sum(axis=0)
            )
        return clients, Updates(upload, sends=fresh), None

    def directed_upload(self, likes, senders, turn, sign):
        """Clients: their pairs by what came first."""
        if not (self.sends_pairs or turn.separate):
            return Summed(sign * ordered_gram(likes, self.pair_half_life, senders & turn.delivers))
        own = ordered_pairs(likes, self.pair_half_life, senders, self.n_orders)
        indptr, numbers, values = own
        spec = self.fields(likes.n_items)["gram"]
        rows = SparseRows(indptr, numbers, sign * values.reshape(-1, *spec.shape[1:]), spec=spec)
        if turn.separate:
            return rows
        return Summed(rows.sum(turn.delivers.astype(float)), rows.n_rows)

    def step(self, server, upload, key):
        if upload is None:
            return server
        gram = upload["gram"]
        total, variance = gram.sum, server.noise_variance + gram.noise_std**2
        if sparse.issparse(server.gram) and not sparse.issparse(total):
            total = sparse.csc_array(total)  # an aggregator's
        server = replace(server, gram=server.gram + total, noise_variance=variance)
        if not self.learns_direction:
            return server
        before = 0.0 if server.squares is None else server.squares
        return replace(server, squares=before + upload["squares"].sum)

    # ------------------------------------------------------------------------- the end

    def final(self, server):
        if not server.models:
            server.models.append(self.solve(server))
        return server.models[0]

    @abstractmethod
    def solve(self, server: GramServer) -> Message:
        """Server: the model of its sum."""

    # ------------------------------------------------------------------ with other rows

    def resume(self, now, before, places):
        i, j, values = pairs_of(before.gram, before.n_items)
        # Codes keep their order, so that a pair keeps its direction.
        low, high = np.sort([places[i], places[j]], axis=0)
        order = numbers_of(before.gram)[0] // n_pairs(before.n_items)
        numbers, kept = n_pairs(high) + low + order * n_pairs(now.n_items), low >= 0
        gram = pair_column(numbers[kept], values[kept], now.gram.shape[0])
        gram = gram if sparse.issparse(now.gram) else gram.toarray().ravel()
        return replace(now, gram=gram, squares=before.squares)

    def recall(self, clients, remembered):
        return replace(clients, has_sent=clients.has_sent | remembered)

    def has_sent(self, clients):
        return clients.has_sent

    def take_back(self, clients):
        return replace(clients, takes_back=True)

    # ------------------------------------------------------------------------ the model

    def state_attributes(self, server):
        attributes = super().state_attributes(server)
        prior = attributes.get("_content")
        return attributes | {"_popularity": popularity(server.counts, prior)}

    def private_vectors(self, clients):
        return histories(clients.likes, self.dtype).toarray()


# ------------------------------------------------------------------------------ the estimator


@dataclass(eq=False, repr=False)
class FederatedGram(GramParameters, FadingPairs, RankingMixin, FederatedRecommender):
    """Base class of the estimators whose algorithm is a `GramAlgorithm`."""

    _: KW_ONLY
    n_rounds: AtLeast1 = 1

    @property
    def _pair_half_life(self):
        return life_of(self, "pair_half_life")

    @property
    def _hides_items(self):
        federation = self._setting()
        return federation.central_dp is not None or federation.secure_aggregation is not None

    @property
    def _clip(self):
        mechanism = self._setting().central_dp
        return None if mechanism is None else mechanism._bound_of_setup

    def _least_bytes(self, data):
        # `_check_setting` knows more.
        return 0

    def _check_setting(self, plan, data, blocks):
        check_likes(data)
        algorithm = plan.algorithm
        pair_bytes = PAIR_BYTES * (2 if algorithm.has_direction else 1)
        if algorithm.keeps_sparse(data.n_items):
            most = int(MOST_ITEMS / np.sqrt(algorithm.n_orders))
            if data.n_items > most:
                raise ValueError(
                    f"{type(self).__name__} takes at most {most} items, because clients "
                    f"number pairs of items in 32 bits, and there are {data.n_items}. Leave out "
                    "rare items, for example with preprocessing.filter_min_ratings"
                    + (", or set backward_weight=1." if algorithm.has_direction else ".")
                )
            held = [n_pairs(block.row_counts.astype(np.int64)).sum() for block in blocks]
            nbytes = pair_bytes * sum(held)
        else:
            nbytes = 8 * MATRICES * data.n_items**2
        uploads = plan.uploads(is_forged=plan.federation.adversary is not None)
        if uploads != "sum" or algorithm.has_direction:
            each = pair_bytes if algorithm.has_direction else 16
            held = [each * n_pairs(block.row_counts.astype(np.int64)).sum() for block in blocks]
            nbytes += sum(held) if uploads == "held" else max(held)
        memory.require(
            int(nbytes),
            f"{type(self).__name__}'s matrices of {data.n_items} by {data.n_items} items, and the "
            f"pairs of {data.n_clients} clients,",
            "Leave out rare items, for example with preprocessing.filter_min_ratings, or use a "
            "method with factors such as LocALS.",
        )


# ------------------------------------------------------------------------- central privacy


def clear_counts(counts, noise_std, least_share):
    """Return the counts of items whose pairs stand out from noise, 0 for others; warn if few do.

    They are clearly above their noise, and each has at least this share of the counts of all items
    that are as frequent, or more.
    """
    is_clear = counts > STANDARD_DEVIATIONS * noise_std
    n_clear, by_chance = is_clear.sum(), len(counts) * norm.sf(STANDARD_DEVIATIONS)
    hint = (
        "Allow a larger epsilon, train on more clients or, where clients have many users, hide "
        'each user instead: CentralDP(unit="user").'
    )
    if not n_clear:
        warn(
            "The noise of central_dp is larger than the count of every item, so all scores are 0. "
            + hint
        )
    elif noise_std and n_clear <= by_chance + STANDARD_DEVIATIONS * np.sqrt(by_chance):
        warn(
            f"Only {n_clear} of {len(counts)} items have a count above the noise of "
            f"central_dp, no more than noise alone may lift, so the scores say little. {hint}"
        )
    clear = np.where(is_clear, counts, 0.0)
    order = np.argsort(-clear, kind="stable")
    totals = np.maximum(np.cumsum(clear[order]), np.finfo(float).tiny)
    clear[order[clear[order] <= least_share * totals]] = 0
    return clear


def signal(matrix, noise_std):
    """Return the eigenvalues and eigenvectors of X'X that are visible through noise, largest first.

    Noise on the entries of a symmetric matrix of n items has eigenvalues up to b = 2 std sqrt(n) in
    size (Wigner 1958), and sqrt(e^2 - b^2) in place of an eigenvalue e has the smallest expected
    squared error of the whole matrix (Gavish and Donoho 2017, see FedSpectral).
    """
    if not len(matrix):
        return np.zeros(0), np.zeros((0, 0))
    bound = 2 * noise_std * np.sqrt(len(matrix))
    # No eigenvalue exceeds the largest sum of absolute values in a row.
    most = np.abs(matrix).sum(axis=1).max()
    if most <= bound:
        return np.zeros(0), np.zeros((len(matrix), 0))
    strengths, vectors = eigh(matrix, subset_by_value=(bound, most + 1))
    return np.sqrt(strengths**2 - bound**2)[::-1], vectors[:, ::-1]


def without_noise(matrix, items, noise_std):
    """Return X'X of these items without most of its noise; zeros elsewhere."""
    result = np.zeros_like(matrix)
    strengths, vectors = signal(matrix[np.ix_(items, items)], noise_std)
    result[np.ix_(items, items)] = (vectors * strengths) @ vectors.T
    # The counts on the diagonal are known better.
    counts = np.diag(result).copy()
    counts[items] = np.maximum(counts[items], np.diag(matrix)[items])
    np.fill_diagonal(result, counts)
    return result
