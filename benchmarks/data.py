"""Measure what data cost before a fit begins: ``python -m benchmarks.data generate|encode|load``.

CPU seconds on one thread for ratings in the shape of MovieLens-25M (``--rows`` for fewer).
`generate`: make them. `encode`: number users and items, for ids of several types; strings are the
same ids with a letter before them. `load`: read them from a CSV file, compared with pandas.

Data: none needed; ratings are generated.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks._command_line import command_line
from fedrecsk.data.interactions import encode as encoded
from fedrecsk.datasets import load_ratings, make_interactions, make_ratings

USERS, ITEMS = 162_541, 59_047


def generate(options):
    """Make ratings, and likes."""
    for make in (make_ratings, make_interactions):
        _print(make.__name__, lambda make=make: make(*_shape(options), random_state=0))


def encode(options):
    """Number users and items of several types."""
    X = make_ratings(*_shape(options), random_state=0)[0][:, :2].astype(np.int64)
    _print("integers", lambda: encoded(X))
    large = (X + 1) * np.int64(0x9E3779B97F4A7C1)
    _print("64-bit integers", lambda: encoded(large))
    strings = np.char.add("i", X.astype(str))
    _print("strings (NumPy)", lambda: encoded(strings))
    frame = pd.DataFrame({"user": strings[:, 0], "item": strings[:, 1]})
    _print("strings (pandas)", lambda: encoded(frame))
    objects = strings.astype(object)
    _print("strings (objects)", lambda: encoded(objects))


def load(options):
    """Read a CSV file."""
    X, y = make_ratings(*_shape(options), random_state=0)
    names = ["userId", "movieId", "timestamp"]
    frame = pd.DataFrame(X.astype(np.int64), columns=names).assign(rating=y)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ratings.csv"
        frame[["userId", "movieId", "rating", "timestamp"]].to_csv(path, index=False)
        _print("load_ratings", lambda: load_ratings(path))
        _print("pandas.read_csv", lambda: pd.read_csv(path))


def _shape(options):
    share = options.rows / 25_000_000
    return int(USERS * share), int(ITEMS * share**0.5), options.rows


def _print(label, work):
    """CPU seconds of the faster of two runs."""
    seconds = []
    for _ in range(2):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    print(f"| {label} | {min(seconds):.1f} |", flush=True)


def main(argv=None):
    """Print a table."""
    commands = {f.__name__: f for f in (generate, encode, load)}
    parser = command_line("data", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--rows", type=int, default=25_000_000)
    options = parser.parse_args(argv)
    print("| | CPU s |\n|---|---|")
    commands[options.command](options)


if __name__ == "__main__":
    main()
