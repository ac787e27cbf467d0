"""What a fit guarantees for the privacy of its clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk._utils import html
from fedrecsk.privacy.accounting import Event, epsilon_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from fedrecsk.privacy.local_dp import LocalMechanism

# In the order of how much they reveal.
SERVER_SEES = ("encrypted sums", "sums", "single uploads")
CENTRAL = ("central noise", "distributed noise")
# Mechanisms without an epsilon for each number.
WHOLE_UPLOADS = (*CENTRAL, "gaussian", "sphere")


@dataclass(frozen=True, repr=False)
class PrivacyReport:
    """The privacy guarantee of a fit for the data of its clients.

    Attributes
    ----------
    mechanism : str
        ``"laplace"``, ``"gaussian"``, ``"sphere"``: every client protects each of its uploads.
        ``"central noise"``: noise by the server on sums. ``"distributed noise"``: shares of it by
        the clients. ``"none"``: no formal guarantee.
    epsilon_per_coordinate : float
        Epsilon of one coordinate of one upload, the number that papers quote for Laplace noise. If
        whole uploads are protected, that of one upload, and for central noise the total; both are
        bounds.
    n_uploads : int
        Largest number of uploads of a client.
    n_coordinates : int
        Largest number of coordinates that a client sent, over all uploads.
    epsilon : float
        Total epsilon of the client that lost most, over all its uploads. Local noise: as
        `total_epsilon` of the mechanism says. Central noise: by the privacy loss distribution;
        shares by clients: by Renyi differential privacy.
    server_sees : {"sums", "encrypted sums", "single uploads"}
        What the protocol shows to the server. "sums": the server only needs sums, which arrive in
        plaintext. "encrypted sums": `secure_aggregation` encrypts them. "single uploads": the
        method, a robust aggregator or compression needs every client's upload.
    delta : float
        Probability, roughly, with which the guarantee may fail. 0: pure differential privacy.
    neighbours : str
        Which change of the data is hidden.
    sampling : str
        What the guarantee assumes about who takes part in a round.
    trust : str
        Who must be trusted because it sees uploads without enough noise.
    events : tuple of Event
        The noisy sums that the epsilon of central noise comes from, by which fits compose.
    """

    mechanism: str
    epsilon_per_coordinate: float
    n_uploads: int
    n_coordinates: int
    epsilon: float
    server_sees: str = "sums"
    delta: float = 0.0
    neighbours: str = "any other data of one client"
    sampling: str = "every client may be in every round"
    trust: str = "nobody"
    events: tuple[Event, ...] = ()

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
            trust = "everyone who sees uploads or models"
            return cls("none", unbounded, uploads, coordinates, unbounded, server_sees, trust=trust)
        return cls(
            mechanism.name,
            mechanism.epsilon_per_coordinate,
            uploads,
            coordinates,
            mechanism.total_epsilon(uploads, coordinates),
            server_sees,
            delta=mechanism.delta,
        )

    @classmethod
    def joined(cls, reports: Sequence[PrivacyReport], delta: float | None = None) -> PrivacyReport:
        """Combine the reports of several fits to the same clients.

        Fits with central noise compose by the privacy loss distribution. Other fits compose by
        adding up their epsilons and deltas.

        Parameters
        ----------
        reports : list of PrivacyReport
        delta : float or None, default=None
            Total delta. Fits with central noise have what others leave of it. None: the largest
            delta of any of them, and those of the others.

        Returns
        -------
        report : PrivacyReport
        """
        central = [one for one in reports if one.is_central]
        others = [one for one in reports if not one.is_central]
        events = tuple(event for one in central for event in one.events)
        others_delta = sum(one.delta for one in others)
        if not central:
            left = 0.0
        elif delta is None:
            left = max(one.delta for one in central)
        else:
            left = max(0.0, delta - others_delta)
        epsilon = epsilon_of(events, left)
        return cls(
            _common((one.mechanism for one in reports), ", "),
            max(one.epsilon_per_coordinate for one in reports),
            sum(one.n_uploads for one in reports),
            sum(one.n_coordinates for one in reports),
            epsilon + sum(one.epsilon for one in others),
            # The fit in which the server sees the most.
            max((one.server_sees for one in reports), key=SERVER_SEES.index),
            delta=left + others_delta,
            neighbours=_common((one.neighbours for one in reports), "; "),
            sampling=_common((one.sampling for one in reports), "; "),
            trust=_trusted([one.trust for one in reports]),
            events=events,
        )

    @property
    def is_central(self) -> bool:
        """Whether the noise is on sums, by the server or in shares by the clients."""
        return self.mechanism in CENTRAL

    def __repr__(self) -> str:
        delta = f", delta {self.delta:g}" if self.delta else ""
        return (
            f"PrivacyReport(mechanism={self.mechanism!r}, epsilon {_epsilon(self.epsilon)}{delta} "
            f"in {self.n_uploads:,} uploads; to be trusted: {self.trust}; "
            f"server_sees={self.server_sees!r})"
        )

    def _repr_html_(self) -> str:
        rows = [
            ["Mechanism", self.mechanism],
            ["Total ε of the client that lost most", _epsilon(self.epsilon)],
        ]
        if self.delta:
            rows.append(["δ", f"{self.delta:.3g}"])
        rows += [
            ["What is hidden", self.neighbours],
            ["Who takes part", self.sampling],
            ["Who must be trusted", self.trust],
            ["What the server sees", self.server_sees],
        ]
        if self.mechanism not in WHOLE_UPLOADS:
            each = _epsilon(self.epsilon_per_coordinate)
            rows.append(["ε of one coordinate of one upload", each])
        rows += [
            ["Most uploads of one client", f"{self.n_uploads:,}"],
            ["Most coordinates of one client", f"{self.n_coordinates:,}"],
        ]
        notes = []
        if np.isinf(self.epsilon):
            notes.append(
                "ε = ∞: no formal guarantee. Set central_dp or local_dp for differential privacy."
            )
        return html.table("Privacy", [], rows, notes=notes)


def _trusted(words):
    """Who must be trusted in any of several fits."""
    return _common([one for one in words if one != "nobody"] or words, "; ")


def _common(words, separator):
    """Return the one thing that all say, or all things that some say."""
    different = list(dict.fromkeys(words))
    if len(different) == 1:
        return different[0]
    return "none" if "none" in different else separator.join(different)


def _epsilon(value):
    if np.isinf(value):
        return "∞"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
