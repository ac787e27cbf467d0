"""Compiled kernels load when they are first used: numba takes longer to import than the rest."""

import importlib
import time
from collections.abc import Callable
from typing import Any


class LazyModule:
    """A module, by its full name, that is imported when first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, found)
        return found


def seconds_compiling() -> float:
    """Return the seconds that this process has spent compiling kernels until now."""
    compiling = importlib.import_module("fedrecsk._utils.jit").compiling
    return compiling.duration if compiling.done else 0.0


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Return what a function returns, and its seconds without those of compilation."""
    # The first call loads numba, so that its import does not count.
    compiled, start = seconds_compiling(), time.perf_counter()
    found = function(*arguments)
    seconds = time.perf_counter() - start - (seconds_compiling() - compiled)
    return found, max(0.0, seconds)
