"""Repeat the papers' tables: ``python -m benchmarks.reproduce rfrec|lightfr|colr|fedals|all``.

Every row has the paper's number, ours as mean and spread over seeds, the difference, and a reason
if it does not reproduce. ``--list`` prints the tables and how long they take, and runs nothing.
``--only`` chooses the rows that contain all of its words. ``--quick`` runs every row with a tenth
of the rounds, one seed and every fifth user of MovieLens-1M, to see that it works. At the end all
rows that cannot be run here are listed by name. Finished cells are kept in the folder ``--results``
and not run again: stop with Ctrl-C, and run the same command to continue.

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
from benchmarks._records import read_records
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
# Head of the table of minutes, by which it is found in a record.
MINUTES = ["table", "CPU minutes"]

PAPERS = {
    "rfrec": rfrec.tables,
    "lightfr": lightfr.tables,
    "colr": colr.tables,
    "fedals": fedals.tables,
}


def chosen(name, only):
    """Return the tables of a paper, with the rows that contain all of the words."""
    found = []
    for table in PAPERS[name]():
        rows = [row for row in table.rows if all(word in _text(table, row) for word in only or ())]
        if rows:
            found.append(replace(table, rows=rows))
    return found


def _text(table, row):
    """Return what the words of --only are looked for in."""
    return f"{table.name}: {row.label}, {row.data}"


def _check_words(names, only, parser):
    """Stop if a word matches no row, or no row matches all words."""
    tables = [table for name in names for table in PAPERS[name]()]
    rows = [(table, row) for table in tables for row in table.rows]
    for word in only or ():
        if not any(word in _text(*pair) for pair in rows):
            known = {
                "tables": [table.name for table in tables],
                "methods": sorted({row.label.partition(",")[0] for _, row in rows}),
                "data": sorted({row.data for _, row in rows}),
            }
            lists = "".join(f"\n{kind}: {'; '.join(words)}" for kind, words in known.items())
            parser.error(f"--only: no row contains {word!r}. There are{lists}")
    if not any(chosen(name, only) for name in names):
        parser.error(f"--only: no row contains all of {', '.join(map(repr, only))}; leave one out.")


def print_list(names, only):
    """Print tables, numbers of rows, and the CPU minutes that records have."""
    print("CPU minutes in full, with one seed; blank where they were only measured together.\n")
    print("| paper | table | rows | CPU minutes |\n|---|---|---|---|")
    for name in names:
        record = read_records().get(f"reproduce {name} --seeds 1", {"cpu_seconds": float("nan")})
        tables = (value for key, value in record.items() if key.startswith("table "))
        minutes = next((dict(rows) for rows in tables if rows[0] == MINUTES), {})
        for table in chosen(name, only):
            print(f"| {name} | {table.name} | {len(table.rows)} | {minutes.get(table.name, '')} |")
        print(f"| {name} | all | | {record['cpu_seconds'] / 60:.1f} |")


def run(name, options):
    """Run what has not been run, then print the tables.

    Returns
    -------
    absent : dict of {(str, str, str): str}
        Why a row cannot be run here, by table, label and data.
    """
    results = Results(options.results, f"{name}-quick" if options.quick else name)
    tables = chosen(name, options.only)
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
        watch = Stopwatch(time.process_time)
        try:
            scores = _scores(row, model, key[-1], options)
        except (FileNotFoundError, NotObtainableError) as error:
            absent[key[:-1]] = _reason(error)
            _say(f" {absent[key[:-1]]}\n")
            continue
        scores = {name: float(value) for name, value in scores.items()}
        _say(f" {_beside_paper(row, scores)} ({watch.seconds():.1f} CPU s)\n")
        results.put(key, _settings(model), scores, watch.seconds())
    if options.quick:
        print("A quick run: a tenth of the rounds, a fifth of ML-1M; not to be set beside papers.")
    for table in tables:
        print(f"\n### {table.name}\n")
        print_table(table, seeds, results, options, absent)
    print_minutes(tables, [key for *_, key in cells if key[:-1] not in absent], results)
    return absent


def print_minutes(tables, keys, results):
    """Print the CPU minutes of each table, without compilation."""
    print(f"\n### CPU minutes\n\n| {' | '.join(MINUTES)} |\n|---|---|")
    for table in tables:
        seconds = sum(results.seconds(key) for key in keys if key[0] == table.name)
        print(f"| {table.name} | {seconds / 60:.1f} |")


def _beside_paper(row, scores):
    """Return the scores of a cell, each with the paper's."""
    return ", ".join(
        f"{metric} {scores[metric]:.4f}" + ("" if np.isnan(paper) else f" (paper {paper:.4f})")
        for metric, paper in row.paper.items()
    )


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
    parser.add_argument("paper", nargs="?", choices=[*PAPERS, "all"])
    parser.add_argument(
        "--list", action="store_true", help="print the tables and how long they take; run nothing"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the rounds, one seed, fewer users"
    )
    parser.add_argument("--seeds", type=int, help="runs of each row (default: 3; 1 if quick)")
    parser.add_argument(
        "--results", default="results", help="folder of finished cells (default: %(default)s)"
    )
    parser.add_argument("--only", nargs="+", help="words of table, label or data, all in each row")
    parser.add_argument("--data-home", help="where MovieLens is (default: FEDRECSK_DATA)")
    options = parser.parse_args(argv)
    if options.seeds is None:
        options.seeds = 1 if options.quick else 3
    if options.seeds < 1:
        parser.error(f"--seeds {options.seeds}: at least one run is needed")
    if options.paper is None and not options.list:
        parser.error(f"name a paper ({', '.join(PAPERS)}) or all; --list prints what there is")
    names = list(PAPERS) if options.paper in (None, "all") else [options.paper]
    _check_words(names, options.only, parser)
    if options.list:
        print_list(names, options.only)
        parser.exit()
    try:
        Path(options.results).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--results {options.results}: {error}")
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
