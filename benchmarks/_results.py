"""Results of long runs, kept in a folder so that a run can be stopped and resumed."""

from __future__ import annotations

import json
from pathlib import Path


class Results:
    """Scores of finished cells, as one JSON line each.

    Parameters
    ----------
    folder : str or Path
    name : str
        Name of the run; the file is ``<folder>/<name>.jsonl``.
    """

    def __init__(self, folder, name):
        self.path = Path(folder) / f"{name}.jsonl"
        self._cells = {}
        if self.path.exists():
            # What follows the last end of a line was cut off while it was written.
            whole, end, _ = self.path.read_text().rpartition("\n")
            self.path.write_text(whole + end)
            for line in whole.splitlines():
                cell = json.loads(line)
                self._cells[tuple(cell["key"])] = cell

    def get(self, key, settings):
        """The scores of a cell, or None if it has not been run.

        Raises
        ------
        SystemExit
            If it was run with other settings.
        """
        cell = self._cells.get(key)
        if cell is None:
            return None
        if cell["settings"] != settings:
            raise SystemExit(
                f"{self.path} has {' / '.join(map(str, key))} with other settings:\n"
                f"  then: {cell['settings']}\n  now:  {settings}\n"
                "Name another folder with --results, or delete the file to run all of it again."
            )
        return cell["scores"]

    def seconds(self, key):
        """Return the seconds that a finished cell took; NaN if they were not saved."""
        return self._cells[key].get("seconds", float("nan"))

    def put(self, key, settings, scores, seconds=float("nan")):
        """Save the scores of a cell, and the seconds that it took, immediately."""
        cell = {"key": list(key), "settings": settings, "scores": scores, "seconds": seconds}
        self._cells[key] = cell
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(cell) + "\n")
