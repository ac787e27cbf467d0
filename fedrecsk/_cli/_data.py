"""Where the command line takes its rows from."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedrecsk.datasets import (
    fetch_filmtrust,
    fetch_kuairec,
    fetch_lastfm,
    fetch_movielens,
    load_ratings,
    make_interactions,
    make_ratings,
)

_MOVIELENS = ("100k", "1m", "10m", "20m", "25m", "32m", "latest-small")
_OTHERS = {"filmtrust": fetch_filmtrust, "kuairec": fetch_kuairec, "lastfm": fetch_lastfm}
PUBLISHED = (*_MOVIELENS, *_OTHERS)

# Generated ratings for models with noise on the sums.
MANY = {"n_users": 2_000, "n_items": 1_682, "n_ratings": 212_000}


class Rows(NamedTuple):
    """A table of interactions, its ratings, and where both came from."""

    X: Any
    y: Any
    name: str


def load(
    data: str,
    data_home: str | None,
    seed: int,
    *,
    ratings: bool,
    columns: dict[str, str | int] | None = None,
    many: bool = False,
) -> Rows:
    """Generate, fetch or read the rows.

    Parameters
    ----------
    data : str
        "generated", a name of `PUBLISHED` (with or without "ml-", in upper or lower case), a
        file, or "-" for standard input.
    data_home : str or None
    seed : int
        For generated rows.
    ratings : bool
        Whether a method of ratings is to learn from them.
    columns : dict or None
        Which column of a file is what, as for `load_ratings`.
    many : bool
        Whether generated ratings are of more users, among whom noise averages out.

    Raises
    ------
    OSError, ValueError
        If there are no such rows, or bad ones.
    """
    if columns is not None and data in {"generated", *PUBLISHED}:
        raise ValueError("--columns is for a file of yours")
    if data == "generated" and ratings:
        size = MANY if many else {}
        return Rows(*make_ratings(**size, random_state=seed), data)
    if data == "generated":
        return Rows(make_interactions(random_state=seed), None, data)
    name = data.removeprefix("ml-")
    if not Path(data).exists():
        name = name.lower().removeprefix("ml-")
    if name in _MOVIELENS:
        X, y = fetch_movielens(name, data_home=data_home, return_X_y=True)
        return Rows(X, y, f"MovieLens {name}")
    if name in _OTHERS:
        X, y = _OTHERS[name](data_home=data_home, return_X_y=True)
        return Rows(X, y, name)
    with _file(data) as path:
        try:
            X, y = load_ratings(path, columns=columns, return_X_y=True)
        except ValueError as error:
            # A copy of a pipe has a name that says nothing.
            raise ValueError(with_options(str(error).replace(f"{path.parent}/", ""))) from error
        return Rows(X, y, path.name)


def with_options(text: str) -> str:
    """A message of `load_ratings`, with the option in place of the parameter `columns`."""

    def option(match: re.Match) -> str:
        return "--columns " + match[1].replace("'", "").replace(": ", "=").replace(", ", ",")

    return re.sub(r"columns=\{(.*?)\}", option, text)


@contextmanager
def _file(data: str) -> Iterator[Path]:
    """The path of a regular file with the rows, because it is read twice."""
    path = Path(data).expanduser()
    if data != "-" and not path.exists():
        raise FileNotFoundError(
            f"no such file, nor one of generated, {', '.join(PUBLISHED)} (--help shows what they "
            "are)"
        )
    if data != "-" and (path.is_file() or path.is_dir()):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, path.name if data != "-" else "stdin")
        with copy.open("wb") as target:
            if data == "-":
                shutil.copyfileobj(sys.stdin.buffer, target)
            else:
                with path.open("rb") as source:
                    shutil.copyfileobj(source, target)
        yield copy


def positives(rows: Rows, threshold: float | None) -> Rows:
    """The rows that count as positives, without their ratings.

    Raises
    ------
    ValueError
        If there is a threshold and no ratings, or no rating reaches it.
    """
    if threshold is None:
        return rows._replace(y=None)
    if rows.y is None:
        raise ValueError("there are no ratings that --threshold could apply to")
    kept = rows.y >= threshold
    if not kept.any():
        raise ValueError(f"no rating reaches --threshold {threshold:g}; most is {rows.y.max():g}")
    return Rows(rows.X[kept], None, rows.name)


def describe(rows: Rows) -> str:
    """Say how much there is."""
    n_users, n_items = (len(np.unique(column)) for column in rows.X[:, :2].T)
    what = "interactions" if rows.y is None else "ratings"
    return f"{rows.name}, {len(rows.X):,} {what} of {n_items:,} items by {n_users:,} users"


def least_active(X: np.ndarray) -> tuple[Any, int]:
    """The user with the fewest rows, and how many they are."""
    users, n_rows = np.unique(X[:, 0], return_counts=True)
    return users[n_rows.argmin()], int(n_rows.min())
