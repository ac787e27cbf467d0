"""Item-item matrices: sums over users of the products of their pairs of items, and scores.

A symmetric matrix is a triangle, row after row: entry (i, j), j <= i, is number
``i (i + 1) / 2 + j``.
"""

import numpy as np

from fedrecsk._utils.jit import kernel


@kernel
def add_pairs(client_indptr, indptr, places, first, weights, ages, rates, senders, starts, sums):
    """Add up the products of the weights of each user's pairs, a triangle a client.

    A pair is multiplied by ``exp(-rate |difference of its ages|)``.

    Parameters
    ----------
    client_indptr : (n_clients + 1,), users of each client
    indptr : (n_users + 1,), ratings of each user
    places : (n_ratings,), row of each rating, ascending within a user
    first : (n_clients,), what to subtract from a client's rows
    weights : (n_ratings,)
    ages : (n_ratings,), integers
    rates : (n_users,)
    senders : (n_clients,) bool, the others are left out
    starts : (n_clients,), where each client's triangle begins; they may coincide
    sums : (n,), added to
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
def pair_numbers(row_indptr, row_items, starts, numbers):
    """Number each client's own pairs of items as in the triangle of the whole catalogue.

    Parameters
    ----------
    row_indptr : (n_clients + 1,), items of each client
    row_items : (n_rows,), ascending within a client
    starts : (n_clients,), where each client's pairs begin
    numbers : (n,), receives them
    """
    for c in range(len(row_indptr) - 1):
        k = starts[c]
        for a in range(row_indptr[c], row_indptr[c + 1]):
            row = row_items[a] * (row_items[a] + 1) // 2
            for b in range(row_indptr[c], a + 1):
                numbers[k] = row + row_items[b]
                k += 1


@kernel
def score_all(users, indptr, items, weights, matrix, scores):
    """Sum of the rows of the matrix that belong to each user's items, times their weights.

    Parameters
    ----------
    users : (n,), codes, -1 for unknown
    indptr, items, weights : each user's items as a CSR matrix
    matrix : (n_items, n_items)
    scores : (n, n_items), added to; an unknown user adds nothing
    """
    for k in range(len(users)):
        if users[k] < 0:
            continue
        for r in range(indptr[users[k]], indptr[users[k] + 1]):
            row, weight = matrix[items[r]], weights[r]
            for i in range(len(row)):
                scores[k, i] += weight * row[i]


@kernel
def score_pairs(users, wanted, indptr, items, weights, matrix, scores):
    """Add to the scores (n,) of pairs of user and item."""
    for k in range(len(users)):
        if users[k] < 0 or wanted[k] < 0:
            continue
        for r in range(indptr[users[k]], indptr[users[k] + 1]):
            scores[k] += weights[r] * matrix[items[r], wanted[k]]
