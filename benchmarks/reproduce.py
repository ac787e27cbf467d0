"""Repeat the papers' tables: ``python -m benchmarks.reproduce rfrec|lightfr|colr|fedals|all``.

Every row has the paper's number, ours as mean and spread over seeds, the difference, and a reason
if it does not reproduce. ``--quick`` runs every row with a tenth of the rounds, one seed and every
fifth user of MovieLens-1M, to see that it works. At the end all rows that cannot be run here are
listed by name. Finished cells are kept in the folder ``--results`` and not run again: stop with
Ctrl-C, and run the same command to continue.

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA. Rows of other
data say so if these are not in the folder.
"""

from __future__ import annotations

import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
from sklearn.base import clone

from benchmarks._command_line import command_line
from benchmarks._results import Results
from benchmarks._timing import Stopwatch
from benchmarks.papers import colr, fedals, lightfr, rfrec
from benchmarks.papers._data import load
from benchmarks.papers._rows import NOT_HERE, NotObtainableError, Row, Table

__all__ = ["PAPERS", "Row", "Table", "main", "run"]

# How far below the paper a score may be before a row counts as not reproduced.
TOLERANCE = 0.01
ABSENT = "data absent"
LOWER_IS_BETTER = (
    *("MAE", "RMSE", "client s", "server s", "ciphertext KiB"),
    *("communication", "computation", "total", "stored, MB", "sent in a round, MB"),
)
# Data of rows that generate their own.
GENERATED = ("Ciao's shape", "random numbers")
# Rounds of a quick run of a method that chooses their number itself.
QUICK_ROUNDS = 20

PAPERS = {
    "rfrec": rfrec.tables,
    "lightfr": lightfr.tables,
    "colr": colr.tables,
    "fedals": fedals.tables,
}


def chosen(name, only):
    """The tables of a paper, with rows whose table, label or data contain one of the words."""
    return [
        replace(
            table,
            rows=[
                row
                for row in table.rows
                if not only
                or any(word in f"{table.name}: {row.label}, {row.data}" for word in only)
            ],
        )
        for table in PAPERS[name]()
    ]


def run(name, options):
    """Run what has not been run, then print the tables.

    Returns
    -------
    absent : dict of {(str, str, str): str}
        Why a row cannot be run here, by table, label and data.
    """
    results = Results(options.results, f"{name}-quick" if options.quick else name)
    tables = [table for table in chosen(name, options.only) if table.rows]
    seeds = range(options.seeds)
    cells = [
        (row, _prepared(row.model, seed, options), (table.name, row.label, row.data, seed))
        for table in tables
        for row in table.rows
        if row.model is not None
        for seed in seeds
    ]
    done = [results.get(key, _settings(model)) is not None for _, model, key in cells]
    absent = {
        (table.name, row.label, row.data): row.why or NOT_HERE
        for table in tables
        for row in table.rows
        if row.model is None
    }
    for n, (row, model, key) in enumerate(cells):
        if done[n]:
            continue
        _say(f"[{n + 1}/{len(cells)}] {key[0]}: {row.label}, {row.data}, seed {key[-1]}")
        watch = Stopwatch()
        try:
            scores = _scores(row, model, key[-1], options)
        except (FileNotFoundError, NotObtainableError) as error:
            absent[key[:-1]] = _reason(error)
            _say(f" {absent[key[:-1]]}\n")
            continue
        _say(f" {watch.seconds():.1f} s\n")
        results.put(key, _settings(model), {name: float(value) for name, value in scores.items()})
    if options.quick:
        print("A quick run: a tenth of the rounds, a fifth of ML-1M; not to be set beside papers.")
    for table in tables:
        print(f"\n### {table.name}\n")
        print_table(table, seeds, results, options, absent)
    return absent


def _scores(row, model, seed, options):
    with warnings.catch_warnings():
        # A quick run ends before convergence, and 156 of the given negatives were rated.
        warnings.simplefilter("ignore", UserWarning)
        try:
            return row.protocol(clone(model), row.data, seed, options)
        except ValueError as error:
            if "diverged" not in str(error):
                raise
            return dict.fromkeys(row.paper, float("nan"))


def _reason(error):
    return str(error) if isinstance(error, NotObtainableError) else ABSENT


def _settings(model):
    return " ".join(repr(model).split())


def _prepared(model, seed, options):
    model = clone(model)
    if "random_state" in model.get_params():
        model.set_params(random_state=seed)
    if options.quick and "n_rounds" in model.get_params():
        rounds = model.n_rounds
        model.set_params(n_rounds=QUICK_ROUNDS if rounds == "auto" else max(1, rounds // 10))
    return model


def print_table(table, seeds, results, options, absent):
    """Paper, ours, difference, and why."""
    print(f"Protocol: {table.protocol}.\n")
    print("| data | method | metric | paper | ours | spread | difference | |")
    print("|---|---|---|---|---|---|---|---|")
    for row in table.rows:
        reason = absent.get((table.name, row.label, row.data))
        scores = None if reason else _stored(table, row, seeds, results, options)
        for metric, paper in row.paper.items():
            begin = f"| {row.data} | {row.label} | {metric} | {_told(paper)} |"
            if reason:
                print(f"{begin} | | | {reason} |")
            else:
                print(begin, _compared(row, metric, paper, [score[metric] for score in scores]))


def _stored(table, row, seeds, results, options):
    return [
        results.get(
            (table.name, row.label, row.data, seed), _settings(_prepared(row.model, seed, options))
        )
        for seed in seeds
    ]


def _told(paper):
    return "" if np.isnan(paper) else f"{paper:.4f}"


def _compared(row, metric, paper, ours):
    """Ours, spread, difference and reason, as cells."""
    mean, spread = np.mean(ours), np.std(ours)
    if np.isnan(mean):
        return f"diverges | | | {row.why} |"
    worse = (mean - paper) * (1 if metric in LOWER_IS_BETTER else -1)
    note = row.why or "see docs/methods" if worse > TOLERANCE else ""
    difference = "" if np.isnan(paper) else f"{mean - paper:+.4f}"
    return f"{mean:.4f} | {spread:.4f} | {difference} | {note} |"


def print_absent(absent):
    """All rows that cannot be run here, by paper, table and reason."""
    groups = {}
    for name, rows in absent.items():
        for (table, label, data), reason in rows.items():
            groups.setdefault((name, table, data, reason), []).append(label)
    print("\n### Not obtainable here\n")
    for (name, table, data, reason), labels in groups.items():
        print(f"- {name}, {table}, {data}: {'; '.join(labels)}: {reason}.")


def _say(text):
    print(text, end="", file=sys.stderr, flush=True)


def _check_data(tables, options, parser):
    """Say what is absent, and stop if it is all."""
    names = dict.fromkeys(row.data for table in tables for row in table.rows if row.model)
    missing = {}
    for name in names:
        if name in GENERATED or name.isdigit():
            continue
        try:
            load(name, options)
        except FileNotFoundError as error:
            missing[name] = error
        except NotADirectoryError as error:
            parser.error(f"--data-home: {error}")
    if missing and len(missing) == len(names):
        parser.error(f"no data: {next(iter(missing.values()))}")
    for name, error in missing.items():
        _say(f"{name} is absent: {error}\n")


def main(argv=None):
    """Reproduce one paper, or all."""
    parser = command_line("reproduce", __doc__)
    parser.add_argument("paper", choices=[*PAPERS, "all"])
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the rounds, one seed, fewer users"
    )
    parser.add_argument("--seeds", type=int, help="runs of each row (default: 3; 1 if quick)")
    parser.add_argument(
        "--results", default="results", help="folder of finished cells (default: %(default)s)"
    )
    parser.add_argument("--only", nargs="+", help="words of the tables, labels and data to run")
    parser.add_argument("--data-home", help="where MovieLens is (default: FEDRECSK_DATA)")
    options = parser.parse_args(argv)
    if options.seeds is None:
        options.seeds = 1 if options.quick else 3
    if options.seeds < 1:
        parser.error(f"--seeds {options.seeds}: at least one run is needed")
    try:
        Path(options.results).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--results {options.results}: {error}")
    names = list(PAPERS) if options.paper == "all" else [options.paper]
    try:
        tables = [table for name in names for table in chosen(name, options.only)]
        _check_data(tables, options, parser)
        _reproduce(names, options)
    except KeyboardInterrupt:
        parser.exit(
            130,
            f"\nStopped. {options.results} has finished runs; repeat the command to continue.\n",
        )


def _reproduce(names, options):
    start, absent = time.process_time(), {}
    for name in names:
        print(f"\n## {name}\n")
        absent[name] = run(name, options)
    print_absent(absent)
    print(f"\n{(time.process_time() - start) / 60:.1f} CPU minutes.")


if __name__ == "__main__":
    main()
