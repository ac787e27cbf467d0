"""Sums of real numbers rounded to fixed point."""

import numpy as np

from fedrecsk._utils.jit import kernel


@kernel
def add_fixed(rows, values, center, scale, total, counts):
    """Add rows to `total` as integers, and count them; return the largest integer in size.

    rows (n_own,) are the numbers of the rows of values (n_own, width). A client sends their sum
    with center (n_rows, width), times `scale`, rounded. total (n_rows, width) and counts (n_rows,)
    are int64.
    """
    largest = 0.0
    for k in range(len(rows)):
        row = rows[k]
        counts[row] += 1
        for j in range(values.shape[1]):
            number = np.rint((np.float64(values[k, j]) + center[row, j]) * scale)
            largest = max(largest, abs(number))
            total[row, j] += np.int64(number)
    return largest
