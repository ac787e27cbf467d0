"""Base classes of secure sums: clients hide or encrypt, the server adds, clients decrypt."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrecsk._utils.constraints import AtLeast1
from fedrecsk._utils.extras import require
from fedrecsk._utils.parameters import PlainParameters

# With more clients, values would have too few bits in Paillier's slots of 64 bits.
_MOST_CLIENTS = 2**31 - 1


@dataclass(frozen=True)
class Ciphertext:
    """An encrypted vector, as it is sent.

    Attributes
    ----------
    blocks : tuple of bytes
        Serialised ciphertexts; each holds some of the values.
    n_values : int
        Length of the vector.
    n_clients : int
        Number of clients whose vectors are summed in it.
    key_id : str
        Name of the keys that it is encrypted under. It reveals nothing about the keys.
    """

    blocks: tuple[bytes, ...]
    n_values: int
    n_clients: int
    key_id: str

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks."""
        return sum(map(len, self.blocks))


class Keys(NamedTuple):
    """The two sides of a secure sum.

    Attributes
    ----------
    server : Party
        The side that adds. It is made from serialised public material only.
    clients : Party
        The side that encrypts and decrypts. All clients have the same secret key.
    """

    server: Party
    clients: Party


class Party(ABC):
    """One side of a secure sum, with its keys, for sums over at most `n_clients` vectors."""

    def __init__(self, scheme: Encryption, n_clients: int, key_id: str) -> None:
        self.scheme = scheme
        self.n_clients = n_clients
        self.key_id = key_id

    def encrypt(self, values: ArrayLike) -> Ciphertext:
        """Encrypt one client's vector of finite numbers, converted to float64.

        Raises
        ------
        ValueError
            If a value is not finite, or so large that a sum over `n_clients` might overflow.
        """
        values = np.asarray(values, dtype=np.float64)
        if values.ndim != 1:
            raise ValueError(f"encrypt takes a vector, but got an array of shape {values.shape}.")
        if not np.isfinite(values).all():
            position = int(np.flatnonzero(~np.isfinite(values))[0])
            raise ValueError(
                f"Value {position} of the vector is {values[position]}; only finite numbers can be "
                "encrypted."
            )
        largest = float(np.max(np.abs(values), initial=0.0))
        self.scheme._check_size(largest, self.n_clients)
        width = self.scheme.values_per_block
        starts = range(0, len(values), width)
        blocks = tuple(self._encrypt_block(values[start : start + width]) for start in starts)
        return Ciphertext(blocks, len(values), 1, self.key_id)

    def sum(self, ciphertexts: Iterable[Ciphertext] | Ciphertext) -> Ciphertext:
        """Add up encrypted vectors, at least one, without decrypting them; read one at a time.

        Raises
        ------
        ValueError
            If they were encrypted under other keys, differ in length, or are more than the
            keys allow.
        """
        if isinstance(ciphertexts, Ciphertext):
            ciphertexts = (ciphertexts,)
        totals, n_values, n_clients = [], 0, 0
        for ciphertext in ciphertexts:
            loaded = [self._load_block(*one) for one in self._blocks(ciphertext)]
            if n_clients == 0:
                totals, n_values = loaded, ciphertext.n_values
            elif ciphertext.n_values != n_values:
                raise ValueError(
                    f"Cannot add encrypted vectors of {n_values} and {ciphertext.n_values} values."
                )
            else:
                for k, one in enumerate(loaded):
                    totals[k] += one
            n_clients += ciphertext.n_clients
        if n_clients == 0:
            raise ValueError("There is nothing to add: a sum needs at least one ciphertext.")
        if n_clients > self.n_clients:
            raise ValueError(
                f"A sum over {n_clients} clients may overflow: these keys were made for at most "
                f"{self.n_clients}. Call generate_keys(n_clients={n_clients})."
            )
        blocks = tuple(self._save_block(total) for total in totals)
        return Ciphertext(blocks, n_values, n_clients, self.key_id)

    def add(self, first: Ciphertext, second: Ciphertext) -> Ciphertext:
        """Add two ciphertexts."""
        return self.sum((first, second))

    def decrypt(self, ciphertext: Ciphertext) -> NDArray[np.float64]:
        """Decrypt a vector or a sum of vectors: shape (n_values,), dtype float64.

        Raises
        ------
        ValueError
            If this side has no secret key, or not the one that the ciphertext belongs to; or if
            the ciphertext lacks blocks.
        """
        self._check_secret("decrypt")
        blocks = self._blocks(ciphertext)
        parts = [self._decrypt_block(*one, ciphertext.n_clients) for one in blocks]
        return np.concatenate([np.empty(0), *parts])

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("Keys are not pickled; make new ones with generate_keys().")

    def _blocks(self, ciphertext):
        """Return each block of a ciphertext under these keys, and how many values it has."""
        if not isinstance(ciphertext, Ciphertext):
            raise TypeError(
                f"Expected a Ciphertext, but got {type(ciphertext).__name__}; encrypt the vector "
                "first (keys.clients.encrypt)."
            )
        if ciphertext.key_id != self.key_id:
            raise ValueError(
                f"The ciphertext belongs to the keys {ciphertext.key_id!r}, but this side has "
                f"{self.key_id!r}. Use the two sides of one call of generate_keys."
            )
        n_values, width = ciphertext.n_values, self.scheme.values_per_block
        if len(ciphertext.blocks) != self.scheme._n_blocks(n_values):
            raise ValueError(
                f"A ciphertext has {len(ciphertext.blocks)} blocks, but {n_values} values take "
                f"{self.scheme._n_blocks(n_values)}."
            )
        return [(one, min(width, n_values - k * width)) for k, one in enumerate(ciphertext.blocks)]

    @property
    @abstractmethod
    def holds_secret_key(self) -> bool:
        """Whether this side can decrypt."""

    def _check_secret(self, action):
        if not self.holds_secret_key:
            raise ValueError(
                f"This side has no secret key and cannot {action}. The server only adds; "
                "clients encrypt and decrypt (keys.clients)."
            )

    @abstractmethod
    def _encrypt_block(self, values: np.ndarray) -> bytes:
        """Encrypt at most `values_per_block` values."""

    @abstractmethod
    def _load_block(self, block: bytes, n_values: int) -> Any:
        """Load a block to be added to others; raise if it has not so many values."""

    @abstractmethod
    def _save_block(self, total) -> bytes:
        """Serialise a sum of loaded blocks."""

    @abstractmethod
    def _decrypt_block(self, block: bytes, n_values: int, n_clients: int) -> np.ndarray:
        """Decrypt the values of a block."""


class SecureAggregation(PlainParameters, ABC):
    """Base class of what ``Federation(secure_aggregation=...)`` takes."""

    # Modules that the scheme imports; they come with an extra of the package.
    _extra: tuple[str, ...]
    # Whether the server does not see the sum either, so that clients take its steps.
    hides_sums: bool

    @abstractmethod
    def _bytes_of_vector(self, n_values: int, n_clients: int) -> int:
        """Return the bytes of one client's vector as it is sent in a sum over `n_clients`."""

    def _validate_params(self):
        super()._validate_params()
        self._check_parameters()
        for module in self._extra:
            self._import(module)

    @abstractmethod
    def _check_parameters(self):
        """Raise if parameters contradict one another."""

    def _import(self, module):
        return require(module, type(self).__name__)

    @abstractmethod
    def max_value(self, n_clients: int = 1) -> float:
        """Return the largest size of a value that may enter a sum over `n_clients`."""

    def max_integer(self, n_clients: int = 1) -> float:
        """Return the largest size of an integer that may enter a sum over `n_clients`."""
        return self.max_value(n_clients)

    @abstractmethod
    def precision(self, n_clients: int = 1, max_abs: float = 1.0) -> float:
        """Bound on the absolute error of a sum of `n_clients` vectors of values up to `max_abs`."""

    @staticmethod
    def _check_n_clients(n_clients):
        """Raise unless it is a valid number of clients."""
        if not isinstance(n_clients, Integral) or not 1 <= n_clients <= _MOST_CLIENTS:
            raise ValueError(
                f"n_clients={n_clients!r} must be a whole number from 1 to {_MOST_CLIENTS}."
            )


class Encryption(SecureAggregation):
    """Base class of homomorphic encryption, under which not even the server sees the sum."""

    hides_sums = True
    audit: AtLeast1 | Literal["all"]

    def _check_size(self, largest, n_clients):
        """Raise if a value of size `largest` may overflow in a sum over `n_clients`."""
        limit = self.max_value(n_clients)
        if largest > limit:
            raise ValueError(
                f"A value of size {largest:.6g} may overflow: in a sum over {n_clients} "
                f"clients each value must be at most {limit:.6g} in size for {self}. "
                f"{self._advice(largest, n_clients)}"
            )

    @abstractmethod
    def _advice(self, largest, n_clients):
        """Return a sentence about what to change so that a value fits."""

    def generate_keys(self, n_clients: int = 1) -> Keys:
        """Make new keys from the operating system's random numbers.

        `n_clients` is the largest number of vectors in one sum. It determines how large values may
        be.
        """
        self._check_n_clients(n_clients)
        self._validate_params()
        return self._new_keys(n_clients)

    @abstractmethod
    def _new_keys(self, n_clients: int) -> Keys:
        """Make new keys."""

    @property
    @abstractmethod
    def values_per_block(self) -> int:
        """How many values share one ciphertext."""

    def ciphertext_bytes(self, n_values: int) -> int:
        """Return the bytes of an encrypted vector of `n_values` as it is sent, for ledgers."""
        self._validate_params()
        return self._n_blocks(n_values) * self._bytes_of_block()

    @abstractmethod
    def _bytes_of_block(self) -> int:
        """Return the bytes of one ciphertext."""

    def _bytes_of_vector(self, n_values: int, n_clients: int) -> int:
        return self.ciphertext_bytes(n_values)

    @abstractmethod
    def key_nbytes(self) -> int:
        """Return the bytes of the key material that every client receives, for ledgers."""

    def _n_blocks(self, n_values):
        if not isinstance(n_values, Integral) or n_values < 0:
            raise ValueError(f"n_values={n_values!r} must be a whole number, at least 0.")
        return -(-int(n_values) // self.values_per_block)


@dataclass(frozen=True)
class SecureSum:
    """A sum that was actually encrypted, added and decrypted, and what it cost.

    Attributes
    ----------
    values : ndarray of shape (n_values,), dtype float64
        The decrypted sum.
    error : float
        Largest absolute difference to the sum in plaintext.
    n_clients : int
        Number of clients.
    upload_bytes : int
        Bytes of all clients' ciphertexts.
    sum_bytes : int
        Bytes of the sum's ciphertext, which every client receives.
    client_seconds : float
        Mean time of a client's encryption, plus one decryption of the sum.
    server_seconds : float
        Time to load, add and save the ciphertexts.
    """

    values: np.ndarray
    error: float
    n_clients: int
    upload_bytes: int
    sum_bytes: int
    client_seconds: float
    server_seconds: float


def secure_sum(keys: Keys, vectors: Iterable[ArrayLike]) -> SecureSum:
    """Run a secure sum from end to end, one client after the other.

    Parameters
    ----------
    keys : Keys
        Keys of both sides, as `generate_keys` returns them.
    vectors : iterable of array-like of shape (n_values,)
        One vector per client; at least one.

    Returns
    -------
    SecureSum
    """
    if not isinstance(keys, Keys):
        raise TypeError(
            f"secure_sum takes Keys, but got {type(keys).__name__}; make them with "
            "generate_keys(n_clients=...) of CKKS or Paillier."
        )
    encrypting, on_clients, upload_bytes, in_plaintext = [], [], 0, 0

    def uploads():
        nonlocal upload_bytes, in_plaintext
        for vector in vectors:
            begun = time.perf_counter()
            upload = keys.clients.encrypt(vector)
            encrypting.append(time.perf_counter() - begun)
            upload_bytes += upload.nbytes
            # Wider than float64 on most machines, to measure the error of exact schemes.
            in_plaintext = in_plaintext + np.asarray(vector, dtype=np.longdouble)
            on_clients.append(time.perf_counter() - begun)
            yield upload

    start = time.perf_counter()
    total = keys.server.sum(uploads())
    added = time.perf_counter()
    values = keys.clients.decrypt(total)
    decrypted = time.perf_counter()
    return SecureSum(
        values=values,
        error=float(np.max(np.abs(values - in_plaintext), initial=0.0)),
        n_clients=total.n_clients,
        upload_bytes=upload_bytes,
        sum_bytes=total.nbytes,
        client_seconds=float(np.mean(encrypting)) + decrypted - added,
        server_seconds=added - start - sum(on_clients),
    )
