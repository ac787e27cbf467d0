"""``python -m fedrecsk``: the main job, from ratings to a model and what it costs."""

import sys

from fedrecsk._cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
