"""PrivFedEB as its docstring writes it: loops over clients, users and items, dense arrays.

Slow on purpose. `ratings`, counted from the center in quarters of the scale, and `weights` are
(n_users, n_items) matrices, weights 0 where there is no rating.
"""

import numpy as np

ALPHA, LAMBDA_0 = 1.3, 6.0


def first_of_user(ratings, weights):
    """Counts and residuals of one user, of norm 1: (n_items, 2)."""
    rated = np.flatnonzero(weights)
    mean = (weights * ratings).sum() / (3 + weights.sum())
    vector = np.zeros((len(ratings), 2))
    for i in rated:
        vector[i, 0] = weights[i]
        vector[i, 1] = weights[i] * np.clip(ratings[i] - mean, -2, 2)
    return vector / np.linalg.norm(vector)


def first(users, ratings, weights):
    """What a client sends first: (n_items, 2) and a number, of norm at most 1 together."""
    vectors = [first_of_user(ratings[u], weights[u]) for u in users]
    total = np.sum(vectors, axis=0)
    scale = 1 / max(1, np.linalg.norm(total))
    squares = sum((vector[:, 0] ** 2).sum() for vector in vectors)
    return np.sqrt(0.99) * scale * total, 0.1 * scale**2 * squares


def rows(items, a, features=None):
    """The x_i: 1, q_i, how popular and how good item i is, and its features."""
    share = a**-4.0 / (a**-4.0).sum()
    columns = [np.ones(len(items)), *items[:, 1:].T]
    for known in (-4 * np.log(a), items[:, 0]):
        mean = (share * known).sum()
        std = np.sqrt((share * (known - mean) ** 2).sum())
        columns.append(0.14 * (known - mean) / max(std, 1e-6))
    return np.column_stack(columns if features is None else [*columns, features])


def tastes_of_choice(vectors, weights, n):
    """g: the sum of the rated items' rows, without the constant, over the root of their number."""
    rated = np.flatnonzero(weights)
    return sum(vectors[i, 1 : 1 + n] for i in rated) / np.sqrt(len(rated))


def posterior(items, a, ratings, weights, features=None, coefficients=None):
    """S and the mean of (b_u, p_u)."""
    vectors = rows(items, a, features)
    precision = np.diag(np.r_[LAMBDA_0, np.ones(vectors.shape[1] - 1)])
    right = np.zeros(vectors.shape[1])
    if coefficients is not None:
        n = len(coefficients)
        right[1 : 1 + n] += tastes_of_choice(vectors, weights, n) @ coefficients
    for i in np.flatnonzero(weights):
        x = vectors[i]
        precision += ALPHA * weights[i] * np.outer(x, x)
        right += ALPHA * weights[i] * (ratings[i] - items[i, 0]) * x
    covariance = np.linalg.inv(precision)
    return covariance, covariance @ right


def gradient(items, a, ratings, weights, features=None, coefficients=None):
    """One user's upload, of norm at most 1."""
    covariance, phi = posterior(items, a, ratings, weights, features, coefficients)
    vectors, result, floor = rows(items, a, features), np.zeros(items.shape), 0.0
    n_sent = items.shape[1]
    for i in np.flatnonzero(weights):
        x, size = vectors[i], a[i] * weights[i]
        error = ratings[i] - items[i, 0] - x @ phi
        result[i] = size * 1.4 * (error * phi - covariance @ x)[:n_sent]
        result[i, 0] = size * error
        floor += (size / 2) ** 2
    return result / np.sqrt(max((result**2).sum(), floor))


def upload(users, items, a, ratings, weights, features=None, coefficients=None):
    """What a client sends in a round."""
    more = features, coefficients
    total = sum(gradient(items, a, ratings[u], weights[u], *more) for u in users)
    share = 1.0 if coefficients is None else np.sqrt(1 - 0.2**2)
    return share * total / max(1, np.linalg.norm(total))


def products(users, items, a, ratings, weights, features, coefficients):
    """The sums of g (g, phi)' that a client sends beside this, of norm at most 0.2."""
    n, total = len(coefficients), 0.0
    for u in users:
        _, phi = posterior(items, a, ratings[u], weights[u], features, coefficients)
        g = tastes_of_choice(rows(items, a, features), weights[u], n)
        product = np.outer(g, np.r_[g, phi[1 : 1 + n]])
        total = total + 0.2 * product / max(1, np.linalg.norm(product)) / len(users)
    return total


def position(users, directions, a, weights):
    """What a client sends in a round for the audiences."""
    total = np.zeros(directions.shape)
    for u in users:
        rated = np.flatnonzero(weights[u])
        where = sum(directions[i] for i in rated)
        product = np.zeros(directions.shape)
        for i in rated:
            product[i] = a[i] * where
        total += product / np.linalg.norm(product)
    return total / max(1, np.linalg.norm(total))


def counts(noisy, s):
    """Posterior means of counts, given them with noise of standard deviation s."""
    if s == 0:
        return np.maximum(noisy, 0)
    values = s * np.arange(33) / 4
    unclear = [i for i in range(len(noisy)) if noisy[i] < 6 * s]
    prior, means = np.ones(33) / 33, noisy.copy()
    for _ in range(50):
        found = np.zeros((len(noisy), 33))
        for i in unclear:
            found[i] = prior * np.exp(-(((noisy[i] - values) / s) ** 2) / 2)
            found[i] /= found[i].sum()
            means[i] = (found[i] * values).sum()
        prior = found.sum(axis=0) / len(unclear)
    return means


class Server:
    """Its state; `noise_std` is that of the noise on each sum."""

    def __init__(self, sums, squares, start, noise_std=0.0):
        s = noise_std / np.sqrt(0.99)
        self.counts = counts(sums[:, 0] / np.sqrt(0.99), s)
        residuals = sums[:, 1] / np.sqrt(0.99)
        self.w = squares / 0.1 / self.counts.sum()
        padded = self.counts + self.counts.mean() / 2
        self.a = padded**-0.25
        self.a /= np.sqrt((self.counts * self.a**2).sum() / self.counts.sum())
        noise = s**2 + self.w * self.counts / ALPHA
        seen = self.counts > 0
        precision = 1 / (0.25 + noise[seen] / self.counts[seen] ** 2)
        design = np.column_stack([np.ones(seen.sum()), np.log(padded[seen])])
        weighted = design * np.sqrt(precision)[:, None]
        right = np.sqrt(precision) * residuals[seen] / self.counts[seen]
        beta = np.linalg.lstsq(weighted, right, rcond=None)[0]
        m = len(start)
        self.items = np.column_stack([np.zeros(m), start])
        self.variance = np.zeros(m)
        for i in range(m):
            prior = beta[0] + beta[1] * np.log(padded[i])
            self.items[i, 0], self.variance[i] = learned(
                prior, 0.25, self.counts[i], residuals[i] - self.counts[i] * prior, noise[i]
            )
        self.average, self.t = self.items.copy(), 0

    def learn_audiences(self, random):
        """Begin with random columns, one more than there are factors."""
        first = np.sqrt(self.counts) / np.linalg.norm(np.sqrt(self.counts))
        self.first, self.found = first, random - np.outer(first, first @ random)
        n = 2 + self.items.shape[1] - 1 + random.shape[1]
        self.sums, self.coefficients, self.left = np.zeros((n, 2 * n)), np.zeros((n, n)), 2

    def directions(self):
        padded = self.counts + self.counts.mean() / 2
        return np.linalg.qr(self.found)[0] / np.sqrt(padded)[:, None]

    def step_of_audiences(self, sums, noise_std=0.0):
        self.left -= 1
        padded = self.counts + self.counts.mean() / 2
        scale = 1 / self.a / np.sqrt(padded)
        noise = (noise_std * scale) ** 2
        found = np.zeros(sums.shape)
        for k in range(sums.shape[1]):
            column = scale * sums[:, k]
            if noise_std > 0:
                sure = (noise + np.median(noise)) ** -2.0
                variance = max((sure * (column**2 - noise)).sum() / sure.sum(), 1e-300)
                column = column * variance / (variance + noise)
            found[:, k] = column - self.first * (self.first * column).sum()
        self.found = found

    def audiences(self):
        padded = self.counts + self.counts.mean() / 2
        share = padded / padded.sum()
        centred = self.found - share @ self.found
        return 0.2 * centred / np.sqrt((share[:, None] * centred**2).sum())

    def step_of_users(self, sums, noise_std=0.0):
        new = max(1 / (self.t + 1), 0.5)
        self.sums = (1 - new) * self.sums + new * sums
        squares, right = self.sums[:, : len(sums)], self.sums[:, len(sums) :]
        sizes, axes = np.linalg.eigh((squares + squares.T) / 2)
        sizes = np.maximum(sizes, 0) + 4 * max(noise_std, 0.1)
        self.coefficients = axes @ np.diag(1 / sizes) @ axes.T @ right

    def step(self, sums, share, noise_std=0.0, part=1.0):
        self.t += 1
        for i in range(len(self.items)):
            h = share * self.counts[i] * self.a[i] * part
            noise = noise_std**2 + self.w * h * self.a[i] * part / ALPHA
            self.items[i, 0], self.variance[i] = learned(
                self.items[i, 0], self.variance[i], h, sums[i, 0], noise
            )
            for k in range(1, self.items.shape[1]):
                h_k, variance = 0.35 * 1.4 * h, 0.02 if part == 1 else 0.01
                self.items[i, k], _ = learned(self.items[i, k], variance, h_k, sums[i, k], noise)
        new = max(1 / self.t, 0.5)
        self.average = (1 - new) * self.average + new * self.items
        self.average[:, 0] = self.items[:, 0]


def learned(mean, variance, h, total, noise):
    """Posterior mean and variance of x ~ N(mean, variance) after ``h (x - mean) + noise``."""
    if h == 0:
        return mean, variance
    precision = 1 / variance + h**2 / noise
    return mean + h * total / noise / precision, 1 / precision


def run(ratings, weights, clients, start, turns, random=None):
    """All rounds; `clients` lists each client's users, `turns` who receives, updates, delivers.

    With audiences, `random` is where these begin.
    """
    parts = [first(users, ratings, weights) for users in clients]
    server = Server(sum(p[0] for p in parts), sum(p[1] for p in parts), start)
    if random is not None:
        server.learn_audiences(random)
    received = [None] * len(clients)
    for receives, active, delivers in turns:
        message = server.items.copy(), None, None
        if random is not None:
            if server.left:
                message = (server.directions(),)
            else:
                message = server.items.copy(), server.audiences(), server.coefficients
        received = [message if receives[c] else received[c] for c in range(len(clients))]
        arrived = [
            c for c in range(len(clients)) if active[c] and delivers[c] and received[c] is not None
        ]
        if arrived:
            everything = server.a, ratings, weights
            sums, of_users = 0.0, 0.0
            for c in arrived:
                if len(received[c]) == 1:
                    sums = sums + position(clients[c], received[c][0], server.a, weights)
                    continue
                items, features, coefficients = received[c]
                sums = sums + upload(clients[c], items, *everything, features, coefficients)
                if random is not None:
                    more = features, coefficients
                    of_users = of_users + products(clients[c], items, *everything, *more)
            if random is None:
                server.step(sums, len(arrived) / len(clients))
            elif server.left:
                server.step_of_audiences(sums)
            else:
                server.step_of_users(of_users)
                server.step(sums, len(arrived) / len(clients), part=np.sqrt(1 - 0.2**2))
    return server
