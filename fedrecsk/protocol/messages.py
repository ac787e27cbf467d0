"""Messages and uploads: everything that server and clients send to each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk.compression import Compressed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from fedrecsk.updates import RoundUpdates, Update


# ---------------------------------------------------------------------- from the server


@dataclass(frozen=True, eq=False)
class Dense:
    """A field that every client receives as a whole.

    Parameters
    ----------
    values : ndarray
    dtype : str or None
        Type in the message, which may differ from the type used in computations. None: the
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

    def sizes(self, n_held: NDArray[np.int64], wire_dtype: str) -> NDArray[np.int64]:
        """Return the bytes of the field, and of learned numbers as papers count them.

        Parameters
        ----------
        n_held : ndarray of shape (n_clients,)
            Items that each client holds.
        wire_dtype : str
            The federation's.

        Returns
        -------
        sizes : ndarray of shape (2, n_clients)
        """
        itemsize = np.dtype(self.dtype or wire_dtype).itemsize
        if self.packed is not None:
            lengths = self.packed.nbytes(itemsize), self.packed.payload_nbytes(itemsize)
            return np.broadcast_to(np.array([lengths]).T, (2, len(n_held)))
        nbytes = self._n_values(n_held) * itemsize
        return np.stack([nbytes, nbytes * self.is_learned])

    def _n_values(self, n_held):
        return np.full(len(n_held), np.size(self.values))


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
        return np.zeros(len(n_held), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class PerClient(Dense):
    """A field with an entry for each client, which is sent to that client only.

    For methods that set ``_server_sees = "clients"``.

    Parameters
    ----------
    values : ndarray of shape (n_clients, ...)
        In the order of the clients' codes. A block of clients receives their entries only.
    dtype, learned, compressible, packed
        As in :class:`Dense`.
    """

    compressible: bool = False

    def _n_values(self, n_held):
        return np.full(len(n_held), np.size(self.values) // max(1, len(self.values)))


class Message(dict):
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

    def of(self, clients: NDArray[np.int64]) -> Message:
        """The message as these clients (codes) receive it: with their own `PerClient` entries."""
        if not any(isinstance(field, PerClient) for field in self.values()):
            return self
        own = {
            name: replace(field, values=field.values[clients])
            for name, field in self.items()
            if isinstance(field, PerClient)
        }
        return Message(**(self | own))

    def sizes(self, n_held: NDArray[np.int64], wire_dtype: str) -> NDArray[np.int64]:
        """Add up the fields' `sizes`: bytes, and bytes of learned numbers, for each client."""
        total = np.zeros((2, len(n_held)), dtype=np.int64)
        for field in self.values():
            total += field.sizes(n_held, wire_dtype)
        return total


# ------------------------------------------------------------------------- from clients


@dataclass(frozen=True, eq=False)
class Total:
    """The sum of a field over all clients whose uploads were accepted.

    Parameters
    ----------
    sum : ndarray, dtype float64, or int64 if the clients sent integers
    n_clients : int
        Number of clients in the sum; under central privacy, the expected number.
    noise_std : float, default=0.0
        Standard deviation of the noise on each number, under central privacy.
    """

    sum: np.ndarray
    n_clients: int
    noise_std: float = 0.0

    @property
    def mean(self) -> np.ndarray:
        """Mean over these clients."""
        return self.sum / self.n_clients


class Upload(dict):
    """What the server sees of a step: a :class:`Total` per field.

    Parameters
    ----------
    n_clients : int
        Number of clients whose uploads were accepted; under central privacy, the expected number.
    updates : RoundUpdates or None
        Single updates, for methods with ``_server_sees = "clients"``.
    **totals : Total
    """

    def __init__(
        self, n_clients: int, updates: RoundUpdates | None = None, /, **totals: Total
    ) -> None:
        super().__init__(totals)
        self.n_clients = n_clients
        self.updates = updates

    def single(self) -> Iterator[tuple[int, dict[str, Update]]]:
        """Yield each accepted client's code and its upload (a dict of Update), by code."""
        for code, one in () if self.updates is None else self.updates.single():
            yield code, one.upload(0)
