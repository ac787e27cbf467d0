"""SCoLR: CoLR with a rank for each client and round (Nguyen et al. 2024, section 4.4)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from fedrecsk._utils.docs import documented
from fedrecsk._utils.sklearn_compat import Interval, StrOptions
from fedrecsk.federated.colr import CoLR
from fedrecsk.updates import FieldSpec, SparseRows, Summed

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@documented
@dataclass(eq=False, repr=False)
class SCoLR(CoLR):
    """CoLR for clients whose uplinks differ: each trains as many rows of B as it can send.

    As :class:`CoLR`, but in each round client u trains a random subset of r_u rows of the
    server's B, and uploads only these columns of A, and which they are.

    Parameters
    ----------
    rank : int, default=16
        Rows of the server's B (r_g), at most `n_factors`.
    local_rank : "uniform", int or array-like of int, default="uniform"
        How many of them client u trains (r_u), from 1 to `rank`. "uniform": redrawn for each
        client and round, as in the paper. An int is the same for all clients; shape (n_clients,)
        has each client's, in the order of the sorted client ids, and with shape
        (n_rows, n_clients) each round uses the next row, and after the last the first again.
    n_factors, n_rounds, loss, n_negatives, local_epochs, batch_size, learning_rate
        As in :class:`FedMF`.
    reg : float, default=2e-3
        As in :class:`FedMF`.
    aggregation : {"visits", "entries", "data_size"}, default="visits"
        As in :class:`FedMF`. "entries": divide each entry of A by the number of clients that
        trained it, instead of by all that visited its item; its counts take m r_u bytes
        in place of m. Steps are larger and noisier.
    shrinkage, averaging
        As in :class:`FedMF`.
    {shared parameters}

    Attributes
    ----------
    user_factors_, item_factors_, global_bias_
        As in :class:`FedMF`.
    {shared attributes}

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
    *Algorithm*::

        each round
          1  server sends Q and B                                  CoLR._broadcast
          2  clients choose r_u of B's rows                        _columns
          3  clients train p_u, and A_u along these rows           CoLR._client_update
          4  clients upload these columns of A_u, and which        _client_update
          5  server adds mean(A_u) B to Q                          CoLR._aggregate
        at the end
          6  clients fit p_u to the final Q                        _personalize

    *What is sent.* Down: as in :class:`CoLR`. Up: ``4 m r_u`` bytes for the client's columns of
    A, `rank` bytes for which of B's rows they belong to, and the visits, their entries or the
    number of ratings. Which rows are chosen does not depend on the data.

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

    rank: int = 16
    _: KW_ONLY
    local_rank: Literal["uniform"] | int | ArrayLike = "uniform"
    aggregation: Literal["visits", "entries", "data_size"] = "visits"

    _parameter_constraints: ClassVar[dict] = CoLR._parameter_constraints | {
        "local_rank": [
            StrOptions({"uniform"}),
            Interval(Integral, 1, None, closed="left"),
            "array-like",
        ],
        "aggregation": [StrOptions({"visits", "entries", "data_size"})],
    }

    # ---------------------------------------------------------------------- each round

    def _upload_specs(self, n_items):
        specs = super()._upload_specs(n_items)
        # A compressor would have to send which columns it has kept.
        specs["updates"] = replace(specs["updates"], compressible=False)
        return specs | {"rows_of_basis": FieldSpec((self.rank,), dtype="uint8", learned=False)}

    def _client_update(self, block, state, message, turn, key):
        state, updates, loss = super()._client_update(block, state, message, turn, key)
        columns, fields = self._columns(block, key), updates.fields
        for name in self._picked:
            if turn.separate:
                fields[name] = replace(fields[name], columns=columns)
            else:
                fields[name] = Summed(fields[name], n_columns=columns.sum(axis=1))
        if turn.separate:
            fields["rows_of_basis"] = SparseRows.stacked(columns.astype(np.uint8))
        else:
            senders = turn.active & turn.delivers & updates.is_finite
            fields["rows_of_basis"] = columns[senders].sum(axis=0)
        return state, updates, loss

    def _columns(self, block, key):
        """Return the rows of B that each client trains, redrawn in each round."""
        coordinates = block.clients[:, None] * self.rank + np.arange(self.rank)
        draws = key.private.uniform("rows of B", coordinates)
        places = np.argsort(np.argsort(draws, axis=1, kind="stable"), axis=1)
        return places < self._local_ranks(block, key)[:, None]

    def _upload_moving(self, view, rows, moves):
        sent = super()._upload_moving(view, rows, moves)
        if self.aggregation == "entries":
            return sent
        # Not all of the adversary's clients send a column.
        columns = [one.fields["updates"].columns for one in view.updates]
        n_own = np.concatenate(columns).sum(axis=0)
        return {"updates": sent["updates"] * (view.n_own / np.maximum(n_own, 1))}

    # -------------------------------------------------------------------- what differs

    def _local_ranks(self, block, key):
        """r_u of each client of the block in this round."""
        if isinstance(self.local_rank, str):
            chance = key.private.uniform("local rank", block.clients)
            return 1 + (chance * self.rank).astype(np.int64)
        given = np.asarray(self.local_rank)
        if given.ndim == 0:
            return np.full(block.n_clients, given)
        return np.atleast_2d(given)[key.round % len(np.atleast_2d(given)), block.clients]

    @property
    def _picked(self):
        """The fields that a client sends only in its own columns."""
        return ("updates", "n_visits") if self.aggregation == "entries" else ("updates",)

    @property
    def _n_count_columns(self):
        return self.rank if self.aggregation == "entries" else 1

    def _visits(self, indptr, columns):
        if self.aggregation != "entries":
            return super()._visits(indptr, columns)
        return np.repeat(columns, np.diff(indptr), axis=0).astype(np.uint8)

    # ------------------------------------------------------------------------------ checks

    @property
    def _admits_late_clients(self):
        # An array has the ranks of the clients that were there first.
        return isinstance(self.local_rank, str) or np.ndim(self.local_rank) == 0

    def _check_setting(self, federation, data, blocks):
        super()._check_setting(federation, data, blocks)
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
