"""The time of each row."""

from __future__ import annotations

import datetime
from numbers import Integral

import numpy as np

from fedrecsk._iso_dates import iso_seconds
from fedrecsk._sklearn import Interval, safe_indexing
from fedrecsk._warnings import warn

ROW_ORDER = "row_order"
CONSTRAINT = [Interval(Integral, 2, None, closed="left"), str]
_MISSING = {"NoneType", "NaTType", "NAType"}  # by name, because pandas is optional
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

    Warns
    -----
    UserWarning
        If the column looks like ratings.
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
    _warn_about_ratings(X, timestamps, times, name)
    return times


def _warn_about_ratings(X, timestamps, times, name):
    """Warn if the times are 1 to 5, half stars or the like, each of them many times."""
    names = list(getattr(X, "columns", []))
    column = names[timestamps] if names and not isinstance(timestamps, str) else timestamps
    is_named = str(column).lower() in ("rating", "ratings", "stars", "score")
    if is_named or _look_like_ratings(times):
        values = np.unique(times)
        shown = ", ".join(map(str, values[:5])) + (", ..." if len(values) > 5 else "")
        warn(
            f"{name} have {len(values)} different values ({shown}). Are they ratings? A split by "
            "time needs the time of each interaction: put it into a column of X and name that "
            f"column, or pass timestamps={ROW_ORDER!r} if the rows are in the order of time.",
        )


def _look_like_ratings(times):
    if times.dtype.kind not in "buif" or times.min() < 0 or times.max() > 10:
        return False
    if (times[:-1] <= times[1:]).all():
        return False  # A table is often sorted by time, here in days perhaps, and rarely by rating.
    n_values = len(np.unique(times))
    return n_values <= 11 and (2 * times % 1 == 0).all() and len(times) >= 10 * n_values


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
            seconds = iso_seconds(times.tolist())
            if seconds is None:
                culprit = next(text for text in times.tolist() if iso_seconds([text]) is None)
                raise ValueError(
                    f"{name} are strings, and {culprit!r} is not an ISO date such as "
                    f"2024-05-01T12:30:00. {_CONVERT}"
                ) from error
            times = seconds
    if times.dtype.kind not in "biufM":
        raise ValueError(
            f"{name} are neither numbers nor dates; the first is {times.flat[0]!r}. {_CONVERT}"
        )
    return times


def _from_objects(times):
    times = [None if type(time).__name__ in _MISSING else time for time in times]
    known = [time for time in times if time is not None]
    if known and all(isinstance(time, str) for time in known) and len(known) == len(times):
        return np.array(times, dtype=str)
    if not all(isinstance(time, datetime.date) for time in known):
        return np.array([np.nan if time is None else time for time in times])
    zoned = [getattr(time, "tzinfo", None) is not None for time in known]
    if any(zoned) and not all(zoned):
        return np.array(times, dtype=object)
    if any(zoned):
        times = [time and time.astimezone(datetime.UTC).replace(tzinfo=None) for time in times]
    return np.array(times, dtype="datetime64[us]")
