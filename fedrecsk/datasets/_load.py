"""Ratings from any delimited text file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import Bunch

from fedrecsk._iso_dates import iso_seconds
from fedrecsk._sklearn import StrOptions, validate_params
from fedrecsk._warnings import warn
from fedrecsk.datasets import _columns
from fedrecsk.datasets._bunch import check_pandas, make_bunch, make_X, make_y
from fedrecsk.datasets._delimited import (
    Row,
    TextSource,
    check_looks_like_rows,
    comment_hint,
    read_rows,
    sniff_separator,
)
from fedrecsk.datasets._plain import read_plain

# Rows converted at a time: enough to amortise numpy's calls, few enough that their Python
# strings stay in cache.
_CHUNK = 16_000


@validate_params(
    {
        "path": [str, os.PathLike],
        "sep": [str, None],
        "columns": [Mapping, None],
        "header": [StrOptions({"infer"}), "boolean"],
        "encoding": [str],
        "comment": [str, None],
        "quoted": ["boolean"],
        "as_frame": ["boolean"],
        "return_X_y": ["boolean"],
    },
    prefer_skip_nested_validation=True,
)
def load_ratings(
    path: str | os.PathLike[str],
    *,
    sep: str | None = None,
    columns: Mapping[str, str | int | None] | None = None,
    header: bool | str = "infer",
    encoding: str = "utf-8",
    comment: str | None = None,
    quoted: bool = True,
    as_frame: bool = False,
    return_X_y: bool = False,
) -> Bunch | tuple[Any, Any]:
    """Load ratings from a delimited text file, plain or compressed.

    The file has one interaction per line: a user, an item and, if it has them, a
    rating and a timestamp. Blank lines are skipped. Other columns are not read; a
    warning names them unless you pass `columns`.

    Parameters
    ----------
    path : str or path-like
        The file. Gzip, bzip2, xz, and zip archives of one file are recognised by their
        content, whatever the name.

    sep : str, default=None
        Separator of two fields, of one or more characters. A blank stands for
        any run of white space. None finds it in the first lines, among
        `::`, tab, `;`, `|`, `,` and blank.

    columns : dict, default=None
        Maps the roles "user", "item", "rating" and "timestamp" to a column's name
        or position (0 is the first), or to None for "the file has none". A role
        that is not mentioned is guessed: from usual names such as `user_id`,
        `movieId`, `score` or `ts` if there is a header, else from the order user,
        item, rating, timestamp.

    header : "infer" or bool, default="infer"
        Whether the first line names the columns. "infer" says yes if `columns`
        has names; otherwise, if no field of the first line is a number and either
        one has a usual name or the second line does have a number.

    encoding : str, default="utf-8"
        Encoding of the text. With the default, text that begins with the byte order mark of
        UTF-16 or UTF-32 is read as such.

    comment : str, default=None
        How lines begin that are comments and are to be skipped, for example "#". None:
        there are no comments.

    quoted : bool, default=True
        Whether fields may be quoted as in CSV, if the separator is one character other than a
        blank. False: quotation marks are ordinary characters.

    as_frame : bool, default=False
        Whether to return pandas objects. Needs pandas.

    return_X_y : bool, default=False
        Whether to return `(data, target)` instead of a Bunch.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        Dictionary-like object, with the attributes:

        data : ndarray of shape (n_samples, 2) or (n_samples, 3), or DataFrame
            The columns user, item and, if the file has it, timestamp. A column is
            int64 if all its values are whole numbers, else float64 if all are
            numbers, else str. Numbers that would change (`007`,
            more than 18 digits, `1.5` beside `1.50`) stay str. Timestamps that are ISO
            dates, such as `2024-05-01` or `2024-05-01T12:30:00Z`, become seconds since 1970;
            without a time zone they count as UTC. The array is int64 if every
            column is, else of dtype object.
        target : ndarray of shape (n_samples,) and dtype float64, Series or None
            The ratings. None if the file has no rating column: implicit feedback.
        frame : DataFrame or None
            Data and target side by side, with `as_frame=True`.
        feature_names : list of str
            The names of the columns of `data`.
        filename : str
            The path that was read.
        DESCR : str
            A sentence on what was read from where.

    (data, target) : tuple if `return_X_y` is True
        The two attributes above.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is empty, damaged, binary or not in `encoding`; if its lines have different
        numbers of fields; if it lacks the user or item column, or has several of that name; or if
        an id is empty or a rating is not a finite number. The message names the file, the line
        and what to do.
    ImportError
        If `as_frame` is True and pandas is missing.

    See Also
    --------
    fetch_movielens : MovieLens, downloaded; likewise `fetch_filmtrust`, `fetch_kuairec`.
    make_ratings : Ratings that resemble MovieLens, generated.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from fedrecsk.datasets import load_ratings
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "ratings.csv")
    ...     _ = path.write_text("userId,movieId,rating\\n7,31,4.5\\n7,2,3\\n9,31,1\\n")
    ...     X, y = load_ratings(path, return_X_y=True)
    >>> X
    array([[ 7, 31],
           [ 7,  2],
           [ 9, 31]])
    >>> y
    array([4.5, 3. , 1. ])
    """
    if as_frame:
        check_pandas("load_ratings")
    if sep is not None and (sep == "" or set(sep) & set("\r\n")):
        raise ValueError(
            f"sep={sep!r} must have at least one character and no line break; sep=None finds it."
        )
    if comment == "":
        raise ValueError("comment must have at least one character; None means no comments.")
    if "://" in os.fspath(path):
        raise FileNotFoundError(
            f"{path} is an address, not a file; download it first, for example with "
            "urllib.request.urlretrieve."
        )
    path = _existing(Path(path).expanduser())
    source = TextSource(str(path), lambda: path.open("rb"), encoding, comment, quoted)
    fields, taken_from, others = read_ratings(source, sep=sep, columns=columns, header=header)
    if others and columns is None:
        warn(
            f"{path}: {_columns_named(others)} {'are' if len(others) > 1 else 'is'} not read. X "
            f"and y have {', '.join(taken_from)}. To choose other columns, or to silence this "
            "warning, pass columns={'user': ..., 'item': ..., 'rating': ..., 'timestamp': ...}.",
        )

    y = make_y(fields.pop("rating", None), "load_ratings", as_frame=as_frame)
    X = make_X(fields, "load_ratings", as_frame=as_frame)
    if return_X_y:
        return X, y
    read = ", ".join(f"{role} from {column}" for role, column in taken_from.items())
    not_read = f" Not read: {_columns_named(others)}." if others else ""
    return make_bunch(
        X,
        y,
        list(fields),
        as_frame=as_frame,
        filename=str(path),
        DESCR=f"{len(X)} interactions read from {path}: {read}.{not_read}",
    )


def _existing(path: Path) -> Path:
    if path.is_file():
        return path
    if path.is_dir():
        what = "is a folder, not a file"
    elif path.exists():
        what = "is a pipe or device; save its content to a file first"
    else:
        what = "does not exist"
    raise FileNotFoundError(
        f"{path} {what} (working directory: {Path.cwd()}). Pass the path of a text file."
    )


def _columns_named(names: list[str] | list[int]) -> str:
    return f"{'columns' if len(names) > 1 else 'column'} {_columns.listed(names)}"


class Read(NamedTuple):
    """What :func:`read_ratings` found: an array per role, where it was, and unused columns."""

    fields: dict[str, np.ndarray]
    taken_from: dict[str, str]
    others: list[str] | list[int]


def read_ratings(
    source: TextSource,
    *,
    sep: str | None = None,
    columns: Mapping[str, str | int | None] | None = None,
    header: bool | str = "infer",
    numbers: tuple[str, ...] = ("rating",),
) -> Read:
    """Read `source` into an array per role, and say which column each role came from.

    The roles in `numbers` become float64 and must be finite; the others take the type that
    their texts suggest.
    """
    lines = source.first_lines()
    if not lines:
        raise ValueError(f"{source.name} is empty: it must have at least one user and item.")
    check_looks_like_rows(source, lines)
    if sep is None:
        sep = sniff_separator(source, lines)

    with source.open() as text:
        rows = read_rows(source, source.lines(text), sep)
        head = list(islice(rows, 2))
        first, second = head[0][1], head[1][1] if len(head) > 1 else None
        if header == "infer":
            asks_for_names = any(isinstance(where, str) for where in (columns or {}).values())
            header = asks_for_names or _columns.looks_like_header(first, second)
        names = [name.strip() for name in first] if header else None
        roles = _columns.assign_roles(columns, names, len(first), source.name)

        n_skipped = 1 if header else 0
        parts = None
        if head[0][0] == 1:
            parts = read_plain(source, sep, len(first), roles, numbers, n_skipped=n_skipped)
        if parts is None:
            body = chain(head[n_skipped:], rows)
            parts = {role: [] for role in roles}
            while chunk := _next_chunk(body):
                for role, position in roles.items():
                    parts[role].append(
                        _convert(role, position, *chunk, source, is_number=role in numbers)
                    )

    if not parts["user"]:
        raise ValueError(f"{source.name} has a header and no rows after it.")
    fields = {
        role: np.concatenate(chunks) if role in numbers else _columns.typed(chunks)
        for role, chunks in parts.items()
    }
    if "timestamp" in fields:
        fields["timestamp"] = _times(fields["timestamp"], source.name)
    taken_from = {
        role: f"column {names[position]!r}" if names else f"column {position}"
        for role, position in roles.items()
    }
    used = set(roles.values())
    others = [position for position in range(len(first)) if position not in used]
    if names:
        # A column without a name is a table's index, or comes from a separator at the line's end.
        return Read(fields, taken_from, [names[position] for position in others if names[position]])
    return Read(fields, taken_from, others)


def _times(values: np.ndarray, name: str) -> np.ndarray:
    """Read ISO dates as seconds; other text stays as it is, with a warning."""
    if values.dtype != object:
        return values
    seconds = iso_seconds(values)
    if seconds is not None:
        return seconds
    culprit = next(text for text in values if iso_seconds([text]) is None)
    warn(
        f"{name}: the timestamp {culprit!r} is not an ISO date such as 2024-05-01T12:30:00, so "
        "the timestamps stay text. Convert them, for example with pandas.to_datetime, before you "
        "sort or split by time.",
    )
    return values


def _next_chunk(rows: Iterator[Row]) -> tuple[list[int], list[str]] | None:
    """Take up to _CHUNK rows: the number of each one's line, and all fields in one list."""
    # A list per row would trigger the garbage collector, which takes longer than the reading.
    lines, fields = [], []
    for line, row in islice(rows, _CHUNK):
        lines.append(line)
        fields += row
    return (lines, fields) if lines else None


def _convert(
    role: str,
    position: int,
    lines: list[int],
    fields: list[str],
    source: TextSource,
    *,
    is_number: bool,
) -> np.ndarray:
    width = len(fields) // len(lines)
    texts = np.char.strip(np.array(fields[position::width]))
    if is_number:
        values, bad = _columns.numbers(texts)
        cure = "must be a finite number. Mend or delete the line, or"
    else:
        values, bad = texts, texts == ""
        cure = "is missing. Fill it in or delete the line, or"
    if bad.any():
        row = int(np.argmax(bad))
        text = str(texts[row])
        if is_number and _columns.has_decimal_comma(text):
            cure = "has a decimal comma: write points instead. Or"
        raise ValueError(
            f"{source.name}, line {lines[row]}: the {role} {text!r} {cure} pass "
            f"columns={{{role!r}: ...}}." + comment_hint(source, fields[row * width])
        )
    return values
