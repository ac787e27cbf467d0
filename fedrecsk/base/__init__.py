"""The base classes of all recommenders of the package."""

from fedrecsk._utils.sklearn_compat import Interval, StrOptions
from fedrecsk.base._fold_in import _placed as _placed
from fedrecsk.base._kinds import RankingMixin, RatingMixin, check_likes
from fedrecsk.base._linear import _batches as _batches
from fedrecsk.base._linear import linear_scores
from fedrecsk.base._recommender import FitReport, Recommender, attributes_of

__all__ = [
    "FitReport",
    "Interval",
    "RankingMixin",
    "RatingMixin",
    "Recommender",
    "StrOptions",
    "attributes_of",
    "check_likes",
    "linear_scores",
]
