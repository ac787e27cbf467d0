"""Leaves out what needs torch where it is not installed."""

from importlib.util import find_spec

HAS_TORCH = find_spec("torch") is not None
collect_ignore = [] if HAS_TORCH else ["fedrecsk/neural", "tests/neural", "tests/reference/neural"]


def pytest_report_header():
    """Say what is left out, before the first test."""
    if HAS_TORCH:
        return None
    return "without torch: fedrecsk.neural is not tested; pip install -e '.[test,torch]' to test it"
