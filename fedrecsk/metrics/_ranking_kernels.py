"""Where chosen items stand among many scores, without sorting them."""

import numpy as np

from fedrecsk._utils.jit import inline, kernel


@kernel
def places(scores, starts, indptr, chosen, depth, ahead, tied):
    """Count scores above and equal to chosen candidates'; return a ranking with a NaN, or -1."""
    # `indptr` and `chosen`: positions of the chosen candidates within each ranking, -1 for none.
    # The best of them comes first, then the next best, until one has `depth` candidates ahead: a
    # pass over the scores for each chosen candidate near the top. A score of -inf is not ranked.
    for j in range(len(chosen)):
        ahead[j], tied[j] = depth, 1
    for u in range(len(starts) - 1):
        start, n = starts[u], starts[u + 1] - starts[u]
        first = True
        level = np.inf
        while True:
            best = -np.inf
            for j in range(indptr[u], indptr[u + 1]):
                if chosen[j] < 0:
                    continue
                score = np.float64(scores[start + chosen[j]])
                if score != score:
                    return u
                if score > best and (first or score < level):
                    best = score
            if best == -np.inf:
                break
            higher, lower, equal = compare(scores, start, n, scores.dtype.type(best))
            if higher + lower + equal < n:
                return u
            for j in range(indptr[u], indptr[u + 1]):
                if chosen[j] >= 0 and scores[start + chosen[j]] == best:
                    ahead[j], tied[j] = higher, equal
            if higher + equal >= depth:
                break
            first, level = False, best
    return -1


@inline
def compare(scores, start, n, level):
    """Count how many of n scores are above, below and at the level."""
    higher, lower, equal = 0, 0, 0
    for i in range(n):
        # Unsigned, so that numba leaves out its check for negative numbers.
        score = scores[np.uint64(start + i)]
        higher += score > level
        lower += score < level
        equal += score == level
    return higher, lower, equal


@kernel
def draw(uniform, users, seen_indptr, seen_items, test_indptr, test_items, left, taken, drawn):
    """Draw items neither seen nor tested; return the first row with too few, and how many."""
    # `uniform` in [0, 1) decides the draws; `left` and `taken` are scratch of length n_items.
    n_items, n_draws = len(left), drawn.shape[1]
    for row in range(len(users)):
        for i in range(n_items):
            taken[i] = False
        user = users[row]
        if user >= 0:
            for k in range(seen_indptr[user], seen_indptr[user + 1]):
                taken[seen_items[k]] = True
        for k in range(test_indptr[row], test_indptr[row + 1]):
            if test_items[k] >= 0:
                taken[test_items[k]] = True
        n_left = 0
        for i in range(n_items):
            if not taken[i]:
                left[n_left] = i
                n_left += 1
        if n_left < n_draws:
            return row, n_left
        # Fisher and Yates' shuffle, stopped after n_draws steps.
        for k in range(n_draws):
            other = k + int(uniform[row, k] * (n_left - k))
            left[k], left[other] = left[other], left[k]
            drawn[row, k] = left[k]
    return -1, 0


@kernel
def best(scores, values, columns):
    """Find the columns of each row's largest scores, best first; ties by column order."""
    # What is not finite comes last; `values` is scratch of length k.
    k = columns.shape[1]

    for row in range(len(scores)):
        n_found = 0
        for column in range(scores.shape[1]):
            score = scores[row, column]
            if not np.isfinite(score):
                score = scores.dtype.type(-np.inf)
            if n_found == k and score <= values[k - 1]:
                continue
            n_found = min(n_found + 1, k)
            place = n_found - 1
            while place > 0 and values[place - 1] < score:
                values[place] = values[place - 1]
                columns[row, place] = columns[row, place - 1]
                place -= 1
            values[place] = score
            columns[row, place] = column
