"""The one way kernels are compiled."""

from numba import njit

# nogil: blocks run in joblib threads. error_model: zero-division checks halve the speed.
# fastmath stops short of "nnan" and "ninf": the transport must be able to see a NaN.
kernel = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
