"""Time fits without the time that compilation takes."""

from __future__ import annotations

import time

from numba.core import event


class Stopwatch(event.Listener):
    """Seconds of a clock since it was created, without those of compilation."""

    def __init__(self, clock=time.perf_counter):
        self._clock, self._depth, self._start = clock, 0, clock()
        event.register("numba:compile", self)

    def on_start(self, _):
        """Stop the clock; compilations are nested."""
        if self._depth == 0:
            self._stopped = self._clock()
        self._depth += 1

    def on_end(self, _):
        """Go on."""
        self._depth -= 1
        if self._depth == 0:
            self._start += self._clock() - self._stopped

    def seconds(self):
        """Return the seconds until now."""
        return self._clock() - self._start
