"""Read ratings from delimited text, and return them in scikit-learn's forms."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import os
import re
import textwrap
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.utils import Bunch

from fedrecsk._utils.docs import documented
from fedrecsk._utils.sklearn_compat import StrOptions, validate_params
from fedrecsk._utils.user_warnings import warn
from fedrecsk.data._mistakes import DATE, EVENTS, ROLES, USUAL_NAMES, plain_name, role_of

_SEPARATORS = ("::", "\t", ";", "|", ",", " ")
_HEAD = 2**17  # bytes in which the separator, the header and the columns are looked for
_CHUNK = 2**18  # rows
# What comments begin with in most files; Excel writes "sep=;" into the first line.
_COMMENT_SIGNS = ("#", "%", "//", "sep=")
_WHOLE_NUMBER = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)
# Tables of interactions have a few columns, matrices of users by items have hundreds.
_WIDE = 15
# Words that occur in names of columns which are proposed for a role.
_PARTS_OF_NAMES = {
    "user": "user customer client member buyer reviewer visitor session account person",
    "item": "item product article sku movie film book song track artist title",
}
# Excel writes long numbers so.
_SCIENTIFIC = re.compile(r"\d([.,]\d+)?E\+\d+", re.ASCII)
# So few different texts in so many rows are kinds of events rather than users or items.
_FEW_TEXTS, _MANY_ROWS = 10, 100
_COMPRESSED = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
# What reads files that are not text, by their first bytes.
_READERS = {
    b"PAR1": "pandas.read_parquet",
    b"ARROW1": "pandas.read_feather",
    b"FEA1": "pandas.read_feather",
    b"ORC": "pandas.read_orc",
    b"SQLite format 3": "pandas.read_sql and sqlite3",
    b"\x89HDF": "pandas.read_hdf",
    b"\xd0\xcf\x11\xe0": "pandas.read_excel",
    b"<stata_dta>": "pandas.read_stata",
    b"$FL2": "pandas.read_spss",
    b"\x93NUMPY": "numpy.load",
    b"\x80": "pandas.read_pickle (or joblib.load; both can run code, so only if it is yours)",
}
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile)
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


@documented
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
    }
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
        Lines that begin with this are comments and are skipped, for example "#". None:
        there are no comments.
    quoted : bool, default=True
        Whether fields may be quoted as in CSV, if the separator is one character. False:
        quotation marks are ordinary characters.
    {forms}

    Returns
    -------
    {bunch}

        data : ndarray of shape (n_samples, 2) or (n_samples, 3), or DataFrame
            The columns user, item and, if the file has it, timestamp. Ids are int64 if all
            of them are whole numbers as Python writes them, else str: a column with `007`,
            `1.0` or more than 18 digits is text. Timestamps are int64 or float64; ISO
            dates, such as `2024-05-01` or `2024-05-01T12:30:00Z`, become seconds since 1970;
            without a time zone they count as UTC. The array is int64 if every
            column is, else of dtype object.
        target : ndarray of shape (n_samples,) and dtype float64, Series or None
            The ratings. None if the file has no rating column: implicit feedback.
        {fetched}

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is empty, damaged, binary or not in `encoding`; if its lines have different
        numbers of fields; if a quotation mark is not closed in its line and what follows is not
        quoted text; if it lacks the user or item column, or has several of that name; if it has
        no header and dates where users or items should be; if the header is repeated; or if an id
        is empty or has a line break, or a rating is not a finite number. The message names the
        file, the line and what to do.

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
    path = Path(path).expanduser()
    if not path.is_file():
        what = "is a folder, a pipe or a device" if path.exists() else "does not exist"
        raise FileNotFoundError(
            f"{path} {what} (working directory: {Path.cwd()}). Pass the path of a text file."
        )
    text = TextFile(str(path), lambda: path.open("rb"), encoding, comment, quoted)
    fields, taken_from, others = read_ratings(text, sep=sep, columns=columns, header=header)
    not_read = f"{'columns' if len(others) > 1 else 'column'} {_listed(others)}"
    if others and columns is None:
        warn(
            f"{path}: {not_read} {'are' if len(others) > 1 else 'is'} not read. X "
            f"and y have {', '.join(taken_from)}. To choose other columns, or to silence this "
            "warning, pass columns={'user': ..., 'item': ..., 'rating': ..., 'timestamp': ...}."
        )

    y = make_y(fields.pop("rating", None), as_frame=as_frame)
    X = make_X(fields, as_frame=as_frame)
    if return_X_y:
        return X, y
    read = ", ".join(f"{role} from {column}" for role, column in taken_from.items())
    return make_bunch(
        X,
        y,
        list(fields),
        as_frame=as_frame,
        filename=str(path),
        DESCR=f"{len(X)} interactions read from {path}: {read}."
        + (f" Not read: {not_read}." if others else ""),
    )


@dataclass(frozen=True)
class TextFile:
    """A text, plain or compressed; lines that begin with `comment` are skipped."""

    name: str
    open_raw: Callable[[], Any]
    encoding: str = "utf-8"
    comment: str | None = None
    quoted: bool = True

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the unpacked bytes; errors name the file if they are damaged or no such text."""
        try:
            with self.open_raw() as raw, _unpacked(raw, self.name) as handle:
                yield handle
        except UnicodeError as error:
            raise ValueError(
                f"{self.name} is not {self.encoding} text ({error}). If it is text, pass its "
                "encoding, for example encoding='latin-1'."
            ) from error
        except (*_DAMAGE, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # an error of the disk, not of the file's content
            raise ValueError(
                f"{self.name} is a damaged compressed file ({error}). Fetch or compress it again."
            ) from error

    def lines(self, text: Any) -> Iterator[tuple[int, str]]:
        """Yield the lines that are neither blank nor comments, and their numbers."""
        for number, line in enumerate(text, start=1):
            if line.strip() and not (self.comment and line.startswith(self.comment)):
                yield number, line

    def comment_lines(self) -> list[int]:
        """Return the positions of all comments."""
        if not self.comment:
            return []
        with self.open() as handle, io.TextIOWrapper(handle, self.encoding) as lines:
            return [at for at, line in enumerate(lines) if line.startswith(self.comment)]


class Row(NamedTuple):
    """A row, which has several lines if a quoted field has line breaks."""

    line: int  # number of the first line
    lines: list[str]
    fields: list[str]
    problem: str = ""  # with quotation marks; there are no fields then


class Table(NamedTuple):
    """An array per role, the column that it was taken from, and the columns not read."""

    fields: dict[str, np.ndarray]
    taken_from: dict[str, str]
    others: list[str] | list[int]


def read_ratings(
    text: TextFile,
    *,
    sep: str | None = None,
    columns: Mapping[str, str | int | None] | None = None,
    header: bool | str = "infer",
    whole_numbers: bool = False,  # whether all ids are plain integers, which takes less time
) -> Table:
    """Read users, items, ratings and timestamps; guess what is not given."""
    text, lines = _first_lines(text)
    try:
        return _read(text, lines, sep, columns, header, whole_numbers)
    except ValueError as error:
        signs = [sign for sign in _COMMENT_SIGNS if lines[0][1].startswith(sign)]
        if not signs or text.comment:
            raise
        raise ValueError(
            f"{error} If lines that begin with {signs[0]!r} are comments, pass "
            f"comment={signs[0]!r}."
        ) from error


def _read(text, lines, sep, columns, header, whole_numbers) -> Table:
    sep, rows = _split(text, lines, sep)
    if header == "infer":
        asks_for_names = any(isinstance(where, str) for where in (columns or {}).values())
        header = asks_for_names or _looks_like_header(*rows[:2])
    names = [name.strip() for name in rows[0]] if header else None
    if header and len(rows) > 1:
        is_quoted_first = all(line.lstrip().startswith('"') for _, line in lines[1:])
        names = _with_unnamed(names, rows[1:], is_quoted_first, columns, text.name)
    width = len(names or rows[0])
    # Without a header, an empty last column comes from a separator at the line's end.
    is_last_empty = not names and not any(row[-1] for row in rows)
    roles = _assign_roles(columns, names, width - is_last_empty, text.name)
    if not names:
        _check_dates(rows, roles, columns or {}, text.name)

    types = dict.fromkeys(range(width), object)
    for role, place in roles.items():
        if role in ("rating", "timestamp"):
            del types[place]
        elif whole_numbers:
            types[place] = np.int64
    parts = {role: [] for role in roles}
    n_skipped = lines[0][0] if header else 0
    comments = text.comment_lines()
    is_quoted = text.quoted and len(sep) == 1
    try:
        with text.open() as handle, warnings.catch_warnings():
            # It says that fields were left out.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            counter = _LineCounter(handle)
            for chunk in _chunks(text, counter, sep, width, types, n_skipped, comments):
                if names:
                    _check_header_again(text, sep, chunk, names, roles)
                for role, place in roles.items():
                    parts[role].append(_converted(text, sep, role, chunk[place], bool(header)))
    except pd.errors.EmptyDataError:
        pass  # a header and nothing else
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        _check_rows(text, sep, width, roles)
        misplaced = next((row.line for row in _rows(text, sep) if row.problem), None)
        if misplaced is not None:
            raise ValueError(
                f"{text.name}, line {misplaced}: a quotation mark ends a field, but other text "
                "follows. Double the quotation marks inside of quoted fields (in R: "
                "qmethod='double'), or pass quoted=False if they are ordinary characters here."
            ) from error
        raise ValueError(
            f"{text.name}: {str(error).split('C error: ')[-1].strip()} (separator {sep!r}). "
            "Correct or delete the line, pass another sep, or quoted=False if quotation marks are "
            "ordinary characters here."
        ) from error
    n_rows = sum(map(len, parts["user"]))
    if not n_rows:
        raise ValueError(f"{text.name} has a header and no rows after it.")
    if is_quoted and counter.has_quotes and counter.n_lines > n_rows + n_skipped + len(comments):
        _check_rows(text, sep, width, roles)

    fields = {role: _joined(chunks) for role, chunks in parts.items()}
    if "timestamp" in fields:
        fields["timestamp"] = _times(fields["timestamp"], text.name)
    if not names:
        _warn_about_words(fields, roles, columns or {}, text.name)
    for role in ("user", "item"):
        if fields[role].dtype == object and _SCIENTIFIC.fullmatch(fields[role][0]):
            warn(
                f"{text.name}: the {role} ids are numbers such as {fields[role][0]}, of which a "
                "spreadsheet dropped digits, so that several ids may have become one. Export the "
                "file again with the column formatted as text."
            )
    taken_from = {
        role: repr(names[position]) if names else f"column {position}"
        for role, position in roles.items()
    }
    others = [place for place in range(width - is_last_empty) if place not in roles.values()]
    if names:
        # A column without a name is a table's index, or comes from a separator at the line's end.
        others = [names[position] for position in others if names[position]]
    return Table(fields, taken_from, others)


@contextmanager
def _unpacked(raw: Any, name: str) -> Iterator[Any]:
    """Yield the bytes of a text that may be compressed, or the only file of a zip archive."""
    start = raw.peek(6)[:6]
    for magic, unpack in _COMPRESSED.items():
        if start.startswith(magic):
            with unpack(raw) as handle:
                yield handle
            return
    if not start.startswith(b"PK\x03\x04"):
        yield raw
        return
    with zipfile.ZipFile(raw) as archive:
        names = [one for one in archive.namelist() if not one.startswith("__MACOSX/")]
        names = [one for one in names if not one.endswith("/")]
        if len(names) != 1:
            raise ValueError(
                f"{name} is a zip archive of {len(names)} files ({', '.join(names[:5])}...); "
                "unpack it and pass one of them. pandas.read_excel reads workbooks, and numpy.load "
                "arrays."
            )
        try:
            member = archive.open(names[0])
        except RuntimeError as error:
            raise ValueError(f"{name}: {error}. Unpack it yourself.") from error
        with member:
            yield member


def _first_lines(text: TextFile) -> tuple[TextFile, list[tuple[int, str]]]:
    """Return the text with the encoding of its byte order mark, and its first lines."""
    try:
        "".encode(text.encoding)
    except LookupError as error:
        raise ValueError(
            f"encoding={text.encoding!r} is not an encoding of text that Python knows; common "
            "ones are 'utf-8', 'latin-1', 'cp1252' and 'utf-16'."
        ) from error
    with text.open() as handle:
        data = handle.read(_HEAD)
        is_all = len(data) < _HEAD
        marked = [encoding for mark, encoding in _MARKS.items() if data.startswith(mark)]
        if marked and codecs.lookup(text.encoding).name == "utf-8":
            text = replace(text, encoding=marked[0])
        # Files that are not text have NUL characters, and need not be in the encoding.
        lenient = "replace" if b"\0" in data else "strict"
        decoder = codecs.getincrementaldecoder(text.encoding)(lenient)
        head = decoder.decode(data, final=is_all).removeprefix("\ufeff")
    if "\0" in head:
        for start, reader in _READERS.items():
            if data.startswith(start):
                raise ValueError(
                    f"{text.name} is not text. Read it with {reader}; fit takes its columns of "
                    "users and items as X, and load_ratings what to_csv saves."
                )
        raise ValueError(
            f"{text.name} has NUL characters, so it is a binary file or an archive (unpack it, or "
            "read it with pandas.read_parquet or the like), or UTF-16: pass encoding='utf-16-le'."
        )
    lines = list(text.lines(io.StringIO(head, newline=None)))
    if lines and not is_all and not lines[-1][1].endswith("\n"):
        lines.pop()
    if not lines:
        raise ValueError(
            f"{text.name} is empty, or no table with one interaction per line: it must have at "
            f"least one user and item in its first {_HEAD:,} bytes."
        )
    first = lines[0][1].lstrip().lower()
    if first.startswith(("version https://git-lfs", "/annex/objects/")):
        raise ValueError(
            f"{text.name} is a pointer to a file that Git LFS or git-annex has not fetched yet; "
            "run git lfs pull, or git annex get, in its folder."
        )
    if first.startswith(("{", "[[", "[{", "<!doctype", "<html", "<?xml")):
        raise ValueError(
            f"{text.name} is JSON, XML or a web page (an error of a download?), not a table; read "
            "JSON with pandas.read_json, and save it with to_csv."
        )
    return text, lines[:20]


def _split(text, lines, sep) -> tuple[str, list[list[str]]]:
    """Return the separator and the fields of the first lines."""
    rows = {one: _fields([line for _, line in lines], one, text.quoted) for one in _SEPARATORS}
    fitting = [one for one, found in rows.items() if len(found[0]) > 1]
    # Without one that cuts all lines into equally many fields, the reader names a line.
    even = [one for one in fitting if len(set(map(len, rows[one]))) == 1]
    # A header may have a field less than the rows.
    even += [one for one in fitting if len(set(map(len, rows[one][1:]))) == 1]
    found = next(iter(even + fitting), None)
    if sep is None and found is not None:
        return found, rows[found]
    first = f"its first line {textwrap.shorten(lines[0][1], 60, placeholder='...')!r}"
    if sep is None:
        raise ValueError(
            f"{text.name}: no separator found in {first}. Each line needs a user and an item; pass "
            f"sep=... if they are there."
        )
    given = _fields([line for _, line in lines], sep, text.quoted)
    if len(given[0]) == 1:
        cure = f"pass sep={found!r}, or leave sep out" if found else "leave sep out"
        raise ValueError(f"{text.name}: sep={sep!r} is not in {first}; {cure}.")
    return sep, given


def _fields(lines: list[str], sep: str, quoted: bool) -> list[list[str]]:
    return list(_csv_reader(lines, sep, quoted))


def _csv_reader(lines: Iterable[str], sep: str, quoted: bool, *, strict: bool = False) -> Any:
    """Return a reader of rows, which sees long separators and runs of blanks as one character."""
    if sep == " ":
        lines = (" ".join(line.split()) for line in lines)
    elif len(sep) > 1:
        long = sep
        lines, sep, quoted = (line.replace(long, "\x1f") for line in lines), "\x1f", False
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    return csv.reader(lines, delimiter=sep, quoting=quoting, skipinitialspace=True, strict=strict)


def _rows(text: TextFile, sep: str) -> Iterator[Row]:
    """Yield all rows, for messages: pandas, which is faster, does not say where they are."""
    with text.open() as handle, io.TextIOWrapper(handle, text.encoding) as file:
        lines: list[str] = []

        def noted():
            for line in file:
                is_comment = text.comment and line.startswith(text.comment)
                lines.append("" if is_comment else line.removeprefix("\ufeff"))
                yield lines[-1]

        reader = _csv_reader(noted(), sep, text.quoted, strict=True)
        blanks = " \n" if sep == "\t" else None
        while True:
            lines.clear()
            first, problem = reader.line_num + 1, ""
            try:
                fields = next(reader, [])
            except csv.Error as error:
                fields, problem = [], str(error)
            if not lines:
                return
            if any(line.strip(blanks) for line in lines):
                yield Row(first, lines.copy(), fields, problem)


def _line_of(text: TextFile, sep: str, row: int) -> int:
    """Return the number of the line in which the row of that position begins."""
    return next(islice(_rows(text, sep), row, None)).line


def _check_rows(text: TextFile, sep: str, width: int, roles: dict[str, int]) -> None:
    """Raise if a row has too many fields, or a quotation mark swallows lines."""
    for row in _rows(text, sep):
        n_more = len(row.lines) - 1
        is_wrong = row.problem and (n_more or row.problem == "unexpected end of data")
        if n_more and not is_wrong:
            # Lines that look like rows are hardly quoted text.
            kinds = _kinds(row.fields, width, roles)
            rest = _fields(row.lines[1:], sep, quoted=False)
            is_wrong = kinds is not None and kinds in [_kinds(one, width, roles) for one in rest]
        if is_wrong:
            raise ValueError(
                f"{text.name}, line {row.line}: a quotation mark opens a field that takes in "
                f"all up to line {row.line + n_more}. Pass quoted=False if quotation marks are "
                "ordinary characters here; otherwise correct the line."
            )
        if len(row.fields) > width:
            raise ValueError(
                f"{text.name}: Expected {width} fields in line {row.line}, saw {len(row.fields)} "
                f"(separator {sep!r}). Correct or delete the line, pass another sep, or "
                "quoted=False if quotation marks are ordinary characters here."
            )


def _kinds(fields: list[str], width: int, roles: dict[str, int]) -> list[bool] | None:
    """Return which roles have numbers, or None if there are none or another number of fields."""
    if len(fields) != width:
        return None
    kinds = [_is_number(fields[place]) for place in roles.values()]
    return kinds if any(kinds) else None


class _LineCounter(io.BufferedIOBase):
    """Bytes of a file; counts lines, and notes whether there are quotation marks."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._n_breaks = dict.fromkeys((b"\n", b"\r"), 0)
        self.has_quotes = False

    @property
    def n_lines(self) -> int:
        return max(self._n_breaks.values())

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        data = self._handle.read(size)
        for mark in self._n_breaks:
            self._n_breaks[mark] += data.count(mark)
        self.has_quotes = self.has_quotes or b'"' in data
        return data

    read1 = read


def _chunks(text, handle, sep, width, types, n_skipped, comments) -> Iterator[pd.DataFrame]:
    """Read rows in chunks; pandas finds the types that are not given."""
    options: dict[str, Any] = {
        "sep": r"\s+" if sep == " " else sep,
        "header": None,
        "names": range(width),
        "index_col": False,
        "dtype": types,
        "skiprows": [*range(n_skipped), *comments] if comments else n_skipped,
        "skipinitialspace": True,
        "quoting": csv.QUOTE_MINIMAL if text.quoted and len(sep) == 1 else csv.QUOTE_NONE,
        "keep_default_na": False,
        "na_values": [""],
        "encoding": text.encoding,
        "chunksize": _CHUNK,
        "low_memory": False,
    }
    if len(sep) > 1:
        # pandas reads other separators than single characters slowly.
        content = handle.read().decode(text.encoding).replace(sep, "\x1f").encode(text.encoding)
        handle, options["sep"] = io.BytesIO(content), "\x1f"
    with pd.read_csv(handle, **options) as chunks:
        yield from chunks


def _check_header_again(text, sep, chunk, names, roles) -> None:
    """Raise if users and items are called as their columns are."""
    user, item = roles["user"], roles["item"]
    again = chunk.index[(chunk[user] == names[user]).to_numpy()]
    again = again[(chunk.loc[again, item] == names[item]).to_numpy()]
    if len(again):
        line = _line_of(text, sep, int(again[0]) + 1)
        raise ValueError(
            f"{text.name}, line {line}: the header is repeated, as in files that were joined. "
            "Delete this line and others like it."
        )


def _converted(text, sep, role: str, column: pd.Series, has_header: bool) -> np.ndarray:
    """Return ids as int64 or texts, ratings as float64, timestamps as numbers or texts."""

    def check(bad: np.ndarray, fault: str) -> None:
        if not bad.any():
            return
        value = column.to_numpy()[bad.argmax()]
        shown = "" if pd.isna(value) else " ".join(str(value).split())[:60]
        shown = shown and f" {shown!r}"
        if re.fullmatch(r" '[+-]?\d+,\d+'", shown):
            fault = "has a decimal comma: write points instead. Or"
        line = _line_of(text, sep, int(column.index[bad.argmax()]) + has_header)
        raise ValueError(
            f"{text.name}, line {line}: the {role}{shown} {fault} pass columns={{{role!r}: ...}}."
        )

    missing = "is missing. Fill it in or delete the line, or"
    check(column.isna().to_numpy(), missing)
    if role == "rating":
        if column.dtype.kind not in "iuf":
            column = column.astype(str)
        values = np.array(pd.to_numeric(column, errors="coerce"), dtype=np.float64)
        check(~np.isfinite(values), "is not a finite number. Correct or delete the line, or")
        return values
    if role == "timestamp" or column.dtype != object:
        return column.to_numpy()
    codes, texts = pd.factorize(column.to_numpy())
    everything = "".join(texts)
    if "\n" in everything or "\r" in everything:
        check(
            np.array(["\n" in one or "\r" in one for one in texts])[codes],
            "has a line break. Pass quoted=False if quotation marks are ordinary characters here; "
            "otherwise take the line break out, or",
        )
    texts = np.array([one.strip() for one in texts], dtype=object)
    if not all(texts):
        check((texts == "")[codes], missing)
    if all(map(_WHOLE_NUMBER.fullmatch, texts)):
        texts = texts.astype(np.int64)
    return texts[codes]


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Join chunks as numbers if all are, else as texts that each are kept once."""
    if all(part.dtype != object for part in parts):
        return np.concatenate(parts)
    known: dict[str, str] = {}
    texts = []
    for part in parts:
        codes, values = pd.factorize(part)
        values = np.array([known.setdefault(one, one) for one in map(str, values)], dtype=object)
        texts.append(values[codes])
    return np.concatenate(texts)


def _times(values: np.ndarray, name: str) -> np.ndarray:
    """Return ISO dates as seconds; leave other text as it is, with a warning."""
    if values.dtype != object:
        return values
    dates = pd.to_datetime(
        pd.Series(values).str.removesuffix(" UTC"), format="ISO8601", utc=True, errors="coerce"
    )
    if dates.isna().any():
        warn(
            f"{name}: the timestamp {values[dates.isna().argmax()]!r} is not an ISO date such as "
            "2024-05-01T12:30:00, so the timestamps stay text. Convert them, for example with "
            "pandas.to_datetime, before you sort or split by time."
        )
        return values
    microseconds = dates.dt.as_unit("us").astype(np.int64).to_numpy()
    whole = (microseconds % 1_000_000 == 0).all()
    return microseconds // 1_000_000 if whole else microseconds / 1e6


def _looks_like_header(first: list[str], second: list[str] = ()) -> bool:
    """Return whether `first` names columns, rather than being a row like `second`."""
    if any(map(_is_number, first)):
        return False
    if any(map(role_of, first)) or any(map(_is_number, second)):
        return True
    # Rows of text ids, perhaps `customer 1` and `product 1`.
    return [_has_words_for_ids(row) for row in (first, second)] == [True, False]


def _has_words_for_ids(row: list[str]) -> bool:
    """Return whether one field may name the user and another one the item."""
    users, items = (
        {at for at, one in enumerate(row) if _hints_at(role, one)} for role in _PARTS_OF_NAMES
    )
    return bool(users and items and len(users | items) > 1)


def _hints_at(role: str, name: str) -> bool:
    """Return whether a name has a word for a role, as `customer_no` has for the user."""
    return any(part in plain_name(name) for part in _PARTS_OF_NAMES[role].split())


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _with_unnamed(names, rows, is_quoted_first, columns, source) -> list[str]:
    """Return the header with empty names for row names, as R writes, and for empty last columns."""
    n_more = max(map(len, rows)) - len(names)
    if not any(any(row[len(names) :]) for row in rows):
        return names + n_more * [""]
    if min(map(len, rows)) != len(names) + 1:
        return names  # pandas' error will name a line
    first = [row[0] for row in rows]
    is_counted = first in [[str(start + n) for n in range(len(rows))] for start in (0, 1)]
    if not is_counted and not (is_quoted_first and len(set(first)) == len(first)):
        raise ValueError(
            f"{source}: the header has {len(names)} fields and the rows have {len(names) + 1}. Put "
            "the missing name into the header; in R, write.table(..., row.names=FALSE) leaves the "
            "names of rows out."
        )
    if any(isinstance(where, int | np.integer) for where in (columns or {}).values()):
        raise ValueError(
            f"{source}: the rows begin with row names, which the header lacks, so positions are "
            f"ambiguous. Give names in columns: {_listed(names)}."
        )
    return ["", *names]


def _check_dates(rows, roles, columns, source) -> None:
    """Raise if a column whose role is a guess by its position has dates in all first rows."""
    dates = [
        place
        for place in range(len(rows[0]))
        if all(len(row) > place and DATE.fullmatch(row[place]) for row in rows)
    ]
    wrong = [place for role, place in roles.items() if role != "timestamp" and place in dates]
    wrong = [place for place in wrong if place not in columns.values()]
    if not wrong:
        return
    taken = {*dates, *columns.values()}
    free = (place for place in range(len(rows[0])) if place not in taken)
    example = dict(columns)
    for role in ("user", "item"):
        example.setdefault(role, next(free, ...))
    example.setdefault("timestamp", wrong[0])
    shown = ", ".join(f"{role!r}: {'...' if at is ... else at}" for role, at in example.items())
    raise ValueError(
        f"{source} has no header, and column {wrong[0]} has dates such as {rows[0][wrong[0]]!r}. "
        f"Say which column is what, for example columns={{{shown}}}, and which one is the rating, "
        "if there is one."
    )


def _warn_about_words(fields, roles, columns, source) -> None:
    """Warn if a column whose role is a guess by its position has the same few texts throughout."""
    for role in ("user", "item"):
        values = fields[role]
        if role in columns or values.dtype != object:
            continue
        if len(pd.unique(values[:_MANY_ROWS])) > _FEW_TEXTS:
            continue
        texts = pd.unique(values)
        are_events = {str(text).lower() for text in texts} <= EVENTS
        if are_events or (len(texts) <= _FEW_TEXTS and len(values) >= _MANY_ROWS):
            shown = ", ".join(map(repr, texts[:3])) + (", ..." if len(texts) > 3 else "")
            warn(
                f"{source} has no header; column {roles[role]} is taken as the {role}, but has "
                f"only {len(texts)} different values: {shown}. If that is wrong, say which column "
                "is what: columns={'user': ..., 'item': ..., 'rating': ..., 'timestamp': ...}."
            )


def _assign_roles(columns, names, width, source) -> dict[str, int]:
    """Map each role to its column's position: as given, or by a usual name, or in usual order."""
    columns = dict(columns or {})
    if unknown := [role for role in columns if role not in ROLES]:
        raise ValueError(f"columns has the unknown role {unknown[0]!r}; the roles are {ROLES}.")
    found = {
        role: _position(role, where, names, width, source)
        for role, where in columns.items()
        if where is not None
    }
    for role in ROLES:
        if role not in columns:
            guess = _guess(role, names, found.values())
            if guess is not None and guess < width:
                found[role] = guess
    is_wide = width > _WIDE and names is None and not columns
    lacking = [role for role in ("user", "item") if role not in found or is_wide]
    if lacking:
        seen = f"the columns {_listed(names)}" if names else f"{width} column(s) and no header"
        example = ", ".join(f"{role!r}: {_proposed(role, names, found)}" for role in lacking)
        matrix = ""
        if width > _WIDE:
            matrix = " Of a matrix of users by items, make one row per rating, for example with "
            matrix += "DataFrame.stack."
        raise ValueError(
            f"{source}: no column found for the {' and the '.join(lacking)}; it has {seen}. Say "
            f"which it is: columns={{{example}}}.{matrix}"
        )
    if len(set(found.values())) < len(found):
        raise ValueError(f"{source}: columns gives one column two roles: {found}.")
    for role, place in found.items():
        by_position = isinstance(columns.get(role), int | np.integer)
        if names and not by_position and names.count(names[place]) > 1:
            raise ValueError(
                f"{source}: the header names {names.count(names[place])} columns {names[place]!r}. "
                f"Say by position which one is the {role}: columns={{{role!r}: {place}}}."
            )
    return {role: found[role] for role in ROLES if role in found}


def _position(role: str, where: str | int, names: list[str] | None, width: int, source: str) -> int:
    if isinstance(where, str):
        if names is None:
            raise ValueError(
                f"{source}: columns names {where!r} as the {role}, but the file has no header. "
                "Give a position (0 is the first column), or header=True if line 1 is one."
            )
        if where not in names:
            raise ValueError(
                f"{source}: no column {where!r} for the {role}; the header has {_listed(names)}."
            )
        return names.index(where)
    if isinstance(where, bool) or not isinstance(where, int | np.integer):
        raise TypeError(f"columns[{role!r}] must be a name, a position or None, got {where!r}.")
    if not 0 <= where < width:
        raise ValueError(
            f"{source}: no column {where} for the {role}; the file has {width} columns, "
            f"0 to {width - 1}."
        )
    return int(where)


def _guess(role: str, names: list[str] | None, taken: Iterable[int]) -> int | None:
    """Return the first free column with a usual name, or the usual place if there is no header."""
    places = [ROLES.index(role)]
    if names is not None:
        plain = list(map(plain_name, names))
        places = [plain.index(usual) for usual in USUAL_NAMES[role] if usual in plain]
    return next((place for place in places if place not in taken), None)


def _proposed(role: str, names: list[str] | None, found: Mapping[str, int]) -> str:
    """Return the first free name that has a word for the role, else dots."""
    free = [name for place, name in enumerate(names or []) if place not in found.values()]
    return next((repr(name) for name in free if _hints_at(role, name)), "...")


def _listed(names: list[str] | list[int]) -> str:
    """List names or positions for a message: all of them, or the first ten of many."""
    shown = ", ".join(map(repr, names[:10]))
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"


# --------------------------------------------------------------------- what is returned


def make_X(columns: Mapping[str, np.ndarray], *, as_frame: bool) -> np.ndarray | pd.DataFrame:
    """Put columns side by side: int64 if all are, else each with its own type."""
    if as_frame:
        return pd.DataFrame(dict(columns))
    if all(values.dtype == np.int64 for values in columns.values()):
        return np.column_stack(list(columns.values()))
    X = np.empty((len(next(iter(columns.values()))), len(columns)), dtype=object)
    for position, values in enumerate(columns.values()):
        X[:, position] = values
    return X


def make_y(values: np.ndarray | None, *, as_frame: bool) -> np.ndarray | pd.Series | None:
    """Return the ratings as an array, or as a Series named `rating`."""
    return pd.Series(values, name="rating") if as_frame and values is not None else values


def make_bunch(X: Any, y: Any, feature_names: list[str], *, as_frame: bool, **more: Any) -> Bunch:
    """Return a Bunch with scikit-learn's keys; `frame` joins data and target."""
    frame = None
    if as_frame:
        frame = X if y is None else X.assign(rating=y)
    return Bunch(data=X, target=y, frame=frame, feature_names=feature_names, **more)
