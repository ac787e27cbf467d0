"""Checkpoints of fits on a Dask cluster: what the server is, and all that clients were told."""

from __future__ import annotations

import os
import pickle
import tempfile
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fedrecsk._utils.parameters import checked
from fedrecsk._utils.sklearn_compat import Interval

if TYPE_CHECKING:
    from collections.abc import Iterator

_CURRENT: ContextVar[tuple[Path, int] | None] = ContextVar("checkpoints", default=None)


@contextmanager
def checkpoints(folder: str | os.PathLike, every: int = 1) -> Iterator[None]:
    """Save fits to Dask DataFrames, and go on with one that was interrupted.

    If an error, Ctrl-C, or the end of the scheduler or of the machine ends a fit inside of
    ``with``, the same fit, with the same folder, goes on after the last checkpoint, on this cluster
    or another: workers read their partitions, and their clients repeat, from a log, what they have
    been told. The model is that of a fit without an interruption, to the bit. Callbacks see the
    rounds that are left. A larger `n_rounds` is no other fit. The end of a fit removes the files,
    not the folder. Fits in one process are not saved.

    Parameters
    ----------
    folder : path
        Of the driver; a folder for each fit. The log has the message of each round: 8 MB with
        100,000 items and 20 factors. Under central privacy keep it secret, because it has the
        seed of the noise. Do not open a folder from somebody whom you do not trust: its files are
        pickles.
    every : int, default=1
        Rounds between two checkpoints. Each writes the server's state and the ledger.

    Raises
    ------
    ValueError
        If `every` is less than 1. By fit: if the folder has an interrupted fit of other rows,
        partitions or parameters.

    Examples
    --------
    >>> from fedrecsk.cluster import checkpoints
    >>> with checkpoints("fit_of_today"):  # doctest: +SKIP
    ...     model.fit(frame[["user", "item"]], frame["rating"])
    """
    whole = [Interval(Integral, 1, None, closed="left")]
    (every,) = checked("checkpoints", {"every": whole}, every=every)
    token = _CURRENT.set((Path(folder), every))
    try:
        yield
    finally:
        _CURRENT.reset(token)


class Log:
    """All that clients of a fit were told, in a file; in a folder with the server, if asked for."""

    def __init__(self) -> None:
        self.folder, self.every = _CURRENT.get() or (None, 0)
        self.n_records = 0
        self.file: IO[bytes]
        if self.folder is None:
            self.file = tempfile.TemporaryFile()  # noqa: SIM115
        else:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.file = open(self.folder / "log", "a+b")  # noqa: SIM115

    def add(self, record: tuple) -> None:
        """Write a record."""
        pickle.dump(record, self.file, pickle.HIGHEST_PROTOCOL)
        self.n_records += 1

    def records(self, n_records: int) -> Iterator[tuple]:
        """Yield the first records."""
        self.file.seek(0)
        for _ in range(n_records):
            yield pickle.load(self.file)
        self.file.seek(0, os.SEEK_END)

    def save(self, identity: str, server: Any) -> None:
        """Make a checkpoint, if one is due."""
        if self.folder is None or server.round % self.every:
            return
        self.file.flush()
        os.fsync(self.file.fileno())
        state = identity, server, self.n_records, self.file.tell()
        draft = self.folder / "server.draft"
        with open(draft, "wb") as file:
            pickle.dump(state, file, pickle.HIGHEST_PROTOCOL)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.folder / "server")

    def saved(self, identity: str) -> Any:
        """Return the server of the last checkpoint, or None; forget what came after it."""
        path, size, server = self.folder and self.folder / "server", 0, None
        if path and path.exists():
            found, server, self.n_records, size = pickle.loads(path.read_bytes())
            if found != identity:
                raise ValueError(
                    f"{self.folder} has an interrupted fit of other rows, partitions or "
                    "parameters; go on with those, or delete the folder."
                )
        self.file.truncate(size)
        self.file.seek(size)
        return server

    def close(self, *, is_over: bool) -> None:
        """Close the file; remove the checkpoint if the fit is over."""
        self.file.close()
        if is_over and self.folder is not None:
            for name in ("server", "server.draft", "log"):
                (self.folder / name).unlink(missing_ok=True)
