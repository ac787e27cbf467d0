"""Federated recommendation as scikit-learn estimators whose fit simulates the protocol."""

from fedrecsk._version import __version__
from fedrecsk.centralized import (
    EASE,
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
    FedEASE,
    FedMF,
    FedSpectral,
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
    "EASE",
    "PMF",
    "BiasOnly",
    "BiasedMF",
    "CoLR",
    "FedEASE",
    "FedMF",
    "FedSpectral",
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
