"""FedRec as the paper writes it: a loop over clients, users and items, with dense arrays.

Slow on purpose. Ratings are on the scale from 1 to 5; `nan` marks what is not rated. Vectors are
[bias, factors] with biases, [factors] without.
"""

import numpy as np


def virtual_items(rated, n_wanted, stream):
    """Go through the unrated items; take each with the chance that keeps all sets alike likely."""
    unrated, taken = np.flatnonzero(~rated), []
    for k, item in enumerate(unrated):
        if stream.uniform() * (len(unrated) - k) < n_wanted - len(taken):
            taken.append(item)
    return taken


class Client:
    """One client: ratings (n_users, n_items) of its users, and their vectors."""

    def __init__(self, model, ratings, weights, users, level):
        self.model, self.ratings, self.weights = model, ratings, weights
        self.users, self.level = users.copy(), level
        self.has_trained = False

    def score(self, p, q):
        if self.model.biases:
            return self.level + p[0] + q[0] + p[1:] @ q[1:]
        return p @ q

    def partner(self, vector):
        """What the other side's vector is multiplied by."""
        return np.r_[1, vector[1:]] if self.model.biases else vector

    def user_gradient(self, p, items, examples, rate):
        """Of the mean of 1/2 (r - score)^2 + reg/2 |p|^2 over (item, rating, weight)."""
        total = sum(
            w * ((self.score(p, items[i]) - r) * self.partner(items[i]) + self.model._reg * p)
            for i, r, w in examples
        )
        mass = sum(w for _, _, w in examples)
        squares = sum(w * np.sum(self.partner(items[i]) ** 2) for i, _, w in examples)
        return self.damping(squares / mass + self.model._reg, rate) * total / mass

    def damping(self, curvature, rate):
        """So that a step does not overshoot."""
        return 1 / max(1, rate * curvature / 2)

    def update(self, items, virtual, rate, is_hybrid):
        """Gradients in all items, and the weights that they have."""
        model = self.model
        gradients, masses = np.zeros_like(items), np.zeros(len(items))
        for u in range(len(self.users)):
            rated = np.flatnonzero(~np.isnan(self.ratings[u]))
            real = [(i, self.ratings[u, i], self.weights[u, i]) for i in rated]
            mean = sum(w * r for _, r, w in real) / sum(w for _, _, w in real)
            own = self.users[u]
            if is_hybrid:
                for _ in range(model.HYBRID_STEPS):
                    own = own - rate * self.user_gradient(own, items, real, rate)
            filled = []
            for k, i in enumerate(virtual[u]):
                rating = self.score(own, items[i]) if is_hybrid else mean
                filled.append((i, rating, real[k % len(real)][2]))
            p = self.users[u]
            for _ in range(model.user_steps):
                last = p
                p = p - rate * self.user_gradient(p, items, real + filled, rate)
            damping = self.damping(np.sum(self.partner(last) ** 2), rate)
            for i, r, w in real + filled:
                error = damping * (self.score(last, items[i]) - r)
                gradients[i] += w * (error * self.partner(last) + model._reg * items[i])
                masses[i] += w
            self.users[u] = p
        self.has_trained = True
        return gradients, masses


def aggregate(items, uploads, rate):
    """The server's step along each item's mean gradient."""
    gradients = sum(g for g, _ in uploads)
    masses = sum(m for _, m in uploads)
    for i in np.flatnonzero(masses):
        items[i] -= rate * gradients[i] / masses[i]


def fedrec(model, clients, items, turns, virtual):
    """Run the rounds; `turns` are masks (receives, active, delivers), `virtual(round, client)`."""
    received = [None] * len(clients)
    for t, (receives, active, delivers) in enumerate(turns):
        n_passes = int(t * model.client_fraction + 1e-9)
        rate = model.learning_rate * model.learning_rate_decay**n_passes
        is_hybrid = model.filling == "hybrid" and n_passes >= model.hybrid_start
        uploads = []
        for c, client in enumerate(clients):
            if receives[c]:
                received[c] = items.copy()
            if active[c] and received[c] is not None:
                upload = client.update(received[c], virtual(t, c), rate, is_hybrid)
                if delivers[c]:
                    uploads.append(upload)
        if uploads:
            aggregate(items, uploads, rate)
