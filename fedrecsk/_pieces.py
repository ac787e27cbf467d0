"""Cut long work into short kernel calls: Ctrl-C only reaches Python between two of them."""

from __future__ import annotations

import itertools

import numpy as np

# Numbers that one call processes, in a fraction of a second.
PIECE = 2**25


def pieces(costs: np.ndarray, each: int = 1) -> list[tuple[int, int]]:
    """Cut a sequence of tasks, such as clients, into pieces of about equal cost.

    Parameters
    ----------
    costs : ndarray of shape (n_tasks,)
        Numbers that each task has to process; 0 for tasks without work.
    each : int, default=1
        Factor on all costs.

    Returns
    -------
    pieces : list of (start, stop)
        Each piece has the tasks ``start:stop``. It costs at most `PIECE`, or has a single task.
        Together they cover all tasks; the list is empty if there are none.
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
