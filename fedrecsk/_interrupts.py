"""Postpone Ctrl-C while something must not be left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def postponed() -> Iterator[None]:
    """Postpone an interrupt until the end of the block. Use it for short blocks only."""
    handler = signal.getsignal(signal.SIGINT)
    # Python runs signal handlers in the main thread, and only there can they be changed.
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    received = []
    signal.signal(signal.SIGINT, lambda *arguments: received.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            handler(*received[0])
