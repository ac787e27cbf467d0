"""LightFR's clients and server, in integers.

Users' vectors are odd integers in [-limit, limit] and items' are +1 and -1, both packed as
:mod:`fedrecsk.models._score_kernels` says. A user's visits are its own rows that count and its
drawn negatives; a visit has a weight w and a target t, the dot product that is aimed at, both in
fixed point. Sums of integers do not depend on their order, so neither do the codes.
"""

from typing import NamedTuple

import numpy as np

from fedrecsk._utils.integers import GOLDEN
from fedrecsk._utils.jit import inline, kernel
from fedrecsk._utils.shared_kernels import uniform, unseen_item
from fedrecsk.models._codes import n_words
from fedrecsk.models._score_kernels import popcount

# Honest sums converge in a few sweeps. Forged ones need not be symmetric and may never.
MOST_SWEEPS = 100


class Rows(NamedTuple):
    """The users' rows."""

    indptr: np.ndarray  # (n_users + 1,), rows of each user
    items: np.ndarray  # (n_rows,), ascending within a user
    chosen: np.ndarray  # (n_rows,) bool, whether it counts
    # (n_rows,) int64 each, w t and w
    targets: np.ndarray
    weights: np.ndarray
    negative_targets: np.ndarray  # (n_rows,) int64, w t of the negatives drawn for it


class Items(NamedTuple):
    """The items as the clients have received them."""

    codes: np.ndarray  # (n_items, n_words) uint64
    signs: np.ndarray  # (n_items, n_bits) int8
    sums: np.ndarray  # (n_bits,) int64, D'1
    products: np.ndarray  # (n_bits, n_bits) int64, D'D if base > 0
    # base, base_target: int, w and w t of every pair of user and item; 0 for none
    base: int
    base_target: int


class Rule(NamedTuple):
    """A client's step."""

    limit: int  # largest entry of a user's vector
    moves: bool  # whether users' vectors move at all
    n_sweeps: int  # 0 for as many as it takes
    n_negatives: int  # drawn for each row
    balance: int  # weight of (sum a)^2
    # reg, sparse_reg: int. Weight of |a - mean|^2; the latter over the number of visits, where
    # that is more.
    reg: int
    sparse_reg: int
    mean: np.ndarray  # (n_bits,) float64
    votes: bool  # whether clients send their own codes of the items
    item_balance: int  # weight of (sum d)^2 where clients vote


class Visits(NamedTuple):
    """Scratch: the visits of one client's users, one user after the other."""

    # users, items: (n_visits,) int64, the client's users counted from 0, and the items
    users: np.ndarray
    items: np.ndarray
    # left, weights: (n_visits,) int64, residuals w (t - a.d), and w
    left: np.ndarray
    weights: np.ndarray
    vectors: np.ndarray  # (n_users, n_bits) int64, the users' vectors
    # words, dots: (n_words, n_visits) uint64, (n_visits,) int64. The items' codes, and a.d, of
    # one user's visits.
    words: np.ndarray
    dots: np.ndarray
    background: np.ndarray  # (n_bits,) int64, D'D a of one user
    signs: np.ndarray  # (n_bits,) int64, an item's code
    # heads, links: (n_items,), (n_visits,) int64, the visits of each item, linked
    heads: np.ndarray
    links: np.ndarray


class Upload(NamedTuple):
    """Where clients write what they send; numbers begin with zeros."""

    sends: bool  # whether anything is sent
    each: bool  # client by client instead of added up
    # (n_clients,) bool, whose uploads are written; the others' rows are counted
    delivers: np.ndarray
    n_rows: np.ndarray  # (n_clients,) int64, receives how many items each client visits
    # (n_own,) int64, receives each client's items in ascending order; scratch if not `each`
    rows: np.ndarray
    slots: np.ndarray  # (n_items,) int64, the row of `values` that an item adds to
    # (n_own or n_items, n_bits or one more) int64. The rows, in the order of `rows` if `each`,
    # else added by item.
    values: np.ndarray
    # gram, total: (n_out, n_bits, n_bits or 0) and (n_out, n_bits) int64. Sums over users of a
    # a' and of a; n_out is 1, or the number of clients if `each`.
    gram: np.ndarray
    total: np.ndarray
    marks: np.ndarray  # (n_items / 64,) uint64, scratch of zeros


def visits_of(block, n_visits, n_bits):
    """Return scratch for any client of the block with at most this number of visits."""
    most_users = np.diff(block.client_indptr).max(initial=0)
    return Visits(
        *np.empty((4, n_visits), dtype=np.int64),
        np.empty((most_users, n_bits), dtype=np.int64),
        np.empty((n_words(n_bits), n_visits), dtype=np.uint64),
        np.empty(n_visits, dtype=np.int64),
        *np.empty((2, n_bits), dtype=np.int64),
        np.empty(block.n_items, dtype=np.int64),
        np.empty(n_visits, dtype=np.int64),
    )


def empty_upload(block, turn, n_visits, n_bits, full, sends):
    """Return where to write what is sent; `n_visits` are those of active clients."""
    n_items, n_own, n_out = block.n_items, 0, 0
    if sends:
        n_own, n_out = n_items, 1
    if sends and turn.separate:
        n_own, n_out = np.minimum(n_visits, n_items).sum(), block.n_clients
    return Upload(
        sends,
        turn.separate,
        turn.active if turn.separate else turn.delivers,
        np.zeros(block.n_clients, dtype=np.int64),
        np.empty(n_own, dtype=np.int64),
        np.arange(n_items),
        np.zeros((n_own, n_bits + full), dtype=np.int64),
        np.zeros((n_out, n_bits, n_bits if full else 0), dtype=np.int64),
        np.zeros((n_out, n_bits), dtype=np.int64),
        np.zeros(-(-n_items // 64), dtype=np.uint64),
    )


# -------------------------------------------------------------------------------- clients


@kernel
def update_clients(clients, indptr, rows, seeds, items, rule, codes, visits, out):
    """Update the users' codes of some clients, and write what these send.

    Returns ``(2 rule.limit n_bits)^2`` times the squared error of all pairs that count, and their
    weight; both in fixed point.
    """
    loss, weight = 0.0, 0.0
    # Zeros of one type, or numba would compile what they are passed to once more.
    first, none = np.int64(0), np.int64(0)
    dots, words, background = visits.dots, visits.words, visits.background
    for c in clients:
        n = none
        for u in range(indptr[c], indptr[c + 1]):
            start, j = n, u - indptr[c]
            n = visit(u, j, start, rows, seeds[u], rule.n_negatives, items.codes, visits)
            left, weights = visits.left[start:n], visits.weights[start:n]
            a = visits.vectors[j]
            from_planes(codes[u], rule.limit, a)
            measure(codes[u], rule.limit * len(a), left, weights, dots, words)
            for k in range(len(a)):
                background[k] = 0
            for other in range(len(items.products)):
                for k in range(len(a)):
                    background[k] += items.products[other, k] * a[other]
            if rule.moves:
                fit_user(a, left, weights, dots, words, background, items, rule)
                to_planes(a, rule.limit, codes[u])
            more = loss_of(a, left, weights, dots, background, items)
            loss += more[0]
            weight += more[1]
        if not out.sends:
            continue
        n_rows = collect(n, visits.items, out.marks, out.rows, first)
        out.n_rows[c] = n_rows
        if out.each:
            for r in range(first, first + n_rows):
                out.slots[out.rows[r]] = r
        if out.delivers[c]:
            place = c if out.each else none
            for j in range(indptr[c + 1] - indptr[c]):
                for k in range(visits.vectors.shape[1]):
                    x = visits.vectors[j, k]
                    out.total[place, k] += x
                    for other in range(out.gram.shape[2]):
                        out.gram[place, k, other] += x * visits.vectors[j, other]
            if rule.votes:
                add_votes(n, out.rows[first : first + n_rows], visits, items.signs, rule, out)
            else:
                add_gradients(n, visits, items, out)
        if out.each:
            first += n_rows
    return loss, weight


@inline
def visit(u, j, start, rows, seed, n_negatives, item_codes, visits):
    """List user u's visits from `start` on, each row before its negatives; return their end."""
    first, last = rows.indptr[u], rows.indptr[u + 1]
    n_unseen = len(item_codes) - (last - first)
    if n_unseen == 0:
        n_negatives = 0
    n, state = start, seed
    for r in range(first, last):
        if not rows.chosen[r]:
            continue
        visits.items[n], visits.left[n] = rows.items[r], rows.targets[r]
        visits.weights[n] = rows.weights[r]
        n += 1
        for _ in range(n_negatives):
            state += GOLDEN
            rank = np.int64(uniform(state) * n_unseen)
            visits.items[n] = unseen_item(rank, rows.items, first, last)
            visits.left[n], visits.weights[n] = rows.negative_targets[r], rows.weights[r]
            n += 1
    for q in range(start, n):
        visits.users[q] = j
        for w in range(item_codes.shape[1]):
            visits.words[w, q - start] = item_codes[visits.items[q], w]
    return n


@inline
def measure(planes, top, left, weights, dots, words):
    """Take the dot products a.d of one user with its visits, and subtract them from `left`."""
    for q in range(len(left)):
        dots[q] = top
    for w in range(planes.shape[1]):
        for p in range(planes.shape[0]):
            plane = planes[p, w]
            for q in range(len(left)):
                dots[q] -= np.int64(popcount(plane ^ words[w, q])) << (p + 1)
    for q in range(len(left)):
        left[q] -= weights[q] * dots[q]


@inline
def from_planes(planes, limit, a):
    """Set a user's vector from its planes."""
    for k in range(len(a)):
        level = np.int64(0)
        for p in range(planes.shape[0]):
            level |= np.int64((planes[p, k >> 6] >> np.uint64(k & 63)) & np.uint64(1)) << p
        a[k] = 2 * level - limit


@inline
def to_planes(a, limit, planes):
    """Set a user's planes from its vector."""
    for p in range(planes.shape[0]):
        for w in range(planes.shape[1]):
            planes[p, w] = 0
        for k in range(len(a)):
            bit = np.uint64((((a[k] + limit) >> 1) >> p) & 1)
            planes[p, k >> 6] |= bit << np.uint64(k & 63)


@inline
def nearest_odd(top, bottom, old, limit):
    """Return the odd integer in [-limit, limit] nearest to top / bottom, the old one if tied."""
    below = top // (2 * bottom)
    new = 2 * below + 1
    if below * 2 * bottom == top and old == new - 2:
        new = old
    return min(max(new, -limit), limit)


@inline
def fit_user(a, left, weights, dots, words, background, items, rule):
    """Descend along the coordinates of one user's vector, until nothing changes.

    Minimises ``sum_visits w (t - a.d)^2 + base sum_items (t0 - a.d)^2 + balance (sum a)^2
    + reg |a - mean|^2`` over the odd integers, and keeps the residuals, `dots` and
    `background` up to date.
    """
    n_bits, n, base = len(a), len(left), items.base
    reg = max(rule.reg, rule.sparse_reg // max(n, 1))
    curvature, total = base * len(items.codes) + rule.balance + reg, np.int64(0)
    for q in range(n):
        curvature += weights[q]
    if curvature == 0:
        return
    for k in range(n_bits):
        total += a[k]
    sweep = 0
    while True:
        changed = False
        for k in range(n_bits):
            word, shift, old = k >> 6, np.uint64(k & 63), a[k]
            gradient = items.base_target * items.sums[k] - rule.balance * total
            gradient += np.int64(np.floor(reg * rule.mean[k] + 0.5)) - reg * old
            for q in range(n):
                # Negate where the item's bit is 0.
                mask = np.int64((words[word, q] >> shift) & np.uint64(1)) - 1
                gradient += (left[q] ^ mask) - mask
            gradient -= base * background[k]
            new = nearest_odd(gradient + curvature * old, curvature, old, rule.limit)
            step = new - old
            if step == 0:
                continue
            for q in range(n):
                mask = np.int64((words[word, q] >> shift) & np.uint64(1)) - 1
                change = (step ^ mask) - mask
                dots[q] += change
                left[q] -= weights[q] * change
            total += step
            for other in range(len(items.products)):
                background[other] += items.products[k, other] * step
            a[k] = new
            changed = True
        sweep += 1
        if not changed or sweep == rule.n_sweeps:
            break


@inline
def loss_of(a, left, weights, dots, background, items):
    """Squared error of a user's pairs that count, and their weights."""
    # All items as if none were visited, and then what is different of the visited ones.
    base, square, along = items.base, np.int64(0), np.int64(0)
    aim = items.base_target / max(base, 1)
    for k in range(len(a)):
        square += a[k] * background[k]
        along += a[k] * items.sums[k]
    loss = base * (len(items.codes) * aim * aim - 2 * aim * along + square)
    weight = base * float(len(items.codes))
    for q in range(len(left)):
        rest = float(left[q] + items.base_target - base * dots[q])
        loss += rest * rest / max(weights[q] + base, 1) - base * (aim - dots[q]) * (aim - dots[q])
        weight += weights[q]
    return loss, weight


# ------------------------------------------------------------------------ what is sent


@inline
def collect(n, visited, marks, rows, first):
    """Write the visited items from `first` on, ascending, each once; return how many."""
    for q in range(n):
        marks[visited[q] >> 6] |= np.uint64(1) << np.uint64(visited[q] & 63)
    end = first
    for w in range(len(marks)):
        word = marks[w]
        while word != np.uint64(0):
            rows[end] = (w << 6) + np.int64(popcount((word - np.uint64(1)) & ~word))
            word &= word - np.uint64(1)
            end += 1
        marks[w] = 0
    return end - first


@inline
def add_gradients(n, visits, items, out):
    """Add each visit's gradient in its item: all of it and w, or without the bit's own part."""
    n_bits = len(items.sums)
    for q in range(n):
        i, rest, weight = visits.items[q], visits.left[q], visits.weights[q]
        a, values = visits.vectors[visits.users[q]], out.values[out.slots[i]]
        if items.base > 0:
            for k in range(n_bits):
                values[k] += rest * a[k]
            values[n_bits] += weight
        else:
            for k in range(n_bits):
                values[k] += (rest + weight * a[k] * items.signs[i, k]) * a[k]


@inline
def add_votes(n, rows, visits, signs, rule, out):
    """Add one client's own codes of the items that it visits, found bit by bit."""
    heads, links, d, n_bits = visits.heads, visits.links, visits.signs, len(visits.signs)
    for i in rows:
        heads[i] = -1
    for q in range(n):
        i = visits.items[q]
        links[q], heads[i] = heads[i], q
    for i in rows:
        total = np.int64(0)
        for k in range(n_bits):
            d[k] = signs[i, k]
            total += d[k]
        for k in range(n_bits):
            gradient, own, q = -rule.item_balance * (total - d[k]), np.int64(0), heads[i]
            while q >= 0:
                x = visits.vectors[visits.users[q], k]
                gradient += visits.left[q] * x
                own += visits.weights[q] * x * x
                q = links[q]
            if gradient * d[k] + own < 0:
                q = heads[i]
                while q >= 0:
                    x = visits.vectors[visits.users[q], k]
                    visits.left[q] += 2 * visits.weights[q] * x * d[k]
                    q = links[q]
                total -= 2 * d[k]
                d[k] = -d[k]
            out.values[out.slots[i], k] += d[k]


# -------------------------------------------------------------------------------- server


@kernel
def step_by_curvature(item_codes, signs, gradients, curvatures, gram, balance):
    """Take the server's step on sums of a a' and a, bit by bit until nothing changes.

    Item i's loss is quadratic in d. Its gradient is known; its curvature is taken as that of all
    users, ``base sum a a'``, times one plus the item's weight per user.
    """
    n_bits = signs.shape[1]
    for i in range(len(item_codes)):
        total, curvature = np.int64(0), curvatures[i]
        for k in range(n_bits):
            total += signs[i, k]
        for _ in range(MOST_SWEEPS):
            changed = False
            for k in range(n_bits):
                old = np.int64(signs[i, k])
                gradient = gradients[i, k] + curvature * gram[k, k] * old
                gradient -= balance * (total - old)
                if gradient * old >= 0:
                    continue
                factor = 2 * curvature * old
                for other in range(n_bits):
                    gradients[i, other] += factor * gram[k, other]
                signs[i, k] = -old
                item_codes[i, k >> 6] ^= np.uint64(1) << np.uint64(k & 63)
                total -= 2 * old
                changed = True
            if not changed:
                break


@kernel
def step_by_sign(item_codes, signs, sums, balance):
    """Take the paper's step: the sign of what was sent, bit by bit; a tie keeps the bit."""
    for i in range(len(item_codes)):
        total = np.int64(0)
        for k in range(signs.shape[1]):
            total += signs[i, k]
        for k in range(signs.shape[1]):
            old = np.int64(signs[i, k])
            if (sums[i, k] - balance * (total - old)) * old < 0:
                item_codes[i, k >> 6] ^= np.uint64(1) << np.uint64(k & 63)
                total -= 2 * old
