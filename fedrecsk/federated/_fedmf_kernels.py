"""Matrix factorisation by local SGD on clients: the visits of FedMF, CoLR and SCoLR.

A visit is a list of examples (user, item, target, weight): every rating, and after each positive
`n_negatives` draws among the items that its user has not rated, with target 0 and the weight
of the positive. The list is drawn once, and shuffled and cut into batches in every epoch. The
loss of an example is

    weight * f(p.q, target) + reg (|p|^2 + |q|^2)

with f the binary cross-entropy of the sigmoid, or half the squared error. The weight decay of users
with few examples is larger (:func:`decay_of`). In each batch every
vector moves once, by its learning rate times the mean of its gradients over the examples that it
is in; all gradients are taken before anything moves.

Randomness comes from a splitmix64 stream: the n-th draw is the mix of seed + n * GOLDEN. First
the negatives are drawn, user by user and rating by rating, then every epoch's Fisher-Yates shuffle.
"""

from typing import NamedTuple

import numpy as np

from fedrecsk._utils.jit import inline, kernel
from fedrecsk._utils.shared_kernels import (
    add_row,
    copy_row,
    dot_rows,
    fill_row,
    is_finite_row,
    scale_row,
)

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# Number of items of a page: 2**6. For each page it is noted whether any item was visited.
PAGE_BITS = 6


class Layout(NamedTuple):
    """Users of each client, ratings of each user, and their items, ascending within a user."""

    client_indptr: np.ndarray
    indptr: np.ndarray
    items: np.ndarray


class Feedback(NamedTuple):
    """Target and weight of each rating."""

    targets: np.ndarray
    weights: np.ndarray


class Cohort(NamedTuple):
    """Of each client: whether it visits, whether its upload arrives, and the seed of its visit.

    `is_finite` is written: whether all that a client has trained is finite.
    """

    active: np.ndarray
    delivers: np.ndarray
    seeds: np.ndarray
    is_finite: np.ndarray


class Config(NamedTuple):
    """How clients train; `learning_rate` is that of users. See :func:`decay_of` for `shrinkage`."""

    n_negatives: int
    local_epochs: int
    batch_size: int
    learning_rate: float
    reg: float
    shrinkage: float
    squared: bool


class Moving(NamedTuple):
    """What of the items moves, and how it is sent.

    Attributes
    ----------
    learning_rate : of the items, along these coordinates
    columns : (n_clients, n_columns) bool
        The coordinates that each client moves. FedMF moves all. In CoLR all vectors are in
        coordinates of which the first are those along the rows of B.
    scale : (n_clients,), what a client multiplies its changes by
    """

    learning_rate: float
    columns: np.ndarray
    scale: np.ndarray


class Upload(NamedTuple):
    """Where clients write what they send.

    Attributes
    ----------
    each : bool, client by client instead of added up
    indptr : (n_clients + 1,), zeros; client c's rows will be those from indptr[c] to indptr[c + 1]
    rows : (n_rows,), receives the visited items, ascending within a client
    values : (n_rows, n_columns), receives their scaled changes
    sums : (n_items, n_columns) float64
        If not `each`: the scaled changes of the clients that are finite and deliver are added here.
    n_visits : (n_items, 1) or (n_items, n_columns) int64
        How many of them visited the item, or moved the coordinate.
    """

    each: bool
    indptr: np.ndarray
    rows: np.ndarray
    values: np.ndarray
    sums: np.ndarray
    n_visits: np.ndarray


class Scratch(NamedTuple):
    """Arrays for the largest client; see :func:`scratch`. `is_visited`, `pages`, `n_of_user`,
    `n_in_batch` and `gradients` are zero between uses."""

    whose: np.ndarray
    what: np.ndarray
    target: np.ndarray
    weight: np.ndarray
    order: np.ndarray
    slopes: np.ndarray
    is_visited: np.ndarray
    pages: np.ndarray
    slot_of: np.ndarray
    visited: np.ndarray
    n_in_batch: np.ndarray
    n_of_user: np.ndarray
    gradients: np.ndarray
    users: np.ndarray
    rows: np.ndarray
    place: np.ndarray
    stream: np.ndarray


def scratch(layout, active, config, broadcast):
    """Return what :func:`visit` works in."""
    n_rated = np.diff(layout.indptr[layout.client_indptr])[active]
    n_users = np.diff(layout.client_indptr)[active]
    return _scratch(n_rated, n_users, config, broadcast, trains_items=True)


def scratch_of_users(layout, config, broadcast):
    """Return what :func:`fit_users` works in."""
    return _scratch(np.diff(layout.indptr), np.ones(1, int), config, broadcast, trains_items=False)


def _scratch(n_rated, n_users, config, broadcast, trains_items):
    (n_items, d), dtype = broadcast.shape, broadcast.dtype
    n_examples = n_rated.max(initial=0) * (1 + config.n_negatives)
    n_users = n_users.max(initial=0)
    n_visited = n_items if trains_items else 0
    whose, what, order = np.empty((3, n_examples), np.int32)
    target, weight, slopes = np.empty((3, n_examples), dtype)
    slot_of, visited = np.empty((2, n_visited), np.int32)
    gradients, users = np.zeros((2, n_users, d), dtype)
    return Scratch(
        whose=whose,
        what=what,
        target=target,
        weight=weight,
        order=order,
        slopes=slopes,
        is_visited=np.zeros(n_visited, np.int32),
        pages=np.zeros((n_visited >> PAGE_BITS) + 1, np.bool_),
        slot_of=slot_of,
        visited=visited,
        n_in_batch=np.zeros(n_visited, np.int32),
        n_of_user=np.zeros(n_users, np.int32),
        gradients=gradients,
        users=users,
        rows=np.empty((min(n_visited, n_examples), d), dtype),
        place=np.empty(d, np.int32),
        stream=np.empty(1, np.uint64),
    )


# -------------------------------------------------------------------------------- draws


@inline
def below(n, stream):
    """The stream's next draw as a whole number in [0, n)."""
    stream[0] += GOLDEN
    x = stream[0]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return int(np.float64(x >> np.uint64(11)) * 2.0**-53 * n)


@inline
def unseen_item(rank, items, first, last):
    """The item number `rank` (from 0) among those that are not in items[first:last], sorted."""
    low, high = 0, last - first
    while low < high:
        middle = (low + high) // 2
        if items[first + middle] - middle <= rank:
            low = middle + 1
        else:
            high = middle
    return rank + low


@kernel
def unseen_items(ranks, users, indptr, items, found):
    """:func:`unseen_item` for many pairs of rank and user."""
    for k in range(len(ranks)):
        u = users[k]
        found[k] = unseen_item(ranks[k], items, indptr[u], indptr[u + 1])


@inline
def draw_examples(first, last, layout, feedback, n_items, n_negatives, work):
    """Write the examples of the users in [first, last); returns how many."""
    n = 0
    for u in range(first, last):
        start, end = layout.indptr[u], layout.indptr[u + 1]
        n_unseen = n_items - (end - start)
        for k in range(start, end):
            target, weight = feedback.targets[k], feedback.weights[k]
            work.whose[n], work.what[n] = u - first, layout.items[k]
            work.target[n], work.weight[n] = target, weight
            n += 1
            if target > 0 and n_unseen > 0:
                for _ in range(n_negatives):
                    rank = below(n_unseen, work.stream)
                    work.whose[n] = u - first
                    work.what[n] = unseen_item(rank, layout.items, start, end)
                    work.target[n], work.weight[n] = 0, weight
                    n += 1
    return n


@inline
def shuffle(order, n, stream):
    """Fisher-Yates on the first n entries."""
    for last in range(n - 1, 0, -1):
        k = below(last + 1, stream)
        order[last], order[k] = order[k], order[last]


@inline
def take_slots(n, work):
    """List the visited items, ascending, and replace the examples' items by their places in it.

    Returns how many there are. Only pages with visits are looked at, for large catalogues.
    """
    n_items = len(work.is_visited)
    for e in range(n):
        item = work.what[e]
        work.is_visited[item] = 1
        work.pages[item >> PAGE_BITS] = True
    n_visited = 0
    for page in range(len(work.pages)):
        if not work.pages[page]:
            continue
        work.pages[page] = False
        for item in range(page << PAGE_BITS, min((page + 1) << PAGE_BITS, n_items)):
            # Without a branch, which would be mispredicted; an item not visited is overwritten.
            work.visited[n_visited] = item
            work.slot_of[item] = n_visited
            n_visited += work.is_visited[item]
            work.is_visited[item] = 0
    for e in range(n):
        work.what[e] = work.slot_of[work.what[e]]
    return n_visited


@inline
def own_first(columns, c, place):
    """The numbers below len(place), those first that client c moves; returns how many those are."""
    n_own = 0
    for f in range(columns.shape[1]):
        if columns[c, f]:
            place[n_own] = f
            n_own += 1
    k = n_own
    for f in range(len(place)):
        if f >= columns.shape[1] or not columns[c, f]:
            place[k] = f
            k += 1
    return n_own


# ----------------------------------------------------------------------------- one batch


@inline
def slope_of(score, target, squared):
    """Derivative of an example's loss by the score."""
    if squared:
        return score - target
    decay = np.exp(-abs(score))
    return (1.0 if score >= 0 else decay) / (1.0 + decay) - target


@inline
def loss_of(score, target, squared):
    """Loss of an example."""
    if squared:
        return 0.5 * (score - target) ** 2
    return max(score, 0.0) - score * target + np.log1p(np.exp(-abs(score)))


@inline
def collect_gradient(e, work, rows, users, squared):
    """Note an example's slope, and add to its user's gradient; returns its score."""
    u, s = work.whose[e], work.what[e]
    score = dot_rows(users, u, rows, s, rows.shape[1])
    slope = slope_of(score, work.target[e], squared)
    slope = rows.dtype.type(work.weight[e] * slope)
    work.slopes[e] = slope
    work.n_of_user[u] += 1
    add_row(work.gradients, u, slope, rows, s, rows.shape[1])
    return score


@inline
def decay_of(config, n_examples, n_users):
    """Weight decay of a client's examples: over a user's, it adds up to at least `shrinkage`."""
    return max(config.reg, config.shrinkage * n_users / max(n_examples, 1))


@inline
def move_items(start, end, work, n_own, learning_rate, reg):
    """Step of a batch's items along their first `n_own` coordinates."""
    rows, users, n_in_batch = work.rows, work.users, work.n_in_batch
    keep = rows.dtype.type(1.0 - 2.0 * learning_rate * reg)
    for b in range(start, end):
        n_in_batch[work.what[work.order[b]]] += 1
    for b in range(start, end):
        e = work.order[b]
        u, s = work.whose[e], work.what[e]
        # Counts turn negative once the row has decayed.
        if n_in_batch[s] > 0:
            n_in_batch[s] = -n_in_batch[s]
            scale_row(rows, s, keep, rows, s, n_own)
        step = rows.dtype.type(learning_rate * work.slopes[e] / n_in_batch[s])
        add_row(rows, s, step, users, u, n_own)
    for b in range(start, end):
        n_in_batch[work.what[work.order[b]]] = 0


@inline
def move_users(start, end, work, users, learning_rate, reg):
    """Step of a batch's users, each once; clears their gradients."""
    keep = users.dtype.type(1.0 - 2.0 * learning_rate * reg)
    for b in range(start, end):
        u = work.whose[work.order[b]]
        if work.n_of_user[u] == 0:
            continue
        step = users.dtype.type(learning_rate / work.n_of_user[u])
        work.n_of_user[u] = 0
        scale_row(users, u, keep, users, u, users.shape[1])
        add_row(users, u, -step, work.gradients, u, users.shape[1])
        fill_row(work.gradients, u, users.dtype.type(0), users.shape[1])


# ------------------------------------------------------------------------------- a visit


@inline
def train(c, layout, feedback, seed, config, broadcast, moving, users, work):
    """The visit of client c, which leaves the changes of its items in `work`.

    Returns
    -------
    n_visited : items visited; they are ``work.visited[:n_visited]``
    n_own : coordinates that moved, which are ``work.place[:n_own]``; work.rows begins with them
    is_finite : whether everything is finite
    loss, weight : sums over all epochs of the losses, each before its batch's step, and of weights
    """
    d = broadcast.shape[1]
    first, last = layout.client_indptr[c], layout.client_indptr[c + 1]
    work.stream[0] = seed
    n = draw_examples(first, last, layout, feedback, broadcast.shape[0], config.n_negatives, work)
    n_visited = take_slots(n, work)
    n_own = own_first(moving.columns, c, work.place)
    in_order = n_own == moving.columns.shape[1]
    for s in range(n_visited):
        take_row(broadcast, work.visited[s], in_order, work.place, work.rows, s)
    for u in range(first, last):
        take_row(users, u, in_order, work.place, work.users, u - first)
    for e in range(n):
        work.order[e] = e
    loss, total, decay = 0.0, 0.0, decay_of(config, n, last - first)
    for e in range(n):
        total += work.weight[e]
    for _ in range(config.local_epochs):
        shuffle(work.order, n, work.stream)
        for start in range(0, n, config.batch_size):
            end = min(start + config.batch_size, n)
            for b in range(start, end):
                e = work.order[b]
                score = collect_gradient(e, work, work.rows, work.users, config.squared)
                loss += work.weight[e] * loss_of(score, work.target[e], config.squared)
            move_items(start, end, work, n_own, moving.learning_rate, decay)
            move_users(start, end, work, work.users, config.learning_rate, decay)
    for u in range(first, last):
        for f in range(d):
            users[u, work.place[f]] = work.users[u - first, f]
    n_broken = 0
    for s in range(n_visited):
        n_broken += not is_finite_row(work.rows, s, d)
        for k in range(n_own):
            work.rows[s, k] -= broadcast[work.visited[s], work.place[k]]
    for u in range(last - first):
        n_broken += not is_finite_row(work.users, u, d)
    return n_visited, n_own, n_broken == 0, loss, total * config.local_epochs


@inline
def take_row(vectors, k, in_order, place, out, s):
    """Copy a vector, its numbers in the order of `place`."""
    if in_order:
        copy_row(out, s, vectors, k, out.shape[1])
    else:
        for f in range(out.shape[1]):
            out[s, f] = vectors[k, place[f]]


@kernel
def visit(layout, feedback, cohort, config, broadcast, moving, users, work, out):
    """The round of the active clients.

    Parameters
    ----------
    layout, feedback, cohort, config, moving : see their classes
    broadcast : (n_items, d), the server's item vectors
    users : (n_users, d), replaced by the new vectors of the active clients' users
    work : of :func:`scratch`
    out : Upload, receives

    Returns
    -------
    loss, weight : sums over all epochs of the losses, each before its batch's step, and of weights
    """
    loss, weight, n_rows = 0.0, 0.0, 0
    for c in range(len(cohort.active)):
        out.indptr[c + 1] = n_rows
        if not cohort.active[c]:
            continue
        n_visited, n_own, is_finite, its_loss, its_weight = train(
            c, layout, feedback, cohort.seeds[c], config, broadcast, moving, users, work
        )
        loss += its_loss
        weight += its_weight
        cohort.is_finite[c] = is_finite
        factor = users.dtype.type(moving.scale[c])
        if out.each:
            for s in range(n_visited):
                write(work, s, n_own, factor, out, n_rows + s)
            n_rows += n_visited
            out.indptr[c + 1] = n_rows
        elif is_finite and cohort.delivers[c]:
            for s in range(n_visited):
                add(work, s, n_own, factor, out)
    return loss, weight


@inline
def write(work, s, n_own, factor, out, row):
    """Write a visited item's scaled change, zero in the columns that the client does not move."""
    out.rows[row] = work.visited[s]
    if n_own == out.values.shape[1]:
        scale_row(out.values, row, factor, work.rows, s, n_own)
    else:
        fill_row(out.values, row, out.values.dtype.type(0), out.values.shape[1])
        for k in range(n_own):
            out.values[row, work.place[k]] = factor * work.rows[s, k]


@inline
def add(work, s, n_own, factor, out):
    """Add a visited item's scaled change to the sums, and count it."""
    item = work.visited[s]
    if n_own == out.sums.shape[1]:
        add_row(out.sums, item, factor, work.rows, s, n_own)
    else:
        for k in range(n_own):
            out.sums[item, work.place[k]] += factor * work.rows[s, k]
    if out.n_visits.shape[1] == 1:
        out.n_visits[item, 0] += 1
    else:
        for k in range(n_own):
            out.n_visits[item, work.place[k]] += 1


# ------------------------------------------------------------------------- users alone


@kernel
def fit_users(layout, feedback, whom, seed, config, broadcast, work, users):
    """Local epochs with frozen items for the users in `whom`.

    Negatives are redrawn in every epoch. All users draw from the same stream, so that a
    user's vector depends on nothing but its own ratings. `work` is of :func:`scratch_of_users`.
    """
    for place in range(len(whom)):
        u = whom[place]
        mine = users[u : u + 1]
        work.stream[0] = seed
        for _ in range(config.local_epochs):
            n = draw_examples(
                u, u + 1, layout, feedback, broadcast.shape[0], config.n_negatives, work
            )
            for e in range(n):
                work.order[e] = e
            shuffle(work.order, n, work.stream)
            decay = decay_of(config, n, 1)
            for first in range(0, n, config.batch_size):
                end = min(first + config.batch_size, n)
                for b in range(first, end):
                    e = work.order[b]
                    collect_gradient(e, work, broadcast, mine, config.squared)
                move_users(first, end, work, mine, config.learning_rate, decay)
