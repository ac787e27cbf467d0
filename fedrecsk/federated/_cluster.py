"""A fit whose clients live on a Dask cluster: the server is here, and blocks are on workers.

Each worker holds its clients in one actor. A round sends it one message, and it returns one sum.
Sums are added up pairwise, partition by partition, so that neither the number of workers nor the
loss of one changes a bit of them. A worker that is lost is replaced by another that reads its
partitions and repeats, from a log, all that its clients have been told.
"""

from __future__ import annotations

import copy
import hashlib
import pickle
import tempfile
import time
import uuid
import warnings
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import joblib
import numpy as np
from sklearn.base import clone

from fedrecsk._utils.extras import require
from fedrecsk._utils.sklearn_compat import get_threadpool_controller
from fedrecsk._utils.threads import Threads
from fedrecsk._utils.user_warnings import warn
from fedrecsk.base._recommender import FitReport, attributes_of
from fedrecsk.cluster._frames import Parts, apart, client_of, together
from fedrecsk.data import _checks
from fedrecsk.data.interactions import Ids, Interactions
from fedrecsk.federated import _round_loop
from fedrecsk.federated._round_loop import Loop, Run, _timed
from fedrecsk.protocol import blocks as _blocks
from fedrecsk.protocol.clients import Clients, Group
from fedrecsk.protocol.early_stopping import hold_out
from fedrecsk.protocol.keys import Keys
from fedrecsk.protocol.participation import Participation
from fedrecsk.protocol.server import Server
from fedrecsk.updates import add_sums, joined

# How often the clients of a partition may be lost in one fit.
MOST_LOSSES = 3
# Seconds to wait for a worker in the place of one that was lost.
PATIENCE = 15.0
# Errors of Dask by which a worker is known to be lost; those of a Holder come as results.
LOST = (OSError, RuntimeError, KeyError, CancelledError)


def fit(estimator, X, y, clients, sample_weight):
    """Fit to a Dask DataFrame; return the estimator."""
    _checks.check_parameters(estimator)
    estimator._check_before_fit()
    estimator._require_y(y)
    check_setting(estimator)
    client, delayed = client_of("fit"), require("dask", "fit of a Dask DataFrame").delayed
    plain = delayed(_plain(estimator), pure=False)
    frame = together(X, y=y, clients=clients, sample_weight=sample_weight)
    rows = [delayed(read)(n, one, plain) for n, one in enumerate(frame.to_delayed())]
    with Cluster(client, rows, estimator.n_jobs) as cluster:
        summaries = cluster.read()
        whole = Whole.of(summaries, estimator._catalogue())
        vars(estimator).update(next(iter(summaries.values())).columns)
        report = FitReport(estimator, X, y, sample_weight, whole.data)

        def rounds(data, report):
            run = ClusterRun.on(cluster, estimator, whole)
            run.settle(estimator)
            return _round_loop._completed(estimator, run, data, report)

        return estimator._learn(whole.data, report, rounds)


def check_setting(estimator):
    """Raise if the method or its federation needs more than sums from the workers."""
    name, federation = type(estimator).__name__, estimator._setting()
    needs = {
        f"{name} shows the server single uploads": estimator._treats_clients_apart,
        f"the devices of {name} send to each other": estimator._n_exchanges > 0,
        "aggregator looks at single uploads": federation.aggregator is not None,
        "secure_aggregation audits single uploads": federation.secure_aggregation is not None,
        "adversary replaces single uploads": federation.adversary is not None,
        "warm_start keeps all clients": estimator.warm_start,
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


def _plain(estimator):
    """Return a copy with its parameters only, of which a worker reads rows."""
    return clone(estimator).set_callbacks()


# ------------------------------------------------------------------------- on the workers


class Rows(NamedTuple):
    """The encoded rows of a partition; `columns` are the fitted attributes about X."""

    data: Interactions
    columns: dict
    said: list


def read(number, frame, estimator):
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
    values: tuple
    heaviest: float
    digest: bytes
    columns: dict
    said: list


class Placing(NamedTuple):
    """What a worker must know to make its clients; `codes` by partition: theirs, first users'."""

    method: Any
    keys: Keys
    n_clients: int
    item_ids: Ids
    codes: dict

    def all_codes(self):
        """Return the codes of all clients, ascending."""
        return np.sort(np.concatenate([np.empty(0, int), *(own for own, _ in self.codes.values())]))


class Masks(NamedTuple):
    """A Participation of a worker's clients, as bits."""

    bits: np.ndarray
    n_clients: int

    @classmethod
    def of(cls, participation, codes):
        """Pack the masks of these clients; None if all take part."""
        if all(mask.all() for mask in participation[:3]):
            return None
        return cls(np.packbits(np.stack(participation.of(codes)), axis=1), len(codes))


class OwnParticipation(NamedTuple):
    """A Participation of some clients, whose codes are ascending."""

    masks: Participation
    codes: np.ndarray

    def of(self, clients):
        """Return the Participation of some of them."""
        return self.masks.of(np.searchsorted(self.codes, clients))


class Holder:
    """All clients of some partitions, on a worker: a Dask actor."""

    def __init__(self, numbers, n_partitions, n_jobs, *parts):
        self.n_partitions, self.n_jobs = n_partitions, n_jobs
        self.rows = {n: part for n, part in zip(numbers, parts, strict=True) if part is not None}
        self.numbers = numbers
        self.clients = {}
        self.codes = np.empty(0, dtype=np.int64)
        self.accounts = {}

    def do(self, name, *args):
        """Call a method; return its result or its error, so that no other error is the method's."""
        try:
            with get_threadpool_controller().limit(limits=1, user_api="blas"):
                return True, getattr(self, name)(*args)
        except Exception as error:  # to be raised on the driver
            return False, error

    def summaries(self):
        """Return the Summary of each partition that has rows."""
        return {n: _summary(*rows) for n, rows in self.rows.items()}

    def place(self, placing):
        """Make the Clients; return their Registrations by block, and the errors of checks."""
        method, groups, registrations, errors = placing.method, {}, {}, []
        federation = method._setting()
        histories = _round_loop._histories(
            method, placing.n_clients, federation, placing.keys.shared
        )
        for number, (codes, first_users) in placing.codes.items():
            data = _in_catalogue(self.rows[number].data, placing.item_ids)
            users = _codes_of_users(data, first_users)
            training, rest = data, None
            if method.early_stopping:
                fraction = method.validation_fraction
                training, rest = hold_out(data, fraction, placing.keys.shared, users)
            own = histories[codes]
            groups_of_clients = _round_loop._groups(method, federation, own, None)
            blocks = _blocks.cut(training, groups_of_clients, share=method.client_fraction)
            errors.append(_error_of(method._check_setting, federation, training, blocks))
            for b, block in enumerate(blocks):
                group = groups.setdefault(int(own[block.clients[0]]), Group(method))
                one = self.clients[number, b] = Clients(
                    method,
                    block,
                    federation,
                    placing.keys,
                    group=group,
                    held_out=None if rest is None else _blocks.of_clients(rest, block.clients),
                    client_ids=data.client_ids[block.clients],
                )
                one.place(codes[block.clients], first_users[block.clients])
                registrations[number, b] = one.register()
            self.rows[number] = self.rows[number]._replace(data=data)
        self.codes = placing.all_codes()
        return registrations, errors

    def call(self, told, blocks=(), function=None, *args):
        """Tell the clients what they have not been told, and return sums of a function's results.

        Parameters
        ----------
        told : list of (blocks, function, *args)
        blocks : list of (int, int)
            Partition and number of each block.
        function : callable or None
        *args

        Returns
        -------
        totals : dict of {(int, int): Sum}
            By level and place in the tree of the partitions.
        """
        for those, tell, *rest in told:
            rest = tuple(map(self._received, rest))
            for block in those:
                tell(self.clients[block], *rest)
        if function is None:
            return {}
        args, tasks = tuple(map(self._received, args)), {}
        for block in blocks:
            task = joblib.delayed(function)(self.clients[block], *args)
            tasks.setdefault(block[0], []).append(task)
        with Threads(self.n_jobs) as parallel:
            totals = {(0, n): _added_up(parallel(tasks.get(n, ()))) for n in self.numbers}
        totals = add_neighbours(totals, self.n_partitions)
        return {node: self._with_news(node, total) for node, total in totals.items()}

    def _received(self, arg):
        """Unpack the masks among arguments."""
        if not isinstance(arg, Masks):
            return arg
        masks = np.unpackbits(arg.bits, axis=1, count=arg.n_clients).astype(bool)
        return OwnParticipation(Participation(*masks), self.codes)

    def _with_news(self, node, total):
        """Leave out what the driver has of the clients since an earlier sum."""
        updates = total.updates
        if updates is None:
            return total
        updates = replace(updates, **{n: getattr(updates, n)[..., updates.sends] for n in ACCOUNTS})
        account = {name: getattr(updates, name) for name in ACCOUNTS}
        before, self.accounts[node] = self.accounts.get(node), account
        if before is not None and all(np.array_equal(before[n], account[n]) for n in ACCOUNTS):
            updates = replace(updates, **dict.fromkeys(ACCOUNTS))
        return total._replace(updates=updates)

    def end(self, told, estimator, ours, message, round, token):
        """Leave a model of each partition's users for Dask to take; return what was said."""
        self.call(told)
        with warnings.catch_warnings(record=True) as said, Threads(self.n_jobs) as parallel:
            warnings.simplefilter("always")
            for number, (data, columns, _) in self.rows.items():
                clients = [one for block, one in self.clients.items() if block[0] == number]
                fitted = joblib.delayed(Clients.fitted)
                parts = parallel(fitted(one, message, round) for one in clients)
                codes = np.sort(np.concatenate([one.block.users for one in clients]))
                users = [np.searchsorted(codes, one.block.users) for one in clients]
                theirs = _blocks.by_user(users, list(parts), data.n_users)
                _checks.check_fitted(estimator, data, theirs | ours)
                model = clone(estimator).set_callbacks()
                vars(model).update(attributes_of(data) | ours | theirs | columns)
                MODELS[token, number] = model
        return _texts(said)


# Models of partitions that Dask has not taken yet, on a worker.
MODELS: dict[tuple, Any] = {}


def take_model(token, number):
    """Take the model of a partition, where it was left."""
    try:
        return MODELS.pop((token, number))
    except KeyError:
        raise RuntimeError(
            f"The worker that held the users of partition {number} of the fit is gone, and their "
            "vectors with it; fit again."
        ) from None


def _summary(data, columns, said):
    return Summary(
        data.client_ids,
        np.diff(data.client_indptr),
        data.user_ids.values,
        data.item_ids.values,
        (float(data.values.min()), float(data.values.max())),
        float(data.weights.max()),
        data.fingerprint(),
        columns,
        said,
    )


def _in_catalogue(data, item_ids):
    """Return the data with codes of the whole catalogue, in which the items are ascending."""
    codes = np.searchsorted(item_ids.values, data.item_ids.values).astype(np.int32)
    return replace(data, item_ids=item_ids, items=codes[data.items])


def _codes_of_users(data, first_users):
    """Return the codes of all users, given that of each client's first one."""
    n_users = np.diff(data.client_indptr)
    offsets = np.arange(data.n_users) - np.repeat(data.client_indptr[:-1], n_users)
    return np.repeat(first_users, n_users) + offsets


def _error_of(check, *args):
    try:
        check(*args)
    except ValueError as error:
        return error


# --------------------------------------------------------------------------------- sums


class Sum(NamedTuple):
    """What some clients answer: their updates, added up, losses and seconds."""

    updates: Any
    loss: Any
    seconds: float


NOTHING = Sum(None, np.zeros(2), 0.0)
# Attributes of ClientUpdates with a number for each client.
ACCOUNTS = ("clients", "sends", "arrives", "accepted", "sizes")


def _added_up(answers):
    """Add up the answers of a partition's blocks, one after the other."""
    sums, updates, loss, seconds = {}, [], np.zeros(2), 0.0
    for answer in answers:
        if isinstance(answer, tuple):
            answer, its_loss, its_seconds = answer
            loss, seconds = loss + its_loss, seconds + its_seconds
        for one in answer if isinstance(answer, list) else [answer]:
            if one is not None:
                add_sums(sums, one.fields)
                updates.append(replace(one, fields={}))
    return Sum(replace(joined(updates), fields=sums) if updates else None, loss, seconds)


def add_neighbours(totals, n_partitions):
    """Add up the sums of a binary tree wherever both halves are known; return what is left."""
    level, width = 0, n_partitions
    while width > 1:
        for place in range(0, width, 2):
            left, right = (level, place), (level, place + 1)
            if left in totals and (right in totals or place + 1 == width):
                both = _plus(totals.pop(left), totals.pop(right, NOTHING))
                totals[level + 1, place // 2] = both
        level, width = level + 1, -(-width // 2)
    return totals


def _plus(one, other):
    updates = [sum.updates for sum in (one, other) if sum.updates is not None]
    both = joined(updates) if updates else None
    return Sum(both, one.loss + other.loss, one.seconds + other.seconds)


# ------------------------------------------------------------------------- on the driver


@dataclass(frozen=True)
class RowsElsewhere(Interactions):
    """Interactions of which only ids are here; `digest` is of all rows."""

    digest: bytes = b""

    def fingerprint(self):
        """Return a digest of all rows."""
        return self.digest


class Whole(NamedTuple):
    """What the driver knows of all rows.

    data : RowsElsewhere
        Its `values` are the lowest and the highest one, its `weights` the heaviest.
    summaries : dict of {int: Summary}
        Of the partitions that have rows.
    part_of_user : (n_users,), the partition that each user is in
    """

    data: RowsElsewhere
    summaries: dict
    part_of_user: np.ndarray

    @classmethod
    def of(cls, summaries, catalogue):
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
        digest = hashlib.blake2b(digest_size=16)
        for one in summaries.values():
            digest.update(one.digest)
        lowest, highest = zip(*(one.values for one in summaries.values()), strict=True)
        data = RowsElsewhere(
            user_ids=Ids(user_ids[order], "user ids"),
            item_ids=catalogue,
            client_ids=clients,
            client_indptr=np.concatenate([[0], np.cumsum(n_users[np.argsort(ids)])]),
            indptr=np.zeros(len(user_ids) + 1, dtype=np.int64),
            items=np.empty(0, dtype=np.int32),
            values=np.array([min(lowest), max(highest)]),
            weights=np.array([max(one.heaviest for one in summaries.values())]),
            digest=digest.digest(),
        )
        return cls(data, summaries, parts[order].astype(np.int32))


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

    number: tuple
    block: SimpleNamespace


class Held:
    """A Holder, as the driver handles it."""

    def __init__(self, numbers, future):
        self.numbers, self.future = numbers, future
        self.actor: Any = None
        self.worker: Any = None
        # What its clients are told with the next call.
        self.told = []
        self.codes = np.empty(0, dtype=np.int64)

    def __str__(self):
        return f"partitions {self.numbers[0]} to {self.numbers[-1]} of X"

    def of(self, blocks):
        """Return those of the blocks that it has."""
        return [block for block in blocks if block[0] in self.numbers]

    def packed(self, arg):
        """Return an argument as it is sent: of masks only those of its clients."""
        return Masks.of(arg, self.codes) if isinstance(arg, Participation) else arg


class Cluster:
    """The holders of all partitions, and what must be known to replace them.

    Parameters
    ----------
    client : distributed.Client
    rows : list of Delayed
        The encoded rows of each partition.
    n_jobs : int or None
        Threads on each worker.
    """

    def __init__(self, client, rows, n_jobs):
        self.client, self.rows, self.n_jobs = client, rows, n_jobs
        self.holders, self.placing, self.accounts = [], None, {}
        self.log, self.n_logged = tempfile.TemporaryFile(), 0  # noqa: SIM115
        self.losses = self.n_workers = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.log.close()
        self.holders.clear()

    @property
    def n_partitions(self):
        return len(self.rows)

    def _workers(self):
        return sorted(self.client.scheduler_info(n_workers=-1)["workers"])

    # ------------------------------------------------------------------ before the rounds

    def read(self):
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
        holders = []
        with self.client.as_current():
            parts = iter(self.client.compute([self.rows[n] for share, _ in shares for n in share]))
            for share, worker in shares:
                args = share, self.n_partitions, self.n_jobs, *(next(parts) for _ in share)
                options = {"workers": [worker], "allow_other_workers": True, "pure": False}
                future = self.client.submit(Holder, *args, actor=True, **options)
                holders.append(Held(share, future))
            for one in holders:
                one.actor = one.future.result()
                (one.worker,) = self.client.who_has([one.future])[one.future.key]
        self.holders = sorted(self.holders + holders, key=lambda one: one.numbers)
        return holders

    def place(self, placing):
        """Let the workers make their clients; return their Registrations by block."""
        self.placing, registrations, errors = placing, {}, []
        for _, (own, found) in self._asked(self.holders, "place", self._placing_of):
            registrations |= own
            errors += found
        # Each has a part of the rows: what one of them accepts is no error.
        if all(error is not None for error in errors):
            raise errors[0]
        return dict(sorted(registrations.items()))

    def _placing_of(self, holder):
        own = {n: codes for n, codes in self.placing.codes.items() if n in holder.numbers}
        placing = self.placing._replace(codes=own)
        holder.codes = placing.all_codes()
        return (placing,)

    # ------------------------------------------------------------------------- the rounds

    def tell(self, blocks, function, *args):
        """Let some clients be told something, together with the next call."""
        args = self._noted(blocks, function, args)
        for one in self._holding(blocks):
            one.told.append((one.of(blocks), function, *map(one.packed, args)))

    def call(self, blocks, function, *args):
        """Call a function of Clients for some clients; return a Sum."""
        args = self._noted(blocks, function, args)

        def message(holder):
            return _taken(holder), holder.of(blocks), function, *map(holder.packed, args)

        asked = self._holding(blocks)
        silent = set(range(self.n_partitions)).difference(*(one.numbers for one in asked))
        totals = dict.fromkeys(((0, n) for n in silent), NOTHING)
        for _, answer in self._asked(asked, "call", message):
            totals |= {node: self._with_accounts(node, sum) for node, sum in answer.items()}
        (total,) = add_neighbours(totals, self.n_partitions).values()
        return total

    def _holding(self, blocks):
        return [one for one in self.holders if one.of(blocks)]

    def _noted(self, blocks, function, args):
        """Write a call into the log; return its arguments, None for full participation."""
        args = tuple(
            None if isinstance(arg, Participation) and all(m.all() for m in arg[:3]) else arg
            for arg in args
        )
        pickle.dump((blocks, function, args), self.log, pickle.HIGHEST_PROTOCOL)
        self.n_logged += 1
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

    def end(self, whole, estimator, ours, message, round):
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
        return Parts(self.client, models, whole.data.user_ids, whole.part_of_user)

    # ---------------------------------------------------------------------- lost workers

    def _asked(self, holders, name, args_of=lambda holder: ()):
        """Call a method of holders at the same time; yield each, or its substitute, and a result.

        If a holder is lost, its substitute alone repeats the call.
        """
        for holder, call in [(one, _begun(one, name, args_of(one))) for one in holders]:
            error = call if isinstance(call, Exception) else None
            while True:
                if error is not None:
                    holder = self._substitute(holder, error)
                try:
                    if error is not None:
                        self._repeat(holder, but_last=name == "call")
                        call, error = holder.actor.do(name, *args_of(holder)), None
                    done, result = call.result()
                    break
                except LOST as reason:
                    error = reason
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
                raise RuntimeError("All workers of the Dask cluster were lost; start others.")
            time.sleep(0.1)
        self.n_workers = len(workers)
        load = dict.fromkeys(sorted(workers), 0)
        for holder in self.holders:
            load[holder.worker] = load.get(holder.worker, 0) + len(holder.numbers)
        return min(workers, key=lambda one: (load[one], one))

    def _repeat(self, holder, *, but_last):
        """Tell a new holder's clients all that the log has, except perhaps the last call."""
        if self.placing is None:
            return
        self._done(holder.actor.do("place", *self._placing_of(holder)))
        self.log.seek(0)
        for _ in range(self.n_logged - but_last):
            blocks, function, args = pickle.load(self.log)
            if holder.of(blocks):
                told = [(holder.of(blocks), function, *map(holder.packed, args))]
                self._done(holder.actor.do("call", told))
        self.log.seek(0, 2)

    @staticmethod
    def _done(call):
        done, result = call.result()
        if not done:
            raise result
        return result


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


class ClusterLoop(Loop):
    """The protocol's steps, with clients on the workers."""

    def each(self, clients, function, *args):
        """Yield the sum of the clients' results."""
        total = self.run.cluster.call([one.number for one in clients], function, *args)
        if function is _timed:
            updates = [] if total.updates is None else [total.updates]
            yield updates, total.loss, total.seconds
        elif total.updates is not None:
            yield total.updates

    def tell(self, clients, function, *args):
        """Let clients be told something, together with the next call."""
        self.run.cluster.tell([one.number for one in clients], function, *args)

    def register(self):
        """Make all clients on the workers, and register them."""
        run, server, data = self.run, self.server, self.run.whole.data
        noise = server.federation.central_dp
        shares = noise is not None and noise.noise == "clients"
        keys, codes = Keys(server.key, server.secret if shares else server.key), {}
        for number, summary in run.whole.summaries.items():
            own = np.searchsorted(data.client_ids, summary.client_ids)
            codes[number] = own, data.client_indptr[own]
        placing = Placing(server.method, keys, data.n_clients, data.item_ids, codes)
        registrations = run.cluster.place(placing)
        server.register(list(registrations.values()))
        for number, one in registrations.items():
            clients = np.searchsorted(data.client_ids, one.client_ids)
            run.block_of_client[clients] = len(run.clients)
            run.clients.append(Elsewhere(number, SimpleNamespace(clients=clients)))

    def _attributes(self, message, *, kept):
        """Return fitted attributes; those of users stay on the workers."""
        run, server = self.run, self.server
        received = server.method._decode_broadcast(message, server.key.at(server.round))
        ours = copy.deepcopy(server.method._server_attributes(received))
        ours |= {"_final_message": copy.deepcopy(message), "_unreached": None}
        if not kept:
            return ours
        parts = run.cluster.end(run.whole, server.method, ours, received, server.round)
        return ours | {"_parts": parts}


@dataclass(eq=False)
class ClusterRun(Run):
    """A fit in progress on a cluster."""

    cluster: Any = None
    whole: Any = None

    @classmethod
    def on(cls, cluster, estimator, whole):
        """Before the set-up."""
        seed, key, method = _round_loop.fresh(estimator)
        data, federation = whole.data, method.federation
        secret = (
            key if federation.central_dp is None else _round_loop._secret(estimator, data, seed)
        )
        rating_range = float(data.values[0]), float(data.values[1])
        server = Server(method, federation, key, data.item_ids.values, rating_range, secret)
        ids, parameters = data.client_ids, _round_loop.parameters_of_a_run(estimator)
        blocks = np.empty(data.n_clients, dtype=np.int64)
        return cls(server, [], ids, None, None, parameters, blocks, None, cluster, whole)

    def loop(self, parallel):
        """Return the steps of the protocol on this run."""
        return ClusterLoop(self, parallel)
