"""Check text files: white space at the end of lines, the last newline, conflict markers, size.

    python .ci/check_text.py FILE...

Prints one line for each problem, and exits with 1 if there is any.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Larger files belong into the documentation's static folder or are data, which stays outside.
LARGEST_FILE = 500_000
MARKERS = ("<<<<<<< ", ">>>>>>> ", "||||||| ")


def problems(path):
    """Problems of one file, each as "line: what"."""
    raw = path.read_bytes()
    if len(raw) > LARGEST_FILE:
        yield f"1: has {len(raw)} bytes, more than {LARGEST_FILE}"
    if b"\r\n" in raw:
        yield "1: has line ends of Windows; use \\n"
    if raw and not raw.endswith(b"\n"):
        yield "1: lacks a newline at the end of the file"
    elif raw.endswith(b"\n\n"):
        yield "1: has empty lines at the end of the file"
    # SVG files are written by plotting libraries.
    if path.suffix == ".svg":
        return
    for number, line in enumerate(raw.decode("utf-8").splitlines(), start=1):
        if line != line.rstrip():
            yield f"{number}: white space at the end of the line"
        if line.startswith(MARKERS):
            yield f"{number}: conflict marker"


def main(names):
    """Check the named files."""
    found = [f"{name}:{problem}" for name in names for problem in problems(Path(name))]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
