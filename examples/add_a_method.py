"""How do I add a federated method of my own?

Write a class with the method's hooks, and run it in settings that you did not write.

This is federated gradient descent for ratings, in the manner of FCF (Ammad-ud-din and others,
2019): every client solves for its users' vectors in closed form and uploads the gradient of the
items; the server takes the step. The picture has its test error where nothing goes wrong, where
half of the uploads are lost, where each number is sent in eight bits, where long uploads are
shortened, and where a fifth of the clients takes part in each round. The page :doc:`/add_a_method`
explains each hook.
"""

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import ClassVar

import numpy as np
from sklearn.metrics import root_mean_squared_error
from sklearn.model_selection import train_test_split

from fedrecsk import BiasOnly, Federation
from fedrecsk.aggregation import NormClipping
from fedrecsk.base import Interval, RatingMixin
from fedrecsk.compression import Quantization
from fedrecsk.datasets import make_ratings
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.protocol import Dense, FieldSpec, Message, Updates


@dataclass(eq=False, repr=False)
class FederatedRidge(RatingMixin, FederatedRecommender):
    """Score level + b_u + b_i + p_u . q_i: ridge on the clients, gradient steps on the server."""

    n_factors: int = 8
    _: KW_ONLY
    n_rounds: int = 30
    reg: float = 0.15
    learning_rate: float = 0.5

    _parameter_constraints: ClassVar[dict] = FederatedRecommender._parameter_constraints | {
        "n_factors": [Interval(Integral, 1, None, closed="left")],
        "reg": [Interval(Real, 0, None, closed="neither")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
    }

    # --------------------------------------------------------------- before the rounds

    def _setup_specs(self, n_items):
        return {"ratings": FieldSpec((2,)), "per_item": FieldSpec((n_items,))}

    def _setup_update(self, block, message, key):
        ratings = np.array([block.weights @ block.values, block.weights.sum()])
        per_item = np.bincount(block.items, block.weights, block.n_items)
        return Updates({"ratings": ratings, "per_item": per_item})

    def _begin(self, catalogue, sums, key):
        shape = (catalogue.n_items, 1 + self.n_factors)
        items = 0.1 * key.generator("items").standard_normal(shape)
        total, number = sums["ratings"].sum
        return {"items": items, "level": total / number, "per_item": sums["per_item"].mean}

    def _initial_broadcast(self, server):
        return Message(level=Dense(np.array([server["level"]])))

    # ---------------------------------------------------------------------- each round

    def _model(self, server):
        return Message(items=Dense(server["items"]))

    def _init_clients(self, block, message, key):
        users = np.zeros((block.n_users, 1 + self.n_factors))
        return {"level": message["level"].values[0], "users": users}

    def _upload_specs(self, n_items):
        return {"gradient": FieldSpec((n_items, 1 + self.n_factors))}

    def _client_update(self, block, state, message, turn, key):
        items = message["items"].values
        gradient, loss = np.zeros_like(items), np.zeros(2)
        for client in np.flatnonzero(turn.active):
            for user in range(*block.client_indptr[client : client + 2]):
                rated, weights, errors = self._solve(block, state, items, user)
                loss += weights @ errors**2, weights.sum()
                if turn.delivers[client]:
                    vector = np.r_[1.0, state["users"][user, 1:]]
                    gradient[rated] += np.outer(weights * errors, vector)
        return state, Updates({"gradient": gradient}), loss

    def _aggregate(self, server, upload, key):
        if upload is None:
            return server
        share = np.maximum(server["per_item"], np.finfo(float).tiny)[:, None]
        step = upload["gradient"].mean / share + self.reg * server["items"]
        return server | {"items": server["items"] - self.learning_rate * step}

    # ------------------------------------------------------------------------- the end

    def _personalize(self, block, state, message, turn, key):
        state = state or self._init_clients(block, message, key)
        state = state | {"users": np.zeros_like(state["users"])}
        for user in range(block.n_users):
            self._solve(block, state, message["items"].values, user)
        return state

    def _server_attributes(self, message):
        items, level = message["items"].values, message["level"].values[0]
        return {"global_bias_": level, "item_bias_": items[:, 0], "item_factors_": items[:, 1:]}

    def _user_attributes(self, block, state):
        return {"user_bias_": state["users"][:, 0], "user_factors_": state["users"][:, 1:]}

    # ------------------------------------------------------------------- on the clients

    def _solve(self, block, state, items, user):
        """Ridge regression of one user; returns its items, weights and errors."""
        rows = slice(*block.indptr[user : user + 2])
        rated, weights = block.items[rows], block.weights[rows]
        features = np.column_stack([np.ones(len(rated)), items[rated, 1:]])
        target = block.values[rows] - state["level"] - items[rated, 0]
        weighted = features * weights[:, None]
        ridge = self.reg * weights.sum() * np.eye(1 + self.n_factors)
        state["users"][user] = np.linalg.solve(weighted.T @ features + ridge, weighted.T @ target)
        return rated, weights, features @ state["users"][user] - target


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
        "a fifth of the clients per round": FederatedRidge(client_fraction=0.2),
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
