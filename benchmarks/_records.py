"""Records of what the benchmarks measured; tables and numbers on pages come from them.

``python -m benchmarks NAME COMMAND [OPTIONS]`` runs a benchmark and writes a record, a JSON file in
benchmarks/measured: the tables it printed, its options, and digests of what these depend on. Scores
depend on golden predictions of the measured methods (tests/golden.json), on the benchmark's code,
data and versions; seconds also on each file of the package that the methods import. Where any of
this has changed since, :func:`table` marks the rows.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
from datetime import date
from functools import cache
from importlib import import_module, metadata
from pathlib import Path

import fedrecsk
from benchmarks import _methods, _seeds
from benchmarks._code import digest, digest_of_command, short_digest
from benchmarks._command_line import Parser
from fedrecsk.datasets import get_data_home

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(__file__).parent / "measured"
PACKAGES = ("numpy", "scipy", "sklearn", "numba", "implicit", "torch")
METHODS = [one for one in fedrecsk.__all__ if one != "__version__"]
GOLDEN = ROOT / "tests" / "golden.json"
# Marks of records whose scores may be others now, and of those whose seconds alone may be.
CHANGED, SLOWER = "†", "‡"
# Titles of columns of seconds, and commands whose other columns are seconds, too.
SECONDS = re.compile(r"\b(s|ms|us|seconds?|minutes|CPU)\b")
TIMED = ("centralized speed", "clock cost", "rounds", "scale table", "settings")


# ------------------------------------------------------------------------------- changes


@cache
def current_digests():
    """Return the digests of all files of the package and of the benchmarks."""
    folders = (ROOT / "fedrecsk", ROOT / "benchmarks")
    return {digest(path) for folder in folders for path in folder.rglob("*.py")}


def changed_files(record):
    """Return the files of a record that are no longer anywhere as they were."""
    return [name for name, was in record["files"].items() if was not in current_digests()]


@cache
def golden_digests():
    """Return the digests of all golden entries, and the names of what each is about."""
    entries = json.loads(GOLDEN.read_text())
    return {
        short_digest(json.dumps(one, sort_keys=True)): one["of"]
        for one in entries.values()
        if "refused" not in one
    }


def golden_of(names):
    """Return the digests of the golden entries about no other names: a dict from the first name."""
    found = {}
    for one, of in golden_digests().items():
        if names.issuperset(of):
            found[of[0]] = f"{found.get(of[0], '')} {one}".strip()
    return found


def code_of(command, options):
    """Return the digest of a benchmark's code."""
    name = str(options.get("command")).replace("-", "_")
    return digest_of_command(ROOT, f"benchmarks.{command.split()[0]}", name, frozenset(options))


@cache
def digest_of_data(path):
    """Return the digest of a data file, or None if it is not there."""
    return digest(path) if path.exists() else None


@cache
def installed_version(module):
    """Return the version of a package, without what it was built for, or None."""
    try:
        version = metadata.version({"sklearn": "scikit-learn"}.get(module, module))
    except metadata.PackageNotFoundError:
        return None
    return version.partition("+")[0]


def changed_scores(record):
    """Return what scores of a record depend on and has changed since, in words."""
    if "golden" not in record:
        return [f"`{name}`" for name in changed_files(record)]
    found = [
        f"the golden predictions of {name}"
        for name, digests in record["golden"].items()
        if not golden_digests().keys() >= set(digests.split())
    ]
    found += ["its benchmark"] * (code_of(record["command"], record["options"]) != record["code"])
    home = Path(os.environ.get("FEDRECSK_DATA", ""))
    for name, was in record["data"].items():
        found += [f"`{name}`"] * (digest_of_data(home / name) not in (None, was))
    for name, was in record["versions"].items():
        found += [f"{name} {was}"] * (installed_version(name) not in (None, was.partition("+")[0]))
    return found


def changes_of(record, titles=None):
    """Return the mark of a record, what it means for columns with these titles, and why."""
    if titles is None:
        tables = (rows for key, rows in record.items() if key.startswith("table "))
        titles = [title for head, *_ in tables for title in head]
    if changed := changed_scores(record):
        return CHANGED, "measured", changed
    timed = any(map(SECONDS.search, titles)) or record["command"].startswith(TIMED)
    changed = [f"`{name}`" for name in changed_files(record)] if timed else []
    return SLOWER * bool(changed), "seconds measured", changed


def imported_modules(names):
    """Return the names of all modules of the package that these import, directly or not.

    Benchmarks count if they are imported whole, as those of papers are.
    """
    found, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        if name not in found and name != "fedrecsk":
            found.add(name)
            waiting += _direct_imports(name)
    return found


def _direct_imports(name):
    for node in ast.walk(ast.parse(inspect.getsource(import_module(name)))):
        if isinstance(node, ast.ImportFrom) and node.module.startswith(("fedrecsk", "benchmarks")):
            parent = import_module(node.module)
            # Names for type checkers only are not there.
            for one in (getattr(parent, alias.name, None) for alias in node.names):
                home = getattr(one, "__module__", None)
                if inspect.ismodule(one):
                    yield one.__name__
                elif node.module.startswith("fedrecsk"):
                    yield home if str(home).startswith("fedrecsk") else node.module
        # A benchmark that takes methods by name may measure any.
        elif isinstance(node, ast.Import) and node.names[0].name == "fedrecsk":
            yield from (getattr(fedrecsk, one).__module__ for one in METHODS)
        # Kernels are imported when first used, by name.
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "LazyModule":
            yield node.args[0].value


# ------------------------------------------------------------------------------ measuring


def run(command):
    """Run a benchmark, such as "fedeb quality --data 100k", and write its record."""
    name, *arguments = shlex.split(command)
    names = sorted(path.stem for path in (ROOT / "benchmarks").glob("[!_]*.py"))
    if name not in names:
        raise SystemExit(f"There is no benchmark {name!r}; there are: {', '.join(names)}.")
    module, printed, opened = import_module(f"benchmarks.{name}"), _Tee(), set()
    _seeds.used.clear()
    sys.addaudithook(lambda event, values: event == "open" and opened.add(str(values[0])))
    start = time.process_time()
    with contextlib.redirect_stdout(printed):
        module.main(arguments)
    home = Path(get_data_home(Parser.options.get("data_home")))
    data = sorted(path for path in map(Path, opened) if path.is_relative_to(home))
    modules = imported_modules(_methods.modules or {module.__name__}) | {module.__name__}
    files = sorted(Path(import_module(one).__file__) for one in modules)
    record = {
        "command": command,
        "options": Parser.options,
        "seeds": sorted(_seeds.used),
        "commit": _shell("git log -1 --format=%h -- fedrecsk")
        + ("+" if _shell("git status --porcelain fedrecsk") else ""),
        "date": date.today().isoformat(),
        "processor": f"{_shell('lscpu | sed -n s/^Model.name:.//p')}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 1),
        "cpu_seconds": round(time.process_time() - start, 1),
        "versions": {one: sys.modules[one].__version__ for one in PACKAGES if one in sys.modules},
        "data": {str(path.relative_to(home)): digest(path) for path in data},
        "files": {str(path.relative_to(ROOT)): digest(path) for path in files},
        "code": code_of(command, Parser.options),
        "golden": golden_of(set().union(*map(names_in, modules))),
    }
    tables = parse_tables(printed.getvalue())
    record |= {f"table {number}": rows for number, rows in enumerate(tables, 1)}
    text = ",\n".join(f" {json.dumps(key)}: {_lines(key, value)}" for key, value in record.items())
    FOLDER.joinpath(re.sub(r"\W+", "-", command) + ".json").write_text(f"{{\n{text}\n}}\n")


def names_in(module):
    """Return the names that a module defines."""
    names = vars(import_module(module)).items()
    return {name for name, one in names if getattr(one, "__module__", None) == module}


class _Tee(io.StringIO):
    """Keep what is printed, and print it."""

    def write(self, text):
        sys.__stdout__.write(text)
        return super().write(text)

    def flush(self):
        sys.__stdout__.flush()


def _lines(key, value):
    """Return JSON with a line for each row of a table."""
    if not key.startswith("table"):
        return json.dumps(value)
    return "[\n  " + ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in value) + "\n ]"


def _shell(line):
    return subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def parse_tables(text):
    """Return the Markdown tables in a text: lists of rows, which are lists of cells."""
    blocks = re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE)
    tables = [[_cells(line) for line in block.splitlines()] for block in blocks]
    return [[head, *rows] for head, _, *rows in tables]


def _cells(line):
    return [cell.strip() for cell in line[1:-1].split("|")]


# -------------------------------------------------------------------------------- reading


@cache
def read_records():
    """Return all records: a dict from command, in the order of the plan."""
    from benchmarks._plan import COMMANDS

    found = {}
    for path in FOLDER.glob("*.json"):
        record = json.loads(path.read_text())
        found[record["command"]] = record
    places = {command: place for place, command in enumerate(COMMANDS)}
    return {one: found[one] for one in sorted(found, key=lambda one: places.get(one, -1))}


def table(name, columns=None, rows=None, across=None, number=1, where=None):
    """Return a Markdown table of the records whose commands begin with a name.

    Parameters
    ----------
    name : str
        A command, or its beginning.
    columns : list of str, default=None
        Columns that are shown. If None, all.
    rows : list of str, default=None
        First cells of the rows that are shown. If None, all.
    across : (str, str), default=None
        A column whose values become columns, and the column whose cells these show.
    number : int, default=1
        Which table, of a command that prints several.
    where : dict from str to str or list of str, default=None
        For each column, the cell or cells that a row must have to be shown.
    """
    body = list(rows_of(name, number))
    head, *others = (one[f"table {number}"][0] for one in records_of(name))
    if any(one != head for one in others):
        raise ValueError(f"The records of {name!r} have different columns.")
    titles = dict(zip(_keys(head), head, strict=True))
    columns = columns or [key for key in titles if key not in (across or ())]
    first = columns[0]
    for column, cells in (where or {}).items():
        cells = [cells] if isinstance(cells, str) else cells
        body = [pair for pair in body if pair[0][column] in cells]
        if {row[column] for row, _ in body} != set(cells):
            raise ValueError(f"{name!r} does not have all of {cells} in the column {column!r}.")
    if rows is not None:
        body = [pair for label in rows for pair in body if pair[0][first] == label]
        if {row[first] for row, _ in body} != set(rows):
            raise ValueError(f"{name!r} does not have all of the rows {rows}.")
    records = [record for _, record in body]
    shown = [titles.get(key, key) for key in (*columns, *(across or ())[1:])]
    marks = {id(one): changes_of(one, shown)[0] for one in records}
    differ = len(set(marks.values())) > 1
    if across:
        body, columns = _side_by_side(body, columns, *across)
    lines = [[titles.get(key, key) for key in columns], ["---"] * len(columns)]
    for row, record in body:
        cells = [row.get(key, "") for key in columns]
        lines.append([f"{cells[0]} {marks[id(record)] * differ}".strip(), *cells[1:]])
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{text}\n\n*{caption(name, records, shown)}*"


def number(name, row, column, digits=None, table=1):
    """Return one cell, of the row that begins with these cells (a str or a tuple of str)."""
    row = (row,) if isinstance(row, str) else row
    found = [one for one, _ in rows_of(name, table) if tuple(one.values())[: len(row)] == row]
    if len(found) != 1:
        raise ValueError(f"{len(found)} rows of {name!r} have {row!r}, not 1.")
    cell = found[0][column]
    return cell if digits is None else f"{float(cell):.{digits}f}"


def records_of(name):
    """Return the record of a command, or those of all commands that begin with it."""
    known = read_records()
    found = [known[one] for one in known if one == name or one.startswith(f"{name} ")]
    found = [known[name]] if name in known else found
    if not found:
        raise ValueError(f"No record of {name!r}; python -m benchmarks {name} would write it.")
    return found


def rows_of(name, number=1):
    """Yield each row of the records, a dict from column, and its record."""
    for record in records_of(name):
        head, *body = record[f"table {number}"]
        for cells in body:
            yield dict(zip(_keys(head), cells, strict=True)), record


def _side_by_side(body, columns, by, value):
    """Return rows with a cell of each value of a column, and the columns."""
    merged = {}
    for row, record in body:
        key = tuple(row[one] for one in columns)
        known = merged.get(key, ({}, record))
        merged[key] = (row | known[0] | {row[by]: row[value]}, known[1])
    return list(merged.values()), [*columns, *dict.fromkeys(row[by] for row, _ in body)]


def _keys(head):
    """Return the titles of columns, with a number behind those that there were already."""
    return [one if one not in head[:n] else f"{one} {n}" for n, one in enumerate(head)]


def caption(name, records, titles):
    """Return command, commits and dates, and what the marks mean."""
    # Measured by hand, with programs of others: where and how.
    parts = [records[0].get("source", f"`python -m benchmarks {name}`")]
    parts += sorted(
        {f"{one['date']}, commit {one['commit']}, {one['processor']}" for one in records}
    )
    reasons = {}
    for mark, text, changed in (changes_of(one, titles) for one in records):
        reasons.setdefault((mark, text), set()).update(changed)
    for (mark, text), changed in sorted(reasons.items()):
        if changed:
            # No count, which each change of the code would change on each page.
            others = " and others" if len(changed) > 1 else ""
            parts.append(f"{mark} {text} before a change of {min(changed)}{others}")
    return " · ".join(parts)
