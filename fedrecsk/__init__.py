"""Federated recommendation as scikit-learn estimators whose fit simulates the protocol."""

from fedrecsk._version import __version__
from fedrecsk.centralized import (
    PMF,
    BiasedMF,
    BiasOnly,
    ImplicitALS,
    ImplicitBPR,
    ImplicitLMF,
    Popularity,
    SVDpp,
)
from fedrecsk.federated import (
    CoLR,
    FedMF,
    FedRec,
    GlobSGD,
    LightFR,
    LocALS,
    LocSGD,
    RFRec,
    RFRecF,
    SCoLR,
)
from fedrecsk.simulation import Federation

__all__ = [
    "PMF",
    "BiasOnly",
    "BiasedMF",
    "CoLR",
    "FedMF",
    "FedRec",
    "Federation",
    "GlobSGD",
    "ImplicitALS",
    "ImplicitBPR",
    "ImplicitLMF",
    "LightFR",
    "LocALS",
    "LocSGD",
    "Popularity",
    "RFRec",
    "RFRecF",
    "SCoLR",
    "SVDpp",
    "__version__",
]
