"""Encoders, rating scales and row filters.

Inside a Pipeline nothing may change the number of rows, because scikit-learn would misalign y.
So what lives in a Pipeline maps rows one to one (:class:`IdEncoder`), what changes y lives in a
:class:`~sklearn.compose.TransformedTargetRegressor` (:class:`RatingScaler`), and what drops rows
is a function of (X, y, clients, sample_weight).
"""

from fedrecsk.preprocessing._encoder import IdEncoder
from fedrecsk.preprocessing._filters import filter_k_core, filter_min_ratings, to_implicit
from fedrecsk.preprocessing._ratings import RatingScaler, binarize

__all__ = [
    "IdEncoder",
    "RatingScaler",
    "binarize",
    "filter_k_core",
    "filter_min_ratings",
    "to_implicit",
]
