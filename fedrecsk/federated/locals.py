"""LocALS: alternating least squares on every client (Duriakova et al., EuroMLSys 2024)."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, Literal

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from fedrecsk import _kernels
from fedrecsk.federated._wmf import FederatedWMF

if TYPE_CHECKING:
    from fedrecsk.simulation.federation import Federation

CG_STEPS = 3


class LocALS(FederatedWMF):
    """Federated alternating least squares for implicit feedback.

    Each round every client solves for its users' vectors and then for its own version q_ci of
    every item, exactly and on its own data; the server averages the versions. With default
    parameters five to ten rounds reach the accuracy of centralised ALS.

    Client c minimises::

        sum_{u of c} sum_{all i} c_ui (p_u . q_ci - r_ui)^2 + reg_user sum_u |p_u|^2
          + (reg_item / n_clients) sum_i |q_ci|^2 + mu sum_i |q_ci - q_i|^2

    where q_i is the server's vector. A row of X with y > 0 is a positive: r_ui = 1 with
    confidence c_ui = 1 + alpha * sample_weight. Everything else, rows with y <= 0 included, is
    r_ui = 0 with c_ui = 1. The size of a positive y does not enter; to make it a confidence,
    pass it as sample_weight.

    Parameters
    ----------
    n_factors : int, default=20
        Length of p_u and q_i (d).
    n_rounds : int, default=10
        Rounds in total (T / E).
    alpha : float, default=1.0
        Extra confidence of a positive of weight 1.
    reg_user : float, default=30.0
        Weight of the penalty on user vectors (lambda_p).
    reg_item : float, default=10.0
        Weight of the penalty on item vectors (lambda_q), in total over all clients, as a
        centralised user would set it.
    mu : float, default=10.0
        Weight of the tie between a client's items and the server's. ``mu + reg_item`` must be
        positive.
    local_epochs : int, default=1
        User and item solves of a client in a round (E).
    solver : {"exact", "cg"}, default="exact"
        How a client finds its users' vectors: exactly, or by three steps of conjugate
        gradients from the last round's, which is inexact and faster with many factors. Items,
        and in the end the vectors that predict, are always exact.
    aggregation : {"full", "all", "holders"}, default="full"
        What the server averages for an item. "full": over all clients, of which those that do
        not hold the item count with the minimiser of their objective, ``A_c q_i`` with
        ``A_c = mu ((mu + reg_item / n_clients) I + P_c' P_c)^-1``. "all": over all clients,
        the others counting with q_i unchanged, which is slow. "holders": over the clients
        that hold it, the natural reading of the slides, which fails: nobody's data says that
        anybody did *not* take the item, and the lists end at or below popularity's.
    preconditioner : bool or "auto", default="auto"
        Whether the server multiplies its step by ``(I - mean A_c)^-1``, which makes up for the
        caution that `mu` asks of each client. "auto": with "full", which it needs.
    server_learning_rate : float or "auto", default="auto"
        Share of its step that the server goes. "auto": 1 without the preconditioner. With it,
        twice the share of the clients that were heard in the round, at most 1, over
        ``1 + alpha h_i t / 2``, where h_i is the share of the clients that hold item i and t
        the mean of the diagonal of mean A_c: an item that many hold overshoots otherwise.
    download : {"own", "all"}, default="own"
        Whether rows of the item matrix cross for the client's own items only, or for all
        items in both directions. See Notes for what each reveals.
    init_std : float, default=0.03
        Standard deviation of the initial item vectors.
    client_fraction : float in (0, 1], default=1.0
        Share of the clients in a round's cohort.
    early_stopping : bool, default=False
        Stop when the objective on what the clients did not train on stops improving, and keep
        the best round's model.
    validation_fraction : float in (0, 1), default=0.1
        Share of its rows that each client holds out under early stopping.
    n_iter_no_change : int, default=10
        Rounds without improvement that end the fit.
    tol : float, default=1e-4
        What counts as an improvement of the loss per held-out confidence.
    warm_start : bool, default=False
        Go on with the last fit's rounds until `n_rounds` in total; keeps the private state.
    n_jobs : int or None, default=None
        Threads. The fitted model does not depend on it.
    random_state : int, RandomState instance or None, default=None
        Seeds everything: initial vectors, cohorts, dropout, held-out rows.
    federation : Federation or None, default=None
        The world the method runs in. None: a perfect one.

    Attributes
    ----------
    user_factors_ : ndarray of shape (n_users, n_factors), dtype float32
        p_u, solved by every client for the final item vectors; private to the client.
    item_factors_ : ndarray of shape (n_items, n_factors), dtype float32
        The server's q_i.
    user_ids_, item_ids_ : ndarray of shape (n_users,) and (n_items,)
        Ids in the order of the vectors.
    n_users_, n_items_ : int
    n_rounds_ : int
        Rounds run.
    best_round_ : int
        The round whose model was kept; only with early stopping.
    loss_curve_ : list of float
        Mean of c (r - p.q)^2 over all pairs of the round's clients, weighted by confidence,
        with the users just solved for and the items just received. For the researcher: it
        crosses no wire.
    history_ : list of dict
        A row a round: `round`, `loss`, `participants`, `bytes_down`, `bytes_up`, and
        `validation_loss` under early stopping.
    communication_ : Ledger
        Every byte that crossed.
    privacy_ : PrivacyReport
        No formal promise: plaintext sums.

    Raises
    ------
    ValueError
        By fit: if parameters do not go together, under local differential privacy, if no y is
        positive, or if the clients diverge.

    See Also
    --------
    LocSGD : Gradient steps on the clients' items.
    GlobSGD : Gradient steps on the server.

    Notes
    -----
    *What crosses the wire.* Once: up, which items the client holds, with ``download="own"`` as
    their ids and with "all" as a vector of 0 and 1 over all items, so that a secure sum gives
    the number of holders only; down, reg_item / n_clients. Each round down: q_i of the client's
    own items and the d x d matrix ``sum q_i q_i'`` over all items. Up: for each own item
    ``q_ci - A_c q_i`` (or ``q_ci - q_i`` where aggregation is not "full"); with "full" the d x d
    matrix A_c; with "holders" a count of 1 an item, so that counts can be summed under
    encryption. With ``download="all"`` the rows of all items cross in both directions, zero
    where the client holds nothing: n_items / (own items) times the bytes.

    *What it reveals.* "own" tells the server which items each client holds. "all" hides it
    only if uploads are summed securely; in plaintext, a zero row says it. A plaintext upload of
    a client with one user gives p_u exactly: every row is a multiple of it, and A_c gives its
    length. Only sums over clients are used.

    *Slips in the slides.* In the P-step q_u stands for q_i; the item penalty is charged once to
    every client; the client's base subtracts c q q' where it should subtract q q'; in the
    Q-step a plus sign and the preference are lost and mu stands for mu I, and users of the
    client that lack the item are forgotten; the server's sum should be a mean. Averaging over
    all clients, A_c, the preconditioner and the defaults, chosen on validation data
    (``benchmarks/fedals.py``), are ours. In the second and later local epochs of "full",
    items that a client does not hold follow too, as ``A_c q_i``; otherwise they stay.

    *Simulation.* A one-user client's item step has a closed form,
    ``q_ci = mu/k q_i + s p_u``, and its upload's rows are multiples of p_u. This is exact.

    *Rounds and clients.* A client that holds all users, with ``mu=0``, makes one sweep of
    centralised ALS a round. With ``mu=0`` and one user a client, nothing ties the clients'
    versions to each other beyond the users' vectors; keep mu positive there.

    References
    ----------
    .. [1] N. Hurley, E. Duriakova, J. Geraci, D. O'Reilly-Morgan, E. Tragos, B. Smyth and
       A. Lawlor, "ALS Algorithm for Robust and Communication-Efficient Federated Learning",
       EuroMLSys 2024, slides.

    Examples
    --------
    >>> from fedrecsk import LocALS
    >>> from fedrecsk.datasets import make_ratings
    >>> X, _ = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> model = LocALS(n_factors=8, random_state=0).fit(X)
    >>> items, scores = model.recommend(X[:2, 0], n_recommendations=3)
    >>> items.shape
    (2, 3)
    >>> model.communication_.bytes_up == 4 * 900 + 10 * 4 * (900 * 8 + 60 * 8 * 8)
    True
    """

    _parameter_constraints: dict = FederatedWMF._parameter_constraints | {
        "mu": [Interval(Real, 0, None, closed="left")],
        "local_epochs": [Interval(Integral, 1, None, closed="left")],
        "solver": [StrOptions({"exact", "cg"})],
        "server_learning_rate": [
            Interval(Real, 0, None, closed="neither"),
            StrOptions({"auto"}),
        ],
    }

    def __init__(
        self,
        n_factors: int = 20,
        *,
        n_rounds: int = 10,
        alpha: float = 1.0,
        reg_user: float = 30.0,
        reg_item: float = 10.0,
        mu: float = 10.0,
        local_epochs: int = 1,
        solver: Literal["exact", "cg"] = "exact",
        aggregation: Literal["full", "all", "holders"] = "full",
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
        self.solver = solver
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

    def _init_clients(self, block, message, key):
        state = super()._init_clients(block, message, key)
        return state | {"by_row": _by_row(block, state)}

    def _client_update(self, block, state, message, key):
        items, gram = self._received(message)
        sums = self._empty_sums(block)
        loss, mass, sound = _kernels.wmf.local_als(
            self._layout(block),
            state["by_row"],
            state["extra"],
            state["pull"],
            (block.active, block.delivers),
            items,
            gram,
            (float(self.reg_user), state["reg_item"]),
            float(self.mu),
            self.local_epochs,
            CG_STEPS if self.solver == "cg" else 0,
            self.aggregation == "full",
            state["users"],
            sums,
        )
        state["training_loss"] = self._loss(block, loss, mass)
        return state, self._upload(sums, sound)

    def _aggregate(self, server, message, upload, key):
        return server if upload is None else self._mean_items(server, upload)

    # ---------------------------------------------------------------------------- checks

    def _check_before_fit(self):
        super()._check_before_fit()
        if self.mu == 0 and self.reg_item == 0:
            raise ValueError(
                "mu=0 with reg_item=0 leaves a client's item vectors undetermined; make one of "
                "them positive."
            )


def _by_row(block, state):
    """Ratings of each held row, and all ratings in the order of the rows."""
    order = np.argsort(block.rows, kind="stable")
    users = np.repeat(np.arange(block.n_users, dtype=np.int32), np.diff(block.indptr))
    row_sizes = np.bincount(block.rows, minlength=len(block.row_items))
    return row_sizes, users[order], state["extra"][order], state["pull"][order]
