"""Delimited text in bytes: fields and numbers."""

from fedrecsk._kernels._jit import kernel

_ZERO, _NINE = ord("0"), ord("9")
_MINUS, _POINT = ord("-"), ord(".")
_BLANK, _QUOTE, _DELETE = ord(" "), ord('"'), 127
_RETURN, _NEW_LINE = ord("\r"), ord("\n")


@kernel
def split(text, separator, place, longest, begins, ends):
    """Find the fields of each line.

    Parameters
    ----------
    text : ndarray of shape (n_bytes,), dtype uint8
        Whole lines: the last byte is a line's end.
    separator : ndarray of shape (n_bytes_of_it,), dtype uint8
    place : ndarray of shape (width,), dtype int64
        The row of `begins` and `ends` for each field of a line; -1 for fields that are not needed.
    longest : int
        Longer lines are odd.
    begins, ends : ndarray of shape (n_fields, n_lines), dtype int32
        The fields' first bytes and those behind their last ones. Changed in place.

    Returns
    -------
    n_rows : int
        How many lines hold anything; -1 if one is odd: a quotation mark, a byte that is not
        ASCII, a needed field that is empty or has blanks around it, another number of fields,
        no end of the last line.
    """
    width, m = len(place), len(separator)
    first = separator[0]
    n_rows, field, begin, line, k = 0, 0, 0, 0, 0
    while k < len(text):
        one = text[k]
        # Bytes below the blank may be separators and line ends only.
        plain = one >= _BLANK and one < _DELETE and one != _QUOTE
        if plain and one != first:
            k += 1
            continue
        is_end = one in (_NEW_LINE, _RETURN)
        if one == first:
            same = k + m <= len(text)
            for j in range(1, m):
                same = same and text[k + j] == separator[j]
            if not same:
                if not plain:
                    return -1
                k += 1
                continue
        elif not is_end:
            return -1
        if is_end and k == line:
            # An empty line.
            if one == _RETURN:
                k += 1
                if k == len(text) or text[k] != _NEW_LINE:
                    return -1
            k += 1
            begin = line = k
            continue
        if field >= width:
            return -1
        row = place[field]
        if row >= 0:
            if k == begin or text[begin] <= _BLANK or text[k - 1] <= _BLANK:
                return -1
            begins[row, n_rows], ends[row, n_rows] = begin, k
        field += 1
        if is_end:
            if one == _RETURN:
                k += 1
                if k == len(text) or text[k] != _NEW_LINE:
                    return -1
            k += 1
            if field != width or k - line > longest:
                return -1
            n_rows += 1
            field, line = 0, k
        else:
            k += m
        begin = k
    return n_rows if line == len(text) else -1


@kernel
def whole_numbers(text, begins, ends, values):
    """Read whole numbers; False if one is none, or is not as int64 would be written.

    Parameters
    ----------
    text : ndarray of shape (n_bytes,), dtype uint8
    begins, ends : ndarray of shape (n_rows,), dtype int32
    values : ndarray of shape (n_rows,), dtype int64
        Changed in place.
    """
    for k in range(len(begins)):
        begin, end = begins[k], ends[k]
        negative = text[begin] == _MINUS
        if negative:
            begin += 1
        n_digits = end - begin
        # Eighteen digits always fit into int64; nineteen may not.
        if n_digits < 1 or n_digits > 18:
            return False
        if text[begin] == _ZERO and (n_digits > 1 or negative):
            return False
        value = 0
        for j in range(begin, end):
            digit = int(text[j])
            if digit < _ZERO or digit > _NINE:
                return False
            value = 10 * value + (digit - _ZERO)
        values[k] = -value if negative else value
    return True


@kernel
def decimals(text, begins, ends, values):
    """Read numbers such as 3, 4.5 or -0.25; False if one is written in another way.

    Parameters
    ----------
    text : ndarray of shape (n_bytes,), dtype uint8
    begins, ends : ndarray of shape (n_rows,), dtype int32
    values : ndarray of shape (n_rows,), dtype float64
        Changed in place.
    """
    for k in range(len(begins)):
        begin, end = begins[k], ends[k]
        negative = text[begin] == _MINUS
        if negative:
            begin += 1
        # Of fifteen digits, both the number without its point and the power of ten are exact,
        # so that their ratio is the float64 that is nearest.
        if end - begin > 16:
            return False
        value, n_digits, scale, seen = 0, 0, 1.0, False
        for j in range(begin, end):
            digit = int(text[j])
            if digit == _POINT and not seen:
                seen = True
            elif digit >= _ZERO and digit <= _NINE:
                value = 10 * value + (digit - _ZERO)
                n_digits += 1
                if seen:
                    scale *= 10.0
            else:
                return False
        if n_digits == 0 or n_digits > 15 or (negative and value == 0):
            return False
        values[k] = (-value if negative else value) / scale
    return True


@kernel
def copy_texts(text, begins, ends, letters):
    """Copy fields to rows of equal width, which hold zeros.

    Parameters
    ----------
    text : ndarray of shape (n_bytes,), dtype uint8
    begins, ends : ndarray of shape (n_rows,), dtype int32
    letters : ndarray of shape (n_rows, width), dtype uint8
        Changed in place.
    """
    for k in range(len(begins)):
        begin = begins[k]
        for j in range(ends[k] - begin):
            letters[k, j] = text[begin + j]
