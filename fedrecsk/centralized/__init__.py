"""The same contract without clients: comparators and centralised references."""

from fedrecsk.centralized.bias_only import BiasOnly
from fedrecsk.centralized.implicit import ImplicitALS, ImplicitBPR, ImplicitLMF
from fedrecsk.centralized.popularity import Popularity

__all__ = ["BiasOnly", "ImplicitALS", "ImplicitBPR", "ImplicitLMF", "Popularity"]
