"""How do I add my own federated method?

Write the algorithm's functions; cohorts, lost uploads and compression then work without more code.

This is federated gradient descent for ratings, in the manner of FCF (Ammad-ud-din and others,
2019): every client solves for its users' vectors in closed form and uploads the gradient of the
items; the server takes the step. The picture shows its test error in five settings: without
failures, with half of the uploads lost, with eight bits per number, with long uploads shortened,
and with 20% of the clients per round. The page :doc:`/add_a_method` explains each function.
"""

from dataclasses import dataclass, replace

import numpy as np
from sklearn.metrics import root_mean_squared_error
from sklearn.model_selection import train_test_split

from fedrecsk import BiasOnly, Federation
from fedrecsk.aggregation import NormClipping
from fedrecsk.compression import Quantization
from fedrecsk.datasets import make_ratings
from fedrecsk.federated import estimator_of
from fedrecsk.protocol import Algorithm, Dense, FieldSpec, Form, Message, Updates
from fedrecsk.protocol.states import Kept, PerItem, PerUser


@dataclass(frozen=True)
class Server:
    """What the server knows."""

    items: Kept[PerItem]  # (n_items, 1 + n_factors); column 0 is the bias
    n_ratings: PerItem  # per client
    level: float


@dataclass
class Clients:
    """What a block of clients knows."""

    users: Kept[PerUser]  # (n_users, 1 + n_factors)


@dataclass
class FederatedRidgeAlgorithm(Algorithm[Server, Clients]):
    """Score level + b_u + b_i + p_u . q_i: ridge on the clients, gradient steps on the server."""

    n_factors: int = 8
    reg: float = 0.15
    learning_rate: float = 0.5

    def downloads(self, n_items):
        return {"items": Form((n_items, 1 + self.n_factors)), "level": Form((1,))}

    # --------------------------------------------------------------- before the rounds

    def setup_fields(self, n_items):
        return {"ratings": FieldSpec((2,)), "per_item": FieldSpec((n_items,))}

    def answer(self, block, message, key):
        ratings = np.array([block.weights @ block.values, block.weights.sum()])
        per_item = np.bincount(block.items, block.weights, block.n_items)
        return Updates({"ratings": ratings, "per_item": per_item})

    def begin(self, catalogue, sums, key):
        shape = (catalogue.n_items, 1 + self.n_factors)
        items = 0.1 * key.generator("items").standard_normal(shape)
        total, number = sums["ratings"].sum
        return Server(items, sums["per_item"].mean, total / number)

    # ---------------------------------------------------------------------- each round

    def broadcast(self, server, key):
        return Message(items=Dense(server.items), level=Dense(np.array([server.level])))

    def enter(self, block, message, key):
        return Clients(np.zeros((block.n_users, 1 + self.n_factors)))

    def fields(self, n_items):
        return {"gradient": FieldSpec((n_items, 1 + self.n_factors))}

    def update(self, block, clients, message, turn, key):
        gradient, loss = np.zeros_like(message["items"].values), np.zeros(2)
        counts = block.users_of(turn.delivers)
        for user in np.flatnonzero(block.users_of(turn.active)):
            rated, weights, errors = self.solve(block, clients, message, user)
            loss += weights @ errors**2, weights.sum()
            if counts[user]:
                vector = np.r_[1.0, clients.users[user, 1:]]
                gradient[rated] += np.outer(weights * errors, vector)
        return clients, Updates({"gradient": gradient}), loss

    def step(self, server, upload, key):
        if upload is None:
            return server
        share = np.maximum(server.n_ratings, np.finfo(float).tiny)[:, None]
        step = upload["gradient"].mean / share + self.reg * server.items
        return replace(server, items=server.items - self.learning_rate * step)

    # ------------------------------------------------------------------------- the end

    def final(self, server):
        return self.broadcast(server, None)

    def personalize(self, block, clients, message, turn, key):
        fitted = self.enter(block, message, key)
        for user in range(block.n_users):
            self.solve(block, fitted, message, user)
        return fitted

    def server_attributes(self, message):
        items, level = message["items"].values, message["level"].values[0]
        return {"global_bias_": level, "item_bias_": items[:, 0], "item_factors_": items[:, 1:]}

    def user_attributes(self, block, clients):
        return {"user_bias_": clients.users[:, 0], "user_factors_": clients.users[:, 1:]}

    # ------------------------------------------------------------------- on the clients

    def solve(self, block, clients, message, user):
        """Ridge regression of one user; returns its items, weights and errors."""
        items, rows = message["items"].values, slice(*block.indptr[user : user + 2])
        rated, weights = block.items[rows], block.weights[rows]
        features = np.column_stack([np.ones(len(rated)), items[rated, 1:]])
        target = block.values[rows] - message["level"].values - items[rated, 0]
        weighted = features * weights[:, None]
        ridge = self.reg * weights.sum() * np.eye(1 + self.n_factors)
        vector = np.linalg.solve(weighted.T @ features + ridge, weighted.T @ target)
        clients.users[user] = vector
        return rated, weights, features @ vector - target


FederatedRidge = estimator_of(FederatedRidgeAlgorithm, n_rounds=30)


# A few of the settings that it runs in.
if __name__ == "__main__":
    import matplotlib.pyplot as plt

    X, y = make_ratings(n_users=300, n_items=80, n_ratings=9_000, random_state=0)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=0)
    models = {
        "BiasOnly": BiasOnly(),
        "nothing goes wrong": FederatedRidge(),
        "half of the uploads lost": FederatedRidge(federation=Federation(dropout=0.5)),
        "eight bits per number": FederatedRidge(
            federation=Federation(compression=Quantization("int8"))
        ),
        "long uploads shortened": FederatedRidge(federation=Federation(aggregator=NormClipping())),
        "20% of the clients per round": FederatedRidge(client_fraction=0.2),
    }
    errors = []
    for name, model in models.items():
        if name != "BiasOnly":
            model.set_params(n_rounds=15, random_state=0)
        model.fit(X_train, y_train)
        errors.append(root_mean_squared_error(y_test, model.predict(X_test)))
        print(f"{name}: RMSE {errors[-1]:.3f}  {getattr(model, 'communication_', '')}")

    _, ax = plt.subplots(figsize=(7.5, 3.5), layout="constrained")
    bars = ax.barh(list(models), errors, color=["0.7"] + 5 * ["#0072B2"])
    ax.bar_label(bars, fmt="{:.3f}", padding=3)
    ax.invert_yaxis()
    ax.set(xlim=(0.8, 1), xlabel="Test RMSE (left is better; the axis begins at 0.8)")
    plt.show()
