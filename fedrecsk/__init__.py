"""Federated recommendation as scikit-learn estimators whose fit simulates the protocol."""

from fedrecsk._version import __version__
from fedrecsk.centralized import BiasOnly, ImplicitALS, ImplicitBPR, ImplicitLMF, Popularity
from fedrecsk.federated import GlobSGD, LocALS, LocSGD, RFRec, RFRecF
from fedrecsk.simulation import Federation

__all__ = [
    "BiasOnly",
    "Federation",
    "GlobSGD",
    "ImplicitALS",
    "ImplicitBPR",
    "ImplicitLMF",
    "LocALS",
    "LocSGD",
    "Popularity",
    "RFRec",
    "RFRecF",
    "__version__",
]
