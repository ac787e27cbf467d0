"""Matrix factorisation by local SGD on clients: the visits of FedMF, CoLR and SCoLR.

What the kernels share:

    layout = (client_indptr, indptr, items)
        users of each client, ratings of each user, and their items, ascending within a user
    feedback = (targets, weights), each (n_ratings,)
    turn = (active, senders, seeds), each (n_clients,)
        clients that visit, those whose upload arrives, and a uint64 that seeds each visit
    config = (n_negatives, local_epochs, batch_size, learning_rate, weight_decay, squared)
    broadcast : (n_items, d), the server's item vectors
    users : (n_users, d), replaced by the new vectors of the active clients' users
    scale : (n_clients,), what a client multiplies its upload by

A visit is a list of examples (user, item, target, weight): every rating, and after each positive
`n_negatives` draws among the items that its user has not rated, with target 0 and the weight
of the positive. The list is drawn once, and shuffled and cut into batches in every epoch. The
loss of an example is

    weight * f(p.q, target) + weight_decay (|p|^2 + |q|^2)

with f the binary cross-entropy of the sigmoid, or half the squared error. In each batch every
vector moves once, by `learning_rate` times the mean of its gradients over the examples that it
is in; all gradients are taken before anything moves.

Randomness comes from a splitmix64 stream: the n-th draw is the mix of seed + n * GOLDEN. First
the negatives are drawn, user by user and rating by rating, then every epoch's Fisher-Yates shuffle.
"""

import numpy as np

from fedrecsk._kernels._jit import kernel

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


# -------------------------------------------------------------------------------- draws


@kernel
def below(n, stream):
    """The stream's next draw as a whole number in [0, n)."""
    stream[0] += GOLDEN
    x = stream[0]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return int(np.float64(x >> np.uint64(11)) * 2.0**-53 * n)


@kernel
def unseen_item(rank, seen):
    """The item number `rank` (from 0) among those that are not in `seen`, which is sorted."""
    low, high = 0, len(seen)
    while low < high:
        middle = (low + high) // 2
        if seen[middle] - middle <= rank:
            low = middle + 1
        else:
            high = middle
    return rank + low


@kernel
def unseen_items(ranks, users, indptr, items):
    """:func:`unseen_item` for many pairs of rank and user."""
    found = np.empty(len(ranks), items.dtype)
    for k in range(len(ranks)):
        u = users[k]
        found[k] = unseen_item(ranks[k], items[indptr[u] : indptr[u + 1]])
    return found


@kernel
def draw_examples(first, last, indptr, items, feedback, n_items, n_negatives, stream, examples):
    """Write the examples of the users in [first, last); returns how many."""
    targets, weights = feedback
    whose, what, target, weight = examples
    n = 0
    for u in range(first, last):
        seen = items[indptr[u] : indptr[u + 1]]
        n_unseen = n_items - len(seen)
        for k in range(indptr[u], indptr[u + 1]):
            whose[n], what[n], target[n], weight[n] = u - first, items[k], targets[k], weights[k]
            n += 1
            if targets[k] > 0 and n_unseen > 0:
                for _ in range(n_negatives):
                    whose[n], target[n], weight[n] = u - first, 0, weights[k]
                    what[n] = unseen_item(below(n_unseen, stream), seen)
                    n += 1
    return n


@kernel
def shuffle(order, n, stream):
    """Fisher-Yates on the first n entries."""
    for last in range(n - 1, 0, -1):
        k = below(last + 1, stream)
        order[last], order[k] = order[k], order[last]


@kernel
def take_slots(n, what, slot_of, visited):
    """Replace items by the numbers of local rows, and list each row's item; returns how many."""
    n_visited = 0
    for e in range(n):
        item = what[e]
        if slot_of[item] < 0:
            slot_of[item] = n_visited
            visited[n_visited] = item
            n_visited += 1
        what[e] = slot_of[item]
    return n_visited


@kernel
def room(layout, active, n_negatives):
    """The most examples and the most users that an active client can have."""
    client_indptr, indptr, _ = layout
    n_examples, n_users = 0, 0
    for c in range(len(active)):
        if active[c]:
            n_rated = indptr[client_indptr[c + 1]] - indptr[client_indptr[c]]
            n_examples = max(n_examples, n_rated * (1 + n_negatives))
            n_users = max(n_users, client_indptr[c + 1] - client_indptr[c])
    return n_examples, n_users


@kernel
def empty_examples(n, dtype):
    """Users, items, targets and weights of n examples, to be written."""
    return np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, dtype), np.empty(n, dtype)


# ------------------------------------------------------------------------------- losses


@kernel
def loss_and_slope(score, target, squared):
    """Loss of one example and its derivative by the score."""
    if squared:
        return 0.5 * (score - target) ** 2, score - target
    decay = np.exp(-abs(score))
    chance = (1.0 if score >= 0 else decay) / (1.0 + decay)
    return max(score, 0.0) - score * target + np.log1p(decay), chance - target


@kernel
def is_finite(rows, n):
    """Whether the first n rows hold neither NaN nor infinity."""
    total = 0.0
    for k in range(n):
        for f in range(rows.shape[1]):
            total += 0.0 * rows[k, f]
    return total == 0.0


# ------------------------------------------------------------------------------- a visit


@kernel
def batch_step(batch, examples, slopes, counts, gradients, rows, users, config):
    """One batch; returns its summed loss. The first `n_moving` coordinates of items move."""
    whose, slots, target, weight = examples
    n_in_batch, n_of_user = counts
    rate_user, rate_item, n_moving, weight_decay, squared = config
    d = rows.shape[1]
    loss = 0.0
    for e in batch:
        u, s = whose[e], slots[e]
        score = rows.dtype.type(0)
        for f in range(d):
            score += users[u, f] * rows[s, f]
        one, slope = loss_and_slope(score, target[e], squared)
        loss += weight[e] * one
        slope = rows.dtype.type(weight[e] * slope)
        slopes[e] = slope
        n_of_user[u] += 1
        n_in_batch[s] += 1
        for f in range(d):
            gradients[u, f] += slope * rows[s, f]
    if n_moving > 0:
        keep = rows.dtype.type(1.0 - 2.0 * rate_item * weight_decay)
        for e in batch:
            u, s = whose[e], slots[e]
            # Counts turn negative once the row has decayed.
            if n_in_batch[s] > 0:
                n_in_batch[s] = -n_in_batch[s]
                for f in range(n_moving):
                    rows[s, f] *= keep
            step = rows.dtype.type(rate_item * slopes[e] / n_in_batch[s])
            for f in range(n_moving):
                rows[s, f] += step * users[u, f]
    for e in batch:
        n_in_batch[slots[e]] = 0
        move_user(whose[e], n_of_user, gradients, users, rate_user, weight_decay)
    return loss


@kernel
def move_user(u, n_of_user, gradients, users, learning_rate, weight_decay):
    """Step of a user on the mean of its gradients in a batch, once; clears both."""
    if n_of_user[u] == 0:
        return
    keep = users.dtype.type(1.0 - 2.0 * learning_rate * weight_decay)
    step = users.dtype.type(learning_rate / n_of_user[u])
    n_of_user[u] = 0
    for f in range(users.shape[1]):
        users[u, f] = keep * users[u, f] - step * gradients[u, f]
        gradients[u, f] = 0


@kernel
def those_first(own, n):
    """The numbers below n, the `own` ones first."""
    order, k = np.empty(n, np.int64), len(own)
    order[:k] = own
    rest = np.ones(n, np.bool_)
    for f in own:
        rest[f] = False
    for f in range(n):
        if rest[f]:
            order[k] = f
            k += 1
    return order


@kernel
def visit(layout, feedback, turn, config, broadcast, moving, users, scale, sums, n_visits):
    """A round on the active clients of a block.

    Parameters
    ----------
    layout, feedback, turn, config, broadcast, users, scale : see above
    moving : (rate_item, length, column_indptr, columns)
        The coordinates of q that each client moves, the learning rate along them, and by what
        their changes are divided. FedMF moves all. In CoLR all vectors are in coordinates of
        which the first `rank` are those along the rows of B, which are `length` long.
    sums : (n_items, n_columns), receives the senders' summed changes over `length`
    n_visits : (n_items, 1) or (n_items, n_columns)
        Receives how many of them visited the item, or moved the coordinate.

    Returns
    -------
    loss, n_seen : sum of losses, each before its batch's step, and number of examples
    sound : (n_clients,) bool, whether what the client sends is finite
    """
    client_indptr, indptr, items = layout
    active, senders, seeds = turn
    n_negatives, local_epochs, batch_size, learning_rate, weight_decay, squared = config
    rate_item, length, column_indptr, columns = moving
    n_items, d = broadcast.shape
    size, n_users = room(layout, active, n_negatives)
    examples = empty_examples(size, users.dtype)
    order, slopes = np.empty(size, np.int32), np.empty(size, users.dtype)
    slot_of, visited = np.full(n_items, -1, np.int32), np.empty(n_items, np.int32)
    counts = np.zeros(n_items, np.int32), np.zeros(n_users, np.int32)
    gradients = np.zeros((n_users, d), users.dtype)
    rows = np.empty((min(n_items, size), d), users.dtype)
    mine = np.empty((n_users, d), users.dtype)
    stream = np.empty(1, np.uint64)
    sound = np.ones(len(active), np.bool_)
    loss, n_seen = 0.0, 0
    for c in range(len(active)):
        if not active[c]:
            continue
        first, last = client_indptr[c], client_indptr[c + 1]
        own = columns[column_indptr[c] : column_indptr[c + 1]]
        # What moves is in front.
        place = those_first(own, d)
        steps = (learning_rate, rate_item, len(own), weight_decay, squared)
        stream[0] = seeds[c]
        n = draw_examples(
            first, last, indptr, items, feedback, n_items, n_negatives, stream, examples
        )
        n_visited = take_slots(n, examples[1], slot_of, visited)
        for s in range(n_visited):
            for f in range(d):
                rows[s, f] = broadcast[visited[s], place[f]]
        for u in range(first, last):
            for f in range(d):
                mine[u - first, f] = users[u, place[f]]
        for e in range(n):
            order[e] = e
        for _ in range(local_epochs):
            shuffle(order, n, stream)
            for start in range(0, n, batch_size):
                batch = order[start : min(start + batch_size, n)]
                loss += batch_step(batch, examples, slopes, counts, gradients, rows, mine, steps)
            n_seen += n
        for u in range(first, last):
            for f in range(d):
                users[u, place[f]] = mine[u - first, f]
        sound[c] = is_finite(rows, n_visited) and is_finite(mine, last - first)
        sent = senders[c] and sound[c]
        factor = users.dtype.type(scale[c] / length)
        for s in range(n_visited):
            item = visited[s]
            slot_of[item] = -1
            if not sent:
                continue
            for k in range(len(own)):
                sums[item, own[k]] += factor * (rows[s, k] - broadcast[item, own[k]])
            if n_visits.shape[1] == 1:
                n_visits[item, 0] += 1
            else:
                for k in own:
                    n_visits[item, k] += 1
    return loss, n_seen, sound


@kernel
def fit_users(layout, feedback, whom, seed, config, broadcast, users):
    """Local epochs with frozen items for the users in `whom`.

    Negatives are drawn anew in every epoch. All users draw from the same stream, so that a
    user's vector depends on nothing but its own ratings.
    """
    _, indptr, items = layout
    n_negatives, local_epochs, batch_size, learning_rate, weight_decay, squared = config
    steps = (learning_rate, 0.0, 0, weight_decay, squared)
    n_items, d = broadcast.shape
    size = 0
    for u in whom:
        size = max(size, (indptr[u + 1] - indptr[u]) * (1 + n_negatives))
    examples = empty_examples(size, users.dtype)
    order, slopes = np.empty(size, np.int32), np.empty(size, users.dtype)
    counts = np.zeros(n_items, np.int32), np.zeros(1, np.int32)
    gradients = np.zeros((1, d), users.dtype)
    stream = np.empty(1, np.uint64)
    for u in whom:
        mine = users[u : u + 1]
        stream[0] = seed
        for _ in range(local_epochs):
            n = draw_examples(
                u, u + 1, indptr, items, feedback, n_items, n_negatives, stream, examples
            )
            for e in range(n):
                order[e] = e
            shuffle(order, n, stream)
            for start in range(0, n, batch_size):
                batch = order[start : min(start + batch_size, n)]
                batch_step(batch, examples, slopes, counts, gradients, broadcast, mine, steps)
