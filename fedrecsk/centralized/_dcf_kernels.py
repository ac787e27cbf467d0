"""Discrete collaborative filtering: steps of one side's rows, with the other side's fixed."""

from typing import Any, NamedTuple

import numpy as np

from fedrecsk._utils.integers import FRACTION_BITS, fixed
from fedrecsk._utils.jit import kernel
from fedrecsk.centralized._sgd import Side, grouped


class Problem(NamedTuple):
    """The data of a fit: Rows, and the same ratings by user and by item."""

    rows: Any
    # Their values are w t, where t is the target in bits.
    users: Side
    items: Side
    # Whether an item has ratings.
    rated: np.ndarray
    scale: tuple
    # Squared ratings per unit of the kernel's loss.
    per_error: float

    @classmethod
    def of(cls, rows, scale, n_bits):
        """Return the problem of `rows` (Rows)."""
        low, high = scale
        span = high - low if high > low else 1.0
        pulls = rows.weights * (n_bits * (2 * (rows.values - low) / span - 1))
        items = Side(*grouped(rows.items, rows.n_items, rows.users, pulls, rows.weights))
        return cls(
            rows,
            Side(rows.indptr, rows.items, pulls, rows.weights),
            items,
            np.diff(items.indptr) > 0,
            (low, high),
            (span / (2 * n_bits)) ** 2 / 2.0**FRACTION_BITS / rows.weights.sum(),
        )


def exact(side):
    """Return a side in fixed point, int64, whose sums do not depend on their order."""
    return side._replace(weights=fixed(side.weights), values=fixed(side.values))


def delegate(B, generator):
    """Return the matrix nearest to B, (n, r), whose columns have mean 0, norm sqrt(n), no product.

    Directions that centred B does not span are random, or 0 with too few rows (equations 13 to 16).
    """
    centred = B - B.mean(axis=0, dtype=np.float64)
    n, r = centred.shape
    values, right = np.linalg.eigh(centred.T @ centred)
    spans = values > 1e-10 * max(n, values.max(initial=0))
    left = np.zeros((n, r))
    left[:, spans] = centred @ right[:, spans] / np.sqrt(values[spans])
    missing = min(r, n - 1) - int(spans.sum())
    if missing > 0:
        more = generator.standard_normal((n, missing))
        for _ in range(2):
            # Twice, because once leaves rounding errors.
            more -= more.mean(axis=0)
            more -= left @ (left.T @ more)
        left[:, np.flatnonzero(~spans)[:missing]] = np.linalg.qr(more)[0]
    return np.sqrt(n) * left @ right.T


@kernel
def descend(side, others, linear, signs, n_sweeps):
    """Descend on the signs (int8) of all rows, bit by bit; return the errors and changed bits.

    Minimises ``sum w (t - b.d)^2 - 2 linear.b`` over the signs b of each row, in fixed point: a bit
    becomes the sign of ``sum w (t - b.d + b_k d_k) d_k + linear_k``, and stays where this is 0. A
    row ends after `n_sweeps`, if not 0, or once nothing changes.
    """
    n_bits, most = linear.shape[1], 0
    for row in range(len(linear)):
        most = max(most, side.indptr[row + 1] - side.indptr[row])
    # A sign is -1 as the mask -1 and 1 as 0, because processors have no fast product of int64.
    left, columns = np.empty(most, np.int64), np.empty((n_bits, most), np.int8)
    loss, n_changed = 0.0, 0
    for row in range(len(linear)):
        first, last = side.indptr[row], side.indptr[row + 1]
        own, weights, weight = signs[row], side.weights[first:last], np.int64(0)
        for q in range(last - first):
            other, dot = others[side.others[first + q]], np.int64(0)
            for k in range(n_bits):
                columns[k, q] = other[k] >> 1
                dot += own[k] * other[k]
            left[q] = side.values[first + q] - weights[q] * dot
            weight += weights[q]
        sweep = 0
        while True:
            changed = 0
            for k in range(n_bits):
                column, pull = columns[k], linear[row, k] + weight * own[k]
                for q in range(len(weights)):
                    mask = np.int64(column[q])
                    pull += (left[q] ^ mask) - mask
                if pull == 0 or (pull > 0) == (own[k] > 0):
                    continue
                own[k] = -own[k]
                step = np.int64(2 * own[k])
                for q in range(len(weights)):
                    mask = np.int64(column[q])
                    left[q] -= weights[q] * ((step ^ mask) - mask)
                changed += 1
            n_changed += changed
            sweep += 1
            if changed == 0 or sweep == n_sweeps:
                break
        for q in range(len(weights)):
            rest = float(left[q])
            loss += rest * rest / max(weights[q], 1)
    return loss, n_changed


@kernel
def relax(side, others, linear, ridge, vectors):
    """Sweep once over the real-valued vectors of all rows by coordinate descent.

    Minimises ``sum w (t - p.q)^2 + ridge (sum w) |p|^2 - 2 linear.p`` in one entry after the other.
    Rows without ratings are left as they are.
    """
    n_bits, most = linear.shape[1], 0
    for row in range(len(linear)):
        most = max(most, side.indptr[row + 1] - side.indptr[row])
    left, columns = np.empty(most), np.empty((n_bits, most))
    for row in range(len(linear)):
        first, last = side.indptr[row], side.indptr[row + 1]
        own, weights, weight = vectors[row], side.weights[first:last], 0.0
        for q in range(last - first):
            other, dot = others[side.others[first + q]], 0.0
            for k in range(n_bits):
                columns[k, q] = other[k]
                dot += other[k] * own[k]
            left[q] = side.values[first + q] - weights[q] * dot
            weight += weights[q]
        for k in range(n_bits):
            column = columns[k]
            curvature, pull = ridge * weight, linear[row, k] - ridge * weight * own[k]
            for q in range(len(weights)):
                curvature += weights[q] * column[q] * column[q]
                pull += left[q] * column[q]
            if curvature <= 0.0 or first == last:
                continue
            step = pull / curvature
            for q in range(len(weights)):
                left[q] -= weights[q] * column[q] * step
            own[k] += step
