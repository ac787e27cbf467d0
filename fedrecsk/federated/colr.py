"""CoLR: federated matrix factorisation by correlated low-rank updates (Nguyen et al. 2024)."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, Literal

import numpy as np
from sklearn.utils._param_validation import Interval

from fedrecsk.federated.fedmf import FedMF
from fedrecsk.simulation.messages import Dense, Derived, Message

if TYPE_CHECKING:
    from fedrecsk.simulation.federation import Federation


class CoLR(FedMF):
    """Correlated low-rank updates: federated matrix factorisation that uploads little.

    As :class:`FedMF`, but a client trains ``Q + A_u B`` with the round's B as it is: r rows of
    length d that the server has drawn for all, orthogonal and sqrt(d / r) long. Only A_u, which
    begins at zero, travels up, and since all have the same B the server can average it: Q moves by
    ``mean(A_u) B``. As B is new in each round, Q can go anywhere in the end.

    Parameters
    ----------
    rank : int, default=4
        Columns of A and rows of B (r), at most `n_factors`.
    n_factors, n_rounds, loss, n_negatives, local_epochs, batch_size
        As in :class:`FedMF`.
    learning_rate : float, default=0.5
        Step of SGD on user vectors (eta).
    rank_exponent : float, default=0.75
        A's step is ``learning_rate * (rank / n_factors) ** rank_exponent``. The authors have 0.5.
    weight_decay, aggregation, init_std, client_fraction
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
        As :class:`FedMF` does, and if `rank` is above `n_factors`.

    See Also
    --------
    FedMF : Full updates; the same as ``rank=n_factors``.
    SCoLR : A rank for each client.

    Notes
    -----
    *What crosses the wire.* Up: A_u, ``4 m r`` bytes a client and round for m items, and the
    visits or N_u, as in :class:`FedMF`. Down: Q, ``4 m d`` bytes, and B, ``4 r d`` bytes. The
    paper's downlink is mean(A) alone, of ``4 m r`` bytes; that is enough only for clients that
    follow every round. A client that returns after c rounds needs ``c m r`` numbers to
    catch up, more than Q itself once c > d / r, and so the ledger counts Q.

    *What it reveals.* As in :class:`FedMF`: the rows of A_u that are not zero are the visited
    items.

    *Learning rate.* The rows of B are sqrt(d / r) long. With ``rank_exponent=0.5`` a step on A
    moves q by as much as a step of `learning_rate` whose gradient lies in the span of B;
    with 1 it does so on average over B. In between is best on validation data: larger steps are
    noisier, since what lies outside the span must wait for other rounds.

    *Simulation.* A client's vectors are turned to coordinates of which the first are those along
    B's rows; to train A is to train these coordinates of q. This is exact.

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

    _parameter_constraints: dict = FedMF._parameter_constraints | {
        "rank": [Interval(Integral, 1, None, closed="left")],
        "rank_exponent": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(
        self,
        rank: int = 4,
        *,
        n_factors: int = 64,
        n_rounds: int = 200,
        loss: Literal["bce", "squared"] = "bce",
        n_negatives: int = 4,
        local_epochs: int = 2,
        batch_size: int = 64,
        learning_rate: float = 0.5,
        rank_exponent: float = 0.75,
        weight_decay: float = 2e-3,
        aggregation: Literal["visits", "data_size"] = "visits",
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
            n_factors,
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
        self.rank = rank
        self.rank_exponent = rank_exponent

    # ---------------------------------------------------------------------- the algorithm

    def _broadcast(self, server, key):
        directions = self._directions(key)
        basis = self._length * directions[: self.rank]
        return Message(
            **self._model(server),
            basis=Dense(basis.astype(self._dtype), learned=False),
            directions=Derived(directions, learned=False),
        )

    def _news(self, server):
        if "update" not in server:
            return None
        basis = Dense(server["basis"], learned=False)
        return Message(update=Dense(server["update"]), basis=basis)

    def _on_receipt(self, message):
        turned = message["item_factors"].values @ message["directions"].values.T
        return Message(**message, turned=Derived(turned, learned=False))

    def _client_update(self, block, state, message, key):
        # In coordinates of which the first are those along B, to train A is to train these.
        directions = message["directions"].values
        who, users = np.repeat(block.active, np.diff(block.client_indptr)), state["users"]
        # Who has diverged is found when its upload arrives.
        with np.errstate(over="ignore", invalid="ignore"):
            users[who] = users[who] @ directions.T
            turned = Message(item_factors=message["turned"])
            state, upload = super()._client_update(block, state, turned, key)
            users[who] = users[who] @ directions
        return state, upload

    def _aggregate(self, server, message, upload, key):
        if upload is None:
            return server
        update, basis = self._mean_update(upload).astype(self._dtype), message["basis"].values
        items = (server["item_factors"] + update @ basis).astype(self._dtype)
        return server | {"item_factors": items, "update": update, "basis": basis}

    # ------------------------------------------------------------------- its single lines

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
        rate = self.learning_rate * (self.rank / self.n_factors) ** self.rank_exponent
        # A step on A of this rate is one on A B of a rate |b|^2 times as large.
        return float(rate * self._length**2), self._length

    def _check_world(self, federation, data, blocks):
        super()._check_world(federation, data, blocks)
        if self.rank > self.n_factors:
            raise ValueError(
                f"rank={self.rank} is more than n_factors={self.n_factors}, and an update of a "
                "matrix with so many columns has no more; lower rank, or raise n_factors."
            )
