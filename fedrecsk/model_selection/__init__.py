"""Splitters of interactions, and a comparison of recommenders on the same folds.

The splitters are scikit-learn CV objects that take users, items and time into account. They split
rows, so a repeated (user, item) pair may be both in training and in test, but for
:class:`ColdItemHoldout`, which holds out all rows of an item.

To hold out whole users, use scikit-learn's own splitters with the users as groups:
``GroupKFold().split(X, y, groups=X[:, 0])``; for :func:`compare`, ``cv=list(...)`` of that.
"""

from fedrecsk.model_selection._compare import compare
from fedrecsk.model_selection._comparison import Comparison
from fedrecsk.model_selection._splitters import (
    ColdItemHoldout,
    LeaveLastOut,
    RollingOrigin,
    TemporalHoldout,
    UserHoldout,
    UserKFold,
    WarmStartKFold,
)

__all__ = [
    "ColdItemHoldout",
    "Comparison",
    "LeaveLastOut",
    "RollingOrigin",
    "TemporalHoldout",
    "UserHoldout",
    "UserKFold",
    "WarmStartKFold",
    "compare",
]
