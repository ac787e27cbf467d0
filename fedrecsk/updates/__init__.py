"""What clients send: forms of fields, and the updates of clients."""

from fedrecsk.updates._client_updates import (
    ClientUpdates,
    Counts,
    SingleUploads,
    Summed,
    add_sums,
    client_generator,
    joined,
)
from fedrecsk.updates._field_spec import (
    INDEX_BYTES,
    LARGEST_INTEGER,
    FieldSpec,
    Update,
    all_finite,
    as_integers,
)
from fedrecsk.updates._round_updates import HeldUpdates, RoundUpdates, through
from fedrecsk.updates._sparse_rows import SparseRows, squared_lengths

__all__ = [
    "INDEX_BYTES",
    "LARGEST_INTEGER",
    "ClientUpdates",
    "Counts",
    "FieldSpec",
    "HeldUpdates",
    "RoundUpdates",
    "SingleUploads",
    "SparseRows",
    "Summed",
    "Update",
    "add_sums",
    "all_finite",
    "as_integers",
    "client_generator",
    "joined",
    "squared_lengths",
    "through",
]
