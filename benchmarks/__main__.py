"""Measure, and keep what was measured: ``python -m benchmarks NAME COMMAND [OPTIONS]``.

`NAME COMMAND [OPTIONS]` runs one benchmark, such as `fedeb quality --data 100k`, and writes its
record. `all` runs those of benchmarks/_plan.py whose record is missing or whose scores are old, and
with `--seconds` also those whose seconds are. It can be stopped and started again; words behind it
choose commands. `list` says which records are missing or old, and why.
`leaderboard [SET ...]` runs that benchmark for each data set, or for all of them.
`pages` writes the tables and numbers of README and the site's pages, and the pictures.
"""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks import _records as records
from benchmarks._plan import COMMANDS, LEADERBOARD


def waiting(words, *, seconds):
    """Return the commands that have to be run, and why."""
    known, found = records.read_records(), {}
    for command in COMMANDS:
        if all(word in command for word in words):
            if command not in known:
                found[command] = "no record"
                continue
            mark, text, changed = records.changes_of(known[command])
            if mark == records.CHANGED or (mark and seconds):
                found[command] = f"{text} before a change of {changed[0]}"
    return found


def estimate(commands):
    """Return the CPU minutes that the last runs of these commands took, in words."""
    known = records.read_records()
    seconds = [known.get(command, {}).get("cpu_seconds") for command in commands]
    text = f"{sum(filter(None, seconds)) / 60:.0f} CPU minutes"
    return text + f" and {seconds.count(None)} unknown" * (None in seconds)


def run_each(commands):
    """Run commands, each in a process of its own; raise if some failed."""
    commands, failed = list(commands), []
    for place, command in enumerate(commands):
        left = estimate(commands[place:])
        print(f"\n[{place + 1}/{len(commands)}] {command} (left: {left})", flush=True)
        start = time.monotonic()
        arguments = [sys.executable, "-m", "benchmarks", *records.shlex.split(command)]
        if subprocess.run(arguments, check=False).returncode:
            failed.append(command)
        print(f"{time.monotonic() - start:.0f} s", flush=True)
    if failed:
        raise SystemExit("Failed: " + "; ".join(failed))


def main(arguments):
    """Run a command."""
    match arguments:
        case ["all", *words]:
            seconds = "--seconds" in words
            run_each(waiting([one for one in words if one != "--seconds"], seconds=seconds))
        case ["leaderboard", *sets] if len(sets) != 1 and set(sets) <= set(LEADERBOARD):
            run_each([f"leaderboard {one}" for one in sets or LEADERBOARD])
        case ["list", *words]:
            for command, reason in waiting(words, seconds=True).items():
                print(f"{command}: {reason} ({estimate([command])})")
        case ["pages"]:
            # Imports matplotlib.
            from benchmarks import _pages

            _pages.write()
        case ["-h" | "--help"]:
            print(__doc__)
        case [_, *_]:
            records.run(records.shlex.join(arguments))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
