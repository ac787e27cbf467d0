"""Threads that process blocks of clients."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from fedrecsk._utils.threads import n_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, Self


class Threads:
    """Runs tasks in threads and returns their results in order, like joblib's generators.

    `joblib.Parallel` polls for results every hundredth of a second, which is longer than a round
    of a small cohort takes.

    Parameters
    ----------
    n_jobs : int or None
        Number of threads, as in :class:`joblib.Parallel`, but at most one per processor.
    """

    def __init__(self, n_jobs: int | None) -> None:
        self.n_threads: int = n_threads(n_jobs)
        self._pool = ThreadPoolExecutor(self.n_threads) if self.n_threads > 1 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def __call__(self, tasks: Iterable[tuple[Callable[..., Any], Any, Any]]) -> Iterator[Any]:
        """Run tasks made by :func:`joblib.delayed`; returns a generator of their results.

        At most two tasks per thread are started ahead, so that few results are kept waiting.
        """
        if self._pool is None:
            for function, args, kwargs in tasks:
                yield function(*args, **kwargs)
            return
        ahead = deque()
        for function, args, kwargs in tasks:
            ahead.append(self._pool.submit(function, *args, **kwargs))
            if len(ahead) >= 2 * self.n_threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
