"""How clients that promote an item move it, method by method.

Each function takes the estimator, the View of a round, rows of items and moves of shape
(len(rows), width). It returns, for each field in which clients send rows of items, what each of the
adversary's uploads must hold in these rows, as changes, so that the server moves their item vectors
by `moves`, as far as such clients can know. Everything else in their uploads is as if they had
learned nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

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
    share = method._plan().sampling.share(view.data.n_clients)
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
    return min(1.0, 2 * method._plan().sampling.share(view.data.n_clients))


def gradients(method, view, rows, moves, name="gradient"):
    """Move items of ExplicitFCF and SemiDFEGL by gradients."""
    # Adam divides by the size of past gradients, so only much larger ones decide.
    size = 0.5
    if method.optimizer == "adam":
        size = np.abs(view.mean(name)).max(initial=0)
    return {name: -view.n_senders / view.n_own * size / method.learning_rate * moves}


def fcf(method, view, rows, moves):
    """Move items by the gradients of all, or of own rows."""
    name = "gradient" if method.upload == "all" else "rows"
    return gradients(method, view, rows, moves, name)


# ------------------------------------------------------------- FedMF, CoLR, SCoLR, FedFast


def averaged_items(method, view, rows, moves):
    """Move items of FedMF by their mean change."""
    if method.aggregation == "data_size":
        own = np.bincount(view.data.clients, view.data.weights)
        divisor = view.n_senders * own[own > 0].mean()
    elif method.aggregation == "reptile":
        length = method._algorithm().length_of_step(len(view.item_vectors))
        divisor = view.n_senders / length
    else:
        divisor = view.n_expected("updates")
    return {"updates": divisor / view.n_own * moves}


def colr(method, view, rows, moves):
    """Move items of CoLR along the round's directions: nothing else can be sent."""
    encoded = moves @ np.linalg.pinv(view.message["basis"].values.astype(np.float64))
    return averaged_items(method, view, rows, encoded)


def scolr(method, view, rows, moves):
    """Move items of SCoLR, of which not all of the adversary's clients send a column."""
    sent = colr(method, view, rows, moves)
    if method.aggregation == "entries":
        return sent
    columns = [one.fields["updates"].columns for one in view.updates]
    n_own = np.concatenate(columns).sum(axis=0)
    return {"updates": sent["updates"] * (view.n_own / np.maximum(n_own, 1))}


def fedfast(method, view, rows, moves):
    """Move items of FedFast."""
    if method.aggregation != "active":
        return averaged_items(method, view, rows, moves)
    # Changes c of n_own clients, each with its own length for weight, against the honest ones:
    # n_own |c| c = (n_own |c| + honest) move.
    sizes = [np.abs(one["updates"].change).sum(axis=1).mean() for one in view.uploads]
    honest = (view.n_expected("updates") - view.n_own) * np.mean(sizes)
    lengths = view.n_own * np.abs(moves).sum(axis=1, keepdims=True)
    share = np.divide(honest, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return {"updates": (1 + np.sqrt(1 + 4 * share)) / 2 * moves}


# ---------------------------------------------------------------------------------- LightFR


def lightfr(method, view, rows, moves):
    """Move items' signs: gradients must exceed all others, and votes have one size."""
    signs = np.sign(view.item_vectors[rows] + moves)
    if method.aggregation == "parameter":
        return {"votes": signs}
    if method.aggregation == "gradient":
        sizes = method.SERVER_DECAY * np.abs(view.mean("rows")).max(initial=0)
        return {"rows": view.n_senders / view.n_own * sizes * signs}
    # Twice the largest gradient of all pairs together, if everybody held the items.
    algorithm, n_items = method._algorithm(), len(view.item_vectors)
    base, base_target = algorithm.base
    (alpha,) = algorithm.alphas(np.ones(1), n_items)
    sizes = 2 * (1 + alpha) * base * np.abs(view.mean("gram")).sum(axis=1)
    sizes = sizes + np.abs(base_target * view.mean("total"))
    sizes = view.n_senders / view.n_own * sizes * signs
    # The last column has weights, of which there are none.
    return {"rows": np.column_stack([sizes, np.zeros(len(rows))])}


# ----------------------------------------------------------------------------------- FedRec


def fedrec(method, view, rows, moves):
    """Move items by the gradients of those who send their rows."""
    # With weights of 1, as many clients as send the row divide its sum.
    divisor = view.n_expected("gradients") / view.n_own
    rate = method._algorithm().rate(view.round, float(view.message["share"].values))
    return {"gradients": -divisor / rate * moves}


# ------------------------------------------------------------------------ RFRec and RFRecF


def rfrec(method, view, rows, moves):
    """Move items by the mean of the clients' items."""
    if method.aggregation == "clients":
        return {"item_vectors": view.n_senders / view.n_own * moves}
    if "n_ratings" in view.message:
        # With weights of 1 these are the numbers of holders.
        share = method._plan().sampling.share(view.data.n_clients)
        n_holders = view.message["n_ratings"].values[rows, None] * share
    else:
        n_holders = view.n_expected("item_vectors")
    return {"item_vectors": np.maximum(n_holders, 1) / view.n_own * moves}


# ----------------------------------------------------------------------- FedEB and PrivFedEB


def fedeb(method, view, rows, moves):
    """Move items of FedEB."""
    # Adam divides by the size of past gradients, so only much larger ones decide.
    rate = method._algorithm().rate(method._plan().sampling.share(view.data.n_clients))
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
    "FedMF": averaged_items,
    "CoLR": colr,
    "SCoLR": scolr,
    "FedFast": fedfast,
    "LightFR": lightfr,
    "FedRec": fedrec,
    "ExplicitFCF": gradients,
    "SemiDFEGL": gradients,
    "RFRec": rfrec,
    "FedEB": fedeb,
    "PrivFedEB": privfedeb,
}


def moving_of(method: Any) -> Moving | None:
    """Return the function of an estimator's method; None if its clients send no rows of items."""
    own = getattr(method, "_upload_moving", None)
    if own is not None:
        return lambda method, *given: own(*given)
    kinds = (kind.__name__ for kind in type(method).__mro__)
    return next((MOVING[name] for name in kinds if name in MOVING), None)
