"""FCF and ExplicitFCF as their papers write them: every client writes down a dense matrix.

Slow on purpose. `turns` has (receives, active, delivers), a mask over clients each, by round.
"""

import numpy as np

from tests.reference.wmf import user_penalty, user_solve


class Adam:
    """Adam for one array (Kingma and Ba, algorithm 1), or plain gradient descent."""

    def __init__(self, model):
        self.model, self.t, self.m, self.v = model, 0, 0.0, 0.0

    def step(self, items, gradient, rate=None):
        model = self.model
        rate = model.learning_rate if rate is None else rate
        if model.optimizer == "gd":
            return items - rate * gradient
        self.t += 1
        self.m = model.BETA_1 * self.m + (1 - model.BETA_1) * gradient
        self.v = model.BETA_2 * self.v + (1 - model.BETA_2) * gradient * gradient
        m_hat = self.m / (1 - model.BETA_1**self.t)
        v_hat = self.v / (1 - model.BETA_2**self.t)
        return items - rate * m_hat / (np.sqrt(v_hat) + model.EPSILON)


class ImplicitClient:
    """A client of FCF: confidences c and preferences r of its users, (n_users, n_items)."""

    def __init__(self, model, c, r):
        self.model, self.c, self.r = model, c, r

    def gradient(self, items):
        """The derivative of the client's loss in every item, after its users' exact solution."""
        gradient = np.zeros_like(items)
        for c, r in zip(self.c, self.r, strict=True):
            p = user_solve(c, r, items, user_penalty(self.model, c))
            for i, q in enumerate(items):
                gradient[i] += -2 * c[i] * (r[i] - p @ q) * p
        return gradient


class RatingClient:
    """A client of ExplicitFCF: weights w (0: not rated) and ratings less the level.

    Row i of `items` is (b_i, q_i) with biases, q_i without.
    """

    def __init__(self, model, w, ratings):
        self.model, self.w, self.ratings = model, w, ratings

    def user(self, w, ratings, items):
        """The exact (b_u, p_u), or p_u without biases."""
        model, width = self.model, items.shape[1]
        matrix = model.reg_user * w.sum() ** model.REG_POWER * np.eye(width)
        if model.biases:
            matrix[0, 0] = model.reg_bias
        right = np.zeros(width)
        for i in np.flatnonzero(w):
            x, target = items[i].copy(), ratings[i]
            if model.biases:
                x[0], target = 1.0, target - items[i, 0]
            matrix += w[i] * np.outer(x, x)
            right += w[i] * target * x
        return np.linalg.solve(matrix, right)

    def score(self, user, item):
        if not self.model.biases:
            return user @ item
        return user[0] + item[0] + user[1:] @ item[1:]

    def gradient(self, items):
        """The derivative of the client's squared errors in every item."""
        gradient = np.zeros_like(items)
        for w, ratings in zip(self.w, self.ratings, strict=True):
            user = self.user(w, ratings, items)
            partner = user.copy()
            if self.model.biases:
                partner[0] = 1.0
            for i in np.flatnonzero(w):
                gradient[i] += -2 * w[i] * (ratings[i] - self.score(user, items[i])) * partner
        return gradient


def run(model, clients, items, penalties, turns):
    """All rounds; `penalties` are those of the whole objective. Returns the items."""
    server = Adam(model)
    received = [None] * len(clients)
    for receives, active, delivers in turns:
        arrived = []
        for k, client in enumerate(clients):
            if receives[k]:
                received[k] = items.copy()
            if active[k] and delivers[k] and received[k] is not None:
                arrived.append((client.gradient(received[k]), received[k]))
        if not arrived:
            continue
        total = np.sum([gradient for gradient, _ in arrived], axis=0)
        total = total / len(arrived) + 2 * penalties / len(clients) * items
        items = server.step(items, total)
    return items
