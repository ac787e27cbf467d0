"""ClientUpdates made by hand."""

from dataclasses import replace

import numpy as np

from fedrecsk.updates import ClientUpdates


def updates_of(fields, specs, accepted=None):
    """Single updates of clients 0, 1, ..., of which all send something."""
    n = next(iter(fields.values())).n_clients
    everyone = np.ones(n, dtype=bool)
    return ClientUpdates(
        {name: replace(fields[name], spec=spec) for name, spec in specs.items()},
        phase="round",
        round=0,
        sends=everyone,
        clients=np.arange(n),
        arrives=everyone,
        accepted=everyone if accepted is None else np.asarray(accepted),
        specs=specs,
        sizes=np.zeros((3, n), dtype=np.int64),
    )
