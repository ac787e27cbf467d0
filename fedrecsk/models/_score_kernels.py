"""Scores of users and items, by factors, by weights between items, and by packed binary codes.

A symmetric matrix of items is a triangle, row after row: entry (i, j), j <= i, is number
``i (i + 1) / 2 + j``.

A code of n_bits is ceil(n_bits / 64) uint64 words, bit k in word k // 64 at place k % 64, set for
+1; the places after the last bit are 0. A user has several codes, its planes: plane p counts
2**p times. Items' codes lie word by word, (n_words, n_items), where a user is compared with many.

Users and items are codes, -1 for unknown. Arrays `scores`, `sums` and `distances` are written to.
"""

import numpy as np

from fedrecsk._utils.jit import inline, kernel

BLOCK = 512

# ------------------------------------------------------------------------------- by factors


@kernel
def pairs_by_factors(
    users, items, offset, user_bias, item_bias, user_factors, item_factors, scores
):
    """Score each pair (n,) by offset + b_u + b_i + p_u . q_i; unknown ones contribute nothing."""
    for k in range(len(users)):
        u, i = users[k], items[k]
        score = float(offset)
        if u >= 0:
            score += user_bias[u]
        if i >= 0:
            score += item_bias[i]
        if u >= 0 and i >= 0:
            dot = 0.0
            for f in range(user_factors.shape[1]):
                dot += float(user_factors[u, f]) * float(item_factors[i, f])
            score += dot
        scores[k] = score


# ------------------------------------------------------------------ by weights between items


@kernel
def add_pairs(client_indptr, indptr, places, first, weights, ages, rates, senders, starts, sums):
    """Add up the products of the weights of each user's pairs, a triangle a sending client.

    `places` are the ratings' rows, ascending within a user, from which a client's `first` is
    subtracted; `starts` is where its triangle begins in `sums`, and triangles may coincide. A pair
    is multiplied by ``exp(-rate |difference of its ages|)``, with a rate for each user.
    """
    oldest = 0
    for age in ages:
        oldest = max(oldest, age)
    fades = np.ones(oldest + 1)
    for c in range(len(client_indptr) - 1):
        if not senders[c]:
            continue
        for u in range(client_indptr[c], client_indptr[c + 1]):
            start, stop, oldest = indptr[u], indptr[u + 1], 0
            for a in range(start, stop):
                oldest = max(oldest, ages[a])
            for distance in range(oldest + 1):
                fades[distance] = np.exp(-rates[u] * distance)
            for a in range(start, stop):
                i, weight = places[a] - first[c], weights[a]
                row = starts[c] + i * (i + 1) // 2 - first[c]
                for b in range(start, a + 1):
                    fade = fades[abs(ages[a] - ages[b])]
                    sums[row + places[b]] += weight * weights[b] * fade


@kernel
def add_ordered_pairs(
    client_indptr, indptr, places, first, weights, ages, rates, senders, starts, sums
):
    """Add up as `add_pairs` does, by what came first: `sums` are three triangles a client.

    Of a pair of rows the first triangle is for the same time, which a row has with itself, the
    second for the lower row first, and the third for the higher row first.
    """
    for c in range(len(client_indptr) - 1):
        if not senders[c]:
            continue
        for u in range(client_indptr[c], client_indptr[c + 1]):
            for a in range(indptr[u], indptr[u + 1]):
                i = places[a] - first[c]
                row = starts[c] + i * (i + 1) // 2 - first[c]
                for b in range(indptr[u], a + 1):
                    gap = ages[b] - ages[a]
                    order = 0 if gap == 0 else 1 if gap > 0 else 2
                    product = weights[a] * weights[b] * np.exp(-rates[u] * abs(gap))
                    sums[order, row + places[b]] += product


@kernel
def add_squares(client_indptr, indptr, weights, ages, rates, senders, out):
    """Add up the products of each user's pairs with themselves, (n_clients, 2).

    First those of a direction with itself, then those of a direction with the other one. A pair at
    one time counts half in each.
    """
    for c in range(len(client_indptr) - 1):
        if not senders[c]:
            continue
        for u in range(client_indptr[c], client_indptr[c + 1]):
            for a in range(indptr[u], indptr[u + 1]):
                for b in range(indptr[u], a):
                    gap = abs(ages[b] - ages[a])
                    square = (weights[a] * weights[b] * np.exp(-rates[u] * gap)) ** 2
                    out[c, 0] += square if gap > 0 else square / 2
                    out[c, 1] += 0.0 if gap > 0 else square / 2


@kernel
def pair_numbers(row_indptr, row_items, starts, numbers):
    """Number each client's own pairs of (ascending) items as in the whole catalogue's triangle."""
    for c in range(len(row_indptr) - 1):
        k = starts[c]
        for a in range(row_indptr[c], row_indptr[c + 1]):
            row = row_items[a] * (row_items[a] + 1) // 2
            for b in range(row_indptr[c], a + 1):
                numbers[k] = row + row_items[b]
                k += 1


@kernel
def all_by_weights(users, indptr, items, weights, matrix, scores):
    """Add the matrix's rows of each user's items (CSR), times their weights, to the user's row."""
    for k in range(len(users)):
        if users[k] < 0:
            continue
        for r in range(indptr[users[k]], indptr[users[k] + 1]):
            row, weight = matrix[items[r]], weights[r]
            for i in range(len(row)):
                scores[k, i] += weight * row[i]


@kernel
def pairs_by_weights(users, wanted, indptr, items, weights, matrix, scores):
    """Add to the scores (n,) of pairs of user and item."""
    for k in range(len(users)):
        if users[k] < 0 or wanted[k] < 0:
            continue
        for r in range(indptr[users[k]], indptr[users[k] + 1]):
            scores[k] += weights[r] * matrix[items[r], wanted[k]]


# -------------------------------------------------------------------------- by binary codes


@inline
def popcount(word):
    """Number of set bits of a uint64; LLVM replaces it by the processor's instruction."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    pairs = np.uint64(0x3333333333333333)
    word = (word & pairs) + ((word >> np.uint64(2)) & pairs)
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)


@kernel
def pairs_by_codes(users, items, user_codes, item_codes, distances):
    """Measure pairs of codes: bits that differ; -1 for pairs with an unknown member.

    `user_codes` are (n_users, n_planes, n_words), and `item_codes` here (n_items, n_words).
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
def all_by_codes(users, user_codes, item_words, farthest, near, scores):
    """Write the similarities of known users to all items; 0 at the distance `farthest`.

    `near`, (n_items,) int32, is scratch.
    """
    n_items = item_words.shape[1]
    for row in range(len(users)):
        if users[row] >= 0:
            measure(user_codes, users[row], item_words, np.int64(0), n_items, near)
            for i in range(n_items):
                scores[row, i] = 1.0 - near[i] / farthest


@kernel
def nearest_of_users(users, user_codes, item_words, indptr, barred, near, items, distances):
    """Write the k nearest items of several users, nearest first, ties by item code.

    Distances are counted for a block of items at a time; a block without any below the
    current k-th best, the running threshold, is not looked at again. `barred` are the ascending
    items to leave out of each row, and `near`, (BLOCK,) int32, is scratch. In `items` and
    `distances`, (n_rows, k) int64, what is not found is left.
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
