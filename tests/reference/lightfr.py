"""LightFR written down naively: loops over clients, users, items and bits; Python's own integers.

All numbers are multiples of 2**-20 in units in which b.d counts bits: the paper's formulas times
2 f^2, with the largest dot product in f's place where users have several bits.
"""

import math

import numpy as np

from tests.reference.colr import Stream

ONE = 2**20


def fixed(x):
    """To fixed point."""
    return int(np.rint(x * ONE))


class LightFR:
    """Server and clients of one fit.

    Parameters
    ----------
    model : estimator whose parameters are followed
    clients : list of lists of users
    values, weights : (n_users, n_items) arrays, weight 0 where there is no row
    scale : the ratings' ends
    items, users : first codes, lists of lists of +1 and -1, and of odd integers
    """

    def __init__(self, model, clients, values, weights, scale, items, users):
        self.model, self.clients = model, clients
        self.values, self.weights, self.scale = values, weights, scale
        self.items = [[int(d) for d in row] for row in items]
        self.users = [[int(a) for a in row] for row in users]
        self.f, self.limit = len(self.items[0]), 2**model.user_bits - 1
        self.top = self.f * self.limit
        self.full = model.aggregation == "full"
        self.total = [[0] * self.f for _ in self.items]
        self.mean = [0.0] * self.f
        self.received = [None] * len(clients)

    # --- section 3.3.1, on a client

    def visits(self, u, key, draws="negatives of a user"):
        """(item, w, w t) of each own row that counts, and after each its negatives."""
        rated = [i for i in range(len(self.items)) if self.weights[u, i] > 0]
        free = [i for i in range(len(self.items)) if self.weights[u, i] == 0]
        visits, stream = [], Stream(key.hashed(draws, u))
        for i in rated:
            y, v = self.values[u, i], self.weights[u, i]
            if self.model.targets == "implicit":
                if y <= 0:
                    continue
                target = self.model.POSITIVE_TARGET
            else:
                target = (y - self.scale[0]) / (self.scale[1] - self.scale[0])
            w = 1 + self.alpha(u) * v if self.full else v
            visits.append((i, fixed(w), fixed(w * (2 * target - 1) * self.top)))
            for _ in range(0 if self.full or not free else self.model.n_negatives):
                rank = stream.below(len(free))
                aim = fixed(v * (2 * self.model.NEGATIVE_TARGET - 1) * self.top)
                visits.append((free[rank], fixed(w), aim))
        return visits

    def alpha(self, u):
        """The extra weight of u's rows, which is larger if they are few."""
        if self.model.alpha != "auto":
            return self.model.alpha
        n_rows = np.count_nonzero(self.weights[u] > 0)
        exponent = round(math.log2(len(self.items) / max(1, n_rows)) / 2)
        return min(max(2.0**exponent, 1.0), 64.0)

    def pairs(self, u, key, *draws):
        """All pairs that user u's code is fitted to: visits, and in the full form the rest."""
        pairs = self.visits(u, key, *draws)
        if self.full:
            own = {i for i, _, _ in pairs}
            aim = fixed((2 * self.model.NEGATIVE_TARGET - 1) * self.top)
            pairs += [(i, ONE, aim) for i in range(len(self.items)) if i not in own]
        return pairs

    def balance(self, reg):
        """lambda in these units."""
        return fixed(4 * reg * self.top**2)

    def fit_user(self, u, items, mean, key, *draws, balanced=True):
        """Equations 9 and 10, until no entry changes or for so many sweeps."""
        a, pairs = self.users[u], self.pairs(u, key, *draws)
        within = self.balance(self.model.balance_user) if balanced else 0
        n_sweeps, shrinkage = 0, fixed(self.model.reg_user)
        if self.full and self.model.MEAN_PRIOR and self.model._trains_items and np.any(mean):
            n_rows = max(len(self.visits(u, key, *draws)), 1)
            shrinkage = max(shrinkage, fixed(self.model.SPARSE_REG) // n_rows)
        while True:
            before = list(a)
            for k in range(self.f):
                best, total = math.floor(shrinkage * float(mean[k]) + 0.5), sum(a)
                curvature = within + shrinkage
                for i, w, aim in pairs:
                    d = items[i]
                    rest = sum(a[j] * d[j] for j in range(self.f)) - a[k] * d[k]
                    best += (aim - w * rest) * d[k]
                    curvature += w
                best -= within * (total - a[k])
                a[k] = nearest_odd(best, curvature, a[k], self.limit)
            n_sweeps += 1
            if a == before or n_sweeps == self.model.N_SWEEPS:
                return

    def gradients(self, c, items, key):
        """Equation 14 for each visited item: Delta without the bit's own part."""
        deltas = {}
        for u in self.clients[c]:
            a = self.users[u]
            for i, w, aim in self.visits(u, key):
                d = items[i]
                dot = sum(a[j] * d[j] for j in range(self.f))
                delta = deltas.setdefault(i, [0] * self.f)
                for k in range(self.f):
                    delta[k] += (aim - w * (dot - a[k] * d[k])) * a[k]
        return deltas

    def local_items(self, c, items, key):
        """Equation 11: the client's own codes of the items it visits."""
        visits = [(u, *visit) for u in self.clients[c] for visit in self.visits(u, key)]
        balance = self.balance(self.model.balance_item)
        own = {}
        for i in sorted({visit[1] for visit in visits}):
            d = list(items[i])
            for k in range(self.f):
                best = -balance * (sum(d) - d[k])
                for u, item, w, aim in visits:
                    if item == i:
                        a = self.users[u]
                        rest = sum(a[j] * d[j] for j in range(self.f)) - a[k] * d[k]
                        best += (aim - w * rest) * a[k]
                d[k] = sign(best, d[k])
            own[i] = d
        return own

    def full_gradient(self, users, items, key):
        """Minus half the gradient of the loss over all pairs of these users, by item, and mass."""
        gradient = [[0] * self.f for _ in items]
        mass = [0] * len(items)
        for u in users:
            a, own = self.users[u], {i for i, _, _ in self.visits(u, key)}
            for i, w, aim in self.pairs(u, key):
                dot = sum(a[j] * items[i][j] for j in range(self.f))
                for k in range(self.f):
                    gradient[i][k] += (aim - w * dot) * a[k]
                if i in own:
                    mass[i] += w - ONE
        return gradient, mass

    # --- section 3.3.2, on the server

    def round(self, turn, key):
        """One round; `turn` is a Participation."""
        arrived, sums, uploads = [], [0] * self.f, []
        for c, users in enumerate(self.clients):
            if turn.receives[c]:
                self.received[c] = [list(d) for d in self.items], self.mean
            if not turn.active[c] or self.received[c] is None:
                continue
            items, mean = self.received[c]
            for u in users:
                self.fit_user(u, items, mean, key)
            if turn.delivers[c]:
                arrived.append((users, items))
                sums = [s + sum(self.users[u][k] for u in users) for k, s in enumerate(sums)]
                if self.model.aggregation == "gradient":
                    uploads.append(self.gradients(c, items, key))
                elif self.model.aggregation == "parameter":
                    uploads.append(self.local_items(c, items, key))
        if not arrived or not self.model._trains_items:
            return
        n_users = sum(len(users) for users, _ in arrived)
        if self.full and self.model.MEAN_PRIOR and n_users >= 10:
            self.mean = np.float32(np.array(sums) / n_users)
        if self.full:
            self.step_by_curvature(arrived, key)
        else:
            self.step_by_sign(uploads)

    def item_balance(self, i, k):
        """lambda times the sum that the balance term keeps near zero, without bit k of item i."""
        return self.balance(self.model.balance_item) * (sum(self.items[i]) - self.items[i][k])

    def step_by_sign(self, uploads):
        """Equations 15 to 17 with a decaying total, bit by bit."""
        balances = self.model.aggregation == "gradient"
        for i, total in enumerate(self.total):
            for k in range(self.f):
                total[k] = total[k] - total[k] // self.model.SERVER_DECAY
                total[k] += sum(upload[i][k] for upload in uploads if i in upload)
        for i, d in enumerate(self.items):
            for k in range(self.f):
                best = self.total[i][k] - (self.item_balance(i, k) if balances else 0)
                d[k] = sign(best, d[k])

    def step_by_curvature(self, arrived, key):
        """Bit by bit down a quadratic model of the loss, until no bit changes."""
        gradient = [[0] * self.f for _ in self.items]
        mass = [0] * len(self.items)
        users = [u for its, _ in arrived for u in its]
        for its, received in arrived:
            part, more = self.full_gradient(its, received, key)
            for i in range(len(self.items)):
                mass[i] += more[i]
                for k in range(self.f):
                    gradient[i][k] += part[i][k]
                    # Uploads on an older broadcast: the server catches up by the base's part.
                    for u in its:
                        moved = sum(
                            self.users[u][j] * (self.items[i][j] - received[i][j])
                            for j in range(self.f)
                        )
                        gradient[i][k] -= ONE * moved * self.users[u][k]
        gram = [
            [sum(self.users[u][k] * self.users[u][j] for u in users) for j in range(self.f)]
            for k in range(self.f)
        ]
        for i, d in enumerate(self.items):
            start, curvature = list(d), ONE + mass[i] // len(users)
            changed = True
            while changed:
                changed = False
                for k in range(self.f):
                    best = gradient[i][k] - self.item_balance(i, k)
                    for j in range(self.f):
                        moved = 0 if j == k else d[j]
                        best -= curvature * gram[k][j] * (moved - start[j])
                    if sign(best, d[k]) != d[k]:
                        d[k], changed = -d[k], True

    def final_users(self, key):
        """What clients predict with: their codes fitted to the final items."""
        for u in range(len(self.users)):
            self.fit_user(u, self.items, self.mean, key, "negatives in the end")
        return self.users


def sign(x, old):
    """The sign of x, or the old bit if x is 0."""
    return old if x == 0 else (1 if x > 0 else -1)


def nearest_odd(top, bottom, old, limit):
    """The odd integer in [-limit, limit] that is nearest to top / bottom; a tie keeps the old."""
    if bottom == 0:
        # No curvature: as far as it goes downhill, or nowhere.
        return old if top == 0 else (limit if top > 0 else -limit)
    candidates = sorted(range(-limit, limit + 1, 2), key=lambda a: (abs(top - a * bottom), -a))
    best = [a for a in candidates if abs(top - a * bottom) == abs(top - candidates[0] * bottom)]
    return old if old in best else best[0]
