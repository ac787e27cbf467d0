"""Arguments whose values are not here, or are not numbers."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pandas as pd

# NumPy's own types, and those of objects.
TIMES = (np.datetime64, np.timedelta64, datetime.date, datetime.time, datetime.timedelta, pd.Period)


def is_dask(values: Any) -> bool:
    """Return whether values are a Dask DataFrame or Series."""
    return hasattr(values, "map_partitions") and hasattr(values, "divisions")


def check_given(values: Any, name: str) -> None:
    """Raise unless all values of an argument are here."""
    if np.ma.is_masked(values):
        raise ValueError(f"{name} has masked values; drop their rows first.")
    if type(values).__name__ == "LazyFrame":
        raise TypeError(f"{name} is a LazyFrame, which has no rows yet; pass {name}.collect().")
    if is_dask(values):
        raise TypeError(
            f"{name} is a Dask {type(values).__name__}; pass {name}.compute(). Only fit, predict, "
            "recommend, score and fold_in take Dask DataFrames, and columns of the same frame as "
            "y, clients and sample_weight."
        )


def check_numbers(values: Any, name: str) -> None:
    """Raise unless all ratings or weights are here, and if the first is a string or a time."""
    check_given(values, name)
    array = np.asarray(values)
    first = array.ravel()[0] if array.size else None
    kind = "weights" if name == "sample_weight" else "ratings"
    if isinstance(first, str):
        raise ValueError(f"{name} holds strings; {kind} must be numbers.")
    if isinstance(first, TIMES):
        raise ValueError(
            f"{name} holds times, such as {first!s}; {kind} must be numbers. Put the time of each "
            "interaction into column 2 of X."
        )
