"""Judge models, and choose them, where the data are: no rows leave the clients."""

from fedrecsk.selection._evaluate import federated_evaluate
from fedrecsk.selection._report import EvaluationReport
from fedrecsk.selection._search import FederatedSearch

__all__ = ["EvaluationReport", "FederatedSearch", "federated_evaluate"]
