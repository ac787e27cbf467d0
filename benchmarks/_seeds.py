"""Seeds of the numbers that are reported, and seeds of the splits that defaults are chosen on.

No seed is in both ranges. Two random splits of the same rows still overlap, so seeds alone do not
keep test rows out of a choice: :func:`untested` drops the rows that are tested under other seeds.
"""

from __future__ import annotations

import numpy as np

REPORTED = range(2000)
CHOOSING = range(2000, 3000)
# Those that this process has used.
used: set[int] = set()


def reported(n, first=0):
    """Seeds of n runs whose numbers are reported.

    Parameters
    ----------
    n : int
        Number of runs.
    first : int, default=0
        The first seed.

    Returns
    -------
    range

    Raises
    ------
    SystemExit
        If some of them are not for reported numbers.
    """
    return _within(REPORTED, n, first, "reported numbers")


def choosing(n):
    """Seeds of n splits that defaults are chosen on; arguments as in :func:`reported`."""
    return _within(CHOOSING, n, CHOOSING.start, "choosing defaults")


def untested(rows, tests):
    """Mask of the rows whose user and item are not together in a row of any test part.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, 2 or more)
        User and item first.
    tests : list of ndarray
        Rows of the same form.
    """
    return ~np.isin(_pairs(rows), np.concatenate([_pairs(test) for test in tests]))


def _within(seeds, n, first, purpose):
    if n < 1:
        raise SystemExit(f"{n} seeds: at least one is needed.")
    wanted = range(first, first + n)
    if wanted[0] not in seeds or wanted[-1] not in seeds:
        raise SystemExit(
            f"Seeds {wanted[0]} to {wanted[-1]}: for {purpose} there are {seeds[0]} to {seeds[-1]} "
            "(benchmarks/_seeds.py); ask for fewer."
        )
    used.update(wanted)
    return wanted


def _pairs(X):
    return X[:, 0].astype(np.int64) * 2**31 + X[:, 1].astype(np.int64)
