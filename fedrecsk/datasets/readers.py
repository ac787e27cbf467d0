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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from sklearn.utils import Bunch

from fedrecsk._utils.docs import documented
from fedrecsk._utils.parameters import check_arguments
from fedrecsk._utils.user_warnings import warn
from fedrecsk.data._mistakes import DATE, ROLES, USUAL_NAMES, plain_name, role_of

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
_COMPRESSED = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile)
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# What JSON, XML, web pages, and pointers of Git LFS and git-annex begin with.
_NO_TABLE = ("{", "[[", "[{", "<!doctype", "<html", "<?xml", "version https://git-lfs", "/annex/")
_ORDINARY_MARKS = "quoted=False if quotation marks are ordinary characters here"


@documented
@check_arguments
def load_ratings(
    path: str | os.PathLike[str],
    *,
    sep: str | None = None,
    columns: Mapping[str, str | int | None] | None = None,
    header: Literal["infer"] | bool = "infer",
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

    read = ", ".join(f"{role} from {column}" for role, column in taken_from.items())
    says = f"{len(fields['user'])} interactions read from {path}: {read}."
    if others:
        says += f" Not read: {not_read}."
    return in_form(fields, str(path), says, as_frame=as_frame, return_X_y=return_X_y)


@dataclass(frozen=True)
class TextFile:
    """A text, plain or compressed; lines that begin with `comment` are skipped."""

    name: str
    open_raw: Callable[[], Any]
    encoding: str = "utf-8"
    comment: str | None = None
    quoted: bool = True

    @contextmanager
    def open(self) -> Iterator[io.TextIOWrapper]:
        """Open the unpacked text; errors name the file if it is damaged or no such text."""
        try:
            with self.open_raw() as raw, _unpacked(raw, self.name) as handle:
                yield io.TextIOWrapper(handle, self.encoding)
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

    def plain(self, content: str, sep: str) -> str:
        """Blank out comments, and make one character of long separators and runs of blanks."""
        if self.comment:
            content = re.sub(f"(?m)^{re.escape(self.comment)}.*", "", content)
        if sep == " ":
            return "\n".join(" ".join(line.split()) for line in content.split("\n"))
        return content.replace(sep, "\x1f") if len(sep) > 1 else content

    def csv_options(self, sep: str) -> dict[str, Any]:
        """Return how plain text is read by csv or pandas."""
        is_quoted = self.quoted and len(sep) == 1
        return {
            "delimiter": sep if len(sep) == 1 else "\x1f",
            "quoting": csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE,
            "skipinitialspace": True,
        }

    def fields(self, lines: list[str], sep: str) -> list[list[str]]:
        """Return the fields of some lines."""
        return list(csv.reader((self.plain(one, sep) for one in lines), **self.csv_options(sep)))

    def rows(self, sep: str) -> Iterator[tuple[int, int, list[str]]]:
        """Yield the first line, the last line and the fields of each row, for messages."""
        with self.open() as file:
            lines = (self.plain(line, sep) for line in file)
            reader, first = csv.reader(lines, **self.csv_options(sep)), 1
            limit = csv.field_size_limit(2**31 - 1)
            try:
                for fields in reader:
                    if len(fields) > 1 or "".join(fields).strip():
                        yield first, reader.line_num, fields
                    first = reader.line_num + 1
            finally:
                csv.field_size_limit(limit)

    def row(self, sep: str, number: int) -> tuple[int, int, list[str]]:
        """Return a row; pandas does not say in which line it is."""
        return next(islice(self.rows(sep), number, None))


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
        return _read(text, lines, sep, dict(columns or {}), header, whole_numbers)
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
        asks_for_names = any(isinstance(where, str) for where in columns.values())
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
        _check_dates(rows[0], roles, columns, text.name)

    fields = _columns(text, sep, roles, width, lines[0][0] if header else 0, whole_numbers)
    if not len(fields["user"]):
        raise ValueError(f"{text.name} has a header and no rows after it.")
    if names:
        again = (fields["user"] == names[roles["user"]]) & (fields["item"] == names[roles["item"]])
        if again.any():
            raise ValueError(
                f"{text.name}, line {text.row(sep, int(again.argmax()) + 1)[0]}: the header is "
                "repeated, as in files that were joined. Delete this line and others like it."
            )
    fields = {role: _converted(text, sep, role, one, header) for role, one in fields.items()}
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
    with text.open() as file:
        data = file.buffer.read(_HEAD)
        is_all = len(data) < _HEAD
        marked = [encoding for mark, encoding in _MARKS.items() if data.startswith(mark)]
        if marked and codecs.lookup(text.encoding).name == "utf-8":
            text = replace(text, encoding=marked[0])
        # Files that are not text have NUL characters, and need not be in the encoding.
        lenient = "replace" if b"\0" in data else "strict"
        decoder = codecs.getincrementaldecoder(text.encoding)(lenient)
        head = decoder.decode(data, final=is_all).removeprefix("\ufeff")
    if "\0" in head:
        raise ValueError(
            f"{text.name} is not text, because it has NUL characters. It may be a binary file or "
            "an archive (unpack it, or read it with pandas.read_parquet, pandas.read_excel or the "
            "like, or with pandas.read_pickle if it is yours, because it can run code), or UTF-16: "
            "pass encoding='utf-16-le'."
        )
    lines = [
        (number, line)
        for number, line in enumerate(io.StringIO(head, newline=None), start=1)
        if line.strip() and not (text.comment and line.startswith(text.comment))
    ]
    if lines and not is_all and not lines[-1][1].endswith("\n"):
        lines.pop()
    if not lines:
        raise ValueError(
            f"{text.name} is empty, or no table with one interaction per line: it must have at "
            f"least one user and item in its first {_HEAD:,} bytes."
        )
    if lines[0][1].lstrip().lower().startswith(_NO_TABLE):
        raise ValueError(
            f"{text.name} is no table, but JSON, XML, a web page (an error of a download?), or a "
            "pointer to a file. Read JSON with pandas.read_json; fetch the file of a pointer with "
            "git lfs pull or git annex get."
        )
    return text, lines[:20]


def _split(text, lines, sep) -> tuple[str, list[list[str]]]:
    """Return the separator and the fields of the first lines."""
    lines = [line for _, line in lines]
    rows = {one: text.fields(lines, one) for one in _SEPARATORS}
    fitting = [one for one, found in rows.items() if len(found[0]) > 1]
    # Without one that cuts all lines into equally many fields, the reader names a line.
    even = [one for one in fitting if len(set(map(len, rows[one]))) == 1]
    # A header may have a field less than the rows.
    even += [one for one in fitting if len(set(map(len, rows[one][1:]))) == 1]
    found = next(iter(even + fitting), None)
    if sep is None and found is not None:
        return found, rows[found]
    first = f"its first line {textwrap.shorten(lines[0], 60, placeholder='...')!r}"
    if sep is None:
        raise ValueError(
            f"{text.name}: no separator found in {first}. Each line needs a user and an item; pass "
            f"sep=... if they are there."
        )
    given = text.fields(lines, sep)
    if len(given[0]) == 1:
        cure = f"pass sep={found!r}, or leave sep out" if found else "leave sep out"
        raise ValueError(f"{text.name}: sep={sep!r} is not in {first}; {cure}.")
    return sep, given


def _columns(text, sep, roles, width, n_skipped, whole_numbers) -> dict[str, Any]:
    """Let pandas read the columns that have a role; it finds the types of those without ids."""
    ids = np.int64 if whole_numbers else object
    types = {place: object for place in range(width) if place not in roles.values()}
    types |= {roles["user"]: ids, roles["item"]: ids}
    options = text.csv_options(sep)
    options |= {"header": None, "names": range(width), "index_col": False, "dtype": types}
    options |= {"skiprows": n_skipped, "keep_default_na": False, "na_values": [""]}
    parts = {role: [] for role in roles}
    try:
        with text.open() as file, warnings.catch_warnings():
            # It says that fields were left out.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            if text.comment or len(sep) > 1:
                file = io.StringIO(text.plain(file.read(), sep))
            elif sep == " ":
                options["delimiter"] = r"\s+"
            with pd.read_csv(file, **options, chunksize=_CHUNK, low_memory=False) as chunks:
                for chunk in chunks:
                    _check_texts(text, sep, chunk, roles, bool(n_skipped))
                    for role, place in roles.items():
                        parts[role].append(chunk[place])
    except pd.errors.EmptyDataError:
        return dict.fromkeys(roles, ())  # a header and nothing else
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        _find_fault(text, sep, width, error)
    return {role: pd.concat(parts.pop(role)) for role in roles}


def _check_texts(text, sep, chunk, roles, has_header) -> None:
    """Raise if a text that is not read has a line that looks like a row."""

    def kinds(row):
        return [_is_number(row[place]) for place in roles.values()]

    for place in set(chunk.columns).difference(roles.values()):
        texts = chunk[place].dropna()
        for row, value in texts[texts.str.contains("\n", regex=False)].items():
            own = kinds(chunk.loc[row])
            inner = [line.split(sep) for line in value.split("\n")]
            if any(own) and own in [kinds(one) for one in inner if len(one) == chunk.shape[1]]:
                _raise_unclosed(text, *text.row(sep, row + has_header))


def _raise_unclosed(text, first, last, _) -> None:
    raise ValueError(
        f"{text.name}, line {first}: a quotation mark opens a field that takes in all up to line "
        f"{last}. Pass {_ORDINARY_MARKS}; otherwise correct the line."
    )


def _find_fault(text, sep, width, error) -> None:
    """Raise an error about the line in which pandas has failed."""
    row = 0, 0, []
    for row in text.rows(sep):
        if len(row[2]) > width:
            raise ValueError(
                f"{text.name}: Expected {width} fields in line {row[0]}, saw {len(row[2])} "
                f"(separator {sep!r}). Correct or delete the line, pass another sep, or "
                f"{_ORDINARY_MARKS}; inside of quoted fields they must be doubled (in R: "
                "qmethod='double')."
            ) from error
    if "EOF" not in str(error):
        raise ValueError(f"{text.name}: {error}") from error
    _raise_unclosed(text, *row)


def _converted(text, sep, role: str, column: pd.Series, has_header: bool) -> np.ndarray:
    """Return ids as int64 or texts, ratings as float64, times as numbers or other texts."""

    def check(bad: np.ndarray, fault: str) -> None:
        if not bad.any():
            return
        row = int(np.argmax(bad))
        value = column.iloc[row]
        shown = "" if pd.isna(value) else " ".join(str(value).split())[:60]
        shown = shown and f" {shown!r}"
        if re.fullmatch(r" '[+-]?\d+,\d+'", shown):
            fault = "has a decimal comma: write points instead. Or"
        raise ValueError(
            f"{text.name}, line {text.row(sep, row + has_header)[0]}: the {role}{shown} {fault} "
            f"pass columns={{{role!r}: ...}}."
        )

    missing = "is missing. Fill it in or delete the line, or"
    check(column.isna(), missing)
    if role == "rating":
        if column.dtype.kind not in "iuf":
            column = column.astype(str)
        values = np.asarray(pd.to_numeric(column, errors="coerce"), dtype=np.float64)
        check(~np.isfinite(values), "is not a finite number. Correct or delete the line, or")
        return values
    if column.dtype.kind in "iuf":
        return column.to_numpy()
    if role == "timestamp":
        return _times(column.astype(str), text.name)
    codes, texts = pd.factorize(column)
    texts = texts.str.strip()
    check((texts == "")[codes], missing)
    check(
        texts.str.contains("\n", regex=False)[codes],
        f"has a line break. Pass {_ORDINARY_MARKS}; otherwise take the line break out, or",
    )
    if texts.str.fullmatch(_WHOLE_NUMBER).all():
        texts = texts.astype(np.int64)
    return np.asarray(texts).take(codes)


def _times(column: pd.Series, name: str) -> np.ndarray:
    """Return ISO dates as seconds; leave other text as it is, with a warning."""
    dates = pd.to_datetime(
        column.str.removesuffix(" UTC"), format="ISO8601", utc=True, errors="coerce"
    )
    if dates.isna().any():
        warn(
            f"{name}: the timestamp {column[dates.isna().idxmax()]!r} is not an ISO date such as "
            "2024-05-01T12:30:00, so the timestamps stay text. Convert them, for example with "
            "pandas.to_datetime, before you sort or split by time."
        )
        return column.to_numpy(object)
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
    return [
        all(any(_hints_at(role, one) for one in row) for role in _PARTS_OF_NAMES)
        for row in (first, second)
    ] == [True, False]


def _hints_at(role: str, name: str) -> bool:
    """Return whether a name has a word for a role, as `customer_no` has for the user."""
    return any(part in plain_name(name) for part in _PARTS_OF_NAMES[role].split())


def _is_number(field: Any) -> bool:
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
    if any(isinstance(where, int | np.integer) for where in columns.values()):
        raise ValueError(
            f"{source}: the rows begin with row names, which the header lacks, so positions are "
            f"ambiguous. Give names in columns: {_listed(names)}."
        )
    return ["", *names]


def _check_dates(row, roles, columns, source) -> None:
    """Raise if a column whose role is a guess by its position has dates."""
    for role, place in roles.items():
        if role != "timestamp" and role not in columns and DATE.fullmatch(row[place]):
            raise ValueError(
                f"{source} has no header, and column {place} has dates such as {row[place]!r}. Say "
                "which column is what, for example columns={'user': ..., 'item': ..., "
                f"'timestamp': {place}}}, and which one is the rating, if there is one."
            )


def _assign_roles(columns, names, width, source) -> dict[str, int]:
    """Map each role to its column's position: as given, or by a usual name, or in usual order."""
    if unknown := [role for role in columns if role not in ROLES]:
        raise ValueError(f"columns has the unknown role {unknown[0]!r}; the roles are {ROLES}.")
    has = f"{width} column(s) and no header, so give positions, from 0 to {width - 1}"
    if names:
        has = f"the columns {_listed(names)}, 0 to {width - 1}"
    found = {}
    for role, where in columns.items():
        is_place = isinstance(where, int | np.integer) and not isinstance(where, bool)
        if is_place and 0 <= where < width:
            found[role] = int(where)
        elif names and where in names:
            found[role] = names.index(where)
        elif where is not None:
            raise ValueError(f"{source}: no column {where!r} for the {role}; it has {has}.")
    plain = list(map(plain_name, names)) if names else ROLES[:width]
    for role in ROLES:
        guesses = [plain.index(one) for one in USUAL_NAMES[role] if one in plain]
        guesses = [place for place in guesses if place not in found.values()]
        if role not in columns and guesses:
            found[role] = guesses[0]
    is_wide = width > _WIDE and names is None and not columns
    lacking = [role for role in ("user", "item") if role not in found or is_wide]
    if lacking:
        example = ", ".join(f"{role!r}: {_proposed(role, names, found)}" for role in lacking)
        matrix = " Of a matrix of users by items, make one row per rating: DataFrame.stack."
        raise ValueError(
            f"{source}: no column found for the {' and the '.join(lacking)}; it has {has}. Say "
            f"which it is: columns={{{example}}}.{matrix * (width > _WIDE)}"
        )
    if len(set(found.values())) < len(found):
        raise ValueError(f"{source}: columns gives one column two roles: {found}.")
    for role, place in found.items():
        if names and columns.get(role) != place and names.count(names[place]) > 1:
            raise ValueError(
                f"{source}: the header names {names.count(names[place])} columns {names[place]!r}. "
                f"Say by position which one is the {role}: columns={{{role!r}: {place}}}."
            )
    return {role: found[role] for role in ROLES if role in found}


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


def in_form(
    fields: dict[str, np.ndarray], path: str, says: str, *, as_frame: bool, return_X_y: bool
) -> Bunch | tuple[Any, Any]:
    """Return X and y, or a Bunch with scikit-learn's keys; `frame` joins data and target."""
    y = make_y(fields.pop("rating", None), as_frame=as_frame)
    X = make_X(fields, as_frame=as_frame)
    if return_X_y:
        return X, y
    frame = None
    if as_frame:
        frame = X if y is None else X.assign(rating=y)
    names = list(fields)
    return Bunch(data=X, target=y, frame=frame, feature_names=names, filename=path, DESCR=says)
