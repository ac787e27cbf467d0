"""FedMF, CoLR and SCoLR as METHODS writes them: every client holds everything densely.

Slow on purpose. A client has the targets of its users, (n_users, n_items) with NaN where there
is no rating, and their weights; it forms the whole matrix q = Q + A B wherever it needs a row.
"""

import numpy as np

GOLDEN, MASK = 0x9E3779B97F4A7C15, 2**64 - 1


class Stream:
    """splitmix64 (Steele, Lea and Flood 2014) from a seed."""

    def __init__(self, seed):
        self.state = int(seed)

    def uniform(self):
        """A number in [0, 1)."""
        self.state = (self.state + GOLDEN) & MASK
        x = self.state
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        return ((x ^ (x >> 31)) >> 11) * 2.0**-53

    def below(self, n):
        """A whole number in [0, n)."""
        return int(self.uniform() * n)

    def shuffled(self, things):
        """Fisher-Yates."""
        things = list(things)
        for last in range(len(things) - 1, 0, -1):
            k = self.below(last + 1)
            things[last], things[k] = things[k], things[last]
        return things


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Client:
    """One client's data, private vectors, and its part in a round."""

    def __init__(self, model, targets, weights, users):
        rated = ~np.isnan(targets)
        self.model, self.targets = model, targets
        self.data_size = weights[rated].sum()
        self.weights = weights / weights[rated].mean()
        self.users = users.copy()
        self.trained, self.decay = False, model.reg

    def decay_of(self, n_examples, n_users):
        """Weight decay that adds up to at least `shrinkage` over the examples of a user."""
        least = getattr(self.model, "shrinkage", 0.0) * n_users / n_examples
        return max(self.model.reg, least)

    def examples_of(self, u, stream):
        """(user, item, target, weight) of every rating and every sampled negative."""
        rated = np.flatnonzero(~np.isnan(self.targets[u]))
        unseen = np.flatnonzero(np.isnan(self.targets[u]))
        examples = []
        for i in rated:
            target, weight = self.targets[u, i], self.weights[u, i]
            examples.append((u, i, target, weight))
            if self.model.loss == "bce" and target > 0 and len(unseen):
                for _ in range(self.model.n_negatives):
                    examples.append((u, unseen[stream.below(len(unseen))], 0.0, weight))
        return examples

    def gradients(self, batch, users, items):
        """Lists of the gradients of each user and item over the batch's examples."""
        of_users, of_items = {}, {}
        decay = 2 * self.decay
        for u, i, target, weight in batch:
            p, q = users[u], items[i]
            estimate = sigmoid(p @ q) if self.model.loss == "bce" else p @ q
            error = weight * (estimate - target)
            of_users.setdefault(u, []).append(error * q + decay * p)
            of_items.setdefault(i, []).append(error * p + decay * q)
        return of_users, of_items

    def batches(self, examples):
        for start in range(0, len(examples), self.model.batch_size):
            yield examples[start : start + self.model.batch_size]

    def visit(self, items, basis, rate_item, seed):
        """Local epochs. Returns A, and which items were visited."""
        model, stream = self.model, Stream(seed)
        self.trained = True
        examples = [e for u in range(len(self.users)) for e in self.examples_of(u, stream)]
        self.decay = self.decay_of(len(examples), len(self.users))
        A = np.zeros((len(items), len(basis)))
        for _ in range(model.local_epochs):
            examples = stream.shuffled(examples)
            for batch in self.batches(examples):
                of_users, of_items = self.gradients(batch, self.users, items + A @ basis)
                for i, gradients in of_items.items():
                    A[i] -= rate_item * basis @ np.mean(gradients, axis=0)
                for u, gradients in of_users.items():
                    self.users[u] -= model.learning_rate * np.mean(gradients, axis=0)
        visited = np.zeros(len(items), dtype=bool)
        visited[[i for _, i, _, _ in examples]] = True
        return A, visited

    def personal_vectors(self, items, n_epochs, seed):
        """Epochs with fresh negatives and frozen items, each user from zero if never trained."""
        users = self.users.copy() if self.trained else np.zeros_like(self.users)
        for u in range(len(users)):
            stream = Stream(seed)
            for _ in range(n_epochs[self.trained]):
                examples = stream.shuffled(self.examples_of(u, stream))
                self.decay = self.decay_of(len(examples), 1)
                for batch in self.batches(examples):
                    gradients = self.gradients(batch, users, items)[0][u]
                    users[u] -= self.model.learning_rate * np.mean(gradients, axis=0)
        return users


def run(model, clients, items, turns, draws):
    """All rounds. Returns the items, or their average over the rounds.

    `turns` has (receives, active, delivers), a mask each; `draws` has (B, rows, seeds): the
    round's basis, which of its rows each client trains, and what seeds its visit.
    """
    received, average, n = [None] * len(clients), items, 0
    for (receives, active, delivers), (basis, rows, seeds) in zip(turns, draws, strict=True):
        exponent = getattr(model, "RANK_EXPONENT", 1.0)
        rate_item = model.learning_rate * (len(basis) / model.n_factors) ** exponent
        total = np.zeros((len(items), len(basis)))
        n_visits, data_size, n_senders = np.zeros_like(total), 0.0, 0
        for c, client in enumerate(clients):
            if receives[c]:
                received[c] = items, basis
            if not active[c] or received[c] is None:
                continue
            known_items, known_basis = received[c]
            mine = rows[c]
            A, visited = client.visit(known_items, known_basis[mine], rate_item, seeds[c])
            if not delivers[c]:
                continue
            scale = client.data_size if model.aggregation == "data_size" else 1.0
            total[:, mine] += scale * A
            data_size += client.data_size
            n_senders += 1
            trained = np.zeros(len(basis), dtype=bool)
            trained[mine if model.aggregation == "entries" else slice(None)] = True
            n_visits += np.outer(visited, trained)
        if not data_size:
            continue
        by = np.maximum(n_visits, 1)
        if model.aggregation == "data_size":
            by = data_size
        if model.aggregation == "reptile":
            by = n_senders / model.server_learning_rate
        items = items + (total / by) @ basis
        n += 1
        average = average + 10 / (n + 9) * (items - average)
    averages = getattr(model, "averaging", False) and not model.early_stopping
    return average if averages else items
