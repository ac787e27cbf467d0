"""``python -m fedrecsk``: fit a model to ratings, recommend, and report what it costs."""

import sys

from fedrecsk.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
