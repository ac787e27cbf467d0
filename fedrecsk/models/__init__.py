"""What a fit leaves: models that score users and items by their codes."""

from fedrecsk.models.factors import Factors, weighted_factors
from fedrecsk.models.item_weights import NearestWeights, Weights
from fedrecsk.models.model import Model, Scores, clipped

__all__ = ["Factors", "Model", "NearestWeights", "Scores", "Weights", "clipped", "weighted_factors"]
