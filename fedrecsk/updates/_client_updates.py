"""The updates of a block of clients, from the method to the server, and those of a round.

A method returns :class:`Updates`: for each field either the sum over the clients, or
:class:`SparseRows`, which hold each client's own update. Attacks, local noise and compressors are
functions from :class:`ClientUpdates` to ClientUpdates.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import add
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrecsk.updates._sparse_rows import FieldSpec, SparseRows, Update

# Memory for the whole matrices of the clients that are processed together.
TILE_BYTES = 64 * 2**20
# Less where they have a default, and are written out: what stays in caches is faster.
WRITTEN_BYTES = 16 * 2**20
# Arrays of ClientUpdates whose last axis is the client.
OF_CLIENTS = "sends", "clients", "arrives", "accepted", "sizes"


class Summed(NamedTuple):
    """A sum over a block's clients, which send different rows or columns of a field.

    Attributes
    ----------
    values : ndarray
        The sum over the clients whose uploads arrive and are finite.
    n_rows, n_columns : ndarray of shape (n_clients of the block,) or None
        Number of rows and columns that each client sends; None: all.
    """

    values: np.ndarray
    n_rows: np.ndarray | None = None
    n_columns: np.ndarray | None = None


class Counts(NamedTuple):
    """What the server must know about the clients of an exchange to add central noise.

    Attributes
    ----------
    n_shares : int
        Clients that add a share of the noise and whose upload is in the sum.
    n_without_share : int
        Clients among `n_shares` whose share is still missing from the sum.
    short_excess : float
        Clients whose upload was not longer than the clip, less half of all clients in the sum.
    """

    n_shares: int = 0
    n_without_share: int = 0
    short_excess: float = 0.0

    def plus(self, other: Counts) -> Counts:
        """Add the counts of other clients."""
        return Counts(*map(add, self, other))


@dataclass(frozen=True, eq=False)
class Updates:
    """What a method's clients have to send in one step of the protocol.

    Parameters
    ----------
    fields : dict of {str: ndarray, Summed or SparseRows}
        By the names that the method has declared. An array or a :class:`Summed` is the sum over
        the clients whose uploads arrive; :class:`SparseRows` hold each client's own update.
    is_finite : ndarray of shape (n_clients,), dtype bool, or None
        Clients whose numbers are all finite. Sums leave out the other clients, as a server that
        checks uploads would. None: all clients.
    sends : ndarray of shape (n_clients,), dtype bool, or None
        Clients that have something to send, among those that take part in the round. None: all of
        them.
    """

    fields: dict[str, Any]
    is_finite: NDArray[np.bool_] | None = None
    sends: NDArray[np.bool_] | None = None

    def with_fields(self, **fields: Any) -> Updates:
        """Put other fields beside these, or in the place of those of the same names."""
        return replace(self, fields=self.fields | fields)


@dataclass(eq=False)
class ClientUpdates:
    """The updates of a block's clients in one step, with what the protocol knows about them.

    Parameters
    ----------
    fields : dict of {str: ndarray or SparseRows}
        Sums over the accepted clients, or each client's own update.
    phase : {"setup", "round", "validation", "evaluation"}
    round : int
        The round, or the step of the set-up.
    clients : ndarray of shape (n_clients,)
        Codes of the clients.
    sends : ndarray of shape (n_clients,), dtype bool
        Clients that send something.
    arrives, accepted : ndarray of shape (n_clients,), dtype bool
        Clients whose upload arrives; and those whose upload arrives with finite numbers only.
    specs : dict of {str: FieldSpec}
        FieldSpec of each field.
    sizes : ndarray of shape (3, n_clients), dtype int64
        Bytes of each client's message; bytes of what was learned; how many numbers it has.
    lacks_noise : bool
        Whether the clients' local noise is still missing from the sums.
    counts : Counts
        Of the accepted clients, under central privacy.
    held : HeldUpdates or None
        The single updates, if an aggregator or an audit needs them in place of the sums.
    """

    fields: dict[str, Any]
    phase: str
    round: int
    clients: NDArray[np.int64]
    sends: NDArray[np.bool_]
    arrives: NDArray[np.bool_]
    accepted: NDArray[np.bool_]
    specs: Mapping[str, FieldSpec]
    sizes: NDArray[np.int64]
    lacks_noise: bool = False
    counts: Counts = field(default_factory=Counts)
    held: HeldUpdates | None = None

    @classmethod
    def of_all(
        cls,
        fields: dict[str, Any],
        step: tuple[str, int],
        clients: np.ndarray,
        specs: Mapping[str, FieldSpec],
        sizes: NDArray[np.int64],
        **others: Any,
    ) -> ClientUpdates:
        """Return updates that all of these clients (codes) send, and that are all accepted."""
        everyone = np.ones(len(clients), dtype=bool)
        return cls(fields, *step, clients, everyone, everyone, everyone, specs, sizes, **others)

    @property
    def is_sum(self) -> bool:
        """Whether the fields are sums over the accepted clients."""
        return not any(isinstance(one, SparseRows) for one in self.fields.values())

    @property
    def n_accepted(self) -> int:
        """Number of accepted clients."""
        return int(self.accepted.sum())

    @property
    def learned(self) -> dict[str, Any]:
        """Fields that hold what was learned: a dict like `fields`."""
        return {name: one for name, one in self.fields.items() if self.specs[name].learned}

    def with_fields(self, **fields: Any) -> ClientUpdates:
        """Put other fields in the place of those of the same names."""
        return replace(self, fields=self.fields | fields)

    def take(self, who: NDArray[np.bool_]) -> ClientUpdates:
        """Take the single updates of the clients of a mask."""
        if who.all():
            return self
        fields = {name: rows.take(who) for name, rows in self.fields.items()}
        of_clients = {name: getattr(self, name)[..., who] for name in OF_CLIENTS}
        return replace(self, fields=fields, **of_clients)

    def tiles(self) -> Iterator[ClientUpdates]:
        """Cut the single updates so that a tile's whole matrices fit into `TILE_BYTES`."""
        wholes = [spec for spec in self.specs.values() if spec.rows == "all"]
        nbytes = 8 * sum(spec.size for spec in wholes)
        n_clients = len(self.clients)
        has_default = any(rows.default is not None for rows in self.fields.values())
        limit = WRITTEN_BYTES if has_default else TILE_BYTES
        step = max(1, limit // max(1, nbytes))
        tiles = np.arange(n_clients) // step
        for tile in range(-(-n_clients // step)):
            yield self.take(tiles == tile)

    def without_broken(self) -> ClientUpdates:
        """Accept no client whose learned numbers are NaN or infinite."""
        accepted = self.accepted.copy()
        for rows in self.learned.values():
            accepted &= rows.finite()
        return replace(self, accepted=accepted)

    def upload(self, client: int) -> dict[str, Update]:
        """Return the learned fields of one client, a dict of Update."""
        return {name: rows.update(client) for name, rows in self.learned.items()}

    def all_fields(self, client: int) -> dict[str, Update]:
        """Return all that one client sends, counts included, a dict of Update."""
        return {name: rows.update(client) for name, rows in self.fields.items()}

    def whole(self, client: int) -> dict[str, np.ndarray]:
        """Return all fields of one client as arrays of their whole shape."""
        alone = self.take(np.arange(len(self.clients)) == client)
        wholes = {name: rows.whole()[0] for name, rows in alone.fields.items()}
        centers = {name: rows.center for name, rows in alone.fields.items()}
        return {n: w if centers[n] is None else w + centers[n] for n, w in wholes.items()}

    def added_up(self) -> ClientUpdates:
        """Put the sums over the accepted clients in the place of single updates."""
        sums = {}
        if self.n_accepted:
            sums = {name: self.total(name) for name in self.fields}
        return replace(self, fields=sums)

    def total(self, name: str) -> np.ndarray:
        """Add up one field over the accepted clients, as they send it."""
        rows = self.fields[name].take(self.accepted)
        total = rows.sum()
        return total if rows.center is None else total + self.n_accepted * rows.center


class SingleUploads(Sequence):
    """Uploads of single clients, dicts of Update: `upload` computes the k-th on each access."""

    def __init__(self, n_clients: int, upload: Callable[[int], dict[str, Update]]) -> None:
        self._n_clients, self._upload = n_clients, upload

    def __len__(self) -> int:
        return self._n_clients

    def __getitem__(self, number: Any) -> Any:
        numbers = range(len(self))[number]
        if isinstance(numbers, range):
            return [self._upload(one) for one in numbers]
        return self._upload(numbers)


def joined(parts: Iterable[ClientUpdates]) -> ClientUpdates:
    """Join the sums of several tiles of a block, each of which goes when it has been added."""
    sums, counts, rest = {}, Counts(), []
    for part in parts:
        add_sums(sums, part.fields)
        counts = counts.plus(part.counts)
        rest.append(replace(part, fields={}))
    if len(rest) == 1:
        return replace(rest[0], fields=sums)
    return replace(rest[0], fields=sums, counts=counts, **_arrays_of_clients(rest))


def _arrays_of_clients(parts):
    """Put the arrays of all clients one after the other."""
    arrays = {name: [getattr(one, name) for one in parts] for name in OF_CLIENTS}
    return {name: np.concatenate(array, axis=-1) for name, array in arrays.items()}


def weighted(parts: Sequence[ClientUpdates], weights: Sequence[float]) -> ClientUpdates:
    """Add up the updates of several rounds, sums or single ones, those of each times its weight."""
    sums: dict[str, np.ndarray] = {}
    accepted = [(w, part) for w, part in zip(weights, parts, strict=True) if part.accepted.any()]
    for weight, part in accepted:
        if part.is_sum:
            add_sums(sums, {name: weight * values for name, values in part.fields.items()})
    single = [(w, part.take(part.accepted)) for w, part in accepted if not part.is_sum]
    if single:
        by_part = [weight for weight, _ in single]
        by_client = np.repeat(by_part, [len(part.clients) for _, part in single])
        for name in parts[0].specs:
            rows = [part.fields[name] for _, part in single]
            add_sums(sums, {name: _weighted_total(rows, by_part, by_client)})
    return replace(parts[0], fields=sums, **_arrays_of_clients(parts))


def _weighted_total(parts, weights, by_client):
    """Add up a field of several rounds' clients, each times its weight."""
    if all(one.default is None and one.factors is None for one in parts):
        total = SparseRows.joined(parts).sum(by_client)
    else:
        factors = zip(parts, weights, strict=True)
        total = sum(one.sum(np.full(one.n_clients, weight)) for one, weight in factors)
    for one, weight in zip(parts, weights, strict=True):
        if one.center is not None:
            total = total + weight * one.n_clients * one.center
    return total


def client_generator(seed: int | np.uint64, name: str) -> np.random.Generator:
    """Return the generator of one client's random numbers for one field."""
    return np.random.default_rng([int(seed), zlib.crc32(name.encode())])


def add_sums(totals: dict[str, np.ndarray], sums: dict[str, np.ndarray]) -> None:
    """Add a dict of arrays to another, in place."""
    for name, values in sums.items():
        if name not in totals:
            # A copy, because the caller may still use the array.
            totals[name] = values.copy()
        elif totals[name].dtype == np.result_type(totals[name].dtype, values.dtype):
            totals[name] += values
        else:
            totals[name] = totals[name] + values


# ---------------------------------------------------------------------- held for the round

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
        self._everyone, self._accepted, self._stages = updates, accepted, stages
        # The accepted clients' updates, and the stages that these have still to pass.
        self._updates: ClientUpdates = updates.take(accepted)
        self._left = stages
        self.clients: NDArray[np.int64] = self._updates.clients
        self.specs: dict[str, FieldSpec] = updates.specs

    def tiles(self) -> Iterator[ClientUpdates]:
        """Compute the accepted clients' updates, tile by tile."""
        for tile in self._updates.tiles() if self._left else [self._updates]:
            done = through(tile, self._left)
            if len(tile.clients) == len(self.clients):
                self._updates, self._left = done, []
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

    def before(self, n_last: int) -> HeldUpdates:
        """Return the accepted clients' updates before the last stages."""
        stages = self._stages[: len(self._stages) - n_last]
        return HeldUpdates(self._everyone, stages, self._accepted)

    def then(self, stage: Stage) -> HeldUpdates:
        """Return the accepted clients' updates after another stage."""
        everyone = np.ones(len(self.clients), dtype=bool)
        return HeldUpdates(self._updates, [*self._left, stage], everyone)

    def sent(self, client: int) -> ClientUpdates:
        """Compute what one client sends, by its place among all, even if it is not accepted."""
        one = self._everyone.take(np.arange(len(self._everyone.clients)) == client)
        return through(one, self._stages)

    def single(self, client: int) -> ClientUpdates:
        """Compute the update of one accepted client, by its place among them."""
        alone = self._updates.take(np.arange(len(self.clients)) == client)
        return through(alone, self._left)


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
        self._starts = np.cumsum([0] + [len(one.clients) for one in held])
        self._order = np.argsort(codes, kind="stable")
        self.codes: NDArray[np.int64] = codes[self._order]

    @property
    def n_clients(self) -> int:
        """Number of accepted clients."""
        return len(self.codes)

    @property
    def all_specs(self) -> dict[str, FieldSpec]:
        """FieldSpec of each field."""
        return self.held[0].specs

    @property
    def specs(self) -> dict[str, FieldSpec]:
        """FieldSpec of each field of what was learned."""
        return {name: spec for name, spec in self.all_specs.items() if spec.learned}

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

    def one(self, place: int) -> ClientUpdates:
        """Return the update of one client alone."""
        number = np.searchsorted(self._starts, self._order[place], side="right") - 1
        return self.held[number].single(int(self._order[place] - self._starts[number]))

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
