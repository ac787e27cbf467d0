"""Seconds of a fit that do not depend on whether its code was compiled before."""

from __future__ import annotations

import time

from fedrecsk import _kernels


class Stopwatch:
    """Seconds since it was made, less what the process has compiled meanwhile."""

    def __init__(self):
        self._start = self._now()

    def seconds(self):
        """Until now."""
        return self._now() - self._start

    @staticmethod
    def _now():
        return time.perf_counter() - _kernels.seconds_compiling()
