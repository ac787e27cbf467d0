"""What must be unchanged for a fit to continue where the last one ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedrecsk.data.item_features import fingerprint

if TYPE_CHECKING:
    from fedrecsk.base import Recommender
    from fedrecsk.data.interactions import Interactions


def check_resumable(
    run: Any,
    data: Interactions,
    parameters: dict[str, Any],
    total: str,
    n_total: int,
    n_done: int,
) -> None:
    """Raise if a run cannot go on with these data and parameters, or has run that long already."""
    steps = total.removeprefix("n_")
    if run.fingerprint != data.fingerprint():
        raise ValueError(
            f"warm_start continues the {steps} of the last fit, but X, y, clients, "
            "sample_weight or items have changed since; fit with warm_start=False, or use "
            "fold_in to add users."
        )
    check_unchanged(run, parameters, f"warm_start continues the {steps} of the last fit")
    if n_total < n_done:
        raise ValueError(
            f"{total}={n_total} must be larger or equal to the {n_done} {steps} already run when "
            "warm_start=True."
        )


def check_unchanged(run: Any, now: dict[str, Any], what: str) -> None:
    """Raise if parameters that a run must keep are no longer as they were."""
    before = run.parameters
    changed = [n for n in before | now if not np.array_equal(before.get(n), now.get(n))]
    if changed:
        name = min(changed)
        raise ValueError(
            f"{what}, but {name} has changed from {before.get(name)!r} to {now.get(name)!r} since; "
            "set it back or fit with warm_start=False."
        )


def resumed(estimator: Recommender, data: Interactions, total: str) -> Any:
    """Return the run of a centralised model that `warm_start` continues, or None."""
    run = getattr(estimator, "_run", None) if estimator.warm_start else None
    if run is not None:
        parameters, n_total = parameters_of_a_run(estimator, total), getattr(estimator, total)
        check_resumable(run, data, parameters, total, n_total, getattr(run, total))
    return run


def parameters_of_a_run(estimator: Recommender, total: str) -> dict[str, Any]:
    """Return the parameters of a centralised model that must not change between its steps."""
    # The fingerprint of the data has `items`.
    free = {"items", total, "warm_start", "n_iter_no_change", "tol", "n_jobs"}
    parameters = estimator.get_params(deep=False)
    features = parameters.pop("item_features", None)
    if features is not None:
        parameters["item_features"] = fingerprint(features)
    return {name: value for name, value in parameters.items() if name not in free}
