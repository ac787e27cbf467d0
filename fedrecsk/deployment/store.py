"""A folder of private files that outlives processes."""

from __future__ import annotations

import io
import logging
import os
import pickle
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

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
        given = Path(folder).expanduser().absolute()
        # Resolved, so that no link leads elsewhere later.
        self.folder: Path = given.resolve()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.name == "posix":
            _check_way_to(given)
            _check_own(self.folder)

    def load(self, name: str) -> Any:
        """Return what was saved under a name; None if nothing was."""
        file = self.folder / name
        if not os.path.lexists(file):
            return None
        if os.name == "posix":
            _check_own(file)
        return pickle.loads(file.read_bytes())

    def save(self, name: str, thing: Any) -> None:
        """Save something under a name, in place of what was there."""
        # Temporary files can only be read by their owner.
        draft, path = tempfile.mkstemp(prefix=f".{name}-", dir=self.folder)
        try:
            with os.fdopen(draft, "wb") as file:
                pickle.dump(thing, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(path, self.folder / name)
        except BaseException:
            os.unlink(path)
            raise

    def save_result(self, name: str, thing: Any) -> None:
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
            for draft in self.folder.glob(f".{pattern}-*"):
                draft.unlink(missing_ok=True)

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


def _check_own(path):
    """Raise if a folder or file is a link, belongs to another user or can be changed by others."""
    status = path.lstat()
    mode, owner = status.st_mode, status.st_uid
    if stat.S_ISLNK(mode) or owner != os.geteuid():
        what = "is a link" if stat.S_ISLNK(mode) else f"belongs to user {owner}"
        raise PermissionError(
            f"{path} {what}, and what is read from it can run code as user {os.geteuid()}; "
            "choose a folder that does not exist yet, or run this app as the owner."
        )
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(
            f"Other users may write into {path}, and whoever does so can run code here; "
            f"chmod go-w {path}."
        )


def _check_way_to(folder):
    """Raise if another user can put a different folder in the place of this one."""
    trusted = (0, os.geteuid())
    for path in (folder, *folder.parents):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode) and status.st_uid not in trusted:
            raise PermissionError(f"The link {path} belongs to user {status.st_uid}; avoid it.")
    for path in folder.resolve().parents:
        status = path.stat()
        # In a folder with the sticky bit, such as /tmp, only owners move what is theirs.
        is_safe = status.st_mode & stat.S_ISVTX and status.st_uid in trusted
        if status.st_mode & stat.S_IWOTH and not is_safe:
            raise PermissionError(
                f"Everybody may write into {path}, and can replace {folder}; chmod o-w {path}, or "
                "choose another folder."
            )
