"""Measure recommendations a second from an exported model: ``python -m benchmarks.portable``.

A model of likes with random vectors of --items items is written to a file, read again, and asked
for ten items for each of --requests histories of 50 items, one after the other. The table has
the size of the file, the seconds to read it, and recommendations for a second of wall clock and
of CPU. Set ``OPENBLAS_NUM_THREADS=1`` where other processes need the cores too: NumPy solves the
equations of 128 factors by threads that then wait for each other.

Data: none needed; vectors are drawn.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks._command_line import command_line
from fedrecsk import portable

ROWS = 50


def model_of(n_items, n_factors, rng):
    """Return a model of likes with random vectors."""
    vectors = rng.standard_normal((n_items, n_factors)).astype(np.float32)
    penalty = vectors.T.astype(float) @ vectors + 30 * np.eye(n_factors)
    rule = portable.Ridge.of(vectors, penalty, rates=False, confidence=1.0)
    about = {"method": "LocALS", "rating_scale": None, "versions": {}}
    return portable.PortableModel(rule, np.arange(n_items), np.zeros(n_items, np.float32), about)


def measured(n_items, n_factors, n_requests, path):
    """Return megabytes, seconds to read, and recommendations for a second of wall and of CPU."""
    rng = np.random.default_rng(0)
    portable.save(path, model_of(n_items, n_factors, rng))
    start = time.perf_counter()
    model = portable.load(path)
    seconds = time.perf_counter() - start
    histories = [rng.choice(n_items, ROWS, replace=False).tolist() for _ in range(n_requests)]
    wall, cpu = time.perf_counter(), time.process_time()
    for history in histories:
        model.recommend(history)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return path.stat().st_size / 1e6, seconds, n_requests / wall, n_requests / cpu


def main(argv=None):
    """Print a row for each number of factors."""
    parser = command_line("portable", __doc__)
    parser.add_argument("--items", type=int, default=60_000, help="items in the model")
    parser.add_argument("--factors", type=int, nargs="+", default=[20, 64, 128])
    parser.add_argument("--requests", type=int, default=500, help="histories that are asked for")
    options = parser.parse_args(argv)
    print("| factors | file (MB) | read (s) | a second | a CPU second |")
    print("|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for n_factors in options.factors:
            path = Path(folder) / "model.fedrecsk"
            size, seconds, *rates = measured(options.items, n_factors, options.requests, path)
            shown = " | ".join(f"{rate:,.0f}" for rate in rates)
            print(f"| {n_factors} | {size:.0f} | {seconds:.2f} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
