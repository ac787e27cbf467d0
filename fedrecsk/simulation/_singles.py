"""One client's upload, looked at on its own: as changes from what the server expects."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedrecsk.aggregation import Update, plain_sum


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
    """

    updates: dict
    rest: dict
    nbytes: int
    payload: int

    @classmethod
    def of(cls, block, part, wire_dtype):
        """Take apart the message of a one-client block."""
        updates, rest = {}, {}
        for name, field in part.items():
            values = wide(field.values)
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
        return cls(updates, rest, nbytes, int(part.payload_nbytes(block, wire_dtype)[0]))

    def noised(self, noise):
        """With ``noise(name)`` added to each field."""
        updates = {
            name: update._replace(change=update.change + noise(name))
            for name, update in self.updates.items()
        }
        return replace(self, updates=updates)

    def compressed(self, compressor, generator, itemsize):
        """As it arrives after compression; matrices of real numbers only."""
        updates, nbytes, payload = dict(self.updates), self.nbytes, self.payload
        for name, update in self.updates.items():
            change = update.change
            if change.ndim != 2 or change.dtype.kind != "f":
                continue
            packed = compressor.compress(change, generator)
            updates[name] = update._replace(change=packed.values)
            nbytes += packed.nbytes(itemsize) - change.size * itemsize
            payload += packed.payload_nbytes(itemsize) - change.size * itemsize
        return replace(self, updates=updates, nbytes=nbytes, payload=payload)

    def whole(self, shapes):
        """All of it as one vector, field after field, as it is encrypted."""
        sums = plain_sum([self.updates], {name: shapes[name] for name in self.updates})
        for name, values in self.rest.items():
            sums[name] = sums[name] + values if name in sums else values
        return np.concatenate([np.ravel(sums[name]) for name in shapes])


def wide(values):
    """As the server adds: integers exactly, everything else in float64."""
    values = np.asarray(values)
    return values.astype(np.int64 if values.dtype.kind in "iub" else np.float64)
