"""What the tests of deployed fits share."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_disks(monkeypatch):
    """Leave files to the operating system: they outlive processes, which is all that is tested."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
