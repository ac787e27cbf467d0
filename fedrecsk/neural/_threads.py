"""One torch thread, and torch's random numbers left as they were."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SEEDING = threading.Lock()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread in the block: sums must not depend on how many it has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator for the block, and restore it afterwards."""
    with _SEEDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
