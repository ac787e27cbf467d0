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


def posterior(items, a, ratings, weights, features=None):
    """S and the mean of (b_u, p_u)."""
    vectors = rows(items, a, features)
    precision = np.diag(np.r_[LAMBDA_0, np.ones(vectors.shape[1] - 1)])
    right = np.zeros(vectors.shape[1])
    for i in np.flatnonzero(weights):
        x = vectors[i]
        precision += ALPHA * weights[i] * np.outer(x, x)
        right += ALPHA * weights[i] * (ratings[i] - items[i, 0]) * x
    covariance = np.linalg.inv(precision)
    return covariance, covariance @ right


def gradient(items, a, ratings, weights, features=None):
    """One user's upload, of norm at most 1."""
    covariance, phi = posterior(items, a, ratings, weights, features)
    vectors, result, floor = rows(items, a, features), np.zeros(items.shape), 0.0
    n_sent = items.shape[1]
    for i in np.flatnonzero(weights):
        x, size = vectors[i], a[i] * weights[i]
        error = ratings[i] - items[i, 0] - x @ phi
        result[i] = size * 1.4 * (error * phi - covariance @ x)[:n_sent]
        result[i, 0] = size * error
        floor += (size / 2) ** 2
    return result / np.sqrt(max((result**2).sum(), floor))


def upload(users, items, a, ratings, weights, features=None):
    """What a client sends in a round."""
    total = sum(gradient(items, a, ratings[u], weights[u], features) for u in users)
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

    def step(self, sums, share, noise_std=0.0):
        self.t += 1
        for i in range(len(self.items)):
            h = share * self.counts[i] * self.a[i]
            noise = noise_std**2 + self.w * h * self.a[i] / ALPHA
            self.items[i, 0], self.variance[i] = learned(
                self.items[i, 0], self.variance[i], h, sums[i, 0], noise
            )
            for k in range(1, self.items.shape[1]):
                h_k = 0.35 * 1.4 * h
                self.items[i, k], _ = learned(self.items[i, k], 0.02, h_k, sums[i, k], noise)
        new = max(1 / self.t, 0.5)
        self.average = (1 - new) * self.average + new * self.items
        self.average[:, 0] = self.items[:, 0]


def learned(mean, variance, h, total, noise):
    """Posterior mean and variance of x ~ N(mean, variance) after ``h (x - mean) + noise``."""
    if h == 0:
        return mean, variance
    precision = 1 / variance + h**2 / noise
    return mean + h * total / noise / precision, 1 / precision


def run(ratings, weights, clients, start, turns):
    """All rounds; `clients` lists each client's users, `turns` who receives, updates, delivers."""
    parts = [first(users, ratings, weights) for users in clients]
    server = Server(sum(p[0] for p in parts), sum(p[1] for p in parts), start)
    received = [None] * len(clients)
    for receives, active, delivers in turns:
        received = [
            server.items.copy() if receives[c] else received[c] for c in range(len(clients))
        ]
        arrived = [
            c for c in range(len(clients)) if active[c] and delivers[c] and received[c] is not None
        ]
        if arrived:
            sums = sum(upload(clients[c], received[c], server.a, ratings, weights) for c in arrived)
            server.step(sums, len(arrived) / len(clients))
    return server
