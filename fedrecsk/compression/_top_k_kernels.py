"""Top-K of many clients: the largest numbers of each, found by a histogram of their bits."""

import numpy as np

from fedrecsk._utils.jit import kernel

# Bins by the exponent and the first bits of the mantissa.
SHIFT = np.uint64(48)
N_BINS = 2**15


@kernel
def keep_largest(indptr, values, n_kept, whom):
    """Set all but the largest numbers of each client to zero; of equal ones, the first stay.

    indptr (n_clients + 1,) says where each client's numbers begin in `values`. n_kept (n_clients,)
    stay for the clients of the mask `whom`; all numbers of the others do.
    """
    counts = np.zeros(N_BINS, dtype=np.int64)
    longest = np.diff(indptr).max()
    sizes, inside = np.empty(longest), np.empty(longest)
    bits = sizes.view(np.uint64)
    for c in range(len(indptr) - 1):
        first, n = indptr[c], indptr[c + 1] - indptr[c]
        if not whom[c] or n_kept[c] >= n:
            continue
        for k in range(n):
            sizes[k] = abs(values[first + k])
        for k in range(n):
            counts[bits[k] >> SHIFT] += 1
        # The threshold is among the numbers of the lowest bin that is needed.
        lowest, n_from = np.int64(bits[:n].max() >> SHIFT) + 1, 0
        while n_from < n_kept[c]:
            lowest -= 1
            n_from += counts[lowest]
        n_inside = 0
        for k in range(n):
            counts[bits[k] >> SHIFT] = 0
            if bits[k] >> SHIFT == lowest:
                inside[n_inside] = sizes[k]
                n_inside += 1
        place = n_from - n_kept[c]
        candidates = np.partition(inside[:n_inside], place)
        threshold, n_equal = candidates[place], 0
        for k in range(place, n_inside):
            n_equal += candidates[k] == threshold
        for k in range(n):
            if sizes[k] == threshold and n_equal > 0:
                n_equal -= 1
            elif sizes[k] <= threshold:
                values[first + k] = 0.0
