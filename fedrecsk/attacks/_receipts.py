"""What a curious server receives: single uploads, sums over cohorts, or differences of sums."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from fedrecsk.attacks._guesses import Exchange
from fedrecsk.uploads import Update


class Receipts(ABC):
    """Exchanges of all rounds.

    Attributes
    ----------
    clients : ndarray of int
        Codes of the clients under attack.
    cohort : int or None
        Clients in a sum.
    """

    clients: np.ndarray
    cohort: int | None = None

    @abstractmethod
    def take(self, key, message, batches):
        """Take note of a round: its key, the message, and the uploads that have arrived."""

    def sums(self):
        """Pairs of the clients in a sum and the exchanges of all rounds."""
        return []

    def singles(self):
        """Pairs of a client and the exchanges of all rounds."""
        return []

    @staticmethod
    def means(members, exchanges):
        """The exchanges with means over the members in place of sums."""
        return [
            one._replace(
                upload={
                    name: Update(rows, change / len(members))
                    for name, (rows, change) in one.upload.items()
                }
            )
            for one in exchanges
        ]


class Singles(Receipts):
    """Single uploads of these clients."""

    def __init__(self, clients):
        self.clients = clients
        self._exchanges = {}

    def take(self, key, message, batches):
        for batch in batches:
            for place in np.flatnonzero(batch.accepted & np.isin(batch.clients, self.clients)):
                client = int(batch.clients[place])
                own = message.of(np.array([client]))
                exchange = Exchange(key, own, batch.all_fields(place))
                self._exchanges.setdefault(client, []).append(exchange)

    @property
    def any(self):
        """Whether anything was received."""
        return bool(self._exchanges)

    def singles(self):
        return self._exchanges.items()


class Groups(Receipts):
    """Sums over cohorts of at least `size` clients, drawn at random, always the same ones."""

    def __init__(self, n_clients, size, n_attacked):
        order = np.random.default_rng(0).permutation(n_clients)
        groups = np.array_split(order, n_clients // size)
        ends = np.cumsum([len(one) for one in groups])
        self.groups = [np.sort(one) for one in groups[: np.searchsorted(ends, n_attacked) + 1]]
        if len(groups) == 1:
            # Any client of the only sum may stand for the others.
            self.groups = [np.arange(n_clients)]
        self.clients = np.concatenate(self.groups)
        self.cohort = max(len(one) for one in self.groups)
        self._group_of = np.full(n_clients, -1)
        for number, group in enumerate(self.groups):
            self._group_of[group] = number
        self._exchanges = [[] for _ in self.groups]

    def take(self, key, message, batches):
        for number, exchanges in enumerate(self._exchanges):
            upload = self._sum(batches, self._group_of == number)
            exchanges.append(Exchange(key, message, upload))

    @staticmethod
    def _sum(batches, wanted):
        """The sum of these clients' uploads (a mask)."""
        totals = {}
        for batch in batches:
            weights = (batch.accepted & wanted[batch.clients]).astype(np.float64)
            if not weights.any():
                continue
            for name, changes in (batch.changes | batch.counts).items():
                if name not in totals:
                    totals[name] = np.zeros(changes.shape)
                changes.add_to(totals[name], weights)
        return {name: Update(slice(None), total) for name, total in totals.items()}

    @property
    def any(self):
        """Whether anything was received."""
        return any(any(one.upload for one in exchanges) for exchanges in self._exchanges)

    def sums(self):
        for group, exchanges in zip(self.groups, self._exchanges, strict=True):
            if any(one.upload for one in exchanges):
                yield group.tolist(), [one for one in exchanges if one.upload]


class Differences(Groups):
    """For each client, its cohort's sum less a sum without it.

    Parameters
    ----------
    n_clients, size, n_attacked : int
    last : int or None
        Round of the sum without the client, if it is the round after that of the first sum. None:
        both sums are of the same round, in every round.
    """

    def __init__(self, n_clients, size, n_attacked, last):
        super().__init__(n_clients, size, n_attacked)
        self.clients = self.clients[:n_attacked]
        self.last, self._singles, self._before = last, {}, None

    def take(self, key, message, batches):
        totals = [self._sum(batches, self._group_of == g) for g in range(len(self.groups))]
        if not any(totals):
            return
        if self.last is None:
            self._subtract(key, message, totals, batches, totals)
        elif key.round == self.last and self._before is not None:
            self._subtract(*self._before, batches, totals)
        self._before = key, message, totals

    def _subtract(self, key, message, firsts, batches, seconds):
        """Note the first sums less those of these uploads without each client."""
        for batch in batches:
            for place in np.flatnonzero(batch.accepted & np.isin(batch.clients, self.clients)):
                client = int(batch.clients[place])
                group, fields = self._group_of[client], batch.changes | batch.counts
                upload = {}
                for name, changes in fields.items():
                    without = seconds[group][name].change - changes.whole(place)
                    upload[name] = Update(slice(None), firsts[group][name].change - without)
                own = message.of(np.array([client]))
                exchange = Exchange(key, own, _rounded(upload, firsts[group]))
                self._singles.setdefault(client, []).append(exchange)

    @property
    def any(self):
        return bool(self._singles)

    def sums(self):
        return []

    def singles(self):
        return self._singles.items()


def _rounded(upload, sums):
    """The same without what rounding has left of the sums."""
    return {
        name: Update(
            rows, np.where(np.abs(change) > 1e-12 * np.abs(sums[name].change).max(), change, 0.0)
        )
        for name, (rows, change) in upload.items()
    }
