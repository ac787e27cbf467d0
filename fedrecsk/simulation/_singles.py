"""One client's upload, looked at on its own: as changes from what the server expects."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedrecsk.aggregation import Update, plain_sum

# Of those that an attacker may send, so that a few still add up in 64 bits.
LARGEST_INTEGER = 2.0**53


@dataclass(frozen=True, eq=False)
class Single:
    """What one client sends.

    Attributes
    ----------
    updates : dict of {str: Update}
        What it has learned, by field.
    rest : dict of {str: ndarray}
        What only adds up: counts, and what a client that changed nothing would send.
    nbytes, payload : int
        Bytes on the wire, and those of them that say what was learned.
    partial : frozenset of str
        Fields of which the method sends some coordinates only.
    exact : frozenset of str
        Fields that are not compressed.
    """

    updates: dict
    rest: dict
    nbytes: int
    payload: int
    partial: frozenset
    exact: frozenset

    @classmethod
    def of(cls, block, part, wire_dtype):
        """Take apart the message of a one-client block."""
        updates, rest = {}, {}
        for name, field in part.items():
            values = field.wide
            if field.is_count:
                rest[name] = values
                continue
            rows = field.rows_of(block)
            if field.center is None:
                updates[name] = Update(rows, values[rows])
                continue
            rest[name] = np.zeros_like(values)
            rest[name][rows] = field.center[rows]
            updates[name] = Update(rows, values[rows] - rest[name][rows])
        nbytes = int(part.nbytes(block, wire_dtype)[0])
        payload = int(part.payload_nbytes(block, wire_dtype)[0])
        partial = frozenset(name for name, field in part.items() if field.n_coordinates is not None)
        exact = frozenset(name for name, field in part.items() if not field.compressible)
        return cls(updates, rest, nbytes, payload, partial, partial | exact)

    @property
    def is_finite(self):
        """Whether nothing in it is NaN or infinite."""
        return all(np.isfinite(update.change).all() for update in self.updates.values())

    @property
    def largest(self):
        """Bound on the size of any number in it, with what it is measured from."""
        changes = [np.abs(u.change).max(initial=0) for u in self.updates.values()]
        known = [np.abs(values).max(initial=0) for values in self.rest.values()]
        return float(max(changes, default=0.0)) + float(max(known, default=0.0))

    def forged(self, forge, generator):
        """What an attacker sends instead: still integers; of partial fields the same columns."""
        updates = dict(forge(self.updates, generator))
        for name, update in updates.items():
            honest, change = self.updates[name].change, update.change
            if name in self.partial:
                change = change * honest.any(axis=0)
            if honest.dtype.kind == "i" and np.isfinite(change).all():
                change = np.rint(np.clip(change, -LARGEST_INTEGER, LARGEST_INTEGER)).astype(
                    np.int64
                )
            updates[name] = update._replace(change=change)
        return replace(self, updates=updates)

    def noised(self, noise):
        """With ``noise[name]`` added to each field."""
        updates = {
            name: update._replace(change=update.change + noise[name])
            for name, update in self.updates.items()
        }
        rest = {
            name: values if name in updates else values + noise[name]
            for name, values in self.rest.items()
        }
        return replace(self, updates=updates, rest=rest)

    def compressed(self, compressor, generator, itemsize):
        """As it arrives after compression; whole matrices of real numbers only."""
        updates, nbytes, payload = dict(self.updates), self.nbytes, self.payload
        for name, update in self.updates.items():
            change = update.change
            if change.ndim != 2 or change.dtype.kind != "f" or name in self.exact:
                continue
            packed = compressor.compress(change, generator)
            updates[name] = update._replace(change=packed.values)
            nbytes += packed.nbytes(itemsize) - change.size * itemsize
            payload += packed.payload_nbytes(itemsize) - change.size * itemsize
        return replace(self, updates=updates, nbytes=nbytes, payload=payload)

    def numbers(self, shapes):
        """What the server adds of every field, as a dict of arrays."""
        sums = plain_sum([self.updates], {name: shapes[name] for name in self.updates})
        for name, values in self.rest.items():
            sums[name] = sums[name] + values if name in sums else values
        return sums

    def whole(self, shapes):
        """All of it as one vector, field after field, as it is encrypted."""
        numbers = self.numbers(shapes)
        return np.concatenate([np.ravel(numbers[name]) for name in shapes])
