"""LightFR's clients and server, in integers.

Users' vectors are odd integers in [-limit, limit] and items' are +1 and -1, both packed as
:mod:`hamming` says. A user's visits are its own rows that count and its drawn negatives; a visit
has a weight w and a pull w t, both in fixed point, where t is the dot product that is aimed
at. Sums of integers do not depend on their order, so neither do the codes.
"""

import numpy as np

from fedrecsk._kernels._jit import kernel
from fedrecsk._kernels.hamming import distance, pack, unpack


@kernel
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


@kernel
def visits(items, chosen, pulls, weights, negative_pulls, n_negatives, seed, n_items, out):
    """A user's visits: its rows that count, each followed by its negatives.

    Parameters
    ----------
    items, chosen, pulls, weights, negative_pulls : (n_rows,)
    n_negatives : int
    seed : uint64
    n_items : int
    out : tuple of three int64 arrays, receives items, pulls and weights of the visits

    Returns
    -------
    n_visits : int
    """
    n, n_drawn = 0, 0
    for q in range(len(items)):
        if not chosen[q]:
            continue
        out[0][n], out[1][n], out[2][n] = items[q], pulls[q], weights[q]
        n += 1
        if len(items) == n_items:
            continue
        for _ in range(n_negatives):
            n_drawn += 1
            state = seed + np.uint64(n_drawn) * np.uint64(0x9E3779B97F4A7C15)
            out[0][n] = draw(state, items, n_items)
            out[1][n], out[2][n] = negative_pulls[q], weights[q]
            n += 1
    return n


@kernel
def residuals(planes, limit, n_bits, item_codes, items, pulls, weights, left):
    """What each visit still pulls: w (t - a . d)."""
    for q in range(len(items)):
        dot = limit * n_bits - 2 * distance(planes, item_codes[items[q]])
        left[q] = pulls[q] - weights[q] * dot


@kernel
def signed_sum(left, words, bit):
    """Sum of `left`, each with the sign of one bit of its word."""
    total = np.int64(0)
    shift = np.uint64(bit)
    for q in range(len(left)):
        mask = np.int64((words[q] >> shift) & np.uint64(1)) - 1
        total += (left[q] ^ mask) - mask
    return total


@kernel
def shift_residuals(left, words, weights, bit, step):
    """Take ``w step d`` off the residuals after the user's vector moved by `step` at a bit."""
    shift = np.uint64(bit)
    for q in range(len(left)):
        mask = np.int64((words[q] >> shift) & np.uint64(1)) - 1
        change = weights[q] * step
        left[q] -= (change ^ mask) - mask


@kernel
def nearest_odd(top, bottom, old, limit):
    """The odd integer in [-limit, limit] nearest to top / bottom; of two, the old one if it is."""
    below = top // (2 * bottom)
    new = 2 * below + 1
    if below * 2 * bottom == top and old == new - 2:
        new = old
    return min(max(new, -limit), limit)


@kernel
def fit_user(a, limit, words, left, weights, everyone, balance, shrinkage, crowd, n_sweeps):
    """Coordinate descent on one user's vector, bit by bit, until nothing changes.

    Minimises ``sum_visits w (t - a.d)^2 + base sum_items (t0 - a.d)^2 + balance (sum a)^2
    + shrinkage |a|^2 + 2 crowd.a`` over the odd integers.

    Parameters
    ----------
    a : (n_bits,) int64, in and out
    limit : int
    words : (n_words, n_visits) uint64, the visited items' codes
    left : (n_visits,) int64, the visits' residuals, kept up to date
    weights : (n_visits,) int64
    everyone : (gram, sums, n_items, base, base_pull): D D' and D 1 of all items, and the weight
        and pull of each of them
    balance, shrinkage : int
    crowd : (n_bits,) int64
    n_sweeps : int, 0 for as many as it takes
    """
    gram, sums, n_items, base, base_pull = everyone
    n_bits = len(a)
    curvature = weights.sum() + base * n_items + balance + shrinkage
    if curvature == 0 and not crowd.any():
        return
    curvature = max(curvature, 1)
    total = a.sum()
    background = np.zeros(n_bits, dtype=np.int64)
    if base > 0:
        for k in range(n_bits):
            for other in range(n_bits):
                background[k] += gram[k, other] * a[other]
    sweep = 0
    while True:
        changed = False
        for k in range(n_bits):
            pull = signed_sum(left, words[k // 64], k % 64)
            pull += base_pull * sums[k] - base * background[k] - balance * total
            pull -= crowd[k] + shrinkage * a[k]
            new = nearest_odd(pull + curvature * a[k], curvature, a[k], limit)
            if new == a[k]:
                continue
            step = new - a[k]
            shift_residuals(left, words[k // 64], weights, k % 64, step)
            total += step
            if base > 0:
                for other in range(n_bits):
                    background[other] += gram[k, other] * step
            a[k] = new
            changed = True
        sweep += 1
        if not changed or sweep == n_sweeps:
            break


@kernel
def from_planes(planes, scratch, a):
    """A user's vector from its planes."""
    a[:] = 0
    for p in range(len(planes)):
        unpack(planes[p : p + 1], scratch)
        for k in range(len(a)):
            a[k] += scratch[0, k] << p


@kernel
def to_planes(a, limit, scratch, planes):
    """A user's planes from its vector, the inverse of :func:`from_planes`."""
    for p in range(len(planes)):
        for k in range(len(a)):
            scratch[0, k] = (((a[k] + limit) >> 1) >> p) & 1
        pack(scratch, planes[p : p + 1])


@kernel
def clients(layout, rows, world, active, delivers, rule, everyone, items_received, codes, out):
    """One update of the active clients of a block: users' codes, then what is uploaded.

    Parameters
    ----------
    layout : (client_indptr, indptr, items)
    rows : (chosen, pulls, weights, negative_pulls), one entry a rating
    world : (seeds, n_negatives, n_items), a uint64 seed for each user
    active, delivers : (n_clients,) bool
    rule : (n_bits, limit, balance, shrinkage, crowd, n_sweeps, freeze, own):
        `freeze` leaves the users' codes alone; `own` is 0 for gradients of the visits, 1 for
        gradients without the bit's own part and 2 for no sums, because :func:`votes` follows
    everyone : as for :func:`fit_user`
    items_received : (codes (n_items, n_words) uint64, signs (n_items, n_bits) int8)
    codes : (n_users, n_planes, n_words) uint64, in and out
    out : (sums (n_items, n_bits), mass (n_items,), gram (n_bits, n_bits), total (n_bits,),
        n_visited (n_clients,)), int64: by item the sums and the weights of visits; over
        users a a' (zero without a base) and a; items visited by each client

    Returns
    -------
    loss, weight : float
        Squared error between target and similarity, and weight, of all pairs that count; both in
        fixed point.
    """
    client_indptr, indptr, items = layout
    chosen, pulls, weights, negative_pulls = rows
    seeds, n_negatives, n_items = world
    n_bits, limit, balance, shrinkage, crowd, n_sweeps, freeze, own = rule
    sums, mass, gram, total, n_visited = out
    item_codes, item_signs = items_received
    base, base_pull = everyone[3], everyone[4]
    n_words = item_codes.shape[1]
    largest = 0
    for c in range(len(client_indptr) - 1):
        first, last = client_indptr[c], client_indptr[c + 1]
        largest = max(largest, (indptr[last] - indptr[first]) * (1 + n_negatives))
    visited = np.empty(largest, dtype=np.int64)
    pulled = np.empty(largest, dtype=np.int64)
    weighed = np.empty(largest, dtype=np.int64)
    left = np.empty(largest, dtype=np.int64)
    words = np.empty((n_words, largest), dtype=np.uint64)
    scratch = np.empty((1, n_bits), dtype=np.int64)
    a = np.empty(n_bits, dtype=np.int64)
    stamp = np.full(n_items, -1)
    top = float(limit * n_bits)
    loss, loss_weight = 0.0, 0.0
    for c in range(len(client_indptr) - 1):
        if not active[c]:
            continue
        end = 0
        for u in range(client_indptr[c], client_indptr[c + 1]):
            ratings = slice(indptr[u], indptr[u + 1])
            start = end
            end += visits(
                items[ratings],
                chosen[ratings],
                pulls[ratings],
                weights[ratings],
                negative_pulls[ratings],
                n_negatives,
                seeds[u],
                n_items,
                (visited[start:], pulled[start:], weighed[start:]),
            )
            mine, w, r = visited[start:end], weighed[start:end], left[start:end]
            residuals(codes[u], limit, n_bits, item_codes, mine, pulled[start:end], w, r)
            from_planes(codes[u], scratch, a)
            if not freeze:
                for word in range(n_words):
                    for q in range(len(mine)):
                        words[word, q] = item_codes[mine[q], word]
                met = words[:, : len(mine)]
                fit_user(a, limit, met, r, w, everyone, balance, shrinkage, crowd, n_sweeps)
                to_planes(a, limit, scratch, codes[u])
            for q in range(start, end):
                loss_weight += weighed[q]
                if base == 0:
                    loss += float(left[q]) ** 2 / max(weighed[q], 1)
                else:
                    dot = limit * n_bits - 2 * distance(codes[u], item_codes[visited[q]])
                    loss += float(left[q] + base_pull - base * dot) ** 2 / (weighed[q] + base)
                    loss -= base * (base_pull / base - dot) ** 2
            if base > 0:
                aim = base_pull / base
                square, along = 0.0, 0.0
                for k in range(n_bits):
                    along += everyone[1][k] * a[k]
                    for other in range(n_bits):
                        square += float(everyone[0][k, other]) * a[k] * a[other]
                loss += base * (n_items * aim * aim - 2 * aim * along + square)
                loss_weight += base * float(n_items)
            if not delivers[c]:
                continue
            for k in range(n_bits):
                total[k] += a[k]
            if base > 0:
                for k in range(n_bits):
                    for other in range(n_bits):
                        gram[k, other] += a[k] * a[other]
            if own == 2:
                continue
            for q in range(start, end):
                i, rest = visited[q], left[q]
                mass[i] += weighed[q]
                if limit == 1:
                    for k in range(n_bits):
                        sums[i, k] += (rest ^ (a[k] >> 1)) - (a[k] >> 1)
                elif own == 0:
                    for k in range(n_bits):
                        sums[i, k] += rest * a[k]
                else:
                    for k in range(n_bits):
                        sums[i, k] += (rest + weighed[q] * a[k] * item_signs[i, k]) * a[k]
        for q in range(end):
            if stamp[visited[q]] != c:
                stamp[visited[q]] = c
                n_visited[c] += 1
    if limit == 1 and own == 1:
        # With a^2 = 1 the visits' own parts add up to the item's mass.
        for i in range(n_items):
            for k in range(n_bits):
                sums[i, k] += mass[i] * item_signs[i, k]
    return loss / (2 * top) ** 2, loss_weight


@kernel
def votes(layout, rows, world, senders, rule, item_codes, codes, sums, mass):
    """What clients upload where they vote, after :func:`clients` has moved their users.

    Parameters
    ----------
    layout, rows, world, item_codes, codes : as for :func:`clients`
    senders : (n_clients,) bool
    rule : (n_bits, limit, item_balance)
    sums, mass : receive the votes, +1 or -1 a bit, and the number of voters
    """
    client_indptr, indptr, items = layout
    chosen, pulls, weights, negative_pulls = rows
    seeds, n_negatives, n_items = world
    n_bits, limit, _ = rule
    for c in range(len(client_indptr) - 1):
        if not senders[c]:
            continue
        first, last = client_indptr[c], client_indptr[c + 1]
        largest = (indptr[last] - indptr[first]) * (1 + n_negatives)
        visited, pulled, weighed, left, visitor = np.empty((5, largest), dtype=np.int64)
        end = 0
        for u in range(first, last):
            ratings = slice(indptr[u], indptr[u + 1])
            start = end
            end += visits(
                items[ratings],
                chosen[ratings],
                pulls[ratings],
                weights[ratings],
                negative_pulls[ratings],
                n_negatives,
                seeds[u],
                n_items,
                (visited[start:], pulled[start:], weighed[start:]),
            )
            mine, aims = visited[start:end], pulled[start:end]
            w, r = weighed[start:end], left[start:end]
            residuals(codes[u], limit, n_bits, item_codes, mine, aims, w, r)
            visitor[start:end] = u
        order = np.argsort(visited[:end], kind="mergesort")
        vote(
            visited[:end][order],
            visitor[:end][order],
            weighed[:end][order],
            left[:end][order],
            rule,
            item_codes,
            codes,
            sums,
            mass,
        )


@kernel
def vote(visited, visitor, weights, left, rule, item_codes, codes, sums, mass):
    """One client's own codes of the items it visits, bit by bit, added to the votes.

    Parameters
    ----------
    visited, visitor, weights, left : (n_visits,) int64, by item
    rule : (n_bits, limit, item_balance)
    item_codes, codes : items' and users' codes
    sums, mass : receive the votes, +1 or -1 a bit, and the number of voters
    """
    n_bits, limit, item_balance = rule
    d = np.empty((1, n_bits), dtype=np.int64)
    scratch = np.empty((1, n_bits), dtype=np.int64)
    a = np.empty(n_bits, dtype=np.int64)
    start = 0
    while start < len(visited):
        i = visited[start]
        end = start
        while end < len(visited) and visited[end] == i:
            end += 1
        vectors = np.empty((end - start, n_bits), dtype=np.int64)
        for q in range(start, end):
            from_planes(codes[visitor[q]], scratch, a)
            vectors[q - start] = a
        unpack(item_codes[i : i + 1], d)
        total = d.sum()
        for k in range(n_bits):
            pull = -item_balance * (total - d[0, k])
            for q in range(start, end):
                own = weights[q] * vectors[q - start, k] * d[0, k]
                pull += (left[q] + own) * vectors[q - start, k]
            if pull * d[0, k] < 0:
                for q in range(start, end):
                    left[q] += 2 * weights[q] * vectors[q - start, k] * d[0, k]
                total -= 2 * d[0, k]
                d[0, k] = -d[0, k]
            sums[i, k] += d[0, k]
        mass[i] += 1
        start = end


@kernel
def step_by_curvature(item_codes, n_bits, sums, mass, gram, total, n_users, fixed, balance, across):
    """The server's step where users have sent a a' and a: bit by bit until nothing changes.

    Item i's loss is quadratic in d. Its gradient is known; its curvature is taken as that of all
    users, ``fixed[0] sum a a'``, times one plus the item's mass a user.

    Parameters
    ----------
    item_codes : (n_items, n_words) uint64, in and out
    n_bits : int
    sums, mass, gram, total : as the clients send them, added up
    n_users : int, how many users they are from
    fixed : (base, base_pull)
    balance : int
    across : bool, whether the balance is across items instead of within a code
    """
    base, base_pull = fixed
    d = np.empty((1, n_bits), dtype=np.int64)
    left = np.empty(n_bits, dtype=np.int64)
    counts = column_sums(item_codes, n_bits) if across else np.zeros(n_bits, dtype=np.int64)
    for i in range(len(item_codes)):
        unpack(item_codes[i : i + 1], d)
        for k in range(n_bits):
            left[k] = sums[i, k] + base_pull * total[k]
            for other in range(n_bits):
                left[k] -= base * gram[k, other] * d[0, other]
        curvature = base + mass[i] // n_users
        within = d.sum()
        changed = True
        while changed:
            changed = False
            for k in range(n_bits):
                old = d[0, k]
                pull = left[k] + curvature * gram[k, k] * old
                pull -= balance * ((counts[k] if across else within) - old)
                if pull * old >= 0:
                    continue
                for other in range(n_bits):
                    left[other] += 2 * curvature * gram[k, other] * old
                d[0, k] = -old
                within -= 2 * old
                counts[k] -= 2 * old
                changed = True
        pack(d, item_codes[i : i + 1])


@kernel
def step_by_sign(item_codes, n_bits, memory, balance, across):
    """The server's step of the paper: the sign of what was sent, bit by bit; a tie keeps the bit.

    Parameters
    ----------
    item_codes : (n_items, n_words) uint64, in and out
    n_bits : int
    memory : (n_items, n_bits) int64
    balance, across : as for :func:`step_by_curvature`
    """
    d = np.empty((1, n_bits), dtype=np.int64)
    counts = column_sums(item_codes, n_bits) if across else np.zeros(n_bits, dtype=np.int64)
    for i in range(len(item_codes)):
        unpack(item_codes[i : i + 1], d)
        within = d.sum()
        for k in range(n_bits):
            old = d[0, k]
            pull = memory[i, k] - balance * ((counts[k] if across else within) - old)
            if pull * old < 0:
                d[0, k] = -old
                within -= 2 * old
                counts[k] -= 2 * old
        pack(d, item_codes[i : i + 1])


@kernel
def column_sums(codes, n_bits):
    """Sum of the codes' +1 and -1, bit by bit."""
    d = np.empty((1, n_bits), dtype=np.int64)
    sums = np.zeros(n_bits, dtype=np.int64)
    for i in range(len(codes)):
        unpack(codes[i : i + 1], d)
        for k in range(n_bits):
            sums[k] += d[0, k]
    return sums
