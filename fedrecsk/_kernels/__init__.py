"""Compiled kernels: functions of plain arrays.

Submodules load when first touched, because importing numba takes longer than the rest of
the package. Write ``from fedrecsk import _kernels`` and then ``_kernels.scores.pairs(...)``.
"""

import importlib

from fedrecsk._interrupts import postponed

_SUBMODULES = (
    "bayesian_svdpp",
    "dcf",
    "fcf",
    "fedeb",
    "fedfast",
    "fedmf",
    "fedrec",
    "gram",
    "hamming",
    "ids",
    "lightfr",
    "low_rank",
    "ncf",
    "neural",
    "privfedeb",
    "ragged",
    "ranking",
    "rfrec",
    "rounding",
    "scores",
    "semidfegl",
    "sgd",
    "shared",
    "text",
    "topk",
    "wmf",
)


def __getattr__(name):
    if name in _SUBMODULES:
        # Half of numba, imported up to an interrupt, could not be imported again.
        with postponed():
            return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def seconds_compiling():
    """Seconds that this process has spent compiling kernels until now."""
    return importlib.import_module(f"{__name__}._jit").compiling.seconds


def cache_path():
    """The folder in which compiled kernels are cached; None if there is no cache."""
    kernel = importlib.import_module(f"{__name__}.scores").pairs
    # Under NUMBA_DISABLE_JIT=1 it is a plain function.
    return kernel._cache.cache_path if hasattr(kernel, "_cache") else None
