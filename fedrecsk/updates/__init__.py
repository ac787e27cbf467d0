"""What clients send: forms of fields, and the updates of clients."""

from fedrecsk.updates._client_updates import (
    ClientUpdates,
    Counts,
    HeldUpdates,
    RoundUpdates,
    SingleUploads,
    Summed,
    Updates,
    add_sums,
    client_generator,
    joined,
    through,
    weighted,
)
from fedrecsk.updates._sparse_rows import (
    INDEX_BYTES,
    FieldSpec,
    SparseRows,
    Update,
    all_finite,
    as_integers,
    split_fields,
    squared_lengths,
)

__all__ = [
    "INDEX_BYTES",
    "ClientUpdates",
    "Counts",
    "FieldSpec",
    "HeldUpdates",
    "RoundUpdates",
    "SingleUploads",
    "SparseRows",
    "Summed",
    "Update",
    "Updates",
    "add_sums",
    "all_finite",
    "as_integers",
    "client_generator",
    "joined",
    "split_fields",
    "squared_lengths",
    "through",
    "weighted",
]
