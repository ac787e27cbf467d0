"""Federated recommendation as scikit-learn estimators whose fit simulates the protocol."""

from fedrecsk._version import __version__
from fedrecsk.centralized import (
    PMF,
    BayesianSVDpp,
    BiasedMF,
    BiasOnly,
    ImplicitALS,
    ImplicitBPR,
    ImplicitLMF,
    Popularity,
    SVDpp,
)
from fedrecsk.federated import (
    FCF,
    CoLR,
    ExplicitFCF,
    FedEB,
    FedFast,
    FedMF,
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
    "FCF",
    "PMF",
    "BayesianSVDpp",
    "BiasOnly",
    "BiasedMF",
    "CoLR",
    "FedEB",
    "ExplicitFCF",
    "FedFast",
    "FedMF",
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
