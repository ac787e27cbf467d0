"""FedEB as METHODS writes it: loops over users and items, dense arrays, the equations in order.

Slow on purpose. Ratings and their weights are (n_users, n_items) matrices, weights 0 where there is
no rating; `items` has b_i in column 0 and q_i in the others, `implicit` the y_j.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from tests.reference.fcf import Adam

NU = 10.0
FEWEST_RATERS = 10
RATES = SimpleNamespace(optimizer="adam", BETA_1=0.9, BETA_2=0.99, EPSILON=1e-8, learning_rate=None)


@dataclass
class Model:
    """What the server knows and clients receive; all in units of a quarter of the scale."""

    items: np.ndarray
    implicit: np.ndarray
    n_ratings: np.ndarray
    reg: np.ndarray
    lambda_0: float
    alpha: float
    user_noise: bool = True
    # Of users' expected vectors, on (1, features); None without features.
    user_means: np.ndarray | None = None
    # a_i, (n_items, n_audiences); known to clients at the end only.
    audiences: np.ndarray | None = None

    @property
    def own(self):
        """The columns of x_i that have b_i or q_i."""
        return slice(1, self.items.shape[1])

    @property
    def variance(self):
        """V_i, as wide as x_i, 0 for z_i and a_i."""
        variance = np.zeros(self.x.shape)
        of_items = [1 / (self.reg + self.alpha * n) for n in self.n_ratings]
        variance[:, : self.items.shape[1]] = of_items
        return variance

    @property
    def x(self):
        """x_i = (1, q_i, z_i, a_i): z_i has the popularity and b_i."""
        n, popularity = self.n_ratings, np.zeros(len(self.items))
        padded = n + n[n > 0].mean() / 2
        share = np.where(n > 0, padded, 0) / padded[n > 0].sum()
        mean = share @ np.log(padded)
        for i in np.flatnonzero(n > 0):
            popularity[i] = 0.2 * (np.log(padded[i]) - mean)
        columns = [np.ones(len(n)), self.items[:, 1:], popularity, 0.3 * self.items[:, 0]]
        return np.column_stack(columns + ([] if self.audiences is None else [self.audiences]))


@dataclass
class Posterior:
    """Of one user: mean and covariance of phi, its prior mean, alpha_u and E."""

    phi: np.ndarray
    covariance: np.ndarray
    center: np.ndarray
    alpha: float
    spread: float


def infer_with_features(model, ratings, weights, features):
    """The posterior of one user whose features (NaN: unknown) say what to expect of phi."""
    if np.isnan(features).any():
        return infer(model, ratings, weights)
    expected = np.zeros(model.x.shape[1])
    expected[: model.user_means.shape[1]] = np.r_[1, features] @ model.user_means
    posterior = infer(model, ratings - model.x @ expected, weights)
    posterior.phi = posterior.phi + expected
    return posterior


def infer(model, ratings, weights):
    """The posterior of one user; `ratings` less the mean rating."""
    rated = np.flatnonzero(weights > 0)
    x, w = model.x[rated], weights[rated]
    width = x.shape[1]
    center = np.zeros(width)
    if model.implicit.shape[1]:
        center[model.own] = model.implicit[rated].sum(axis=0) / np.sqrt(len(rated))
    y = ratings[rated] - model.items[rated, 0]
    prior = np.diag(np.r_[model.lambda_0, np.ones(width - 1)])
    gram = (x.T * w) @ x
    for i, weight in zip(rated, w, strict=True):
        gram += weight * np.diag(np.r_[0, model.variance[i, 1:]])
    covariance = np.linalg.inv(model.alpha * gram + prior)
    phi = covariance @ (model.alpha * x.T @ (w * y) + prior @ center)
    spread = expected_squares(model.items, model, phi, covariance, ratings, weights)
    alpha = model.alpha
    if model.user_noise:
        alpha = (NU + w.sum()) / (NU / model.alpha + spread)
    return Posterior(phi, covariance, center, alpha, spread)


def expected_squares(items, model, phi, covariance, ratings, weights):
    """E: expected sum of w (r - b_i - x_i.phi)^2 over the user, given V and z_i."""
    variance, known = model.variance, model.x[:, items.shape[1] :]
    total = 0.0
    for i in np.flatnonzero(weights > 0):
        x = np.r_[1.0, items[i, 1:], known[i]]
        error = ratings[i] - items[i, 0] - x @ phi
        of_item = variance[i, 0]
        for k in range(1, len(phi)):
            of_item += variance[i, k] * (phi[k] ** 2 + covariance[k, k])
        total += weights[i] * (error**2 + x @ covariance @ x + of_item)
    return total


def upload(model, ratings, weights):
    """What one user contributes: gradients of all items (zero if not rated), and four numbers."""
    p = infer(model, ratings, weights)
    items, implicit = np.zeros_like(model.items), np.zeros_like(model.implicit)
    rated = np.flatnonzero(weights > 0)
    for i in rated:
        x = model.x[i]
        error = ratings[i] - model.items[i, 0] - x @ p.phi
        precision = p.alpha * weights[i]
        items[i, 0] = precision * error
        items[i, 1:] = precision * (error * p.phi - p.covariance @ x)[model.own]
        if implicit.shape[1]:
            implicit[i] = (p.phi - p.center)[model.own] / np.sqrt(len(rated))
    scales = [
        (p.phi[0] - p.center[0]) ** 2 + p.covariance[0, 0],
        1,
        p.alpha / model.alpha * p.spread,
        weights.sum(),
    ]
    return items, implicit, np.array(scales)


def kernel(weights):
    """K = D (sum_u r_u r_u') D, the items' similarity by who rates them."""
    rated = (weights > 0).astype(float)
    n = rated.sum(axis=0)
    scale = np.divide(1, np.sqrt(n), out=np.zeros_like(n), where=n > 0)
    return scale[:, None] * (rated.T @ rated) * scale


def user_means(features, weights, sums, squares, half=400):
    """The users' expected vectors by their features: each column's ridge of the likeliest ratio."""
    known = ~np.isnan(features).any(axis=1)
    x, n = features[known], weights[known].sum(axis=1)
    w = n / (n + half)
    mean, average = w @ x / w.sum(), sums[0] / w.sum()
    gram = (x.T * w) @ x - w.sum() * np.outer(mean, mean)
    rest = squares - w.sum() * average**2
    slopes = np.zeros((x.shape[1], sums.shape[1]))
    for k in range(sums.shape[1]):
        right, best = sums[1:, k] - w.sum() * mean * average[k], np.inf
        rest[k] = max(rest[k], 1.001 * right @ np.linalg.solve(gram, right))
        for ratio in np.logspace(-4, 6, 61) * np.trace(gram) / len(gram):
            found = np.linalg.solve(gram + ratio * np.eye(len(gram)), right)
            loss = len(x) * np.log(rest[k] - right @ found)
            loss += np.linalg.slogdet(np.eye(len(gram)) + gram / ratio)[1]
            if loss < best:
                slopes[:, k], best = found, loss
    return np.vstack([len(x) / (len(x) + 10) * average - mean @ slopes, slopes])


def run(estimator, ratings, weights, users_of, start, turns, features=None):
    """All rounds; `turns` has who receives, updates and delivers. Returns the final Model.

    Assumes that the sketch is as wide as the catalogue, so that the server knows all of K.
    """
    m, d = start.shape
    n_clients, n_ratings = len(users_of), weights.sum(axis=0)
    rated = weights > 0
    shares = (rated / rated.sum(axis=1)[:, None]).sum(axis=0)
    eigenvalues, vectors = np.linalg.eigh(kernel(weights))
    vectors, eigenvalues = vectors[:, eigenvalues > 1e-8], eigenvalues[eigenvalues > 1e-8]
    items = np.column_stack([np.zeros(m), start])
    implicit = np.zeros((m, d if estimator.implicit else 0))
    reg, reg_implicit = np.r_[5.0, np.full(d, 100.0)], np.full(implicit.shape[1], 100.0)
    psi, center, sums = np.full(d + 1, 10.0), np.zeros_like(items), None
    lambda_0, alpha, t = 6.0, 1.3, 0
    move_items, move_implicit = Adam(RATES), Adam(RATES)
    averages = [items.copy(), implicit.copy()]
    user_sums = None
    if features is not None:
        user_sums = [np.zeros((1 + features.shape[1], d + 3)), np.zeros(d + 3)]
    received = [None] * n_clients
    for receives, active, delivers in turns:
        model = Model(items, implicit, n_ratings, reg, lambda_0, alpha, estimator.user_noise)
        received = [model if receives[c] else received[c] for c in range(n_clients)]
        arrived = [c for c in range(n_clients) if active[c] and delivers[c] and received[c]]
        if not arrived:
            continue
        totals = [np.zeros_like(items), np.zeros_like(implicit), np.zeros(4)]
        for c in arrived:
            for u in users_of[c]:
                for total, part in zip(
                    totals, upload(received[c], ratings[u], weights[u]), strict=True
                ):
                    total += part
        if features is not None:
            of_users = [np.zeros_like(one) for one in user_sums]
            pairs = [(c, u) for c in arrived for u in users_of[c]]
            for c, u in [(c, u) for c, u in pairs if not np.isnan(features[u]).any()]:
                n, p = weights[u].sum(), infer(received[c], ratings[u], weights[u])
                of_users[0] += n / (n + 400) * np.outer(np.r_[1, features[u]], p.phi - p.center)
                of_users[1] += n / (n + 400) * (p.phi - p.center) ** 2
        t, share = t + 1, len(arrived) / n_clients
        gradient, gradient_implicit, scales = (total / share for total in totals)
        rate = estimator.learning_rate
        if rate == "auto":
            rate = 0.05 * share ** (1 / 3)
        items = move_items.step(items, reg * (items - center) - gradient, rate)
        implicit = move_implicit.step(implicit, reg_implicit * implicit - gradient_implicit, rate)
        sums = scales if sums is None else 0.9 * sums + 0.1 * scales
        if t > 3:
            variance = Model(items, implicit, n_ratings, reg, lambda_0, alpha).variance[:, : d + 1]
            reg = reg.copy()
            lambda_0 = np.clip(sums[1] / sums[0], 1e-4, 1e4)
            new_alpha = np.clip(sums[3] / sums[2], 1e-4, 1e4)
            of_center = 0.0
            if estimator.sketch_size:
                precision = psi / eigenvalues[:, None] + reg
                f = reg * (vectors.T @ items) / precision
                center = vectors @ f
                psi = len(eigenvalues) / ((f**2 + 1 / precision) / eigenvalues[:, None]).sum(axis=0)
                of_center = (1 / precision).sum(axis=0)
            squares = ((items - center) ** 2).sum(axis=0)
            variance = variance.sum(axis=0) + of_center
            for k in range(d + 1):
                determined = max(m - reg[k] * variance[k], 1e-300)
                new = min(determined / max(squares[k], 1e-300), 1e4)
                if determined <= 0.02 * m:
                    new = max(new, m / (squares[k] + variance[k]))
                if determined > 0.1 * m:
                    new = m / (squares[k] + variance[k])
                reg[k] = reg[k] ** 0.9 * max(new, 1e-4) ** 0.1
            own = 1 / (reg_implicit + shares[:, None])
            reg_implicit = m / (implicit**2 + own).sum(axis=0)
            alpha = new_alpha
        weight = max(1 / t, min(share, 0.1))
        averages = [
            mean + weight * (new - mean)
            for mean, new in zip(averages, (items, implicit), strict=True)
        ]
        if features is not None:
            weight = max(1 / t, share)
            user_sums = [
                mean + weight * (new / share - mean)
                for mean, new in zip(user_sums, of_users, strict=True)
            ]
    means = None if features is None else user_means(features, weights, *user_sums)
    audiences = None
    if estimator.sketch_size:
        audiences = 0.4 * (vectors * np.sqrt(eigenvalues))[:, ::-1][:, :32]
        audiences[rated.sum(axis=0) < FEWEST_RATERS] = 0
    return Model(*averages, n_ratings, reg, lambda_0, alpha, estimator.user_noise, means, audiences)
