"""The command line: ``fedrecsk``, or ``python -m fedrecsk``."""

from fedrecsk._cli._main import main

__all__ = ["main"]
