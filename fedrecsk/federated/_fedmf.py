"""What FedMF, CoLR and SCoLR share: an item matrix that is trained by federated averaging."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import ClassVar, Literal

import numpy as np

from fedrecsk import _kernels
from fedrecsk._pieces import pieces
from fedrecsk._sklearn import Interval, StrOptions
from fedrecsk.attacks._inversion_sampled import sampled
from fedrecsk.attacks._unmixing import by_lines
from fedrecsk.base import linear_scores
from fedrecsk.federated._feedback import LearnsFromFeedback
from fedrecsk.simulation.keys import Key
from fedrecsk.simulation.messages import Dense, Message, Uploads
from fedrecsk.uploads import Form, Ragged

# Epochs on the final items of a user whose client was in no round.
EPOCHS_OF_THE_NEW = 20


@dataclass(eq=False, repr=False)
class AveragedItems(LearnsFromFeedback):
    """Base class of FedMF and of those that upload less; it has no positional parameter."""

    _: KW_ONLY
    n_factors: int = 64
    n_rounds: int = 200
    local_epochs: int = 2
    batch_size: int = 64
    learning_rate: float = 0.5
    weight_decay: float = 2e-3
    aggregation: Literal["visits", "data_size"] = "visits"
    init_std: float = 0.03
    client_fraction: float = 0.2

    _parameter_constraints: ClassVar[dict] = LearnsFromFeedback._parameter_constraints | {
        "n_factors": [Interval(Integral, 1, None, closed="left")],
        "local_epochs": [Interval(Integral, 1, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "aggregation": [StrOptions({"visits", "data_size"})],
        "init_std": [Interval(Real, 0, None, closed="neither")],
    }

    _single_uploads = True
    _inversion = staticmethod(sampled)
    _unmix = staticmethod(by_lines("updates", tolerance=1e-3))
    _dtype = np.float32
    _user_width = "n_factors"

    # --------------------------------------------------------------- before the rounds

    def _init_server(self, catalogue, key):
        shape = (catalogue.n_items, self.n_factors)
        items = self.init_std * key.generator("item factors").standard_normal(shape)
        return {"item_factors": items.astype(self._dtype)}

    # ---------------------------------------------------------------------- each round

    def _model(self, server):
        return Message(item_factors=Dense(server["item_factors"]))

    def _init_clients(self, block, message, key):
        coordinates = block.users[:, None] * self.n_factors + np.arange(self.n_factors)
        users = self.init_std * key.private.at(-1).normal("user factors", coordinates)
        return {
            "feedback": self._feedback(block, message),
            "users": users.astype(self._dtype),
        }

    def _least_bytes(self, data):
        # The mean update beside the sum.
        return super()._least_bytes(data) + 8 * data.n_items * self._n_columns

    def _upload_forms(self, n_items):
        forms = {"updates": Form((n_items, self._n_columns))}
        if self.aggregation == "data_size":
            return forms | {"data_size": Form((1,), learned=False)}
        counts = Form((n_items, self._n_count_columns), dtype="uint8", learned=False)
        return forms | {"n_visits": counts}

    def _client_update(self, block, state, message, turn, key):
        items, layout, config = message["item_factors"].values, self._layout(block), self._config()
        columns, sound = self._columns(block, key), np.ones(block.n_clients, dtype=bool)
        seeds = key.private.hashed("visit", block.clients)
        visit = (
            layout,
            state["feedback"],
            _kernels.fedmf.Cohort(turn.active, turn.delivers, seeds, sound),
            config,
            items,
            self._moving(block, columns),
            state["users"],
            _kernels.fedmf.scratch(layout, turn.active, config, items),
        )
        if turn.separate:
            fields, loss = self._visit_each(block, turn, visit, columns)
        else:
            fields, loss = self._visit_summed(block, turn, visit, sound)
        return state, Uploads(sound=sound, **fields), loss

    def _aggregate(self, server, message, upload, key):
        if upload is None:
            return server
        return server | self._moved_items(server, self._mean_update(upload))

    def _moved_items(self, server, update):
        """Server: its item matrix after an update; a dict."""
        items = server["item_factors"] + update
        return {"item_factors": items.astype(self._dtype)}

    # ------------------------------------------------------------------------- the end

    def _personalize(self, block, state, message, turn, key):
        active, trained = block.users_of(turn.active), np.zeros(block.n_users, dtype=bool)
        users = np.zeros((block.n_users, self.n_factors), dtype=self._dtype)
        if state is not None:
            trained = active & np.isfinite(state["users"]).all(axis=1)
            users[trained] = state["users"][trained]
        feedback = self._feedback(block, message) if state is None else state["feedback"]
        new = active & ~trained
        for whom, n_epochs in ((new, EPOCHS_OF_THE_NEW), (trained, self.local_epochs)):
            self._fit_users(block, feedback, message, np.flatnonzero(whom), n_epochs, users)
        return {"users": users}

    def _final_items(self, message):
        """The item matrix of a final message."""
        return message["item_factors"].values

    def _server_attributes(self, message):
        attributes = {"item_factors_": self._final_items(message)}
        if self.loss == "squared":
            attributes["global_bias_"] = float(message["global_bias"].values[0])
        return attributes

    def _user_attributes(self, block, state):
        return {"user_factors_": state["users"]}

    # ------------------------------------------------------------------- on the clients

    def _config(self):
        return _kernels.fedmf.Config(
            n_negatives=self.n_negatives if self.loss == "bce" else 0,
            local_epochs=self.local_epochs,
            batch_size=self.batch_size,
            learning_rate=float(self.learning_rate),
            weight_decay=float(self.weight_decay),
            shrinkage=float(self._least_penalty),
            squared=self.loss == "squared",
        )

    def _fit_users(self, block, feedback, message, whom, n_epochs, users):
        """Train these users' vectors, in place, with the items fixed."""
        items, layout = self._final_items(message), self._layout(block)
        config = self._config()._replace(local_epochs=n_epochs)
        arguments = (
            layout,
            feedback,
            whom,
            # A user's vector must not depend on which others are computed, or when.
            Key(0).hashed("personal"),
            config,
            items,
            _kernels.fedmf.scratch_of_users(layout, config, items),
            users,
        )
        for piece in pieces(np.diff(block.indptr)[whom], self._cost_of_a_rating(config)):
            _kernels.fedmf.fit_users(*piece, *arguments)

    def _cost_of_a_rating(self, config):
        """Numbers that are processed for its examples, in all epochs."""
        return config.local_epochs * (1 + config.n_negatives) * self.n_factors

    @property
    def _least_penalty(self):
        """What the weight decay of a user's examples adds up to at least."""
        return 0.0

    @property
    def _n_columns(self):
        """Columns of an upload."""
        return self.n_factors

    @property
    def _n_count_columns(self):
        """Columns of the visits: one for all of an item's coordinates."""
        return 1

    def _columns(self, block, key):
        """Which coordinates of items each client trains, (n_clients, n_columns), dtype bool."""
        return np.ones((block.n_clients, self._n_columns), dtype=bool)

    def _rate_and_length(self):
        """Learning rate of the items, and by what their changes are divided when sent."""
        return float(self.learning_rate), 1.0

    def _moving(self, block, columns):
        rate, length = self._rate_and_length()
        by_size = self.aggregation == "data_size"
        scale = self._data_sizes(block) if by_size else np.ones(block.n_clients)
        return _kernels.fedmf.Moving(rate, columns, (scale / length).astype(self._dtype))

    def _visit_summed(self, block, turn, visit, sound):
        """The fields of the block's upload as sums, and the loss."""
        sums = np.zeros((block.n_items, self._n_columns))
        n_visits = np.zeros((block.n_items, self._n_count_columns), dtype=np.int64)
        loss = self._by_pieces(_kernels.fedmf.visit_summed, block, turn, *visit, sums, n_visits)
        fields = {"updates": sums}
        if self.aggregation == "data_size":
            senders = turn.active & turn.delivers & sound
            fields["data_size"] = self._data_sizes(block)[senders].sum(keepdims=True)
        else:
            fields["n_visits"] = n_visits
        return fields, loss

    def _visit_each(self, block, turn, visit, columns):
        """The same client by client."""
        # No client visits more items than it has examples.
        n_examples = np.diff(block.rating_indptr) * (1 + self._config().n_negatives)
        room = np.minimum(n_examples, block.n_items)[turn.active].sum()
        indptr, rows = np.zeros(block.n_clients + 1, np.int64), np.empty(room, np.int32)
        values = np.empty((room, self._n_columns), self._dtype)
        visit = *visit, indptr, rows, values
        loss = self._by_pieces(_kernels.fedmf.visit_each, block, turn, *visit)
        rows, values = rows[: indptr[-1]], values[: indptr[-1]]
        fields = {"updates": Ragged(indptr, rows, values)}
        if self.aggregation == "data_size":
            fields["data_size"] = Ragged.stacked(self._data_sizes(block)[:, None])
        else:
            fields["n_visits"] = Ragged(indptr, rows, self._visits(indptr, columns))
        return fields, loss

    def _by_pieces(self, kernel, block, turn, *arguments):
        """Call a kernel of visits on all active clients; the sums of losses and of weights."""
        n_ratings = np.diff(block.rating_indptr) * turn.active
        loss = 0.0, 0.0
        for piece in pieces(n_ratings, self._cost_of_a_rating(self._config())):
            loss = kernel(*piece, *loss, *arguments)
        return loss

    def _visits(self, indptr, columns):
        """A one for each item that a client has visited, client by client."""
        return np.ones((indptr[-1], 1), dtype=np.uint8)

    # -------------------------------------------------------------------- on the server

    def _mean_update(self, upload):
        """Mean of the clients' updates: over those that visited the item, or by data size."""
        if self.aggregation == "data_size":
            return upload["updates"].sum / upload["data_size"].sum
        return upload["updates"].sum / np.maximum(upload["n_visits"].sum, 1)

    def _upload_moving(self, view, rows, moves):
        if self.aggregation == "data_size":
            own = np.bincount(view.data.clients, view.data.weights)
            divisor = view.n_senders * own[own > 0].mean()
        else:
            divisor = view.n_expected("updates")
        return {"updates": divisor / view.n_own * moves}

    # --------------------------------------------------------------------- predictions

    def _raw_scores(self, users, items):
        return linear_scores(users, items, *self._linear_part())
