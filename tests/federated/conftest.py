"""Shared by the tests of federated methods."""

import pytest

from tests.test_golden import compute_in_float64


@pytest.fixture
def float64(monkeypatch):
    """All methods compute in double precision: references are compared to nine digits."""
    compute_in_float64(monkeypatch)
