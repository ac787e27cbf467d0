"""Parameters: plain Python numbers, with which arithmetic cannot overflow, and their names."""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
from abc import ABCMeta
from collections.abc import Callable, Iterable
from dataclasses import FrozenInstanceError, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, get_type_hints

import numpy as np
from sklearn.base import BaseEstimator

from fedrecsk._utils.constraints import Constraints, constraints_of
from fedrecsk._utils.sklearn_compat import clone, validate_parameter_constraints, validate_params

P = ParamSpec("P")
T = TypeVar("T")
# What other packages call the length of a list.
COUNTS = ("n_recommendations", "n", "k", "top_k", "topk", "n_items", "num", "num_items", "limit")


def suggest(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function, so that an error about an unknown argument names those like it."""
    known = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        unknown = next((name for name in kwargs if name not in known), None)
        if unknown is None:
            return function(*args, **kwargs)
        counts = [name for name in known if name in COUNTS]
        is_count = bool(counts) and unknown.lower() in COUNTS
        likely = f"did you mean {counts[0]}?" if is_count else None
        hint = likely or did_you_mean(unknown, known, f"it takes {', '.join(known)}.")
        raise TypeError(f"{function.__name__} takes no argument {unknown!r}; {hint}")

    return call


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a question about known names like an unknown one, or `otherwise`."""
    by_lower = {one.lower(): one for one in known}
    similar = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)
    return (
        f"did you mean {' or '.join(by_lower[one] for one in similar)}?" if similar else otherwise
    )


class _NamesParameters(ABCMeta):
    """A metaclass whose classes say which parameters they have if they are given another."""

    # Type checkers and `inspect` see the signature of ``__init__``.
    if not TYPE_CHECKING:

        @property
        def __signature__(cls):
            """The parameters of ``__init__`` without self."""
            if cls.__init__ is object.__init__:
                return inspect.Signature()
            signature = inspect.signature(cls.__init__)
            return signature.replace(parameters=list(signature.parameters.values())[1:])

        def __call__(cls, *args, **kwargs):
            """Make an instance."""
            try:
                return super().__call__(*args, **kwargs)
            except TypeError as error:
                known = inspect.signature(cls).parameters
                unknown = [name for name in kwargs if name not in known]
                if not unknown or any(one.kind is one.VAR_KEYWORD for one in known.values()):
                    raise
                hint = did_you_mean(unknown[0], known, f"it has {', '.join(known)}.")
                if unknown[0] in ("init", "init_model") and "warm_start" in known:
                    hint = "to go on from the last fit, set warm_start=True and fit again."
                raise TypeError(
                    f"{cls.__name__} has no parameter {unknown[0]!r}; {hint}"
                ) from error


class PlainParameters(BaseEstimator, metaclass=_NamesParameters):
    """A BaseEstimator that keeps numbers of any type as Python's bool, int and float.

    ``2 * np.int8(100)`` is -56, and ``np.float16(1e-8)`` is 0. Types of parameters say which values
    are valid (:mod:`fedrecsk._utils.constraints`).
    """

    _parameter_constraints = Constraints()

    def __setattr__(self, name, value):
        """Set an attribute; a parameter becomes plain."""
        is_parameter = not (name.startswith("_") or name.endswith("_"))
        super().__setattr__(name, plain(value) if is_parameter else value)

    def set_params(self, **params: Any) -> Self:
        """Set parameters; those of parts by ``<part>__<parameter>``.

        Returns
        -------
        self : object
        """
        known = self.get_params(deep=True)
        for name in params:
            own = name.partition("__")[0]
            if own not in known:
                names = [one for one in known if "__" not in one]
                hint = did_you_mean(own, names, f"it has {', '.join(names)}.")
                raise ValueError(
                    f"Invalid parameter {own!r} for estimator {type(self).__name__}; {hint}"
                )
        return super().set_params(**params)

    def _set(self, **params: Any) -> Self:
        """Set parameters, even those that a subclass's constructor does not take; return self."""
        for name, value in params.items():
            own, nested, of_part = name.partition("__")
            if nested:
                getattr(self, own)._set(**{of_part: value})
            else:
                setattr(self, own, value)
        return self

    def _all_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters, with those that a subclass's constructor does not take."""
        names = sorted(_not_taken(type(self)) & vars(self).keys())
        return {name: getattr(self, name) for name in names} | self.get_params(deep)

    def __sklearn_clone__(self) -> Self:
        """Clone, with what `_set` may have set; called by :func:`sklearn.base.clone`."""
        copy, taken = super().__sklearn_clone__(), self.get_params(deep=False)
        others = {k: v for k, v in self._all_params(deep=False).items() if k not in taken}
        return copy._set(**{name: clone(value, safe=False) for name, value in others.items()})


@functools.cache
def _not_taken(kind):
    """Return parameters of a class's parents that its own constructor does not take."""
    parents = [one for one in kind.__mro__ if issubclass(one, BaseEstimator)]
    return {name for one in parents for name in one._get_param_names()} - {*kind._get_param_names()}


def constant(value: T) -> T:
    """Return a field of parameters that no constructor takes; subclasses may have another value.

    `dataclasses.replace` forgets what a subclass has: build an algorithm anew instead.
    """
    return field(default=value, init=False)


class Value:
    """A dataclass whose fields are set once; unlike a frozen one it derives from parameters."""

    def __setattr__(self, name: str, value: object) -> None:
        """Set a field, for the first time."""
        if name in vars(self) or name not in getattr(self, "__dataclass_fields__", {name}):
            raise FrozenInstanceError(f"cannot assign to {name!r} of {type(self).__name__}")
        super().__setattr__(name, value)


def limits_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return scikit-learn's constraints of a function's arguments, by their types."""
    hints = get_type_hints(function, include_extras=True)
    return {name: constraints_of(hint) for name, hint in hints.items() if name != "return"}


def check_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that fits nothing, so that its arguments are checked by their types."""
    return validate_params(limits_of(function))(function)


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
