"""Packed binary codes: unpacking, similarities of pairs, and the best items of a user.

A code of n_bits is ceil(n_bits / 64) uint64 words, bit k in word k // 64 at place k % 64, set for
+1; the places after the last bit are 0. A user has several codes, its planes: plane p counts
2**p times.
"""

import numpy as np
from numba import types
from numba.extending import intrinsic

from fedrecsk._kernels._jit import kernel, part

BLOCK = 512


@intrinsic
def popcount(typingctx, word):
    """Number of set bits of a uint64."""

    def codegen(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    if isinstance(word, types.Integer) and word.bitwidth == 64:
        return types.uint64(types.uint64), codegen
    return None


@part
def pack_row(signs, code):
    """Write numbers, of which those above 0 are +1, as a code."""
    for w in range(len(code)):
        word = np.uint64(0)
        for k in range(64 * w, min(64 * w + 64, len(signs))):
            word |= np.uint64(signs[k] > 0) << np.uint64(k - 64 * w)
        code[w] = word


@part
def unpack_row(code, signs):
    """Write a code as +1 and -1, the inverse of :func:`pack_row`."""
    for w in range(len(code)):
        word = code[w]
        for k in range(64 * w, min(64 * w + 64, len(signs))):
            signs[k] = (np.int64((word >> np.uint64(k - 64 * w)) & np.uint64(1)) << 1) - 1


@kernel
def pack(signs, codes):
    """Write rows of numbers, of which those above 0 are +1, as codes.

    Parameters
    ----------
    signs : (n, n_bits)
    codes : (n, n_words) uint64, receives the codes
    """
    for i in range(len(codes)):
        pack_row(signs[i], codes[i])


@kernel
def unpack(codes, signs):
    """Write codes as rows of +1 and -1, the inverse of :func:`pack`."""
    for i in range(len(codes)):
        unpack_row(codes[i], signs[i])


@part
def distance(planes, code):
    """Bits in which a user's planes differ from a code, each plane counted 2**p times."""
    total = 0
    for p in range(planes.shape[0]):
        differ = 0
        for w in range(len(code)):
            differ += np.int64(popcount(planes[p, w] ^ code[w]))
        total += differ << p
    return total


@kernel
def pairs(users, items, user_codes, item_codes, distances):
    """Distances of pairs of codes.

    Parameters
    ----------
    users, items : (n,) integer codes, -1 for unknown
    user_codes : (n_users, n_planes, n_words) uint64
    item_codes : (n_items, n_words) uint64
    distances : (n,) int64, receives them; -1 for pairs with an unknown member
    """
    for q in range(len(users)):
        u, i = users[q], items[q]
        distances[q] = distance(user_codes[u], item_codes[i]) if u >= 0 and i >= 0 else -1


@kernel
def board(users, user_codes, item_codes, distances):
    """Distances of all items, (n_rows, n_items) int64, -1 for the rows of unknown users."""
    for row in range(len(users)):
        u = users[row]
        for i in range(item_codes.shape[0]):
            distances[row, i] = distance(user_codes[u], item_codes[i]) if u >= 0 else -1


@part
def first_not_below(ascending, value):
    """np.searchsorted, which takes long to compile."""
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) >> 1
        if ascending[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@part
def nearest(planes, item_codes, barred, items, distances):
    """The nearest items of one user, nearest first, ties by item code.

    Distances are counted for a block of items at a time; a block without any below the
    current k-th best, the running threshold, is not looked at again.

    Parameters
    ----------
    planes : (n_planes, n_words) uint64
    item_codes : (n_items, n_words) uint64
    barred : (n_barred,) item codes in ascending order, which are left out
    items, distances : (k,) int64, receive the items found and their distances

    Returns
    -------
    n_found : int
        k, or fewer if there are not as many items.
    """
    k, n_found = len(items), 0
    n_items, n_words = item_codes.shape
    flat = item_codes.ravel()
    near = np.empty(BLOCK, dtype=np.int32)
    threshold = np.iinfo(np.int32).max
    for start in range(0, n_items, BLOCK):
        n = min(BLOCK, n_items - start)
        if n_words == 1:
            least = _near_words(planes[:, 0], flat[start : start + n], near)
        else:
            least = _near_codes(planes, item_codes[start : start + n], near)
        if least >= threshold:
            continue
        for j in range(n):
            if near[j] >= threshold:
                continue
            item = start + j
            place = first_not_below(barred, item)
            if place < len(barred) and barred[place] == item:
                continue
            # Later items come after their equals, so the first of a tie stays first.
            position = min(n_found, k - 1)
            while position > 0 and distances[position - 1] > near[j]:
                distances[position], items[position] = (
                    distances[position - 1],
                    items[position - 1],
                )
                position -= 1
            distances[position], items[position] = near[j], item
            n_found = min(n_found + 1, k)
            if n_found == k:
                threshold = distances[k - 1]
    return n_found


@part
def _near_words(words, codes, near):
    """Distances of codes of one word; returns the least."""
    n = len(codes)
    word = words[0]
    for j in range(n):
        near[j] = np.int32(popcount(word ^ codes[j]))
    for p in range(1, len(words)):
        word = words[p]
        for j in range(n):
            near[j] += np.int32(popcount(word ^ codes[j])) << p
    least = near[0]
    for j in range(n):
        least = min(least, near[j])
    return least


@part
def _near_codes(planes, codes, near):
    """Distances of codes of several words; returns the least."""
    least = np.int32(np.iinfo(np.int32).max)
    for j in range(len(codes)):
        near[j] = np.int32(distance(planes, codes[j]))
        least = min(least, near[j])
    return least


@kernel
def nearest_of_users(users, user_codes, item_codes, choice, indptr, barred, items, distances):
    """The nearest items of several users.

    Parameters
    ----------
    users : (n_rows,) user codes
    user_codes : (n_users, n_planes, n_words) uint64
    item_codes : (n_items, n_words) uint64
    choice : (n_choice,) item codes to choose from in ascending order; empty for all
    indptr, barred : item codes to leave out of each row, in ascending order
    items, distances : (n_rows, k) int64, receive items and distances; what is not found is left
    """
    # Items to choose from are numbered anew, and so is what is left out.
    n_choice = len(choice)
    chosen = np.empty((n_choice, item_codes.shape[1]), dtype=np.uint64)
    place = np.empty(len(item_codes) if n_choice else 0, dtype=np.int64)
    inside = np.empty(len(place), dtype=np.int64)
    for i in range(len(place)):
        place[i] = -1
    for j in range(n_choice):
        place[choice[j]] = j
        for w in range(item_codes.shape[1]):
            chosen[j, w] = item_codes[choice[j], w]
    for row in range(len(users)):
        planes, out = user_codes[users[row]], barred[indptr[row] : indptr[row + 1]]
        if n_choice == 0:
            nearest(planes, item_codes, out, items[row], distances[row])
            continue
        n_inside = 0
        for i in out:
            if place[i] >= 0:
                inside[n_inside] = place[i]
                n_inside += 1
        n_found = nearest(planes, chosen, inside[:n_inside], items[row], distances[row])
        for j in range(n_found):
            items[row, j] = choice[items[row, j]]
