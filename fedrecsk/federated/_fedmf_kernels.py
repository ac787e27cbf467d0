"""Matrix factorisation by local SGD on clients: the visits of FedMF, CoLR and SCoLR.

A visit is a list of examples (user, item, target, weight): every rating, and after each positive
`n_negatives` draws among the items that its user has not rated, with target 0 and the weight
of the positive. The list is drawn once, and shuffled and cut into batches in every epoch. The
loss of an example is

    weight * f(p.q, target) + reg (|p|^2 + |q|^2)

with f the binary cross-entropy of the sigmoid, or half the squared error. In each batch every
vector moves once, by its learning rate times the mean of its gradients over the examples that it
is in; all gradients are taken before anything moves.

The n-th draw of a client is the splitmix64 hash of seed + n * GOLDEN. First the negatives are
drawn, user by user and rating by rating, then every epoch's Fisher-Yates shuffle.
"""

from typing import NamedTuple

import numpy as np

from fedrecsk._utils.integers import GOLDEN
from fedrecsk._utils.jit import inline, inline_early, kernel
from fedrecsk._utils.shared_kernels import (
    add_row,
    copy_row,
    dot_rows,
    fill_row,
    is_finite_row,
    scale_row,
    uniform,
    unseen_item,
)

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
    """Who visits, whose upload arrives, seeds of the visits; `is_finite` is written."""

    active: np.ndarray
    delivers: np.ndarray
    seeds: np.ndarray
    is_finite: np.ndarray


class Config(NamedTuple):
    """How clients train."""

    n_negatives: int
    local_epochs: int
    batch_size: int
    learning_rate: float  # of users
    reg: float
    shrinkage: float  # smallest sum of the weight decay over a user's examples
    squared: bool  # the loss
    frozen: bool  # Items do not move, nothing is sent, and negatives are redrawn in every epoch.


class Moving(NamedTuple):
    """What of the items moves, and how it is sent."""

    learning_rate: float  # of the items, along these coordinates
    # (n_clients, n_columns) bool. Which of the first coordinates each client moves. FedMF moves
    # all. In CoLR all vectors are in coordinates of which the first are those along the rows of
    # B.
    columns: np.ndarray
    scale: np.ndarray  # (n_clients,), what a client multiplies its changes by


class Upload(NamedTuple):
    """Where clients write what they send."""

    each: bool  # client by client instead of added up
    # (n_clients + 1,), zeros; client c's rows will be those from indptr[c] to indptr[c + 1]
    indptr: np.ndarray
    rows: np.ndarray  # (n_rows,), receives the visited items, ascending within a client
    values: np.ndarray  # (n_rows, n_columns), receives their scaled changes
    # (n_items, n_columns) float64. If not `each`: the scaled changes of the clients that are
    # finite and deliver are added here.
    sums: np.ndarray
    # (n_items, 1) or (n_items, n_columns) int64. How many of them visited the item, or moved
    # the coordinate.
    n_visits: np.ndarray


class Scratch(NamedTuple):
    """Arrays for the largest client; those made of zeros are zero again after each use."""

    # (n_examples,) each
    whose: np.ndarray
    what: np.ndarray
    order: np.ndarray
    target: np.ndarray
    weight: np.ndarray
    slopes: np.ndarray
    # (n_items,) each, but for `pages`
    is_visited: np.ndarray
    n_in_batch: np.ndarray
    slot_of: np.ndarray
    visited: np.ndarray
    pages: np.ndarray
    # by user
    n_of_user: np.ndarray
    gradients: np.ndarray
    users: np.ndarray
    rows: np.ndarray  # of the visited items
    stream: np.ndarray


def scratch(layout, active, config, broadcast):
    """Return what :func:`visit` works in."""
    (n_items, d), dtype = broadcast.shape, broadcast.dtype
    n_rated = np.diff(layout.indptr[layout.client_indptr])[active].max(initial=0)
    n_users = np.diff(layout.client_indptr)[active].max(initial=0)
    n_examples = n_rated * (1 + config.n_negatives)
    n_visited = 0 if config.frozen else n_items
    return Scratch(
        *np.empty((3, n_examples), np.int32),
        *np.empty((3, n_examples), dtype),
        *np.zeros((2, n_visited), np.int32),
        *np.empty((2, n_visited), np.int32),
        np.zeros((n_visited >> PAGE_BITS) + 1, np.bool_),
        np.zeros(n_users, np.int32),
        *np.zeros((2, n_users, d), dtype),
        np.empty((min(n_visited, n_examples), d), dtype),
        np.empty(1, np.uint64),
    )


# ------------------------------------------------------------------------------- a round


@kernel
def visit(layout, feedback, cohort, config, broadcast, moving, users, work, out):
    """Train the active clients for a round; return sums of losses and weights over all epochs."""
    (n_items, d), n_columns = broadcast.shape, moving.columns.shape[1]
    trains_items = not config.frozen
    items = work.rows if trains_items else broadcast
    loss, total, n_rows = 0.0, 0.0, 0
    for c in range(len(cohort.active)):
        out.indptr[c + 1] = n_rows
        if not cohort.active[c]:
            continue
        first, last = layout.client_indptr[c], layout.client_indptr[c + 1]
        for u in range(first, last):
            copy_row(work.users, u - first, users, u, d)
        work.stream[0] = cohort.seeds[c]
        n, n_visited, its_loss, its_weight = 0, 0, 0.0, 0.0
        for epoch in range(config.local_epochs):
            if epoch == 0 or config.frozen:
                n = draw_examples(first, last, layout, feedback, n_items, config.n_negatives, work)
                for e in range(n):
                    work.order[e] = e
            if epoch == 0 and trains_items:
                n_visited = take_slots(n, work)
                for s in range(n_visited):
                    copy_row(work.rows, s, broadcast, np.int64(work.visited[s]), d)
            decay = max(config.reg, config.shrinkage * (last - first) / max(n, 1))
            shuffle(work.order, n, work.stream)
            for start in range(0, n, config.batch_size):
                end = min(start + config.batch_size, n)
                its_loss += collect_gradients(start, end, items, config.squared, work)
                if trains_items:
                    move_items(start, end, moving, c, decay, broadcast, work)
                move_users(start, end, config.learning_rate, decay, work)
            for e in range(n):
                its_weight += work.weight[e]
        loss += its_loss
        total += its_weight
        n_broken = 0
        for u in range(first, last):
            copy_row(users, u, work.users, u - first, d)
            n_broken += not is_finite_row(users, u, d)
        if config.frozen:
            continue
        for s in range(n_visited):
            n_broken += not is_finite_row(work.rows, s, d)
            item = np.int64(work.visited[s])
            add_row(work.rows, s, users.dtype.type(-1), broadcast, item, n_columns)
        cohort.is_finite[c] = n_broken == 0
        factor = users.dtype.type(moving.scale[c])
        if out.each:
            for s in range(n_visited):
                out.rows[n_rows + s] = work.visited[s]
                scale_row(out.values, n_rows + s, factor, work.rows, s, n_columns)
            n_rows += n_visited
            out.indptr[c + 1] = n_rows
        elif n_broken == 0 and cohort.delivers[c]:
            for s in range(n_visited):
                item = np.int64(work.visited[s])
                add_row(out.sums, item, factor, work.rows, s, n_columns)
                for f in range(out.n_visits.shape[1]):
                    out.n_visits[item, f] += out.n_visits.shape[1] == 1 or moving.columns[c, f]
    return loss, total


# -------------------------------------------------------------------------------- draws


@inline
def below(n, stream):
    """Return the stream's next draw as a whole number in [0, n)."""
    stream[0] += GOLDEN
    return int(uniform(stream[0]) * n)


@kernel
def unseen_items(ranks, users, indptr, items, found):
    """Find the unseen items of many pairs of rank and user."""
    for k in range(len(ranks)):
        u = users[k]
        found[k] = unseen_item(ranks[k], items, indptr[u], indptr[u + 1])


@inline_early
def draw_examples(first, last, layout, feedback, n_items, n_negatives, work):
    """Write the examples of the users in [first, last); return how many."""
    n = 0
    for u in range(first, last):
        start, end = layout.indptr[u], layout.indptr[u + 1]
        n_unseen = n_items - (end - start)
        for k in range(start, end):
            target, weight = feedback.targets[k], feedback.weights[k]
            n_drawn = n_negatives if target > 0 and n_unseen > 0 else 0
            for draw in range(1 + n_drawn):
                item = layout.items[k]
                if draw > 0:
                    rank = below(n_unseen, work.stream)
                    item, target = unseen_item(rank, layout.items, start, end), 0
                work.whose[n], work.what[n] = u - first, item
                work.target[n], work.weight[n] = target, weight
                n += 1
    return n


@inline_early
def shuffle(order, n, stream):
    """Shuffle the first n entries (Fisher-Yates)."""
    for last in range(n - 1, 0, -1):
        k = below(last + 1, stream)
        order[last], order[k] = order[k], order[last]


@inline_early
def take_slots(n, work):
    """Replace the examples' items by places among the visited ones; return how many."""
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


# ----------------------------------------------------------------------------- one batch


@inline_early
def collect_gradients(start, end, items, squared, work):
    """Note a batch's slopes, and add to its users' gradients; return the sum of its losses."""
    users, d, loss = work.users, work.users.shape[1], 0.0
    for b in range(start, end):
        e = work.order[b]
        u, s, target = np.int64(work.whose[e]), np.int64(work.what[e]), work.target[e]
        score = dot_rows(users, u, items, s, d)
        if squared:
            slope = 1.0 * (score - target)
            loss += work.weight[e] * (0.5 * slope**2)
        else:
            decay = np.exp(-abs(score))
            slope = (1.0 if score >= 0 else decay) / (1.0 + decay) - target
            loss += work.weight[e] * (max(score, 0.0) - score * target + np.log1p(decay))
        work.slopes[e] = users.dtype.type(work.weight[e] * slope)
        work.n_of_user[u] += 1
        add_row(work.gradients, u, work.slopes[e], items, s, d)
    return loss


@inline_early
def move_items(start, end, moving, c, decay, broadcast, work):
    """Step of a batch's items along the coordinates that client c moves."""
    rows, n_in_batch, n_columns = work.rows, work.n_in_batch, moving.columns.shape[1]
    keep = rows.dtype.type(1.0 - 2.0 * moving.learning_rate * decay)
    for b in range(start, end):
        n_in_batch[work.what[work.order[b]]] += 1
    for b in range(start, end):
        e = work.order[b]
        u, s = np.int64(work.whose[e]), np.int64(work.what[e])
        # Counts turn negative once the row has decayed.
        if n_in_batch[s] > 0:
            n_in_batch[s] = -n_in_batch[s]
            scale_row(rows, s, keep, rows, s, n_columns)
        step = rows.dtype.type(moving.learning_rate * work.slopes[e] / n_in_batch[s])
        add_row(rows, s, step, work.users, u, n_columns)
    for b in range(start, end):
        n_in_batch[work.what[work.order[b]]] = 0
    for f in range(n_columns):
        if not moving.columns[c, f]:
            for b in range(start, end):
                s = work.what[work.order[b]]
                rows[s, f] = broadcast[work.visited[s], f]


@inline_early
def move_users(start, end, learning_rate, decay, work):
    """Step of a batch's users, each once; clears their gradients."""
    users = work.users
    real, d = users.dtype.type, users.shape[1]
    keep = real(1.0 - 2.0 * learning_rate * decay)
    for b in range(start, end):
        u = np.int64(work.whose[work.order[b]])
        if work.n_of_user[u] == 0:
            continue
        step = real(learning_rate / work.n_of_user[u])
        work.n_of_user[u] = 0
        scale_row(users, u, keep, users, u, d)
        add_row(users, u, -step, work.gradients, u, d)
        fill_row(work.gradients, u, real(0), d)
