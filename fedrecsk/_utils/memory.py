"""How much memory is available, without a dependency."""

from __future__ import annotations

import os
from pathlib import Path

GIB = 2**30
# Files in which Linux reports the memory of the machine and of the container.
MACHINE = Path("/proc/meminfo")
CONTAINER = Path("/sys/fs/cgroup")
SCORES_PER_BATCH = 2**22


def available() -> int | None:
    """Return the bytes that the machine or the container has left, None if unknown."""
    known = [size for size in (_of_machine(), _of_container()) if size is not None]
    return min(known, default=None)


def require(nbytes: int, what: str, hint: str) -> None:
    """Raise if fewer than `nbytes` bytes are available; `what` is plural, `hint` a sentence."""
    free = available()
    if free is not None and nbytes > free:
        raise ValueError(
            f"{what} take about {nbytes / GIB:.3g} GiB, but only {free / GIB:.3g} GiB of memory "
            f"are available. {hint}"
        )


def batches(n_rows: int, n_columns: int) -> list[slice]:
    """Cut rows, so that a batch has no more scores than fit into memory."""
    size = max(1, SCORES_PER_BATCH // max(1, n_columns))
    return [slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]


def _of_machine():
    if MACHINE.exists():
        kibibytes = _number(MACHINE, "MemAvailable:")
        return None if kibibytes is None else 1024 * kibibytes
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _of_container():
    limit = CONTAINER / "memory.max"
    if not limit.exists() or limit.read_text().strip() == "max":
        return None
    taken = _number(CONTAINER / "memory.stat", "anon")
    return None if taken is None else max(0, int(limit.read_text()) - taken)


def _number(path, name):
    """Return the number that follows a name in a file with one name per line, or None."""
    rows = (line.split() for line in path.read_text().splitlines())
    return next((int(row[1]) for row in rows if row[0] == name), None)
