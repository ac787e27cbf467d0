"""What an adversary sees in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk.uploads import Ragged, SingleUploads

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from fedrecsk.interactions import Interactions
    from fedrecsk.uploads import Batch, Form, Update


@dataclass(eq=False)
class View:
    """What an adversary sees in a round before its clients upload.

    It sees what a real one would: its own clients' data and honest uploads, and what the server
    sends to everyone. It sees no honest client's data, upload or state.

    Parameters
    ----------
    method : federated estimator
        The method with its hyperparameters, which are public. It is not fitted.
    round : int
        Number of the round, from 0.
    message : Message
        The announcement and the last broadcast, by field:
        ``view.message["item_factors"].values``. Fields of which a client receives only the rows
        of its own items are whole here. This favours the adversary: a real one would have to
        claim that its clients hold every item.
    n_senders : int
        Number of all clients that upload in this round, honest ones included.
    data : Interactions
        Data of the adversary's own clients, poisoned if it poisons them, with the codes of the
        whole catalogue. Rows that they hold out for validation are included. Other users have no
        rows.
    batches : list of Batch
        Honest uploads of the adversary's clients that take part in this round.
    memory : dict
        Empty in the first round, and kept from round to round: for what the adversary wants to
        remember.

    Attributes
    ----------
    plan : object
        What the adversary's `_plan` has returned for this round.
    uploads : sequence of dict of {str: Update}
        The same uploads as `batches`, one per client; each is computed on access.
    """

    method: Any
    round: int
    message: Any
    n_senders: int
    data: Interactions
    batches: list[Batch]
    memory: dict = field(default_factory=dict)
    plan: Any = None

    @property
    def item_ids(self) -> np.ndarray:
        """Ids of all items, in the order of their codes."""
        return self.data.item_ids.values

    @property
    def n_items(self) -> int:
        """Number of items in the catalogue."""
        return self.data.n_items

    @property
    def uploads(self) -> Sequence[dict[str, Update]]:
        """Honest uploads of the adversary's clients."""
        return SingleUploads([(b, client) for b in self.batches for client in _senders(b)])

    @property
    def n_own(self) -> int:
        """Number of the adversary's clients that upload in this round."""
        return len(self.uploads)

    def n_expected(self, name: str) -> float:
        """How many clients will send a typical row of a field, judged by the adversary's own.

        All of its own are assumed to send the row.
        """
        shares = [_share_sent(batch, name) for batch in self.batches]
        return self.n_own + (self.n_senders - self.n_own) * float(np.concatenate(shares).mean())

    @property
    def forms(self) -> dict[str, Form]:
        """Form of each learned field of an upload."""
        forms = self.batches[0].forms
        return {name: forms[name] for name in self.batches[0].changes}

    @cached_property
    def item_vectors(self) -> NDArray[np.float64]:
        """Item vectors in the broadcast, shape (n_items, width).

        A user's scores are their product with some vector, up to a constant.
        """
        return np.array(self.method._item_vectors(self.message), dtype=np.float64)

    @property
    def is_finite(self) -> bool:
        """Whether the item vectors and the adversary's honest uploads have finite numbers only."""
        return bool(np.isfinite(self.item_vectors).all()) and all(
            changes.finite(batch.sends).all()
            for batch in self.batches
            for changes in batch.changes.values()
        )

    def mean(self, name: str) -> np.ndarray:
        """Mean over the adversary's honest uploads of one field, of the field's whole shape.

        Where not all clients send a row, it is the mean over those that do, and 0 without any.
        """
        return self._moments[name][0]

    def std(self, name: str) -> np.ndarray:
        """Standard deviation over the adversary's honest uploads of one field, like `mean`."""
        return self._moments[name][1]

    @cached_property
    def _moments(self):
        return {name: self._field_moments(name, form) for name, form in self.forms.items()}

    def _field_moments(self, name, form):
        counts = np.zeros(form.shape[:1])
        sums, squares = np.zeros((2, *form.shape))
        for batch in self.batches:
            changes = batch.changes[name]
            for client in np.flatnonzero(batch.sends):
                rows, change = changes.update(client)
                counts[rows] += 1
                sums[rows] += change
                squares[rows] += np.square(change, dtype=np.float64)
        counts = np.maximum(counts, 1).reshape(-1, *[1] * (len(form.shape) - 1))
        mean = sums / counts
        return mean, np.sqrt(np.maximum(squares / counts - mean**2, 0))


def _share_sent(batch, name):
    """Share of a field's rows in which each client of a batch has changed something."""
    changes = batch.changes[name]
    if isinstance(changes, Ragged) and changes.common is None:
        return changes.n_rows[batch.sends] / changes.shape[0]
    counts = [np.any(changes.update(c).change, axis=1).sum() for c in _senders(batch)]
    return np.array(counts) / changes.shape[0]


def _senders(batch):
    return np.flatnonzero(batch.sends)
