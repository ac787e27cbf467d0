"""One torch thread, and torch's random numbers left as they were."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SEEDING = threading.Lock()
_COUNTING = threading.Lock()
# How many threads torch had before the first of those that are in a block now.
_BEFORE: list[int] = []


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread in the block: sums must not depend on how many it has.

    The number belongs to the calling thread, but threads that begin later take the last one that
    was set. Therefore the last to leave sets what was there before the first.
    """
    own = torch.get_num_threads()
    with _COUNTING:
        _BEFORE.append(_BEFORE[0] if _BEFORE else own)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        with _COUNTING:
            before = _BEFORE.pop()
            torch.set_num_threads(own if _BEFORE else before)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator for the block, and restore it afterwards."""
    with _SEEDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
