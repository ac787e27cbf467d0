"""How many threads to use."""

from __future__ import annotations

from numbers import Integral

from joblib import cpu_count, effective_n_jobs

from fedrecsk._utils.sklearn_compat import Interval

# Valid values of a parameter `n_jobs`: whole numbers except 0, and None.
N_JOBS = [
    Interval(Integral, 1, None, closed="left"),
    Interval(Integral, None, -1, closed="right"),
    None,
]


def n_threads(n_jobs: int | None) -> int:
    """Number of threads for `n_jobs`, at most one per processor.

    Parameters
    ----------
    n_jobs : int or None
        As in :class:`joblib.Parallel`.

    Returns
    -------
    n_threads : int
    """
    return max(1, min(effective_n_jobs(n_jobs), cpu_count()))
