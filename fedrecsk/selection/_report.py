"""What a federated evaluation found, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
from numpy.typing import NDArray

from fedrecsk._utils import html
from fedrecsk.privacy import PrivacyReport
from fedrecsk.protocol import Ledger


@dataclass(frozen=True, eq=False, repr=False)
class EvaluationReport:
    """The result of :func:`federated_evaluate`.

    Attributes
    ----------
    values : dict of {str: float}
        Each metric: over all rows for "rmse" and "mae", the mean over users for ranking metrics.
    standard_errors : dict of {str: float}
        Standard error of each metric over clients: the standard deviation of the clients' own
        means, divided by the root of their number, with the noise of central privacy. For "rmse",
        that of the clients' mean squared errors, divided by twice the metric.
    histograms : dict of {str: ndarray of shape (10,)}
        Number of clients by their own value of each metric.
    edges : dict of {str: ndarray of shape (11,)}
        Edges of the bins. The last bin includes greater values.
    communication : Ledger
        Bytes of the evaluation.
    privacy : PrivacyReport
        What the server sees, and the guarantee of this evaluation alone.
    total_privacy : PrivacyReport
        The same for the fit and this evaluation together. Of several evaluations it counts one;
        charge them to a :class:`~fedrecsk.privacy.PrivacyBudget`.
    encryption : EncryptionReport, MaskingReport or None
        Cost of secure sums; None without them.
    """

    values: dict[str, float]
    standard_errors: dict[str, float]
    histograms: dict[str, NDArray[Any]]
    edges: dict[str, NDArray[Any]]
    communication: Ledger
    privacy: PrivacyReport
    total_privacy: PrivacyReport
    encryption: Any = None

    def to_frame(self) -> pd.DataFrame:
        """Return values, standard errors and number of clients as a pandas DataFrame."""
        clients = {name: one.sum() for name, one in self.histograms.items()}
        columns = {"value": self.values, "standard_error": self.standard_errors, "clients": clients}
        return pd.DataFrame(columns).rename_axis("metric")

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers as a dict that can be written as JSON."""
        ledger, privacy = self.communication, self.privacy
        return {
            "metrics": {
                name: {
                    "value": value,
                    "standard_error": self.standard_errors[name],
                    "histogram": self.histograms[name].tolist(),
                    "edges": self.edges[name].tolist(),
                }
                for name, value in self.values.items()
            },
            "bytes_up": ledger.bytes_up,
            "bytes_down": ledger.bytes_down,
            "epsilon": privacy.epsilon,
            "delta": privacy.delta,
            "server_sees": privacy.server_sees,
        }

    def __repr__(self) -> str:
        shown = (
            f"{name} {value:.4g} ± {self.standard_errors[name]:.2g}"
            for name, value in self.values.items()
        )
        return f"EvaluationReport({', '.join(shown)})"

    def __str__(self) -> str:
        lines = [f"{'metric':<14}{'value':>10}{'std. error':>12}   clients, from low to high"]
        for name, value in self.values.items():
            counts = " ".join(f"{one:.0f}" for one in self.histograms[name])
            lines.append(f"{name:<14}{value:>10.4f}{self.standard_errors[name]:>12.4f}   {counts}")
        return "\n".join([*lines, *self._notes])

    @property
    def _notes(self):
        """Lines about bins, bytes and privacy."""
        tops = ", ".join(f"{name} to {one[-1]:g}" for name, one in self.edges.items())
        return [
            f"Bins of equal width: {tops}, the last one with greater values.",
            repr(self.communication),
            repr(self.privacy),
        ]

    def _repr_html_(self) -> str:
        rows = [
            [
                name,
                f"{value:.4f}",
                f"{self.standard_errors[name]:.4f}",
                " ".join(f"{one:.0f}" for one in self.histograms[name]),
            ]
            for name, value in self.values.items()
        ]
        head = ["", "Value", "Standard error", "Clients, from low to high"]
        return html.table("Federated evaluation", head, rows, notes=self._notes)
