"""How can a server treat clients individually?

Write a method whose server groups clients by what they upload and answers each group differently.

Each client receives the tastes of its own group. The generated clients belong to four hidden
groups: with one group the model is no better than biases, and the error falls until there are
four. Sums alone could not do this, but it costs privacy: secure sums raise an error, and
``privacy_`` reports that the server sees single uploads. The page :doc:`/add_a_method` explains the
functions.
"""

from dataclasses import dataclass, replace

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import root_mean_squared_error
from sklearn.model_selection import train_test_split

from fedrecsk import BiasOnly
from fedrecsk.federated import estimator_of
from fedrecsk.protocol import (
    Algorithm,
    Dense,
    FieldSpec,
    Form,
    Message,
    PerClient,
    Traits,
    Updates,
)
from fedrecsk.protocol.states import PerUser

SHRINKAGE = 5.0


@dataclass(frozen=True)
class Server:
    """What the server knows: the groups' tastes, and each client's group."""

    level: float
    tastes: np.ndarray
    group: np.ndarray


@dataclass
class Clients:
    """What a block of clients knows."""

    level: float
    tastes: PerUser | None = None


@dataclass
class GroupTastesAlgorithm(Algorithm[Server, Clients]):
    """Rating = level + what the client's group thinks of the item."""

    n_groups: int = 4

    # The server needs single uploads, not sums.
    traits = Traits(treats_clients_apart=True)

    def downloads(self, n_items):
        return {"level": Form((1,)), "tastes": Form((n_items,), per_client=True)}

    def begin(self, catalogue, sums, key):
        tastes = np.zeros((self.n_groups, catalogue.n_items))
        return Server(np.mean(catalogue.rating_range), tastes, np.zeros(catalogue.n_clients, int))

    def announce(self, server):
        return Message(level=Dense(np.array([server.level])))

    def broadcast(self, server, key):
        # Each client receives its own group's row only.
        return Message(tastes=PerClient(server.tastes[server.group]))

    def enter(self, block, message, key):
        return Clients(message["level"].values[0])

    def fields(self, n_items):
        return {"errors": FieldSpec((n_items,)), "counts": FieldSpec((n_items,))}

    def update(self, block, clients, message, turn, key):
        # A block has one client here: this version hands over plain sums, not one row per client.
        errors = block.values - clients.level
        sums = np.bincount(block.items, block.weights * errors, block.n_items)
        counts = np.bincount(block.items, block.weights, block.n_items)
        left = errors - message["tastes"].values[0, block.items]
        loss = block.weights @ left**2, counts.sum()
        return clients, Updates({"errors": sums, "counts": counts}), loss

    def step(self, server, upload, key):
        if upload is None:
            return server
        codes, singles = zip(*upload.single(), strict=True)
        errors = np.stack([single["errors"].change for single in singles])
        counts = np.stack([single["counts"].change for single in singles])
        means = errors / (counts + SHRINKAGE)
        n_groups = min(self.n_groups, len(means))
        found = KMeans(n_groups, n_init=3, random_state=key.round).fit_predict(means)
        group, tastes = server.group.copy(), server.tastes.copy()
        group[list(codes)] = found
        for g in range(n_groups):
            mine = found == g
            tastes[g] = errors[mine].sum(axis=0) / (counts[mine].sum(axis=0) + SHRINKAGE)
        return replace(server, group=group, tastes=tastes)

    def final(self, server):
        return self.broadcast(server, None)

    def personalize(self, block, clients, message, turn, key):
        # A newcomer belongs to no group yet: it gets the mean of all clients' tastes.
        tastes, level = message["tastes"].values, message["level"].values[0]
        if clients is None:
            tastes = np.repeat(tastes.mean(axis=0, keepdims=True), block.n_clients, axis=0)
        return Clients(level, np.repeat(tastes, np.diff(block.client_indptr), axis=0))

    def server_attributes(self, message):
        level, n_items = message["level"].values[0], message["tastes"].values.shape[1]
        return {"global_bias_": level, "item_factors_": np.eye(n_items)}

    def user_attributes(self, block, clients):
        return {"user_factors_": clients.tastes}


GroupTastes = estimator_of(GroupTastesAlgorithm, n_rounds=3)


if __name__ == "__main__":
    import matplotlib.pyplot as plt

    # 200 users of four hidden groups rate 30 of 60 items: the group's taste, and noise.
    rng = np.random.default_rng(0)
    hidden, taste = rng.integers(4, size=200), rng.normal(size=(4, 60))
    X = np.array([(u, i) for u in range(200) for i in rng.choice(60, 30, replace=False)])
    y = 3 + taste[hidden[X[:, 0]], X[:, 1]] + rng.normal(scale=0.5, size=len(X))
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=0)

    def rmse(model):
        return root_mean_squared_error(y_test, model.fit(X_train, y_train).predict(X_test))

    biases = rmse(BiasOnly())
    sizes = (1, 2, 3, 4, 6, 8)
    models = [GroupTastes(n, random_state=0) for n in sizes]
    errors = [rmse(model) for model in models]
    for n, error in zip(sizes, errors, strict=True):
        print(f"{n} groups: RMSE {error:.3f}")
    print(f"biases: {biases:.3f}; the noise: 0.5")
    print(models[3].privacy_)
    print(models[3].communication_)

    _, ax = plt.subplots(figsize=(7, 4), layout="constrained")
    ax.plot(sizes, errors, "o-", color="#0072B2", label="GroupTastes")
    ax.axhline(biases, color="0.5", linestyle=":", label="BiasOnly")
    ax.axhline(0.5, color="0.7", linestyle="--", label="the noise in the ratings")
    ax.set(xlabel="Number of groups", ylabel="Test RMSE", ylim=(0.4, None))
    ax.legend()
    plt.show()
