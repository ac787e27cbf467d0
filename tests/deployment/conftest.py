"""What the tests of deployed fits share."""

import itertools
import os
from types import SimpleNamespace

import pytest

from fedrecsk.deployment import exchanges
from fedrecsk.protocol import Ledger


@pytest.fixture(autouse=True)
def own_clock(monkeypatch):
    """Let a millisecond pass whenever a server in this process reads its clock.

    It waits as often on a busy machine as on a quiet one, and has waited for nothing in no time.
    """
    readings = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(readings) / 1000)
    monkeypatch.setattr(exchanges, "time", clock)


@pytest.fixture(autouse=True)
def no_waiting_for_disks(monkeypatch):
    """Leave files to the operating system: they outlive processes, which is all that is tested."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(autouse=True)
def whole_models(monkeypatch):
    """Count the full model whenever simulated clients receive one, as deployed ones do."""
    down = Ledger.down

    def count_whole(ledger, clients, whole, missed=None, *others, **named):
        down(ledger, clients, whole, whole, *others, **named)

    monkeypatch.setattr(Ledger, "down", count_whole)
