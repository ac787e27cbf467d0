"""Secure sums of a simulated fit: bytes of all messages, rounded numbers, and encrypted samples.

The server of a deployed fit counts the same bytes, and its clients round in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from fedrecsk._utils.kernels import LazyModule
from fedrecsk.privacy import secure_sum
from fedrecsk.privacy._secagg_protocol import FEWEST_CLIENTS, MaskingPlan, Ring, bytes_of_sum
from fedrecsk.updates import ClientUpdates, Counts, split_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from fedrecsk.privacy import SecAggPlus
    from fedrecsk.privacy._secure_aggregation import Encryption
    from fedrecsk.protocol.central_noise import CentralNoise
    from fedrecsk.protocol.keys import Key
    from fedrecsk.protocol.ledger import Ledger
    from fedrecsk.updates import FieldSpec, RoundUpdates, SparseRows


masking_kernels: LazyModule = LazyModule("fedrecsk.protocol._masking_kernels")


# --------------------------------------------------------------------------- CKKS and Paillier


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        shown = (
            f"{n}={v:.3g}" if isinstance(v, float) else f"{n}={v!r}" for n, v in values.items()
        )
        return f"{type(self).__name__}({', '.join(shown)})"


class EncryptedChannel:
    """Adds up the uploads of a fit under CKKS or Paillier, of which it really encrypts some."""

    def __init__(self, scheme: Encryption) -> None:
        self.scheme = scheme
        # Of each encrypted sum: clients, and seconds of one of them and of the server.
        self._audits: list[tuple[int, float, float]] = []
        self._keys = None
        self._nbytes = {}
        self._max_error = 0.0
        self._precision = 0.0

    def __getstate__(self) -> Mapping[str, object]:
        # Secret keys are neither pickled nor copied. A copy makes new ones when needed.
        return vars(self) | {"_keys": None}

    def audited(self, clients: NDArray[np.int64], key: Key) -> NDArray[np.int64]:
        """Draw the clients (codes) whose uploads are really encrypted; return them sorted."""
        if self.scheme.audit == "all":
            return np.sort(clients)
        order = np.argsort(key.hashed("audit", clients), kind="stable")
        return np.sort(clients[order[: self.scheme.audit]])

    def nbytes(self, n_values: int) -> int:
        """Return the bytes of an encrypted vector."""
        n_values = int(n_values)
        if n_values not in self._nbytes:
            self._nbytes[n_values] = self.scheme.ciphertext_bytes(n_values)
        return self._nbytes[n_values]

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
        self._audits.append((len(vectors), result.client_seconds, result.server_seconds))
        self._max_error = max(self._max_error, result.error)
        self._precision = max(self._precision, precision)
        return result.values

    def report(self) -> EncryptionReport:
        """Report the cost so far."""
        audits = np.array(self._audits).reshape(-1, 3)
        n_encrypted = int(audits[:, 0].sum())
        return EncryptionReport(
            scheme=repr(self.scheme),
            audit=self.scheme.audit,
            n_encrypted=n_encrypted,
            max_error=self._max_error,
            precision=self._precision,
            ciphertext_bytes=max(self._nbytes.values(), default=0),
            client_seconds=float(audits[:, 1].mean()) if n_encrypted else 0.0,
            server_seconds=float(audits[:, 2].sum() / n_encrypted) if n_encrypted else 0.0,
        )


# ----------------------------------------------------------------------------------- SecAggPlus


@dataclass(frozen=True)
class MaskingReport:
    """Masked sums of a fit, what they cost, and what they reveal.

    Attributes
    ----------
    scheme : str
    n_neighbors, threshold, n_bits : int
        Of the sums over most clients, see `SecAggPlus`.
    n_sums, n_lost : int
        Sums of the fit, and sums that were lost because too few clients answered.
    mask_bytes : int
        Largest bytes of all that a client sends in a sum beside its vector, and receives; without
        certificates (96 bytes and the client's id), of which it sends its own and receives one for
        each neighbour.
    learns : str
        What each party learns, alone and with helpers.
    """

    scheme: str
    n_neighbors: int
    threshold: int
    n_bits: int
    n_sums: int
    n_lost: int
    mask_bytes: int
    learns: str


class MaskedChannel:
    """Adds up the uploads of a fit, whose usual cohort has `n_clients`, as masked integers.

    `releases` says how large sums get if the clients add noise.
    """

    def __init__(
        self, scheme: SecAggPlus, n_clients: int, releases: CentralNoise | None = None
    ) -> None:
        self.scheme = scheme
        self.releases = releases
        self.plan: MaskingPlan = self.plan_of(n_clients)
        # Of a number in the last sum that was opened.
        self._n_bits = 0
        self._n_sums = 0
        self._n_lost = 0
        self._mask_bytes = 0

    def open(
        self,
        senders: NDArray[np.int64],
        arrived: NDArray[np.int64],
        n_values: int,
        key: Key,
        ledger: Ledger,
    ) -> bool:
        """Count the messages of a sum over `senders` (codes); return whether it can be unmasked."""
        self._n_sums += 1
        if len(senders) >= FEWEST_CLIENTS:
            plan, ring = self.ring_of(senders, key)
            alive = np.isin(ring.order, arrived)
            up, down = bytes_of_sum(plan, ring, alive, n_values)
            ledger.up(ring.order, up)
            ledger.more_down(ring.order, down)
            own = int((up + down).max()) - plan.nbytes(n_values)
            self._mask_bytes = max(self._mask_bytes, own)
            left = ring.n_alive(alive)
            self._n_bits = plan.n_bits
            # A lost client needs no unmasking if nobody shares a mask with it.
            if alive.any() and (left[alive | (left > 0)] >= plan.threshold).all():
                return True
        self._n_lost += 1
        return False

    def ring_of(self, clients: NDArray[np.int64], key: Key) -> tuple[MaskingPlan, Ring]:
        """Return the plan of a sum over these clients (codes), and their ring."""
        plan = self.plan_of(len(clients))
        order = key.generator("ring of neighbours").permutation(np.sort(clients))
        return plan, Ring(order, plan.n_neighbors)

    def plan_of(self, n_clients: int) -> MaskingPlan:
        """Return the plan of a sum over so many clients, as each of them makes it."""
        return self.scheme.plan(n_clients, self._noisy(n_clients))

    def _noisy(self, n_clients):
        """Return the largest sum with the clients' noise; None if they add none."""
        return None if self.releases is None else self.releases.largest_sum(n_clients)

    def sum(
        self, updates: RoundUpdates, specs: dict[str, FieldSpec], steps: dict[str, float]
    ) -> dict[str, np.ndarray]:
        """Add up all clients' fixed-point numbers, on the grid of `steps` where clients rounded.

        The sum of masked vectors is the same, as tests show.
        """
        units = units_of(self.scheme, specs, steps)
        sums = updates.added(partial(_fixed_sums, scheme=self.scheme, units=units, steps=steps))
        largest = max(int(np.max(np.abs(one), initial=0)) for one in sums.values())
        if largest >> (self._n_bits - 1):
            raise RuntimeError(
                f"A sum has the integer {largest}, which {self._n_bits} bits do not hold, so that "
                "the sum of masked vectors would be another number; raise max_abs."
            )
        return {name: _as_field(sums[name], units[name], spec) for name, spec in specs.items()}

    def rounded(
        self, totals: dict[str, np.ndarray], specs: dict[str, FieldSpec]
    ) -> dict[str, np.ndarray]:
        """Round sums over blocks of clients, of whom the single numbers are not at hand."""
        units = units_of(self.scheme, specs, {})
        return {
            name: values if specs[name].is_integer else np.rint(values / units[name]) * units[name]
            for name, values in totals.items()
        }

    def report(self) -> MaskingReport:
        """Report the cost so far."""
        n_clients = self.plan.n_clients
        return MaskingReport(
            scheme=repr(self.scheme),
            n_neighbors=self.plan.n_neighbors,
            threshold=self.plan.threshold,
            n_bits=self.plan.n_bits,
            n_sums=self._n_sums,
            n_lost=self._n_lost,
            mask_bytes=self._mask_bytes,
            learns=self.scheme.describe(n_clients, self._noisy(n_clients)),
        )


def _fixed_sums(tile, scheme, units, steps):
    """Add up all fields of some clients, each rounded to integers."""
    # Noise may be large in one client: only the sum must fit.
    return {
        name: _fixed_sum(rows, scheme, units[name], name not in steps)
        for name, rows in tile.fields.items()
    }


def _fixed_sum(rows: SparseRows, scheme, unit, checks):
    """Add up one field of some clients, each rounded to integers: (n_rows, width)."""
    if rows.factors is not None:
        rows = rows.written_out()
    shape = (rows.spec.shape[0], rows.spec.width)
    center, default = np.zeros(shape), rows.default_matrix
    if rows.center is not None:
        center += rows.center.reshape(shape)
    own = rows.matrix if rows.matrix.dtype.kind == "f" else rows.matrix.astype(np.float64)
    total, counts = np.zeros(shape, dtype=np.int64), np.zeros(shape[0], dtype=np.int64)
    largest = masking_kernels.add_fixed(rows.rows, own, center, 1 / unit, total, counts)
    if checks:
        scheme.check_fixed(largest, unit)
    others = center if default is None else default + center
    if others.any():
        others = scheme.fixed(others, unit, checks=checks)
        total += (rows.n_clients - counts)[:, None] * others
    return total


def _as_field(total, unit, spec):
    """Return a sum of integers as the sum of a field."""
    total = total.reshape(spec.shape)
    if spec.sparse:
        total = sparse.csc_array(total)
    return total if spec.is_integer else total * unit


def units_of(
    scheme: SecAggPlus, specs: dict[str, FieldSpec], steps: dict[str, float]
) -> dict[str, float]:
    """Return the unit of each field, given the grid of those to which clients have added noise."""
    return {name: steps.get(name, scheme.unit_of(spec)) for name, spec in specs.items()}


def integers_of(
    scheme: SecAggPlus,
    fields: dict[str, np.ndarray],
    units: dict[str, float],
    steps: dict[str, float],
) -> NDArray[np.int64]:
    """Return all numbers of one client as integers, one field after the other."""
    return np.concatenate(
        [
            scheme.fixed(np.ravel(fields[name]), unit, checks=name not in steps)
            for name, unit in units.items()
        ]
    )


def summed_updates(
    total: NDArray[np.int64],
    step: tuple[str, int],
    clients: NDArray[np.int64],
    specs: dict[str, FieldSpec],
    units: dict[str, float],
) -> ClientUpdates:
    """Return the sum over these clients (codes) as their updates."""
    fields = {
        name: _as_field(part, units[name], specs[name])
        for name, part in split_fields(total, specs).items()
    }
    # Their noise is in the sum already.
    sizes, counts = np.zeros((3, len(clients)), dtype=np.int64), Counts(n_shares=len(clients))
    return ClientUpdates.of_all(fields, step, clients, specs, sizes, counts=counts)


def aligned_size(specs: dict[str, FieldSpec]) -> int:
    """Length of the vector that every client encrypts, which must be equal for all."""
    for name, spec in specs.items():
        if spec.rows != "all":
            raise RuntimeError(
                f"Field {name!r} has rows of some items only, which cannot be added under "
                'encryption; a method must declare FieldSpec(..., rows="all") for secure sums.'
            )
    return sum(spec.size for spec in specs.values())


def as_vector(updates: ClientUpdates, client: int) -> NDArray[np.float64]:
    """Return all numbers of one client, by its place, one field after the other."""
    return np.concatenate([np.ravel(values) for values in updates.whole(client).values()])


def fields_of(vector: NDArray[np.float64], specs: dict[str, FieldSpec]) -> dict[str, np.ndarray]:
    """Return the fields again, of one vector or of a sum."""
    return {
        name: np.rint(part).astype(np.int64) if specs[name].is_integer else part
        for name, part in split_fields(vector, specs).items()
    }
