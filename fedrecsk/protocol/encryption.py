"""Secure sums: what a server sends that only adds, and an audited sample in a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedrecsk.privacy import secure_sum

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from fedrecsk.privacy import Ciphertext, Party
    from fedrecsk.protocol.keys import Key


class EncryptedSum(NamedTuple):
    """An exchange that has ended: the sum of the uploads of `clients` (codes), None if of none."""

    phase: str
    round: int
    clients: np.ndarray
    total: Ciphertext | None


class EncryptedSums(NamedTuple):
    """What a server that only adds sends in the place of a model: its sums from number `first`."""

    first: int
    sums: tuple[EncryptedSum, ...]

    def since(self, n_taken: int) -> EncryptedSums:
        """Return the sums that a client lacks that has taken `n_taken` of them."""
        if n_taken < self.first:
            raise ValueError(
                f"Sums {n_taken} to {self.first - 1} were deleted with forget(), so this client "
                "cannot get them; restore its state."
            )
        return EncryptedSums(n_taken, self.sums[n_taken - self.first :])


class EncryptedTotals:
    """Adds ciphertexts for a server, which cannot decrypt, and keeps the sums for the clients."""

    def __init__(self, party: Party) -> None:
        self.party: Party = party
        self.message: EncryptedSums = EncryptedSums(0, ())

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"party": (self.party.scheme, self.party.to_bytes())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        scheme, content = state["party"]
        self.party = scheme.load_party(content)

    @property
    def n_sums(self) -> int:
        """Exchanges that have ended."""
        return self.message.first + len(self.message.sums)

    def check(self, content: object, n_values: int) -> bool:
        """Return whether this is one client's ciphertext of so many values."""
        try:
            self.party.check(content, n_values)
        except (ValueError, TypeError):
            return False
        return True

    def add(self, phase: str, round: int, uploads: dict[int, Ciphertext]) -> None:
        """Add up the ciphertexts of an exchange, which `check` has accepted, by client."""
        clients = np.array(sorted(uploads), dtype=np.int64)
        total = self.party.sum(uploads[one] for one in clients.tolist()) if uploads else None
        one = EncryptedSum(phase, round, clients, total)
        self.message = EncryptedSums(self.message.first, (*self.message.sums, one))

    def forget(self, n_taken: int) -> None:
        """Delete the first sums, which all clients have taken."""
        n_more = max(0, n_taken - self.message.first)
        self.message = EncryptedSums(self.message.first + n_more, self.message.sums[n_more:])


@dataclass(frozen=True)
class EncryptionReport:
    """Cost of encryption, measured on the uploads that were really encrypted.

    Attributes
    ----------
    scheme : str
    audit : int or "all"
        Number of clients per round whose uploads were really encrypted.
    n_encrypted : int
        Number of really encrypted uploads, over all rounds.
    max_error : float
        Largest absolute difference between a decrypted sum and the sum in plaintext.
    precision : float
        Largest error that the scheme allows for these sums.
    ciphertext_bytes : int
        Bytes of the largest encrypted upload of a client.
    client_seconds : float
        Mean seconds of a client per round: one encryption, and one decryption of the sum.
    server_seconds : float
        Mean seconds of the server per encrypted upload.
    """

    scheme: str
    audit: int | str
    n_encrypted: int
    max_error: float
    precision: float
    ciphertext_bytes: int
    client_seconds: float
    server_seconds: float


class SecureChannel:
    """Encrypts the uploads of a fit by a SecureAggregation."""

    def __init__(self, scheme: Any) -> None:
        self.scheme = scheme
        self._keys = None
        self._nbytes = {}
        self._sums = []
        self._precision = 0.0

    def __getstate__(self) -> dict[str, Any]:
        # Secret keys are neither pickled nor copied. A copy makes new ones when needed.
        return vars(self) | {"_keys": None}

    @property
    def key_nbytes(self) -> int:
        """Bytes of the key material that every client receives."""
        return self.scheme.key_nbytes()

    def nbytes(self, n_values: int) -> int:
        """Return the bytes of an encrypted vector."""
        n_values = int(n_values)
        if n_values not in self._nbytes:
            self._nbytes[n_values] = self.scheme.ciphertext_bytes(n_values)
        return self._nbytes[n_values]

    def check(self, largest: float, n_clients: int) -> None:
        """Raise if a sum of numbers up to `largest` over `n_clients` clients may overflow."""
        self.scheme._check_size(largest, n_clients)

    def audited(self, clients: NDArray[np.int64], key: Key) -> set[int]:
        """Draw the clients (codes) whose uploads are really encrypted in a round."""
        if self.scheme.audit == "all":
            return set(clients.tolist())
        order = np.argsort(key.hashed("audit", clients), kind="stable")
        return set(clients[order[: self.scheme.audit]].tolist())

    def sum(self, vectors: list[np.ndarray], n_clients: int) -> NDArray[np.float64]:
        """Add up clients' vectors under encryption, and check the result.

        `n_clients`, encrypted or not, are in the round's sum, which must not overflow.
        """
        if self._keys is None or n_clients > self._keys.server.n_clients:
            self._keys = self.scheme.generate_keys(n_clients=n_clients)
        result = secure_sum(self._keys, vectors)
        largest = max(float(np.max(np.abs(vector), initial=0.0)) for vector in vectors)
        precision = self.scheme.precision(len(vectors), largest)
        # An error of NaN is larger than any bound.
        if not result.error <= precision:
            raise RuntimeError(
                f"A decrypted sum has an error of {result.error:.3g}, but {self.scheme} allows "
                f"at most {precision:.3g}."
            )
        self._sums.append(
            (result.n_clients, result.error, result.client_seconds, result.server_seconds)
        )
        self._precision = max(self._precision, precision)
        return result.values

    def report(self) -> EncryptionReport:
        """Report the cost so far."""
        sums = np.array(self._sums).reshape(-1, 4)
        n_encrypted = int(sums[:, 0].sum())
        return EncryptionReport(
            scheme=repr(self.scheme),
            audit=self.scheme.audit,
            n_encrypted=n_encrypted,
            max_error=float(sums[:, 1].max(initial=0.0)),
            precision=self._precision,
            ciphertext_bytes=max(self._nbytes.values(), default=0),
            client_seconds=float(sums[:, 2].mean()) if len(sums) else 0.0,
            server_seconds=float(sums[:, 3].sum() / n_encrypted) if n_encrypted else 0.0,
        )
