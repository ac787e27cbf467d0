"""SCoLR: CoLR with a rank for each client and round (Nguyen et al. 2024, section 4.4)."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Literal

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from fedrecsk.federated.colr import CoLR
from fedrecsk.simulation.messages import Dense

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from fedrecsk.simulation.federation import Federation


class SCoLR(CoLR):
    """CoLR for clients whose uplinks differ: each trains as many rows of B as it can send.

    As :class:`CoLR`, but in each round client u trains a random subset of r_u rows of the
    server's B, and uploads only these columns of A, and which they are.

    Parameters
    ----------
    rank : int, default=16
        Rows of the server's B (r_g), at most `n_factors`.
    local_rank : "uniform", int or array-like of int, default="uniform"
        How many of them client u trains (r_u), from 1 to `rank`. "uniform": drawn anew for each
        client and round, as in the paper. An int is everybody's; shape (n_clients,) gives each
        client's, in the order of the sorted client ids, and shape (n_rows, n_clients) goes
        through the rows round by round and begins again.
    n_factors, n_rounds, loss, n_negatives, local_epochs, batch_size, learning_rate
        As in :class:`FedMF`.
    rank_exponent : float, default=0.75
        As in :class:`CoLR`; `rank` is the server's.
    weight_decay : float, default=2e-3
        As in :class:`FedMF`.
    aggregation : {"visits", "entries", "data_size"}, default="visits"
        As in :class:`FedMF`. "entries": divide each entry of A by the number of clients that
        trained it, instead of by all that visited its item; its counts cost m r_u bytes
        in place of m. Steps are larger and noisier.
    init_std, client_fraction
        As in :class:`FedMF`.
    early_stopping, validation_fraction, n_iter_no_change, tol
        As in :class:`FedMF`.
    warm_start, n_jobs, random_state, federation
        As in :class:`FedMF`.

    Attributes
    ----------
    user_factors_, item_factors_, global_bias_, user_ids_, item_ids_, n_users_, n_items_
        As in :class:`FedMF`.
    n_rounds_, best_round_, loss_curve_, history_, communication_, privacy_
        As in :class:`FedMF`.

    Raises
    ------
    ValueError
        As :class:`CoLR` does, and if `local_rank` has another shape, holds anything but
        integers, or leaves the range from 1 to `rank`.

    See Also
    --------
    CoLR : One rank for all.

    Notes
    -----
    *What crosses the wire.* Down: as in :class:`CoLR`. Up: ``4 m r_u`` bytes for the client's
    columns of A, `rank` bytes for which of B's rows they go with, and the visits, their entries or
    N_u. Which rows are chosen does not depend on the data.

    References
    ----------
    .. [1] N.-H. Nguyen, T.-A. Nguyen, T. Nguyen, V. T. Hoang, D. D. Le and K.-S. Wong, "Towards
       Efficient Communication and Secure Federated Recommendation System via Low-rank
       Training", WWW 2024, section 4.4 and algorithm 2.

    Examples
    --------
    Ten clients on a slow line, the others on a fast one:

    >>> from fedrecsk import SCoLR
    >>> from fedrecsk.datasets import make_ratings
    >>> X, _ = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> local_rank = [1] * 10 + [4] * 50
    >>> model = SCoLR(4, local_rank=local_rank, n_factors=8, n_rounds=50, random_state=0).fit(X)
    >>> sent = model.communication_.client_bytes_up / model.communication_.client_bytes_up.max()
    >>> bool(sent[:10].mean() < sent[10:].mean())
    True
    """

    _parameter_constraints: dict = CoLR._parameter_constraints | {
        "local_rank": [
            StrOptions({"uniform"}),
            Interval(Integral, 1, None, closed="left"),
            "array-like",
        ],
        "aggregation": [StrOptions({"visits", "entries", "data_size"})],
    }

    def __init__(
        self,
        rank: int = 16,
        *,
        local_rank: Literal["uniform"] | int | ArrayLike = "uniform",
        n_factors: int = 64,
        n_rounds: int = 200,
        loss: Literal["bce", "squared"] = "bce",
        n_negatives: int = 4,
        local_epochs: int = 2,
        batch_size: int = 64,
        learning_rate: float = 0.5,
        rank_exponent: float = 0.75,
        weight_decay: float = 2e-3,
        aggregation: Literal["visits", "entries", "data_size"] = "visits",
        init_std: float = 0.03,
        client_fraction: float = 0.2,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-4,
        warm_start: bool = False,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        federation: Federation | None = None,
    ):
        super().__init__(
            rank,
            rank_exponent=rank_exponent,
            n_factors=n_factors,
            n_rounds=n_rounds,
            loss=loss,
            n_negatives=n_negatives,
            local_epochs=local_epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            aggregation=aggregation,
            init_std=init_std,
            client_fraction=client_fraction,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            tol=tol,
            warm_start=warm_start,
            n_jobs=n_jobs,
            random_state=random_state,
            federation=federation,
        )
        self.local_rank = local_rank

    # ---------------------------------------------------------------------- the algorithm

    def _columns(self, block, key):
        """The rows of B that each active client trains, drawn anew each round."""
        sizes = self._local_ranks(block, key)
        indptr = np.r_[0, np.cumsum(sizes)]
        coordinates = block.clients[:, None] * self.rank + np.arange(self.rank)
        shuffled = np.argsort(key.uniform("rows of B", coordinates), axis=1, kind="stable")
        taken = np.arange(self.rank) < sizes[:, None]
        return indptr, shuffled[taken].astype(np.int32)

    def _local_ranks(self, block, key):
        """r_u of each client of the block in this round."""
        if isinstance(self.local_rank, str):
            chance = key.uniform("local rank", block.clients)
            return 1 + (chance * self.rank).astype(np.int64)
        given = np.asarray(self.local_rank)
        if given.ndim == 0:
            return np.full(block.n_clients, given)
        return np.atleast_2d(given)[key.round % len(np.atleast_2d(given)), block.clients]

    def _upload(self, block, scale, sound, sums, n_visits, columns):
        message = super()._upload(block, scale, sound, sums, n_visits, columns)
        indptr, ranks = columns
        sizes = np.diff(indptr) * block.n_items
        message["updates"] = Dense(sums, n_coordinates=sizes)
        if self.aggregation == "entries":
            message["n_visits"] = Dense(n_visits, dtype="uint8", n_coordinates=sizes)
        senders = np.repeat(block.delivers & sound, np.diff(indptr))
        n_trainers = np.bincount(ranks[senders], minlength=self.rank)
        message["rows_of_basis"] = Dense(n_trainers, dtype="uint8")
        return message

    def _empty_sums(self, block):
        sums, n_visits = super()._empty_sums(block)
        return sums, np.zeros(sums.shape, np.int32) if self.aggregation == "entries" else n_visits

    # ------------------------------------------------------------------------------ checks

    def _check_world(self, federation, data, blocks):
        super()._check_world(federation, data, blocks)
        if isinstance(self.local_rank, str):
            return
        given = np.asarray(self.local_rank)
        if given.dtype.kind not in "iu":
            raise ValueError(f"local_rank must hold integers, got {given.dtype} values.")
        if given.ndim > 2 or (given.ndim and given.shape[-1] != data.n_clients):
            raise ValueError(
                f"local_rank has shape {given.shape}, but there are {data.n_clients} clients; give "
                "(n_clients,) or (n_rows, n_clients), in the order of the sorted client ids."
            )
        if given.size == 0 or given.min() < 1 or given.max() > self.rank:
            raise ValueError(
                f"local_rank must be between 1 and rank={self.rank}, got {given.min()} to "
                f"{given.max()}."
            )
