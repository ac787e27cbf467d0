"""Delimited text, plain or gzipped, as rows of fields that know their line."""

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TextIO

_SEPARATORS = ("::", "\t", ";", "|", ",", " ")
_N_SNIFFED_LINES = 20
_GZIP_MAGIC = b"\x1f\x8b"

Row = tuple[int, list[str]]


@dataclass(frozen=True)
class TextSource:
    """A text that can be opened twice: once to look at it, once to read it."""

    name: str
    open_binary: Callable[[], io.BufferedIOBase]
    encoding: str = "utf-8"

    @contextmanager
    def open(self) -> Iterator[TextIO]:
        """Open the text; what cannot be decoded becomes an error that names it."""
        # utf-8-sig also reads plain UTF-8; it drops the mark that Excel puts first.
        is_utf8 = self.encoding.lower().replace("_", "-") in ("utf-8", "utf8")
        encoding = "utf-8-sig" if is_utf8 else self.encoding
        try:
            with (
                self.open_bytes() as binary,
                io.TextIOWrapper(binary, encoding=encoding, newline="") as text,
            ):
                yield text
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{self.name} is not {self.encoding} text ({error.reason} at byte "
                f"{error.start} of a block). Pass its encoding, for example "
                "encoding='latin-1'."
            ) from error

    @contextmanager
    def open_bytes(self) -> Iterator[io.BufferedIOBase]:
        """Open the text's bytes; those of a damaged gzip file are an error that names it."""
        with self.open_binary() as raw:
            is_gzip = raw.peek(2)[:2] == _GZIP_MAGIC
            try:
                yield gzip.GzipFile(fileobj=raw) if is_gzip else raw
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise ValueError(
                    f"{self.name} is a damaged gzip file ({error}). Fetch or compress it again."
                ) from error

    def first_lines(self) -> list[str]:
        """Return the first lines that hold anything."""
        with self.open() as text:
            return list(islice((line for line in text if line.strip()), _N_SNIFFED_LINES))


def sniff_separator(lines: list[str], name: str) -> str:
    """Return the separator that cuts all of `lines` into equally many fields."""
    widths = {sep: [len(fields) for fields in _split(lines, sep)] for sep in _SEPARATORS}
    for sep, counts in widths.items():
        if min(counts) >= 2 and min(counts) == max(counts):
            return sep
    # No separator fits every line. With one that fits the first, the reader can name
    # the line that does not.
    for sep, counts in widths.items():
        if counts[0] >= 2:
            return sep
    raise ValueError(
        f"{name}: no separator found in its first line {lines[0].rstrip()!r}. Ratings need a user "
        "and an item per line; pass sep=... if they are there."
    )


def read_rows(lines: Iterable[str], sep: str, name: str) -> Iterator[Row]:
    """Yield (line number, fields) for each row; all rows are as wide as the first."""
    width, first_line = None, 0
    reader = _split(lines, sep, strict=True)
    try:
        for fields in reader:
            line = reader.line_num
            if len(fields) == width:
                yield line, fields
            elif not fields or (len(fields) == 1 and not fields[0].strip()):
                continue
            elif width is None:
                width, first_line = len(fields), line
                yield line, fields
            else:
                raise ValueError(
                    f"{name}, line {line}: {len(fields)} fields where line {first_line} has "
                    f"{width} (separator {sep!r}). Mend or delete the line, or pass another sep."
                )
    except csv.Error as error:
        raise ValueError(
            f"{name}, line {reader.line_num}: {error}. Mend the line; a field that holds the "
            "separator or a quotation mark must be quoted."
        ) from error


class _LineCounter:
    """Rows cut by a separator that the csv module cannot take, with its `line_num`."""

    def __init__(self, lines: Iterable[str], sep: str):
        # Blanks come in runs, so a blank means "any white space", as in str.split().
        self.lines, self.sep, self.line_num = lines, None if sep == " " else sep, 0

    def __iter__(self) -> Iterator[list[str]]:
        for line in self.lines:
            self.line_num += 1
            yield line.rstrip("\r\n").split(self.sep)


def _split(lines: Iterable[str], sep: str, *, strict: bool = False):
    if len(sep) > 1 or sep == " ":
        return _LineCounter(lines, sep)
    return csv.reader(lines, delimiter=sep, skipinitialspace=True, strict=strict)
