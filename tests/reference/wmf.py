"""LocALS, LocSGD and GlobSGD as METHODS writes them: every client holds everything densely.

Slow on purpose. A client has the confidences c and preferences r of its users, both
(n_users, n_items), what it `holds`, and its own version of every item.
"""

import numpy as np


def user_solve(c, r, items, reg):
    """The exact vector of one user."""
    matrix = reg * np.eye(items.shape[1])
    right = np.zeros(items.shape[1])
    for i in range(len(items)):
        matrix += c[i] * np.outer(items[i], items[i])
        right += c[i] * r[i] * items[i]
    return np.linalg.solve(matrix, right)


def final_user(c, r, reg, n_likes, items):
    """The vector of one user at the end, who leans on popular items if the likes are few."""
    gram, rarity = items.T @ items, 1 / max(n_likes, 1) ** 3
    size = np.sqrt((gram**2).sum())
    vector = user_solve(c, r, items, reg + 30 * size * rarity)
    return vector + rarity * gram @ vector / size


def final_users(model, data, c, r, items):
    """The vectors of all users at the end."""
    likes = np.bincount(data.users, data.weights * (data.values > 0), data.n_users)
    penalties = [user_penalty(model, one) for one in c]
    return [final_user(*own, items) for own in zip(c, r, penalties, likes, strict=True)]


def user_steps(c, r, items, reg, start, n_steps=3):
    """Steps of conjugate gradients towards it, each the best in the span of the gradients."""
    matrix = reg * np.eye(items.shape[1]) + (items.T * c) @ items
    gradient = (c * r) @ items - matrix @ start
    span = np.array([np.linalg.matrix_power(matrix, k) @ gradient for k in range(n_steps)]).T
    basis = np.linalg.qr(span)[0]
    return start + basis @ np.linalg.solve(basis.T @ matrix @ basis, basis.T @ gradient)


def user_penalty(model, c):
    """Penalty of a user with these confidences of all items."""
    pivot = getattr(model, "REG_PIVOT", None) or len(c)
    return model.reg_user * (1 + np.sum(c - 1) / pivot) ** getattr(model, "reg_exponent", 0)


def item_penalties(model, holds):
    """Penalty of each item from the clients that hold it, (n_clients, n_items)."""
    shares = np.mean(holds, axis=0)
    if getattr(model, "REG_PIVOT", None):
        shares = shares / shares[shares > 0].mean()
    return model.reg_item * (1 + model.alpha * shares) ** getattr(model, "reg_exponent", 0)


class Client:
    """One client's data, and its part in each of the three methods."""

    def __init__(self, model, c, r, holds, n_clients):
        self.model, self.c, self.r, self.holds = model, c, r, holds
        self.reg_item = model.reg_item / n_clients
        if getattr(model, "reg_exponent", 0):
            self.reg_item = 0  # the server's
        self.users = np.zeros((len(c), model.n_factors))
        self.received = None

    def receive(self, items):
        self.received = items.copy()

    def solve_users(self, items):
        for u in range(len(self.users)):
            mine = self.c[u], self.r[u], items, user_penalty(self.model, self.c[u])
            inexact = self.model.n_factors > getattr(self.model, "EXACT_UP_TO", np.inf)
            self.users[u] = user_steps(*mine, self.users[u]) if inexact else user_solve(*mine)

    def solve_items(self):
        """Every item's exact vector; those not held follow only in the full form."""
        model, d = self.model, self.model.n_factors
        items = self.received.copy()
        for i in range(len(items)):
            if not self.holds[i] and model.aggregation != "full":
                continue
            matrix = (model.prox + self.reg_item) * np.eye(d)
            right = model.prox * self.received[i]
            for u, p in enumerate(self.users):
                matrix += self.c[u, i] * np.outer(p, p)
                right = right + self.c[u, i] * self.r[u, i] * p
            items[i] = np.linalg.solve(matrix, right)
        return items

    def descend(self, items, rated):
        """Sweeps over the client's pairs, one user after the other.

        `follow` takes the steps of an item without rows as a map of what was received.
        """
        model, eye = self.model, np.eye(self.model.n_factors)
        for _ in range(model.n_steps):
            for u, p in enumerate(self.users):
                for i in range(len(items)):
                    if not rated[u, i] and model.aggregation != "full":
                        continue
                    q = items[i].copy()
                    gradient = self.c[u, i] * (p @ q - self.r[u, i]) * p
                    gradient = gradient + self.reg_item * q + model.prox * (q - self.received[i])
                    items[i] = q - self.rate(self.c[u, i], p, rated[u]) * gradient
                step = np.outer(p, p) @ self.follow + self.reg_item * self.follow
                step += model.prox * (self.follow - eye)
                self.follow = self.follow - self.rate(1.0, p, rated[u]) * step
        return items

    def rate(self, confidence, p, rated):
        """The largest step, up to `learning_rate`, that does not pass the pair's minimum."""
        model, largest = self.model, self.model.learning_rate
        if largest == "auto":
            largest = 0.2 * np.sqrt(len(rated) / max(rated.sum(), 1))
        return min(largest, 1 / (confidence * p @ p + self.reg_item + model.prox))

    def local_items(self, rated):
        """The client's version of every item after a round."""
        items, self.follow = self.received.copy(), np.eye(self.model.n_factors)
        for _ in range(self.model.local_epochs):
            self.solve_users(items)
            if hasattr(self.model, "n_steps"):
                items = self.descend(items, rated)
            else:
                items = self.solve_items()
        return items

    def gradient(self, rated):
        """Half the gradient of the client's loss in every item, at the items received."""
        self.solve_users(self.received)
        gradient = np.zeros_like(self.received)
        for u, p in enumerate(self.users):
            for i, q in enumerate(self.received):
                if rated[u, i] or self.model.aggregation == "full":
                    gradient[i] += self.c[u, i] * (p @ q - self.r[u, i]) * p
        return gradient

    def background(self):
        """How the client's version of an item it does not hold depends on the server's."""
        model = self.model
        if not hasattr(model, "n_steps"):
            tie = (model.prox + self.reg_item) * np.eye(model.n_factors)
            matrix = tie + self.users.T @ self.users
            return model.prox * np.linalg.inv(matrix)
        return self.follow


def is_global(model):
    return not hasattr(model, "local_epochs")


def run(model, clients, rated, items, turns):
    """All rounds; `turns` has (receives, active, delivers), a mask each. Returns the items."""
    eye = np.eye(items.shape[1])
    n_clients = len(clients)
    holds = np.array([client.holds for client in clients])
    preconditioned = getattr(model, "preconditioner", model.aggregation == "full")
    rate = model.learning_rate if is_global(model) else "auto"
    for receives, active, delivers in turns:
        arrived, versions = [], []
        for c, client in enumerate(clients):
            if receives[c]:
                client.receive(items)
            if not active[c] or client.received is None:
                continue
            result = client.gradient(rated[c]) if is_global(model) else client.local_items(rated[c])
            if delivers[c]:
                arrived.append(client)
                versions.append((result, client.received))
        if not arrived:
            continue
        step = automatic_step(model, arrived, holds, preconditioned) if rate == "auto" else rate
        n_holders = np.maximum(np.sum([client.holds for client in arrived], axis=0), 1)[:, None]
        by = n_holders if model.aggregation == "holders" else len(arrived)
        if is_global(model):
            gradients = [
                gradient + catch_up(model, cl, items - old)
                for (gradient, old), cl in zip(versions, arrived, strict=True)
            ]
            change = -np.sum(gradients, axis=0) / by - model.reg_item / n_clients * items
            hessian = np.mean([cl.users.T @ cl.users for cl in arrived], axis=0)
            hessian = hessian + model.reg_item / n_clients * eye
            if preconditioned:
                change = np.linalg.solve(hessian, change.T).T
        elif model.aggregation == "full":
            change = (
                np.mean(
                    [
                        version + (items - old) @ cl.background().T
                        for (version, old), cl in zip(versions, arrived, strict=True)
                    ],
                    axis=0,
                )
                - items
            )
            missing = eye - np.mean([cl.background() for cl in arrived], axis=0)
            if not getattr(model, "reg_exponent", 0):
                change = np.linalg.solve(missing, change.T).T
        else:
            change = np.sum([version - old for version, old in versions], axis=0) / by
        if getattr(model, "reg_exponent", 0):
            matrix = missing if preconditioned else eye
            for i, own in enumerate(item_penalties(model, holds) / n_clients / model.prox):
                change[i] = np.linalg.solve(matrix + own * eye, change[i] - own * items[i])
        items = items + step * change
    return items


def automatic_step(model, arrived, holds, preconditioned):
    """The server's step on each item, from what it may know."""
    share = holds.mean(axis=0)[:, None]
    turnout = min(1.0, 2 * len(arrived) / len(holds))
    if is_global(model):
        if preconditioned:
            return turnout / (1 + model.alpha * share)
        if model.aggregation != "full":
            return 3.0
        steepest = np.linalg.eigvalsh(np.mean([c.users.T @ c.users for c in arrived], axis=0))[-1]
        return 1 / ((1 + model.alpha * share) * steepest + model.reg_item / len(holds))
    if not preconditioned:
        return 1.0
    lean = np.trace(np.mean([c.background() for c in arrived], axis=0)) / model.n_factors
    return turnout / (1 + model.alpha * share * lean / 2)


def catch_up(model, client, moved):
    """What the full form adds to a gradient at items that the server has moved since."""
    return moved @ client.users.T @ client.users if model.aggregation == "full" else 0
