"""RFRec and RFRecF as the paper writes them: a loop over clients that hold everything densely.

Slow on purpose. Ratings are scaled to [0, 1]; `nan` marks what is not rated. Vectors are
[bias, factors] with biases, [factors] without.
"""

import numpy as np

from tests.reference.fcf import Adam


class Client:
    """One client: ratings (n_users, n_items) of its own users, vectors, and an item matrix."""

    def __init__(self, model, ratings, weights, users, level, n_ratings):
        self.model, self.ratings, self.weights = model, ratings, weights
        self.level, self.n_ratings = level, n_ratings
        self.users, self.items = users.copy(), None
        self.mean = None

    def receive(self, mean):
        self.mean = mean.copy()
        if self.items is None:
            self.items = mean.copy()
            self.adam_users, self.adam_items = Adam(self.model), Adam(self.model)

    def penalties(self, n, on_users):
        """Weight on each coordinate of a vector with n ratings."""
        model = self.model
        strength = model.reg_user if on_users else model.reg_item
        each = np.full(self.items.shape[1], strength * n**model.REG_POWER)
        if model.biases:
            each[0] = model.reg_bias
        few = model.FEW_RATINGS if on_users else model.FEW_RATINGS / 3
        return each * max(1, few / max(n, 1))

    def gradients(self):
        """Of the data term and the penalties, for all users and items of the client."""
        d_users, d_items = np.zeros_like(self.users), np.zeros_like(self.items)
        for u in range(len(self.users)):
            p = self.users[u]
            for i in np.flatnonzero(~np.isnan(self.ratings[u])):
                q, w = self.items[i], self.weights[u, i]
                if self.model.biases:
                    score = self.level + p[0] + q[0] + p[1:] @ q[1:]
                    d_p, d_q = np.r_[1, q[1:]], np.r_[1, p[1:]]
                else:
                    score, d_p, d_q = self.level + p @ q, q, p
                if self.model.LINK == "sigmoid":
                    estimate = 1 / (1 + np.exp(-score))
                    slope = estimate * (1 - estimate)
                else:
                    estimate, slope = score, 1.0
                g = -2 * w * (self.ratings[u, i] - estimate) * slope
                d_users[u] += g * d_p
                d_items[i] += g * d_q
                if self.n_ratings is not None:
                    share = w / self.n_ratings[i]
                    d_items[i] += 2 * share * self.penalties(self.n_ratings[i], False) * q
            n_u = self.weights[u][~np.isnan(self.ratings[u])].sum()
            d_users[u] += 2 * self.penalties(n_u, True) * p
        return d_users, d_items

    def update(self):
        """Line 7 of algorithm 1."""
        d_users, d_items = self.gradients()
        d_items += self.model.prox * (self.items - self.mean)
        rate = self.model.learning_rate
        self.users = self.adam_users.step(self.users, d_users, rate)
        self.items = self.adam_items.step(self.items, d_items, rate)

    def main_update(self):
        """Line 10 of algorithm 2."""
        d_users, d_items = self.gradients()
        rate = self.model.learning_rate / (1 - self.model.aggregation_probability)
        self.users = self.adam_users.step(self.users, d_users, rate)
        self.items = self.adam_items.step(self.items, d_items, rate)

    def move_to_average(self):
        """Line 12 of algorithm 2, the whole way at most."""
        model = self.model
        share = min(1, model.learning_rate * model.prox / model.aggregation_probability)
        self.items = self.items + share * (self.mean - self.items)

    def upload(self, clip):
        """Line 8 of algorithm 1 and equation 9, without the noise."""
        if self.model.aggregation == "clients":
            return np.clip(self.items, -clip, clip)
        rated = ~np.isnan(self.ratings).all(axis=0)
        return np.where(rated[:, None], self.items - self.mean, 0)


class Server:
    """The mean of the uploads that arrived."""

    def __init__(self, model, items, ratings_by_client):
        self.model, self.items = model, items.copy()
        self.n_clients = len(ratings_by_client)
        self.n_holders = np.sum([~np.isnan(r).all(axis=0) for r in ratings_by_client], axis=0)

    def aggregate(self, uploads):
        if not uploads:
            return
        if self.model.aggregation == "clients":
            self.items = np.mean(uploads, axis=0)
        else:
            expected = np.maximum(self.n_holders * len(uploads) / self.n_clients, 1)
            self.items = self.items + np.sum(uploads, axis=0) / expected[:, None]


def rfrec(model, clients, server, turns, clip=np.inf):
    """Algorithm 1. `turns` has (receives, active, delivers), a mask each, for every round."""
    for receives, active, delivers in turns:
        uploads = []
        for c, client in enumerate(clients):
            if receives[c]:
                client.receive(server.items)
            if active[c] and client.items is not None:
                client.update()
                if delivers[c]:
                    uploads.append(client.upload(clip))
        server.aggregate(uploads)


def rfrecf(model, clients, server, turns, coins, clip=np.inf):
    """Algorithm 2, with upload before averaging and zeta_{-1} = 0."""
    before = 0
    for k, ((receives, active, delivers), now) in enumerate(zip(turns, coins, strict=True)):
        uploads = []
        for c, client in enumerate(clients):
            if receives[c] and (k == 0 or (before, now) == (1, 0)):
                client.receive(server.items)
            if not active[c] or client.items is None:
                continue
            if (before, now) == (0, 0):
                client.main_update()
            elif (before, now) == (1, 0):
                client.move_to_average()
            elif (before, now) == (0, 1) and delivers[c]:
                uploads.append(client.upload(clip))
        server.aggregate(uploads)
        before = now
