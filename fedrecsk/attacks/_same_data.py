"""A check that a fitted model was fitted on the data that it is to be measured on."""

from __future__ import annotations

import numpy as np


def check_same_data(estimator, data, what):
    """Raise if the estimator has been fitted on other users or items than these.

    Parameters
    ----------
    estimator : estimator
        Fitted or not.
    data : Interactions
    what : str
        Name of the function that measures, for the error.
    """
    for kind, ids in (("user", data.user_ids.values), ("item", data.item_ids.values)):
        fitted = getattr(estimator, f"{kind}_ids_", None)
        if fitted is None or (len(fitted) == len(ids) and np.isin(ids, fitted).all()):
            continue
        new, gone = np.setdiff1d(ids, fitted), np.setdiff1d(fitted, ids)
        which, where = (new, "X, but not in the data of fit") if len(new) else (
            gone, "the data of fit, but not in X"
        )  # fmt: skip
        raise ValueError(
            f"{what} fits copies of the estimator on X, but this {type(estimator).__name__} was "
            f"fitted on other data: {kind} {which[0]!s} is in {where}. Pass the data of fit to "
            f"measure what that fit has revealed, or clone(estimator) to measure a fit on X."
        )
