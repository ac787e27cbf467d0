"""Go on from a fit with other rows: new ones, or without those of users to forget."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from sklearn.utils import check_random_state

from fedrecsk._utils.sklearn_compat import clone
from fedrecsk.protocol.keys import Key
from fedrecsk.simulation.run import Run, complete

if TYPE_CHECKING:
    from fedrecsk.base import FitReport
    from fedrecsk.data.interactions import Interactions
    from fedrecsk.federated.base import FederatedRecommender
    from fedrecsk.protocol.blocks import Attributes


def update(
    estimator: FederatedRecommender,
    last: Run,
    data: Interactions,
    report: FitReport,
    n_rounds: int,
    changed: np.ndarray,
) -> Attributes:
    """Go on from the last fit with other rows of these clients (ids); return the attributes."""
    run, before = _following(last, estimator, data, n_rounds), last.fork()

    def begin():
        """Do the set-up, after clients of a method of sums have taken back their uploads."""
        ledger = None
        if run.server.algorithm.traits.sends_once:
            before.parallel = run.parallel
            ledger = _take_back(before, changed)
        run.set_up()
        _go_on(run, before, changed)
        if ledger is not None:
            run.server.ledger.take_over(before.server.ledger, ledger)

    # Of a copy, so that nothing is taken back if what follows fails.
    attributes = complete(estimator, run, data, report, begin)
    estimator._run = run
    return attributes


def _following(last, estimator, data, n_rounds):
    """Return a run on other data that will go on from the last one."""
    seed = estimator.random_state
    if seed is not None:
        seed = next_seed(last.server.key)
    method = clone(estimator)._set(
        n_rounds=n_rounds, random_state=seed, early_stopping=False, warm_start=True
    )
    run = Run.new(method, data)
    run.parameters = last.parameters
    return run


def next_seed(key: Key) -> int:
    """Return the seed of a fit that goes on from one with a key, for other draws than its own."""
    return int(key.at(-1).hashed("update") >> np.uint64(33))


def next_key(key: Key) -> Key:
    """Return the key of a fit that goes on from one with a key."""
    return Key(int(check_random_state(next_seed(key)).randint(2**31 - 1)))


def _take_back(run, clients):
    """Let these clients (ids) take back uploads; return the ledger before, or None."""
    server = run.server
    server.only = chosen = np.isin(run.data.client_ids, clients)
    for one in run.clients:
        one.take_back(server.round)
    if not chosen.any():
        return None
    ledger = copy.deepcopy(server.ledger)
    run.round()
    return ledger


def _go_on(run, before, changed):
    """Continue the model of the run before, in which the rows of `changed` (ids) were others."""
    server, algorithm = run.server, run.server.algorithm
    places = run.data.item_ids.codes(before.server.item_ids)
    server.state = algorithm.resume(server.state, before.server.state, places)
    if algorithm.traits.sends_once:
        server.only = np.isin(run.data.client_ids, changed)
        _remember_senders(run, before, server.only)
    else:
        _remember(run, before)


def _remember_senders(run, before, changed):
    """Tell clients, except those of a mask, whether the sum has an upload of theirs."""
    sent = [one.client_ids[one.has_sent()] for one in before.clients]
    counted = np.isin(run.data.client_ids, np.concatenate(sent)) & ~changed
    for one in run.clients:
        one.remembered = counted[one.block.clients]


def _remember(run, before):
    """Give clients what they, their users and their rows had learned in the run before."""
    memories = {}
    for one in before.clients:
        for name, (mask, arrays) in one.learned().items():
            codes = _codes(run, before, one, name)[mask]
            arrays = [values[codes >= 0] for values in arrays]
            memories.setdefault(name, []).append((codes[codes >= 0], *arrays))
    for name, parts in memories.items():
        codes, *arrays = map(np.concatenate, zip(*parts, strict=True))
        codes = pd.Index(codes)
        for one in run.clients:
            places = codes.get_indexer(_codes(run, run, one, name))
            found = places >= 0, [values[places[places >= 0]] for values in arrays]
            one.remembered = (one.remembered or {}) | {name: found}


def _codes(run, other, clients, name):
    """Return numbers in a run of the "users", "clients" or "rows" of another's clients, or -1."""
    block, data, known = clients.block, run.data, other.data
    codes = data.user_ids.codes(known.user_ids.values[block.users])
    if name == "users":
        return codes
    if clients.plan.by_user:
        block = block.by_user()
    else:
        codes = pd.Index(run.data.client_ids).get_indexer(clients.client_ids)
    if name == "clients":
        return codes
    codes = np.repeat(codes, block.row_counts)
    items = data.item_ids.codes(known.item_ids.values[block.row_items])
    return np.where((codes >= 0) & (items >= 0), codes * data.n_items + items, -1)
