"""Compressed files and files that are not text, recognised by their content, not their name."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Text shrinks to a tenth or a hundredth when compressed, and never to less than a 200th.
_MAX_RATIO = 200
# Up to this size, unpacking does no harm whatever the ratio.
_ALWAYS_ALLOWED = 100 * 2**20

_COMPRESSED: dict[bytes, tuple[str, Callable[..., Any]]] = {
    b"\x1f\x8b": ("gzip", gzip.open),
    b"BZh": ("bzip2", bz2.open),
    b"\xfd7zXZ\0": ("xz", lzma.open),
}
_ZIP = b"PK\x03\x04", b"PK\x05\x06"  # the latter without any file
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile)

_UNREADABLE = {
    b"PAR1": ("a Parquet file", "pandas.read_parquet"),
    b"ARROW1": ("an Arrow file", "pandas.read_feather"),
    b"\x93NUMPY": ("a NumPy file", "numpy.load"),
    b"\x89HDF": ("an HDF5 file", "pandas.read_hdf"),
    b"SQLite format 3": ("an SQLite database", "pandas.read_sql"),
    b"\x80\x03": ("a Python pickle", "pandas.read_pickle"),
    b"\x80\x04": ("a Python pickle", "pandas.read_pickle"),
    b"\x80\x05": ("a Python pickle", "pandas.read_pickle"),
    b"\xd0\xcf\x11\xe0": ("an Excel workbook", "pandas.read_excel"),
    b"%PDF": ("a PDF document", None),
    b"\x89PNG": ("a picture", None),
    b"\xff\xd8\xff": ("a picture", None),
    b"GIF8": ("a picture", None),
    b"\x28\xb5\x2f\xfd": ("compressed by Zstandard; unpack it with unzstd", None),
    b"7z\xbc\xaf": ("a 7-Zip archive; unpack it", None),
    b"Rar!": ("a RAR archive; unpack it", None),
}
_MARKS = {
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}


@contextmanager
def unpacked(raw: Any, name: str) -> Iterator[Any]:
    """Yield the bytes of a text that may be compressed: by gzip, bzip2, xz, or as the only file of
    a zip archive.

    Parameters
    ----------
    raw : binary file
        With a `peek` method.
    name : str
        Of the file, for the error messages.

    Raises
    ------
    ValueError
        If the file is damaged, a zip archive of several files, of a binary format, or so strongly
        compressed that it cannot be text.
    """
    start = raw.peek(16)[:16]
    for magic, (what, reader) in _UNREADABLE.items():
        if start.startswith(magic):
            cure = f"; read it with {reader} and pass the table" if reader else ""
            raise ValueError(f"{name} is {what}{cure}. Delimited text is needed here.")
    if start.startswith(_ZIP):
        with _reporting_damage(name, "zip"), _only_member(raw, name) as member:
            yield member
        return
    for magic, (what, open_compressed) in _COMPRESSED.items():
        if start.startswith(magic):
            packed = os.fstat(raw.fileno()).st_size if hasattr(raw, "fileno") else None
            with _reporting_damage(name, what):
                yield io.BufferedReader(_Bounded(open_compressed(raw), packed, name), 2**16)
            return
    yield raw


def encoding_of(start: bytes) -> str | None:
    """Name the encoding that a byte order mark stands for; None without one."""
    return next((name for mark, name in _MARKS.items() if start.startswith(mark)), None)


def check_size(size: int, packed: int, name: str) -> None:
    """Raise if a compressed file unpacks to far more than text can."""
    if size > max(_ALWAYS_ALLOWED, _MAX_RATIO * packed):
        raise ValueError(
            f"{name} unpacks to more than {_MAX_RATIO} times its size ({packed:,} bytes), as no "
            "text does, so reading was stopped. If it really is your data, unpack it yourself."
        )


@contextmanager
def _reporting_damage(name: str, what: str) -> Iterator[None]:
    try:
        yield
    except NotImplementedError as error:
        raise ValueError(f"{name}: {error}; unpack it yourself.") from error
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk, not of the file's content
        raise ValueError(
            f"{name} is a damaged {what} file ({error}). Fetch or compress it again."
        ) from error


@contextmanager
def _only_member(raw: Any, name: str) -> Iterator[Any]:
    with zipfile.ZipFile(raw) as archive:
        members = [one for one in archive.infolist() if not one.is_dir()]
        if any(one.filename == "[Content_Types].xml" for one in members):
            raise ValueError(
                f"{name} is an Excel workbook; read it with pandas.read_excel, or save it as CSV. "
                "Delimited text is needed here."
            )
        # What macOS adds.
        members = [one for one in members if not one.filename.startswith("__MACOSX/")]
        if len(members) != 1:
            names = ", ".join(one.filename for one in members[:5])
            raise ValueError(
                f"{name} is a zip archive of {len(members)} files ({names}...); unpack it and pass "
                "the path of one of them."
            )
        (member,) = members
        if member.flag_bits & 1:
            raise ValueError(f"{name} is an encrypted zip archive; unpack it with its password.")
        check_size(member.file_size, member.compress_size, name)
        with archive.open(member) as file:
            yield file


class _Bounded(io.RawIOBase):
    """A decompressed stream that stops at sizes which no text has."""

    def __init__(self, stream: Any, packed: int | None, name: str) -> None:
        self._stream, self._packed, self._name, self._size = stream, packed, name, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        n_bytes = self._stream.readinto(buffer)
        self._size += n_bytes
        if self._packed is not None:
            check_size(self._size, self._packed, self._name)
        return n_bytes
