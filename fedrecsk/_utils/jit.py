"""How kernels are compiled, and kept on disk for later processes."""

import functools
import warnings

from numba import njit
from numba.core import event

# nogil: blocks run in threads. error_model: zero-division checks halve the speed.
# fastmath stops short of "nnan" and "ninf": a server must be able to see a NaN.
# no_cfunc_wrapper: nobody calls kernels from C, and wrappers take time to compile.
_OPTIONS = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz"},
    "no_cfunc_wrapper": True,
}
# Measures the seconds that this process has spent compiling.
compiling = event.TimingListener()
event.register("numba:compile", compiling)
# Decorate a function that only kernels call, and that is stored within them.
# forceinline: it would be compiled twice, with sums in different orders, and which of the two runs
# would depend on whether they come from numba's cache.
inline = njit(**_OPTIONS, forceinline=True, no_cpython_wrapper=True)
# The same for a function with many arguments that is called at one or two places: numba itself
# copies it there, which takes less time than to compile it on its own first.
inline_early = njit(inline="always")


def kernel(function):
    """Decorate a function that Python calls."""
    try:
        return njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:
        _warn_of_no_cache()
        return njit(**_OPTIONS)(function)


@functools.cache
def _warn_of_no_cache():
    warnings.warn(
        "No folder for numba's cache can be written, so fedrecsk compiles its numerical code again "
        "in every process, which takes some seconds. Set the environment variable NUMBA_CACHE_DIR.",
        RuntimeWarning,
        stacklevel=2,
    )
