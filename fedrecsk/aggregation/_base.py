"""What all aggregators share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np

from fedrecsk._utils.parameters import PlainParameters
from fedrecsk.updates import (
    ClientUpdates,
    FieldSpec,
    HeldUpdates,
    RoundUpdates,
    SingleUploads,
    SparseRows,
    Update,
)

# Sums stay below this, so that they fit into 64 bits.
LARGEST_SUM = 2.0**62


def plain_sum(
    uploads: Iterable[dict[str, Update]], shapes: dict[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Add up the changes of all clients, field by field.

    Parameters
    ----------
    uploads : iterable of dict of {str: Update}
    shapes : dict of {str: tuple}
        Shape of each whole field.

    Returns
    -------
    sums : dict of {str: ndarray}
        Sum of each field; dtype int64 if all changes are integers, otherwise float64.
    """
    sums = {name: np.zeros(shape, dtype=np.int64) for name, shape in shapes.items()}
    for upload in uploads:
        for name, total in sums.items():
            rows, change = upload[name]
            total = total.astype(np.result_type(total, change), copy=False)
            total[rows] += change
            sums[name] = total
    return sums


class Aggregator(PlainParameters, ABC):
    """Base class of robust aggregators: what ``Federation(aggregator=...)`` takes.

    To write your own aggregator, implement one method, `combine`. Each upload is a dict with an
    ``Update(rows, change)`` for each learned field. `change` is the difference from the upload of a
    client that has learned nothing, and `rows` are the rows of the field that it belongs to.

    Examples
    --------
    An aggregator that leaves out every client whose largest change is 1 or more:

    >>> import numpy as np
    >>> from fedrecsk.aggregation import Aggregator, Update, plain_sum
    >>> class Below1(Aggregator):
    ...     def combine(self, uploads, shapes):
    ...         def largest(upload):
    ...             return max(np.abs(update.change).max() for update in upload.values())
    ...
    ...         return plain_sum([u for u in uploads if largest(u) < 1], shapes)
    >>> uploads = [{"items": Update(slice(None), np.full((2, 1), x))} for x in (0.5, 0.25, 9.0)]
    >>> Below1().combine(uploads, {"items": (2, 1)})
    {'items': array([[0.75],
           [0.75]])}
    """

    def _check_clients(self, data, n_clients):
        """Raise if the aggregator does not suit `data` with `n_clients` clients per round."""

    def _check_adversary(self, client_ids):
        """Raise if the aggregator cannot work when an adversary controls these clients."""

    def _check_specs(self, specs):
        """Raise if the aggregator does not suit uploads of these fields, a dict of FieldSpec."""

    def _start(self, client_ids):
        """Return the dict that the aggregator keeps over a fit, given all clients' ids by code."""
        return {}

    @abstractmethod
    def combine(
        self, uploads: Sequence[dict[str, Update]], shapes: dict[str, tuple[int, ...]]
    ) -> dict[str, np.ndarray] | None:
        """Combine the uploads of one round into the sum that the server continues with.

        Parameters
        ----------
        uploads : sequence of dict of {str: Update}
            One upload per client, in the order of the clients. Each is computed when you access
            it. All numbers are finite.
        shapes : dict of {str: tuple}
            Shape of each whole field.

        Returns
        -------
        sums : dict of {str: ndarray} or None
            Sum of the changes of each field. The server takes it for a sum over all
            ``len(uploads)`` clients, so multiply a mean by that number. None if there are too few
            uploads; the round then changes nothing.
        """

    def _combine(self, updates, memory):
        """Combine learned fields into arrays of `sum_dtype`, or None; `memory`: see `_start`."""
        specs = updates.specs
        shapes = {name: spec.shape for name, spec in specs.items()}
        uploads = SingleUploads(updates.n_clients, lambda place: updates.one(place).upload(0))
        sums = self.combine(uploads, shapes)
        return None if sums is None else _checked(type(self).__name__, sums, specs)


def _checked(rule, sums, specs):
    """Check what a user's `combine` has returned, and raise a ValueError if it is wrong."""
    if not isinstance(sums, dict) or sums.keys() != specs.keys():
        found = sorted(sums) if isinstance(sums, dict) else type(sums).__name__
        raise ValueError(
            f"{rule}.combine returned {found}; return a dict with one array for each of the "
            f"fields {sorted(specs)}, or None if there are too few uploads."
        )
    totals = {}
    for name, spec in specs.items():
        values = np.asarray(sums[name])
        if values.dtype.kind not in "iuf" or values.shape != spec.shape:
            raise ValueError(
                f"{rule}.combine returned an array of shape {values.shape} and dtype "
                f"{values.dtype} for field {name!r}; return numbers of shape {spec.shape}."
            )
        if not np.isfinite(values).all():
            raise ValueError(
                f"{rule}.combine returned NaN or infinite numbers for field {name!r} of shape "
                f"{spec.shape} from finite uploads; look for a division by zero or an overflow."
            )
        totals[name] = as_sum(values, spec)
    return totals


def as_sum(values, spec):
    """Convert to the data type of the field's sums."""
    if spec.is_integer and values.dtype.kind == "f":
        values = np.rint(np.clip(values, -LARGEST_SUM, LARGEST_SUM))
    return values.astype(spec.sum_dtype, copy=False)


class BlockAggregator(Aggregator):
    """An aggregator that combines whole blocks; a list of uploads becomes a block first."""

    # A round that receives fewer uploads changes nothing.
    _n_needed: ClassVar[int] = 1

    @abstractmethod
    def _total(self, updates, memory):
        """Combine the learned fields, as `_combine` does, for at least `_n_needed` clients."""

    def _check_clients(self, data, n_clients):
        if n_clients < self._n_needed:
            raise ValueError(
                f"{self} needs {self._n_needed} clients per round, but there are {n_clients}; "
                "raise client_fraction, or use RowClipping."
            )

    def _combine(self, updates, memory):
        if type(self).combine is not BlockAggregator.combine:
            # A subclass of a user.
            return super()._combine(updates, memory)
        return self._total(updates, memory) if updates.n_clients >= self._n_needed else None

    def combine(
        self, uploads: Sequence[dict[str, Update]], shapes: dict[str, tuple[int, ...]]
    ) -> dict[str, np.ndarray] | None:
        return (
            self._total(as_round(uploads, shapes), {}) if len(uploads) >= self._n_needed else None
        )


def as_round(uploads, shapes):
    """Make RoundUpdates of single uploads."""
    numbers, specs, fields = np.arange(len(uploads)), {}, {}
    for name, shape in shapes.items():
        updates = [upload[name] for upload in uploads]
        exact = all(update.change.dtype.kind in "iub" for update in updates)
        specs[name] = FieldSpec(shape, dtype="int64" if exact else None)
        fields[name] = SparseRows.listed(updates, specs[name])
    sizes = np.stack([numbers] * 3)
    block = ClientUpdates.of_all(fields, ("round", 0), numbers, specs, sizes)
    return RoundUpdates([HeldUpdates(block, [], block.accepted)])


def weighted_sums(updates, weights):
    """Add up each field, times the weights of the clients' places."""
    return {name: as_sum(updates.sum(name, weights), spec) for name, spec in updates.specs.items()}
