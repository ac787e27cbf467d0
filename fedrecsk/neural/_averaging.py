"""Averaging of a torch module: the algorithm that FederatedModule, FedNCF and PFedRec share."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

from fedrecsk.data._checks import ClientFailed
from fedrecsk.federated._feedback import (
    NO_LOCAL_DP,
    FeedbackAlgorithm,
    FeedbackParameters,
    losses_with_negatives,
)
from fedrecsk.neural._layout import Kind, Layout, Recipe, blueprint, built, own_settings, seeded
from fedrecsk.neural._modules import ModuleScores
from fedrecsk.neural._training import VISITS, Loss, Trainer, Training, uploads, write_private
from fedrecsk.protocol.algorithm import Traits
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.messages import Dense, Form, Message
from fedrecsk.protocol.states import PerUser
from fedrecsk.updates import FieldSpec, Updates

# Epochs on the final model of a user whose client was in no round.
EPOCHS_OF_THE_NEW = 20
# Rows of users' tables by which their first numbers are drawn.
FIRST_USERS = 64


@dataclass(frozen=True)
class ModuleServer:
    """What the server knows: the parameters that clients receive, and how their own begin."""

    # Matrices by the names of parameters.
    parameters: dict[str, np.ndarray]
    # Mean and deviation of users' rows, and all numbers of other private parameters.
    first: dict[str, np.ndarray]
    # With loss="squared".
    mean_rating: float | None


@dataclass
class ModuleClients:
    """Users of a block: targets and weights of their ratings, and their private numbers."""

    feedback: Any
    # (n_users, n_private)
    users: PerUser
    # What they keep beside these at the end.
    own_items: list[Any] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class ModuleParameters(FeedbackParameters):
    """Parameters of all methods that average a module."""

    _: KW_ONLY
    loss: Literal["bce", "squared"] | Loss = "bce"
    aggregation: Literal["visits", "mean"] = "visits"


@dataclass(kw_only=True, eq=False)
class ModuleAlgorithm(ModuleParameters, FeedbackAlgorithm[ModuleServer, ModuleClients]):
    """Clients train all of a module, and upload the changes of what is not private."""

    recipe: Recipe
    # By which a fitted model scores.
    fitted_recipe: Recipe
    training: Training

    @property
    def traits(self):
        return Traits(single_uploads=True, refuses={"local_dp": NO_LOCAL_DP})

    def downloads(self, n_items):
        layout, forms = self.layout, super().downloads(n_items)
        forms |= {name: Form(layout.matrix_shape(name, n_items)) for name in layout.sent}
        for name, place in layout.columns(n_items).items():
            # Of users' rows, mean and standard deviation.
            n_first = 2 if layout.parts[name].kind == "user" else place.stop - place.start
            forms[name] = Form((n_first,))
        return forms

    # --------------------------------------------------------------- before the rounds

    def begin(self, catalogue, sums, key):
        n_items, layout = catalogue.n_items, self.layout
        with seeded(int(key.hashed("module")) >> 1):
            module = built(self.recipe.make, FIRST_USERS, n_items)
        values = {name: value.detach().numpy() for name, value in module.named_parameters()}
        sent = {n: values[n].reshape(layout.matrix_shape(n, n_items)) for n in layout.sent}
        first = {n: values[n].ravel() for n in layout.named("private", "private item")}
        for name in layout.named("user"):
            first[name] = np.array([values[name].mean(), values[name].std()])
        return ModuleServer(sent, first, self.mean_rating(sums))

    def announce(self, server):
        names = self.layout.named("user", "private", "private item")
        first = {n: Dense(server.first[n], learned=False, compressible=False) for n in names}
        return super().announce(server) | first

    # ---------------------------------------------------------------------- each round

    def broadcast(self, server, key):
        return Message(**{name: Dense(values) for name, values in server.parameters.items()})

    def fields(self, n_items):
        layout = self.layout
        specs = {name: FieldSpec(layout.matrix_shape(name, n_items)) for name in layout.sent}
        if self.counts_visits:
            specs[VISITS] = FieldSpec((n_items, 1), dtype="uint8", learned=False)
        return specs

    def enter(self, block, message, key):
        layout, n_items = self.layout, block.n_items
        users = np.tile(self.newcomer(message, n_items), (block.n_users, 1))
        for name in layout.named("user"):
            column, deviation = layout.columns(n_items)[name], message[name].values[1]
            width = layout.parts[name].width
            addresses = block.users[:, None] * width + np.arange(width)
            draws = key.private.at(-1).normal(f"users' {name}", addresses)
            users[:, column] += deviation * draws
        return ModuleClients(self.feedback(block, message), users)

    def newcomer(self, message, n_items):
        """Return the private numbers of a user of whom nothing is known, shape (n_private,)."""
        layout = self.layout
        newcomer = np.zeros(layout.n_private(n_items), dtype=layout.dtype)
        for name, column in layout.columns(n_items).items():
            # Of users' rows, the mean.
            first = message[name].values
            newcomer[column] = first[0] if layout.parts[name].kind == "user" else first
        return newcomer

    def update(self, block, clients, message, turn, key):
        training, layout = self.training_for(block.n_items, key.round), self.layout
        active, is_finite = np.flatnonzero(turn.active), np.ones(block.n_clients, dtype=bool)
        seeds = key.private.hashed("visit", block.clients[active])
        loss, chunks = np.zeros(2), []
        with own_settings():
            trainer = self._trainer(training, block, clients.feedback, message, clients.users)
            for trained in trainer.train(active, seeds):
                is_finite[trained.clients] = trained.finite()
                write_private(layout, block, trained, clients.users)
                loss += trained.loss
                chunks.append(trained)
        specs, sends = self.fields(block.n_items), turn.delivers & is_finite
        given = chunks, self._received(message), specs, layout
        fields = uploads(*given, sends, turn.separate)
        return clients, Updates(fields, is_finite=is_finite), loss

    def step(self, server, upload, key):
        if upload is None:
            return server
        moved = {}
        for name, values in server.parameters.items():
            change = upload[name].mean
            if self.counts_visits and self.layout.parts[name].kind == "item":
                change = upload[name].sum / np.maximum(upload[VISITS].sum, 1)
            moved[name] = (values + change).astype(values.dtype)
        return replace(server, parameters=moved)

    # ------------------------------------------------------------------------- the end

    def final(self, server):
        return self.broadcast(server, None)

    def personalize(self, block, clients, message, turn, key):
        """Train private parameters on the final model; users new to it alone, and longer."""
        first = np.tile(self.newcomer(message, block.n_items), (block.n_users, 1))
        if clients is None:
            users, new = first, np.ones(block.n_users, dtype=bool)
            feedback = self.feedback(block, message)
        else:
            users, feedback = clients.users.copy(), clients.feedback
            # Their numbers have diverged.
            new = ~np.isfinite(users).all(axis=1)
            users[new] = first[new]
        known, new = turn.active & ~block.clients_of(new), block.users_of(turn.active) & new
        by_user = replace(block, clients=block.users, client_indptr=np.arange(block.n_users + 1))
        fitted = ModuleClients(feedback, users)
        self._tune(block, known, self.epochs_at_the_end, message, fitted)
        try:
            whose = np.repeat(np.arange(block.n_clients), np.diff(block.client_indptr))
            self._tune(by_user, new, EPOCHS_OF_THE_NEW, message.of(whose), fitted)
        except ClientFailed as error:
            client = np.searchsorted(block.client_indptr, error.client, side="right") - 1
            raise ClientFailed(int(client), str(error)) from error
        return fitted

    def _tune(self, block, who, n_epochs, message, fitted):
        """Train the clients of a mask on the final model."""
        if not who.any() or not n_epochs or not fitted.users.shape[1]:
            return
        training = self.training_for(block.n_items)
        training = replace(training, n_epochs=n_epochs, frozen=self.frozen_at_the_end)
        # A user's numbers must not depend on which others are computed, or when.
        seeds = np.full(who.sum(), Key(0).hashed("personal"))
        with own_settings():
            trainer = self._trainer(training, block, fitted.feedback, message, fitted.users)
            for trained in trainer.train(np.flatnonzero(who), seeds):
                write_private(self.layout, block, trained, fitted.users)
                fitted.own_items += self.own_items(block, trained)

    def own_items(self, block, trained):
        """Return what some clients keep beside their private parameters at the end, a list."""
        return []

    # ------------------------------------------------------------------- what it needs

    def training_for(self, n_items, round=None):
        """Return how clients train in a catalogue of this size, in a round or (None) at the end."""
        return self.training

    @property
    def frozen_at_the_end(self) -> tuple[Kind, ...]:
        """Kinds of parameters that clients do not train at the end."""
        return "item", "shared"

    @property
    def epochs_at_the_end(self) -> int:
        """Number of epochs on the final model of clients that have taken part."""
        return self.training.n_epochs

    @property
    def layout(self) -> Layout:
        """The parts of the module."""
        return blueprint(self.recipe).layout

    @property
    def dtype(self):
        return self.layout.dtype.type

    @property
    def counts_visits(self):
        """Whether clients send which items they have trained."""
        return self.aggregation == "visits" and bool(self.layout.named("item"))

    def _trainer(self, training, block, feedback, message, users):
        made = blueprint(self.recipe)
        layout, fixed = made.layout, made.fixed(block.n_items)
        received = {name: value.to(training.device) for name, value in fixed.items()}
        for name, values in self._received(message).items():
            part = layout.parts[name]
            shape = (-1, *part.shape) if part.kind == "item" else part.shape
            received[name] = torch.from_numpy(values).reshape(shape).to(training.device)
        return Trainer(made.module, layout, training, block, feedback, received, users)

    def _received(self, message):
        """Return what the server has sent, as matrices of the module's type."""
        parts = self.layout.parts
        return {
            name: np.ascontiguousarray(message[name].values, dtype=parts[name].numpy_dtype)
            for name in self.layout.sent
        }

    # ------------------------------------------------------------------------ the model

    def server_attributes(self, message):
        layout = blueprint(self.fitted_recipe).layout
        parameters = {name: message[name].values for name in layout.sent}
        n_items = _n_items(message, layout)
        tables = [np.empty((n_items, 0), layout.dtype)]
        tables += [parameters[name] for name in layout.named("item")]
        return super().server_attributes(message) | {
            "parameters_": parameters,
            "item_factors_": np.concatenate(tables, axis=1),
            "newcomer_factors_": self.newcomer(message, n_items),
            # A fitted model scores by its own module, whatever parameters are set later.
            "_fitted_recipe": self.fitted_recipe,
        }

    def model(self, fitted):
        return self._scores_by(ModuleScores, fitted)

    def _scores_by(self, kind, fitted, **parts):
        """Return a model of a kind, whose response is that of the loss."""
        return kind(n_items=fitted["n_items_"], fitted=fitted, response=self.response, **parts)

    def losses(self, model, held_out, seen):
        loss = self.loss
        if not callable(loss):
            return super().losses(model, held_out, seen)

        def losses_of(users, items, targets):
            scores = torch.from_numpy(model.score_pairs(users, items))
            return loss(scores, torch.from_numpy(targets)).numpy().copy()

        return losses_with_negatives(losses_of, held_out, seen, self.n_negatives)


def _n_items(message, layout):
    """Size of the catalogue, from the tables in a message."""
    name = layout.named("item", "private item")[0]
    values, part = message[name].values, layout.parts[name]
    return len(values) if part.kind == "item" else values.size // part.width
