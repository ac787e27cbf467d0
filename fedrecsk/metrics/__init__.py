"""Ranking metrics, scorers for scikit-learn's model selection, and what a model costs.

Mean absolute error and root mean squared error of predicted ratings are scikit-learn's own:
:func:`sklearn.metrics.mean_absolute_error` and :func:`sklearn.metrics.root_mean_squared_error`,
as scorers ``"neg_mean_absolute_error"`` and ``"neg_root_mean_squared_error"``.
"""

from fedrecsk.metrics._evaluate import catalogue_ndcg as catalogue_ndcg
from fedrecsk.metrics._evaluate import evaluate_ranking, exposure
from fedrecsk.metrics._evaluate import values_by_user as values_by_user
from fedrecsk.metrics._held_out import are_known as are_known
from fedrecsk.metrics._held_out import check_rows as check_rows
from fedrecsk.metrics._held_out import top_k as top_k
from fedrecsk.metrics._held_out import unwrap as unwrap
from fedrecsk.metrics._held_out import warn_if_seen as warn_if_seen
from fedrecsk.metrics._held_out import warn_if_unknown as warn_if_unknown
from fedrecsk.metrics._ranking import (
    average_precision_at_k,
    hit_rate_at_k,
    ndcg_at_k,
    precision_at_k,
    recall_at_k,
    reciprocal_rank_at_k,
    user_auc,
)
from fedrecsk.metrics._scorers import (
    best_within,
    bytes_device_to_device_scorer,
    bytes_down_scorer,
    bytes_scorer,
    bytes_up_scorer,
    epsilon_scorer,
    hours_scorer,
    make_ranking_scorer,
    rounds_scorer,
)

__all__ = [
    "average_precision_at_k",
    "best_within",
    "bytes_device_to_device_scorer",
    "bytes_down_scorer",
    "bytes_scorer",
    "bytes_up_scorer",
    "epsilon_scorer",
    "evaluate_ranking",
    "exposure",
    "hit_rate_at_k",
    "hours_scorer",
    "make_ranking_scorer",
    "ndcg_at_k",
    "precision_at_k",
    "recall_at_k",
    "reciprocal_rank_at_k",
    "rounds_scorer",
    "user_auc",
]
