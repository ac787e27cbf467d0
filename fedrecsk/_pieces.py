"""Long work in calls of bounded time: Ctrl-C reaches Python only between two calls of a kernel."""

from __future__ import annotations

import itertools

import numpy as np

# Numbers that one call works through, a fraction of a second's worth.
PIECE = 2**25


def pieces(costs, each=1):
    """Cut a run of tasks, such as clients, into pieces of about equal cost.

    Parameters
    ----------
    costs : ndarray of shape (n_tasks,)
        In numbers to work through: 0 for those who do not take part.
    each : int
        What one of `costs` counts for.

    Returns
    -------
    pieces : list of (start, stop)
        Tasks ``start:stop``, which together cost at most `PIECE` or are one; all of them together
        are all tasks. None for no tasks.
    """
    ends = np.cumsum(costs, dtype=np.int64)
    n, most = len(ends), max(1, PIECE // max(1, int(each)))
    cuts = [0]
    while cuts[-1] < n:
        start = cuts[-1]
        before = ends[start - 1] if start else 0
        stop = int(np.searchsorted(ends, before + most, "right"))
        cuts.append(max(start + 1, stop))
    return list(itertools.pairwise(cuts))
