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
# Shares: "Above" and "Below" leave out their end, "Between" both.
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

KINDS = {
    int: Integral,
    float: Real,
    bool: "boolean",
    Sequence: "array-like",
    Callable: callable,
    NoneType: None,
}
# What scikit-learn does not check.
ANYTHING = "no_validation"


class Constraints:
    """An attribute of classes: the constraints of their parameters, by the types of these."""

    def __get__(self, instance: object, owner: type) -> dict[str, Any]:
        """Return what scikit-learn checks of a class's parameters."""
        return {name: constraints_of(hint) for name, hint in types_of(owner).items()}


@cache
def types_of(kind: type) -> dict[str, Any]:
    """Return the types of a class's parameters, those of its parents included.

    A plain type keeps the limits of the parent's: ``n_rounds: int = 3`` is still at least 1.
    """
    parents = [one for one in reversed(kind.__mro__) if hasattr(one, "_get_param_names")]
    names = {name for one in parents for name in one._get_param_names()}
    found: dict[str, Any] = {}
    for parent in reversed(kind.__mro__):
        hints = inspect.get_annotations(parent)
        if not is_dataclass(parent) and "__init__" in vars(parent):
            hints = hints | inspect.get_annotations(parent.__init__)
        for name, hint in hints.items():
            if name not in names or str(hint).startswith(("ClassVar", "typing.ClassVar")):
                continue
            hint = _evaluated(parent, hint, found.get(name, Any))
            if name not in found or hint != _hint(found[name]):
                found[name] = hint
    return found


def _evaluated(parent, hint, otherwise):
    """Return the type in an annotation; `otherwise`, if a user's class has one without meaning."""
    module = sys.modules.get(parent.__module__)
    try:
        return _hint(hint, vars(module) if module else {}, include_extras=True)
    except NameError:
        # It may name what is known to type checkers, or in another process, only.
        if parent.__module__.startswith("fedrecsk."):
            raise
        return otherwise


def _hint(hint, known=None, **options):
    """Return the type in an annotation, which may be text; without limits, unless asked for."""
    return get_type_hints(SimpleNamespace(__annotations__={0: hint}), known, **options)[0]


def constraints_of(hint: Any) -> Any:
    """Return scikit-learn's constraints of a parameter of this type."""
    origin = get_origin(hint)
    if origin is Annotated:
        return list(hint.__metadata__)
    if origin is Literal:
        return [StrOptions(set(get_args(hint)))]
    if origin in (Union, UnionType):
        parts = [constraints_of(part) for part in get_args(hint)]
        return ANYTHING if ANYTHING in parts else [one for part in parts for one in part]
    kind = origin or hint
    if kind in KINDS:
        return [KINDS[kind]]
    is_known = isinstance(kind, type) and kind not in (object, Any)
    return [kind] if is_known and not getattr(kind, "_is_protocol", False) else ANYTHING
