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
from fedrecsk._utils.sklearn_compat import StrOptions
from fedrecsk._utils.user_warnings import warn
from fedrecsk.base import RankingMixin, _item_weights, check_likes
from fedrecsk.base._item_weights import (
    FromPairs,
    dense_gram,
    diagonal,
    histories,
    liked,
    n_pairs,
    pair_column,
    pairs_of,
    popularity,
    single_grams,
    sparse_gram,
)
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.protocol.algorithm import Algorithm, SendsOnce, Traits
from fedrecsk.protocol.blocks import Block
from fedrecsk.protocol.messages import Dense, Message
from fedrecsk.protocol.states import PerClient
from fedrecsk.updates import FieldSpec, SparseRows, Summed, Updates

# At most this many float64 per pair of items at a time: sums, X'X and results computed from it.
MATRICES = 6
# Most bytes that a sparse sum, and what is computed from it, takes for each pair sent.
PAIR_BYTES = 64
# Clients number pairs by an int32.
MOST_ITEMS = 2**16 - 1
# Items are left out if their own count is below this many standard deviations of the noise.
STANDARD_DEVIATIONS = 3.0


NO_LOCAL_DP = (
    "noise on every pair of items would drown the few that a client has, and the pairs that it "
    "sends reveal which items it holds. Use central_dp, whose noise is added to the sum, or "
    "RFRec for local differential privacy."
)


# ------------------------------------------------------------------------------ the algorithm


@dataclass(frozen=True)
class Server:
    """What the server knows: X'X, a triangle or a sparse column of pairs, and its noise."""

    gram: Any
    n_items: int
    noise_variance: float = 0.0

    @property
    def noise_std(self) -> float:
        """Return the standard deviation of the noise on each entry."""
        return float(np.sqrt(self.noise_variance))

    @cached_property
    def models(self) -> list[Message]:
        """Return the model of this sum, once it is known; a state with another sum has none."""
        return []


@dataclass
class Clients:
    """Users of a block: what they like, and which clients have sent that, or take it back."""

    likes: Block
    has_sent: PerClient
    takes_back: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class GramAlgorithm(Algorithm[Server, Any], SendsOnce[Clients]):
    """Clients add up X'X once, and the server solves for a model: `solve` is the method's own."""

    # Whether `solve` takes a sparse column in place of a triangle.
    solves_sparse: ClassVar[bool] = False

    upload: Literal["auto", "local", "all"]
    pair_half_life: float | Literal["auto"] | None
    # Whether the server must not learn which items a client holds.
    hides_items: bool
    dtype: type[np.floating] = np.float32

    @property
    def traits(self):
        # By cohorts that take turns every client is reached once in a pass.
        why = {"local_dp": NO_LOCAL_DP}
        return Traits(single_uploads=True, rotates=True, goes_on=True, sends_once=True, refuses=why)

    @property
    def sends_pairs(self) -> bool:
        """Return whether clients send their own pairs only."""
        return self.upload == "local" or (self.upload == "auto" and not self.hides_items)

    def keeps_sparse(self, n_items: int) -> bool:
        """Return whether the sum is kept sparse."""
        return self.solves_sparse and self.sends_pairs and n_items >= _item_weights.MANY_ITEMS

    def begin(self, catalogue, sums, key):
        n_items = catalogue.n_items
        sizes = n_pairs(n_items)
        gram = sparse.csc_array((sizes, 1)) if self.keeps_sparse(n_items) else np.zeros(sizes)
        return Server(gram, n_items)

    # ---------------------------------------------------------------------- each round

    def broadcast(self, server, key):
        # Clients need no part of the model to answer; one byte requests their upload.
        return Message(request=Dense(np.ones(1, dtype=np.uint8), dtype="uint8"))

    def fields(self, n_items):
        rows = "chosen" if self.sends_pairs else "all"
        if self.keeps_sparse(n_items):
            return {"gram": FieldSpec((n_pairs(n_items), 1), rows, sparse=True)}
        return {"gram": FieldSpec((n_pairs(n_items),), rows)}

    def enter(self, block, message, key):
        return Clients(liked(block), np.zeros(block.n_clients, dtype=bool))

    def update(self, block, clients, message, turn, key):
        likes, sign = clients.likes, -1 if clients.takes_back else 1
        # Those who take back are those who have sent.
        fresh = clients.has_sent if clients.takes_back else ~clients.has_sent
        senders = turn.active & fresh
        if not senders.any():
            return clients, None, None
        is_sparse = self.keeps_sparse(block.n_items)
        if turn.separate:
            indptr, numbers, values = single_grams(likes, self.pair_half_life, senders)
            values = values[:, None] if is_sparse else values
            gram = SparseRows(indptr, numbers, sign * values)
        else:
            gram_of = sparse_gram if is_sparse else dense_gram
            sums = gram_of(likes, self.pair_half_life, senders & turn.delivers)
            gram = Summed(sign * sums, n_pairs(likes.row_counts))
        # A client does not know whether its upload arrives, so it never sends another.
        clients = replace(clients, has_sent=clients.has_sent | senders)
        return clients, Updates({"gram": gram}, sends=fresh), None

    def step(self, server, upload, key):
        if upload is None:
            return server
        gram = upload["gram"]
        total, variance = gram.sum, server.noise_variance + gram.noise_std**2
        if sparse.issparse(server.gram) and not sparse.issparse(total):
            total = sparse.csc_array(total)  # an aggregator's
        return replace(server, gram=server.gram + total, noise_variance=variance)

    # ------------------------------------------------------------------------- the end

    def final(self, server):
        if not server.models:
            server.models.append(self.solve(server))
        return server.models[0]

    @abstractmethod
    def solve(self, server: Server) -> Message:
        """Server: the model of its sum."""

    # ------------------------------------------------------------------ with other rows

    def resume(self, now, before, places):
        i, j, values = pairs_of(before.gram, before.n_items)
        low, high = np.sort([places[i], places[j]], axis=0)
        kept = low >= 0
        gram = pair_column(n_pairs(high[kept]) + low[kept], values[kept], now.n_items)
        return replace(now, gram=gram if sparse.issparse(now.gram) else gram.toarray().ravel())

    def recall(self, clients, remembered):
        return replace(clients, has_sent=clients.has_sent | remembered)

    def has_sent(self, clients):
        return clients.has_sent

    def take_back(self, clients):
        return replace(clients, takes_back=True)


# ------------------------------------------------------------------------------ the estimator


@dataclass(eq=False, repr=False)
class FederatedGram(FromPairs, RankingMixin, FederatedRecommender):
    """Base class of the estimators whose algorithm is a `GramAlgorithm`."""

    _: KW_ONLY
    n_rounds: int = 1
    upload: Literal["auto", "local", "all"] = "auto"

    _parameter_constraints: ClassVar[dict] = (
        FederatedRecommender._parameter_constraints
        | FromPairs._fading_constraints
        | {"upload": [StrOptions({"auto", "local", "all"})]}
    )

    _dtype = np.float32

    @abstractmethod
    def _algorithm(self) -> GramAlgorithm:
        """Return the method's algorithm, with these hyperparameters."""

    def _of_sums(self, kind, **parts):
        """Return an algorithm of a class, which knows whether the federation hides items."""
        federation = self._setting()
        secret = federation.secure_aggregation is not None or federation.central_dp is not None
        return self._made(kind, hides_items=secret, **parts)

    def _attributes_of_state(self, server):
        counts = diagonal(server.gram, server.n_items)
        counts[counts <= STANDARD_DEVIATIONS * server.noise_std] = 0
        attributes = super()._attributes_of_state(server)
        return attributes | {"_popularity": popularity(counts, attributes.get("_content"))}

    def _private_vectors(self, clients):
        return histories(clients.likes, self._dtype).toarray()

    def _least_bytes(self, data):
        # `_check_setting` knows more.
        return 0

    def _check_before_fit(self):
        if self._setting().compression is not None:
            raise ValueError(
                f"{type(self).__name__} has nothing to compress: its clients send counts of pairs "
                "of items, once; set compression=None."
            )
        super()._check_before_fit()

    def _check_setting(self, federation, data, blocks):
        check_likes(data)
        if self._algorithm().keeps_sparse(data.n_items):
            if data.n_items > MOST_ITEMS:
                raise ValueError(
                    f"{type(self).__name__} takes at most {MOST_ITEMS} items, because clients "
                    f"number pairs of items in 32 bits, and there are {data.n_items}. Leave out "
                    "rare items, for example with preprocessing.filter_min_ratings."
                )
            held = [n_pairs(block.row_counts.astype(np.int64)).sum() for block in blocks]
            nbytes = PAIR_BYTES * sum(held)
        else:
            nbytes = 8 * MATRICES * data.n_items**2
        uploads = federation.uploads(is_forged=federation.adversary is not None)
        if uploads != "sum":
            held = [16 * n_pairs(block.row_counts.astype(np.int64)).sum() for block in blocks]
            nbytes += sum(held) if uploads == "held" else max(held)
        memory.require(
            int(nbytes),
            f"{type(self).__name__}'s matrices of {data.n_items} by {data.n_items} items, and the "
            f"pairs of {data.n_clients} clients,",
            "Leave out rare items, for example with preprocessing.filter_min_ratings, or use a "
            "method with factors such as LocALS.",
        )


# ------------------------------------------------------------------------- central privacy


def items_above_noise(matrix, noise_std):
    """Return the items whose count is clearly above the noise; warn if there are none, or few."""
    items = np.flatnonzero(np.diag(matrix) > STANDARD_DEVIATIONS * noise_std)
    by_chance = len(matrix) * norm.sf(STANDARD_DEVIATIONS)
    hint = "Allow a larger epsilon, or train on more clients."
    if not len(items):
        warn(
            "The noise of central_dp is larger than the count of every item, so all scores are 0. "
            + hint
        )
    elif len(items) <= by_chance + STANDARD_DEVIATIONS * np.sqrt(by_chance):
        warn(
            f"Only {len(items)} of {len(matrix)} items have a count above the noise of "
            f"central_dp, no more than noise alone may lift, so the scores say little. {hint}"
        )
    return items


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


def without_noise(matrix, noise_std):
    """Return X'X of the items that are above the noise, without most of it; zeros elsewhere."""
    items, result = items_above_noise(matrix, noise_std), np.zeros_like(matrix)
    strengths, vectors = signal(matrix[np.ix_(items, items)], noise_std)
    result[np.ix_(items, items)] = (vectors * strengths) @ vectors.T
    # The counts on the diagonal are known better.
    counts = np.diag(result).copy()
    counts[items] = np.maximum(counts[items], np.diag(matrix)[items])
    np.fill_diagonal(result, counts)
    return result
