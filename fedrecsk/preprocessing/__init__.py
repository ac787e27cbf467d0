"""Encoders, rating scales and row filters.

Steps of a Pipeline must keep the number of rows, or scikit-learn would misalign X and y. So there
are three kinds: transformers that map rows one to one, for a Pipeline (:class:`IdEncoder`);
transformers of y, for a :class:`~sklearn.compose.TransformedTargetRegressor`
(:class:`RatingScaler`); and functions of (X, y, clients, sample_weight) that drop rows.
"""

from fedrecsk.preprocessing._encoder import IdEncoder
from fedrecsk.preprocessing._ratings import (
    RatingScaler,
    binarize,
    filter_k_core,
    filter_min_ratings,
    to_implicit,
)

__all__ = [
    "IdEncoder",
    "RatingScaler",
    "binarize",
    "filter_k_core",
    "filter_min_ratings",
    "to_implicit",
]
