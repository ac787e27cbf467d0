"""Put off Ctrl-C while something must not be left half done."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager


@contextmanager
def postponed():
    """Let an interrupt wait for the end of the block: for short blocks only."""
    handler = signal.getsignal(signal.SIGINT)
    # Python's handlers run in the main thread, and nowhere else can they be changed.
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
