"""Top-K of many clients: the largest numbers of each, found by a histogram of their bits."""

import numpy as np

from fedrecsk._utils.jit import kernel

# Bins by the exponent and the first two bits of the mantissa, which follow the bit of the sign.
N_BINS = 2**13
SIGN, SHIFT = np.uint64(1), np.uint64(51)


@kernel
def keep_largest(indptr, values, n_kept, whom):
    """Set all but the largest numbers of each client to zero; of equal ones, the first stay.

    indptr (n_clients + 1,) says where each client's numbers begin in `values`. n_kept (n_clients,)
    stay for the clients of the mask `whom`; all numbers of the others do.
    """
    counts = np.empty(N_BINS, dtype=np.int64)
    inside = np.empty(np.diff(indptr).max())
    for c in range(len(indptr) - 1):
        own = values[indptr[c] : indptr[c + 1]]
        bits, n_nonzero = own.view(np.uint64), 0
        for k in range(len(own)):
            n_nonzero += own[k] != 0
        if not whom[c] or n_nonzero <= n_kept[c]:
            continue
        for b in range(N_BINS):
            counts[b] = 0
        for k in range(len(own)):
            counts[bits[k] << SIGN >> SHIFT] += 1
        # The threshold is among the numbers of the lowest bin that is needed.
        lowest, n_from = np.uint64(N_BINS), 0
        while n_from < n_kept[c]:
            lowest -= np.uint64(1)
            n_from += counts[lowest]
        n_inside, place = 0, n_from - n_kept[c]
        for k in range(len(own)):
            if bits[k] << SIGN >> SHIFT == lowest:
                inside[n_inside] = abs(own[k])
                n_inside += 1
        candidates = np.partition(inside[:n_inside], place)
        threshold, n_excess = candidates[place], 0
        for k in range(place):
            n_excess += candidates[k] == threshold
        for k in range(len(own)):
            own[k] = own[k] if abs(own[k]) >= threshold else 0.0
        last = len(own)
        while n_excess > 0:
            last -= 1
            if abs(own[last]) == threshold:
                own[last] = 0.0
                n_excess -= 1
