"""How clients that promote an item move it, method by method.

Each function takes the estimator, the View of a round, rows of items and moves of shape
(len(rows), width). It returns, for each field in which clients send rows of items, what each of the
adversary's uploads must hold in these rows, as changes, so that the server moves their item vectors
by `moves`, as far as such clients can know. Everything else in their uploads is as if they had
learned nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedrecsk.attacks._base import View

    Moving = Callable[[Any, View, np.ndarray, np.ndarray], dict[str, np.ndarray]]

# ------------------------------------------------------------- LocALS, LocSGD, GlobSGD, FCF


def client_items(method, view, rows, moves):
    """Move items of LocALS and LocSGD."""
    if method.aggregation == "full":
        # The server also moves every item by its vector times mean A - I.
        moves = moves / _share_of_step(method, view) + view.item_vectors[rows]
        moves = moves @ -_others_of(view).T
    return {"rows": _factor_of_mean(method, view) * moves}


def globsgd(method, view, rows, moves):
    """Move items by gradients on the server."""
    # The penalty is for all clients together, and about this share of them takes part.
    share = method._cohort_share(view.data.n_clients)
    reg = method.reg_item * share / view.n_senders * np.eye(method.n_factors)
    hessian = reg
    if method.aggregation == "full":
        hessian = _others_of(view) + reg
    rate = method.learning_rate
    if rate == "auto" and method.preconditioner:
        rate = _share_of_step(method, view)
    elif rate == "auto":
        rate = 3.0
        if method.aggregation == "full":
            # 0 if no honest client takes part.
            rate = 1 / np.maximum(np.linalg.eigvalsh(hessian)[-1], np.finfo(float).tiny)
    gradient = -moves / rate
    if method.preconditioner:
        gradient = gradient @ hessian
    return {"rows": _factor_of_mean(method, view) * (gradient - view.item_vectors[rows] @ hessian)}


def fcf(method, view, rows, moves):
    """Move items by the gradients of all, or of own rows."""
    name = "gradient" if method.upload == "all" else "rows"
    return {name: gradient_step(method, view, name, moves)}


def _factor_of_mean(method, view):
    """Return the factor of the adversary's rows that makes the server's mean equal to them."""
    if method.aggregation != "holders":
        return view.n_senders / view.n_own
    return view.n_expected("rows") / view.n_own


def _others_of(view):
    """Return the mean of `others` over all clients, the adversary's own learning nothing."""
    return (1 - view.n_own / view.n_senders) * view.mean("others")


def _share_of_step(method, view):
    """Return the share of a preconditioned step that the server takes on items of few."""
    return min(1.0, 2 * method._cohort_share(view.data.n_clients))


def gradient_step(method, view, name, moves):
    """Return what each of the adversary's clients sends for the server to step by `moves`."""
    # Adam divides by the size of past gradients, so only much larger ones decide.
    size = 0.5
    if method.optimizer == "adam":
        size = np.abs(view.mean(name)).max(initial=0)
    return -view.n_senders / view.n_own * size / method.learning_rate * moves


# ----------------------------------------------------------------------- FedEB and PrivFedEB


def fedeb(method, view, rows, moves):
    """Move items of FedEB."""
    # Adam divides by the size of past gradients, so only much larger ones decide.
    rate = method._algorithm().rate(method._cohort_share(view.data.n_clients))
    return {"items": _size_of_sum(view) / rate * moves}


def privfedeb(method, view, rows, moves):
    """Move items of PrivFedEB."""
    # Clients do not know the curvature; it is about the sum of such uploads as theirs.
    return {"items": _size_of_sum(view) * moves}


def _size_of_sum(view):
    """Return the largest number in the clients' sum, for each of the adversary's uploads."""
    return np.abs(view.mean("items")).max() * view.n_senders / view.n_own


# ---------------------------------------------------------------------------- by their names

MOVING: dict[str, Moving] = {
    "LocALS": client_items,
    "LocSGD": client_items,
    "GlobSGD": globsgd,
    "FCF": fcf,
    "FedEB": fedeb,
    "PrivFedEB": privfedeb,
}


def moving_of(method: Any) -> Moving | None:
    """Return the function of an estimator's method; None if its clients send no rows of items."""
    for kind in type(method).__mro__:
        if kind.__name__ in MOVING:
            return MOVING[kind.__name__]
    hook = getattr(method, "_upload_moving", None)
    return None if hook is None else lambda method, *given: hook(*given)
