"""CoLR and SCoLR: matrix factorisation by correlated low-rank updates (Nguyen et al. 2024)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

import numpy as np

from fedrecsk._utils.constraints import ArrayLike, AtLeast1, NotNegative
from fedrecsk._utils.docs import documented
from fedrecsk._utils.parameters import constant
from fedrecsk.federated import fedmf
from fedrecsk.federated.fedmf import AveragedItems, AveragingParameters, FedMFAlgorithm
from fedrecsk.protocol.messages import Dense, Derived, Form, Message
from fedrecsk.updates import FieldSpec, SparseRows, Summed

__all__ = ["CoLR", "SCoLR"]


@dataclass(frozen=True)
class CoLRServer(fedmf.FedMFServer):
    """What the server knows: items, and the mean of A and the B of the last round."""

    update: np.ndarray | None = None
    basis: np.ndarray | None = None


@dataclass(eq=False, repr=False)
class CoLRParameters(AveragingParameters):
    """Parameters of CoLR."""

    rank: AtLeast1 = 4
    _: KW_ONLY
    aggregation: Literal["visits", "data_size"] = "visits"
    shrinkage: NotNegative = 0.5
    averaging: bool = True
    # A's step is learning_rate (rank / n_factors)^RANK_EXPONENT; 0.5 in the authors' code.
    RANK_EXPONENT: float = constant(0.75)


@dataclass(kw_only=True, eq=False)
class CoLRAlgorithm(CoLRParameters, FedMFAlgorithm):
    """Clients train the items along the rows of a matrix B that is new in each round."""

    @property
    def traits(self):
        # Uploads are along the B of their round.
        return replace(super().traits, takes_stale=False)

    def downloads(self, n_items):
        update, basis = Form((n_items, self.rank)), Form((self.rank, self.n_factors))
        return super().downloads(n_items) | {"update": update, "basis": basis}

    def begin(self, catalogue, sums, key):
        return CoLRServer(**vars(super().begin(catalogue, sums, key)))

    # ---------------------------------------------------------------------- each round

    def broadcast(self, server, key):
        basis = Dense(self._basis(key), learned=False)
        return Message(**super().broadcast(server, key), basis=basis)

    def delta(self, server):
        if server.update is None:
            return None
        basis = Dense(server.basis, learned=False)
        return Message(update=Dense(server.update), basis=basis)

    def decode(self, message, key):
        if "basis" not in message:
            return message
        directions = self._directions(key)
        turned = message["item_factors"].values @ directions.T
        return Message(
            **message,
            directions=Derived(directions, learned=False),
            turned=Derived(turned, learned=False),
        )

    def update(self, block, clients, message, turn, key):
        # The first coordinates are those along B, so training A means training these.
        directions, users = message["directions"].values, clients.users
        who = block.users_of(turn.active)
        # Clients that have diverged are found when their uploads arrive.
        with np.errstate(over="ignore", invalid="ignore"):
            users[who] = users[who] @ directions.T
            turned = Message(item_factors=message["turned"])
            clients, uploads, loss = super().update(block, clients, turned, turn, key)
            users[who] = users[who] @ directions
        return clients, uploads, loss

    def step(self, server, upload, key):
        if upload is None:
            return server
        update, basis = self.mean_update(upload).astype(self.dtype), self._basis(key)
        return replace(self.moved(server, update @ basis), update=update, basis=basis)

    # ---------------------------------------------------------------------- what is sent

    def _basis(self, key):
        """Return the matrix B of a round."""
        return (self._length * self._directions(key)[: self.rank]).astype(self.dtype)

    def _directions(self, key):
        """Return orthonormal rows, (n_factors, n_factors): B's, and any that complete them."""
        normal = key.generator("basis").standard_normal((self.n_factors, self.rank))
        return np.linalg.qr(normal, mode="complete")[0].T.astype(self.dtype, order="C")

    @property
    def n_columns(self):
        return self.rank

    @property
    def _length(self):
        """Length of the rows of B."""
        return float(np.sqrt(self.n_factors / self.rank))

    def rate_and_length(self):
        rate = self.learning_rate * (self.rank / self.n_factors) ** self.RANK_EXPONENT
        # A step on A of this rate is one on A B of a rate |b|^2 times as large.
        return float(rate * self._length**2), self._length


@documented
@dataclass(eq=False, repr=False)
class CoLR(CoLRParameters, AveragedItems):
    """Correlated low-rank updates: federated matrix factorisation with small uploads.

    As :class:`FedMF`, but a client trains ``Q + A_u B`` with the round's B fixed: r orthogonal
    rows of d numbers and of length sqrt(d / r), which the server draws for all clients. Only A_u,
    which begins at zero, is uploaded. Since all clients use the same B, the server can average
    these: Q moves by ``mean(A_u) B``. As B is new in each round, Q is not limited to a low rank.

    Parameters
    ----------
    rank : int, default=4
        Columns of A and rows of B (r), at most `n_factors`.
    n_factors, n_rounds, loss, n_negatives, local_epochs, batch_size
        As in :class:`FedMF`.
    learning_rate : float, default=0.5
        Step of SGD on user vectors (eta).
    reg, aggregation, shrinkage, averaging
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
        As :class:`FedMF` does, and if `rank` is above `n_factors`.

    See Also
    --------
    FedMF : Full updates; the same as ``rank=n_factors``.
    SCoLR : A rank for each client.

    Notes
    -----
    *Algorithm*::

        each round
          1  server sends Q and B, or mean(A_u) of the last round and B   broadcast, delta
          2  clients complete B to a basis and rotate Q to it             decode
          3  ... and their p_u                                            update
          4  clients train p_u and A_u, q_i along B, as in FedMF          kernel visit
          5  clients upload A_u, and what they visited                    kernel visit
          6  server adds mean(A_u) B to Q                                 step
        at the end
          7  clients fit p_u to the final Q                               personalize

    *Rotation.* Q and p_u are rotated so that the first r coordinates are those along B's rows;
    training A_u then means training these coordinates of q_i. This is exact.

    *What is sent.* Up: A_u, ``4 m r`` bytes per client per round for m items, and the visits or
    number of ratings, as in :class:`FedMF`. Down: B, ``4 r d`` bytes, and Q, ``4 m d`` bytes; a
    client that has the last Q receives mean(A_u) instead, ``4 m r`` bytes. One that returns
    after c rounds receives c of them, if they take fewer bytes than Q.

    *What it reveals.* As in :class:`FedMF`: the rows of A_u that are not zero are the visited
    items.

    References
    ----------
    .. [1] N.-H. Nguyen, T.-A. Nguyen, T. Nguyen, V. T. Hoang, D. D. Le and K.-S. Wong, "Towards
       Efficient Communication and Secure Federated Recommendation System via Low-rank
       Training", WWW 2024, section 4.3 and algorithm 1.

    Examples
    --------
    >>> from fedrecsk import CoLR
    >>> from fedrecsk.datasets import make_ratings
    >>> X, _ = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> model = CoLR(2, n_factors=8, n_rounds=50, random_state=0).fit(X)
    >>> model.item_factors_.shape
    (40, 8)
    >>> model.communication_.bytes_up == 50 * 12 * (4 * 40 * 2 + 40)
    True
    """

    _kind = CoLRAlgorithm

    def _least_bytes(self, data):
        # The factors have more columns than what is sent, and B is completed in float64.
        factors = np.dtype(self._dtype).itemsize * data.n_items * self.n_factors
        return super()._least_bytes(data) + factors + 8 * self.n_factors**2

    def _check_setting(self, plan, data, blocks):
        super()._check_setting(plan, data, blocks)
        if self.rank > self.n_factors:
            raise ValueError(
                f"rank={self.rank} is more than n_factors={self.n_factors}, and an update of a "
                "matrix with so many columns has no more; lower rank, or raise n_factors."
            )


@dataclass(eq=False, repr=False)
class SCoLRParameters(CoLRParameters):
    """Parameters of SCoLR."""

    rank: AtLeast1 = 16
    _: KW_ONLY
    local_rank: Literal["uniform"] | AtLeast1 | ArrayLike = "uniform"
    aggregation: Literal["visits", "entries", "data_size"] = "visits"


@dataclass(kw_only=True, eq=False)
class SCoLRAlgorithm(SCoLRParameters, CoLRAlgorithm):
    """Each client trains the items along some of the rows of B."""

    @property
    def traits(self):
        # An array has the ranks of the clients that were there first.
        admits = isinstance(self.local_rank, str) or np.ndim(self.local_rank) == 0
        return replace(super().traits, admits_late_clients=admits)

    def fields(self, n_items):
        specs = super().fields(n_items)
        # A compressor would have to send which columns it has kept.
        specs["updates"] = replace(specs["updates"], compressible=False)
        return specs | {"rows_of_basis": FieldSpec((self.rank,), dtype="uint8", learned=False)}

    def sent(self, block, turn, columns, is_finite, out):
        fields = super().sent(block, turn, columns, is_finite, out)
        picked = ("updates", "n_visits") if self.aggregation == "entries" else ("updates",)
        for name in picked:
            if turn.separate:
                fields[name] = replace(fields[name], columns=columns)
            else:
                fields[name] = Summed(fields[name], n_columns=columns.sum(axis=1))
        if turn.separate:
            fields["rows_of_basis"] = SparseRows.stacked(columns.astype(np.uint8))
        else:
            senders = turn.active & turn.delivers & is_finite
            fields["rows_of_basis"] = columns[senders].sum(axis=0)
        return fields

    def columns(self, block, key):
        # The rows of B that each client trains, redrawn in each round.
        coordinates = block.clients[:, None] * self.rank + np.arange(self.rank)
        draws = key.private.uniform("rows of B", coordinates)
        places = np.argsort(np.argsort(draws, axis=1, kind="stable"), axis=1)
        return places < self._local_ranks(block, key)[:, None]

    def _local_ranks(self, block, key):
        """Return r_u of each client of the block in this round."""
        if isinstance(self.local_rank, str):
            chance = key.private.uniform("local rank", block.clients)
            return 1 + (chance * self.rank).astype(np.int64)
        given = np.asarray(self.local_rank)
        if given.ndim == 0:
            return np.full(block.n_clients, given)
        return np.atleast_2d(given)[key.round % len(np.atleast_2d(given)), block.clients]

    @property
    def n_count_columns(self):
        return self.rank if self.aggregation == "entries" else 1


@documented
@dataclass(eq=False, repr=False)
class SCoLR(SCoLRParameters, CoLR):
    """CoLR for clients whose uplinks differ: each trains as many rows of B as it can send.

    As :class:`CoLR`, but in each round client u trains a random subset of r_u rows of the
    server's B, and uploads only these columns of A, with their indices.

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
          1  server sends Q and B                                  CoLR's broadcast
          2  clients choose r_u of B's rows                        columns
          3  clients train p_u, and A_u along these rows           CoLR's update
          4  clients upload these columns of A_u, and which        sent
          5  server adds mean(A_u) B to Q                          CoLR's step
        at the end
          6  clients fit p_u to the final Q                        personalize

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

    _kind = SCoLRAlgorithm

    def _check_setting(self, plan, data, blocks):
        super()._check_setting(plan, data, blocks)
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
