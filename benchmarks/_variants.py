"""Estimators with other class constants, as a subclass may have."""

from __future__ import annotations

from typing import Any


def with_constants(Method: type, **constants: Any) -> type:
    """Return a subclass of the method with these class constants."""
    if unknown := [name for name in constants if not hasattr(Method, name)]:
        raise TypeError(f"{Method.__name__} has no parameter or constant {unknown[0]}.")
    if not constants:
        return Method
    names = "__module__", "__qualname__", "__doc__"
    constants |= {name: getattr(Method, name) for name in names}
    return type(Method.__name__, (Method,), constants)


def variant(Estimator: type, *args: Any, **settings: Any) -> Any:
    """Return an estimator with these settings; what is no parameter is a class constant."""
    known = Estimator().get_params(deep=False)
    parameters = {name: value for name, value in settings.items() if name in known}
    constants = {name: value for name, value in settings.items() if name not in known}
    return with_constants(Estimator, **constants)(*args, **parameters)
