"""Ratings from any delimited text file."""

import os
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path

import numpy as np
from sklearn.utils import Bunch

from fedrecsk._sklearn import StrOptions, validate_params
from fedrecsk.datasets import _columns
from fedrecsk.datasets._bunch import check_pandas, make_bunch, make_X, make_y
from fedrecsk.datasets._delimited import Row, TextSource, read_rows, sniff_separator
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
        "as_frame": ["boolean"],
        "return_X_y": ["boolean"],
    },
    prefer_skip_nested_validation=True,
)
def load_ratings(
    path: str | os.PathLike,
    *,
    sep: str | None = None,
    columns: Mapping[str, str | int | None] | None = None,
    header: bool | str = "infer",
    encoding: str = "utf-8",
    as_frame: bool = False,
    return_X_y: bool = False,
) -> Bunch | tuple:
    """Load ratings from a delimited text file, plain or gzipped.

    The file has one interaction per line: a user, an item and, if it has them, a
    rating and a timestamp. Other columns are ignored, and so are blank lines.

    Parameters
    ----------
    path : str or path-like
        The file. Gzip is recognised by its content, whatever the name.

    sep : str, default=None
        What separates two fields, of one or more characters. A blank stands for
        any run of white space. With None it is sniffed from the first lines among
        `::`, tab, `;`, `|`, `,` and blank. With a separator of one character
        (other than a blank), fields may be quoted as in CSV.

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
        The text's encoding. A byte order mark is skipped.

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
            numbers, else str. Numbers that would not survive the trip (`007`,
            more than 18 digits, `1.5` beside `1.50`) stay str. The array is int64 if every
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
        If the file is empty, not in `encoding`, has lines of different width, lacks
        the user or item column, or has an empty id or a rating that is not a finite
        number. The message names the file, the line and the cure.
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
    if sep == "":
        raise ValueError("sep must have at least one character; sep=None sniffs it.")
    path = Path(path).expanduser()
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise FileNotFoundError(
            f"{path} {what} (working directory: {Path.cwd()}). Pass the path of a text file."
        )
    source = TextSource(str(path), lambda: path.open("rb"), encoding)
    fields, taken_from = read_ratings(source, sep=sep, columns=columns, header=header)

    y = make_y(fields.pop("rating", None), "load_ratings", as_frame=as_frame)
    X = make_X(fields, "load_ratings", as_frame=as_frame)
    if return_X_y:
        return X, y
    read = ", ".join(f"{role} from {column}" for role, column in taken_from.items())
    return make_bunch(
        X,
        y,
        list(fields),
        as_frame=as_frame,
        filename=str(path),
        DESCR=f"{len(X)} interactions read from {path}: {read}.",
    )


def read_ratings(
    source: TextSource,
    *,
    sep: str | None = None,
    columns: Mapping[str, str | int | None] | None = None,
    header: bool | str = "infer",
    numbers: tuple[str, ...] = ("rating",),
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read `source` into an array per role, and say which column each role came from.

    The roles in `numbers` become float64 and must be finite; the others take the type that
    their texts suggest.
    """
    lines = source.first_lines()
    if not lines:
        raise ValueError(f"{source.name} is empty: it must have at least one user and item.")
    if sep is None:
        sep = sniff_separator(lines, source.name)

    with source.open() as text:
        rows = read_rows(text, sep, source.name)
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
                        _convert(role, position, *chunk, source.name, is_number=role in numbers)
                    )

    if not parts["user"]:
        raise ValueError(f"{source.name} has a header and no rows after it.")
    fields = {
        role: np.concatenate(chunks) if role in numbers else _columns.typed(chunks)
        for role, chunks in parts.items()
    }
    taken_from = {
        role: f"column {names[position]!r}" if names else f"column {position}"
        for role, position in roles.items()
    }
    return fields, taken_from


def _next_chunk(rows: Iterator[Row]) -> tuple[list[int], list[str]] | None:
    """Take up to _CHUNK rows: the number of each one's line, and all fields in one list."""
    # Keeping a list per row would wake the garbage collector, which then takes longer than
    # the reading itself.
    lines, fields = [], []
    for line, row in islice(rows, _CHUNK):
        lines.append(line)
        fields += row
    return (lines, fields) if lines else None


def _convert(
    role: str, position: int, lines: list[int], fields: list[str], name: str, *, is_number: bool
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
        raise ValueError(
            f"{name}, line {lines[row]}: the {role} {str(texts[row])!r} {cure} pass "
            f"columns={{{role!r}: ...}}."
        )
    return values
