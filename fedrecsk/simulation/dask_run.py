"""A fit whose clients live on a Dask cluster: the server is here, and blocks are on workers.

Each worker holds its clients in one actor. A round sends it one message, and it returns one sum.
Sums are added up pairwise, partition by partition, so that neither the number of workers nor the
loss of one changes a bit of them. A worker that is lost is replaced by another that reads its
partitions and repeats, from a log, all that its clients have been told.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk._utils.extras import require
from fedrecsk._utils.sklearn_compat import clone
from fedrecsk._utils.user_warnings import warn
from fedrecsk._version import __version__
from fedrecsk.aggregation import FLTrust
from fedrecsk.aggregation._comparison import Comparison
from fedrecsk.base._recommender import FitReport
from fedrecsk.cluster._checkpoints import Log
from fedrecsk.cluster._frames import Parts, client_of, together
from fedrecsk.data import _checks
from fedrecsk.data.ids import Ids
from fedrecsk.data.interactions import Population
from fedrecsk.protocol import blocks as _blocks
from fedrecsk.protocol.participation import Participation
from fedrecsk.simulation import making
from fedrecsk.simulation.dask_workers import (
    ACCOUNTS,
    NOTHING,
    Holder,
    Masks,
    Placing,
    add_node,
    plus,
    plus_sums,
    read,
    take_model,
)
from fedrecsk.simulation.run import Run, _timed, complete, fitted_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, Self, TypeVar

    from dask.dataframe import DataFrame, Series
    from dask.delayed import Delayed
    from distributed import Actor, Client, Future
    from numpy.typing import NDArray

    from fedrecsk.federated.base import FederatedRecommender
    from fedrecsk.protocol.blocks import Attributes
    from fedrecsk.protocol.messages import Message, Registration
    from fedrecsk.simulation.dask_workers import BlockNumber, Node, Sum, Summary, Sums
    from fedrecsk.simulation.run import Seen
    from fedrecsk.updates import ClientUpdates, FieldSpec
    from fedrecsk.updates._client_updates import Stage

    T = TypeVar("T")

# How often the clients of a partition may be lost in one fit.
MOST_LOSSES = 3
# Seconds to wait for a worker in the place of one that was lost.
PATIENCE = 15.0
# Errors of Dask by which a worker is known to be lost; those of a Holder come as results.
LOST = (OSError, RuntimeError, KeyError, CancelledError)


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
    check_setting(estimator)
    client, delayed = client_of("fit"), require("dask", "fit of a Dask DataFrame").delayed
    plain = delayed(clone(estimator).set_callbacks(), pure=False)
    frame = together(X, y=y, clients=clients, sample_weight=sample_weight)
    rows = [delayed(read)(n, one, plain) for n, one in enumerate(frame.to_delayed())]
    with Cluster(client, rows, estimator.n_jobs) as cluster:
        summaries = cluster.read()
        whole = Whole.of(summaries, estimator._catalogue(), cluster.n_partitions)
        vars(estimator).update(next(iter(summaries.values())).columns)
        report = FitReport(estimator, X, y, sample_weight, whole)

        def rounds(data, report):
            run = ClusterRun.on(cluster, estimator, data)
            run.settle(estimator)
            return complete(estimator, run, data, report)

        return estimator._learn(whole, report, rounds)


def check_setting(estimator: FederatedRecommender) -> None:
    """Raise if the method or its federation needs more than sums from the workers."""
    name, federation = type(estimator).__name__, estimator._setting()
    traits = estimator._algorithm().traits
    needs = {
        f"{name} shows the server single uploads": traits.treats_clients_apart,
        f"the devices of {name} send to each other": traits.n_exchanges > 0,
        f"{type(federation.aggregator).__name__} compares clients number by number": isinstance(
            federation.aggregator, Comparison | FLTrust
        ),
        "adversary replaces single uploads": federation.adversary is not None,
        "devices need to know how many rows each client has": federation.devices is not None,
        "warm_start keeps all clients": estimator.warm_start,
        "user_features are in one frame": getattr(estimator, "user_features", None) is not None,
        'predict_with="local" keeps items of each client': (
            getattr(estimator, "predict_with", "global") == "local"
        ),
    }
    for what, applies in needs.items():
        if applies:
            raise ValueError(
                f"On a Dask cluster only sums leave the workers, and {what}. Leave it out, use a "
                "method of sums, such as RFRec, FedEB, LocALS, FCF, FedMF, LightFR, FedEASE or "
                "FedSpectral, or fit in one process: X.compute()."
            )


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
        pair = order[twice[0] : twice[0] + 2]
        first, other = parts[pair]
        raise ValueError(
            f"{role.capitalize()} {ids[pair[0]]!s} has rows in partitions {first} and {other} of X "
            f"({len(twice)} {role}s have rows in several), but must be in one; repartition the "
            f"frame first, for example by frame.shuffle({role!r}), and write it as Parquet."
        )


@dataclass(eq=False)
class Elsewhere:
    """Clients of a block, as the loop handles them; `number` is (partition, block)."""

    number: BlockNumber
    block: SimpleNamespace


class Held:
    """A Holder, as the driver handles it."""

    def __init__(
        self, numbers: list[int], future: Future[Actor], actor: Actor, worker: str
    ) -> None:
        self.numbers = numbers
        self.future = future
        self.actor = actor
        self.worker = worker
        self._own = frozenset(numbers)
        # Messages that wait for the next call of its clients.
        self.told: list[tuple] = []
        self.codes: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def __str__(self) -> str:
        return _partitions(self.numbers)

    def of(self, blocks: list[BlockNumber]) -> list[BlockNumber]:
        """Return those of the blocks that it has."""
        return [block for block in blocks if block[0] in self._own]

    def packed(self, arg: object) -> object:
        """Return an argument as it is sent: of masks only those of its clients."""
        return Masks.of(arg, self.codes) if isinstance(arg, Participation) else arg


class HeldElsewhere:
    """HeldUpdates of all clients, on the workers."""

    def __init__(
        self, cluster: Cluster, updates: ClientUpdates, stages: tuple[Stage, ...] = ()
    ) -> None:
        self.cluster = cluster
        self.updates = updates
        self.stages = stages
        self.clients: NDArray[np.int64] = updates.clients[updates.accepted]
        self.specs: Mapping[str, FieldSpec] = updates.specs

    def each(self, function: Callable[[ClientUpdates], T]) -> Iterator[T]:
        """Yield a function of each tile."""
        return self.cluster.each(function, self.stages)

    def added(self, function: Callable[[ClientUpdates], Sums]) -> Sums:
        """Add up a function of the tiles, a dict of arrays."""
        return self.cluster.added(function, self.stages)

    def then(self, stage: Stage) -> HeldElsewhere:
        """Return the updates after another stage."""
        return HeldElsewhere(self.cluster, self.updates, (*self.stages, stage))

    def single(self, client: int) -> ClientUpdates:
        """Return the update of one accepted client, by its place among them."""
        return self.cluster.single(self.clients[client], self.stages)


class Cluster:
    """The holders of all partitions (Delayed `rows`), and what must be known to replace them."""

    def __init__(self, client: Client, rows: list[Delayed], n_jobs: int | None) -> None:
        self.client = client
        self.rows = rows
        self.n_jobs = n_jobs
        self.n_partitions: int = len(rows)
        self.holders: list[Held] = []
        self.placing: Placing | None = None
        self.accounts: dict[Node, dict[str, np.ndarray]] = {}
        self.log: Log = Log()
        self.losses: int = 0
        self.n_workers: int = 0
        self.killed: type[Exception] = require(
            "distributed", "fit of a Dask DataFrame"
        ).KilledWorker

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.log.close(is_over=kind is None)
        self.holders.clear()

    def _workers(self):
        # Not by scheduler_info, whose answer Dask overwrites now and then by one without workers.
        scheduler = self.client.scheduler
        if scheduler is None:
            return []
        try:
            return sorted(self.client.sync(scheduler.identity, n_workers=-1)["workers"])
        except OSError:
            # It has ended.
            return []

    # ------------------------------------------------------------------ before the rounds

    def read(self) -> dict[int, Summary]:
        """Let the workers read their partitions; return the summaries of those with rows."""
        workers = self._workers()
        if not workers:
            raise ValueError("The Dask cluster has no workers; start some first.")
        self.n_workers = len(workers)
        shares = np.array_split(np.arange(self.n_partitions), min(len(workers), self.n_partitions))
        self._hold([(share.tolist(), one) for share, one in zip(shares, workers, strict=False)])
        summaries = {}
        for _, answer in self._asked(self.holders, "summaries"):
            summaries |= answer
        if not summaries:
            raise ValueError("X has no row with a weight above zero.")
        for category, text in sorted({s for one in summaries.values() for s in one.said}, key=str):
            warn(text, category)
        return dict(sorted(summaries.items()))

    def _hold(self, shares):
        """Make the holders of some partitions, on these workers if they are still there."""
        futures, holders = [], []
        with self.client.as_current():
            parts = iter(self.client.compute([self.rows[n] for share, _ in shares for n in share]))
            for share, worker in shares:
                args = share, self.n_partitions, self.n_jobs, *(next(parts) for _ in share)
                options = {"workers": [worker], "allow_other_workers": True, "pure": False}
                futures.append((share, self.client.submit(Holder, *args, actor=True, **options)))
            for share, future in futures:
                try:
                    actor = future.result()
                except self.killed as error:
                    raise RuntimeError(
                        f"Workers died when they read {_partitions(share)}; give them more "
                        "memory, or make partitions smaller."
                    ) from error
                (worker,) = self.client.who_has([future])[future.key]
                holders.append(Held(share, future, actor, worker))
        self.holders = sorted(self.holders + holders, key=lambda one: one.numbers)
        return holders

    def place(self, placing: Placing) -> dict[BlockNumber, Registration]:
        """Let the workers make their clients; return their Registrations by block."""
        self.placing, registrations, errors = placing, {}, []
        for _, (own, found) in self._asked(self.holders, "place", partial(_placing_of, placing)):
            registrations |= own
            errors += found
        # Each has a part of the rows: what one of them accepts is no error.
        if all(error is not None for error in errors):
            raise errors[0]
        return dict(sorted(registrations.items()))

    # ------------------------------------------------------------------------- the rounds

    def tell(self, blocks: list[BlockNumber], function: Callable[..., None], *args: object) -> None:
        """Let some clients be told something, together with the next call."""
        args = self._noted(blocks, function, args)
        for one in self._holding(blocks):
            one.told.append((one.of(blocks), function, *map(one.packed, args)))

    def call(
        self, blocks: list[BlockNumber], function: Callable[..., object], *args: object
    ) -> Sum:
        """Call a function of Clients for some clients; return a Sum."""
        args = self._noted(blocks, function, args)

        def message(holder):
            return _taken(holder), holder.of(blocks), function, *map(holder.packed, args)

        asked, answers = self._holding(blocks), {}
        for _, answer in self._asked(asked, "call", message):
            answers |= {node: self._with_accounts(node, sum) for node, sum in answer.items()}
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

    def each(
        self, function: Callable[[ClientUpdates], T], stages: tuple[Stage, ...]
    ) -> Iterator[T]:
        """Yield a function of each tile of the single updates that the workers hold."""
        for _, answers in self._asked(self.holders, "each", lambda _: (function, stages)):
            yield from answers

    def added(self, function: Callable[[ClientUpdates], Sums], stages: tuple[Stage, ...]) -> Sums:
        """Add up a function of the tiles, a dict of arrays."""
        answers = {}
        for _, answer in self._asked(self.holders, "added", lambda _: (function, stages)):
            answers |= answer
        return self._root(self.holders, answers, plus_sums, {})

    def single(self, code: int, stages: tuple[Stage, ...]) -> ClientUpdates:
        """Return the update of one client (its code)."""
        holders = [one for one in self.holders if code in one.codes]
        ((_, update),) = self._asked(holders, "single", lambda _: (code, stages))
        return update

    def _holding(self, blocks):
        return [one for one in self.holders if one.of(blocks)]

    def _noted(self, blocks, function, args):
        """Write a call into the log; return its arguments, None for full participation."""
        args = tuple(
            None if isinstance(arg, Participation) and all(m.all() for m in arg[:3]) else arg
            for arg in args
        )
        self.log.add((blocks, function, args))
        return args

    def _with_accounts(self, node, total):
        """Fill in what a sum leaves out because it is as before."""
        updates = total.updates
        if updates is None:
            return total
        if updates.clients is None:
            return total._replace(updates=replace(updates, **self.accounts[node]))
        self.accounts[node] = {name: getattr(updates, name) for name in ACCOUNTS}
        return total

    def end(
        self,
        whole: Whole,
        estimator: FederatedRecommender,
        ours: Attributes,
        message: Message,
        round: int,
    ) -> Parts:
        """Leave the users' attributes on the workers; return their Parts."""
        token = uuid.uuid4().hex

        def last(holder):
            return _taken(holder), estimator, ours, message, round, token

        said, models = set(), {}
        for holder, texts in self._asked(self.holders, "end", last):
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

    # ---------------------------------------------------------------------- lost workers

    def _asked(self, holders, name, args_of=lambda holder: ()):
        """Call a method of holders at the same time; yield each, or its substitute, and a result.

        If a holder is lost, its substitute alone repeats the call.
        """
        for holder, call in [(one, _begun(one, name, args_of(one))) for one in holders]:
            while True:
                if isinstance(call, Exception):
                    holder = self._substitute(holder, call)
                try:
                    if isinstance(call, Exception):
                        if self.placing is not None:
                            args = _placing_of(self.placing, holder)
                            self._done([holder.actor.do("place", *args)])
                            self.repeat([holder], but_last=name == "call")
                        call = holder.actor.do(name, *args_of(holder))
                    done, result = call.result()
                    break
                except LOST as reason:
                    call = reason
            if not done:
                raise result
            yield holder, result

    def _substitute(self, lost, error):
        """Return a new holder of the partitions of a lost one."""
        self.losses += 1
        if self.losses > MOST_LOSSES:
            raise RuntimeError(
                f"Workers were lost {self.losses} times in this fit, the last one with {lost}. If "
                "their memory was not enough, start more workers, or set a lower n_jobs."
            ) from error
        warn(f"A worker was lost; another one reads {lost}, and repeats its rounds.")
        if lost in self.holders:
            self.holders.remove(lost)
        lost.future.cancel()
        (holder,) = self._hold([(lost.numbers, self._free_worker(lost.worker))])
        return holder

    def _free_worker(self, lost):
        """Wait a little for a worker in the place of the lost one; return that with least to do."""
        limit = time.monotonic() + PATIENCE
        while True:
            workers = set(self._workers()) - {lost}
            if len(workers) >= self.n_workers or (workers and time.monotonic() > limit):
                break
            if time.monotonic() > limit:
                raise RuntimeError(
                    "All workers of the Dask cluster were lost, or its scheduler; start others and "
                    "fit again. Inside of fedrecsk.cluster.checkpoints, a fit then goes on."
                )
            time.sleep(0.1)
        self.n_workers = len(workers)
        load = dict.fromkeys(sorted(workers), 0)
        for holder in self.holders:
            load[holder.worker] = load.get(holder.worker, 0) + len(holder.numbers)
        return min(workers, key=lambda one: (load[one], one))

    def repeat(self, holders: list[Held], *, but_last: bool = False) -> None:
        """Tell new holders' clients all that the log has, except perhaps the last call."""
        for blocks, function, args in self.log.records(self.log.n_records - but_last):
            told = [[(one.of(blocks), function, *map(one.packed, args))] for one in holders]
            pairs = zip(holders, told, strict=True)
            self._done([one.actor.do("call", those) for one, those in pairs if those[0][0]])

    @staticmethod
    def _done(calls):
        for done, result in [call.result() for call in calls]:
            if not done:
                raise result


def _placing_of(whole, holder):
    """Return the arguments by which a holder makes its clients."""
    own = {n: codes for n, codes in whole.codes.items() if n in holder.numbers}
    placing = whole._replace(codes=own)
    holder.codes = placing.all_codes()
    return (placing,)


def _partitions(numbers):
    return f"partitions {numbers[0]} to {numbers[-1]} of X"


def _taken(holder):
    """Return what a holder's clients must still be told."""
    told, holder.told = holder.told, []
    return told


def _begun(holder, name, args):
    """Begin a call of a method; return the call, or an error if the holder is lost."""
    try:
        return holder.actor.do(name, *args)
    except LOST as error:
        return error


@dataclass(eq=False, kw_only=True)
class ClusterRun(Run):
    """A fit in progress whose clients are on the workers of a cluster."""

    data: Whole
    cluster: Cluster
    identity: str

    @classmethod
    def on(cls, cluster: Cluster, estimator: FederatedRecommender, data: Whole) -> Self:
        """Before the set-up, or as of the last checkpoint."""
        seed, key, method = making.fresh(estimator)
        federation = method._setting()
        server = making.server_of(estimator, method, data, seed, key)
        ids, parameters = data.client_ids, making.parameters_of_a_run(estimator)
        making.check_aggregator(federation.aggregator, method, data)
        plan = federation.central_dp is not None and federation.central_dp.epsilon is not None
        n_rounds = method.n_rounds if plan else None
        # The saved server has the seed.
        named = {n: v for n, v in parameters.items() if not isinstance(v, np.random.RandomState)}
        settings = type(method).__name__, n_rounds, sorted(named.items())
        identity = repr((__version__, settings, data.fingerprint()))
        saved = cluster.log.saved(identity)
        blocks = np.empty(data.n_clients, dtype=np.int64)
        run = cls(
            server=saved or server,
            clients=[],
            client_ids=ids,
            attack=None,
            fingerprint=None,
            parameters=parameters,
            block_of_client=blocks,
            data=data,
            cluster=cluster,
            identity=identity,
        )
        if saved is not None:
            run.make_clients()
            cluster.repeat(cluster.holders)
        return run

    def each(
        self, clients: list[Elsewhere], function: Callable[..., object], *args: object
    ) -> Iterator[Any]:
        """Yield the sum of the clients' results."""
        total = self.cluster.call([one.number for one in clients], function, *args)
        if function is _timed:
            updates = [] if total.updates is None else [total.updates]
            yield updates, total.loss, total.seconds
        elif total.updates is not None:
            yield total.updates

    def tell(self, clients: list[Elsewhere], function: Callable[..., None], *args: object) -> None:
        """Let clients be told something, together with the next call."""
        self.cluster.tell([one.number for one in clients], function, *args)

    def ask_round(self, participation: Participation, message: Message | None) -> Seen:
        """Let clients update, close the round, and make a checkpoint if one is due."""
        seen = super().ask_round(participation, message)
        self.cluster.log.save(self.identity, self.server)
        return seen

    def registrations(self) -> list[Registration]:
        """Make all clients on the workers; return their Registrations."""
        return list(self.make_clients().values())

    def make_clients(self) -> dict[BlockNumber, Registration]:
        """Make all clients on the workers; return their Registrations by block."""
        server, data = self.server, self.data
        keys, codes = making.keys_of(server), {}
        for number, summary in data.summaries.items():
            own = np.searchsorted(data.client_ids, summary.client_ids)
            codes[number] = own, data.client_indptr[own]
        n_rows = sum(one.n_rows for one in data.summaries.values())
        size = _blocks.block_size(n_rows, data.n_items)
        placing = Placing(server.method, keys, data.n_clients, data.item_ids, size, codes)
        registrations = self.cluster.place(placing)
        for number, one in registrations.items():
            clients = np.searchsorted(data.client_ids, one.client_ids)
            self.block_of_client[clients] = len(self.clients)
            self.clients.append(Elsewhere(number, SimpleNamespace(clients=clients)))
        return registrations

    def _attributes(self, message, *, kept):
        """Return fitted attributes; those of users stay on the workers."""
        server = self.server

        def users(received, ours):
            if not kept:
                return {}
            args = self.data, server.method, ours, received, server.round
            return {"_parts": self.cluster.end(*args)}

        return fitted_attributes(server, message, users)
