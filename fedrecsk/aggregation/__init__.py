"""Robust aggregators: how a server adds up uploads that it does not trust.

They need each client's upload, so they cannot be combined with secure sums.
"""

from fedrecsk.aggregation._base import Aggregator
from fedrecsk.aggregation._base import plain_sum as plain_sum
from fedrecsk.aggregation._fl_trust import FLTrust
from fedrecsk.aggregation._geometric_median import GeometricMedian
from fedrecsk.aggregation._hierarchical_clipping import HierarchicalClipping
from fedrecsk.aggregation._krum import Krum
from fedrecsk.aggregation._median import CoordinateMedian
from fedrecsk.aggregation._norm_clipping import NormClipping
from fedrecsk.aggregation._popularity_filter import PopularityFilter
from fedrecsk.aggregation._row_clipping import RowClipping
from fedrecsk.aggregation._trimmed_mean import TrimmedMean
from fedrecsk.uploads import Update as Update

__all__ = [
    "Aggregator",
    "CoordinateMedian",
    "FLTrust",
    "GeometricMedian",
    "HierarchicalClipping",
    "Krum",
    "NormClipping",
    "PopularityFilter",
    "RowClipping",
    "TrimmedMean",
]
