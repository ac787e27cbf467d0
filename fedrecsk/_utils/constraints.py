"""What values a parameter may have: types that say it, and scikit-learn's constraints from them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from functools import cache
from numbers import Integral, Real
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from fedrecsk._utils.sklearn_compat import Interval, StrOptions

AtLeast0 = Annotated[int, Interval(Integral, 0, None, closed="left")]
AtLeast1 = Annotated[int, Interval(Integral, 1, None, closed="left")]
AtLeast2 = Annotated[int, Interval(Integral, 2, None, closed="left")]
NotNegative = Annotated[float, Interval(Real, 0, None, closed="left")]
Positive = Annotated[float, Interval(Real, 0, None, closed="neither")]
Finite = Annotated[float, Interval(Real, None, None, closed="neither")]
# Shares, by their ends: a square bracket includes an end, and "open" none.
From0To1 = Annotated[float, Interval(Real, 0, 1, closed="both")]
From0Below1 = Annotated[float, Interval(Real, 0, 1, closed="left")]
Above0To1 = Annotated[float, Interval(Real, 0, 1, closed="right")]
Between0And1 = Annotated[float, Interval(Real, 0, 1, closed="neither")]
# Any number of threads but 0.
Jobs = Annotated[
    int | None,
    Interval(Integral, 1, None, closed="left"),
    Interval(Integral, None, -1, closed="right"),
    None,
]
Seed = Annotated[int | np.random.RandomState | None, "random_state"]
RatingRange = Annotated[tuple[float, float] | None, tuple, list, None]
# The distance in rows at which what is old counts half.
HalfLife = Positive | Literal["auto"] | None
# The position of a column of X beyond users and items, or its name.
Column = Annotated[int | str, Interval(Integral, 2, None, closed="left"), str]
if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pandas import DataFrame
    from scipy.sparse import spmatrix as SparseMatrix
else:
    ArrayLike = DataFrame = Annotated[object, "array-like"]
    SparseMatrix = Annotated[object, "sparse matrix"]

KINDS = {int: Integral, float: Real, bool: "boolean", Sequence: "array-like", Callable: callable}


class Constraints:
    """An attribute of classes: the constraints of their parameters, by the types of these."""

    def __get__(self, instance: object, owner: type) -> dict[str, Any]:
        """Return the constraints, for scikit-learn."""
        return {name: constraints_of(hint) for name, hint in types_of(owner).items()}


@cache
def types_of(kind: type) -> dict[str, Any]:
    """Return the types of a class's parameters, those of its parents included.

    Raises
    ------
    TypeError
        If a type has a name that is imported for type checkers only.
    """
    parents = [one for one in reversed(kind.__mro__) if hasattr(one, "_get_param_names")]
    names = {name for one in parents for name in one._get_param_names()}
    found = {}
    for parent in reversed(kind.__mro__):
        hints = inspect.get_annotations(parent)
        if not is_dataclass(parent) and "__init__" in vars(parent):
            hints = hints | inspect.get_annotations(parent.__init__)
        for name in names & hints.keys():
            # A class may let a parent's parameter be a constant.
            if not str(hints[name]).startswith(("ClassVar", "typing.ClassVar")):
                found[name] = _evaluated(parent, name, hints[name])
    return found


def _evaluated(parent, name, hint):
    """Return the type of a class's parameter, whose annotation may be text."""
    known, holder = vars(sys.modules[parent.__module__]), SimpleNamespace(__annotations__={0: hint})
    try:
        return get_type_hints(holder, known, include_extras=True)[0]
    except NameError as error:
        raise TypeError(
            f"The type of {parent.__name__}'s parameter {name}, {hint}, cannot be read: {error}. "
            "Import what it names, and not only for type checkers."
        ) from error


def constraints_of(hint: Any) -> Any:
    """Return scikit-learn's constraints of a parameter of this type."""
    origin = get_origin(hint)
    if hint in (Any, object):
        return "no_validation"
    if origin is Annotated:
        return list(hint.__metadata__)
    if origin is Literal:
        return [StrOptions(set(get_args(hint)))]
    if origin in (Union, UnionType):
        return [one for part in get_args(hint) for one in constraints_of(part)]
    kind = origin or hint
    return [None if kind is NoneType else KINDS.get(kind, kind)]
