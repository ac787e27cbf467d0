"""Threads: how many, and a pool that returns results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from numbers import Integral
from typing import Any, Self

from joblib import cpu_count, effective_n_jobs

from fedrecsk._utils.sklearn_compat import Interval

# Valid values of a parameter `n_jobs`: whole numbers except 0, and None.
N_JOBS = [
    Interval(Integral, 1, None, closed="left"),
    Interval(Integral, None, -1, closed="right"),
    None,
]


def n_threads(n_jobs: int | None) -> int:
    """Return the number of threads for `n_jobs`, at most one per processor."""
    return max(1, min(effective_n_jobs(n_jobs), cpu_count()))


class Threads:
    """Runs tasks in threads and returns their results in order, like joblib's generators.

    After its ``with`` block it runs them without threads, and can be pickled. `n_jobs` follows
    `joblib.parallel_config`. It is no `joblib.Parallel`, whose generator polls for results every
    hundredth of a second, longer than a round of a small cohort takes; with a backend that waits
    instead it returns lists only, and sums of all blocks at once may not fit into memory.
    """

    def __init__(self, n_jobs: int | None) -> None:
        self.n_threads: int = n_threads(n_jobs)
        self._pool = ThreadPoolExecutor(self.n_threads) if self.n_threads > 1 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def __call__(
        self, function: Callable[..., Any], items: Iterable[Any], *args: Any
    ) -> Iterator[Any]:
        """Yield ``function(item, *args)`` for each item, of which few are started ahead."""
        if self._pool is None:
            for item in items:
                yield function(item, *args)
            return
        ahead = deque()
        for item in items:
            ahead.append(self._pool.submit(function, item, *args))
            if len(ahead) >= 2 * self.n_threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
