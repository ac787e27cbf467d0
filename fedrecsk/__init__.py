"""Federated recommendation as scikit-learn estimators whose fit simulates the protocol."""

from fedrecsk._version import __version__
from fedrecsk.centralized import BiasOnly, Popularity
from fedrecsk.federated import RFRec, RFRecF
from fedrecsk.simulation import Federation

__all__ = ["BiasOnly", "Federation", "Popularity", "RFRec", "RFRecF", "__version__"]
