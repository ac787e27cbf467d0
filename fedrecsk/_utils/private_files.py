"""Folders and files that only their owner can change, because their content can run code.

A file is written as a whole or not at all, and ends with a digest of the rest. `pickle` and joblib
do not read on after a pickle's end, so they can load such a file too.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, TypeVar

T = TypeVar("T")
N_DIGEST = 32


def open_folder(folder: str | os.PathLike[str]) -> Path:
    """Make a folder if it is not there; return its path, or raise if others can change it."""
    given = Path(folder).expanduser().absolute()
    # Resolved, so that no link leads elsewhere later.
    found = given.resolve()
    found.mkdir(parents=True, exist_ok=True, mode=0o700)
    if os.name == "posix":
        _check_way_to(given)
        check_own(found)
    return found


def read(file: Path, take: Callable[[IO[bytes]], T]) -> T | None:
    """Return what a function reads from a file of `write`; None if it is not there.

    Raises PermissionError if others can change it, and ValueError if it is damaged.
    """
    if not os.path.lexists(file):
        return None
    check_own(file)
    with open(file, "rb") as opened:
        size = os.fstat(opened.fileno()).st_size - N_DIGEST
        if size < 0 or _digest_of(opened, size) != opened.read():
            raise ValueError(
                f"{file} is damaged: its digest is wrong. Restore {file.parent} from a copy, or "
                "delete the folder and begin again."
            )
        opened.seek(0)
        return take(opened)


def write(file: Path, put: Callable[[Any], object]) -> None:
    """Let a function write a file that only its owner reads, in place of what was there."""
    # Temporary files can only be read by their owner.
    draft, path = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
    try:
        with os.fdopen(draft, "w+b") as opened:
            put(opened)
            size = opened.tell()
            opened.seek(0)
            opened.write(_digest_of(opened, size))
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(path, file)
    except BaseException:
        os.unlink(path)
        raise


def _digest_of(file, size):
    """Read the next bytes of a file; return their digest."""
    digest = blake2b(digest_size=N_DIGEST)
    while size > 0 and (part := file.read(min(size, 2**20))):
        digest.update(part)
        size -= len(part)
    return digest.digest()


def remove_drafts(folder: Path, pattern: str) -> None:
    """Remove unfinished files with matching names, which killed processes left behind."""
    for draft in folder.glob(f".{pattern}-*"):
        draft.unlink(missing_ok=True)


def check_own(path: Path) -> None:
    """Raise if a folder or file is a link, belongs to another user or can be changed by others."""
    if os.name != "posix":
        return
    status = path.lstat()
    mode, owner = status.st_mode, status.st_uid
    if stat.S_ISLNK(mode) or owner != os.geteuid():
        what = "is a link" if stat.S_ISLNK(mode) else f"belongs to user {owner}"
        raise PermissionError(
            f"{path} {what}, and its content can run code as user {os.geteuid()}; choose a folder "
            "that does not exist yet, or run this as the owner."
        )
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(
            f"Other users may write into {path}, and its content can run code as user "
            f"{os.geteuid()}; run chmod go-w {path}."
        )


def _check_way_to(folder):
    """Raise if another user can put a different folder in the place of this one."""
    trusted = (0, os.geteuid())
    for path in (folder, *folder.parents):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode) and status.st_uid not in trusted:
            raise PermissionError(
                f"The link {path} belongs to user {status.st_uid}, who could redirect it; choose a "
                "path without it."
            )
    for path in folder.resolve().parents:
        status = path.stat()
        # In a folder with the sticky bit, such as /tmp, only owners move what is theirs.
        is_safe = status.st_mode & stat.S_ISVTX and status.st_uid in trusted
        if status.st_mode & stat.S_IWOTH and not is_safe:
            raise PermissionError(
                f"All users may write into {path}, so they could replace {folder}; run "
                f"chmod o-w {path}, or choose another folder."
            )
