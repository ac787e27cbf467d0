"""Packed binary codes: similarities of pairs, and the best items of a user.

A code of n_bits is ceil(n_bits / 64) uint64 words, bit k in word k // 64 at place k % 64, set for
+1; the places after the last bit are 0. A user has several codes, its planes: plane p counts
2**p times. Items' codes lie word by word, (n_words, n_items), where a user is compared with many.
"""

import numpy as np

from fedrecsk._utils.jit import inline, kernel

BLOCK = 512


@inline
def popcount(word):
    """Number of set bits of a uint64; LLVM replaces it by the processor's instruction."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    pairs = np.uint64(0x3333333333333333)
    word = (word & pairs) + ((word >> np.uint64(2)) & pairs)
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)


@kernel
def pairs(users, items, user_codes, item_codes, distances):
    """Return the distances of pairs of codes: bits that differ, each of plane p counted 2**p times.

    Parameters
    ----------
    users, items : (n,) integer codes, -1 for unknown
    user_codes : (n_users, n_planes, n_words) uint64
    item_codes : (n_items, n_words) uint64
    distances : (n,) int64, receives them; -1 for pairs with an unknown member
    """
    for q in range(len(users)):
        u, i = users[q], items[q]
        total = np.int64(-1)
        if u >= 0 and i >= 0:
            total = np.int64(0)
            for p in range(user_codes.shape[1]):
                for w in range(user_codes.shape[2]):
                    total += np.int64(popcount(user_codes[u, p, w] ^ item_codes[i, w])) << p
        distances[q] = total


@inline
def measure(user_codes, u, item_words, start, n, near):
    """Measure a user's distances from n items, those from `start` on."""
    for j in range(n):
        near[j] = 0
    for w in range(user_codes.shape[2]):
        for p in range(user_codes.shape[1]):
            plane = user_codes[u, p, w]
            for j in range(n):
                # Unsigned, so that its sign is not checked.
                word = item_words[w, np.uint64(start + j)]
                near[j] += np.int32(popcount(plane ^ word)) << np.int32(p)


@kernel
def similarities(users, user_codes, item_words, farthest, near, board):
    """Return the similarities of users and all items, 1/2 for unknown users.

    Parameters
    ----------
    users : (n_rows,) user codes, -1 for unknown
    user_codes : (n_users, n_planes, n_words) uint64
    item_words : (n_words, n_items) uint64
    farthest : float, the distance of similarity 0
    near : (n_items,) int32, scratch
    board : (n_rows, n_items) float64, receives them
    """
    n_items = item_words.shape[1]
    for row in range(len(users)):
        if users[row] >= 0:
            measure(user_codes, users[row], item_words, np.int64(0), n_items, near)
            for i in range(n_items):
                board[row, i] = 1.0 - near[i] / farthest
        else:
            for i in range(n_items):
                board[row, i] = 0.5


@kernel
def nearest_of_users(users, user_codes, item_words, indptr, barred, near, items, distances):
    """Return the nearest items of several users, nearest first, ties by item code.

    Distances are counted for a block of items at a time; a block without any below the
    current k-th best, the running threshold, is not looked at again.

    Parameters
    ----------
    users : (n_rows,) user codes
    user_codes : (n_users, n_planes, n_words) uint64
    item_words : (n_words, n_items) uint64
    indptr, barred : item codes to leave out of each row, in ascending order
    near : (BLOCK,) int32, scratch
    items, distances : (n_rows, k) int64, receive items and distances; what is not found is left
    """
    n_items, k = item_words.shape[1], items.shape[1]
    for row in range(len(users)):
        n_found, threshold = np.int64(0), np.int64(2**31 - 1)
        # Barred items are passed in their order.
        out, last = indptr[row], indptr[row + 1]
        for start in range(0, n_items, len(near)):
            n = min(np.int64(len(near)), n_items - start)
            measure(user_codes, users[row], item_words, start, n, near)
            least = near[0]
            for j in range(n):
                least = min(least, near[j])
            if least >= threshold:
                continue
            for j in range(n):
                if near[j] >= threshold:
                    continue
                item = start + j
                while out < last and barred[out] < item:
                    out += 1
                if out < last and barred[out] == item:
                    continue
                # Later items come after their equals, so the first of a tie stays first.
                place = min(n_found, k - 1)
                while place > 0 and distances[row, place - 1] > near[j]:
                    distances[row, place] = distances[row, place - 1]
                    items[row, place] = items[row, place - 1]
                    place -= 1
                distances[row, place], items[row, place] = near[j], item
                n_found = min(n_found + 1, k)
                if n_found == k:
                    threshold = distances[row, k - 1]
