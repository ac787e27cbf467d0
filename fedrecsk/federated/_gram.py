"""What FedEASE and FedSpectral share: X'X, one sum over clients, and what noise leaves of it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import numpy as np
from scipy.linalg import eigh
from scipy.stats import norm

from fedrecsk._utils import memory
from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.sklearn_compat import StrOptions
from fedrecsk._utils.user_warnings import warn
from fedrecsk.base import RankingMixin, check_likes
from fedrecsk.base._fading import FadingPairs, ages, rates
from fedrecsk.base._item_weights import add_gram, histories, liked, lower_part, n_pairs, whole
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.protocol.messages import Dense, Message
from fedrecsk.updates import ClientUpdates, FieldSpec, SparseRows, Summed

gram_kernels: LazyModule = LazyModule("fedrecsk.base._gram_kernels")

# At most this many float64 per pair of items at a time: sums, X'X and results computed from it.
MATRICES = 6
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
    _max_uploads = 1
    # Every client is then reached once in a pass.
    _prefers_rotation = True
    _dtype = np.float32

    # ---------------------------------------------------------------------- the algorithm

    def _init_server(self, catalogue, key):
        n_items = catalogue.n_items
        gram = np.zeros(n_pairs(n_items))
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
        return {"gram": FieldSpec((n_pairs(n_items),), "chosen" if self._sends_pairs else "all")}

    def _client_update(self, block, state, message, turn, key):
        likes, sign = state["likes"], state["sign"]
        # Those who take back are those who have sent.
        fresh = ~state["has_sent"] if sign > 0 else state["has_sent"]
        senders = turn.active & fresh
        if not senders.any():
            return state, None, None
        if turn.separate:
            gram = _single(likes, self.pair_half_life, senders, sign)
        else:
            sums = np.zeros(n_pairs(block.n_items))
            add_gram(likes, self.pair_half_life, senders & turn.delivers, sums)
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
        return server | {
            "gram": server["gram"] + gram.sum,
            "noise_variance": variance + gram.noise_std**2,
            "solved": {},
        }

    _takes_back = True

    def _resumed(self, server, before, places):
        gram = np.zeros((server["n_items"], server["n_items"]))
        gram[np.ix_(places, places)] = whole(before["gram"], before["n_items"])
        return server | {"gram": lower_part(gram)}

    # ----------------------------------------------------------------------- what it needs

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

    # ------------------------------------------------------------------------------ checks

    def _least_bytes(self, data):
        # `_check_setting` knows more.
        return 0

    def _check_before_fit(self):
        name, federation = type(self).__name__, self._setting()
        if federation.local_dp is not None:
            raise ValueError(
                f"{name} has no local_dp: noise on every pair of items would drown the few that a "
                "client has, and the pairs that it sends reveal which items it holds. Use "
                "central_dp, whose noise is added to the sum, or RFRec for local differential "
                "privacy."
            )
        if federation.compression is not None:
            raise ValueError(
                f"{name} has nothing to compress: its clients send counts of pairs of items, once; "
                "set compression=None."
            )
        super()._check_before_fit()
        if federation.secure_aggregation is not None and self._sends_pairs:
            raise ValueError(
                f"With secure_aggregation {name} must send whole matrices, because pairs of only "
                'some items cannot be added encrypted; set upload="all" or "auto".'
            )

    def _check_setting(self, federation, data, blocks):
        check_likes(data)
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


def _single(likes, half_life, senders, sign):
    """Return each sender's own pairs, times `sign`; other clients have none."""
    row_counts = np.where(senders, likes.row_counts, 0).astype(np.int64)
    row_indptr = np.concatenate([[0], np.cumsum(row_counts)])
    indptr = np.concatenate([[0], np.cumsum(n_pairs(row_counts))])
    row_items = likes.row_items[np.repeat(senders, likes.row_counts)]
    numbers, values = np.empty(indptr[-1], dtype=np.int64), np.zeros(indptr[-1])
    gram_kernels.pair_numbers(row_indptr, row_items, indptr[:-1], numbers)
    gram_kernels.add_pairs(
        likes.client_indptr,
        likes.indptr,
        likes.rows,
        likes.row_indptr[:-1],
        likes.weights,
        ages(likes),
        rates(likes, half_life),
        senders,
        indptr[:-1],
        values,
    )
    return SparseRows(indptr, numbers, sign * values)


# ------------------------------------------------------------------------- central privacy


def items_above_noise(matrix, noise_std):
    """Return the items whose count, on the diagonal, is clearly above the noise on each entry.

    Warns if there are none, or no more than noise alone would lift.
    """
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

    Independent Gaussian noise on the entries of a symmetric matrix of n items has eigenvalues up
    to 2 std sqrt(n) in size (Wigner 1958). It also makes true eigenvalues larger, and turns
    eigenvectors away. The smallest expected squared error of the whole matrix is reached with
    sqrt(e^2 - (2 std)^2 n) in place of an eigenvalue e, and 0 in place of those within the noise
    (Gavish and Donoho, "Optimal shrinkage of singular values", IEEE Transactions on Information
    Theory 63(4), 2017).
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
