"""Local training of many clients side by side: each has its own copy of the parameters it trains.

Clients are sorted by their number of steps and cut into chunks. In a chunk, a parameter is one
tensor whose first axis is the client, and ``torch.func.vmap`` computes one step of all of them.
Of tables with a row per item, a client has only the rows of the items in its examples; the others
have no gradient and stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional

from fedrecsk._utils.kernels import LazyModule
from fedrecsk.data._checks import ClientFailed
from fedrecsk.neural import _optimizers
from fedrecsk.neural._layout import TABLES, Kind, Layout, matching
from fedrecsk.protocol.blocks import Block
from fedrecsk.updates import FieldSpec, SparseRows, add_sums

fedmf_kernels: LazyModule = LazyModule("fedrecsk.federated._fedmf_kernels")
neural_kernels: LazyModule = LazyModule("fedrecsk.neural._training_kernels")

# Rows of items that the clients of a chunk have together, padded: enough that calling torch takes
# less time than computing.
ROWS_ON_CPU, ROWS_ELSEWHERE = 2**17, 2**20

# Parameters beyond this come of an explosion: their squares are near the end of single precision.
EXPLODED = 1e6

# Field with the number of clients that have visited each item.
VISITS = "n_visits"

Loss = Callable[[Tensor, Tensor], Tensor]
Tensors = dict[str, Tensor]


def _cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(scores, targets, reduction="none")


def _squared(scores: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (scores - targets) ** 2


LOSSES = {"bce": _cross_entropy, "squared": _squared}


@dataclass(frozen=True)
class Plan:
    """How clients train."""

    optimizer: str | _optimizers.Constructor
    # By patterns of names; the first that matches counts.
    rates: dict[str, float]
    loss: Loss
    n_negatives: int
    n_epochs: int
    batch_size: int
    # Whether in each batch the private parameters move first, and then the others by their
    # gradients at the new place.
    alternating: bool
    device: str | torch.device
    # Kinds of parameters that do not move.
    frozen: tuple[Kind, ...] = ()

    def rate(self, name: str) -> float:
        return self.rates[matching(name, self.rates)]

    @property
    def rows_per_chunk(self) -> int:
        return ROWS_ON_CPU if torch.device(self.device).type == "cpu" else ROWS_ELSEWHERE


class Trained(NamedTuple):
    """What some clients end with."""

    # Their numbers in the block, (n_clients,).
    clients: np.ndarray
    # The items of each client's rows, padded, (n_clients, most items), and how many it has.
    items: np.ndarray
    n_items: np.ndarray
    # Parameters with the client as first axis. Of tables with a row per item, these rows only.
    after: dict[str, np.ndarray]
    # Sums of the losses and of their weights.
    loss: np.ndarray

    @property
    def is_row(self) -> np.ndarray:
        """Where `items` is not padded, shape (n_clients, most items), dtype bool."""
        return np.arange(self.items.shape[1]) < self.n_items[:, None]

    def finite(self) -> np.ndarray:
        """Return whether all that a client has trained is finite, (n_clients,), dtype bool."""
        values = (value.reshape(len(value), -1) for value in self.after.values())
        return np.all([np.isfinite(one).all(axis=1) for one in values], axis=0)


@dataclass(eq=False)
class Trainer:
    """Trains clients of a block on what they have received."""

    # This thread's own; its parameters are replaced by those of clients.
    module: nn.Module
    layout: Layout
    plan: Plan
    block: Block
    feedback: Any
    # The sent and the fixed parameters, on the plan's device.
    received: Tensors
    # The private parameters, (n_users of the block, n_private); all users of a client have the same
    # numbers of a parameter that is the client's.
    users: np.ndarray

    def train(self, clients: np.ndarray, seeds: np.ndarray) -> Iterator[Trained]:
        """Train these clients (numbers in the block), in chunks; reads `users` only."""
        plan, n_items = self.plan, self.block.n_items
        n_examples = np.diff(self.block.rating_indptr)[clients] * (1 + plan.n_negatives)
        order = np.argsort(-n_examples, kind="stable")
        start = 0
        while start < len(order):
            longest = int(n_examples[order[start]])
            rows = max(1, min(n_items, longest), plan.batch_size)
            stop = start + max(1, plan.rows_per_chunk // rows)
            chosen = order[start:stop]
            yield self._train_chunk(clients[chosen], seeds[chosen], n_examples[chosen])
            start = stop

    # ------------------------------------------------------------------------ one chunk

    def _train_chunk(self, clients, seeds, n_examples):
        clients, steps, visits = self._planned(clients, seeds, n_examples)
        items = np.ascontiguousarray(visits.items[:, : visits.n_items.max()])
        after = self._parameters(clients, self._tensor(items))
        total_weight = steps.weight.sum(axis=-1, dtype=np.float64)
        loss = self._descend(clients, [self._tensor(one) for one in steps], visits.n_steps, after)
        after = {name: after[name].numpy(force=True) for name in self.layout.trained}
        return Trained(clients, items, visits.n_items, after, np.array([loss, total_weight.sum()]))

    def _planned(self, clients, seeds, n_examples):
        """Return the steps of clients, those with most steps first."""
        plan, n_items, dtype = self.plan, self.block.n_items, self.feedback.targets.dtype
        layout = self.block.client_indptr, self.block.indptr, self.block.items
        config = plan.n_negatives, plan.n_epochs, plan.batch_size
        steps, visits = neural_kernels.empty(n_examples, n_items, *config[1:], dtype)
        work = neural_kernels.scratch(int(n_examples.max()), n_items, dtype)
        layout = fedmf_kernels.Layout(*layout)
        neural_kernels.plan(clients, layout, self.feedback, seeds, *config, steps, visits, work)
        # A client whose users have rated everything has no negatives, and fewer steps than others.
        order = np.argsort(-visits.n_steps, kind="stable")
        if (np.diff(order) > 0).all():
            return clients, steps, visits
        visits = type(visits)(*(one[order] for one in visits))
        return clients[order], type(steps)(*(one[:, order] for one in steps)), visits

    def _tensor(self, array):
        return torch.from_numpy(array).to(self.plan.device)

    def _parameters(self, clients, items):
        """Return all parameters of these clients, with the client as first axis."""
        columns, parameters = self.layout.columns(self.block.n_items), {}
        for name, part in self.layout.parts.items():
            if part.kind in ("item", "fixed item"):
                parameters[name] = self.received[name][items]
            elif part.kind == "fixed":
                parameters[name] = self.received[name].expand(len(clients), *part.shape)
            elif part.kind == "shared":
                parameters[name] = self.received[name].repeat(len(clients), *[1] * len(part.shape))
            else:
                own = self._own(part, self.users[:, columns[name]], clients, items)
                parameters[name] = own.to(part.dtype)
        return parameters

    def _own(self, part, table, clients, items):
        """Return a private parameter of these clients, from the users' numbers of it."""
        first, last = self.block.client_indptr[clients], self.block.client_indptr[clients + 1]
        if part.kind == "user":
            # Clients with fewer users repeat their last one, of whom no example speaks.
            places = first[:, None] + np.arange((last - first).max())
            rows = table[np.minimum(places, last[:, None] - 1)]
            return self._tensor(rows).reshape(*rows.shape[:2], *part.shape)
        rows = self._tensor(table[first])
        if part.kind == "private":
            return rows.reshape(len(clients), *part.shape)
        rows = rows.reshape(len(clients), self.block.n_items, *part.shape)
        return rows[torch.arange(len(clients), device=rows.device)[:, None], items]

    def _descend(self, clients, steps, n_steps, after):
        """Take all steps on the parameters `after`, in place; returns the loss."""
        whose, what, target, weight = steps
        total_weight = weight.sum(-1)
        weight = weight / total_weight.clamp_min(torch.finfo(weight.dtype).tiny).unsqueeze(-1)
        # Batches are full, up to the last one of an epoch.
        places = torch.arange(1, weight.shape[-1] + 1, device=weight.device)
        widths = ((weight > 0).any(dim=1) * places).amax(dim=-1).tolist()
        optimizers, n, total = self._optimizers(after), len(clients), 0.0
        for step in range(int(n_steps.max(initial=0))):
            going = int(np.searchsorted(-n_steps, -step))
            if going < n:
                n = going
                for optimizer in optimizers:
                    optimizer.keep_first(n)
            batch = slice(0, n), slice(0, widths[step])
            for number, optimizer in enumerate(optimizers):
                places = self._places(what[step][batch], after)
                leaves = self._leaves(after, places, optimizer.names, n)
                scores = self._scores(leaves, whose[step][batch])
                losses = (weight[step][batch] * self.plan.loss(scores, target[step][batch])).sum(-1)
                if number == 0:
                    self._check_losses(losses, clients, after)
                    total += float(losses.detach().double() @ total_weight[step, :n].double())
                self._take_step(optimizer, losses, leaves, places)
        return total

    def _places(self, what, after):
        """Return rows of the batches' examples in tables whose clients follow one another."""
        tables = (after[name] for name in self.layout.named(*TABLES))
        first = torch.arange(len(what), device=what.device) * next(tables).shape[1]
        return (what + first[:, None]).reshape(-1)

    def _is_table(self, name):
        return self.layout.parts[name].kind in TABLES

    def _leaves(self, after, places, moving, n):
        """Return what a step reads: of tables with a row per item, a row for each example."""
        leaves = {}
        for name, value in after.items():
            value = value[:n]
            if self._is_table(name):
                shape = value.shape[2:]
                rows = value.reshape(-1, *shape).index_select(0, places)
                value = rows.reshape(n, -1, *shape)
            leaves[name] = value.detach().requires_grad_(name in moving)
        return leaves

    def _scores(self, leaves, users):
        items = torch.arange(users.shape[1], device=users.device).expand_as(users)
        score = vmap(lambda own, *pairs: functional_call(self.module, own, pairs))
        return score(leaves, users, items)

    def _take_step(self, optimizer, losses, leaves, places):
        own = [leaves[name] for name in optimizer.names]
        gradients = torch.autograd.grad(losses.sum(), own, allow_unused=True)
        found = []
        for name, leaf, gradient in zip(optimizer.names, own, gradients, strict=True):
            gradient = torch.zeros_like(leaf) if gradient is None else gradient
            if self._is_table(name):
                gradient = _optimizers.Rows(places, gradient.reshape(len(places), -1))
            found.append(gradient)
        optimizer.step(found)

    def _optimizers(self, after):
        """Return the optimisers of each batch: one, or if they alternate the private one first."""
        parts, plan = self.layout.parts, self.plan
        sides = [("user", "private", "private item"), ("item", "shared")]
        sides = sides if plan.alternating else [sides[0] + sides[1]]
        made = []
        for side in sides:
            kinds = set(side) - set(plan.frozen)
            names = [name for name, part in parts.items() if part.kind in kinds]
            if names:
                moving = {name: after[name] for name in names}
                rates = [plan.rate(name) for name in names]
                made.append(_optimizers.descent(plan.optimizer, moving, rates))
        return made

    @staticmethod
    def _check_losses(losses, clients, after):
        """Raise if a client's loss is infinite or NaN although its numbers have not exploded.

        Clients whose numbers have exploded end with infinite or NaN values, and send nothing.
        """
        for place in (~torch.isfinite(losses)).nonzero().flatten().tolist():
            if all(float(value[place].abs().max()) < EXPLODED for value in after.values()):
                raise ClientFailed(
                    int(clients[place]),
                    f"the loss is {losses[place].item()}, although all parameters are below "
                    f"{EXPLODED:g}. Look for a division by zero, an exponential, or the logarithm "
                    "of zero or less in the module or in loss.",
                )


def write_private(layout: Layout, block: Block, trained: Trained, users: np.ndarray) -> None:
    """Write these clients' private parameters into the matrix of all users' private numbers."""
    columns = layout.columns(block.n_items)
    first, last = block.client_indptr[trained.clients], block.client_indptr[trained.clients + 1]
    places = first[:, None] + np.arange((last - first).max(initial=0))
    is_user = places < last[:, None]
    for name, column in columns.items():
        kind, values = layout.parts[name].kind, trained.after[name]
        if kind == "user":
            values = values.reshape(*places.shape, -1)
            users[places[is_user], column] = values[is_user]
        elif kind == "private":
            rows = values.reshape(len(values), -1)
            users[places[is_user], column] = np.repeat(rows, last - first, axis=0)
        else:
            _write_rows(trained, values, users[:, column], first, last)


def _write_rows(trained, values, tables, first, last):
    """Write the rows of tables with a row per item, of which each client has its own."""
    n_clients, most = trained.items.shape
    values = values.reshape(n_clients, most, -1)
    width = values.shape[-1]
    items, is_row = trained.items, trained.is_row
    for client in range(n_clients):
        rows = items[client, is_row[client]]
        coordinates = (rows[:, None] * width + np.arange(width)).ravel()
        new = values[client, is_row[client]].ravel()
        tables[first[client] : last[client], coordinates] = new


# ------------------------------------------------------------------------------- uploads


class Uploads:
    """Changes of trained clients since they received the model: sums, or each client's own."""

    def __init__(
        self,
        received: dict[str, np.ndarray],
        specs: dict[str, FieldSpec],
        layout: Layout,
        n_clients: int,
        separate: bool,
    ) -> None:
        self.received = received
        self.specs = specs
        self.layout = layout
        self.n_clients = n_clients
        # Whether to keep each client's changes.
        self.separate = separate
        self._sums = {name: np.zeros(spec.shape, spec.sum_dtype) for name, spec in specs.items()}
        self._chunks: list[tuple[np.ndarray, dict[str, SparseRows]]] = []

    def add(self, trained: Trained, sends: np.ndarray) -> None:
        """Add a chunk of clients, of which those of a mask send something."""
        changes = self._changes(trained)
        if self.separate:
            # Whoever reads them knows who sends.
            self._chunks.append((trained.clients, changes))
        else:
            add_sums(self._sums, {name: one.take(sends).sum() for name, one in changes.items()})

    def fields(self) -> dict[str, Any]:
        """Return all fields, as ClientUpdates take them."""
        return {name: self._joined(name) for name in self.specs} if self.separate else self._sums

    def _changes(self, trained):
        is_row, ends = trained.is_row, np.cumsum(trained.n_items)
        own = np.concatenate([[0], ends]), trained.items[is_row].astype(np.int32)
        changes = {}
        for name, spec in self.specs.items():
            if name == VISITS:
                values = np.ones((len(own[1]), 1), np.uint8)
                changes[name] = SparseRows(*own, values, spec=spec)
                continue
            after, before = trained.after[name], self.received[name]
            if self.layout.parts[name].kind == "item":
                change = after[is_row].reshape(-1, *spec.shape[1:]) - before[own[1]]
                changes[name] = SparseRows(*own, change.astype(np.float64), spec=spec)
            else:
                change = after.reshape(-1, *spec.shape) - before
                changes[name] = SparseRows.stacked(change.astype(np.float64), spec=spec)
        return changes

    def _joined(self, name):
        """Join the chunks of a field, with the block's clients in ascending order."""
        spec = self.specs[name]
        owners, rows = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        values = [np.empty((0, *spec.shape[1:]), spec.dtype or np.float64)]
        for clients, changes in self._chunks:
            owners.append(clients[changes[name].owners])
            rows.append(changes[name].rows)
            values.append(changes[name].values)
        owners = np.concatenate(owners)
        # Stable, so that a client's rows stay in ascending order.
        order = np.argsort(owners, kind="stable")
        ends = np.cumsum(np.bincount(owners, minlength=self.n_clients))
        indptr = np.concatenate([[0], ends])
        return SparseRows(indptr, np.concatenate(rows)[order], np.concatenate(values)[order])
