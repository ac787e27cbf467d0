"""What a fit leaves: models that score users and items by their codes."""

from fedrecsk.models._factors import Factors
from fedrecsk.models._model import Model, Scores, clipped

__all__ = ["Factors", "Model", "Scores", "clipped"]
