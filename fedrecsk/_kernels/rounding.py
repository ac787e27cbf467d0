"""Stochastic rounding of every client's change, to int8 or float16.

The arguments are those of `ragged`, and `change` (n_rows, width): the common change, or None.
Whether a number is rounded up says a counter: the client's seed and the number's place,
``row * width + column``. So all numbers can be rounded in any order, or again, with the same
outcome. What `change` gives a client in its own rows is taken back by the same counters.

Rounding to int8 is in integers, with 24 bits after the point, so that no compiler can change it.

Loops over draws write 32 bits to a tile, because a float64 in them would halve their speed.
"""

import numpy as np

from fedrecsk._kernels._jit import kernel, part
from fedrecsk._kernels.shared import own_change

_LARGEST16 = 65504.0
_STRIDE = np.uint32(0x9E3779B1)
_TILE = 1024


@part
def drawn(seed, place):
    """24 random bits of a counter: murmur3's finaliser. Both uint32; an int32."""
    x = np.uint32(seed + np.uint32(place * _STRIDE))
    x = np.uint32(x ^ np.uint32(x >> np.uint32(16)))
    x = np.uint32(x * np.uint32(0x85EBCA6B))
    x = np.uint32(x ^ np.uint32(x >> np.uint32(13)))
    x = np.uint32(x * np.uint32(0xC2B2AE35))
    x = np.uint32(x ^ np.uint32(x >> np.uint32(16)))
    return np.int32(x >> np.uint32(8))


@part
def shifted(seed, start):
    """The seed with which places count from `start`."""
    return np.uint32(seed + np.uint32(np.uint32(start) * _STRIDE))


@kernel
def largest(indptr, rows, values, origin, common, whom, out):
    """Largest absolute number of each client's change, NaN if one of its own is.

    common : None, or rows in descending order of their largest absolute number, and that number
    """
    width = values.shape[1]
    # Sizes are in the order of their bits, with NaN beyond infinity.
    by_column = np.empty(width, np.int64)
    if common is not None:
        held_by = np.full(len(common[0]), -1, np.int32)
    for c in range(len(indptr) - 1):
        if not whom[c]:
            continue
        for f in range(width):
            by_column[f] = 0
        for k in range(indptr[c], indptr[c + 1]):
            i = rows[k]
            for f in range(width):
                size = abs(own_change(values, origin, k, i, f))
                by_column[f] = max(by_column[f], np.float64(size).view(np.int64))
        highest = np.int64(0)
        for f in range(width):
            highest = max(highest, by_column[f])
        most = np.int64(highest).view(np.float64)
        if common is not None:
            for k in range(indptr[c], indptr[c + 1]):
                held_by[rows[k]] = c
            for r in range(len(common[0])):
                if held_by[common[0][r]] != c:
                    most = common[1][r] if most < common[1][r] else most
                    break
        out[c] = most


# ---- int8


@part
def level(x, inverse, draw):
    """The number x in whole steps; `inverse`: 2^24 steps, all float32 but `draw`."""
    fixed = np.int32(x * inverse)
    return np.int32(np.int32(fixed + draw) >> np.int32(24))


@kernel
def add_int8_common(change, seeds, inverses, factors, sums):
    """Add every client's rounding of all rows; four clients at a time. All arrays but seeds flat.

    change float32 (n_places,); seeds uint32, inverses float32, factors float64 (4 n_groups,)
    """
    tile = np.empty((4, _TILE), np.int32)
    for first in range(0, len(change), _TILE):
        part_of, into = change[first : first + _TILE], sums[first : first + _TILE]
        for c in range(0, len(seeds), 4):
            for k in range(4):
                levels(part_of, inverses[c + k], shifted(seeds[c + k], first), tile[k])
            add_four(tile, factors[c : c + 4], into)


@part
def levels(change, inverse, seed, out):
    for j in range(len(change)):
        out[j] = level(change[j], inverse, drawn(seed, np.uint32(j)))


@part
def add_four(tile, factors, sums):
    """Add four rows of integers times their factors."""
    x0, x1, x2, x3 = tile[0], tile[1], tile[2], tile[3]
    f0, f1, f2, f3 = factors[0], factors[1], factors[2], factors[3]
    for j in range(len(sums)):
        sums[j] += (
            f0 * np.float64(x0[j])
            + f1 * np.float64(x1[j])
            + f2 * np.float64(x2[j])
            + f3 * np.float64(x3[j])
        )


@kernel
def add_int8_own(indptr, rows, values, origin, change, seeds, inverses, factors, sums):
    """Add every client's own rows to `sums` (n_rows, width), less what `change` gives there."""
    width = values.shape[1]
    for c in range(len(indptr) - 1):
        seed, inverse, factor = seeds[c], inverses[c], factors[c]
        if factor == 0:
            continue
        for k in range(indptr[c], indptr[c + 1]):
            i = rows[k]
            here = shifted(seed, np.uint32(i) * np.uint32(width))
            for f in range(width):
                draw = drawn(here, np.uint32(f))
                x = np.float32(own_change(values, origin, k, i, f))
                steps = level(x, inverse, draw)
                if change is not None:
                    steps = np.int32(steps - level(change[i, f], inverse, draw))
                sums[i, f] += factor * np.float64(steps)


@part
def square_of_levels(change, inverse, seed):
    total = np.int32(0)
    for j in range(len(change)):
        steps = level(change[j], inverse, drawn(seed, np.uint32(j)))
        total = np.int32(total + np.int32(steps * steps))
    return np.float64(total)


@kernel
def int8_squares(indptr, rows, values, origin, change, seeds, inverses, whom, out):
    """Sum of the squared levels of each client, (n_clients,) float64."""
    width = values.shape[1]
    if change is not None:
        flat = change.ravel()
    for c in range(len(indptr) - 1):
        if not whom[c]:
            continue
        seed, inverse = seeds[c], inverses[c]
        total = 0.0
        if change is not None:
            for first in range(0, len(flat), _TILE):
                total += square_of_levels(
                    flat[first : first + _TILE], inverse, shifted(seed, first)
                )
        for k in range(indptr[c], indptr[c + 1]):
            i = rows[k]
            here = shifted(seed, np.uint32(i) * np.uint32(width))
            for f in range(width):
                draw = drawn(here, np.uint32(f))
                x = np.float32(own_change(values, origin, k, i, f))
                steps = np.float64(level(x, inverse, draw))
                total += steps * steps
                if change is not None:
                    steps = np.float64(level(change[i, f], inverse, draw))
                    total -= steps * steps
        out[c] = total


# ---- float16


@part
def half(x, draw):
    """The float16 next below or above x, or infinity; everything here is exact."""
    exponent = np.int64((np.float64(x).view(np.uint64) >> np.uint64(52)) & np.uint64(0x7FF))
    exponent = max(exponent - 10, np.int64(1023 - 24))
    grid = np.uint64(np.uint64(exponent) << np.uint64(52)).view(np.float64)
    fine = np.uint64(np.uint64(2046 - exponent) << np.uint64(52)).view(np.float64)
    y = grid * np.floor(x * fine + np.float64(draw) * 2.0**-24)
    return y if abs(x) <= _LARGEST16 else x * np.inf


@kernel
def add_float16_own(indptr, rows, values, origin, seeds, weights, sums, held):
    """Add every client's own rows to `sums`, and the weights to `held` (n_rows,)."""
    width = values.shape[1]
    for c in range(len(indptr) - 1):
        seed, weight = seeds[c], weights[c]
        if weight == 0:
            continue
        for k in range(indptr[c], indptr[c + 1]):
            i = rows[k]
            here = shifted(seed, np.uint32(i) * np.uint32(width))
            held[i] += weight
            for f in range(width):
                draw = drawn(here, np.uint32(f))
                sums[i, f] += weight * half(own_change(values, origin, k, i, f), draw)


@kernel
def count_ups(limits, seeds, weights, ups):
    """Add the weight of the clients that round up at each place; four clients at a time.

    limits int32 (n_places,): the draw from which a client rounds up there
    seeds uint32, weights float64 (4 n_groups,); ups float64 (n_places,)
    """
    tile = np.empty((4, _TILE), np.int32)
    for first in range(0, len(limits), _TILE):
        part_of, into = limits[first : first + _TILE], ups[first : first + _TILE]
        for c in range(0, len(seeds), 4):
            for k in range(4):
                are_up(part_of, shifted(seeds[c + k], first), tile[k])
            add_four(tile, weights[c : c + 4], into)


@part
def are_up(limits, seed, out):
    for j in range(len(limits)):
        out[j] = np.int32(drawn(seed, np.uint32(j)) >= limits[j])


@kernel
def take_back_ups(indptr, rows, limits, seeds, weights, ups):
    """Take back what `count_ups` counted in the clients' own rows; (n_rows, width) both."""
    width = limits.shape[1]
    for c in range(len(indptr) - 1):
        seed, weight = seeds[c], weights[c]
        if weight == 0:
            continue
        for k in range(indptr[c], indptr[c + 1]):
            i = rows[k]
            here = shifted(seed, np.uint32(i) * np.uint32(width))
            for f in range(width):
                draw = drawn(here, np.uint32(f))
                ups[i, f] -= weight if draw >= limits[i, f] else 0.0


@kernel
def float16_squares(indptr, rows, values, origin, common, seeds, whom, out):
    """Squared length of each client's rounded change.

    common : None, or limits (n_rows, width), by how much rounding up increases the square of each
        number, and the squared length of each row if all its numbers are rounded down
    """
    width = values.shape[1]
    if common is not None:
        limits, more = common[0].ravel(), common[1].ravel()
        tile = np.empty(_TILE, np.int32)
    for c in range(len(indptr) - 1):
        if not whom[c]:
            continue
        seed, total = seeds[c], 0.0
        if common is not None:
            for first in range(0, len(limits), _TILE):
                are_up(limits[first : first + _TILE], shifted(seed, first), tile)
                for j in range(min(_TILE, len(limits) - first)):
                    total += more[first + j] * np.float64(tile[j])
            for i in range(len(common[2])):
                total += common[2][i]
        for k in range(indptr[c], indptr[c + 1]):
            i = rows[k]
            here = shifted(seed, np.uint32(i) * np.uint32(width))
            for f in range(width):
                draw = drawn(here, np.uint32(f))
                y = half(own_change(values, origin, k, i, f), draw)
                total += y * y
                if common is not None:
                    total -= common[1][i, f] if draw >= common[0][i, f] else 0.0
            if common is not None:
                total -= common[2][i]
        out[c] = total
