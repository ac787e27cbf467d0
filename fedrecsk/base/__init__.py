"""The base classes of all recommenders of the package."""

from fedrecsk._utils.sklearn_compat import Interval, StrOptions
from fedrecsk.base._recommend import _placed as _placed
from fedrecsk.base._recommender import (
    FitReport,
    RankingMixin,
    RatingMixin,
    Recommender,
    attributes_of,
    check_likes,
    fitted_copy,
)

__all__ = [
    "FitReport",
    "Interval",
    "RankingMixin",
    "RatingMixin",
    "Recommender",
    "StrOptions",
    "attributes_of",
    "check_likes",
    "fitted_copy",
]
