"""CoLR: federated matrix factorisation by correlated low-rank updates (Nguyen et al. 2024)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import ClassVar

import numpy as np

from fedrecsk._utils.docs import documented
from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk.federated.fedmf import AveragedItems
from fedrecsk.protocol.messages import Dense, Derived, Message


@documented
@dataclass(eq=False, repr=False)
class CoLR(AveragedItems):
    """Correlated low-rank updates: federated matrix factorisation that uploads little.

    As :class:`FedMF`, but a client trains ``Q + A_u B`` with the round's B fixed: r orthogonal
    rows of d numbers and of length sqrt(d / r), which the server has drawn for all clients. Only
    A_u, which begins at zero, is uploaded, and since all have the same B the server can average
    it: Q moves by ``mean(A_u) B``. As B is new in each round, Q is not limited to a low rank.

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
          1  server sends Q and B, or mean(A_u) of the last round and B   _broadcast, _model_delta
          2  clients complete B to a basis and rotate Q to it             _decode_broadcast
          3  ... and their p_u                                            _client_update
          4  clients train p_u and A_u, q_i along B, as in FedMF          kernel visit
          5  clients upload A_u, and what they visited                    kernel visit
          6  server adds mean(A_u) B to Q                                 _aggregate
        at the end
          7  clients fit p_u to the final Q                               _personalize

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

    rank: int = 4
    _: KW_ONLY
    shrinkage: float = 0.5
    averaging: bool = True

    _parameter_constraints: ClassVar[dict] = AveragedItems._parameter_constraints | {
        "rank": [Interval(Integral, 1, None, closed="left")],
        "shrinkage": [Interval(Real, 0, None, closed="left")],
        "averaging": ["boolean"],
    }

    # A's step is learning_rate (rank / n_factors)^RANK_EXPONENT; 0.5 in the authors' code.
    RANK_EXPONENT = 0.75

    # ---------------------------------------------------------------------- each round

    def _broadcast(self, server, key):
        basis = self._length * self._directions(key)[: self.rank]
        basis = Dense(basis.astype(self._dtype), learned=False)
        return Message(**self._model(server), basis=basis)

    def _model_delta(self, server):
        if "update" not in server:
            return None
        basis = Dense(server["basis"], learned=False)
        return Message(update=Dense(server["update"]), basis=basis)

    def _decode_broadcast(self, message, key):
        if "basis" not in message:
            return message
        directions = self._directions(key)
        turned = message["item_factors"].values @ directions.T
        return Message(
            **message,
            directions=Derived(directions, learned=False),
            turned=Derived(turned, learned=False),
        )

    def _client_update(self, block, state, message, turn, key):
        # The first coordinates are those along B, so training A means training these.
        directions = message["directions"].values
        who, users = np.repeat(turn.active, np.diff(block.client_indptr)), state["users"]
        # Clients that have diverged are found when their uploads arrive.
        with np.errstate(over="ignore", invalid="ignore"):
            users[who] = users[who] @ directions.T
            turned = Message(item_factors=message["turned"])
            state, uploads, loss = super()._client_update(block, state, turned, turn, key)
            users[who] = users[who] @ directions
        return state, uploads, loss

    def _aggregate(self, server, message, upload, key):
        if upload is None:
            return server
        update, basis = self._mean_update(upload).astype(self._dtype), message["basis"].values
        moved = self._moved_items(server, update @ basis)
        return server | moved | {"update": update, "basis": basis}

    def _upload_moving(self, view, rows, moves):
        # Only the part of a move along the round's directions can be sent.
        encoded = moves @ np.linalg.pinv(view.message["basis"].values.astype(np.float64))
        return super()._upload_moving(view, rows, encoded)

    # -------------------------------------------------------------------- what differs

    def _least_bytes(self, data):
        # The factors have more columns than what is sent, and B is completed in float64.
        factors = np.dtype(self._dtype).itemsize * data.n_items * self.n_factors
        return super()._least_bytes(data) + factors + 8 * self.n_factors**2

    def _directions(self, key):
        """Orthonormal rows, (n_factors, n_factors): B's, and any that complete them."""
        normal = key.generator("basis").standard_normal((self.n_factors, self.rank))
        return np.linalg.qr(normal, mode="complete")[0].T.astype(self._dtype, order="C")

    @property
    def _n_columns(self):
        return self.rank

    @property
    def _length(self):
        """Length of the rows of B."""
        return float(np.sqrt(self.n_factors / self.rank))

    def _rate_and_length(self):
        rate = self.learning_rate * (self.rank / self.n_factors) ** self.RANK_EXPONENT
        # A step on A of this rate is one on A B of a rate |b|^2 times as large.
        return float(rate * self._length**2), self._length

    def _check_setting(self, federation, data, blocks):
        super()._check_setting(federation, data, blocks)
        if self.rank > self.n_factors:
            raise ValueError(
                f"rank={self.rank} is more than n_factors={self.n_factors}, and an update of a "
                "matrix with so many columns has no more; lower rank, or raise n_factors."
            )
