"""A fast reader for large, simple files.

If anything is unusual - a quotation mark, a letter that is not ASCII, a blank at the end of a
field, a missing id, a line with another number of fields - it gives up, and the file is read by the
slower reader, which handles all of that.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator

import numpy as np

from fedrecsk import _kernels
from fedrecsk.datasets._delimited import TextSource

# Smaller files are read sooner by the slower reader, which needs no compiled kernels.
_LARGE = 2**23
_BLOCK = 2**22  # bytes at a time
_LONGEST_LINE = 2**16
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Encodings in which ASCII's characters are ASCII's bytes and nothing else is.
_LIKE_ASCII = ("ascii", "utf-8", "iso8859-1", "iso8859-15", "cp1252")


def read_plain(
    source: TextSource,
    sep: str,
    width: int,
    roles: dict[str, int],
    numbers: tuple[str, ...],
    *,
    n_skipped: int,
) -> dict[str, list[np.ndarray]] | None:
    """Read a large text in chunks: int64 where all are whole numbers, float64 for `numbers`.

    Parameters
    ----------
    source : TextSource
    sep : str
    width : int
        Fields in each line.
    roles : dict
        The position of each role's column.
    numbers : tuple of str
        The roles whose values are numbers.
    n_skipped : int
        Lines before the first row.

    Returns
    -------
    parts : dict of list of ndarray, or None
        The chunks of each role: float64 for `numbers`; for others int64, or str. None if the
        text is small, or if anything in it is unusual.
    """
    # A blank stands for any run of white space.
    if not sep.isascii() or (not sep.isprintable() and sep != "\t") or set(sep) & set(' "'):
        return None
    encoding = codecs.lookup(source.encoding).name
    if encoding not in _LIKE_ASCII:
        return None
    mark = _BYTE_ORDER_MARK if encoding == "utf-8" else b""
    separator = np.frombuffer(sep.encode(), dtype=np.uint8).copy()
    columns = np.array(list(roles.values()))
    parts = {role: [] for role in roles}
    with source.open_bytes() as binary:
        for block in _whole_lines(binary, mark, n_skipped):
            if source.comment and _has_comments(block, source.comment):
                return None
            fields = _fields(block, separator, width, columns)
            if fields is None:
                return None
            for role, begins, ends in zip(roles, *fields, strict=True):
                chunk = _converted(block, begins, ends, is_number=role in numbers)
                if chunk is None:
                    return None
                parts[role].append(chunk)
    return parts if parts["user"] else None


def _whole_lines(binary, mark, n_skipped) -> Iterator[np.ndarray]:
    """Yield blocks of whole lines, all with a line break; nothing if the text is small."""
    data = binary.read(_LARGE)
    if len(data) < _LARGE:
        return
    data = data.removeprefix(mark)
    for _ in range(n_skipped):
        data = data[data.find(b"\n") + 1 :]
    rest = b""
    while data:
        cut = data.rfind(b"\n") + 1
        if cut:
            yield np.frombuffer(bytearray(rest + data[:cut]), dtype=np.uint8)
            rest = b""
        rest, data = rest + data[cut:], binary.read(_BLOCK)
        if len(rest) > _LONGEST_LINE:
            # Too long to be a line of ratings; the kernel will refuse the last block.
            break
    if rest:
        yield np.frombuffer(bytearray(rest + b"\n"), dtype=np.uint8)


def _has_comments(block, comment):
    text = block.tobytes()
    sign = comment.encode()
    return text.startswith(sign) or b"\n" + sign in text


def _fields(block, separator, width, columns):
    """Where each column's fields begin and end, shapes (n_columns, n_rows); None if unusual."""
    shape = len(columns), int(np.count_nonzero(block == ord("\n")))
    begins, ends = np.empty(shape, dtype=np.int32), np.empty(shape, dtype=np.int32)
    place = np.full(width, -1)
    place[columns] = np.arange(len(columns))
    n_rows = _kernels.text.split(block, separator, place, _LONGEST_LINE, begins, ends)
    return None if n_rows < 0 else (begins[:, :n_rows], ends[:, :n_rows])


def _converted(block, begins, ends, *, is_number):
    """The column's values; None if one must be a number and is none, or is unusual."""
    begins, ends = np.ascontiguousarray(begins), np.ascontiguousarray(ends)
    if is_number:
        values = np.empty(len(begins))
        return values if _kernels.text.decimals(block, begins, ends, values) else None
    values = np.empty(len(begins), dtype=np.int64)
    if _kernels.text.whole_numbers(block, begins, ends, values):
        return values
    width = int((ends - begins).max(initial=1))
    if width * len(begins) > 16 * len(block):
        return None
    letters = np.zeros((len(begins), width), dtype=np.uint8)
    _kernels.text.copy_texts(block, begins, ends, letters)
    return letters.view(f"S{width}").ravel().astype(str)
