"""The half of a fit on a Dask cluster that runs on the workers: blocks of clients, and sums."""

from __future__ import annotations

import copy
import ctypes
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame

from fedrecsk._utils.kernels import seconds_compiling
from fedrecsk._utils.sklearn_compat import get_threadpool_controller
from fedrecsk._utils.threads import Threads
from fedrecsk.base import attributes_of, fitted_copy
from fedrecsk.cluster._frames import apart
from fedrecsk.data import _checks
from fedrecsk.data.ids import Ids
from fedrecsk.data.interactions import Interactions
from fedrecsk.protocol import blocks as _blocks
from fedrecsk.protocol.clients import ClientGroup
from fedrecsk.protocol.early_stopping import hold_out
from fedrecsk.protocol.keys import Keys
from fedrecsk.protocol.messages import Message, Registration
from fedrecsk.protocol.participation import Participation
from fedrecsk.protocol.plan import FitPlan
from fedrecsk.simulation import both_sides
from fedrecsk.updates import ClientUpdates, HeldUpdates, add_sums, joined
from fedrecsk.updates._client_updates import Stage

if TYPE_CHECKING:
    from fedrecsk.federated.base import FederatedRecommender
    from fedrecsk.protocol.blocks import Attributes

# Warnings: their categories and texts.
Texts = list[tuple[type[Warning], str]]
# Number of a partition, and of a block in it.
BlockNumber = tuple[int, int]
# Level and place in the binary tree of sums.
Node = tuple[int, int]
Sums = dict[str, np.ndarray]
T = TypeVar("T")


class Rows(NamedTuple):
    """The encoded rows of a partition; `columns` are the fitted attributes about X."""

    data: Interactions
    columns: Attributes
    said: Texts


def read(number: int, frame: DataFrame, estimator: FederatedRecommender) -> Rows | None:
    """Encode the rows of a partition; return Rows, or None if it has none."""
    X, others = apart(frame)
    if not len(X) or not (others.get("sample_weight", np.ones(1)) > 0).any():
        return None
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            data = estimator._read(X, **others, item_ids=estimator._catalogue())
    except (TypeError, ValueError) as error:
        raise type(error)(f"In partition {number} of X: {error}") from error
    names = [name for name in ("n_features_in_", "feature_names_in_") if hasattr(estimator, name)]
    return Rows(data, {name: getattr(estimator, name) for name in names}, _texts(said))


def _texts(said):
    return [(one.category, str(one.message)) for one in said]


class Summary(NamedTuple):
    """What the driver learns of a partition's rows."""

    client_ids: np.ndarray
    n_users: np.ndarray
    user_ids: np.ndarray
    item_ids: np.ndarray
    n_rows: int
    values: tuple[float, float]
    heaviest: float
    digest: bytes
    columns: Attributes
    said: Texts


class Placing(NamedTuple):
    """What a worker must know to make its clients.

    `codes` are by partition: theirs, those of their first users, and those of users in draws.
    """

    method: FederatedRecommender
    plan: FitPlan
    keys: Keys
    n_clients: int
    item_ids: Ids
    # Of a fit in one process, because each block makes a sum over all items.
    block_size: int
    codes: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray | None]]

    def all_codes(self) -> NDArray[np.int64]:
        """Return the codes of all clients, ascending."""
        return np.sort(
            np.concatenate([np.empty(0, int), *(own for own, *_ in self.codes.values())])
        )


class OwnParticipation(NamedTuple):
    """A Participation of some clients, whose codes are ascending."""

    masks: Participation
    codes: np.ndarray

    def of(self, clients: NDArray[np.int64]) -> Participation:
        """Return the Participation of some of them."""
        return self.masks.of(np.searchsorted(self.codes, clients))


# glibc's own limit, unless Dask sets MALLOC_TRIM_THRESHOLD_: then all large arrays come afresh from
# the system, which takes half as long again as the clients' updates.
REUSED_BYTES = 2**25
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def reuse_memory() -> None:
    """Let this process reuse the memory of large arrays."""
    if not sys.platform.startswith("linux"):
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(M_MMAP_THRESHOLD, REUSED_BYTES)
        set_option(M_TRIM_THRESHOLD, 2 * REUSED_BYTES)


class Holder:
    """All clients of some partitions, on a worker: a Dask actor."""

    def __init__(
        self, numbers: range, n_partitions: int, n_jobs: int | None, *parts: Rows | None
    ) -> None:
        reuse_memory()
        self.n_partitions = n_partitions
        self.n_jobs = n_jobs
        self.rows: dict[int, Rows] = {
            n: part for n, part in zip(numbers, parts, strict=True) if part is not None
        }
        self.numbers = numbers
        self.clients: dict[BlockNumber, ClientGroup] = {}
        self.codes: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        # Single updates of the last step, by partition, if the server needs more than their sum.
        self.held: dict[int, list[HeldUpdates]] = {}

    def do(self, name: str, *args: object) -> tuple[bool, object]:
        """Call a method; return its result or its error, so that no other error is the method's."""
        try:
            with get_threadpool_controller().limit(limits=1, user_api="blas"):
                return True, getattr(self, name)(*args)
        except Exception as error:
            # Whatever it is, the driver raises it; its traceback does not travel with it.
            error.add_note(f"On a Dask worker:\n{traceback.format_exc()}")
            return False, error

    def summaries(self) -> dict[int, Summary]:
        """Return the Summary of each partition that has rows."""
        return {n: _summary(*rows) for n, rows in self.rows.items()}

    def place(
        self, placing: Placing
    ) -> tuple[dict[BlockNumber, Registration], list[ValueError | None]]:
        """Make the Clients; return their Registrations by block, and the errors of checks."""
        plan, shared, registrations, errors = placing.plan, {}, {}, []
        histories = both_sides.histories_of(plan, placing.n_clients, placing.keys.shared)
        for number, (codes, first_users, user_codes) in placing.codes.items():
            data, item_ids = self.rows[number].data, placing.item_ids
            # Items of the whole catalogue, in which they are ascending.
            items = np.searchsorted(item_ids.values, data.item_ids.values).astype(np.int32)
            data = replace(data, item_ids=item_ids, items=items[data.items])
            users = user_codes
            if users is None:
                users = _blocks.codes_of_users(data.client_indptr, first_users)
            training, rest = data, None
            if plan.holds_out is not None:
                training, rest = hold_out(data, plan.holds_out, placing.keys.shared, users)
            own = histories[codes]
            groups_of_clients = both_sides.groups_of(plan, own, None)
            size, share = placing.block_size, plan.sampling.fraction
            blocks = _blocks.cut(training, groups_of_clients, size, share)
            try:
                errors.append(placing.method._check_setting(plan, training, blocks))
            except ValueError as error:
                errors.append(error)
            others = {"shared": shared, "held_out": rest, "user_codes": user_codes}
            clients = both_sides.clients_of(
                plan, blocks, placing.keys, data.client_ids, own, **others
            )
            for b, one in enumerate(clients):
                its = one.block.clients
                self.clients[number, b] = one.place(codes[its], first_users[its])
                registrations[number, b] = one.register()
            self.rows[number] = self.rows[number]._replace(data=data)
        self.codes = placing.all_codes()
        return registrations, errors

    def progress(self) -> dict[BlockNumber, ClientGroup]:
        """Return all clients without their rows."""
        progress = {block: copy.copy(one) for block, one in self.clients.items()}
        for one in progress.values():
            vars(one).update(block=None, held_out=None, _inner=None)
        return progress

    def resume(self, progress: dict[BlockNumber, ClientGroup]) -> None:
        """Replace clients by others, which have no rows yet."""
        for block, one in progress.items():
            here = self.clients[block]
            vars(one).update(block=here.block, held_out=here.held_out, _inner=here._inner)
        self.clients |= progress

    def tell(
        self, blocks: Iterable[BlockNumber], function: Callable[..., None], *args: object
    ) -> None:
        """Call a function, which returns nothing, of the clients of some blocks."""
        args = tuple(map(self._received, args))
        for block in blocks:
            function(self.clients[block], *args)

    def call(
        self, blocks: Iterable[BlockNumber], function: Callable[..., object], *args: object
    ) -> dict[Node, Sum]:
        """Return sums of a function's results, by tree node.

        Blocks are numbered (partition, block), and nodes (level, place).
        """
        self.held, args = {}, tuple(map(self._received, args))
        clients = [self.clients[block] for block in blocks]
        n_blocks, totals = Counter(number for number, _ in blocks), {}
        compiling = -seconds_compiling()
        with Threads(self.n_jobs) as parallel:
            answers = parallel(function, clients, *args)
            for n in self.numbers:
                total = self._added_up(n, islice(answers, n_blocks[n]))
                add_node(totals, (0, n), total, self.n_partitions)
        compiling += seconds_compiling()
        node, first = next(iter(totals.items()))
        totals[node] = first._replace(seconds=first.seconds - compiling)
        return totals

    def _added_up(self, number, answers):
        """Add up the answers of a partition's blocks; hold single updates."""
        sums, updates, loss, seconds = {}, [], np.zeros(2), 0.0
        for answer in answers:
            if isinstance(answer, tuple):
                answer, its_loss, its_seconds = answer
                loss, seconds = loss + its_loss, seconds + its_seconds
            for one in answer if isinstance(answer, list) else [answer]:
                if one is None:
                    continue
                if one.held is not None:
                    self.held.setdefault(number, []).append(one.held)
                    one = replace(one, held=HELD)
                add_sums(sums, one.fields)
                accounts = {name: getattr(one, name)[..., one.sends] for name in ACCOUNTS}
                updates.append(replace(one, fields={}, **accounts))
        return Sum(replace(joined(updates), fields=sums) if updates else None, loss, seconds)

    def each(self, function: Callable[[ClientUpdates], T], stages: tuple[Stage, ...]) -> list[T]:
        """List a function of each tile of the single updates, after more stages."""
        return [answer for one in self._held(stages) for answer in one.each(function)]

    def added(
        self, function: Callable[[ClientUpdates], Sums], stages: tuple[Stage, ...]
    ) -> dict[Node, Sums]:
        """Add up a function of the tiles, by tree node."""
        totals = {}
        for number in self.numbers:
            sums = {}
            for one in self._held(stages, [number]):
                add_sums(sums, one.added(function))
            add_node(totals, (0, number), sums, self.n_partitions, plus_sums)
        return totals

    def single(self, code: int, stages: tuple[Stage, ...]) -> ClientUpdates:
        """Return the update of one client."""
        for one in self._held(stages):
            if code in one.clients:
                return one.single(int(np.flatnonzero(one.clients == code)[0]))
        raise ValueError(f"The update of client {code} is not here.")

    def _held(self, stages, numbers=None):
        """Yield the single updates of some partitions, after more stages."""
        for number in self.numbers if numbers is None else numbers:
            for one in self.held.get(number, ()):
                for stage in stages:
                    one = one.then(stage)
                yield one

    def _received(self, arg):
        """Return an argument; a Participation of all clients here as one that finds them."""
        return OwnParticipation(arg, self.codes) if isinstance(arg, Participation) else arg

    def end(
        self,
        estimator: FederatedRecommender,
        ours: Attributes,
        message: Message,
        round: int,
        token: str,
    ) -> Texts:
        """Leave a model of each partition's users for Dask to take; return what was said."""
        with warnings.catch_warnings(record=True) as said, Threads(self.n_jobs) as parallel:
            warnings.simplefilter("always")
            for number, (data, columns, _) in self.rows.items():
                clients = [one for block, one in self.clients.items() if block[0] == number]
                parts = parallel(ClientGroup.fitted, clients, message, round)
                codes = np.sort(np.concatenate([one.block.users for one in clients]))
                users = [np.searchsorted(codes, one.block.users) for one in clients]
                theirs = _blocks.by_user(users, list(parts), data.n_users)
                _checks.check_fitted(estimator, data, theirs | ours)
                attributes = attributes_of(data) | ours | theirs | columns
                MODELS[token, number] = fitted_copy(estimator, attributes)
        return _texts(said)


# Models of partitions that Dask has not taken yet, on a worker.
MODELS: dict[tuple[str, int], FederatedRecommender] = {}
# How often a worker was asked for a model that it does not have, and how often it gives it back.
MISSED: Counter[tuple[str, int]] = Counter()
TRIES, PAUSE = 20, 0.1


def take_model(token: str, number: int) -> FederatedRecommender:
    """Take the model of a partition, where it was left."""
    found = MODELS.pop((token, number), None)
    if found is not None:
        return found
    # A busy worker's task may be stolen by another, which gives it back.
    MISSED[token, number] += 1
    if MISSED[token, number] < TRIES:
        time.sleep(PAUSE)
        raise import_module("distributed").Reschedule
    raise RuntimeError(
        f"The worker that held the users of partition {number} of the fit is gone, and their "
        "vectors with it; fit again."
    )


def _summary(data, columns, said):
    return Summary(
        data.client_ids,
        np.diff(data.client_indptr),
        data.user_ids.values,
        data.item_ids.values,
        len(data.items),
        data.value_range(),
        data.heaviest(),
        data.fingerprint(),
        columns,
        said,
    )


# --------------------------------------------------------------------------------- sums


class Sum(NamedTuple):
    """What some clients answer: their updates, added up, losses and seconds."""

    updates: ClientUpdates | None
    loss: np.ndarray
    seconds: float


NOTHING: Sum = Sum(None, np.zeros(2), 0.0)
# In the place of single updates, which stay on the workers.
HELD = "held"
# Attributes of Updates with a number for each client.
ACCOUNTS = ("clients", "sends", "arrives", "accepted", "sizes")


def plus(one: Sum, other: Sum) -> Sum:
    """Add two Sums."""
    updates = [sum.updates for sum in (one, other) if sum.updates is not None]
    both = joined(updates) if updates else None
    return Sum(both, one.loss + other.loss, one.seconds + other.seconds)


def plus_sums(one: Sums, other: Sums) -> Sums:
    """Add two dicts of arrays."""
    sums = {}
    add_sums(sums, one)
    add_sums(sums, other)
    return sums


def add_node(
    totals: dict[Node, T], node: Node, total: T, n_partitions: int, plus: Callable[[T, T], T] = plus
) -> None:
    """Put a sum into a binary tree, and add up all neighbours that are known."""
    level, place = node
    while (width := -(-n_partitions // 2**level)) > 1:
        if (other := totals.pop((level, place ^ 1), None)) is not None:
            total = plus(other, total) if place % 2 else plus(total, other)
        elif place ^ 1 < width:
            break
        level, place = level + 1, place // 2
    totals[level, place] = total
