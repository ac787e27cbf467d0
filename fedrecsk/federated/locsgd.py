"""LocSGD: gradient steps on every client's items (Duriakova et al., EuroMLSys 2024)."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, Literal

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from fedrecsk import _kernels
from fedrecsk.federated._wmf import FederatedWMF

if TYPE_CHECKING:
    from fedrecsk.simulation.federation import Federation


class LocSGD(FederatedWMF):
    """Federated matrix factorisation with gradient steps on the clients' items.

    Each round every client solves for its users' vectors exactly, as in :class:`LocALS`, and
    then takes gradient steps on its own version q_ci of the items; the server averages the
    versions. It is the comparator that LocALS was proposed against.

    Parameters
    ----------
    n_factors : int, default=20
        Length of p_u and q_i (d).
    n_rounds : int, default=30
        Rounds in total (T / E).
    alpha : float, default=1.0
        Extra confidence of a positive of weight 1.
    reg_user : float, default=10.0
        Weight of the penalty on user vectors (lambda_p).
    reg_item : float, default=0.0
        Weight of the penalty on item vectors (lambda_q), in total over all clients.
    mu : float, default=0.0
        Weight of the tie between a client's items and the server's.
    local_epochs : int, default=1
        How often a client goes through its user solve and its steps in a round (E).
    n_steps : int, default=5
        Sweeps over the client's pairs after each user solve.
    learning_rate : float, default=0.3
        Size of the clients' steps (eta). A step on one pair is
        ``q_ci -= eta [c_ui (p_u . q_ci - r_ui) p_u + reg_item / n_clients q_ci
        + mu (q_ci - q_i)]``.
    aggregation : {"all", "full", "holders"}, default="all"
        As in :class:`LocALS`. With "full" a sweep goes through all pairs of the client's users
        and the catalogue; items that the client does not hold move by a common matrix A_c.
        Otherwise a sweep goes through the client's own pairs.
    preconditioner : bool or "auto", default="auto"
        As in :class:`LocALS`.
    server_learning_rate : float or "auto", default="auto"
        As in :class:`LocALS`.
    download, init_std
        As in :class:`LocALS`.
    client_fraction, early_stopping, validation_fraction, n_iter_no_change, tol, warm_start
        As in :class:`LocALS`.
    n_jobs, random_state, federation
        As in :class:`LocALS`.

    Attributes
    ----------
    user_factors_, item_factors_, user_ids_, item_ids_, n_users_, n_items_
        As in :class:`LocALS`.
    n_rounds_, best_round_, loss_curve_, history_, communication_, privacy_
        As in :class:`LocALS`.

    Raises
    ------
    ValueError
        As :class:`LocALS` does. Clients diverge where `learning_rate` is too large for the
        length of their users' vectors.

    Notes
    -----
    What crosses the wire, and what it reveals, is as in :class:`LocALS`: the rows of a one-user
    client are again made of p_u and q_i alone.

    The slides do not give the steps, their number or the aggregation; these, and the
    defaults, chosen on validation data, are ours. In "full", users of one client take their
    steps one after the other in the order of their ids, each on all items.

    References
    ----------
    .. [1] N. Hurley, E. Duriakova, J. Geraci, D. O'Reilly-Morgan, E. Tragos, B. Smyth and
       A. Lawlor, "ALS Algorithm for Robust and Communication-Efficient Federated Learning",
       EuroMLSys 2024, slides.

    Examples
    --------
    >>> from fedrecsk import LocSGD
    >>> from fedrecsk.datasets import make_ratings
    >>> X, _ = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> model = LocSGD(n_factors=8, random_state=0).fit(X)
    >>> model.communication_.bytes_up == 4 * 900 + 30 * 4 * 900 * 8
    True
    """

    _parameter_constraints: dict = FederatedWMF._parameter_constraints | {
        "mu": [Interval(Real, 0, None, closed="left")],
        "local_epochs": [Interval(Integral, 1, None, closed="left")],
        "n_steps": [Interval(Integral, 1, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "server_learning_rate": [
            Interval(Real, 0, None, closed="neither"),
            StrOptions({"auto"}),
        ],
    }

    def __init__(
        self,
        n_factors: int = 20,
        *,
        n_rounds: int = 30,
        alpha: float = 1.0,
        reg_user: float = 10.0,
        reg_item: float = 0.0,
        mu: float = 0.0,
        local_epochs: int = 1,
        n_steps: int = 5,
        learning_rate: float = 0.3,
        aggregation: Literal["full", "all", "holders"] = "all",
        preconditioner: bool | Literal["auto"] = "auto",
        server_learning_rate: float | Literal["auto"] = "auto",
        download: Literal["own", "all"] = "own",
        init_std: float = 0.03,
        client_fraction: float = 1.0,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-4,
        warm_start: bool = False,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        federation: Federation | None = None,
    ):
        self.n_factors = n_factors
        self.n_rounds = n_rounds
        self.alpha = alpha
        self.reg_user = reg_user
        self.reg_item = reg_item
        self.mu = mu
        self.local_epochs = local_epochs
        self.n_steps = n_steps
        self.learning_rate = learning_rate
        self.aggregation = aggregation
        self.preconditioner = preconditioner
        self.server_learning_rate = server_learning_rate
        self.download = download
        self.init_std = init_std
        self.client_fraction = client_fraction
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.federation = federation

    # ---------------------------------------------------------------------- the algorithm

    def _client_update(self, block, state, message, key):
        items, gram = self._received(message)
        sums = self._empty_sums(block)
        loss, mass, sound = _kernels.wmf.local_sgd(
            self._layout(block),
            state["extra"],
            state["pull"],
            (block.active, block.delivers),
            items,
            gram,
            (float(self.reg_user), state["reg_item"]),
            float(self.mu),
            self.local_epochs,
            self.n_steps,
            float(self.learning_rate),
            self.aggregation == "full",
            state["users"],
            sums,
        )
        state["training_loss"] = self._loss(block, loss, mass)
        return state, self._upload(sums, sound)

    def _aggregate(self, server, message, upload, key):
        return server if upload is None else self._mean_items(server, upload)
