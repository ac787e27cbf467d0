"""What FedEASE and FedSpectral share: X'X, one sum over clients, and what noise leaves of it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import numpy as np
from scipy import sparse
from scipy.linalg import eigh
from scipy.stats import norm

from fedrecsk._utils import memory
from fedrecsk._utils.sklearn_compat import StrOptions
from fedrecsk._utils.user_warnings import warn
from fedrecsk.base import RankingMixin, _item_weights, check_likes
from fedrecsk.base._fading import FadingPairs
from fedrecsk.base._item_weights import (
    dense_gram,
    histories,
    liked,
    lower_part,
    n_pairs,
    pairs_of,
    single_grams,
    sparse_gram,
    whole,
)
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.protocol.messages import Dense, Message
from fedrecsk.updates import ClientUpdates, FieldSpec, SparseRows, Summed

# At most this many float64 per pair of items at a time: sums, X'X and results computed from it.
MATRICES = 6
# Most bytes that a sparse sum, and what is computed from it, takes for each pair sent.
PAIR_BYTES = 64
# Clients number pairs by an int32.
MOST_ITEMS = 2**16 - 1
# Items are left out if their own count is below this many standard deviations of the noise.
STANDARD_DEVIATIONS = 3.0


@dataclass(eq=False, repr=False)
class FederatedGram(FadingPairs, RankingMixin, FederatedRecommender):
    """Base class of the methods whose server needs only X'X.

    A method gives `_solve`, `_model`, and the users' half.
    """

    _: KW_ONLY
    n_rounds: int = 1
    upload: Literal["auto", "local", "all"] = "auto"

    _parameter_constraints: ClassVar[dict] = (
        FederatedRecommender._parameter_constraints
        | FadingPairs._fading_constraints
        | {"upload": [StrOptions({"auto", "local", "all"})]}
    )

    _single_uploads = True
    _sends_once = True
    # Every client is then reached once in a pass.
    _prefers_rotation = True
    _dtype = np.float32

    _no_local_dp = (
        "noise on every pair of items would drown the few that a client has, and the pairs that it "
        "sends reveal which items it holds. Use central_dp, whose noise is added to the sum, or "
        "RFRec for local differential privacy."
    )

    # Whether `_solve` takes a sparse column in place of a triangle.
    _solves_sparse = False

    def _keeps_sparse(self, n_items):
        """Whether the sum is kept sparse."""
        return self._solves_sparse and self._sends_pairs and n_items >= _item_weights.MANY_ITEMS

    def _init_server(self, catalogue, key):
        n_items = catalogue.n_items
        sizes = n_pairs(n_items)
        gram = sparse.csc_array((sizes, 1)) if self._keeps_sparse(n_items) else np.zeros(sizes)
        return {"n_items": n_items, "gram": gram, "noise_variance": 0.0, "solved": {}}

    def _broadcast(self, server, key):
        # Clients need no part of the model to answer; one byte requests their upload.
        return Message(request=Dense(np.ones(1, dtype=np.uint8), dtype="uint8"))

    def _init_clients(self, block, message, key):
        likes = liked(block)
        has_sent = np.zeros(block.n_clients, dtype=bool)
        history = histories(likes, self._dtype, self.history_half_life)
        return {"likes": likes, "history": history, "has_sent": has_sent, "sign": 1}

    def _upload_specs(self, n_items):
        rows = "chosen" if self._sends_pairs else "all"
        if self._keeps_sparse(n_items):
            return {"gram": FieldSpec((n_pairs(n_items), 1), rows, sparse=True)}
        return {"gram": FieldSpec((n_pairs(n_items),), rows)}

    def _client_update(self, block, state, message, turn, key):
        likes, sign = state["likes"], state["sign"]
        # Those who take back are those who have sent.
        fresh = ~state["has_sent"] if sign > 0 else state["has_sent"]
        senders = turn.active & fresh
        if not senders.any():
            return state, None, None
        is_sparse = self._keeps_sparse(block.n_items)
        if turn.separate:
            indptr, numbers, values = single_grams(likes, self.pair_half_life, senders)
            values = values[:, None] if is_sparse else values
            gram = SparseRows(indptr, numbers, sign * values)
        else:
            gram_of = sparse_gram if is_sparse else dense_gram
            sums = gram_of(likes, self.pair_half_life, senders & turn.delivers)
            gram = Summed(sign * sums, n_pairs(likes.row_counts))
        # A client does not know whether its upload arrives, so it never sends another.
        state = state | {"has_sent": state["has_sent"] | senders}
        return state, ClientUpdates({"gram": gram}, sends=fresh), None

    def _recalled(self, state, remembered):
        return state | {"has_sent": state["has_sent"] | remembered}

    def _taking_back(self, state):
        return state | {"sign": -1}

    def _aggregate(self, server, message, upload, key):
        if upload is None:
            return server
        gram, variance = upload["gram"], server["noise_variance"]
        total = gram.sum
        if sparse.issparse(server["gram"]) and not sparse.issparse(total):
            total = sparse.csc_array(total)  # an aggregator's
        return server | {
            "gram": server["gram"] + total,
            "noise_variance": variance + gram.noise_std**2,
            "solved": {},
        }

    def _resumed(self, server, before, places):
        known = places >= 0
        is_sparse = sparse.issparse(server["gram"])
        if is_sparse or sparse.issparse(before["gram"]):
            i, j, values = pairs_of(before["gram"], before["n_items"])
            kept = known[i] & known[j]
            numbers = n_pairs(places[i[kept]]) + places[j[kept]]
            entries = values[kept], (numbers, np.zeros(len(numbers), dtype=np.int64))
            gram = sparse.csc_array(entries, (n_pairs(server["n_items"]), 1))
            return server | {"gram": gram if is_sparse else gram.toarray().ravel()}
        gram = np.zeros((server["n_items"], server["n_items"]))
        own = whole(before["gram"], before["n_items"])[np.ix_(known, known)]
        gram[np.ix_(places[known], places[known])] = own
        return server | {"gram": lower_part(gram)}

    def _solved(self, server):
        """Return the result of `_solve` for the sum, computed once."""
        if not server["solved"]:
            noise_std = float(np.sqrt(server["noise_variance"]))
            server["solved"].update(self._solve(server["gram"], server["n_items"], noise_std))
        return server["solved"]

    @property
    def _sends_pairs(self):
        if self.upload == "auto":
            return not self._hides_items
        return self.upload == "local"

    @property
    def _hides_items(self):
        """Whether the server must not learn which items a client holds."""
        federation = self._setting()
        return federation.secure_aggregation is not None or federation.central_dp is not None

    def _private_vectors(self, state):
        return histories(state["likes"], self._dtype).toarray()

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
        if self._keeps_sparse(data.n_items):
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
        if federation.looks_at_uploads or federation.adversary is not None:
            held = [16 * n_pairs(block.row_counts.astype(np.int64)).sum() for block in blocks]
            nbytes += sum(held) if federation.holds_uploads else max(held)
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
