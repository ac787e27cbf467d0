"""The one way kernels are compiled."""

from numba import njit

# nogil: blocks run in joblib threads. error_model: zero-division checks halve the speed.
# fastmath stops short of "nnan" and "ninf": the transport must be able to see a NaN.
# forceinline: a kernel within a kernel would be compiled twice, with sums in different orders, and
# which of the two runs would depend on whether they come from numba's cache.
kernel = njit(
    nogil=True,
    cache=True,
    error_model="numpy",
    fastmath={"reassoc", "contract", "nsz"},
    forceinline=True,
)
