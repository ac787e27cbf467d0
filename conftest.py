"""Leaves out what needs torch, flwr or dask where it is not installed."""

from importlib.util import find_spec

# What is left out without an optional package, and what to install to test it.
OPTIONAL = {
    "torch": (["fedrecsk/neural", "tests/neural", "tests/reference/neural"], "fedrecsk.neural"),
    "flwr": (
        [
            "fedrecsk/deployment/flower.py",
            "fedrecsk/deployment/resident.py",
            "tests/deployment/test_flower.py",
        ],
        "fedrecsk.deployment.flower",
    ),
    "distributed": (["tests/test_dask.py"], "a search on a Dask cluster"),
}
EXTRAS = {"torch": "torch", "flwr": "flower", "distributed": "distributed"}
MISSING = [package for package in OPTIONAL if find_spec(package) is None]
collect_ignore = [path for package in MISSING for path in OPTIONAL[package][0]]


def pytest_report_header():
    """Say what is left out, before the first test."""
    return [
        f"without {package}: {OPTIONAL[package][1]} is not tested; "
        f"pip install -e '.[test,{EXTRAS[package]}]' to test it"
        for package in MISSING
    ]
