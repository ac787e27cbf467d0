"""Time the first fit of a new process: ``python -m benchmarks.cold [METHOD ...]``.

Each method runs in two new processes: one with an empty cache of compiled code, one with the cache
that the first has written. In each process it is fitted twice to 3,000 ratings; the table has the
CPU seconds that the first fit (with the first recommendation) needs beyond the second, and the CPU
seconds that importing the method needs beyond ``import sklearn.utils``: medians of several runs.

Data: none needed; ratings are generated.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

from benchmarks._command_line import command_line
from benchmarks._methods import add_method

FIT = """
import sys, time
start = time.process_time()
import sklearn.utils
middle = time.process_time()
import fedrecsk
Method = getattr(fedrecsk, sys.argv[1])
end = time.process_time()
from fedrecsk.datasets import make_ratings
X, y = make_ratings(200, 150, 3000, random_state=0)
def fit():
    start = time.process_time()
    model = Method()
    few = {"n_rounds": 2, "n_epochs": 2, "random_state": 0}
    few = {name: n for name, n in few.items() if name in model.get_params()}
    model.set_params(**few).fit(X, y)
    model.recommend(X[:5, 0])
    return time.process_time() - start
first = fit()
print(first - fit(), (end - middle))
"""


def beyond_the_second(method, cache):
    """CPU seconds of the first fit beyond the second, and of the import beyond scikit-learn's."""
    place = os.environ | {"NUMBA_CACHE_DIR": cache, "OPENBLAS_NUM_THREADS": "1"}
    # An installed package has its bytecode.
    place.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FIT, method],
        env=place,
        capture_output=True,
        text=True,
        check=True,
    )
    return [float(number) for number in process.stdout.split()]


def main(argv=None):
    """Print a row for each method."""
    import fedrecsk

    every = [n for n in fedrecsk.__all__ if hasattr(getattr(fedrecsk, n), "fit")]
    parser = command_line("cold", __doc__)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="default: all")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(argv)
    print("| method | empty cache (CPU s) | full cache (CPU s) | import (CPU s) |")
    print("|---|---|---|---|", flush=True)
    for method in options.methods or every:
        add_method(getattr(fedrecsk, method)())
        runs = []
        for _ in range(options.repeats):
            with tempfile.TemporaryDirectory() as cache:
                empty, _ = beyond_the_second(method, cache)
                runs.append((empty, *beyond_the_second(method, cache)))
        empty, full, extra = map(statistics.median, zip(*runs, strict=True))
        print(f"| {method} | {empty:.1f} | {full:.2f} | {extra:.2f} |", flush=True)


if __name__ == "__main__":
    main()
