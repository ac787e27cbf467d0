"""LocSGD and GlobSGD: what LocALS was compared with (Duriakova et al., EuroMLSys 2024)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import ClassVar, Literal

import numpy as np

from fedrecsk._utils.docs import documented
from fedrecsk._utils.sklearn_compat import Interval, StrOptions
from fedrecsk.federated._wmf import ClientItemsWMF, FederatedWMF, divide, wmf_kernels


@documented
@dataclass(eq=False, repr=False)
class LocSGD(ClientItemsWMF):
    """Federated matrix factorisation with gradient steps on the clients' items.

    Each round every client solves for its users' vectors exactly, as in :class:`LocALS`, and
    then takes gradient steps on its own version q_ci of the items; the server averages the
    versions. LocALS was proposed as an improvement on it.

    Parameters
    ----------
    n_factors, n_rounds, alpha, reg_user, reg_item, prox
        As in :class:`LocALS`.
    local_epochs : int, default=1
        Number of times that a client solves for its users and takes its steps per round (E).
    n_steps : int, default=5
        Number of sweeps over the client's pairs after each user solve.
    learning_rate : float in (0, 1000], default=0.3
        Largest size of the clients' steps (eta). A step on one pair is
        ``q_ci -= eta_ui [c_ui (p_u . q_ci - r_ui) p_u + reg_item / n_clients q_ci
        + prox (q_ci - q_i)]`` with
        ``eta_ui = min(eta, 1 / (c_ui |p_u|^2 + reg_item / n_clients + prox))``, so that no step
        goes past the pair's minimum.
    aggregation : {"clients", "full", "holders"}, default="clients"
        As in :class:`LocALS`. With "full" a sweep goes through all pairs of the client's users
        and the catalogue; items that the client does not hold move by a common matrix A_c.
        Otherwise a sweep goes through the client's own pairs.
    upload
        As in :class:`LocALS`.
    {timestamps}
    {history_half_life}
    {item_features}
    {shared parameters}

    Attributes
    ----------
    user_factors_, item_factors_
        As in :class:`LocALS`.
    {shared attributes}

    Raises
    ------
    ValueError
        As :class:`LocALS` does.

    Notes
    -----
    *Algorithm*::

        set-up  clients report which items they hold            _setup_update
        each round
          1  server sends q_i of own items, and sum q q'        _model
          2  clients solve for their users                      kernel fit_users
          3  ... take `n_steps` sweeps over their items         kernel descend_items
          4  ... and upload q_ci - q_i                          kernel send_versions
          5  server averages and steps                          _aggregate
        end
          6  server sends all items                             _final_model
          7  clients solve for their users once more            _personalize: kernel fit_users

    *What is sent*, and what it reveals, is as in :class:`LocALS`. With "full", users of one client
    take their steps one after the other in the order of their ids, each on all items.

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

    _: KW_ONLY
    n_rounds: int = 30
    reg_user: float = 10.0
    reg_item: float = 0.0
    prox: float = 0.0
    n_steps: int = 5
    learning_rate: float = 0.3
    aggregation: Literal["full", "clients", "holders"] = "clients"

    _parameter_constraints: ClassVar[dict] = ClientItemsWMF._parameter_constraints | {
        "n_steps": [Interval(Integral, 1, None, closed="left")],
        "learning_rate": [Interval(Real, 0, 1000, closed="right")],
    }

    def _client_update(self, block, state, message, turn, key):
        (items, gram), users, active = self._received(message), state["users"], turn.active
        problem, work = self._problem(state), wmf_kernels.workspace(block, users)
        ratings = wmf_kernels.Ratings(block.rows, state["extra"], state["pull"])
        versions = items[block.row_items]
        follows = np.tile(np.eye(self.n_factors, dtype=self._dtype), (block.n_clients, 1, 1))
        given = block.layout, ratings, active, items, problem, work, users, versions, follows
        for epoch in range(self.local_epochs):
            if epoch == 0:
                loss = self._fit_users(block, state, active, items, gram)
            else:
                grams = self._own_grams(block, active, message, versions, follows)
                self._fit_users(block, state, active, versions, grams, block.rows)
            wmf_kernels.descend_items(*given, self.n_steps, float(self.learning_rate))
        out = wmf_kernels.uploads(block, turn, users)
        wmf_kernels.send_versions(
            block.layout, active, items, problem.full, work, versions, follows, out
        )
        return state, self._uploads(block, turn, out), loss

    def _upload_of_one(self, vector, items, message):
        """Return what a one-user client with this vector sends for items of weight 1."""
        prox, penalty = self.prox, float(message["reg_item"].values[0]) + self.prox
        square, scores = vector @ vector, items @ vector
        own, other = (
            min(self.learning_rate, 1 / max(confidence * square + penalty, 1e-300))
            for confidence in (1 + self.alpha, 1)
        )
        eye, outer = np.eye(len(vector)), np.outer(vector, vector)
        # An own item is kept q + along p, one without a row follow q.
        along, kept, follow = np.zeros(len(items)), 1.0, eye
        for _ in range(self.n_steps * self.local_epochs):
            step = (1 + self.alpha) * (kept * scores + along * square - 1)
            along = (1 - own * penalty) * along - own * step
            kept = (1 - own * penalty) * kept + own * prox
            follow = follow - other * ((outer + penalty * eye) @ follow - prox * eye)
        versions = np.outer(along, vector) + kept * items
        if self.aggregation == "full":
            return {"rows": versions - items @ follow, "others": follow - eye}
        return {"rows": versions - items}


@documented
@dataclass(eq=False, repr=False)
class GlobSGD(FederatedWMF):
    """Federated matrix factorisation with gradient steps on the server.

    Each round every client solves for its users' vectors exactly, as in :class:`LocALS`, and
    uploads the gradient of its loss in the items, at the items it has just received; the
    server takes one step. It is the baseline with which the authors of LocALS compared it.

    Parameters
    ----------
    n_factors, n_rounds, alpha, reg_user, reg_item, upload
        As in :class:`LocALS`.
    learning_rate : float or "auto", default="auto"
        Size of the server's step (eta),
        ``q_i -= eta [mean of the clients' gradients + reg_item / n_clients q_i]``. "auto": a
        step that the curvature allows. With "full" that is one over
        ``(1 + alpha h_i) s + reg_item / n_clients``, where s is the largest eigenvalue of the
        mean ``P_c' P_c`` and h_i the share of the clients that hold the item; with the
        preconditioner ``1 / (1 + alpha h_i)``, times twice the share of the clients whose
        uploads were accepted if that is below 1. Otherwise the server does not know the
        curvature and the step is 3, which suits MovieLens and diverges with few clients.
    aggregation : {"full", "clients", "holders"}, default="full"
        Which pairs the gradient has. "full": all of them, by a d x d matrix from each
        client, which makes the mean the exact gradient of the centralised objective. "clients":
        pairs with a row only, over the number of clients. "holders": pairs with a row only,
        over the number of clients that hold the item.
    preconditioner : bool, default=False
        Whether the server multiplies the gradient by
        ``(mean P_c' P_c + reg_item / n_clients I)^-1``. It makes the comparison with LocALS
        fair, and needs "full".
    {timestamps}
    {history_half_life}
    {item_features}
    {shared parameters}

    Attributes
    ----------
    user_factors_, item_factors_
        As in :class:`LocALS`.
    {shared attributes}

    Raises
    ------
    ValueError
        As :class:`LocALS` does.

    Notes
    -----
    *Algorithm*::

        set-up  clients report which items they hold            _setup_update
        each round
          1  server sends q_i of own items, and sum q q'        _model
          2  clients solve for their users                      kernel fit_users
          3  ... and upload the items' gradients, and P_c' P_c  kernel item_gradients
          4  server steps                                       _aggregate
        end
          5  server sends all items                             _final_model
          6  clients solve for their users once more            _personalize: kernel fit_users

    *What is sent.* As in :class:`LocALS`, but up, in each round, for each own item the sum over the
    client's users of ``c_ui (p_u . q_i - r_ui) p_u``, in "full" less ``(p_u . q_i) p_u``; and with
    "full" the d x d matrix P_c' P_c. That of a one-user client reveals p_u up to its sign, which a
    row gives. *Gradients* are half of the derivatives of the objective.

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

    _: KW_ONLY
    n_rounds: int = 30
    learning_rate: float | Literal["auto"] = "auto"
    preconditioner: bool = False

    _parameter_constraints: ClassVar[dict] = FederatedWMF._parameter_constraints | {
        "learning_rate": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "preconditioner": ["boolean"],
    }

    def _client_update(self, block, state, message, turn, key):
        out, loss = self._gradients(block, state, message, turn)
        return state, self._uploads(block, turn, out), loss

    def _aggregate(self, server, message, upload, key):
        if upload is None:
            return server
        items = server["item_factors"].astype(np.float64)
        gradient = self._mean_gradient(items, upload) + server["reg_item"] * items
        if self.preconditioner:
            hessian = upload["others"].mean + server["reg_item"] * np.eye(self.n_factors)
            gradient = divide(gradient, hessian)
        items = items - self._rate(server, upload) * gradient
        return server | {"item_factors": items.astype(self._dtype)}

    def _rate(self, server, upload):
        if self.learning_rate != "auto":
            return self.learning_rate
        if self.preconditioner:
            return self._cautious(server, upload, lean=2.0)
        if self.aggregation != "full":
            return 3.0
        steepest = np.linalg.eigvalsh(upload["others"].mean)[-1]
        curvature = steepest * (1 + self.alpha * server["held_share"]) + server["reg_item"]
        return 1 / np.maximum(curvature, np.finfo(float).tiny)

    def _upload_moving(self, view, rows, moves):
        # The penalty is for all clients together, and about this share of them takes part.
        share = self._cohort_share(view.data.n_clients)
        reg = self.reg_item * share / view.n_senders * np.eye(self.n_factors)
        hessian = reg
        if self.aggregation == "full":
            hessian = self._others_of(view) + reg
        rate = self.learning_rate
        if rate == "auto" and self.preconditioner:
            rate = self._share_of_step(view)
        elif rate == "auto":
            rate = 3.0
            if self.aggregation == "full":
                # 0 if no honest client takes part.
                rate = 1 / np.maximum(np.linalg.eigvalsh(hessian)[-1], np.finfo(float).tiny)
        gradient = -moves / rate
        if self.preconditioner:
            gradient = gradient @ hessian
        return {"rows": self._factor_of_mean(view) * (gradient - view.item_vectors[rows] @ hessian)}

    def _check_before_fit(self):
        super()._check_before_fit()
        if self.preconditioner and self.aggregation != "full":
            raise ValueError(
                f'preconditioner=True needs the matrices that aggregation="full" uploads, but '
                f"aggregation={self.aggregation!r}; change one of them."
            )
