"""How do I add a federated method of my own?

A whole one, and what it gets for nothing.

Federated gradient descent for ratings, in the manner of FCF (Ammad-ud-din and others, 2019): every
client solves for its users' vectors in closed form and uploads the gradient of the items; the
server takes the step. The page :doc:`/add_a_method` explains each hook. Runs offline.
"""

from numbers import Integral, Real

import numpy as np
from sklearn.metrics import root_mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.utils._param_validation import Interval

from fedrecsk import BiasOnly, Federation
from fedrecsk.base import RatingMixin
from fedrecsk.compression import Quantization
from fedrecsk.datasets import make_ratings
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.simulation import Dense, Message


class FederatedRidge(RatingMixin, FederatedRecommender):
    """Score level + b_u + b_i + p_u . q_i: ridge on the clients, gradient steps on the server."""

    _parameter_constraints = FederatedRecommender._parameter_constraints | {
        "n_factors": [Interval(Integral, 1, None, closed="left")],
        "reg": [Interval(Real, 0, None, closed="neither")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(
        self,
        n_factors=8,
        *,
        n_rounds=30,
        reg=0.15,
        learning_rate=0.5,
        client_fraction=1.0,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=10,
        tol=1e-4,
        warm_start=False,
        n_jobs=None,
        random_state=None,
        federation=None,
    ):
        self.n_factors = n_factors
        self.n_rounds = n_rounds
        self.reg = reg
        self.learning_rate = learning_rate
        self.client_fraction = client_fraction
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.federation = federation

    # ------------------------------------------------------------------- before round 0

    def _enrol(self, block):
        ratings = np.array([block.weights @ block.values, block.weights.sum()])
        per_item = np.bincount(block.items, block.weights, block.n_items)
        return Message(ratings=Dense(ratings), per_item=Dense(per_item))

    def _init_server(self, catalogue, enrolment, key):
        total, number = enrolment["ratings"].sum
        shape = (catalogue.n_items, 1 + self.n_factors)
        items = 0.1 * key.generator("items").standard_normal(shape)
        return {"level": total / number, "items": items, "per_item": enrolment["per_item"].mean}

    def _announce(self, server):
        return Message(level=Dense(np.array([server["level"]])))

    # ---------------------------------------------------------------------- each round

    def _model(self, server):
        return Message(items=Dense(server["items"]))

    def _init_clients(self, block, message, key):
        users = np.zeros((block.n_users, 1 + self.n_factors))
        return {"level": message["level"].values[0], "users": users}

    def _client_update(self, block, state, message, key):
        items = message["items"].values
        gradient, loss = np.zeros_like(items), np.zeros(2)
        for client in np.flatnonzero(block.active):
            for user in range(*block.client_indptr[client : client + 2]):
                rated, weights, errors = self._solve(block, state, items, user)
                loss += weights @ errors**2, weights.sum()
                if block.delivers[client]:
                    vector = np.r_[1.0, state["users"][user, 1:]]
                    gradient[rated] += np.outer(weights * errors, vector)
        state["training_loss"] = loss
        return state, Message(gradient=Dense(gradient))

    def _aggregate(self, server, message, upload, key):
        if upload is None:
            return server
        share = np.maximum(server["per_item"], np.finfo(float).tiny)[:, None]
        step = upload["gradient"].mean / share + self.reg * server["items"]
        return server | {"items": server["items"] - self.learning_rate * step}

    # ------------------------------------------------------------------------- the end

    def _personalize(self, block, state, message, key):
        state = state or self._init_clients(block, message, key)
        state = state | {"users": np.zeros_like(state["users"])}
        for user in range(block.n_users):
            self._solve(block, state, message["items"].values, user)
        return state

    def _attributes(self, server, states):
        users, items = states.by_user("users"), server["items"]
        return {
            "global_bias_": server["level"],
            "user_bias_": users[:, 0],
            "user_factors_": users[:, 1:],
            "item_bias_": items[:, 0],
            "item_factors_": items[:, 1:],
        }

    # ---------------------------------------------------------------- its single lines

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


# A few of the worlds that it runs in.
if __name__ == "__main__":
    X, y = make_ratings(n_users=600, n_items=300, n_ratings=40_000, random_state=0)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=0)
    worlds = {
        "a perfect world": None,
        "half of the uploads lost": Federation(dropout=0.5),
        "eight bits a number": Federation(compression=Quantization("int8")),
    }
    models = {"bias-only": BiasOnly()}
    for name, federation in worlds.items():
        models[name] = FederatedRidge(federation=federation, random_state=0)
    models["a fifth of the clients a round"] = FederatedRidge(client_fraction=0.2, random_state=0)
    for name, model in models.items():
        model.fit(X_train, y_train)
        rmse = root_mean_squared_error(y_test, model.predict(X_test))
        print(f"{name}: RMSE {rmse:.3f}  {getattr(model, 'communication_', '')}")
