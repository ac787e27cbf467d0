"""How many threads are of use."""

from __future__ import annotations

from numbers import Integral

from joblib import cpu_count, effective_n_jobs

from fedrecsk._sklearn import Interval

# What a parameter `n_jobs` may be: whole numbers but 0, and None.
N_JOBS = [
    Interval(Integral, 1, None, closed="left"),
    Interval(Integral, None, -1, closed="right"),
    None,
]


def n_threads(n_jobs):
    """Number of threads that `n_jobs` stands for, at most one for each processor.

    Parameters
    ----------
    n_jobs : int or None
        As in :class:`joblib.Parallel`.

    Returns
    -------
    n_threads : int
    """
    return max(1, min(effective_n_jobs(n_jobs), cpu_count()))
