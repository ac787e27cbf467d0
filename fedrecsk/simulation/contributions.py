"""Contributions of a block of clients to one step of the protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedrecsk.simulation.messages import Summed
from fedrecsk.uploads import Batch, Ragged, Sizes, add_sums, all_finite

if TYPE_CHECKING:
    from typing import Any, Self

    from numpy.typing import NDArray

    from fedrecsk.simulation.messages import Uploads
    from fedrecsk.simulation.participation import Turn
    from fedrecsk.uploads import Form


class Counts(NamedTuple):
    """What the server must know about the clients of an exchange to add central noise.

    Attributes
    ----------
    n_shares : int
        Clients that add a share of the noise and whose upload is in the sum.
    n_without_share : int
        Clients among `n_shares` whose share is still missing from the sum.
    short_excess : float
        Clients whose upload was not longer than the clip, less half of all clients in the sum.
    """

    n_shares: int = 0
    n_without_share: int = 0
    short_excess: float = 0.0

    def plus(self, other: Counts) -> Counts:
        """The counts of both."""
        return Counts(*(one + more for one, more in zip(self, other, strict=True)))


@dataclass(eq=False)
class Contribution:
    """Uploads of some clients before they reach the server, either added up or one by one.

    Attributes
    ----------
    phase : {"setup", "round", "validation"}
    round : int
        The round, or the step of the set-up.
    clients : ndarray of shape (n_clients,)
        Codes of the clients.
    sends, arrives, accepted : ndarray of shape (n_clients,), dtype bool
        Clients that send something; those whose upload arrives; and those whose upload arrives
        with finite numbers only.
    sizes : Sizes
    sums : dict of {str: ndarray} or None
        Sums over the accepted clients.
    batch : Batch or None
        Single uploads instead of sums, if an aggregator or an audit needs them.
    deferred : list of (str, Deferred)
        What is still missing from the sums because it is drawn once for all blocks.
    n_without_noise : int
        Number of clients whose local noise is still missing from the sums.
    counts : Counts
        Of the accepted clients, under central privacy.
    """

    phase: str
    round: int
    clients: np.ndarray
    sends: np.ndarray
    arrives: np.ndarray
    accepted: np.ndarray
    sizes: Sizes
    sums: dict[str, np.ndarray] | None = None
    batch: Batch | None = None
    deferred: list[tuple[str, Any]] = field(default_factory=list)
    n_without_noise: int = 0
    counts: Counts = field(default_factory=Counts)

    @classmethod
    def of_sums(
        cls,
        step: tuple[str, int],
        clients: NDArray[np.int64],
        turn: Turn,
        sound: NDArray[np.bool_] | None,
        sums: dict[str, np.ndarray],
        sizes: Sizes,
    ) -> Self:
        """A contribution from sums that the method has computed."""
        arrives = turn.active & turn.delivers
        accepted = arrives if sound is None else arrives & sound
        if not all(all_finite(values) for values in sums.values()):
            accepted = np.zeros_like(arrives)
        n_accepted = int(accepted.sum())
        return cls(
            *step,
            clients,
            turn.active,
            arrives,
            accepted,
            sizes,
            sums=sums if n_accepted else {},
            n_without_noise=n_accepted,
        )

    @classmethod
    def of_batch(cls, step: tuple[str, int], batch: Batch, *, hold: bool) -> Self:
        """A contribution from single uploads, which are added up unless `hold`."""
        masks = batch.sends, batch.arrives, batch.accepted
        contribution = cls(*step, batch.clients, *masks, batch.sizes)
        if hold:
            contribution.batch = batch
        else:
            contribution.sums, contribution.deferred = added_up(batch)
            contribution.n_without_noise = batch.n_accepted if batch.lacks_noise else 0
        return contribution


def added_up(batch: Batch) -> tuple[dict[str, np.ndarray], list[Any]]:
    """Sums over a batch's accepted clients, and what remains to be drawn for all batches."""
    if not batch.n_accepted:
        return {}, []
    sums, deferred = batch.sum_of_rest(), []
    for name, changes in batch.changes.items():
        add_sums(sums, {name: batch.sum_of_changes(name)})
        if getattr(changes, "deferred", None) is not None:
            deferred.append((name, changes.deferred))
    return sums, deferred


def measured(
    uploads: Uploads, forms: dict[str, Form], n_held: NDArray[np.int64], wire_dtype: str
) -> Sizes:
    """Size of each client's upload as the method returns it.

    Parameters
    ----------
    uploads : Uploads
    forms : dict of {str: Form}
    n_held : ndarray of shape (n_clients,)
        Items that each client holds.
    wire_dtype : str

    Returns
    -------
    Sizes
    """
    nbytes, payload, coordinates = np.zeros((3, len(n_held)), dtype=np.int64)
    for name, form in forms.items():
        n_rows, n_columns = n_held, None
        if isinstance(uploads[name], Summed | Ragged):
            n_columns = uploads[name].n_columns
            if form.rows == "chosen":
                n_rows = uploads[name].n_rows
        nbytes += form.nbytes(wire_dtype, n_rows, n_columns)
        payload += form.payload_nbytes(wire_dtype, n_rows, n_columns)
        coordinates += form.coordinates(n_rows, n_columns)
    return Sizes(nbytes, payload, coordinates)
