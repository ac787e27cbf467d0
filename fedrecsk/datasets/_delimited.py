"""Delimited text, plain or compressed, as rows of fields with their line numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, TextIO

from fedrecsk.datasets._formats import encoding_of, unpacked

_SEPARATORS = ("::", "\t", ";", "|", ",", " ")
_N_SNIFFED_LINES = 20
# What comments begin with in most files; Excel writes "sep=;" into the first line.
_COMMENT_SIGNS = ("#", "%", "//", "sep=")

Row = tuple[int, list[str]]


@dataclass(frozen=True)
class TextSource:
    """A text that can be opened twice: once to look at it, once to read it.

    Lines that begin with `comment` are skipped; `quoted` says whether quotation marks enclose
    fields, or are ordinary characters.
    """

    name: str
    open_binary: Callable[[], Any]
    encoding: str = "utf-8"
    comment: str | None = None
    quoted: bool = True

    @contextmanager
    def open(self) -> Iterator[TextIO]:
        """Open the text; if it cannot be decoded, the error says where."""
        try:
            with (
                self.open_bytes() as binary,
                io.TextIOWrapper(binary, self._encoding(binary), newline="") as text,
            ):
                yield text
        except LookupError as error:
            raise ValueError(
                f"encoding={self.encoding!r} is not an encoding of text that Python knows; common "
                "ones are 'utf-8', 'latin-1', 'cp1252' and 'utf-16'."
            ) from error
        except UnicodeError as error:
            reason = str(error)
            if isinstance(error, UnicodeDecodeError):
                reason = f"{error.reason} at byte {error.start} of a block"
            raise ValueError(
                f"{self.name} is not {self.encoding} text ({reason}). If it is text, pass its "
                "encoding, for example encoding='latin-1'."
            ) from error

    @contextmanager
    def open_bytes(self) -> Iterator[IO[bytes]]:
        """Open the text's bytes, unpacked."""
        with self.open_binary() as raw, unpacked(raw, self.name) as binary:
            yield binary

    def lines(self, text: TextIO) -> Iterator[str]:
        """Yield the lines of the opened text, with comments as empty lines."""
        for number, line in enumerate(text, start=1):
            if "\0" in line:
                raise ValueError(
                    f"{self.name}, line {number}: there is a NUL character, so the file is "
                    "damaged, or binary, or text in UTF-16. Correct it, or pass "
                    "encoding='utf-16-le'."
                )
            yield "\n" if self.comment and line.startswith(self.comment) else line

    def first_lines(self) -> list[str]:
        """Return the first lines that hold anything."""
        with self.open() as text:
            filled = (line for line in self.lines(text) if line.strip())
            return list(islice(filled, _N_SNIFFED_LINES))

    def _encoding(self, binary: Any) -> str:
        is_utf8 = self.encoding.lower().replace("_", "-") in ("utf-8", "utf8")
        if not is_utf8:
            return self.encoding
        # utf-8-sig also reads plain UTF-8; it drops the mark that Excel puts first.
        return encoding_of(binary.peek(4)[:4]) or "utf-8-sig"


def sniff_separator(source: TextSource, lines: list[str]) -> str:
    """Return the separator that cuts all of `lines` into equally many fields."""
    widths = {sep: _widths(lines, sep, source.quoted) for sep in _SEPARATORS}
    for sep, counts in widths.items():
        if counts and min(counts) >= 2 and min(counts) == max(counts):
            return sep
    # No separator fits every line. With one that fits the first, the reader can name
    # the line that does not.
    for sep, counts in widths.items():
        if counts and counts[0] >= 2:
            return sep
    raise ValueError(
        f"{source.name}: no separator found in its first line {_shortened(lines[0])}. Each line "
        "needs a user and an item; pass sep=... if they are there." + comment_hint(source, lines[0])
    )


def _widths(lines: list[str], sep: str, quoted: bool) -> list[int]:
    widths = []
    # If the csv module cannot read a line, the reader of all rows will report it.
    with suppress(csv.Error):
        for fields in _split(lines, sep, quoted):
            widths.append(len(fields))
    return widths


def check_looks_like_rows(source: TextSource, lines: list[str]) -> None:
    """Raise if the first line is JSON or a web page rather than a row."""
    first = lines[0].lstrip().lower()
    if first.startswith(("{", "[[", "[{")):
        raise ValueError(
            f"{source.name} looks like JSON: it begins with {_shortened(lines[0])}. Read it with "
            "pandas.read_json (lines=True for one object per line) and save the table with to_csv."
        )
    if first.startswith(("<!doctype", "<html", "<?xml")):
        raise ValueError(
            f"{source.name} is a web page or XML, not a table: it begins with "
            f"{_shortened(lines[0])}. Perhaps a download gave an error page; fetch the file again."
        )


def comment_hint(source: TextSource, *starts: str) -> str:
    """Advise to skip comments, if one of the lines begins like one; else an empty string."""
    signs = [sign for start in starts for sign in _COMMENT_SIGNS if start.startswith(sign)]
    if not signs or source.comment:
        return ""
    sign = signs[0]
    return f" If lines that begin with {sign!r} are comments, pass comment={sign!r}."


def read_rows(source: TextSource, lines: Iterable[str], sep: str) -> Iterator[Row]:
    """Yield (line number, fields) for each row; all rows are as wide as the first."""
    name, width, first_line, start = source.name, None, 0, ""
    reader = _split(lines, sep, source.quoted, strict=True)
    try:
        for fields in reader:
            line = reader.line_num
            if len(fields) == width:
                yield line, fields
            elif not fields or (len(fields) == 1 and not fields[0].strip()):
                continue
            elif width is None:
                width, first_line, start = len(fields), line, fields[0]
                yield line, fields
            else:
                raise ValueError(
                    f"{name}, line {line}: {len(fields)} fields where line {first_line} has "
                    f"{width} (separator {sep!r}). Correct or delete the line, or pass another sep."
                    + comment_hint(source, fields[0], start)
                )
    except csv.Error as error:
        raise ValueError(f"{name}, line {reader.line_num}: {error}. {_cure(error)}") from error


def _cure(error: csv.Error) -> str:
    if "field limit" in str(error):
        return (
            "Perhaps a quotation mark is never closed: pass quoted=False if quotation marks are "
            "ordinary characters here. If the field really is that long, call "
            "csv.field_size_limit(10**9) first."
        )
    return (
        "Correct the line: a field with the separator or a quotation mark must be quoted. Or "
        "pass quoted=False if quotation marks are ordinary characters here."
    )


def _shortened(line: str) -> str:
    line = line.rstrip()
    return repr(line if len(line) <= 60 else line[:57] + "...")


class _LineCounter:
    """Rows cut by a separator that the csv module cannot take, with its `line_num`."""

    def __init__(self, lines: Iterable[str], sep: str):
        # Blanks come in runs, so a blank means "any white space", as in str.split().
        self.lines, self.sep, self.line_num = lines, None if sep == " " else sep, 0

    def __iter__(self) -> Iterator[list[str]]:
        for line in self.lines:
            self.line_num += 1
            yield line.rstrip("\r\n").split(self.sep)


def _split(lines: Iterable[str], sep: str, quoted: bool, *, strict: bool = False):
    if len(sep) > 1 or sep == " " or not quoted:
        return _LineCounter(lines, sep)
    return csv.reader(lines, delimiter=sep, skipinitialspace=True, strict=strict)
