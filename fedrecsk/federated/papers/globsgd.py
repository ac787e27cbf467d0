"""GlobSGD: gradient steps on the server (Duriakova et al., EuroMLSys 2024)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import numpy as np

from fedrecsk._utils.constraints import AtLeast1, Positive
from fedrecsk._utils.docs import documented
from fedrecsk.federated._wmf import (
    Aggregation,
    ImplicitAlgorithm,
    ImplicitMF,
    ImplicitParameters,
    divide,
)

__all__ = ["GlobSGD"]


@dataclass(eq=False, repr=False)
class GlobSGDParameters(ImplicitParameters):
    """Parameters of GlobSGD."""

    _: KW_ONLY
    learning_rate: Positive | Literal["auto"] = "auto"
    aggregation: Aggregation = "full"
    preconditioner: bool = False


@dataclass(kw_only=True, eq=False)
class GlobSGDAlgorithm(GlobSGDParameters, ImplicitAlgorithm):
    """Every client solves for its users, and uploads the gradient in the items."""

    def update(self, block, clients, message, turn, key):
        out, loss = self.gradients(block, clients, message, turn)
        return clients, self.sent(block, turn, out), loss

    def step(self, server, upload, key):
        if upload is None:
            return server
        items, reg_item = server.items.astype(np.float64), self.reg_item / server.n_clients
        gradient = self.mean_gradient(items, upload) + reg_item * items
        if self.preconditioner:
            hessian = upload["others"].mean + reg_item * np.eye(self.n_factors)
            gradient = divide(gradient, hessian)
        return server.with_items(items - self._rate(server, upload) * gradient)

    def _rate(self, server, upload):
        if self.learning_rate != "auto":
            return self.learning_rate
        if self.preconditioner:
            return self.cautious(server, upload, lean=2.0)
        if self.aggregation != "full":
            return 3.0
        steepest = np.linalg.eigvalsh(upload["others"].mean)[-1]
        reg_item = self.reg_item / server.n_clients
        curvature = steepest * (1 + self.alpha * server.held_share) + reg_item
        return 1 / np.maximum(curvature, np.finfo(float).tiny)


@documented
@dataclass(eq=False, repr=False)
class GlobSGD(GlobSGDParameters, ImplicitMF):
    """Federated matrix factorisation with gradient steps on the server.

    Each round every client solves for its users' vectors exactly, as in :class:`LocALS`, and
    uploads the gradient of its loss in the items, at the items it has just received; the
    server takes one step. It is the baseline with which the authors of LocALS compared it.

    Parameters
    ----------
    n_factors, n_rounds, alpha, reg_user, reg_item, upload
        As in :class:`LocALS`; 20 factors by default.
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

        set-up  clients report which items they hold            answer
        each round
          1  server sends q_i of own items, and sum q q'        broadcast
          2  clients solve for their users                      kernel fit_users
          3  ... and upload the items' gradients, and P_c' P_c  kernel item_gradients
          4  server steps                                       step
        end
          5  server sends all items                             final
          6  clients solve for their users once more            personalize: kernel fit_users

    *What is sent.* As in :class:`LocALS`, but up, in each round, for each own item the sum over the
    client's users of ``c_ui (p_u . q_i - r_ui) p_u``, in "full" less ``(p_u . q_i) p_u``; and with
    "full" the d x d matrix P_c' P_c. That of a one-user client reveals p_u up to its sign, which a
    row gives. *Gradients* are half of the derivatives of the objective.

    *Short histories* count as in :class:`LocALS`.

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
    n_rounds: AtLeast1 = 30

    _kind = GlobSGDAlgorithm

    def _check_before_fit(self):
        super()._check_before_fit()
        if self.preconditioner and self.aggregation != "full":
            raise ValueError(
                f'preconditioner=True needs the matrices that aggregation="full" uploads, but '
                f"aggregation={self.aggregation!r}; change one of them."
            )
