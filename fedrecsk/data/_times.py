"""Read the time of each row."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd

from fedrecsk._utils.sklearn_compat import safe_indexing
from fedrecsk._utils.user_warnings import warn
from fedrecsk.data._checks import check_resolution
from fedrecsk.data._mistakes import EPOCH

ROW_ORDER = "row_order"
# Seconds of a day, and the number of days from 1970 on that have a column.
DAY, N_DAYS = 86_400, 2**16
# Seconds, milliseconds, microseconds and nanoseconds: how many there are in a second.
UNITS = 1, 10**3, 10**6, 10**9
# Seconds of a minute, like which 20240131 looks, too, and of an hour.
LONG_UNITS = 60, 3600
# Times of one unit since 1970 differ by less than this factor, and units by more.
FAR = 20
_CONVERT = "Convert the column, for example with pandas.to_datetime."


def read_times(X, timestamps):
    """Return the times of the rows as integers, floats or datetime64."""
    if isinstance(timestamps, str) and timestamps == ROW_ORDER:
        return np.arange(X.shape[0])
    times, name = _column_of_times(X, timestamps)
    missing = _is_missing(times)
    if missing.any():
        raise ValueError(
            f"{name} are missing or infinite in {missing.sum()} rows, first in row "
            f"{missing.argmax()}; drop these rows first."
        )
    _check_order(times, name)
    _warn_about_ratings(X, timestamps, times, name)
    _warn_about_units(times, name)
    return times


def times_of_histories(X, timestamps, *, all_users):
    """Return the times of the rows as floats, NaN where missing; dates in microseconds.

    Only the times of all users must differ: one user may have one row.
    """
    if isinstance(timestamps, str) and timestamps == ROW_ORDER:
        return np.arange(X.shape[0], dtype=np.float64)
    times, name = _column_of_times(X, timestamps)
    missing = _is_missing(times)
    _check_any(missing, name)
    if all_users:
        _check_order(times[~missing], name)
        _warn_about_ratings(X, timestamps, times[~missing], name)
    _warn_about_units(times[~missing], name)
    if times.dtype.kind == "M":
        times = times.astype("datetime64[us]").astype(np.int64)
    return np.where(missing, np.nan, times.astype(np.float64))


def days_of(X, timestamps, *, all_users):
    """Return the day of each row since 1970 as floats, NaN where missing; numbers are seconds."""
    times, name = _column_of_times(X, timestamps)
    missing = _is_missing(times)
    if all_users:
        _check_any(missing, name)
    seconds = times.astype("datetime64[s]").astype(np.int64) if times.dtype.kind == "M" else times
    days = np.where(missing, np.nan, seconds.astype(np.float64)) // DAY
    wrong = (days < 0) | (days >= N_DAYS)
    if wrong.any() or (all_users and len(days) > 1 and (days == 0).all()):
        first = times[wrong.argmax()]
        raise ValueError(
            f"{name} should be dates, or seconds since 1970, to tell days apart; one is {first!s}. "
            "Convert the column, or set timestamps=None to leave days out."
        )
    if all_users:
        _warn_about_units(times[~missing], name)
        _warn_about_days(times[~missing], name)
    return days


def check_unit(before, now, timestamps):
    """Raise if new times of histories are not in the unit of those before; NaN is none."""
    before, now = before[~np.isnan(before)], now[~np.isnan(now)]
    if not len(before) or not len(now):
        return
    # Not the extremes: a few rows may have 0 for a missing time.
    old, new = np.median(before), np.median(now)
    is_epochal = any(_are_epochal(one, unit) for one in (old, new) for unit in UNITS)
    if is_epochal and not (old < FAR * new and new < FAR * old):
        raise ValueError(
            f"timestamps (column {timestamps!r} of X) are about {new:.3g}, and in the last fit "
            f"about {old:.3g} (dates are microseconds since 1970), so the order of old and new "
            "rows would be wrong. Give times in the unit of the last fit."
        )


def _column_of_times(X, timestamps):
    """Return the times of a column of X, and what errors call them."""
    _check_column(X, timestamps)
    name = f"timestamps (column {timestamps!r} of X)"
    return as_times(np.asarray(safe_indexing(X, timestamps, axis=1)), name), name


def _is_missing(times):
    return np.isnat(times) if times.dtype.kind == "M" else ~np.isfinite(times)


def _check_any(missing, name):
    """Raise if all times are missing."""
    if missing.all():
        raise ValueError(
            f"{name} are missing in all rows; give another column, or timestamps=None to leave "
            "time out."
        )


def _check_order(times, name):
    """Raise if all times are equal."""
    if len(times) > 1 and (times == times[0]).all():
        raise ValueError(
            f"{name} are all equal to {times[0]!s}, so rows have no order in time; give another "
            f"column, or timestamps={ROW_ORDER!r} if the rows of X are in the order of time."
        )


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
            f"column, or pass timestamps={ROW_ORDER!r} if the rows are in the order of time."
        )


def _warn_about_units(times, name):
    """Warn of numbers in two units, and of dates that a wrong unit has put into January 1970."""
    if times.dtype.kind == "M":
        seconds = times.astype("datetime64[us]").astype(np.int64) / 10**6
        wrong = np.any([_are_epochal(seconds, 1 / unit) for unit in UNITS if unit > 1], axis=0)
        if wrong.any():
            warn(
                f"{name} lie in January 1970 in {wrong.mean():.0%} of the rows, such as "
                f"{times[wrong.argmax()]!s}, as numbers do that are read in too small a unit. Give "
                "the unit: pandas.to_datetime(column, unit='s') for seconds, 'ms' for milliseconds."
            )
        return
    found = [times[one][0] for unit in UNITS if (one := _are_epochal(times, unit)).any()]
    if len(found) > 1:
        warn(
            f"{name} mix units: {found[0]:.0f} and {found[1]:.0f}, for example, look like times "
            "since 1970, one of them in a unit at least 1,000 times smaller, so that rows are out "
            "of order. Convert them to one unit."
        )


def _warn_about_days(times, name):
    """Warn if numbers that are read as seconds look like hours, minutes or YYYYMMDD."""
    if times.dtype.kind == "M" or not any(_are_epochal(times, 1 / u).all() for u in LONG_UNITS):
        return
    ends = np.array([times.min(), times.max()]).astype("datetime64[s]").astype("datetime64[D]")
    warn(
        f"{name}, such as {times[0]:.0f}, are read as seconds since 1970, so that they lie between "
        f"{ends[0]} and {ends[1]}. If they are hours, minutes or dates like 20240131, convert the "
        "column: pandas.to_datetime(column, unit='h'), or format='%Y%m%d'."
    )


def _are_epochal(times, per_second):
    """Return which numbers are times of 1990 to 2035, of so many a second."""
    return (times >= EPOCH[0] * per_second) & (times <= EPOCH[1] * per_second)


def _look_like_ratings(times):
    if times.dtype.kind not in "buif" or times.min() < 0 or times.max() > 10:
        return False
    if (times[:-1] <= times[1:]).all():
        return False  # A table is often sorted by time, here in days perhaps, and rarely by rating.
    n_values = len(np.unique(times))
    return n_values <= 11 and (2 * times % 1 == 0).all() and len(times) >= 10 * n_values


def _check_column(X, timestamps):
    hint = f"or timestamps={ROW_ORDER!r} if the rows of X are in the order of time."
    if isinstance(timestamps, str):
        names = list(getattr(X, "columns", []))
        if not names:
            raise ValueError(
                f"timestamps={timestamps!r} names a column, but X has no column names; give X as "
                f"a DataFrame, or the position of the column, {hint}"
            )
        if timestamps not in names:
            raise ValueError(
                f"timestamps={timestamps!r} is not a column of X, which has {names}; give one of "
                f"them, {hint}"
            )
    elif timestamps >= X.shape[1]:
        raise ValueError(
            f"X has no timestamps: timestamps={timestamps}, but X has {X.shape[1]} columns (0 to "
            f"{X.shape[1] - 1}). Add the time of each interaction as a column after user and "
            f"item, {hint}"
        )


def as_times(column, name):
    """Return numbers or dates in UTC; NaN or NaT where a time is missing."""
    times = pd.Series(column)
    known = times.dropna()
    if len(known) and all(isinstance(time, str) for time in known):
        # Numbers are strings, too, beside ids of strings in one ndarray.
        times = _from_strings(times, known, name)
    elif times.dtype.kind == "M" or (times.dtype == object and _are_dates(known)):
        times = pd.to_datetime(times, utc=True).dt.tz_localize(None)
    elif times.dtype == object:
        times = times.where(times.notna(), np.nan).infer_objects()
    times = times.to_numpy()
    if times.dtype.kind not in "biufM":
        raise ValueError(
            f"{name} are neither numbers nor dates; the first is {times[0]!r}. {_CONVERT}"
        )
    if times.dtype.kind == "f" and times.dtype.itemsize < 8:
        known = times[np.isfinite(times)]
        check_resolution(known, name, "give them as integers, for example in a DataFrame")
    return times


def _are_dates(known):
    """Return whether all are dates, all or none of them with a time zone."""
    zoned = [getattr(time, "tzinfo", None) is not None for time in known]
    return all(isinstance(time, datetime.date) for time in known) and len(set(zoned)) < 2


def _from_strings(times, known, name):
    values = pd.to_numeric(times, errors="coerce").astype(float)
    if values[known.index].notna().all():
        return values
    dates = pd.to_datetime(times, format="ISO8601", utc=True, errors="coerce").dt.tz_localize(None)
    wrong = known[dates[known.index].isna()]
    if len(wrong):
        raise ValueError(
            f"{name} are strings, and {wrong.iloc[0]!r} is not an ISO date such as "
            f"2024-05-01T12:30:00. {_CONVERT}"
        )
    return dates
