"""Checkpoints of fits on a Dask cluster: what the server and the clients are after a round."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from fedrecsk._utils import private_files
from fedrecsk._utils.constraints import AtLeast1
from fedrecsk._utils.parameters import checked, limits_of

_CURRENT: ContextVar[tuple[Path, int] | None] = ContextVar("checkpoints", default=None)


@contextmanager
def checkpoints(folder: str | os.PathLike, every: AtLeast1 = 1) -> Iterator[None]:
    """Save fits to Dask DataFrames, and continue one that was interrupted.

    If an error, Ctrl-C, or the end of the scheduler or of the machine ends a fit inside ``with``,
    the same fit, with the same folder, continues after the last checkpoint, on this cluster or
    another, and a fit that loses a worker goes back to it instead of to its start: workers read
    their partitions, and their clients go on where they were. The model is that of a fit without an
    interruption, bit for bit. Callbacks see the remaining rounds. `n_rounds` may be larger than
    before. The end of a fit removes the file, not the folder. Fits in one process are not saved.

    Parameters
    ----------
    folder : path
        Folder on the driver, one for each fit. No other user may write into it, because its file
        has pickles: loading them can run code. Only its owner can read it; keep it secret, because
        it contains the vectors of all users and, under central privacy, the seed of the noise.
    every : int, default=1
        Rounds between two checkpoints. Each sends what the clients know to the driver, which must
        have memory for it, and writes it.

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
    (every,) = checked("checkpoints", limits_of(checkpoints), every=every)
    token = _CURRENT.set((Path(folder), every))
    try:
        yield
    finally:
        _CURRENT.reset(token)


class Checkpoint:
    """The last checkpoint of a fit, in a file if one is asked for."""

    def __init__(self) -> None:
        folder, self.every = _CURRENT.get() or (None, 0)
        self.folder = folder and private_files.open_folder(folder)

    def is_due(self, round: int) -> bool:
        """Return whether a checkpoint is to be saved after so many rounds."""
        return self.folder is not None and round % self.every == 0

    def save(self, identity: str, content: object) -> None:
        """Write a checkpoint of the fit with this identity."""
        assert self.folder is not None

        def put(draft):
            draft.write(json.dumps(identity).encode() + b"\n")
            pickle.dump(content, draft, pickle.HIGHEST_PROTOCOL)

        private_files.write(self.folder / "fit", put)

    def load(self, identity: str) -> Any:
        """Return the content of the last checkpoint, None if there is none."""

        def take(file):
            if json.loads(file.readline()) != identity:
                raise ValueError(
                    f"{self.folder} has an interrupted fit of other rows, partitions or "
                    "parameters; go on with those, or delete the folder."
                )
            return pickle.load(file)

        return self.folder and private_files.read(self.folder / "fit", take)

    def remove(self) -> None:
        """Remove the files, because the fit is over."""
        if self.folder is not None:
            private_files.remove_drafts(self.folder, "fit")
            (self.folder / "fit").unlink(missing_ok=True)
