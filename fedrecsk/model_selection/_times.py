"""When each row happened."""

import datetime
from numbers import Integral

import numpy as np

from fedrecsk._sklearn import Interval, safe_indexing

ROW_ORDER = "row_order"
CONSTRAINT = [Interval(Integral, 2, None, closed="left"), str]
_MISSING = {"NoneType", "NaTType", "NAType"}  # pandas is not at hand everywhere
_CONVERT = "Convert the column, for example with pandas.to_datetime."


def read_times(X, timestamps):
    """Read the timestamps of the rows.

    Parameters
    ----------
    X : ndarray or DataFrame of shape (n_samples, n_features >= 2)
    timestamps : int or str
        Position or name of a column, or "row_order".

    Returns
    -------
    times : ndarray of shape (n_samples,)
        Integers, floats or datetime64.

    Raises
    ------
    ValueError
        If the column is missing, is no time, has missing values, or is all equal.
    """
    if isinstance(timestamps, str) and timestamps == ROW_ORDER:
        return np.arange(X.shape[0])
    _check_column(X, timestamps)
    name = f"timestamps (column {timestamps!r} of X)"
    times = _as_times(np.asarray(safe_indexing(X, timestamps, axis=1)), name)
    missing = np.isnat(times) if times.dtype.kind == "M" else ~np.isfinite(times)
    if missing.any():
        raise ValueError(
            f"{name} are missing or infinite in {missing.sum()} rows, first in row "
            f"{missing.argmax()}; drop these rows first."
        )
    if len(times) > 1 and (times == times[0]).all():
        raise ValueError(
            f"{name} are all equal to {times[0]!s}, so there is no before and after; give another "
            f"column, or timestamps={ROW_ORDER!r} if the rows of X are in the order of time."
        )
    return times


def _check_column(X, timestamps):
    cure = f"or timestamps={ROW_ORDER!r} if the rows of X are in the order of time."
    if isinstance(timestamps, str):
        names = list(getattr(X, "columns", []))
        if not names:
            raise ValueError(
                f"timestamps={timestamps!r} names a column, but X has no column names; give X as "
                f"a DataFrame, or the position of the column, {cure}"
            )
        if timestamps not in names:
            raise ValueError(
                f"timestamps={timestamps!r} is not a column of X, which has {names}; give one of "
                f"them, {cure}"
            )
    elif timestamps >= X.shape[1]:
        raise ValueError(
            f"X has no timestamps: timestamps={timestamps}, but X has {X.shape[1]} columns (0 to "
            f"{X.shape[1] - 1}). Add the time of each interaction as a column after user and "
            f"item, {cure}"
        )


def _as_times(times, name):
    if times.dtype.kind == "O":
        times = _from_objects(times)
    if times.dtype.kind == "U":
        # Numbers beside ids of strings, in one ndarray of strings.
        try:
            times = times.astype(np.float64)
        except ValueError as error:
            raise ValueError(f"{name} are strings: {error}. {_CONVERT}") from error
    if times.dtype.kind not in "biufM":
        raise ValueError(
            f"{name} are neither numbers nor dates; the first is {times.flat[0]!r}. {_CONVERT}"
        )
    return times


def _from_objects(times):
    times = [None if type(time).__name__ in _MISSING else time for time in times]
    known = [time for time in times if time is not None]
    if not all(isinstance(time, datetime.date) for time in known):
        return np.array([np.nan if time is None else time for time in times])
    zoned = [getattr(time, "tzinfo", None) is not None for time in known]
    if any(zoned) and not all(zoned):
        return np.array(times, dtype=object)
    if any(zoned):
        times = [time and time.astimezone(datetime.UTC).replace(tzinfo=None) for time in times]
    return np.array(times, dtype="datetime64[us]")
