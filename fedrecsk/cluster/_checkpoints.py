"""Checkpoints of fits on a Dask cluster: what the server is, and all that clients were told."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrecsk._utils import private_files
from fedrecsk._utils.parameters import checked
from fedrecsk._utils.sklearn_compat import Interval

if TYPE_CHECKING:
    from collections.abc import Iterator

_CURRENT: ContextVar[tuple[Path, int] | None] = ContextVar("checkpoints", default=None)


@contextmanager
def checkpoints(folder: str | os.PathLike, every: int = 1) -> Iterator[None]:
    """Save fits to Dask DataFrames, and continue one that was interrupted.

    If an error, Ctrl-C, or the end of the scheduler or of the machine ends a fit inside ``with``,
    the same fit, with the same folder, continues after the last checkpoint, on this cluster or
    another: workers read their partitions, and their clients repeat their rounds from a log of the
    messages. The model is that of a fit without an interruption, bit for bit. Callbacks see the
    remaining rounds. `n_rounds` may be larger than before. The end of a fit removes the files, not
    the folder. Fits in one process are not saved.

    Parameters
    ----------
    folder : path
        Folder on the driver, one for each fit. No other user may write into it, because its files
        are pickles: loading them can run code. Only their owner can read them; keep them secret,
        because under central privacy they contain the seed of the noise. The log stores the message
        of each round: 8 MB with 100,000 items and 20 factors.
    every : int, default=1
        Rounds between two checkpoints. Each writes the server's state and the ledger.

    Raises
    ------
    ValueError
        If `every` is less than 1. By fit: if the folder has an interrupted fit of other rows,
        partitions or parameters, or of another version of fedrecsk; or if a file is damaged.
    PermissionError
        By fit: if another user owns the folder or one of its files, or may write into it.

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
        folder, self.every = _CURRENT.get() or (None, 0)
        self.folder = folder and private_files.open_folder(folder)
        self.n_records = 0
        self.found: dict[str, Any] | None = None
        if self.folder is None:
            self.writer = private_files.Digesting(tempfile.TemporaryFile())  # noqa: SIM115
            return
        log = self.folder / "log"
        if os.path.lexists(log):
            private_files.check_own(log)
        file = os.fdopen(os.open(log, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        try:
            self.found = private_files.read(self.folder / "server", _head)
            size = 0 if self.found is None else self.found["log_bytes"]
            self.writer = private_files.Digesting(file, private_files.digest_of(file, size))
            if self.found is not None and self.found["log_digest"] != self._digest():
                raise ValueError(private_files.damaged(log))
        except BaseException:
            file.close()
            raise
        # Records that came after the last checkpoint are forgotten.
        file.truncate(size)
        file.seek(size)

    def _digest(self):
        return self.writer.digest.hexdigest()

    def add(self, record: tuple) -> None:
        """Write a record."""
        pickle.dump(record, self.writer, pickle.HIGHEST_PROTOCOL)
        self.n_records += 1

    def records(self, n_records: int) -> Iterator[tuple]:
        """Yield the first records."""
        file = self.writer.file
        file.seek(0)
        for _ in range(n_records):
            yield pickle.load(file)
        file.seek(0, os.SEEK_END)

    def save(self, identity: str, server: Any) -> None:
        """Make a checkpoint, if one is due."""
        if self.folder is None or server.round % self.every:
            return
        file = self.writer.file
        file.flush()
        os.fsync(file.fileno())
        head = {"fit": identity, "n_records": self.n_records}
        head |= {"log_bytes": file.tell(), "log_digest": self._digest()}

        def put(draft):
            draft.write(json.dumps(head).encode() + b"\n")
            pickle.dump(server, draft, pickle.HIGHEST_PROTOCOL)

        private_files.write(self.folder / "server", put)

    def saved(self, identity: str) -> Any:
        """Return the server of the last checkpoint, or None."""
        if self.folder is None or self.found is None:
            return None
        if self.found["fit"] != identity:
            raise ValueError(
                f"{self.folder} has an interrupted fit of other rows, partitions or "
                "parameters; go on with those, or delete the folder."
            )
        self.n_records = self.found["n_records"]
        return private_files.read(self.folder / "server", _server)

    def close(self, *, is_over: bool) -> None:
        """Close the file; remove the checkpoint if the fit is over."""
        self.writer.file.close()
        if is_over and self.folder is not None:
            private_files.remove_drafts(self.folder, "server")
            for name in ("server", "log"):
                (self.folder / name).unlink(missing_ok=True)


def _head(file):
    """Return what is to be known before a file of a server is unpickled."""
    return json.loads(file.readline())


def _server(file):
    file.readline()
    return pickle.load(file)
