"""Top-K of every client's change, without writing any of them down.

The arguments are those of `ragged`. The common change comes as `common`: None, or the places of
its numbers that are not 0 in descending order of their sizes, those sizes, and the rank of each
place (as `Common.descending` gives them). A place is ``row * width + column``.

What a client keeps is said by three numbers: of the common change, the places of rank below
`cut`; of its own rows, what is larger than `size_cut`, or as large and not after `place_cut`.
"""

import numpy as np

from fedrecsk._kernels._jit import kernel, part
from fedrecsk._kernels.shared import own_change

_INF32 = np.int32(0x7F800000)
_INF64 = np.int64(0x7FF0000000000000)
_MOST32 = np.float64(np.finfo(np.float32).max)


@kernel
def cuts(indptr, rows, values, origin, common, n_kept, whom, cut, size_cut, place_cut):
    """What each client keeps if it keeps `n_kept` numbers, the first places among equals.

    Clients that are not looked at, or whose own rows have NaN or infinity, keep nothing.
    """
    width = values.shape[1]
    room = 1
    for c in range(len(indptr) - 1):
        room = max(room, (indptr[c + 1] - indptr[c]) * width)
    own, some = np.empty(room), np.empty(room)
    narrow = np.empty(room, np.float32)
    ranks = np.empty(room, np.int32)
    for c in range(len(indptr) - 1):
        cut[c], size_cut[c], place_cut[c] = 0, np.inf, -1
        if not whom[c] or n_kept[c] == 0:
            continue
        first, n, k = indptr[c], (indptr[c + 1] - indptr[c]) * width, np.int64(n_kept[c])
        if not load(rows[first : indptr[c + 1]], values, first, origin, common, own, ranks):
            continue
        # `size`: the largest common one for which there are k as large; `start`: the larger ones.
        start, size, upper = 0, 0.0, np.inf
        if common is not None:
            sizes = common[1]
            at = first_rank(sizes, own, ranks, n, k)
            size = sizes[at] if at < len(sizes) else 0.0
            start = n_larger(sizes, size)
            upper = sizes[start - 1] if start > 0 else np.inf
        cut[c], size_cut[c] = start, size
        n_common = start if common is None else start - n_below(ranks, n, start)
        n_above = n_common + n_beyond(own, n, size)
        if n_above > k:
            need = k - n_common - n_as_large(own, n, upper)
            size_cut[c], t = select(own, n, size, upper, need, some, narrow)
            place_cut[c] = np.int64(rows[first + t // width]) * width + t % width
        elif n_above < k and common is not None:
            theirs = rows[first : indptr[c + 1]]
            cut[c], place_cut[c] = break_ties(
                theirs, width, own, ranks, common, start, size, k - n_above
            )


@part
def load(rows, values, first, origin, common, own, ranks):
    """Write sizes of own numbers, and ranks of the common ones there; whether all are finite."""
    width = values.shape[1]
    n_broken = 0
    for t in range(len(rows)):
        i, at = rows[t], t * width
        for f in range(width):
            x = own_change(values, origin, first + t, i, f)
            own[at + f] = abs(x)
            n_broken += not abs(x) < np.inf
        if common is not None:
            for f in range(width):
                ranks[at + f] = common[2][i, f]
    return n_broken == 0


@part
def first_rank(sizes, own, ranks, n, k):
    """The first rank at which those up to it, and own numbers as large, are k; or how many ranks.

    Own numbers stand in for the common ones at their places, so that it is within n of k. Each
    guess takes as many ranks as the last one missed, times ranks per number between the last two;
    every third halves what is left.
    """
    low, high = max(0, k - 1 - n), min(len(sizes), k - 1 + n)
    guess, old_guess, old_count, slope, n_guesses = k - 1, 0, 0, 1.0, 0
    while low < high:
        if n_guesses % 3 == 2:
            guess = (low + high) // 2
        guess = max(low, min(guess, high - 1))
        count = guess + 1 - n_below(ranks, n, guess + 1) + n_as_large(own, n, sizes[guess])
        if count >= k:
            high = guess
        else:
            low = guess + 1
        if n_guesses > 0 and count != old_count:
            slope = (guess - old_guess) / (count - old_count)
        old_guess, old_count = guess, count
        guess += np.int64(slope * (k - count))
        n_guesses += 1
    return min(low, len(sizes))


@part
def n_below(ranks, n, limit):
    limit = np.int32(limit)
    count = np.int32(0)
    for t in range(n):
        count += np.int32(ranks[t] < limit)
    return np.int64(count)


@part
def n_as_large(own, n, limit):
    count = np.int32(0)
    for t in range(n):
        count += np.int32(own[t] >= limit)
    return np.int64(count)


@part
def n_beyond(own, n, limit):
    count = np.int32(0)
    for t in range(n):
        count += np.int32(own[t] > limit)
    return np.int64(count)


@part
def n_larger(sizes, size):
    """How many of these descending sizes are larger."""
    low, high = 0, len(sizes)
    while low < high:
        middle = (low + high) // 2
        if sizes[middle] > size:
            low = middle + 1
        else:
            high = middle
    return low


@part
def select(own, n, lower, upper, k, some, narrow):
    """The k-th largest own number between two sizes, and which of its equals is the last."""
    # Every number is written, and overwritten unless it counts: branches here would be guesses.
    m = 0
    for t in range(n):
        some[m] = own[t]
        m += (own[t] > lower) & (own[t] < upper)
    for j in range(m):
        narrow[j] = min(some[j], _MOST32)
    # First in float32, by bits, then among those that are the same number there.
    bits = narrow.view(np.int32)
    low = kth_largest(bits, m, k, _INF32)
    n_same, need = 0, k
    for j in range(m):
        need -= bits[j] > low
        some[n_same] = some[j]
        n_same += bits[j] == low
    wide = some.view(np.int64)
    exact = kth_largest(wide, n_same, need, _INF64)
    for j in range(n_same):
        need -= wide[j] > exact
    wide[0] = exact
    size, t = some[0], -1
    while need > 0 and t + 1 < n:
        t += 1
        need -= own[t] == size
    return size, t


@part
def kth_largest(bits, n, k, top):
    """The k-th largest of n numbers from 0 to less than `top`, by halving the range."""
    kind = bits.dtype.type
    low, high = np.int64(0), np.int64(top)
    while high - low > 1:
        middle = kind((low + high) // 2)
        count = kind(0)
        for j in range(n):
            count += kind(bits[j] >= middle)
        if count >= k:
            low = np.int64(middle)
        else:
            high = np.int64(middle)
    return kind(low)


@part
def break_ties(rows, width, own, ranks, common, start, size, need):
    """Cut and last place such that `need` of those that are exactly as large are kept."""
    order, sizes, place_ranks = common
    if size == 0:
        return start, -1
    n, stop = len(rows) * width, n_larger(sizes, np.nextafter(size, 0.0))
    first, last, cut = np.int64(0), np.int64(place_ranks.size), stop
    n_common = stop - n_below(ranks, n, stop) - start + n_below(ranks, n, start)
    if n_common + n_as_large(own, n, size) - n_beyond(own, n, size) == need:
        return cut, last
    # The first place up to which there are as many as needed.
    while first < last:
        place = (first + last) // 2
        count, cut_there = n_ties(rows, width, own, ranks, order, start, stop, size, place)
        if count >= need:
            last, cut = place, cut_there
        else:
            first = place + 1
    return cut, first


@part
def n_ties(rows, width, own, ranks, order, start, stop, size, place):
    """How many of those as large as `size` come up to a place, and the common ones' cut there."""
    low, high = start, stop
    while low < high:
        middle = (low + high) // 2
        if order[middle] <= place:
            low = middle + 1
        else:
            high = middle
    count = low - start
    for t in range(len(rows) * width):
        count -= start <= ranks[t] < low
        if own[t] == size:
            count += np.int64(rows[t // width]) * width + t % width <= place
    return count, low


@part
def kept(x, place, size_cut, place_cut):
    """What the client sends of an own number."""
    size = abs(x)
    return x if size > size_cut or (size == size_cut and place <= place_cut) else 0.0


@kernel
def squared_norms(
    indptr, rows, values, origin, change, common, cut, size_cut, place_cut, whom, out
):
    """Squared length of what each client keeps; `change` (n_rows, width): the common change.

    `out` has, on entry, the squared length of the common numbers of rank below each cut.
    """
    width = values.shape[1]
    for c in range(len(indptr) - 1):
        if not whom[c]:
            continue
        total = 0.0
        for k in range(indptr[c], indptr[c + 1]):
            i = rows[k]
            for f in range(width):
                x = own_change(values, origin, k, i, f)
                y = kept(x, np.int64(i) * width + f, size_cut[c], place_cut[c])
                total += y * y
                if common is not None:
                    other = change[i, f] if common[2][i, f] < cut[c] else 0.0
                    total -= other * other
        out[c] += total


@kernel
def add(indptr, rows, values, origin, change, common, cut, size_cut, place_cut, weights, sums):
    """Add what the clients keep, times their weights, to `sums` (n_rows, width)."""
    width = values.shape[1]
    for c in range(len(indptr) - 1):
        weight, limit, size, last = weights[c], cut[c], size_cut[c], place_cut[c]
        if weight == 0:
            continue
        for k in range(indptr[c], indptr[c + 1]):
            i = rows[k]
            for f in range(width):
                x = own_change(values, origin, k, i, f)
                y = kept(x, np.int64(i) * width + f, size, last)
                if common is not None:
                    y -= change[i, f] if common[2][i, f] < limit else 0.0
                sums[i, f] += weight * y


@kernel
def add_common(change, ranks, cut, weights, sums):
    """Add the common numbers that clients keep, as if no client had own rows."""
    kept_by = np.zeros(change.size + 1)
    for c in range(len(cut)):
        kept_by[cut[c]] += weights[c]
    # From here on: the weight of the clients that keep this rank.
    for r in range(change.size - 1, -1, -1):
        kept_by[r] += kept_by[r + 1]
    for i in range(change.shape[0]):
        for f in range(change.shape[1]):
            if ranks[i, f] < change.size:
                sums[i, f] += kept_by[ranks[i, f] + 1] * change[i, f]
