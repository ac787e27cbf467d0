"""The forms in which data sets are returned, as in scikit-learn."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from sklearn.utils import Bunch


def make_X(columns: Mapping[str, np.ndarray], *, as_frame: bool) -> np.ndarray | pd.DataFrame:
    """Put columns side by side: int64 if all are, else each with its own type."""
    if as_frame:
        return pd.DataFrame(dict(columns))
    if all(values.dtype == np.int64 for values in columns.values()):
        return np.column_stack(list(columns.values()))
    X = np.empty((len(next(iter(columns.values()))), len(columns)), dtype=object)
    for position, values in enumerate(columns.values()):
        X[:, position] = values
    return X


def make_y(values: np.ndarray | None, *, as_frame: bool) -> np.ndarray | pd.Series | None:
    """Return the ratings as an array, or as a Series named `rating`."""
    return pd.Series(values, name="rating") if as_frame and values is not None else values


def make_bunch(X, y, feature_names: list[str], *, as_frame: bool, **more) -> Bunch:
    """Return a Bunch with scikit-learn's keys; `frame` joins data and target."""
    frame = None
    if as_frame:
        frame = X if y is None else X.assign(rating=y)
    return Bunch(data=X, target=y, frame=frame, feature_names=feature_names, **more)
