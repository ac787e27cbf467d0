"""How kernels are compiled."""

from numba import njit

# nogil: blocks run in joblib threads. error_model: zero-division checks halve the speed.
# fastmath stops short of "nnan" and "ninf": a server must be able to see a NaN.
# forceinline: a function within a kernel would be compiled twice, with sums in different orders,
# and which of the two runs would depend on whether they come from numba's cache.
_OPTIONS = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz"},
    "forceinline": True,
}

# What Python calls.
kernel = njit(**_OPTIONS, cache=True)

# What only kernels call: no wrappers for Python, and stored within its callers.
part = njit(**_OPTIONS, no_cpython_wrapper=True, no_cfunc_wrapper=True)
