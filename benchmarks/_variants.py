"""Estimators whose class constants are changed, as a subclass may."""

from typing import Any


def variant(Estimator: type, *args: Any, **settings: Any) -> Any:
    """Make an estimator with these parameters, where some may be constants of its class."""
    known = Estimator().get_params(deep=False)
    constants = {name: value for name, value in settings.items() if name not in known}
    if unknown := [name for name in constants if not hasattr(Estimator, name)]:
        raise TypeError(f"{Estimator.__name__} has no parameter or constant {unknown[0]}.")
    if constants:
        names = "__module__", "__qualname__", "__doc__"
        constants |= {name: getattr(Estimator, name) for name in names}
        Estimator = type(Estimator.__name__, (Estimator,), constants)
    return Estimator(*args, **{name: settings[name] for name in settings if name in known})
