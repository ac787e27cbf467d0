"""Fitted models, which score users and items by their codes."""

from fedrecsk.models._model import Factors, Model, Scores, clipped

__all__ = ["Factors", "Model", "Scores", "clipped"]
