"""Local training of many clients side by side: each has its own copy of the parameters it trains.

Clients are sorted by their number of steps and cut into chunks. In a chunk, a parameter is one
tensor whose first axis is the client, and ``torch.func.vmap`` computes one step of all of them. Of
tables by item, a client has only the rows of its examples; the others have no gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.adam import adam

from fedrecsk._utils.kernels import LazyModule
from fedrecsk.data._checks import ClientFailed
from fedrecsk.neural._layout import TABLES, Kind, Layout, matching
from fedrecsk.protocol.blocks import Block
from fedrecsk.updates import SparseRows

training_kernels: LazyModule = LazyModule("fedrecsk.neural._training_kernels")

# Rows of items that the clients of a chunk have together, padded: enough that calling torch takes
# less time than computing, and few enough for a processor's caches.
ROWS_ON_CPU, ROWS_ELSEWHERE = 2**17, 2**20

# Parameters beyond this come of an explosion: their squares are near the end of single precision.
EXPLODED = 1e6

# Field with the number of clients that have visited each item.
VISITS = "n_visits"

Constructor = Callable[..., Optimizer]
Loss = Callable[[Tensor, Tensor], Tensor]
Tensors = dict[str, Tensor]


LOSSES = {
    "bce": partial(functional.binary_cross_entropy_with_logits, reduction="none"),
    "squared": lambda scores, targets: 0.5 * (scores - targets) ** 2,
}


def loss_function(loss: str | Loss) -> Loss:
    """Return the loss that is given by name or as a function."""
    return loss if callable(loss) else LOSSES[loss]


@dataclass(frozen=True)
class Training:
    """How clients train."""

    optimizer: str | Constructor
    # By patterns of names; the first that matches counts.
    rates: dict[str, float]
    loss: str | Loss
    n_negatives: int
    n_epochs: int
    batch_size: int
    # Whether in each batch the private parameters move first, and then the others by their
    # gradients at the new place.
    alternating: bool = False
    # From the parameters, with tables' rows of each example: what is added to each one's loss.
    penalty: Callable[[Tensors], Tensor] | None = None
    # Share of the way to what the trainer's `offsets` lead to, that items go in each step.
    pull: float = 0.0
    device: str | torch.device = "cpu"
    # Kinds of parameters that do not move.
    frozen: tuple[Kind, ...] = ()

    def rate(self, name):
        return self.rates[matching(name, self.rates)]


def _taken(table, rows):
    """Return rows of a stacked table by their numbers among those of all clients."""
    return table.flatten(0, 1).index_select(0, rows.flatten()).unflatten(0, rows.shape)


class Codes(Tensor):
    """The codes of all rows of a table, in order: an embedding gives the table as it is."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is functional.embedding:
            return args[1]
        return super().__torch_function__(func, types, args, kwargs)


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
    training: Training
    block: Block
    feedback: Any
    # The sent and the fixed parameters, on the training's device.
    received: Tensors
    # The private parameters, (n_users of the block, n_private); all users of a client have the same
    # numbers of a parameter that is the client's.
    users: np.ndarray
    # From the received items to those that each client's are pulled to, or if the training freezes
    # items begin at, (n_clients of the block, n_items, width of the only such table).
    offsets: np.ndarray | None = None

    def train(self, clients: np.ndarray, seeds: np.ndarray) -> Iterator[Trained]:
        """Train these clients (numbers in the block), in chunks; reads `users` only."""
        training, n_items = self.training, self.block.n_items
        most_rows = ROWS_ON_CPU if torch.device(training.device).type == "cpu" else ROWS_ELSEWHERE
        n_examples = np.diff(self.block.rating_indptr)[clients] * (1 + training.n_negatives)
        order = np.argsort(-n_examples, kind="stable")
        start = 0
        while start < len(order):
            longest = int(n_examples[order[start]])
            rows = max(1, min(n_items, longest), training.batch_size)
            stop = start + max(1, most_rows // rows)
            chosen = order[start:stop]
            yield self._train_chunk(clients[chosen], seeds[chosen], n_examples[chosen])
            start = stop

    # ------------------------------------------------------------------------ one chunk

    def _train_chunk(self, clients, seeds, n_examples):
        training, block = self.training, self.block
        config = training.n_negatives, training.n_epochs, training.batch_size
        given = clients, n_examples, block, self.feedback, seeds
        clients, steps, visits = training_kernels.planned(*given, *config)
        items = np.ascontiguousarray(visits.items[:, : visits.n_items.max()])
        after = self._parameters(clients, items)
        # Numbers of the examples' rows among those of all clients, one client after the other.
        place, n_users = np.arange(len(clients))[:, None], np.diff(block.client_indptr)[clients]
        steps.whose[:] += place * n_users.max()
        steps.what[:] += place * items.shape[1]
        total_weight = steps.weight.sum(axis=-1, dtype=np.float64)
        goals = self._goals(clients, items, after)
        steps = [self._tensor(one) for one in steps]
        loss = self._descend(clients, steps, visits.n_steps, after, goals)
        trained = [name for name in self.layout.trained if name in after]
        after = {name: after[name].numpy(force=True) for name in trained}
        return Trained(clients, items, visits.n_items, after, np.array([loss, total_weight.sum()]))

    def _tensor(self, array):
        return torch.from_numpy(array).to(self.training.device)

    @cached_property
    def _common(self):
        """The parameters without rows that all clients use as they have received them."""
        shared = self.layout.named("shared") if "shared" in self.training.frozen else []
        return {name: self.received[name] for name in self.layout.named("fixed") + shared}

    def _parameters(self, clients, items):
        """Return the other parameters of these clients, with the client as first axis."""
        columns, n, parameters = self.layout.columns(self.block.n_items), len(clients), {}
        first, last = self.block.client_indptr[clients], self.block.client_indptr[clients + 1]
        # Clients with fewer users repeat their last one, of whom no example speaks.
        users = np.minimum(first[:, None] + np.arange((last - first).max()), last[:, None] - 1)
        for name, part in self.layout.parts.items():
            if name in self._common:
                continue
            if part.kind in ("item", "fixed item"):
                parameters[name] = self.received[name][self._tensor(items)]
            elif part.kind == "shared":
                parameters[name] = self.received[name].expand(n, *part.shape).clone()
            else:
                table = self.users[:, columns[name]]
                own = table[users] if part.kind == "user" else table[first]
                if part.kind == "private item":
                    own = own.reshape(n, self.block.n_items, -1)[np.arange(n)[:, None], items]
                shape = part.shape if part.kind == "private" else (*own.shape[1:-1], *part.shape)
                parameters[name] = self._tensor(own).reshape(n, *shape).to(part.dtype)
        return parameters

    def _goals(self, clients, items, after):
        """Return where the rows of items are pulled to, by name. If frozen, they begin there."""
        if self.offsets is None:
            return {}
        (name,) = self.layout.named("item")
        offsets = self._tensor(self.offsets[clients[:, None], items])
        goals = {name: after[name] + offsets.reshape(after[name].shape)}
        if "item" in self.training.frozen:
            after |= goals
        return goals

    def _descend(self, clients, steps, n_steps, after, goals):
        """Take all steps on the parameters `after`, in place; returns the loss."""
        whose, what, target, weight = steps
        total_weight = weight.sum(-1)
        weight = weight / total_weight.clamp_min(torch.finfo(weight.dtype).tiny).unsqueeze(-1)
        # Batches are full, up to the last one of an epoch.
        places = torch.arange(1, weight.shape[-1] + 1, device=weight.device)
        widths = ((weight > 0).any(dim=1) * places).amax(dim=-1).tolist()
        optimizers, n, total = self._optimizers(after), len(clients), 0.0
        loss_of = loss_function(self.training.loss)
        for step in range(int(n_steps.max(initial=0))):
            going = int(np.searchsorted(-n_steps, -step))
            if going < n:
                n = going
                for optimizer in optimizers:
                    optimizer.keep_first(n)
            batch = slice(0, n), slice(0, widths[step])
            rows = self._rows(after, whose[step][batch], what[step][batch])
            for number, optimizer in enumerate(optimizers):
                leaves = {
                    name: (_taken(value, rows[name]) if name in rows else value[:n]).detach()
                    for name, value in after.items()
                }
                for name in optimizer.names:
                    leaves[name].requires_grad_()
                own = self._by_example(leaves, widths[step])
                losses = loss_of(self._scores(own, widths[step]), target[step][batch])
                if self.training.penalty is not None:
                    losses = losses + self.training.penalty(own)
                losses = (weight[step][batch] * losses).sum(-1)
                if number == 0:
                    self._check_losses(losses, clients, after)
                    total += float(losses.detach().double() @ total_weight[step, :n].double())
                moving = [leaves[name] for name in optimizer.names]
                gradients = torch.autograd.grad(losses.sum(), moving, materialize_grads=True)
                for name, goal in goals.items():
                    after[name][:n].lerp_(goal[:n], self.training.pull)
                optimizer.step(gradients, rows)
        return total

    def _rows(self, after, whose, what):
        """Return the rows of examples in each table of which a client has several."""
        numbers = {"user": whose} | dict.fromkeys(TABLES, what)
        kinds = {name: self.layout.parts[name].kind for name in after}
        return {
            name: numbers[kind]
            for name, kind in kinds.items()
            if kind in numbers and after[name].shape[1] > 1
        }

    def _by_example(self, leaves, width):
        """Repeat a table's only row, so that there is one for each example."""
        names = [name for name in self.layout.named("user", *TABLES) if leaves[name].shape[1] == 1]
        repeated = {n: leaves[n].expand(-1, width, *leaves[n].shape[2:]) for n in names}
        return leaves | repeated

    def _scores(self, own, width):
        """Return the scores of each client's examples."""
        codes = torch.arange(width, device=self.training.device).as_subclass(Codes)
        score = vmap(lambda own: functional_call(self.module, own | self._common, (codes, codes)))
        return score(own)

    def _optimizers(self, after):
        """Return the optimisers of each batch: one, or if they alternate the private one first."""
        parts, training = self.layout.parts, self.training
        sides = [("user", "private", "private item"), ("item", "shared")]
        sides = sides if training.alternating else [sides[0] + sides[1]]
        made = []
        for side in sides:
            kinds = set(side) - set(training.frozen)
            names = [name for name, part in parts.items() if part.kind in kinds]
            if names:
                moving = {name: after[name] for name in names}
                rates = [training.rate(name) for name in names]
                made.append(descent(training.optimizer, moving, rates))
        return made

    @staticmethod
    def _check_losses(losses, clients, after):
        """Raise if a client's loss is not finite though its numbers have not diverged."""
        # Clients whose numbers have diverged end with infinite or NaN values, and send nothing.
        for place in (~torch.isfinite(losses)).nonzero().flatten().tolist():
            if all(float(value[place].abs().max()) < EXPLODED for value in after.values()):
                raise ClientFailed(
                    int(clients[place]),
                    f"the loss is {losses[place].item()}, although all parameters are below "
                    f"{EXPLODED:g}. Look for a division by zero, an exponential, or the logarithm "
                    "of zero or less in the module or in loss.",
                )


def write_private(layout, block, trained, users):
    """Write these clients' private parameters into the matrix of all users' private numbers."""
    n_users = np.diff(block.client_indptr)[trained.clients]
    # Of each user of these clients: the client's place, and the user's number within the client.
    whose = np.repeat(np.arange(len(n_users)), n_users)
    number = np.arange(len(whose)) - np.repeat(np.cumsum(n_users) - n_users, n_users)
    rows = block.client_indptr[trained.clients][whose] + number
    for name, column in layout.columns(block.n_items).items():
        part, values = layout.parts[name], trained.after[name]
        if part.kind == "user":
            users[rows, column] = values[whose, number].reshape(len(rows), -1)
        elif part.kind == "private":
            users[rows, column] = values[whose].reshape(len(rows), -1)
        else:
            some, places = trained.is_row[whose].nonzero()
            starts = column.start + trained.items[whose[some], places] * part.width
            columns = starts[:, None] + np.arange(part.width)
            users[rows[some, None], columns] = values[whose[some], places].reshape(columns.shape)


def uploads(trained, received, specs, layout, sends, separate):
    """Return what clients of a block have changed: SparseRows, or sums over those that send."""
    fields = {}
    for name, spec in specs.items():
        is_table = name == VISITS or layout.parts[name].kind == "item"
        n_rows = np.zeros(len(sends), np.int64)
        for one in trained:
            n_rows[one.clients] = one.n_items if is_table else spec.shape[0]
        n_rows[~(sends | separate)] = 0
        indptr = np.concatenate([[0], np.cumsum(n_rows)])
        rows = np.empty(indptr[-1], np.int32)
        shape, dtype = (spec.shape[0], spec.width), spec.sum_dtype
        if separate:
            shape, dtype = (len(rows), spec.width), spec.dtype or dtype
        changes = np.zeros(shape, dtype)
        for one in trained:
            n, numbers = n_rows[one.clients], one.items
            if not is_table:
                numbers = np.tile(np.arange(spec.shape[0]), (len(n), 1))
            is_own, places = np.arange(numbers.shape[1]) < n[:, None], numbers
            if separate:
                places = indptr[one.clients, None] + np.arange(numbers.shape[1])
                rows[places[is_own]] = numbers[is_own]
            if name == VISITS:
                np.add.at(changes[:, 0], places[is_own], 1)
            else:
                after = one.after[name].reshape(*numbers.shape, spec.width)
                training_kernels.add_changes(places, numbers, n, after, received[name], changes)
        changes = changes.reshape(-1, *spec.shape[1:])
        fields[name] = SparseRows(indptr, rows, changes, spec=spec) if separate else changes
    return fields


# ------------------------------------------------------------------------------ optimisers


class Descent(ABC):
    """Moves stacked parameters, of which the client is the first axis, by their gradients."""

    def __init__(self, parameters, rates):
        self.names = list(parameters)
        self.parameters = list(parameters.values())
        self.rates = rates
        self._whole = {}

    @abstractmethod
    def step(self, gradients, rows):
        """Move all parameters, in place.

        The gradient of a table in `rows` is that of these rows, by their numbers among those of all
        clients. Gradients of the same row add up.
        """

    def whole(self, gradients, rows):
        """Return gradients of whole parameters."""
        wholes = []
        for name, parameter, one in zip(self.names, self.parameters, gradients, strict=True):
            if name in rows:
                # Fresh memory would take longer than zeros.
                if name not in self._whole:
                    self._whole[name] = torch.empty_like(parameter)
                one = _added(self._whole[name][: len(parameter)].zero_(), rows[name], one)
            wholes.append(one)
        return wholes

    def keep_first(self, n):
        """Go on with the first `n` clients; the others stay as they are."""
        self.parameters = [one[:n] for one in self.parameters]


class Sgd(Descent):
    """Stochastic gradient descent, as ``torch.optim.SGD(..., lr=rate)``."""

    def step(self, gradients, rows):
        state = self.names, self.parameters, gradients, self.rates
        for name, parameter, gradient, rate in zip(*state, strict=True):
            if name in rows:
                _added(parameter, rows[name], -rate * gradient)
            else:
                parameter.add_(gradient, alpha=-rate)


class Adam(Descent):
    """Adam, as ``torch.optim.Adam(..., lr=rate)``."""

    def __init__(self, parameters, rates):
        super().__init__(parameters, rates)
        self.means, self.squares = ([torch.zeros_like(p) for p in self.parameters] for _ in "mv")
        self.n_steps = 0

    def step(self, gradients, rows):
        self.n_steps += 1
        state = self.parameters, self.means, self.squares, self.whole(gradients, rows)
        for rate in set(self.rates):
            chosen = [one == rate for one in self.rates]
            adam_step(*(list(compress(one, chosen)) for one in state), self.n_steps, rate)

    def keep_first(self, n):
        super().keep_first(n)
        self.means, self.squares = ([one[:n] for one in m] for m in (self.means, self.squares))


class Foreign(Descent):
    """An optimiser of torch, or one with the same interface."""

    def __init__(self, make, parameters, rates):
        super().__init__(parameters, rates)
        groups = zip(self.parameters, rates, strict=True)
        self.optimizer = make([{"params": [p], "lr": rate} for p, rate in groups])

    def step(self, gradients, rows):
        wholes = self.whole(gradients, rows)
        for parameter, gradient in zip(self.parameters, wholes, strict=True):
            # Fused kernels read the memory as it lies.
            parameter.grad = gradient.contiguous()
        self.optimizer.step()

    def keep_first(self, n):
        old = self.parameters
        super().keep_first(n)
        fresh = dict(zip(old, self.parameters, strict=True))
        for group in self.optimizer.param_groups:
            group["params"] = [fresh[one] for one in group["params"]]
        for before, after in fresh.items():
            state = self.optimizer.state[after] = self.optimizer.state.pop(before, {})
            for name, value in state.items():
                if torch.is_tensor(value) and value.shape == before.shape:
                    state[name] = value[:n]


def _added(table, rows, changes):
    """Add changes of rows to a stacked table, in place, and return it."""
    table.flatten(0, 1).index_add_(0, rows.flatten(), changes.flatten(0, 1))
    return table


def adam_step(
    parameters, means, squares, gradients, n_steps, learning_rate,
    *, betas=(0.9, 0.999), epsilon=1e-8, weight_decay=0.0,
):  # fmt: skip
    """Take step `n_steps`, from 1, of Adam; parameters and moments change in place."""
    # The function of torch, because its class imports the compiler, which takes longer than a small
    # fit.
    steps = [torch.tensor(n_steps - 1.0, device=one.device) for one in parameters]
    gradients = [gradient.contiguous() for gradient in gradients]
    with torch.no_grad():
        adam(
            list(parameters), gradients, list(means), list(squares), [], steps,
            lr=learning_rate, beta1=betas[0], beta2=betas[1], eps=epsilon,
            weight_decay=weight_decay, fused=True, amsgrad=False, maximize=False,
        )  # fmt: skip


def descent(optimizer, parameters, rates):
    """Return the optimiser that is given by name or by its constructor."""
    if callable(optimizer):
        return Foreign(optimizer, parameters, rates)
    return {"adam": Adam, "sgd": Sgd}[optimizer](parameters, rates)
