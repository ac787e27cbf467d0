"""All single updates of a round, which aggregators and audits look at more than once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrecsk.updates._client_updates import ClientUpdates, add_sums
from fedrecsk.updates._sparse_rows import SparseRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedrecsk.updates._field_spec import FieldSpec

Stage = Callable[[ClientUpdates], ClientUpdates]


class HeldUpdates:
    """Single updates of a block that are needed more than once in a round.

    Whole matrices of many clients do not fit into memory, so that tiles are computed again each
    time they are needed. Their draws are the same each time. `stages` are what attacks, noise and
    compression make of the updates, and `accepted` a mask of the clients accepted after them.
    """

    def __init__(
        self, updates: ClientUpdates, stages: Sequence[Stage], accepted: NDArray[np.bool_]
    ) -> None:
        self._everyone = updates
        self._updates: ClientUpdates = updates.take(accepted)
        self._stages = stages
        self._kept: ClientUpdates | None = None
        self.clients: NDArray[np.int64] = self._updates.clients
        self.specs: dict[str, FieldSpec] = updates.specs

    def tiles(self) -> Iterator[ClientUpdates]:
        """Compute the accepted clients' updates, tile by tile."""
        if self._kept is not None:
            yield self._kept
            return
        for tile in self._updates.tiles() if self._stages else [self._updates]:
            done = through(tile, self._stages)
            if len(tile.clients) == len(self.clients):
                self._kept = done
            yield done

    def each(self, function: Callable[[ClientUpdates], Any]) -> Iterator[Any]:
        """Yield a function of each tile; none if no client is accepted."""
        for tile in self.tiles() if len(self.clients) else ():
            yield function(tile)

    def added(self, function: Callable[[ClientUpdates], dict[str, Any]]) -> dict[str, Any]:
        """Add up a function of the tiles, a dict of arrays."""
        sums = {}
        for more in self.each(function):
            add_sums(sums, more)
        return sums

    @property
    def _computed(self):
        """Return updates, and the stages that they have still to pass."""
        return (self._updates, self._stages) if self._kept is None else (self._kept, [])

    def before(self, n_last: int) -> HeldUpdates:
        """Return the accepted clients' updates before the last stages."""
        stages = self._stages[: len(self._stages) - n_last]
        return HeldUpdates(self._updates, stages, np.ones(len(self.clients), dtype=bool))

    def then(self, stage: Stage) -> HeldUpdates:
        """Return the accepted clients' updates after another stage."""
        updates, stages = self._computed
        return HeldUpdates(updates, [*stages, stage], np.ones(len(self.clients), dtype=bool))

    def sent(self, client: int) -> ClientUpdates:
        """Compute what one client sends, by its place among all, even if it is not accepted."""
        one = self._everyone.take(np.arange(len(self._everyone.clients)) == client)
        return through(one, self._stages)

    def single(self, client: int) -> ClientUpdates:
        """Compute the update of one accepted client, by its place among them."""
        updates, stages = self._computed
        return through(updates.take(np.arange(len(self.clients)) == client), stages)


def through(updates: ClientUpdates, stages: Sequence[Stage]) -> ClientUpdates:
    """Pass updates through all stages."""
    for stage in stages:
        updates = stage(updates)
    return updates


class RoundUpdates:
    """The accepted single updates of a round, as aggregators and audits see them.

    The clients have places 0, 1, ... in the order of their codes.

    Parameters
    ----------
    held : list of HeldUpdates
    """

    def __init__(self, held: Sequence[HeldUpdates]) -> None:
        self.held = held
        codes = np.concatenate([one.clients for one in held])
        self.codes: NDArray[np.int64] = np.sort(codes)
        places = np.empty(len(codes), dtype=np.int64)
        places[np.argsort(codes, kind="stable")] = np.arange(len(codes))
        self._places = np.split(places, np.cumsum([len(one.clients) for one in held])[:-1])

    @property
    def n_clients(self) -> int:
        """Number of accepted clients."""
        return sum(len(places) for places in self._places)

    @property
    def all_forms(self) -> dict[str, FieldSpec]:
        """FieldSpec of each field."""
        return self.held[0].specs

    @property
    def specs(self) -> dict[str, FieldSpec]:
        """FieldSpec of each field of what was learned."""
        return {name: spec for name, spec in self.all_forms.items() if spec.learned}

    def each(self, function: Callable[[ClientUpdates], Any]) -> Iterator[Any]:
        """Yield a function of the updates of some clients, until all are seen."""
        for one in self.held:
            yield from one.each(function)

    def added(self, function: Callable[[ClientUpdates], dict[str, Any]]) -> dict[str, Any]:
        """Add up a function of updates, a dict of arrays, over all clients."""
        sums = {}
        for one in self.held:
            add_sums(sums, one.added(function))
        return sums

    def per_client(
        self, name: str, number: Callable[[SparseRows], np.ndarray]
    ) -> NDArray[np.float64]:
        """Compute a number of one field for each client, in the order of places."""
        numbers = np.zeros(self.n_clients)
        for codes, own in self.each(lambda tile: (tile.clients, number(tile.fields[name]))):
            numbers[np.searchsorted(self.codes, codes)] = own
        return numbers

    def norms(self, name: str) -> NDArray[np.float64]:
        """Euclidean norm of one field of each client, in the order of places."""
        return self.per_client(name, SparseRows.norms)

    def sum(self, name: str, weights: np.ndarray | None = None) -> np.ndarray:
        """Add up one field's changes, times the weights of the places if there are any."""
        codes = self.codes

        def total(tile):
            own = None if weights is None else weights[np.searchsorted(codes, tile.clients)]
            return {name: tile.fields[name].sum(own)}

        sums = self.added(total)
        return sums[name] if sums else np.zeros(self.specs[name].shape)

    def rest(self) -> dict[str, np.ndarray]:
        """Add up what was not learned, and what clients without any change send."""
        return self.added(_rest)

    def then(self, stage: Stage) -> RoundUpdates:
        """Return the updates after another stage."""
        return RoundUpdates([one.then(stage) for one in self.held])

    @cached_property
    def _where(self):
        """Return the number of the HeldUpdates, and the place in it, of each client."""
        where = np.empty((self.n_clients, 2), dtype=np.int64)
        for number, places in enumerate(self._places):
            where[places, 0], where[places, 1] = number, np.arange(len(places))
        return where

    def one(self, place: int) -> ClientUpdates:
        """Return the update of one client alone."""
        number, client = self._where[place].tolist()
        return self.held[number].single(client)

    def single(self) -> Iterator[tuple[int, ClientUpdates]]:
        """Yield each client's code and its update alone, in the order of places."""
        for place in range(self.n_clients):
            alone = self.one(place)
            yield int(alone.clients[0]), alone


def _rest(tile):
    """Add up what was not learned, and what clients without any change send."""
    sums = {}
    for name, rows in tile.fields.items():
        if not tile.specs[name].learned:
            add_sums(sums, {name: rows.sum()})
        if rows.center is not None:
            add_sums(sums, {name: len(tile.clients) * rows.center.astype(np.float64)})
    return sums
