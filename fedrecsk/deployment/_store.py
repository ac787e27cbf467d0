"""A folder of private files that outlives processes."""

from __future__ import annotations

import os
import pickle
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import joblib

if TYPE_CHECKING:
    from typing import Any

MODEL, RECORDS = "model.joblib", "records.joblib"


class Store:
    """A folder that belongs to one node or to one server.

    Each file is written as a whole or not at all, even if the process is killed meanwhile.

    Parameters
    ----------
    folder : str or Path
        Made with mode 0700 if it does not exist.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder: Path = Path(folder).expanduser().absolute()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        mode = self.folder.stat().st_mode
        if os.name == "posix" and mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(
                f"Other users may write into {self.folder}, and whoever replaces a file there can "
                f"run code here; chmod 700 {self.folder}."
            )

    def load(self, name: str) -> Any:
        """Return what was saved under this name; None if nothing was."""
        file = self.folder / name
        return pickle.loads(file.read_bytes()) if file.exists() else None

    def save(self, name: str, thing: Any) -> None:
        """Save something under a name, in place of what was there."""
        self._write(name, lambda file: file.write(pickle.dumps(thing)))

    def save_model(self, model: Any) -> None:
        """Save a fitted estimator as ``model.joblib``."""
        self._write(MODEL, lambda file: joblib.dump(model, file))

    def save_records(self, records: Any) -> None:
        """Save what a server knows that has no model as ``records.joblib``."""
        self._write(RECORDS, lambda file: joblib.dump(records, file))

    def names(self, pattern: str) -> list[str]:
        """Names under which something was saved that match a pattern."""
        return sorted(file.name for file in self.folder.glob(pattern) if file.name[0] != ".")

    def remove_drafts(self, *patterns: str) -> None:
        """Remove files that killed processes have not finished, by patterns of the names."""
        for pattern in (*patterns, MODEL, RECORDS):
            for draft in self.folder.glob(f".{pattern}-*"):
                draft.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Remove what was saved under a name."""
        (self.folder / name).unlink(missing_ok=True)

    def _write(self, name, write):
        # Temporary files can only be read by their owner.
        draft, path = tempfile.mkstemp(prefix=f".{name}-", dir=self.folder)
        try:
            with os.fdopen(draft, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(path, self.folder / name)
        except BaseException:
            os.unlink(path)
            raise
