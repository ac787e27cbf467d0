"""A folder of private files that outlives processes."""

from __future__ import annotations

import io
import logging
import os
import pickle
from pathlib import Path
from typing import Any

from fedrecsk._utils import private_files

log: logging.Logger = logging.getLogger("fedrecsk.deployment")
# A fitted estimator and a server's Records, which joblib loads, too.
MODEL = "model.joblib"
# A server's Progress at the end of a fit, from which updates go on.
STATE = "state"


class Store:
    """A folder that belongs to one node or to one server.

    Each file is written as a whole or not at all, even if the process is killed meanwhile.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder: Path = private_files.open_folder(folder)

    def load(self, name: str) -> Any:
        """Return what was saved under a name; None if nothing was."""
        return private_files.read(self.folder / name, pickle.load)

    def save(self, name: str, thing: object) -> None:
        """Save something under a name, in place of what was there."""
        private_files.write(self.folder / name, lambda file: pickle.dump(thing, file))

    def save_text(self, name: str, text: str) -> None:
        """Save a text that a person can read."""
        (self.folder / name).write_text(text, encoding="utf-8")

    def save_result(self, name: str, thing: object) -> None:
        """Save a fit's result; that of an earlier fit stays, as ``previous-NAME``."""
        if os.path.lexists(self.folder / name):
            os.replace(self.folder / name, self.folder / f"previous-{name}")
            log.info("The earlier %s is now previous-%s: %s", name, name, self.folder)
        self.save(name, thing)
        found = _Finder(io.BytesIO())
        found.dump(thing)
        if found.local:
            log.warning(
                "%s needs %s of the script that is being run, and can be loaded nowhere else; "
                "move it to a module that is installed wherever the file is loaded.",
                self.folder / name,
                ", ".join(sorted(found.local)),
            )

    def names(self, pattern: str) -> list[str]:
        """Return the names under which something was saved that match a pattern."""
        return sorted(file.name for file in self.folder.glob(pattern) if file.name[0] != ".")

    def remove_drafts(self, *patterns: str) -> None:
        """Remove files that killed processes have not finished, by patterns of the names."""
        for pattern in (*patterns, MODEL):
            private_files.remove_drafts(self.folder, pattern)

    def remove(self, name: str) -> None:
        """Remove what was saved under a name."""
        (self.folder / name).unlink(missing_ok=True)


class _Finder(pickle.Pickler):
    """Pickles, and notes classes and functions of the script that is being run."""

    def __init__(self, file):
        super().__init__(file)
        self.local = set()

    def reducer_override(self, thing):
        """Note the name, and leave the rest to pickle."""
        if getattr(thing, "__module__", None) == "__main__" and hasattr(thing, "__qualname__"):
            self.local.add(thing.__qualname__)
        return NotImplemented
