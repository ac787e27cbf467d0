"""Time fits without the time that compilation takes."""

from __future__ import annotations

import time

from fedrecsk._utils.kernels import seconds_compiling


class Stopwatch:
    """Seconds since it was created, without the seconds of compilation."""

    def __init__(self):
        self._start = self._now()

    def seconds(self):
        """Seconds until now."""
        return self._now() - self._start

    @staticmethod
    def _now():
        return time.perf_counter() - seconds_compiling()
