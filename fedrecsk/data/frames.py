"""Tables of the library that the caller uses: polars if it passed polars, otherwise pandas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd


def library_of(given: Any) -> str:
    """Return "polars" for a DataFrame or Series of polars, and "pandas" for all else."""
    polars = nw.dependencies.is_polars_dataframe(given) or nw.dependencies.is_polars_series(given)
    return "polars" if polars else "pandas"


def make_frame(columns: Mapping[Any, Any] | pd.DataFrame, library: str) -> Any:
    """Return columns, by name, as a DataFrame of a library."""
    if library == "pandas":
        return pd.DataFrame(columns)
    arrays = {str(name): np.asarray(values) for name, values in columns.items()}
    # polars finds the type of the values of a list, and not of an array of objects.
    plain = {name: one.tolist() if one.dtype == object else one for name, one in arrays.items()}
    return nw.from_dict(plain, backend=library).to_native()


def as_pandas(given: Any) -> Any:
    """Return a DataFrame of polars as one of pandas, and all else as it is."""
    if not nw.dependencies.is_polars_dataframe(given):
        return given
    # DataFrame.to_pandas needs pyarrow.
    return pd.DataFrame({one.name: one.to_numpy() for one in nw.from_native(given).iter_columns()})


def place_of_ids(given: Any) -> str:
    """Return where `with_index` finds the ids of a DataFrame, for errors."""
    return "first column" if library_of(given) == "polars" else "index"


def with_index(given: Any) -> Any:
    """Return a DataFrame of polars as one of pandas, its first column as the index."""
    frame = as_pandas(given)
    return frame if frame is given or not len(frame.columns) else frame.set_index(frame.columns[0])
