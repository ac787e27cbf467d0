"""A fit whose clients live on a Dask cluster: the server is here, and blocks are on workers.

Each worker holds its clients in one actor. A round sends it the model, and it returns one sum.
Sums are added up pairwise, partition by partition, so that the number of workers does not change a
bit of them. If a worker is lost, the others read all partitions, and the fit goes back to its last
checkpoint, or to its start.
"""

from __future__ import annotations

import copy
import hashlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedrecsk._utils.extras import require
from fedrecsk._utils.sklearn_compat import clone
from fedrecsk._utils.user_warnings import warn
from fedrecsk._version import __version__
from fedrecsk.base._recommender import FitReport
from fedrecsk.cluster._checkpoints import Checkpoint
from fedrecsk.cluster._frames import Parts, client_of, together
from fedrecsk.data import _checks
from fedrecsk.data.ids import Ids
from fedrecsk.data.interactions import Population
from fedrecsk.protocol import blocks as _blocks
from fedrecsk.protocol import refusals
from fedrecsk.protocol.clients import ClientGroup
from fedrecsk.protocol.messages import Message, Registration
from fedrecsk.protocol.participation import Participation
from fedrecsk.protocol.server import Server
from fedrecsk.simulation import both_sides
from fedrecsk.simulation.dask_workers import (
    NOTHING,
    BlockNumber,
    Holder,
    Placing,
    Sum,
    Summary,
    Sums,
    add_node,
    plus,
    plus_sums,
    read,
    take_model,
)
from fedrecsk.simulation.run import Run, Seen, complete, fitted_attributes, timed
from fedrecsk.updates import ClientUpdates, FieldSpec
from fedrecsk.updates._client_updates import Stage

if TYPE_CHECKING:
    from dask.dataframe import DataFrame, Series
    from dask.delayed import Delayed
    from distributed import Actor, Client, Future

    from fedrecsk.federated.base import FederatedRecommender
    from fedrecsk.protocol.blocks import Attributes
    from fedrecsk.simulation.run import Trained

T = TypeVar("T")
# How often workers may be lost in one fit.
MOST_LOSSES = 3
# Seconds to wait for a worker in the place of one that was lost.
PATIENCE = 15.0
# Errors of Dask by which a worker is known to be lost; those of a Holder come as results.
LOST = (OSError, RuntimeError, KeyError, CancelledError)


class WorkerLost(Exception):
    """A worker does not answer any more."""

    def __init__(self, worker: str) -> None:
        super().__init__(worker)
        self.worker = worker


def fit(
    estimator: FederatedRecommender,
    X: DataFrame,
    y: Series | None,
    clients: Series | None,
    sample_weight: Series | None,
) -> FederatedRecommender:
    """Fit to a Dask DataFrame; return the estimator."""
    _checks.check_parameters(estimator)
    estimator._check_before_fit()
    estimator._require_y(y)
    refusals.check("fit on a cluster", estimator._plan())
    client, delayed = client_of("fit"), require("dask", "fit of a Dask DataFrame").delayed
    plain = delayed(clone(estimator).set_callbacks(), pure=False)
    frame = together(X, y=y, clients=clients, sample_weight=sample_weight)
    rows = [delayed(read)(n, one, plain) for n, one in enumerate(frame.to_delayed())]
    cluster = Cluster(client, rows, estimator.n_jobs)

    def rounds(data, report):
        key, method = both_sides.fresh(estimator)
        plan, reported = method._plan(), ReportOnce(report)
        server = both_sides.server_of(estimator, plan, data, key)
        both_sides.check_aggregator(plan, data)

        def run_rounds():
            run = ClusterRun.on(cluster, estimator, method, data, copy.deepcopy(server))
            run.settle(estimator)
            reported.round = run.server.round
            return complete(estimator, run, data, reported)

        attributes = cluster.repeated(run_rounds)
        cluster.checkpoint.remove()
        return attributes

    try:
        summaries = cluster.repeated(cluster.summaries)
        whole = Whole.of(summaries, estimator._catalogue(), cluster.n_partitions)
        vars(estimator).update(next(iter(summaries.values())).columns)
        return estimator._learn(whole, FitReport(estimator, X, y, sample_weight, whole), rounds)
    finally:
        cluster.let_go()


class ReportOnce:
    """A FitReport to which each round is reported once, however often the fit goes back."""

    def __init__(self, report: FitReport) -> None:
        self.report = report
        # What closes each round, by its number, and the number of the next.
        self.closing: dict[int, Callable[..., bool]] = {}
        self.round: int = 0

    def step(self, name: str) -> Callable[[Callable[[], Attributes]], bool]:
        """Open a round, if it is a new one, and return what closes it."""
        round, self.round = self.round, self.round + 1
        if round not in self.closing:
            self.closing[round] = self.report.step(name)

        def close(attributes):
            done, self.closing[round] = self.closing[round], lambda attributes: False
            return done(attributes)

        return close


@dataclass(frozen=True)
class Whole(Population):
    """What the driver knows of all rows: ids, Summaries by partition, each user's partition."""

    summaries: dict[int, Summary]
    part_of_user: np.ndarray
    n_partitions: int

    @classmethod
    def of(cls, summaries: dict[int, Summary], catalogue: Ids | None, n_partitions: int) -> Whole:
        """Put summaries together; `catalogue` is the public one, if there is one."""
        ids = _joined_ids([one.client_ids for one in summaries.values()])
        n_users = np.concatenate([one.n_users for one in summaries.values()])
        user_ids = _joined_ids([one.user_ids for one in summaries.values()])
        clients = np.unique(ids)
        lengths = [len(one.client_ids) for one in summaries.values()]
        parts = np.repeat(list(summaries), lengths)
        _check_whole("client" if len(user_ids) > len(ids) else "user", ids, parts)
        parts = np.repeat(parts, n_users)
        _check_whole("user", user_ids, parts)
        order = np.argsort(np.repeat(np.searchsorted(clients, ids), n_users), kind="stable")
        if catalogue is None:
            catalogue = Ids(
                np.unique(_joined_ids([one.item_ids for one in summaries.values()])), "item ids"
            )
        return cls(
            user_ids=Ids(user_ids[order], "user ids"),
            item_ids=catalogue,
            client_ids=clients,
            client_indptr=np.concatenate([[0], np.cumsum(n_users[np.argsort(ids)])]),
            summaries=summaries,
            part_of_user=parts[order].astype(np.int32),
            n_partitions=n_partitions,
        )

    def fingerprint(self) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        for number, one in self.summaries.items():
            digest.update(f"{number} of {self.n_partitions}".encode() + one.digest)
        return digest.digest()

    def value_range(self) -> tuple[float, float]:
        lowest, highest = zip(*(one.values for one in self.summaries.values()), strict=True)
        return min(lowest), max(highest)

    def heaviest(self) -> float:
        return max(one.heaviest for one in self.summaries.values())

    def seen(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        return np.zeros(self.n_users + 1, dtype=np.int64), np.empty(0, dtype=np.int32)


def _joined_ids(arrays):
    """Concatenate ids of several partitions; raise if some are strings and others numbers."""
    kinds = {array.dtype.kind == "U" for array in arrays}
    if len(kinds) > 1:
        raise ValueError(
            "The ids of some partitions of X are strings and those of others are numbers; convert "
            "the column to one type, for example with .astype(str)."
        )
    return np.concatenate(arrays)


def _check_whole(role, ids, parts):
    """Raise if a user or a client is in two partitions."""
    order = np.argsort(ids, kind="stable")
    twice = np.flatnonzero(ids[order][1:] == ids[order][:-1])
    if len(twice):
        pair, n_cut = order[twice[0] : twice[0] + 2], len(np.unique(ids[order[twice]]))
        first, other = parts[pair]
        raise ValueError(
            f"{role.capitalize()} {ids[pair[0]]!s} has rows in partitions {first} and {other} of X "
            f"({n_cut} {role}s have rows in several), but must be in one; repartition the "
            f"frame first, for example by frame.shuffle({role!r}), and write it as Parquet."
        )


@dataclass(eq=False)
class Elsewhere:
    """Clients of a block, as the loop handles them; `number` is (partition, block)."""

    number: BlockNumber
    block: SimpleNamespace


@dataclass(eq=False)
class Held:
    """A Holder, as the driver handles it; without the `future`, Dask removes the `actor`."""

    numbers: range
    future: Future[Actor]
    actor: Actor
    worker: str
    codes: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def of(self, blocks: list[BlockNumber]) -> list[BlockNumber]:
        """Return those of the blocks that it has."""
        return [block for block in blocks if block[0] in self.numbers]

    def message(
        self, blocks: list[BlockNumber], function: Callable[..., object], args: tuple[object, ...]
    ) -> tuple:
        """Return the arguments of a call of some blocks: of masks only those of its clients."""
        own = (a.of(self.codes) if isinstance(a, Participation) else a for a in args)
        return self.of(blocks), function, *own


@dataclass(eq=False)
class HeldElsewhere:
    """HeldUpdates of all clients, on the workers."""

    cluster: Cluster
    updates: ClientUpdates
    stages: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        self.clients: NDArray[np.int64] = self.updates.clients[self.updates.accepted]
        self.specs: Mapping[str, FieldSpec] = self.updates.specs

    def each(self, function: Callable[[ClientUpdates], T]) -> Iterator[T]:
        """Yield a function of each tile."""
        for _, answers in self.cluster._asked("each", lambda _: (function, self.stages)):
            yield from answers

    def added(self, function: Callable[[ClientUpdates], Sums]) -> Sums:
        """Add up a function of the tiles, a dict of arrays."""
        cluster = self.cluster
        answers = cluster._merged("added", lambda _: (function, self.stages))
        return cluster._root(cluster.holders, answers, plus_sums, {})

    def then(self, stage: Stage) -> HeldElsewhere:
        """Return the updates after another stage."""
        return HeldElsewhere(self.cluster, self.updates, (*self.stages, stage))

    def single(self, client: int) -> ClientUpdates:
        """Return the update of one accepted client, by its place among them."""
        code, cluster = self.clients[client], self.cluster
        holders = [one for one in cluster.holders if code in one.codes]
        ((_, update),) = cluster._asked("single", lambda _: (code, self.stages), holders)
        return update


@dataclass(eq=False)
class Cluster:
    """The holders of all partitions (Delayed `rows`), and the checkpoint of their clients."""

    client: Client
    rows: list[Delayed]
    n_jobs: int | None

    def __post_init__(self) -> None:
        self.n_partitions: int = len(self.rows)
        self.holders: list[Held] = []
        self.checkpoint: Checkpoint = Checkpoint()
        self.n_workers: int = 0

    def repeated(self, work: Callable[[], T]) -> T:
        """Return the result of some work, which begins anew whenever a worker is lost."""
        lost, n_lost = None, 0
        while True:
            try:
                if not self.holders:
                    self._hold(lost)
                return work()
            except WorkerLost as error:
                lost, n_lost = error.worker, n_lost + 1
                self.let_go()
                if n_lost > MOST_LOSSES:
                    raise RuntimeError(
                        f"Workers were lost {n_lost} times in this fit. If their memory was not "
                        "enough, start more workers, or set a lower n_jobs."
                    ) from error
                warn(
                    "A worker was lost. The others read all partitions, and the fit goes back to "
                    "its start, or inside of fedrecsk.cluster.checkpoints to the last one."
                )

    def let_go(self) -> None:
        """Let workers forget their partitions."""
        for one in self.holders:
            one.future.cancel()
        self.holders = []

    def _hold(self, lost):
        """Make the holders of all partitions, on all workers but a lost one."""
        limit = time.monotonic() + PATIENCE
        while len(workers := self._workers(lost)) < self.n_workers and time.monotonic() < limit:
            time.sleep(0.1)
        if not workers and lost is None:
            raise ValueError("The Dask cluster has no workers; start some first.")
        if not workers:
            raise RuntimeError(
                "All workers of the Dask cluster were lost, or its scheduler; start others and "
                "fit again. Inside of fedrecsk.cluster.checkpoints, a fit then goes on."
            )
        self.n_workers = len(workers)
        n_shares = min(len(workers), self.n_partitions)
        bounds = [self.n_partitions * n // n_shares for n in range(n_shares + 1)]
        futures, holders = [], []
        with self.client.as_current():
            for (first, end), worker in zip(pairwise(bounds), workers, strict=False):
                parts = self.client.compute(self.rows[first:end])
                args = range(first, end), self.n_partitions, self.n_jobs, *parts
                options = {"workers": [worker], "allow_other_workers": True, "pure": False}
                future = self.client.submit(Holder, *args, actor=True, **options)
                futures.append((args[0], future))
            for numbers, future in futures:
                try:
                    actor = future.result()
                except require("distributed", "fit of a Dask DataFrame").KilledWorker as error:
                    raise RuntimeError(
                        f"Workers died when they read partitions {numbers[0]} to {numbers[-1]} of "
                        "X; give them more memory, or make partitions smaller."
                    ) from error
                (worker,) = self.client.who_has([future])[future.key]
                holders.append(Held(numbers, future, actor, worker))
        self.holders = holders

    def _workers(self, lost=None):
        # Not by scheduler_info, whose answer Dask overwrites now and then by one without workers.
        scheduler = self.client.scheduler
        if scheduler is None:
            return []
        try:
            found = self.client.sync(scheduler.identity, n_workers=-1)["workers"]
        except OSError:
            # It has ended.
            return []
        return sorted(worker for worker in found if worker != lost)

    # ------------------------------------------------------------------ before the rounds

    def summaries(self) -> dict[int, Summary]:
        """Return the summaries of the partitions with rows."""
        summaries = self._merged("summaries")
        if not summaries:
            raise ValueError("X has no row with a weight above zero.")
        for category, text in sorted({s for one in summaries.values() for s in one.said}, key=str):
            warn(text, category)
        return dict(sorted(summaries.items()))

    def place(self, placing: Placing) -> dict[BlockNumber, Registration]:
        """Let the workers make their clients; return their Registrations by block."""
        registrations, errors = {}, []

        def own(holder):
            codes = {n: one for n, one in placing.codes.items() if n in holder.numbers}
            its = placing._replace(codes=codes)
            holder.codes = its.all_codes()
            return (its,)

        for _, (registered, found) in self._asked("place", own):
            registrations |= registered
            errors += found
        # Each has a part of the rows: what one of them accepts is no error.
        if all(error is not None for error in errors):
            raise errors[0]
        return dict(sorted(registrations.items()))

    def resume(self, progress: dict[BlockNumber, ClientGroup]) -> None:
        """Replace all clients by those of a checkpoint."""
        blocks = list(progress)
        self._merged("resume", lambda one: ({b: progress[b] for b in one.of(blocks)},))

    # ------------------------------------------------------------------------- the rounds

    def tell(self, blocks: list[BlockNumber], function: Callable[..., None], *args: object) -> None:
        """Call a function of Clients, which returns nothing, for some clients."""
        asked = self._holding(blocks)
        self._merged("tell", lambda one: one.message(blocks, function, args), asked)

    def call(
        self, blocks: list[BlockNumber], function: Callable[..., object], *args: object
    ) -> Sum:
        """Call a function of Clients for some clients; return a Sum."""
        asked = self._holding(blocks)
        answers = self._merged("call", lambda one: one.message(blocks, function, args), asked)
        total = self._root(asked, answers, plus, NOTHING)
        updates = total.updates
        if updates is not None and updates.held is not None:
            total = total._replace(updates=replace(updates, held=HeldElsewhere(self, updates)))
        return total

    def _root(self, asked, answers, plus, nothing):
        """Add up the tree nodes of the holders that were asked."""
        totals = {}
        silent = set(range(self.n_partitions)).difference(*(one.numbers for one in asked))
        for node, sum in (dict.fromkeys(((0, n) for n in silent), nothing) | answers).items():
            add_node(totals, node, sum, self.n_partitions, plus)
        return totals.popitem()[1]

    def _holding(self, blocks):
        return [one for one in self.holders if one.of(blocks)]

    def end(
        self,
        whole: Whole,
        estimator: FederatedRecommender,
        ours: Attributes,
        message: Message,
        round: int,
    ) -> Parts:
        """Leave the users' attributes on the workers; return their Parts."""
        token, said, models = uuid.uuid4().hex, set(), {}
        last = estimator, ours, message, round, token
        for holder, texts in self._asked("end", lambda _: last):
            said |= set(texts)
            for n in filter(holder.numbers.__contains__, whole.summaries):
                options = {"workers": [holder.worker], "allow_other_workers": True}
                models[n] = self.client.submit(take_model, token, n, pure=False, **options)
        for category, text in sorted(said, key=str):
            warn(text, category)
        # A partition without rows has no users; all models know the items.
        some = next(iter(models.values()))
        models = [models.get(n, some) for n in range(self.n_partitions)]
        require("distributed", "fit of a Dask DataFrame").wait(models)
        return Parts(self.client, models, whole.user_ids, whole.part_of_user)

    def _asked(self, name, args_of=lambda holder: (), holders=None):
        """Call a method of holders, or all, at the same time; yield each and its result."""
        calls = []
        for one in self.holders if holders is None else holders:
            with _noticed(one):
                calls.append((one, one.actor.do(name, *args_of(one))))
        for one, call in calls:
            with _noticed(one):
                done, result = call.result()
            if not done:
                raise result
            yield one, result

    def _merged(self, *args):
        """Call a method of holders; return what their dicts have together, if they return any."""
        merged = {}
        for _, answer in self._asked(*args):
            merged |= answer or {}
        return merged


@contextmanager
def _noticed(holder):
    """Raise WorkerLost if the worker of a holder does not answer."""
    try:
        yield
    except LOST as error:
        raise WorkerLost(holder.worker) from error


@dataclass(eq=False, kw_only=True)
class ClusterRun(Run):
    """A fit in progress whose clients are on the workers of a cluster."""

    data: Whole
    cluster: Cluster
    identity: str

    @classmethod
    def on(
        cls,
        cluster: Cluster,
        estimator: FederatedRecommender,
        method: FederatedRecommender,
        data: Whole,
        server: Server,
    ) -> Self:
        """Before the set-up, with a new server, or as of the last checkpoint."""
        parameters = both_sides.parameters_of_a_run(estimator)
        central = server.federation.central_dp
        plans = central is not None and central.epsilon is not None
        n_rounds = method.n_rounds if plans else None
        # The saved server has the seed.
        named = {n: v for n, v in parameters.items() if not isinstance(v, np.random.RandomState)}
        settings = type(method).__name__, n_rounds, sorted(named.items())
        run = cls(
            server=server,
            clients=[],
            attack=None,
            fingerprint=None,
            parameters=parameters,
            data=data,
            method=method,
            cluster=cluster,
            identity=repr((__version__, settings, data.fingerprint())),
        )
        saved = cluster.checkpoint.load(run.identity)
        if saved is not None:
            run.server, progress = saved
            run.make_clients()
            cluster.resume(progress)
        return run

    def each(
        self, clients: list[Elsewhere], function: Callable[..., object], *args: object
    ) -> Iterator[Any]:
        """Yield the sum of the clients' results, if there is one."""
        updates = self.cluster.call([one.number for one in clients], function, *args).updates
        if updates is not None:
            yield updates

    def trained(self, clients: list[Elsewhere], round: int) -> Iterator[Trained]:
        """Yield the sum of the clients' local updates."""
        total = self.cluster.call([one.number for one in clients], timed, round)
        yield [] if total.updates is None else [total.updates], total.loss, total.seconds

    def tell(self, clients: list[Elsewhere], function: Callable[..., None], *args: object) -> None:
        """Call a function of Clients, which returns nothing, for each of these."""
        self.cluster.tell([one.number for one in clients], function, *args)

    def ask_round(self, participation: Participation, message: Message | None) -> Seen:
        """Let clients update, close the round, and make a checkpoint if one is due."""
        seen = super().ask_round(participation, message)
        if self.cluster.checkpoint.is_due(self.server.round):
            self.cluster.checkpoint.save(
                self.identity, (self.server, self.cluster._merged("progress"))
            )
        return seen

    def registrations(self) -> list[Registration]:
        """Make all clients on the workers; return their Registrations."""
        return list(self.make_clients().values())

    def make_clients(self) -> dict[BlockNumber, Registration]:
        """Make all clients on the workers; return their Registrations by block."""
        server, data = self.server, self.data
        keys, codes = both_sides.keys_of(server), {}
        user_codes = both_sides.user_codes_of(server.plan, data)
        for number, summary in data.summaries.items():
            own = np.searchsorted(data.client_ids, summary.client_ids)
            of_users = None
            if user_codes is not None:
                of_users = user_codes[data.user_ids.codes(summary.user_ids)]
            codes[number] = own, data.client_indptr[own], of_users
        n_rows = sum(one.n_rows for one in data.summaries.values())
        size = _blocks.block_size(n_rows, data.n_items)
        placing = Placing(
            self.method, server.plan, keys, data.n_clients, data.item_ids, size, codes
        )
        registrations = self.cluster.place(placing)
        for number, one in registrations.items():
            clients = np.searchsorted(data.client_ids, one.client_ids)
            self.clients.append(Elsewhere(number, SimpleNamespace(clients=clients)))
        return registrations

    def _attributes(self, message, *, kept):
        """Return fitted attributes; those of users stay on the workers."""
        server = self.server

        def users(received, ours):
            if not kept:
                return {}
            args = self.data, self.method, ours, received, server.round
            return {"_parts": self.cluster.end(*args)}

        return fitted_attributes(self.method, server, message, users)
