"""Numbering ids by a hash table."""

import numpy as np

from fedrecsk._kernels._jit import kernel

# 2**64 divided by the golden ratio: its product spreads neighbouring keys over the table.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@kernel
def number(keys, start, stop, n, slots, shift, distinct, first, codes):
    """Number keys in the order in which they appear first, until half the table is full.

    Parameters
    ----------
    keys : ndarray of shape (n_keys,), dtype uint64
    start, stop : int
        The keys to number, those before `start` are numbered already.
    n : int
        Distinct keys so far.
    slots : ndarray of shape (2**k,), dtype int32
        The table: numbers of keys, -1 where there is none. Changed in place.
    shift : uint64
        64 - k.
    distinct, first : ndarray of shape (2**k // 2,), dtypes uint64 and int64
        The distinct keys and where each appeared first. Changed in place.
    codes : ndarray of shape (n_keys,), dtype int32
        The keys' numbers. Changed in place.

    Returns
    -------
    reached : int
        `stop`, or the first key that has found no room.
    n : int
    """
    mask = len(slots) - 1
    for k in range(start, stop):
        key = keys[k]
        slot = np.int64((key * _SPREAD) >> shift)
        code = slots[slot]
        while code >= 0 and distinct[code] != key:
            slot = (slot + 1) & mask
            code = slots[slot]
        if code < 0:
            if n == len(distinct):
                return k, n
            code = np.int32(n)
            slots[slot], distinct[n], first[n] = code, key, k
            n += 1
        codes[k] = code
    return stop, n
