"""Methods with other class constants, which papers' recipes need."""

from __future__ import annotations


def with_constants(Method, **constants):
    """Return a subclass of the method with these constants."""
    return type(Method.__name__, (Method,), constants)


def made(Method, parameters, **others):
    """Return an estimator with these parameters; those in capitals are class constants."""
    parameters = parameters | others
    constants = {k: v for k, v in parameters.items() if k.isupper()}
    others = {k: v for k, v in parameters.items() if not k.isupper()}
    return with_constants(Method, **constants)(**others)
