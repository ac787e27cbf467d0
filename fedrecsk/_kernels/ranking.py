"""Where chosen items stand among many scores, without sorting them."""

import numpy as np

from fedrecsk._kernels._jit import kernel, part


@kernel
def places(scores, starts, indptr, chosen, depth, ahead, tied):
    """Count, for chosen candidates of each ranking, how many score higher and how many equal.

    Of each ranking, the best chosen candidate comes first, then the next best, until one
    has `depth` candidates ahead; so the cost is a pass over the scores for each chosen
    candidate near the top, however many are chosen.

    Parameters
    ----------
    scores : (n_scores,) float; -inf takes a candidate out of the ranking
    starts : (n_rankings + 1,), scores of each ranking
    indptr : (n_rankings + 1,), chosen candidates of each ranking
    chosen : (n_chosen,), position within the ranking, -1 for an item that is no candidate
    depth : int, places below this one are not distinguished
    ahead : (n_chosen,) int64, receives how many score higher; `depth` or more for a
        candidate that has so many ahead or is out of the ranking
    tied : (n_chosen,) int64, receives how many score the same, itself included

    Returns
    -------
    broken : int
        The first ranking that a NaN was met in, -1 for none.
    """
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


@part
def compare(scores, start, n, level):
    """How many of n scores are above, below and at the level."""
    higher, lower, equal = 0, 0, 0
    for i in range(n):
        # Unsigned, so that numba leaves out its check for negative numbers.
        score = scores[np.uint64(start + i)]
        higher += score > level
        lower += score < level
        equal += score == level
    return higher, lower, equal


@kernel
def exclude(board, users, seen_indptr, seen_items, test_indptr, test_items, under_test):
    """Set the scores of each user's seen items to -inf, in place, but for those under test.

    Parameters
    ----------
    board : (n_rows, n_items) float
    users : (n_rows,), user code of each row, -1 for unknown
    seen_indptr, seen_items : items that each user code has seen
    test_indptr, test_items : items under test of each row of `board`, -1 for unknown
    under_test : (n_items,) bool, scratch of False
    """
    for row in range(len(users)):
        user = users[row]
        if user < 0:
            continue
        for k in range(test_indptr[row], test_indptr[row + 1]):
            if test_items[k] >= 0:
                under_test[test_items[k]] = True
        for k in range(seen_indptr[user], seen_indptr[user + 1]):
            if not under_test[seen_items[k]]:
                board[row, seen_items[k]] = -np.inf
        for k in range(test_indptr[row], test_indptr[row + 1]):
            if test_items[k] >= 0:
                under_test[test_items[k]] = False


@kernel
def draw(uniform, users, seen_indptr, seen_items, test_indptr, test_items, left, taken, drawn):
    """Draw items without replacement for each user, from those neither seen nor under test.

    Parameters
    ----------
    uniform : (n_rows, n_draws), numbers in [0, 1) that decide the draws
    users, seen_indptr, seen_items, test_indptr, test_items : as for :func:`exclude`
    left, taken : (n_items,) int64 and bool, scratch
    drawn : (n_rows, n_draws) int64, receives the item codes

    Returns
    -------
    row, n_left : int
        The first row that has fewer items left than draws, with their number; -1 and 0
        if there is none.
    """
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
def list_cosines(lists, indptr, owners, inverse_lengths, weight, sums):
    """Add up, for each list, the cosines of all pairs of its items, as sets of their owners.

    Parameters
    ----------
    lists : (n_lists, n_places), items; -1 for none
    indptr, owners : users who have each item
    inverse_lengths : (n_items,) float64, 1 / sqrt(number of owners), 0 for an item without
    weight : (n_users,) float64, scratch of zeros
    sums : (n_lists,) float64, receives the sums
    """
    for row in range(len(lists)):
        total = 0.0
        for place in range(lists.shape[1]):
            item = lists[row, place]
            if item < 0:
                continue
            shared, own = 0.0, inverse_lengths[item]
            for j in range(indptr[item], indptr[item + 1]):
                others = weight[owners[j]]
                shared += others
                weight[owners[j]] = others + own
            total += shared * own
        sums[row] = total
        for place in range(lists.shape[1]):
            item = lists[row, place]
            if item < 0:
                continue
            for j in range(indptr[item], indptr[item + 1]):
                weight[owners[j]] = 0.0
