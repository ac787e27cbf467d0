"""Leaves out the lane `full`, and what needs torch, flwr or dask where it is not installed."""

import os
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings

from tests import lanes

# What is left out without an optional package, and what to install to test it.
OPTIONAL = {
    "torch": (["fedrecsk/neural", "tests/neural", "tests/reference/neural"], "fedrecsk.neural"),
    "flwr": (
        [
            "fedrecsk/deployment/flower.py",
            "tests/deployment/test_flower.py",
        ],
        "fedrecsk.deployment.flower",
    ),
    "distributed": (["tests/test_dask.py"], "a search on a Dask cluster"),
    "pyarrow": (["tests/test_cluster.py"], "a fit on a Dask cluster"),
}
EXTRAS = dict.fromkeys(("distributed", "pyarrow"), "distributed") | {
    "torch": "torch",
    "flwr": "flower",
}
MISSING = [package for package in OPTIONAL if find_spec(package) is None]
collect_ignore = [path for package in MISSING for path in OPTIONAL[package][0]]


def pytest_configure(config):
    """Let hypothesis try less in the fast lane, and take its time on a busy machine."""
    fast = config.option.markexpr == "not full"
    settings.register_profile(
        "fedrecsk",
        max_examples=15 if fast else 60,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("fedrecsk")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the lane `full`, before pytest selects by marks."""
    for item in lanes.full(items):
        item.add_marker("full")


def pytest_xdist_auto_num_workers():
    """Return the number of processes: more than four would compile the same kernels at once."""
    return min(os.cpu_count(), 4)


def pytest_report_header(config):
    """Say what is left out, before the first test."""
    lane = []
    if config.option.markexpr == "not full":
        lane = ['without the lane "full"; python -m pytest -m "full or not full" for all tests']
    return lane + [
        f"without {package}: {OPTIONAL[package][1]} is not tested; "
        f"pip install -e '.[test,{EXTRAS[package]}]' to test it"
        for package in MISSING
    ]
