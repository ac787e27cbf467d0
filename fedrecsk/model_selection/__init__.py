"""Splitters of interactions: scikit-learn CV objects that know users, items and time.

Whole users are held out by scikit-learn's own splitters, with the users as groups:
``GroupKFold().split(X, y, groups=X[:, 0])``.
"""

from fedrecsk.model_selection._leave_last_out import LeaveLastOut
from fedrecsk.model_selection._temporal_holdout import TemporalHoldout
from fedrecsk.model_selection._user_holdout import UserHoldout
from fedrecsk.model_selection._user_kfold import UserKFold
from fedrecsk.model_selection._warm_start_kfold import WarmStartKFold

__all__ = ["LeaveLastOut", "TemporalHoldout", "UserHoldout", "UserKFold", "WarmStartKFold"]
