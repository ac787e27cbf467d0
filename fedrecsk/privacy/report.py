"""What a fit guarantees for the privacy of its clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk import _html

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from fedrecsk.privacy.local_dp import LocalMechanism

# In the order of how much they reveal.
SERVER_SEES = ("encrypted sums", "sums", "single uploads")


@dataclass(frozen=True)
class PrivacyReport:
    """The privacy guarantee of a fit for the data of its clients.

    Attributes
    ----------
    mechanism : str
        ``"laplace"``, or ``"none"``: no formal guarantee.
    epsilon_per_coordinate : float
        Epsilon of one coordinate of one upload, the number that papers quote.
    n_uploads : int
        Largest number of uploads of a client.
    n_coordinates : int
        Largest number of coordinates that a client sent, over all uploads.
    epsilon : float
        Total epsilon of that client by basic composition, over all its coordinates and uploads.
        Pure differential privacy (delta = 0).
    server_sees : {"sums", "encrypted sums", "single uploads"}
        What the protocol shows to the server. "sums": the server only needs sums, which arrive in
        plaintext. "encrypted sums": `secure_aggregation` encrypts them. "single uploads": the
        method, a robust aggregator or compression needs every client's upload.
    """

    mechanism: str
    epsilon_per_coordinate: float
    n_uploads: int
    n_coordinates: int
    epsilon: float
    server_sees: str = "sums"

    @classmethod
    def of(
        cls,
        mechanism: LocalMechanism | None,
        n_uploads: ArrayLike,
        n_coordinates: ArrayLike,
        server_sees: str = "sums",
    ) -> PrivacyReport:
        """Make a report from what each client sent, given arrays of shape (n_clients,)."""
        uploads, coordinates = int(np.max(n_uploads)), int(np.max(n_coordinates))
        if mechanism is None:
            unbounded = float("inf") if coordinates else 0.0
            return cls("none", unbounded, uploads, coordinates, unbounded, server_sees)
        each = mechanism.epsilon_per_coordinate
        total = mechanism.total_epsilon(uploads, coordinates)
        return cls(mechanism.name, each, uploads, coordinates, total, server_sees)

    @classmethod
    def joined(cls, reports: Sequence[PrivacyReport]) -> PrivacyReport:
        """Combine the reports of several fits to the same data, by basic composition.

        Parameters
        ----------
        reports : list of PrivacyReport

        Returns
        -------
        report : PrivacyReport
        """
        everywhere = all(one.mechanism == "laplace" for one in reports)
        return cls(
            "laplace" if everywhere else "none",
            max(one.epsilon_per_coordinate for one in reports),
            sum(one.n_uploads for one in reports),
            sum(one.n_coordinates for one in reports),
            sum(one.epsilon for one in reports),
            # The fit in which the server sees the most.
            max((one.server_sees for one in reports), key=SERVER_SEES.index),
        )

    def _repr_html_(self) -> str:
        rows = [
            ["Mechanism on each upload", self.mechanism],
            ["What the server sees", self.server_sees],
            ["Total ε of the client that lost most", _epsilon(self.epsilon)],
            ["ε of one coordinate of one upload", _epsilon(self.epsilon_per_coordinate)],
            ["Most uploads of one client", f"{self.n_uploads:,}"],
            ["Most coordinates of one client", f"{self.n_coordinates:,}"],
        ]
        notes = []
        if np.isinf(self.epsilon):
            notes.append("ε = ∞: no formal guarantee. Set local_dp for differential privacy.")
        return _html.table("Privacy", [], rows, notes=notes)


def _epsilon(value):
    if np.isinf(value):
        return "∞"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
