"""LightFR's clients and server, in integers.

Users' vectors are odd integers in [-limit, limit] and items' are +1 and -1, both packed as
:mod:`hamming` says. A user's visits are its own rows that count and its drawn negatives; a visit
has a weight w and a pull w t, both in fixed point, where t is the dot product that is aimed
at. Sums of integers do not depend on their order, so neither do the codes.

Indices that begin in the middle of an array are unsigned: numba then does not look whether they
are negative, and the loops become vector instructions.
"""

from typing import NamedTuple

import numpy as np

from fedrecsk._kernels._jit import kernel, part
from fedrecsk._kernels.hamming import popcount

# Honest sums are at rest after a few sweeps; forged ones need not be symmetric and may never be.
MOST_SWEEPS = 100


class Rows(NamedTuple):
    """The users' rows, and what each pulls at.

    Attributes
    ----------
    indptr : (n_users + 1,), rows of each user
    items : (n_rows,), ascending within a user
    chosen : (n_rows,) bool, whether it counts
    pulls, weights : (n_rows,) int64, w t and w
    negative_pulls : (n_rows,) int64, w t of the negatives drawn for it
    """

    indptr: np.ndarray
    items: np.ndarray
    chosen: np.ndarray
    pulls: np.ndarray
    weights: np.ndarray
    negative_pulls: np.ndarray


class Negatives(NamedTuple):
    """How negatives are drawn: a seed for each user, (n_users,) uint64, and how many a row."""

    seeds: np.ndarray
    n_negatives: int


class Items(NamedTuple):
    """The items as the clients have received them.

    Attributes
    ----------
    codes : (n_items, n_words) uint64
    sums : (n_bits,) int64, D'1
    base, base_pull : int, weight and pull of every pair of user and item
    """

    codes: np.ndarray
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
    balance : int, weight of (sum a)^2
    shrinkage, sparse_shrinkage : int
        Weight of |a - mean|^2; the latter over the number of visits, where that is more.
    mean : (n_bits,) float64
    crowd : (n_bits,) int64, linear term
    crowded : bool, whether there is one
    item_balance : int, weight of (sum d)^2 where clients vote
    """

    limit: int
    moves: bool
    n_sweeps: int
    balance: int
    shrinkage: int
    sparse_shrinkage: int
    mean: np.ndarray
    crowd: np.ndarray
    crowded: bool
    item_balance: int


class Visits(NamedTuple):
    """The visits of some users, one user after the other.

    Attributes
    ----------
    starts : (n_users + 1,) int64, visits of each user
    users, items : (n_visits,) int64, places of the users, and the items
    left, weights : (n_visits,) int64, residuals w (t - a.d), and w
    vectors : (n_users, n_bits) int32, the users' vectors
    """

    starts: np.ndarray
    users: np.ndarray
    items: np.ndarray
    left: np.ndarray
    weights: np.ndarray
    vectors: np.ndarray


class Scratch(NamedTuple):
    """Of one user: its items' codes (n_words, n_visits), a.d (n_visits,), and D'D a (n_bits,)."""

    words: np.ndarray
    dots: np.ndarray
    background: np.ndarray


class Upload(NamedTuple):
    """Where clients write what they send; numbers begin with zeros.

    Attributes
    ----------
    each : bool, client by client instead of added up
    n_rows : (n_clients,) int64, receives how many items each client visits
    rows : (n_own,) int64, receives each client's items in ascending order; scratch if not `each`
    values : (n_own or n_items, n_bits or one more) int64
        The rows, in the order of `rows` if `each`, else added by item.
    gram, total : (n_out, n_bits, n_bits or 0) and (n_out, n_bits) int64
        Sums over users of a a' and of a; n_out is 1, or the number of active clients if `each`.
    marks : (n_items / 64,) uint64, scratch of zeros
    slots : (n_items,) int64, scratch
    places, order : (n_visits,) int64, scratch
    """

    each: bool
    n_rows: np.ndarray
    rows: np.ndarray
    values: np.ndarray
    gram: np.ndarray
    total: np.ndarray
    marks: np.ndarray
    slots: np.ndarray
    places: np.ndarray
    order: np.ndarray


class Ballots(NamedTuple):
    """Scratch of clients that vote: visits of each item in a list, and an item's signs.

    `heads` is (n_items,), `links` (n_visits,) and `signs` (n_bits,), all int64.
    """

    heads: np.ndarray
    links: np.ndarray
    signs: np.ndarray


# -------------------------------------------------------------------------------- visits


@part
def draw(state, items, first, last, n_items):
    """A random item that is not among ``items[first:last]``, which ascend."""
    # Splitmix64's output step; the upper half of it scaled to the number of free items.
    x = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    n_free = np.uint64(n_items - (last - first))
    rank = np.int64(((x >> np.uint64(32)) * n_free) >> np.uint64(32))
    # Free items below items[first + j] number it less j; no branch to mispredict.
    low, n = np.int64(0), last - first
    while n > 0:
        half = (n + 1) >> 1
        middle = low + half - 1
        low += half * (items[first + middle] - middle <= rank)
        n -= half
    return rank + low


@part
def visit(u, j, rows, negatives, item_codes, visits, words):
    """List the visits of user u, who has place j; returns the end of its visits.

    Each of its rows that count is followed by its negatives. ``visits.left`` are the pulls.
    """
    first, last = rows.indptr[u], rows.indptr[u + 1]
    start, n_drawn = visits.starts[j], np.int64(0)
    n = start
    for r in range(first, last):
        if not rows.chosen[r]:
            continue
        visits.items[n], visits.left[n] = rows.items[r], rows.pulls[r]
        visits.weights[n] = rows.weights[r]
        n += 1
        if negatives is None or last - first == len(item_codes):
            continue
        for _ in range(negatives.n_negatives):
            n_drawn += 1
            state = negatives.seeds[j] + np.uint64(n_drawn) * np.uint64(0x9E3779B97F4A7C15)
            visits.items[n] = draw(state, rows.items, first, last, len(item_codes))
            visits.left[n], visits.weights[n] = rows.negative_pulls[r], rows.weights[r]
            n += 1
    for q in range(start, n):
        visits.users[q] = j
        for w in range(item_codes.shape[1]):
            words[w, q - start] = item_codes[visits.items[q], w]
    visits.starts[j + 1] = n
    return n


@part
def measure(codes, u, top, start, visits, scratch, n):
    """Dot products a . d of one user with its n items, and the residuals."""
    dots = scratch.dots
    for q in range(n):
        dots[q] = top
    for w in range(codes.shape[2]):
        for p in range(codes.shape[1]):
            plane = codes[u, p, w]
            for q in range(n):
                dots[q] -= np.int64(popcount(plane ^ scratch.words[w, q])) << (p + 1)
    for q in range(n):
        place = np.uint64(start + q)
        visits.left[place] -= visits.weights[place] * dots[q]


# --------------------------------------------------------------------------------- users


@part
def from_planes(codes, u, limit, vectors, j):
    """A user's vector from its planes."""
    for k in range(vectors.shape[1]):
        level = np.int64(0)
        for p in range(codes.shape[1]):
            level |= np.int64((codes[u, p, k >> 6] >> np.uint64(k & 63)) & np.uint64(1)) << p
        vectors[j, k] = 2 * level - limit


@part
def to_planes(vectors, j, limit, codes, u):
    """A user's planes from its vector, the inverse of :func:`from_planes`."""
    for p in range(codes.shape[1]):
        for w in range(codes.shape[2]):
            codes[u, p, w] = 0
        for k in range(vectors.shape[1]):
            bit = np.uint64((((vectors[j, k] + limit) >> 1) >> p) & 1)
            codes[u, p, k >> 6] |= bit << np.uint64(k & 63)


@part
def nearest_odd(top, bottom, old, limit):
    """The odd integer in [-limit, limit] nearest to top / bottom; of two, the old one if it is."""
    below = top // (2 * bottom)
    new = 2 * below + 1
    if below * 2 * bottom == top and old == new - 2:
        new = old
    return min(max(new, -limit), limit)


@part
def fit_user(j, start, n, visits, scratch, items, products, rule):
    """Coordinate descent on one user's vector, bit by bit, until nothing changes.

    Minimises ``sum_visits w (t - a.d)^2 + base sum_items (t0 - a.d)^2 + balance (sum a)^2
    + shrinkage |a - mean|^2 + 2 crowd.a`` over the odd integers. The residuals, `scratch.dots` and
    `scratch.background` are kept up to date.
    """
    a, left, weights, words = visits.vectors, visits.left, visits.weights, scratch.words
    n_bits, base = a.shape[1], items.base
    shrinkage = max(rule.shrinkage, rule.sparse_shrinkage // max(n, 1))
    curvature, total = base * len(items.codes) + rule.balance + shrinkage, np.int64(0)
    for q in range(n):
        curvature += weights[np.uint64(start + q)]
    if curvature == 0 and not rule.crowded:
        return
    curvature = max(curvature, 1)
    for k in range(n_bits):
        total += a[j, k]
    sweep = 0
    while True:
        changed = False
        for k in range(n_bits):
            word, shift, old = k >> 6, np.uint64(k & 63), np.int64(a[j, k])
            pull = items.base_pull * items.sums[k] - rule.balance * total
            pull += np.int64(np.floor(shrinkage * rule.mean[k] + 0.5)) - shrinkage * old
            pull -= rule.crowd[k]
            for q in range(n):
                mask = np.int64((words[word, q] >> shift) & np.uint64(1)) - 1
                pull += (left[np.uint64(start + q)] ^ mask) - mask
            if products is not None:
                pull -= base * scratch.background[k]
            new = nearest_odd(pull + curvature * old, curvature, old, rule.limit)
            step = new - old
            if step == 0:
                continue
            for q in range(n):
                mask = np.int64((words[word, q] >> shift) & np.uint64(1)) - 1
                change = (step ^ mask) - mask
                scratch.dots[q] += change
                left[np.uint64(start + q)] -= weights[np.uint64(start + q)] * change
            total += step
            if products is not None:
                for other in range(n_bits):
                    scratch.background[other] += products[k, other] * step
            a[j, k] = new
            changed = True
        sweep += 1
        if not changed or sweep == rule.n_sweeps:
            break


@part
def loss_of(j, start, n, visits, scratch, items, products):
    """Squared error of a user's pairs that count, and their weights."""
    loss, weight = 0.0, 0.0
    base, base_pull = items.base, items.base_pull
    if products is not None:
        # All items as if none were visited, and then what is different of the visited ones.
        aim, square, along = base_pull / base, np.int64(0), np.int64(0)
        for k in range(visits.vectors.shape[1]):
            square += visits.vectors[j, k] * scratch.background[k]
            along += visits.vectors[j, k] * items.sums[k]
        loss += base * (len(items.codes) * aim * aim - 2 * aim * along + square)
        weight += base * float(len(items.codes))
        for q in range(n):
            dot, own = scratch.dots[q], visits.weights[np.uint64(start + q)]
            rest = float(visits.left[np.uint64(start + q)] + base_pull - base * dot)
            loss += rest * rest / (own + base) - base * (aim - dot) * (aim - dot)
            weight += own
    else:
        for q in range(n):
            own = visits.weights[np.uint64(start + q)]
            rest = float(visits.left[np.uint64(start + q)])
            loss += rest * rest / max(own, 1)
            weight += own
    return loss, weight


@kernel
def fit_users(
    first, last, loss, weight, users, rows, negatives, items, products, rule, codes, visits, scratch
):
    """One update of some users' codes; their visits and vectors are listed for :func:`send`.

    Parameters
    ----------
    first, last : int
        The users at these places of `users`; who came before is listed.
    loss, weight : float
        What users before add up to.
    users : (n_users,) int64
    rows : Rows
    negatives : Negatives, of the users at these places; or None
    items : Items
    products : (n_bits, n_bits) int64, D'D; None if there is no base
    rule : Rule
    codes : (n_all_users, n_planes, n_words) uint64, in and out
    visits : Visits, receives
    scratch : Scratch

    Returns
    -------
    loss, weight : float
        ``(2 rule.limit n_bits)^2`` times the squared error between target and similarity, and
        weight, of all pairs that count; both in fixed point.
    """
    n_bits = visits.vectors.shape[1]
    top = rule.limit * n_bits
    for j in range(first, last):
        u, start = users[j], visits.starts[j]
        n = visit(u, j, rows, negatives, items.codes, visits, scratch.words) - start
        measure(codes, u, top, start, visits, scratch, n)
        from_planes(codes, u, rule.limit, visits.vectors, j)
        if products is not None:
            for k in range(n_bits):
                scratch.background[k] = 0
            for other in range(n_bits):
                x = visits.vectors[j, other]
                for k in range(n_bits):
                    scratch.background[k] += products[other, k] * x
        if rule.moves:
            fit_user(j, start, n, visits, scratch, items, products, rule)
            to_planes(visits.vectors, j, rule.limit, codes, u)
        more = loss_of(j, start, n, visits, scratch, items, products)
        loss += more[0]
        weight += more[1]
    return loss, weight


# ------------------------------------------------------------------------ what is sent


@part
def collect(visited, begin, end, marks, rows, first):
    """Write the visited items in ascending order, each once, from `first` on; how many.

    `marks` has a bit for each item, all of them 0 before and after.
    """
    for q in range(begin, end):
        marks[visited[q] >> 6] |= np.uint64(1) << np.uint64(visited[q] & 63)
    n = first
    for w in range(len(marks)):
        word = marks[w]
        while word != np.uint64(0):
            rows[n] = (w << 6) + np.int64(popcount((word - np.uint64(1)) & ~word))
            word &= word - np.uint64(1)
            n += 1
        marks[w] = 0
    return n - first


@part
def add_users(vectors, first, last, upload, out):
    """Add a client's a a' and a."""
    for j in range(first, last):
        for k in range(vectors.shape[1]):
            x = np.int64(vectors[j, k])
            upload.total[out, k] += x
            for other in range(upload.gram.shape[2]):
                upload.gram[out, k, other] += x * vectors[j, other]


@part
def place(begin, end, first, n_rows, sends, visits, upload):
    """Find where a client's visits add to; -1 for nowhere."""
    if upload.each:
        for r in range(first, first + n_rows):
            upload.slots[upload.rows[r]] = r
    for q in range(begin, end):
        i = visits.items[q]
        to = upload.slots[i] if upload.each else i
        upload.places[q] = to if sends else -1


@part
def sort(n, items, counts, order):
    """The order of visits by item. A large catalogue's rows are then written one after another."""
    for i in range(len(counts)):
        counts[i] = 0
    for q in range(n):
        counts[items[q]] += 1
    begin = np.int64(0)
    for i in range(len(counts)):
        count = counts[i]
        counts[i] = begin
        begin += count
    for q in range(n):
        order[counts[items[q]]] = q
        counts[items[q]] += 1


@part
def add_gradients(n, visits, upload, rule, signs):
    """Add what each visit pulls at its item.

    That is the gradient, and w; or without the bit's own part if `signs` (n_items, n_bits) int8
    are given.
    """
    a, values = visits.vectors, upload.values
    n_bits = a.shape[1]
    for r in range(n):
        q = upload.order[r] if not upload.each else r
        i, j, rest, weight = visits.items[q], visits.users[q], visits.left[q], visits.weights[q]
        slot = upload.places[q]
        if slot < 0:
            continue
        if signs is None:
            for k in range(n_bits):
                values[slot, k] += rest * a[j, k]
            values[slot, n_bits] += weight
        elif rule.limit == 1:
            # Signs instead of products, and a^2 = 1.
            for k in range(n_bits):
                s, x = np.int64(signs[i, k] >> 1), a[j, k] >> 1
                values[slot, k] += (rest ^ x) - x + (weight ^ s) - s
        else:
            for k in range(n_bits):
                values[slot, k] += (rest + weight * a[j, k] * signs[i, k]) * a[j, k]


@part
def add_votes(begin, end, first, n_rows, visits, upload, rule, item_signs, ballots):
    """Add one client's own codes of the items that it visits, found bit by bit."""
    a, heads, links, d = visits.vectors, ballots.heads, ballots.links, ballots.signs
    n_bits = a.shape[1]
    for r in range(first, first + n_rows):
        heads[upload.rows[r]] = -1
    for q in range(begin, end):
        i = visits.items[q]
        links[q], heads[i] = heads[i], q
    for r in range(first, first + n_rows):
        i = upload.rows[r]
        slot, total = r if upload.each else i, np.int64(0)
        for k in range(n_bits):
            d[k] = item_signs[i, k]
            total += d[k]
        for k in range(n_bits):
            pull, own, q = -rule.item_balance * (total - d[k]), np.int64(0), heads[i]
            while q >= 0:
                x = a[visits.users[q], k]
                pull += visits.left[q] * x
                own += visits.weights[q] * x * x
                q = links[q]
            if pull * d[k] + own < 0:
                q = heads[i]
                while q >= 0:
                    x = a[visits.users[q], k]
                    visits.left[q] += 2 * visits.weights[q] * x * d[k]
                    q = links[q]
                total -= 2 * d[k]
                d[k] = -d[k]
            upload.values[slot, k] += d[k]


@kernel
def send(clients, indptr, senders, first, out, visits, rule, upload, signs, ballots):
    """What clients upload after :func:`fit_users` has listed all visits of their users.

    Parameters
    ----------
    clients : (n,) int64
    indptr : (n + 1,) int64, places of each client's users
    senders : (n,) bool, whose uploads are written, all if each; the others' rows are counted
    first, out : int, rows and clients already written if each
    visits : Visits
    rule : Rule
    upload : Upload, receives
    signs : (n_items, n_bits) int8, the items; None if gradients are sent in full
    ballots : Ballots if clients vote, else None

    Returns
    -------
    first, out : int
        Where the next clients' rows and sums are to begin.
    """
    for c in range(len(clients)):
        begin, end = visits.starts[indptr[c]], visits.starts[indptr[c + 1]]
        n_rows = collect(visits.items, begin, end, upload.marks, upload.rows, first)
        upload.n_rows[clients[c]] = n_rows
        if senders[c]:
            add_users(visits.vectors, indptr[c], indptr[c + 1], upload, out)
        if ballots is None:
            place(begin, end, first, n_rows, senders[c], visits, upload)
        elif senders[c]:
            add_votes(begin, end, first, n_rows, visits, upload, rule, signs, ballots)
        if upload.each:
            first += n_rows
            out += 1
    if ballots is None:
        n = visits.starts[indptr[-1]]
        if not upload.each:
            sort(n, visits.items, upload.slots, upload.order)
        add_gradients(n, visits, upload, rule, signs)
    return first, out


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


@kernel
def step_by_curvature(first, last, item_codes, signs, pulls, curvatures, gram, counts, rule):
    """The server's step where users have sent a a' and a: bit by bit until nothing changes.

    Item i's loss is quadratic in d. Its gradient is known; its curvature is taken as that of all
    users, ``base sum a a'``, times one plus the item's mass a user.

    Parameters
    ----------
    first, last : int, items to move
    item_codes : (n_items, n_words) uint64, in and out
    signs : (n_items, n_bits) int8, the same unpacked, in and out
    pulls : (n_items, n_bits) int64, gradients; spoilt
    curvatures : (n_items,) int64
    gram : (n_bits, n_bits) int64
    counts : (n_bits,) int64, sums of the signs, in and out
    rule : ServerRule
    """
    n_bits = len(counts)
    for i in range(first, last):
        within, curvature = np.int64(0), curvatures[i]
        for k in range(n_bits):
            within += signs[i, k]
        for _ in range(MOST_SWEEPS):
            changed = False
            for k in range(n_bits):
                old = np.int64(signs[i, k])
                pull = pulls[i, k] + curvature * gram[k, k] * old
                pull -= rule.balance * ((counts[k] if rule.across else within) - old)
                if pull * old >= 0:
                    continue
                factor = 2 * curvature * old
                for other in range(n_bits):
                    pulls[i, other] += factor * gram[k, other]
                signs[i, k] = -old
                item_codes[i, k >> 6] ^= np.uint64(1) << np.uint64(k & 63)
                within -= 2 * old
                counts[k] -= 2 * old
                changed = True
            if not changed:
                break


@kernel
def step_by_sign(item_codes, signs, memory, counts, rule):
    """The server's step of the paper: the sign of what was sent, bit by bit; a tie keeps the bit.

    Parameters
    ----------
    item_codes : (n_items, n_words) uint64, in and out
    signs : (n_items, n_bits) int8, the same unpacked
    memory : (n_items, n_bits) int64
    counts : (n_bits,) int64, sums of the signs, in and out
    rule : ServerRule
    """
    for i in range(len(item_codes)):
        within = np.int64(0)
        for k in range(len(counts)):
            within += signs[i, k]
        for k in range(len(counts)):
            old = np.int64(signs[i, k])
            pull = memory[i, k] - rule.balance * ((counts[k] if rule.across else within) - old)
            if pull * old < 0:
                item_codes[i, k >> 6] ^= np.uint64(1) << np.uint64(k & 63)
                within -= 2 * old
                counts[k] -= 2 * old
