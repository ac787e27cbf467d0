"""Threads: how many, and joblib's, which return results in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Self

from joblib import Parallel, cpu_count, delayed, effective_n_jobs
from joblib.parallel import ThreadingBackend

# How many tasks of each thread are handed over at a time.
WAVE = 4


def n_threads(n_jobs: int | None) -> int:
    """Return the number of threads for `n_jobs`, at most one per processor."""
    return max(1, min(effective_n_jobs(n_jobs), cpu_count()))


class WaitingThreads(ThreadingBackend):
    """joblib's threads, whose results are waited for instead of asked for every 10 ms."""

    supports_retrieve_callback = False

    def retrieve_result(self, out: Any, timeout: float | None = None) -> Any:
        """Return a task's result, or raise its error."""
        return self.retrieve_result_callback(super().retrieve_result(out, timeout=timeout))


class Threads:
    """Runs tasks by `joblib.Parallel` in threads and yields their results in order.

    After its ``with`` block it runs them without threads, and can be pickled. `n_jobs` follows
    `joblib.parallel_config`, whose backends of processes become threads, because tasks share what
    they change.
    """

    def __init__(self, n_jobs: int | None) -> None:
        self.n_threads: int = n_threads(n_jobs)
        self._parallel: Parallel | None = None
        if self.n_threads > 1:
            self._parallel = Parallel(
                self.n_threads, backend=WaitingThreads(), pre_dispatch="all", batch_size=1
            )

    def __enter__(self) -> Self:
        if self._parallel is not None:
            self._parallel.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._parallel is not None:
            self._parallel.__exit__(*error)
            self._parallel = None

    def __call__(
        self, function: Callable[..., Any], items: Iterable[Any], *args: Any
    ) -> Iterator[Any]:
        """Yield ``function(item, *args)`` for each item, of which few are started ahead."""
        if self._parallel is None:
            for item in items:
                yield function(item, *args)
            return
        # All results at once might not fit into memory.
        items = iter(items)
        while wave := list(islice(items, WAVE * self.n_threads)):
            yield from self._parallel(delayed(function)(item, *args) for item in wave)
