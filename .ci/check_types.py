"""Check the types with pyright, and that the public API is annotated.

    python .ci/check_types.py

Needs the `lint` extra. Prints pyright's errors and the public symbols without a known type, and
exits with 1 if they exceed the limits below.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

# Errors of `pyright` that may remain.
MOST_ERRORS = 0
# Least percentage of public symbols that are fully annotated.
LEAST_ANNOTATED = 100
# What is unknown because scikit-learn has no types: classes derived from BaseEstimator, and
# everything that has such a class in its type.
NOT_OURS = ("partially unknown", "base class unknown", "metaclass unknown", "unknown for variable")

ROOT = Path(__file__).resolve().parents[1]


def pyright(*arguments, folder):
    """The report of one run of pyright, as JSON."""
    command = ["pyright", "--pythonpath", sys.executable, "--outputjson", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if not done.stdout.startswith("{"):
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def show(diagnostics):
    """Print one line for each."""
    for one in diagnostics:
        line = one["range"]["start"]["line"] + 1 if "range" in one else 1
        path = os.path.relpath(one["file"], ROOT) if one["file"] else "?"
        print(f"{path}:{line}: {one['message'].splitlines()[0]} ({one.get('rule', 'type')})")


def main():
    """Run both checks."""
    errors = [one for one in pyright(folder=ROOT)["generalDiagnostics"] if is_error(one)]
    show(errors)
    # Elsewhere, because there the package is one that is installed.
    with tempfile.TemporaryDirectory() as elsewhere:
        report = pyright("--verifytypes", "fedrecsk", "--ignoreexternal", folder=elsewhere)
    symbols = [one for one in report["typeCompleteness"]["symbols"] if is_public(one)]
    missing = [[one for one in symbol["diagnostics"] if is_ours(one)] for symbol in symbols]
    for diagnostics in missing:
        show(diagnostics)
    annotated = 100 * missing.count([]) / len(symbols)
    print(f"pyright: {len(errors)} errors, at most {MOST_ERRORS} allowed.")
    print(f"Annotated public symbols: {annotated:.1f} %, at least {LEAST_ANNOTATED:.1f} % needed.")
    return int(len(errors) > MOST_ERRORS or annotated < LEAST_ANNOTATED)


def is_public(symbol):
    """Whether users import it: pyright takes all names without an underscore for exported."""
    *parents, name = symbol["name"].split(".")
    if not symbol["isExported"]:
        return False
    while parents:
        listed = listed_in(".".join(parents))
        if listed is not None:
            return name in listed
        name = parents.pop()
    return True


@cache
def listed_in(module):
    """Return what a module lists in ``__all__``; None if it lists nothing, or is no module."""
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    for node in ast.parse(path.read_text()).body if path.exists() else ():
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return None


def is_error(diagnostic):
    """Whether it is more than a hint."""
    return diagnostic["severity"] == "error"


def is_ours(diagnostic):
    """Whether an annotation is missing or incomplete, rather than one of scikit-learn."""
    return is_error(diagnostic) and not any(words in diagnostic["message"] for words in NOT_OURS)


if __name__ == "__main__":
    raise SystemExit(main())
