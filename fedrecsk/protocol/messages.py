"""Messages and uploads: everything that server and clients send to each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from fedrecsk.compression import Compressed

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from fedrecsk.protocol.keys import Key
    from fedrecsk.protocol.ledger import Ledger
    from fedrecsk.updates import RoundUpdates, Update


# ------------------------------------------------------------------- before the first round


# Of one client, so that the numbers of all clients add up.
MOST_USERS = 2**40


class Catalogue(NamedTuple):
    """What the server knows before the first upload.

    The simulator takes the lowest and the highest rating from y; in a deployment the estimator
    needs `rating_scale`.
    """

    n_items: int
    n_clients: int
    rating_range: tuple[float, float]


class Registration(NamedTuple):
    """What the server must know about clients before anything else, in arrays (n_clients,).

    How many items each of them holds counts only if clients also say which items these are. 0 under
    local differential privacy.
    """

    client_ids: np.ndarray
    n_users: np.ndarray
    n_held: np.ndarray


class ClientCodes(NamedTuple):
    """Codes that the server assigns to clients and to the first user of each.

    Draws that clients and server share have the key `shared`. `n_clients` with `n_users` have
    registered so far.
    """

    clients: np.ndarray
    first_users: np.ndarray
    shared: Key
    n_clients: int
    n_users: int


# ---------------------------------------------------------------------- from the server


class MalformedMessage(ValueError):
    """A message from the other side that cannot be used: it is not what was declared."""


class Form(NamedTuple):
    """What the array in a field of a message must look like; clients refuse any other.

    Parameters
    ----------
    shape : tuple of int or range
        Its shape. A range lists the possible lengths of an axis whose length depends on the data.
    kind : {"float", "int", "uint", "bool"}, default="float"
        Kind of its numbers. Floating-point numbers have 32 or 64 bits.
    bounds : tuple of float or None, default=None
        Smallest and largest number allowed, for numbers that serve as an index or a share; NaN is
        outside of them. If None, all numbers are allowed.
    per_client : bool, default=False
        Whether it is a :class:`PerClient` field; `shape` is then that of one client's entry.

    Examples
    --------
    >>> import numpy as np
    >>> from fedrecsk.protocol import Form
    >>> Form((3, 2)).mismatch(np.zeros((3, 4)))
    'has shape (3, 4) in place of (3, 2)'
    """

    shape: tuple[int | range, ...]
    kind: Literal["float", "int", "uint", "bool"] = "float"
    bounds: tuple[float, float] | None = None
    per_client: bool = False

    def mismatch(self, values: np.ndarray, n_clients: int = 1) -> str | None:
        """Return what is wrong with an array for `n_clients` clients; None if nothing is."""
        shape = (n_clients, *self.shape) if self.per_client else self.shape
        # An array may be one that is made when it is read.
        values = values if hasattr(values, "shape") else np.asarray(values)
        fits = len(values.shape) == len(shape) and all(
            length in allowed if isinstance(allowed, range) else length == allowed
            for length, allowed in zip(values.shape, shape, strict=True)
        )
        if not fits:
            named = tuple(f"{n[0]} to {n[-1]}" if isinstance(n, range) else n for n in shape)
            return f"has shape {values.shape} in place of {named}"
        if values.dtype.kind != KINDS[self.kind] or values.dtype == np.float16:
            return f"has type {values.dtype} in place of {self.kind}"
        if self.bounds is not None:
            low, high = self.bounds
            if not ((values >= low) & (values <= high)).all():
                return f"has numbers outside of {low:g} to {high:g}"
        return None


# By what numpy calls them.
KINDS: dict[str, str] = {"float": "f", "int": "i", "uint": "u", "bool": "b"}


@dataclass(frozen=True, eq=False)
class Dense:
    """A field that every client receives as a whole.

    Parameters
    ----------
    values : ndarray
    dtype : str or None
        Type in the message, which may differ from the type used in computations. If None, the
        federation's `wire_dtype`.
    learned : bool or None
        Whether the numbers were learned, as opposed to counts or weights. None: True, unless it is
        sent as unsigned integers.
    compressible : bool
        Whether it may be compressed, if it is a matrix of real numbers.
    packed : Compressed or None
        Its compressed form, set by the server's compression. None: it is sent as it is.
    """

    values: np.ndarray
    dtype: str | None = None
    learned: bool | None = None
    compressible: bool = True
    packed: Compressed | None = None

    @property
    def is_learned(self) -> bool:
        """Whether the numbers were learned."""
        if self.learned is not None:
            return self.learned
        return self.dtype is None or np.dtype(self.dtype).kind != "u"

    def _n_values(self, n_held):
        """Return how many numbers clients receive that hold `n_held` items each."""
        return np.size(self.values)


@dataclass(frozen=True, eq=False)
class Rows(Dense):
    """A field whose rows are sent to the clients that hold the items.

    Parameters
    ----------
    values : ndarray of shape (n_items, ...)
        All rows. From the set-up, the server must know which items a client holds.
    dtype, learned, compressible, packed
        As in :class:`Dense`.
    """

    def _n_values(self, n_held):
        return n_held * (np.size(self.values) // max(1, len(self.values)))


@dataclass(frozen=True, eq=False)
class Derived(Dense):
    """A field that clients compute from the rest of the message; it is never sent."""

    def _n_values(self, n_held):
        return 0


@dataclass(frozen=True, eq=False)
class PerClient(Dense):
    """A field with an entry for each client, which is sent to that client only.

    For algorithms with ``Traits(treats_clients_apart=True)``.

    Parameters
    ----------
    values : ndarray of shape (n_clients, ...)
        In the order of the clients' codes. A block of clients receives their entries only.
    dtype, learned, compressible, packed
        As in :class:`Dense`.
    """

    compressible: bool = False

    def _n_values(self, n_held):
        return np.size(self.values) // max(1, len(self.values))


class Message(dict[str, Dense]):
    """What the server sends: :class:`Dense`, :class:`Rows` or :class:`PerClient` fields by name.

    Clients add :class:`Derived` fields after receipt.

    Parameters
    ----------
    **fields : Dense
    """

    def __init__(self, **fields: Dense) -> None:
        super().__init__(fields)

    def __or__(self, other: dict[str, Dense]) -> Message:
        return Message(**super().__or__(other))

    def __missing__(self, name: str) -> Dense:
        raise MalformedMessage(f"The message has no field {name!r}.")

    def without(self, names: Container[str]) -> Message:
        """Return the message without the fields of these names."""
        return Message(**{name: field for name, field in self.items() if name not in names})

    def check(self, forms: Mapping[str, Form], n_clients: int = 1) -> Message:
        """Return the message, to `n_clients` clients, if all its fields have the declared form.

        Raises
        ------
        MalformedMessage
            If a field is not declared, or its shape, type or numbers are not as declared.
        """
        for name, field in self.items():
            if name not in forms:
                raise MalformedMessage(f"The message has an unexpected field {name[:40]!r}.")
            wrong = forms[name].mismatch(field.values, n_clients)
            if wrong is not None:
                raise MalformedMessage(f"Field {name!r} of the message {wrong}.")
        return self

    def of(self, clients: NDArray[np.int64]) -> Message:
        """Return the message as these clients (codes) receive it, with their own `PerClient`."""
        received = self
        for name, field in self.items():
            if isinstance(field, PerClient):
                own = replace(field, values=field.values[clients])
                received = Message(**(received | {name: own}))
        return received

    def sizes(self, n_held: NDArray[np.int64], wire_dtype: str) -> NDArray[np.int64]:
        """Return the bytes, and those of learned numbers as papers count them: (2, n_clients).

        `n_held` are the numbers of items that each client holds.
        """
        total = np.zeros((2, len(n_held)), dtype=np.int64)
        for field in self.values():
            itemsize = np.dtype(field.dtype or wire_dtype).itemsize
            if field.packed is None:
                nbytes = field._n_values(n_held) * itemsize
                payload = nbytes * field.is_learned
            else:
                nbytes = field.packed.nbytes(itemsize)
                payload = field.packed.payload_nbytes(itemsize)
            total[0] += nbytes
            total[1] += payload
        return total


def narrowed(values: np.ndarray, dtype: str | np.dtype) -> np.ndarray:
    """Return values in the type of the wire, unless whole numbers would change."""
    wire = np.dtype(dtype)
    if values.dtype.kind == "f" and wire.kind == "f":
        if values.dtype.itemsize <= wire.itemsize:
            return values
        with np.errstate(over="ignore"):
            return values.astype(wire)
    if values.dtype.kind in "iub" and wire.kind in "iub":
        short = values.astype(wire)
        return short if np.array_equal(short, values) else values
    return values


# ------------------------------------------------------------------------- from clients


@dataclass(frozen=True, eq=False)
class Total:
    """The sum of a field over all clients whose uploads were accepted.

    Parameters
    ----------
    sum : ndarray, dtype float64, or int64 if the clients sent integers
    n_clients : int or float
        Number of clients in the sum; under central privacy, the expected number; in asynchronous
        rounds the sum of their weights.
    noise_std : float, default=0.0
        Standard deviation of the noise on each number, under central privacy.
    """

    sum: np.ndarray
    n_clients: float
    noise_std: float = 0.0

    @property
    def mean(self) -> np.ndarray:
        """Mean over these clients."""
        return self.sum / self.n_clients


class Upload(dict):
    """What the server sees of a step: a :class:`Total` per field.

    Parameters
    ----------
    n_clients : int or float
        Number of clients whose uploads were accepted; under central privacy, the expected number;
        in asynchronous rounds the sum of their weights.
    updates : RoundUpdates or None
        Single updates, for algorithms with ``Traits(treats_clients_apart=True)``.
    **totals : Total
    """

    def __init__(
        self, n_clients: float, updates: RoundUpdates | None = None, /, **totals: Total
    ) -> None:
        super().__init__(totals)
        self.n_clients = n_clients
        self.updates = updates

    def single(self) -> Iterator[tuple[int, dict[str, Update]]]:
        """Yield each accepted client's code and its upload (a dict of Update), by code."""
        for code, one in () if self.updates is None else self.updates.single():
            yield code, one.upload(0)


# ----------------------------------------------------------------- between devices


class GroupMessages(NamedTuple):
    """Vectors of a block's clients, each of which goes to all other clients of the same group.

    Attributes
    ----------
    groups : ndarray of shape (n_clients of the block,), dtype int
        The group of each client; -1 for clients that send nothing.
    values : ndarray of shape (n_clients of the block, width)

    Examples
    --------
    Two clients of group 4, and one that sends nothing:

    >>> import numpy as np
    >>> from fedrecsk.protocol import GroupMessages
    >>> messages = GroupMessages(np.array([4, 4, -1]), np.ones((3, 2)))
    >>> messages.values.shape
    (3, 2)
    """

    groups: NDArray[np.int64]
    values: np.ndarray


def deliver(
    messages: Iterable[GroupMessages | None],
    clients: Iterable[NDArray[np.int64]],
    n_clients: int,
    ledger: Ledger,
    wire_dtype: str,
) -> list[NDArray[np.float64] | None]:
    """Average the messages of each group, as each of its clients does, and count their bytes.

    Return, for each block that sends, the mean of each client's group, zero for clients in none. A
    message that is not finite is counted and then left out. Clients are added in the order of their
    codes, so that the means do not depend on the blocks.
    """
    sent = [(c, one) for c, one in zip(clients, messages, strict=True)]
    widths = [one.values.shape[1] for _, one in sent if one is not None]
    if not widths:
        return [None for _ in sent]
    groups, values = np.full(n_clients, -1), np.zeros((n_clients, widths[0]))
    for codes, one in sent:
        if one is not None:
            groups[codes], values[codes] = one.groups, one.values
    senders = np.flatnonzero(groups >= 0)
    names, numbers = np.unique(groups[senders], return_inverse=True)
    n_others = np.bincount(numbers, minlength=len(names))[numbers] - 1
    nbytes = n_others * values.shape[1] * np.dtype(wire_dtype).itemsize
    ledger.between_devices(senders, n_others, nbytes)
    finite = np.isfinite(values[senders]).all(axis=1)
    means = np.zeros((len(names), values.shape[1]))
    np.add.at(means, numbers[finite], values[senders[finite]])
    means /= np.maximum(np.bincount(numbers[finite], minlength=len(names)), 1)[:, None]
    received = np.zeros_like(values)
    received[senders] = means[numbers]
    return [None if one is None else received[codes] for codes, one in sent]
