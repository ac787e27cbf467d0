"""Judge models where the data are: no rows leave the clients, which send sums only."""

from fedrecsk.selection._evaluate import federated_evaluate
from fedrecsk.selection._report import EvaluationReport

__all__ = ["EvaluationReport", "federated_evaluate"]
