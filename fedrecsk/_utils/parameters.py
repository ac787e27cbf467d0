"""Parameters as plain Python numbers, with which arithmetic cannot overflow."""

from __future__ import annotations

import operator
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from fedrecsk._utils.sklearn_compat import validate_parameter_constraints


class PlainParameters(BaseEstimator):
    """A BaseEstimator that keeps numbers of any type as Python's bool, int and float.

    ``2 * np.int8(100)`` is -56, and ``np.float16(1e-8)`` is 0.
    """

    def __setattr__(self, name, value):
        """Set an attribute; a parameter becomes plain."""
        is_parameter = not (name.startswith("_") or name.endswith("_"))
        super().__setattr__(name, plain(value) if is_parameter else value)


def checked(caller: str, constraints: dict[str, list], **values: Any) -> list[Any]:
    """Check arguments against scikit-learn's constraints and return them as plain numbers."""
    values = {name: plain(value) for name, value in values.items()}
    validate_parameter_constraints(constraints, values, caller_name=caller)
    return list(values.values())


def plain(value: Any) -> Any:
    """Return a number, or the numbers in a tuple, as Python's own; other objects as they are."""
    if type(value) is tuple:
        numbers = tuple(map(plain, value))
        # scikit-learn's clone requires that an object which needs no change stays the same.
        return value if all(map(operator.is_, numbers, value)) else numbers
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value
