"""Dates as text, such as 2024-05-01 or 2024-05-01T12:30:00Z, as seconds since 1970."""

from __future__ import annotations

import datetime
import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
# datetime.fromisoformat also reads 20240501, which is rather a number.
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d.*)?", re.ASCII)


def iso_seconds(texts: Iterable[str]) -> NDArray[Any] | None:
    """Read ISO 8601 dates, with or without a time of day and a time zone.

    Parameters
    ----------
    texts : iterable of str
        Dates that have no time zone count as UTC.

    Returns
    -------
    seconds : ndarray or None
        Seconds since 1970 (UTC): int64, or float64 if a date has fractions of a second. None if
        a text is no such date.
    """
    texts = list(texts)
    seconds = {}
    for text in dict.fromkeys(texts):
        moment = _moment(text)
        if moment is None:
            return None
        since = moment - _EPOCH
        whole = 86_400 * since.days + since.seconds
        seconds[text] = whole + since.microseconds / 1e6 if since.microseconds else whole
    values = [seconds[text] for text in texts]
    kind = np.float64 if any(isinstance(value, float) for value in seconds.values()) else np.int64
    return np.array(values, dtype=kind)


def _moment(text: str) -> datetime.datetime | None:
    if not _DATE.fullmatch(text):
        return None
    if text.endswith(" UTC"):
        text = text.removesuffix(" UTC") + "Z"
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
