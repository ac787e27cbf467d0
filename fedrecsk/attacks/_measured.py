"""Checks of the estimator that is to be measured."""

from __future__ import annotations

import numpy as np


def check_is_instance(estimator, what):
    """Raise if this is a class; `what` is the name of the function that measures."""
    if isinstance(estimator, type):
        raise TypeError(f"{what} takes an estimator, but got a class; pass {estimator.__name__}().")


def check_same_data(estimator, data, what):
    """Raise if the estimator has been fitted on other users or items than these."""
    for kind, ids in (("user", data.user_ids.values), ("item", data.item_ids.values)):
        fitted = getattr(estimator, f"{kind}_ids_", None)
        if fitted is None or (len(fitted) == len(ids) and np.isin(ids, fitted).all()):
            continue
        which, where = np.setdiff1d(ids, fitted), "X, but not in the data of fit"
        if len(which) == 0:
            which, where = np.setdiff1d(fitted, ids), "the data of fit, but not in X"
        raise ValueError(
            f"{what} fits copies of the estimator on X, but this {type(estimator).__name__} was "
            f"fitted on other data: {kind} {which[0]!s} is in {where}. Pass the data of fit to "
            f"measure what that fit has revealed, or clone(estimator) to measure a fit on X."
        )
