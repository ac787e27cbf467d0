"""LocSGD: gradient steps on every client's items (Duriakova et al., EuroMLSys 2024)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Annotated, Literal

import numpy as np

from fedrecsk._utils.constraints import AtLeast1, NotNegative, Positive
from fedrecsk._utils.docs import documented
from fedrecsk._utils.parameters import constant
from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk.federated._wmf import (
    Aggregation,
    ClientItemsAlgorithm,
    ImplicitMF,
    ImplicitParameters,
    wmf_kernels,
)

__all__ = ["LocSGD"]

Rate = Annotated[float, Interval(Real, 0, 1000, closed="right")]


@dataclass(eq=False, repr=False)
class LocSGDParameters(ImplicitParameters):
    """Parameters of LocSGD."""

    _: KW_ONLY
    reg_user: Positive = 10.0
    reg_item: NotNegative = 0.0
    prox: NotNegative = 0.0
    local_epochs: AtLeast1 = 1
    n_steps: AtLeast1 = 5
    learning_rate: Rate | Literal["auto"] = "auto"
    # With "auto", the largest step of a user with n of m items is this times sqrt(m / n).
    RATE: float = constant(0.2)
    aggregation: Aggregation = "clients"


@dataclass(kw_only=True, eq=False)
class LocSGDAlgorithm(LocSGDParameters, ClientItemsAlgorithm):
    """Every client solves for its users, and then takes steps on its own version of the items."""

    def rates(self, n_items, counts):
        """Return the largest step of each user, given the numbers of items that users have."""
        if self.learning_rate == "auto":
            return self.RATE * np.sqrt(n_items / np.maximum(counts, 1))
        return np.full(len(counts), float(self.learning_rate))

    def update(self, block, clients, message, turn, key):
        (items, gram), users, active = self.received(message), clients.users, turn.active
        problem, work = self.item_problem(clients), wmf_kernels.workspace(block, users)
        ratings = wmf_kernels.Ratings(block.rows, clients.extra, clients.pull)
        versions = items[block.row_items]
        follows = np.tile(np.eye(self.n_factors, dtype=self.dtype), (block.n_clients, 1, 1))
        given = block.layout, ratings, active, items, problem, work, users, versions, follows
        out = wmf_kernels.uploads(block, turn, users)
        early = out._replace(senders=np.zeros_like(out.senders))
        steps = self.n_steps, self.rates(block.n_items, np.diff(block.indptr))
        for epoch in range(self.local_epochs):
            if epoch == 0:
                loss = self.fit_users(block, clients, active, items, gram)
            else:
                grams = self.own_grams(block, active, message, versions, follows)
                self.fit_users(block, clients, active, versions, grams, block.rows)
            last = epoch == self.local_epochs - 1
            wmf_kernels.descend_items(*given, *steps, out if last else early)
        return clients, self.sent(block, turn, out), loss


@documented
@dataclass(eq=False, repr=False)
class LocSGD(LocSGDParameters, ImplicitMF):
    """Federated matrix factorisation with gradient steps on the clients' items.

    Each round every client solves for its users' vectors exactly, as in :class:`LocALS`, and
    then takes gradient steps on its own version q_ci of the items; the server averages the
    versions. LocALS was proposed as an improvement on it.

    Parameters
    ----------
    n_factors, n_rounds, alpha, reg_user, reg_item, prox
        As in :class:`LocALS`; 20 factors by default.
    local_epochs : int, default=1
        Number of times that a client solves for its users and takes its steps per round (E).
    n_steps : int, default=5
        Number of sweeps over the client's pairs after each user solve.
    learning_rate : float in (0, 1000] or "auto", default="auto"
        Largest size of the clients' steps (eta). "auto" is ``0.2 sqrt(n_items / n)`` for a user
        with n items, so that few rows take larger steps. A step on one pair is
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

        set-up  clients report which items they hold            answer
        each round
          1  server sends q_i of own items, and sum q q'        broadcast
          2  clients solve for their users                      kernel fit_users
          3  ... take `n_steps` sweeps over their items         kernel descend_items
          4  ... and upload q_ci - q_i                          kernel descend_items
          5  server averages and steps                          step
        end
          6  server sends all items                             final
          7  clients solve for their users once more            personalize: kernel fit_users

    *What is sent*, and what it reveals, is as in :class:`LocALS`. With "full", users of one client
    take their steps one after the other in the order of their ids, each on all items.

    *Short histories* count as in :class:`LocALS`.

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
    n_rounds: AtLeast1 = 30

    _kind = LocSGDAlgorithm
