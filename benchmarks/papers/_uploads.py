"""CoLR's spectra of uploads, and its encryption and training times."""

from __future__ import annotations

import numpy as np

from benchmarks import encryption as _encryption
from benchmarks.papers._data import leave_one_out_files
from fedrecsk.aggregation import Aggregator, plain_sum
from fedrecsk.privacy import CKKS

ENERGIES = (0.95, 0.99)


class Spectra(Aggregator):
    """A plain sum that notes how many components hold most of an upload's energy.

    Attributes
    ----------
    rounds : list of ndarray of shape (n_clients, 2)
        Components for 95 and 99 % of the sum of squared singular values, of each round.
    """

    def __init__(self):
        self.rounds = []

    def __sklearn_clone__(self):
        # fit clones its federation; what is noted must be seen outside.
        return self

    def combine(self, uploads, shapes):
        """Sum the uploads."""
        uploads = list(uploads)
        self.rounds.append(np.array([components(one["updates"].change) for one in uploads]))
        return plain_sum(uploads, shapes)


def components(change):
    """Number of singular vectors that hold 95 and 99 % of a matrix's energy.

    >>> components(np.diag([10.0, 1.0, 1.0]))
    [1, 2]
    """
    change = np.asarray(change, dtype=np.float64)
    energy = np.linalg.eigvalsh(change.T @ change)[::-1].clip(min=0)
    held = np.cumsum(energy) / max(energy.sum(), np.finfo(float).tiny)
    return [int(np.searchsorted(held, share - 1e-12)) + 1 for share in ENERGIES]


SPECTRA = tuple(f"{share:.0%}, {window}" for share in ENERGIES for window in ("first", "last"))


def spectra(model, data, seed, options):
    """Components of the clients' uploads: means over the first and the last tenth of the rounds."""
    noted = Spectra()
    train, _, _, _ = leave_one_out_files(options)
    model.set_params(federation__aggregator=noted).fit(train)
    tenth = max(1, len(noted.rounds) // 10)
    first, last = (np.concatenate(part) for part in (noted.rounds[:tenth], noted.rounds[-tenth:]))
    return {
        f"{share:.0%}, {window}": float(part[:, k].mean())
        for k, share in enumerate(ENERGIES)
        for window, part in (("first", first), ("last", last))
    }


def minutes(model, data, seed, options):
    """Minutes of 1,000 rounds on a network, by the paper's formula, and of our computation.

    Computation is 7 times the CPU seconds of one client's work on this machine plus 10 s a round,
    as in the paper.
    """
    train, _, _, _ = leave_one_out_files(options)
    return _encryption.training_minutes(model, train, seed, options.quick)


def encrypted(model, data, seed, options):
    """Seconds and KiB of a secure sum by CKKS of 60 uploads of random numbers, 6 if quick."""
    n_values = _encryption.N_ITEMS * getattr(model, "rank", model.n_factors)
    size = {"repeats": 1, "n_clients": 6} if options.quick else {"repeats": 3}
    cost = _encryption.measured(CKKS(), n_values, **size)
    return {name: cost[name] for name in ("client s", "server s", "ciphertext KiB")}
