"""Robust aggregators: how a server adds up uploads that it does not trust.

They need each client's upload, so they cannot be combined with secure sums.
"""

from fedrecsk.aggregation._base import Aggregator
from fedrecsk.aggregation._base import plain_sum as plain_sum
from fedrecsk.aggregation._clipping import (
    HierarchicalClipping,
    NormClipping,
    PopularityFilter,
    RowClipping,
)
from fedrecsk.aggregation._comparison import (
    CoordinateMedian,
    FLTrust,
    GeometricMedian,
    Krum,
    TrimmedMean,
)
from fedrecsk.updates import Update as Update

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
