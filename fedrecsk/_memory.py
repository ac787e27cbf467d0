"""How much memory there is, without a dependency that would say."""

from __future__ import annotations

import os
from pathlib import Path

GIB = 2**30
# What Linux says of the machine, and of the container that the process runs in.
MACHINE = Path("/proc/meminfo")
CONTAINER = Path("/sys/fs/cgroup")


def available():
    """Bytes that can still be allocated; None where nobody says.

    Returns
    -------
    nbytes : int or None
        The least of what the machine and the container have left; all of the machine's where
        no more is known.
    """
    known = [size for size in (_of_machine(), _of_container()) if size is not None]
    return min(known, default=None)


def require(nbytes, what, cure):
    """Raise if so many bytes are not there.

    Parameters
    ----------
    nbytes : int
    what : str
        What takes them, as the start of a sentence.
    cure : str
        What to do about it.

    Raises
    ------
    ValueError
        If they are more than is available.
    """
    there = available()
    if there is not None and nbytes > there:
        raise ValueError(
            f"{what} take about {nbytes / GIB:.3g} GiB, and {there / GIB:.3g} GiB of memory are "
            f"available. {cure}"
        )


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
    """The number behind a name, of which the file has one a line; None if it lacks this one."""
    rows = (line.split() for line in path.read_text().splitlines())
    return next((int(row[1]) for row in rows if row[0] == name), None)
