"""Splitters of interactions, and recommenders side by side on the same folds.

Splitters are scikit-learn CV objects that know users, items and time.

Whole users are held out by scikit-learn's own splitters, with the users as groups:
``GroupKFold().split(X, y, groups=X[:, 0])``.
"""

from fedrecsk.model_selection._compare import compare
from fedrecsk.model_selection._comparison import Comparison
from fedrecsk.model_selection._leave_last_out import LeaveLastOut
from fedrecsk.model_selection._temporal_holdout import TemporalHoldout
from fedrecsk.model_selection._user_holdout import UserHoldout
from fedrecsk.model_selection._user_kfold import UserKFold
from fedrecsk.model_selection._warm_start_kfold import WarmStartKFold

__all__ = [
    "Comparison",
    "LeaveLastOut",
    "TemporalHoldout",
    "UserHoldout",
    "UserKFold",
    "WarmStartKFold",
    "compare",
]
