"""GlobSGD: gradient steps on the server (Duriakova et al., EuroMLSys 2024)."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Literal

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from fedrecsk import _kernels
from fedrecsk.federated._wmf import FederatedWMF, divide
from fedrecsk.simulation.messages import Message

if TYPE_CHECKING:
    from fedrecsk.simulation.federation import Federation


class GlobSGD(FederatedWMF):
    """Federated matrix factorisation with gradient steps on the server.

    Each round every client solves for its users' vectors exactly, as in :class:`LocALS`, and
    uploads the gradient of its loss in the items, at the items it has just received; the
    server takes one step. It is the comparator that LocALS was proposed against.

    Parameters
    ----------
    n_factors : int, default=20
        Length of p_u and q_i (d).
    n_rounds : int, default=30
        Rounds in total (T).
    alpha : float, default=1.0
        Extra confidence of a positive of weight 1.
    reg_user : float, default=30.0
        Weight of the penalty on user vectors (lambda_p).
    reg_item : float, default=10.0
        Weight of the penalty on item vectors (lambda_q), in total over all clients.
    learning_rate : float or "auto", default="auto"
        Size of the server's step (eta),
        ``q_i -= eta [mean of the clients' gradients + reg_item / n_clients q_i]``. "auto": a
        step that the curvature allows. With "full" that is one over
        ``(1 + alpha h_i) s + reg_item / n_clients``, where s is the largest eigenvalue of the
        mean ``P_c' P_c`` and h_i the share of the clients that hold the item; with the
        preconditioner ``1 / (1 + alpha h_i)``, times twice the share of the clients that were
        heard if that is below 1. Otherwise the server does not know the curvature and the
        step is 3, which suits MovieLens and diverges with few clients.
    aggregation : {"full", "all", "holders"}, default="full"
        Which pairs the gradient has. "full": all of them, by a d x d matrix from each
        client, which makes the mean the exact gradient of the centralised objective. "all":
        pairs with a row only, over the number of clients. "holders": pairs with a row only,
        over the number of clients that hold the item.
    preconditioner : bool or "auto", default=False
        Whether the server multiplies the gradient by
        ``(mean P_c' P_c + reg_item / n_clients I)^-1``. It makes the comparison with LocALS
        fair. "auto": with "full", which it needs.
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
        As :class:`LocALS` does.

    Notes
    -----
    *What crosses the wire.* Once, up: which items the client holds, as in :class:`LocALS`. Each
    round down: as in :class:`LocALS`. Up: for each own item the sum over the client's users of
    ``c_ui (p_u . q_i - r_ui) p_u``, in "full" less ``(p_u . q_i) p_u``; with "full" the d x d
    matrix P_c' P_c; with "holders" a count of 1 an item.

    *What it reveals.* As in :class:`LocALS`: in plaintext, P_c' P_c of a one-user client is p_u up
    to its sign, which a row settles.

    Gradients are half of the derivatives of the objective. Aggregation, preconditioner and
    the defaults, chosen on validation data, are ours.

    References
    ----------
    .. [1] N. Hurley, E. Duriakova, J. Geraci, D. O'Reilly-Morgan, E. Tragos, B. Smyth and
       A. Lawlor, "ALS Algorithm for Robust and Communication-Efficient Federated Learning",
       EuroMLSys 2024, slides.

    Examples
    --------
    >>> from fedrecsk import GlobSGD
    >>> from fedrecsk.datasets import make_ratings
    >>> X, _ = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> model = GlobSGD(n_factors=8, random_state=0).fit(X)
    >>> model.communication_.bytes_up == 4 * 900 + 30 * 4 * (900 * 8 + 60 * 8 * 8)
    True
    """

    _parameter_constraints: dict = FederatedWMF._parameter_constraints | {
        "learning_rate": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
    }

    def __init__(
        self,
        n_factors: int = 20,
        *,
        n_rounds: int = 30,
        alpha: float = 1.0,
        reg_user: float = 30.0,
        reg_item: float = 10.0,
        learning_rate: float | Literal["auto"] = "auto",
        aggregation: Literal["full", "all", "holders"] = "full",
        preconditioner: bool | Literal["auto"] = False,
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
        self.learning_rate = learning_rate
        self.aggregation = aggregation
        self.preconditioner = preconditioner
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

    def _announce(self, server):
        return Message()

    def _client_update(self, block, state, message, key):
        items, gram = self._received(message)
        sums = self._empty_sums(block)
        loss, mass, sound = _kernels.wmf.item_gradients(
            self._layout(block),
            state["extra"],
            state["pull"],
            (block.active, block.delivers),
            items,
            gram,
            float(self.reg_user),
            self.aggregation == "full",
            state["users"],
            sums,
        )
        state["training_loss"] = self._loss(block, loss, mass)
        return state, self._upload(sums, sound)

    def _aggregate(self, server, message, upload, key):
        if upload is None:
            return server
        items = server["item_factors"].astype(np.float64)
        if self.aggregation == "holders":
            gradient = self._mean_over_holders(upload)
        else:
            gradient = upload["rows"].mean
        if self.aggregation == "full":
            gradient = gradient + items @ upload["others"].mean
        gradient = gradient + server["reg_item"] * items
        if self._preconditions:
            hessian = upload["others"].mean + server["reg_item"] * np.eye(self.n_factors)
            gradient = divide(gradient, hessian)
        items = items - self._rate(server, upload) * gradient
        return server | {"item_factors": items.astype(self._dtype)}

    # ------------------------------------------------------------------- its single lines

    _idle_matrix = None

    def _rate(self, server, upload):
        if self.learning_rate != "auto":
            return self.learning_rate
        if self._preconditions:
            return self._cautious(server, upload, lean=2.0)
        if self.aggregation != "full":
            return 3.0
        steepest = np.linalg.eigvalsh(upload["others"].mean)[-1]
        curvature = steepest * (1 + self.alpha * server["held_share"]) + server["reg_item"]
        return 1 / np.maximum(curvature, np.finfo(float).tiny)
