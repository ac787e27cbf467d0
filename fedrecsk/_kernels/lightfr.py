"""LightFR's clients and server, in integers.

Users' vectors are odd integers in [-limit, limit] and items' are +1 and -1, both packed as
:mod:`hamming` says. A user's visits are its own rows that count and its drawn negatives; a visit
has a weight w and a pull w t, both in fixed point, where t is the dot product that is aimed
at. Sums of integers do not depend on their order, so neither do the codes.
"""

from typing import NamedTuple

import numpy as np

from fedrecsk._kernels._jit import kernel, part
from fedrecsk._kernels.hamming import pack_row, popcount, unpack_row

# Honest sums are at rest after a few sweeps; forged ones need not be symmetric and may never be.
MOST_SWEEPS = 100

# What a client sends of each item that it visits.
NOTHING = 0
FULL = 1  # the gradient of its visits, and the sum of their weights
GRADIENT = 2  # the gradient without the bit's own part
VOTES = 3  # its own code of the item


class Layout(NamedTuple):
    """The users and ratings of a block's clients.

    Attributes
    ----------
    client_indptr : (n_clients + 1,), users of each client
    indptr : (n_users + 1,), ratings of each user
    items : (n_ratings,), ascending within a user
    """

    client_indptr: np.ndarray
    indptr: np.ndarray
    items: np.ndarray


class Targets(NamedTuple):
    """What each rating pulls at.

    Attributes
    ----------
    chosen : (n_ratings,) bool, whether it counts
    pulls, weights : (n_ratings,) int64, w t and w
    negative_pulls : (n_ratings,) int64, w t of the negatives drawn for it
    """

    chosen: np.ndarray
    pulls: np.ndarray
    weights: np.ndarray
    negative_pulls: np.ndarray


class Negatives(NamedTuple):
    """How negatives are drawn: a seed for each user, (n_users,) uint64, and how many a rating."""

    seeds: np.ndarray
    n_negatives: int


class Items(NamedTuple):
    """The items as the clients have received them.

    Attributes
    ----------
    codes : (n_items, n_words) uint64
    signs : (n_items, n_bits) int8
    products, sums : (n_bits, n_bits) and (n_bits,) int64, D'D and D'1
    base, base_pull : int, weight and pull of every pair of user and item
    """

    codes: np.ndarray
    signs: np.ndarray
    products: np.ndarray
    sums: np.ndarray
    base: int
    base_pull: int


class Rule(NamedTuple):
    """A client's step.

    Attributes
    ----------
    limit : int, largest entry of a user's vector
    moves : bool, whether users' vectors move at all
    n_sweeps : int, 0 for as many as it takes
    balance, shrinkage : int, weights of (sum a)^2 and of |a|^2
    crowd : (n_bits,) int64, linear term
    item_balance : int, weight of (sum d)^2 where clients vote
    """

    limit: int
    moves: bool
    n_sweeps: int
    balance: int
    shrinkage: int
    crowd: np.ndarray
    item_balance: int


class Upload(NamedTuple):
    """Where clients write what they send; sums begin with zeros.

    Attributes
    ----------
    sends : int, one of the module's four
    each : bool, client by client instead of added up
    indptr : (n_clients + 1,) int64, receives the number of rows of the clients before
    rows : (n_own,) int64, receives each client's items in ascending order; scratch if not `each`
    values : (n_own or n_items, n_bits, or n_bits + 1 if FULL) int64
        The rows, in the order of `rows` if `each`, else added by item.
    gram, total : (n_out, n_bits, n_bits, or 0 unless FULL) and (n_out, n_bits) int64
        Sums over users of a a' and of a; n_out is 1, or the number of active clients if `each`.
    """

    sends: int
    each: bool
    indptr: np.ndarray
    rows: np.ndarray
    values: np.ndarray
    gram: np.ndarray
    total: np.ndarray


class Visits(NamedTuple):
    """Scratch: the visits of one client; `words` has its items' codes, (n_words, n_visits)."""

    users: np.ndarray
    items: np.ndarray
    pulls: np.ndarray
    weights: np.ndarray
    left: np.ndarray
    dots: np.ndarray
    words: np.ndarray


# -------------------------------------------------------------------------------- visits


@part
def room(layout, negatives, active):
    """The most visits and the most users that an active client can have."""
    n_visits, n_users, each = 0, 0, 1
    if negatives is not None:
        each += negatives.n_negatives
    for c in range(len(active)):
        if active[c]:
            first, last = layout.client_indptr[c], layout.client_indptr[c + 1]
            n_rated = layout.indptr[last] - layout.indptr[first]
            n_visits = max(n_visits, n_rated * each)
            n_users = max(n_users, last - first)
    return n_visits, n_users


@part
def empty_visits(n_visits, n_words):
    """Room for so many visits."""
    work = np.empty((6, n_visits), np.int64)
    words = np.empty((n_words, n_visits), np.uint64)
    return Visits(work[0], work[1], work[2], work[3], work[4], work[5], words)


@part
def draw(state, items, n_items):
    """A random item that is not among `items`, which ascend."""
    # Splitmix64's output step; the upper half of it scaled to the number of free items.
    x = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    n_free = np.uint64(n_items - len(items))
    rank = np.int64(((x >> np.uint64(32)) * n_free) >> np.uint64(32))
    # Free items below items[j] number items[j] - j; the search has no branch to mispredict.
    low, n = 0, len(items)
    while n > 0:
        half = (n + 1) >> 1
        middle = low + half - 1
        low += half * (items[middle] - middle <= rank)
        n -= half
    return rank + low


@part
def visit(layout, targets, negatives, u, who, n, item_codes, visits):
    """Append user u's visits, as those of the client's user `who`; returns their number.

    Each of its rows that count is followed by its negatives.
    """
    first, last = layout.indptr[u], layout.indptr[u + 1]
    start, n_drawn = n, np.int64(0)
    for r in range(first, last):
        if not targets.chosen[r]:
            continue
        visits.items[n], visits.pulls[n] = layout.items[r], targets.pulls[r]
        visits.weights[n] = targets.weights[r]
        n += 1
        if negatives is None or last - first == len(item_codes):
            continue
        for _ in range(negatives.n_negatives):
            n_drawn += 1
            state = negatives.seeds[u] + np.uint64(n_drawn) * np.uint64(0x9E3779B97F4A7C15)
            visits.items[n] = draw(state, layout.items[first:last], len(item_codes))
            visits.pulls[n], visits.weights[n] = targets.negative_pulls[r], targets.weights[r]
            n += 1
    for q in range(start, n):
        visits.users[q] = who
    for w in range(item_codes.shape[1]):
        for q in range(start, n):
            visits.words[w, q] = item_codes[visits.items[q], w]
    return n


@part
def similarities(planes, top, words, start, dots):
    """Dot products a . d of one user with the items of its visits."""
    for q in range(len(dots)):
        dots[q] = top
    for w in range(planes.shape[1]):
        codes = words[w][start : start + len(dots)]
        for p in range(planes.shape[0]):
            plane = planes[p, w]
            for q in range(len(dots)):
                dots[q] -= np.int64(popcount(plane ^ codes[q])) << (p + 1)


# --------------------------------------------------------------------------------- users


@part
def from_planes(planes, scratch, a):
    """A user's vector from its planes."""
    for k in range(len(a)):
        a[k] = 0
    for p in range(len(planes)):
        unpack_row(planes[p], scratch)
        for k in range(len(a)):
            a[k] += scratch[k] << p


@part
def to_planes(a, limit, scratch, planes):
    """A user's planes from its vector, the inverse of :func:`from_planes`."""
    for p in range(len(planes)):
        for k in range(len(a)):
            scratch[k] = (((a[k] + limit) >> 1) >> p) & 1
        pack_row(scratch, planes[p])


@part
def added(numbers):
    """Sum of integers; NumPy's takes long to compile."""
    total = np.int64(0)
    for k in range(len(numbers)):
        total += numbers[k]
    return total


@part
def some(numbers):
    """Whether any is not zero."""
    n = 0
    for k in range(len(numbers)):
        n += numbers[k] != 0
    return n > 0


@part
def product(matrix, a, out):
    """A symmetric matrix times a vector."""
    for k in range(len(a)):
        out[k] = 0
    for other in range(len(a)):
        row, x = matrix[other], a[other]
        for k in range(len(a)):
            out[k] += row[k] * x


@part
def signed_sum(left, words, bit):
    """Sum of `left`, each with the sign of one bit of its word."""
    total = np.int64(0)
    shift = np.uint64(bit)
    for q in range(len(left)):
        mask = np.int64((words[q] >> shift) & np.uint64(1)) - 1
        total += (left[q] ^ mask) - mask
    return total


@part
def shift_residuals(left, words, weights, bit, step):
    """Take ``w step d`` off the residuals after the user's vector moved by `step` at a bit."""
    shift = np.uint64(bit)
    for q in range(len(left)):
        mask = np.int64((words[q] >> shift) & np.uint64(1)) - 1
        change = weights[q] * step
        left[q] -= (change ^ mask) - mask


@part
def nearest_odd(top, bottom, old, limit):
    """The odd integer in [-limit, limit] nearest to top / bottom; of two, the old one if it is."""
    below = top // (2 * bottom)
    new = 2 * below + 1
    if below * 2 * bottom == top and old == new - 2:
        new = old
    return min(max(new, -limit), limit)


@part
def fit_user(a, words, start, left, weights, items, background, rule):
    """Coordinate descent on one user's vector, bit by bit, until nothing changes.

    Minimises ``sum_visits w (t - a.d)^2 + base sum_items (t0 - a.d)^2 + balance (sum a)^2
    + shrinkage |a|^2 + 2 crowd.a`` over the odd integers.

    Parameters
    ----------
    a : (n_bits,) int64, in and out
    words, start : codes of the visited items, ``words[:, start : start + n_visits]``
    left, weights : (n_visits,) int64, the visits' residuals, kept up to date, and weights
    items : Items
    background : (n_bits,) int64, D'D a, kept up to date if there is a base
    rule : Rule
    """
    n_bits, n_visits, base = len(a), len(left), items.base
    curvature = added(weights) + base * len(items.codes) + rule.balance + rule.shrinkage
    if curvature == 0 and not some(rule.crowd):
        return
    curvature = max(curvature, 1)
    total = added(a)
    sweep = 0
    while True:
        changed = False
        for k in range(n_bits):
            mine = words[k // 64][start : start + n_visits]
            pull = signed_sum(left, mine, k % 64)
            pull += items.base_pull * items.sums[k] - base * background[k] - rule.balance * total
            pull -= rule.crowd[k] + rule.shrinkage * a[k]
            new = nearest_odd(pull + curvature * a[k], curvature, a[k], rule.limit)
            if new == a[k]:
                continue
            step = new - a[k]
            shift_residuals(left, mine, weights, k % 64, step)
            total += step
            if base > 0:
                row = items.products[k]
                for other in range(n_bits):
                    background[other] += row[other] * step
            a[k] = new
            changed = True
        sweep += 1
        if not changed or sweep == rule.n_sweeps:
            break


@part
def loss_of_visits(left, weights, dots, items):
    """Squared error of a user's visits, and their weights."""
    base, base_pull = items.base, items.base_pull
    loss, weight = 0.0, 0.0
    for q in range(len(left)):
        weight += weights[q]
        if base == 0:
            loss += float(left[q]) ** 2 / max(weights[q], 1)
        else:
            loss += float(left[q] + base_pull - base * dots[q]) ** 2 / (weights[q] + base)
            loss -= base * (base_pull / base - dots[q]) ** 2
    return loss, weight


@part
def loss_of_all_items(a, background, items):
    """Squared error of a user's pairs with all items as if none were visited."""
    aim = items.base_pull / items.base
    square, along = np.int64(0), np.int64(0)
    for k in range(len(a)):
        square += a[k] * background[k]
        along += a[k] * items.sums[k]
    return items.base * (len(items.codes) * aim * aim - 2 * aim * along + square)


# ------------------------------------------------------------------------ what is sent


@part
def collect(visited, n_visits, marks, rows):
    """Write the visited items in ascending order, each once; returns their number.

    `marks` has a bit for each item, all of them 0 before and after.
    """
    for q in range(n_visits):
        marks[visited[q] >> 6] |= np.uint64(1) << np.uint64(visited[q] & 63)
    n = 0
    for w in range(len(marks)):
        word = marks[w]
        while word != 0:
            rows[n] = (w << 6) + np.int64(popcount((word - np.uint64(1)) & ~word))
            word &= word - np.uint64(1)
            n += 1
        marks[w] = 0
    return n


@part
def clear(upload, rows, first, out, slots):
    """Give a client's rows their places from `first` on, and begin all it sends with zeros."""
    for j in range(len(rows)):
        slots[rows[j]] = first + j
        for k in range(upload.values.shape[1]):
            upload.values[first + j, k] = 0
    for k in range(upload.total.shape[1]):
        upload.total[out, k] = 0
        for other in range(upload.gram.shape[2]):
            upload.gram[out, k, other] = 0


@part
def add_users(vectors, n_users, gram, total):
    """Add a client's a a' and a."""
    n_bits = vectors.shape[1]
    for u in range(n_users):
        a = vectors[u]
        for k in range(n_bits):
            total[k] += a[k]
        for k in range(n_bits):
            row, x = gram[k], a[k]
            for other in range(gram.shape[1]):
                row[other] += x * a[other]


@part
def add_gradients(visits, n_visits, vectors, slots, upload, rule, signs):
    """Add what each visit pulls at its item."""
    n_bits = vectors.shape[1]
    for q in range(n_visits):
        i, rest, weight = visits.items[q], visits.left[q], visits.weights[q]
        a, row = vectors[visits.users[q]], upload.values[slots[i]]
        if upload.sends == FULL:
            for k in range(n_bits):
                row[k] += rest * a[k]
            row[n_bits] += weight
        elif rule.limit == 1:
            # Signs instead of products, and a^2 = 1.
            for k in range(n_bits):
                s = np.int64(signs[i, k] >> 1)
                row[k] += (rest ^ (a[k] >> 1)) - (a[k] >> 1) + (weight ^ s) - s
        else:
            for k in range(n_bits):
                row[k] += (rest + weight * a[k] * signs[i, k]) * a[k]


@part
def add_votes(visits, n_visits, rows, vectors, slots, upload, rule, items, heads, links):
    """Add one client's own codes of the items that it visits, found bit by bit.

    `heads` (n_items,) and `links` (n_visits,) are scratch: the visits of each item in a list.
    """
    n_bits = vectors.shape[1]
    d = np.empty(n_bits, np.int64)
    for i in rows:
        heads[i] = -1
    for q in range(n_visits):
        i = visits.items[q]
        links[q], heads[i] = heads[i], q
    for i in rows:
        unpack_row(items.codes[i], d)
        total = added(d)
        row = upload.values[slots[i]]
        for k in range(n_bits):
            pull, own, q = -rule.item_balance * (total - d[k]), np.int64(0), heads[i]
            while q >= 0:
                x = vectors[visits.users[q], k]
                pull += visits.left[q] * x
                own += visits.weights[q] * x * x
                q = links[q]
            if pull * d[k] + own < 0:
                q = heads[i]
                while q >= 0:
                    x = vectors[visits.users[q], k]
                    visits.left[q] += 2 * visits.weights[q] * x * d[k]
                    q = links[q]
                total -= 2 * d[k]
                d[k] = -d[k]
            row[k] += d[k]


# ------------------------------------------------------------------------------- clients


@kernel
def clients(layout, targets, negatives, items, rule, active, senders, codes, upload, heads):
    """One update of the active clients of a block: users' codes, then what is uploaded.

    Parameters
    ----------
    layout, targets, negatives, items, rule : of these classes; negatives None for none
    active : (n_clients,) bool
    senders : (n_clients,) bool, clients whose uploads are written, all active ones if each; the
        others' rows are counted
    codes : (n_users, n_planes, n_words) uint64, in and out
    upload : Upload, receives
    heads : (n_items,) int64, scratch if clients vote; else None

    Returns
    -------
    loss, weight : float
        Squared error between target and similarity, and weight, of all pairs that count; both in
        fixed point.
    """
    n_items, n_bits, n_words = len(items.codes), len(rule.crowd), items.codes.shape[1]
    top = rule.limit * n_bits
    most_visits, most_users = room(layout, negatives, active)
    visits = empty_visits(most_visits, n_words)
    vectors = np.empty((most_users, n_bits), np.int64)
    scratch, background = np.empty(n_bits, np.int64), np.empty(n_bits, np.int64)
    n_marks = ((n_items + 63) >> 6) if upload.sends != NOTHING else 0
    marks, slots = np.empty(n_marks, np.uint64), np.empty(n_marks << 6, np.int64)
    for w in range(len(marks)):
        marks[w] = 0
    for i in range(len(slots)):
        slots[i] = i
    links = np.empty(most_visits if heads is not None else 0, np.int64)
    loss, weight = 0.0, 0.0
    out = 0
    if upload.sends != NOTHING:
        upload.indptr[0] = 0
    for c in range(len(active)):
        # Not a literal 0, which would compile its callees once more.
        n_visits = np.int64(0)
        if active[c]:
            for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
                who, start = u - layout.client_indptr[c], n_visits
                n_visits = visit(layout, targets, negatives, u, who, start, items.codes, visits)
                a, weights = vectors[who], visits.weights[start:n_visits]
                left, dots = visits.left[start:n_visits], visits.dots[start:n_visits]
                similarities(codes[u], top, visits.words, start, dots)
                for q in range(len(left)):
                    left[q] = visits.pulls[start + q] - weights[q] * dots[q]
                from_planes(codes[u], scratch, a)
                if items.base > 0:
                    product(items.products, a, background)
                if rule.moves:
                    fit_user(a, visits.words, start, left, weights, items, background, rule)
                    to_planes(a, rule.limit, scratch, codes[u])
                if items.base > 0:
                    similarities(codes[u], top, visits.words, start, dots)
                    loss += loss_of_all_items(a, background, items)
                    weight += items.base * float(n_items)
                more = loss_of_visits(left, weights, dots, items)
                loss += more[0]
                weight += more[1]
        if upload.sends == NOTHING:
            continue
        first = upload.indptr[c] if upload.each else 0
        n_rows = collect(visits.items, n_visits, marks, upload.rows[first:])
        upload.indptr[c + 1] = upload.indptr[c] + n_rows
        if not (active[c] and senders[c]):
            continue
        rows = upload.rows[first : first + n_rows]
        if upload.each:
            clear(upload, rows, first, out, slots)
        n_users = layout.client_indptr[c + 1] - layout.client_indptr[c]
        add_users(vectors, n_users, upload.gram[out], upload.total[out])
        out += upload.each
        if heads is not None:
            add_votes(visits, n_visits, rows, vectors, slots, upload, rule, items, heads, links)
        else:
            add_gradients(visits, n_visits, vectors, slots, upload, rule, items.signs)
    return loss / (2.0 * top) ** 2, weight


# -------------------------------------------------------------------------------- server


class ServerRule(NamedTuple):
    """The server's step.

    Attributes
    ----------
    base, base_pull : int, weight and pull of every pair of user and item
    balance : int, weight of the balance term
    across : bool, whether the balance is across items instead of within a code
    """

    base: int
    base_pull: int
    balance: int
    across: bool


@part
def column_sums(codes, d, sums):
    """Sum of the codes' +1 and -1, bit by bit."""
    for k in range(len(sums)):
        sums[k] = 0
    for i in range(len(codes)):
        unpack_row(codes[i], d)
        for k in range(len(sums)):
            sums[k] += d[k]


@kernel
def step_by_curvature(item_codes, rows, gram, total, n_users, rule):
    """The server's step where users have sent a a' and a: bit by bit until nothing changes.

    Item i's loss is quadratic in d. Its gradient is known; its curvature is taken as that of all
    users, ``base sum a a'``, times one plus the item's mass a user.

    Parameters
    ----------
    item_codes : (n_items, n_words) uint64, in and out
    rows : (n_items, n_bits + 1) int64, gradients and, in the last column, masses
    gram, total : (n_bits, n_bits) and (n_bits,) int64
    n_users : int, how many users they are from
    rule : ServerRule
    """
    n_bits = len(total)
    d, left, counts = (
        np.empty(n_bits, np.int64),
        np.empty(n_bits, np.int64),
        np.empty(n_bits, np.int64),
    )
    column_sums(item_codes, d, counts)
    for i in range(len(item_codes)):
        unpack_row(item_codes[i], d)
        product(gram, d, left)
        for k in range(n_bits):
            left[k] = rows[i, k] + rule.base_pull * total[k] - rule.base * left[k]
        curvature = rule.base + rows[i, n_bits] // n_users
        within = added(d)
        for _ in range(MOST_SWEEPS):
            changed = False
            for k in range(n_bits):
                old = d[k]
                pull = left[k] + curvature * gram[k, k] * old
                pull -= rule.balance * ((counts[k] if rule.across else within) - old)
                if pull * old >= 0:
                    continue
                row, factor = gram[k], 2 * curvature * old
                for other in range(n_bits):
                    left[other] += factor * row[other]
                d[k] = -old
                within -= 2 * old
                counts[k] -= 2 * old
                changed = True
            if not changed:
                break
        pack_row(d, item_codes[i])


@kernel
def step_by_sign(item_codes, memory, rule):
    """The server's step of the paper: the sign of what was sent, bit by bit; a tie keeps the bit.

    Parameters
    ----------
    item_codes : (n_items, n_words) uint64, in and out
    memory : (n_items, n_bits) int64
    rule : ServerRule
    """
    n_bits = memory.shape[1]
    d, counts = np.empty(n_bits, np.int64), np.empty(n_bits, np.int64)
    column_sums(item_codes, d, counts)
    for i in range(len(item_codes)):
        unpack_row(item_codes[i], d)
        within = added(d)
        for k in range(n_bits):
            old = d[k]
            pull = memory[i, k] - rule.balance * ((counts[k] if rule.across else within) - old)
            if pull * old < 0:
                d[k] = -old
                within -= 2 * old
                counts[k] -= 2 * old
        pack_row(d, item_codes[i])
