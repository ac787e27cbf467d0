"""The links of a server: what goes down to clients, and what comes up and is combined."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk.compression._compressors import BlockCompressor
from fedrecsk.data._checks import Diverged
from fedrecsk.privacy.report import PrivacyReport
from fedrecsk.protocol.central_noise import warn_of_delta
from fedrecsk.protocol.messages import Dense, Message, Rows, Total, Upload, narrowed
from fedrecsk.protocol.secure_accounts import (
    EncryptedChannel,
    MaskedChannel,
    aligned_size,
    as_vector,
    fields_of,
)
from fedrecsk.updates import Counts, RoundUpdates, add_sums

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from fedrecsk.privacy import GaussianMechanism, LaplaceMechanism
    from fedrecsk.protocol.central_noise import CentralNoise
    from fedrecsk.protocol.federation import Federation
    from fedrecsk.protocol.keys import Key
    from fedrecsk.protocol.ledger import Ledger
    from fedrecsk.updates import ClientUpdates, FieldSpec, HeldUpdates


@dataclass(eq=False)
class SideBySide:
    """A fit whose messages travel with those of other fits, so that what is equal is sent once.

    `first` has digests of what they have sent in this step, with the number of the first fit.
    """

    number: int
    first: dict[bytes, int]

    def is_first(self, *parts: object) -> bool:
        """Return whether no other fit has sent these arrays, or anything else, in this step."""
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            array = np.asarray(part)
            digest.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
        return self.first.setdefault(digest.digest(), self.number) == self.number

    def new(self, message: Message, who: NDArray[np.bool_]) -> Message:
        """Return the fields of a message that no other fit sends to the clients of a mask."""
        fields = message.items()
        return Message(**{n: f for n, f in fields if self.is_first(n, str(f.dtype), f.values, who)})


@dataclass(eq=False, repr=False)
class Downlink:
    """Sends the server's messages, and counts what each client, of `n_held` items, receives."""

    federation: Federation
    ledger: Ledger
    n_held: NDArray[np.int64]
    # Whether clients always receive the full model, as in a deployment.
    sends_whole: bool = False
    beside: SideBySide | None = None

    def __post_init__(self) -> None:
        encrypts = self.federation.encrypts
        self.channel: EncryptedChannel | None = None
        if encrypts:
            self.channel = EncryptedChannel(self.federation.secure_aggregation)
        # Bytes of the updates that each client has missed; inf if it needs the full model.
        self._missed = np.full(len(self.n_held), 0.0 if encrypts else np.inf)
        # The model as clients know it, if its changes are compressed, and the fields of the last
        # message that are sent as such changes.
        self._known = {}
        self.changes: set[str] = set()
        # Bytes of encrypted sums that clients are still to receive; None before the first model.
        self._pending = None

    def send(
        self,
        message: Message | None,
        receives: NDArray[np.bool_],
        delta: Message | None = None,
        key: Key | None = None,
    ) -> Message | None:
        """Send the model, or its `delta`, to the clients of a mask; return it as it arrives.

        It is compressed by the `key`, and sent as it is without one.
        """
        self.changes = set()
        if not message:
            return message
        compression = self.federation.compression
        if compression is not None and compression.down:
            # A delta of the model does not apply to the compressed model that clients have.
            if key is None:
                delta = None
            else:
                message, delta = self._compressed(message, delta, compression, key)
        sent = message
        if self.beside is not None and delta is None and compression is None:
            sent = self.beside.new(message, receives)
        whole, payload = sent.sizes(self.n_held, self.federation.wire_dtype)
        latest = whole
        if delta is not None:
            latest, payload = delta.sizes(self.n_held, self.federation.wire_dtype)
        if self.channel is not None:
            # The server sends only encrypted sums and its own draws.
            first = self._pending is None
            drawn = {name: f for name, f in message.items() if first or not f.is_learned}
            latest = self.nbytes(Message(**drawn)) + (self._pending or 0)
            self._pending = 0
            self._missed += latest
            whole = self._missed.astype(np.int64)
        else:
            self._missed += np.inf if delta is None else latest
        needs_whole = np.isinf(self._missed) | self.sends_whole
        missed = np.where(needs_whole, whole, self._missed).astype(np.int64)
        self._missed[receives] = 0
        sizes = (one[receives] for one in (whole, missed, latest, payload))
        self.ledger.down(receives.nonzero()[0], *sizes)
        return message

    def admit(self, n_held: NDArray[np.int64]) -> None:
        """Add clients that join late, given how many items each holds; they need the full model."""
        self.n_held = np.concatenate([self.n_held, n_held])
        self._missed = np.pad(self._missed, (0, len(n_held)), constant_values=np.inf)

    def announce(self, message: Message | None, who: NDArray[np.bool_] | None = None) -> None:
        """Send a message once to the clients of the mask, or to all."""
        if not message:
            return
        who = np.ones(len(self._missed), dtype=bool) if who is None else who
        if self.beside is not None:
            message = self.beside.new(message, who)
        sizes = self.nbytes(message)
        if self.channel is not None:
            n_values = sum(np.size(field.values) for field in message.values())
            sizes = np.full(len(sizes), self.channel.nbytes(n_values))
        self.count(sizes, who)

    def count(self, sizes: ArrayLike, who: NDArray[np.bool_] | None = None) -> None:
        """Count bytes that the clients of the mask receive, or all; one number or one for each."""
        who = np.ones(len(self._missed), dtype=bool) if who is None else who
        self.ledger.down(who.nonzero()[0], np.broadcast_to(sizes, len(who))[who])

    def add(self, message: Message, receives: NDArray[np.bool_]) -> None:
        """Count a message that the clients of the mask receive together with the last one."""
        self.ledger.more_down(receives.nonzero()[0], self.nbytes(message)[receives])

    def owe(self, nbytes: int) -> None:
        """Note that clients are still to receive an encrypted sum of `nbytes` bytes."""
        if self._pending is not None:
            self._pending += nbytes

    def _compressed(self, message, delta, compression, key):
        """Return the model as clients know it after another compressed change, and that change."""
        received, changes = {}, {}
        for name, one in message.items():
            values = matrix_to_compress(one)
            if values is not None and name in self._known:
                packed = self._compressed_change(name, one, values, compression, key)
                self._known[name] = self._known[name] + packed.values
                changes[name] = replace(one, packed=packed)
                received[name] = replace(one, values=self._known[name])
                continue
            if values is not None:
                self._known[name] = values.copy()
            received[name] = changes[name] = one
        first = not any(one.packed for one in changes.values())
        return Message(**received), delta if first else Message(**changes)

    def _compressed_change(self, name, field, values, compression, key):
        if not np.isfinite(values).all():
            raise Diverged(
                f"The server's model diverged: {name} held NaN or infinite values in round "
                f"{key.round}."
            )
        generator = key.generator(f"compression of {name} on its way down")
        change = values - self._known[name]
        packed = compression.compress(change, generator)
        if not np.isfinite(packed.values).all():
            raise ValueError(
                f"The server's change of {name} in round {key.round} does not fit into "
                f"{compression}, which ends at 65504; use "
                'Quantization("int8"), which scales the values.'
            )
        self.changes.add(name)
        is_known = isinstance(compression, BlockCompressor) and not compression._is_changed
        if not is_known or compression._is_exact:
            return packed
        # What clients know is what they make of the numbers that cross.
        wire = np.dtype(field.dtype or self.federation.wire_dtype)
        values, extra = compression._encoded(packed.values.astype(np.float64), packed.step)
        extra = None if extra is None else narrowed(extra, wire)
        received = compression._decoded(narrowed(values, wire), extra, change.shape)
        return replace(packed, values=received.astype(change.dtype))

    def nbytes(self, message: Message) -> NDArray[np.int64]:
        """Return the bytes of the message for each client, shape (n_clients,)."""
        return message.sizes(self.n_held, self.federation.wire_dtype)[0]


def matrix_to_compress(field: Dense) -> np.ndarray | None:
    """Return the matrix of a field that may be compressed, else None."""
    # Fields that are not learned, such as a basis, are sent as they are.
    if isinstance(field, Rows) or not (field.is_learned and field.compressible):
        return None
    values = np.asarray(field.values)
    return values if values.ndim == 2 and values.dtype.kind == "f" else None


class Uplink:
    """Turns updates of a downlink's clients into what the server sees.

    Masks are planned for cohorts of `cohort` clients.
    """

    def __init__(
        self, downlink: Downlink, cohort: int, releases: CentralNoise | None = None
    ) -> None:
        self.downlink = downlink
        self.federation: Federation = downlink.federation
        self.ledger: Ledger = downlink.ledger
        federation, ledger = self.federation, self.ledger
        self.releases = releases
        # One of the two, if sums are secure.
        self.channel: EncryptedChannel | None = downlink.channel
        self.masks: MaskedChannel | None = None
        if federation.masks:
            self.masks = MaskedChannel(federation.secure_aggregation, cohort, releases)
        n_clients = len(ledger.client_ids)
        if federation.local_dp is not None:
            warn_of_delta(federation.local_dp, n_clients)
        aggregator = federation.aggregator
        # What the aggregator remembers over the rounds.
        self._memory = {} if aggregator is None else aggregator._start(ledger.client_ids)
        self._uploads = np.zeros(n_clients, dtype=np.int64)
        self._coordinates = np.zeros(n_clients, dtype=np.int64)

    def admit(self, n_clients: int) -> None:
        """Add clients that join late."""
        self._uploads = np.pad(self._uploads, (0, n_clients))
        self._coordinates = np.pad(self._coordinates, (0, n_clients))

    def close(
        self, total: StepTotal, key: Key, centers: dict[str, np.ndarray] | None = None
    ) -> Upload | None:
        """Return the Upload of a step; None if the server gets no sum.

        For central privacy, `centers` are what a client without any change sends, unless that is 0.
        Our own clients have diverged, which is an error, if none of their uploads is finite.
        """
        n_arrived, n_accepted, specs = total.n_arrived, total.n_accepted, total.specs
        self.ledger.count(messages_up=n_accepted, rejected=n_arrived - n_accepted)
        if n_accepted == 0:
            if n_arrived and total.is_trusted:
                when = "the set-up" if key.round < 0 else f"round {key.round}"
                raise Diverged(
                    f"The clients diverged: all {n_arrived} uploads of {when} held NaN or infinite "
                    "values."
                )
            if self.releases is None or not (total.senders or self.releases.always):
                return None
        single = RoundUpdates(total.held) if total.held and n_accepted else None
        add_up = self._plain_sum if self.masks is None else self._masked_sum
        totals = add_up(total, single, key)
        if totals is None:
            return None
        mechanism = self.federation.local_dp
        if mechanism is not None and total.n_without_noise:
            _add_noise(totals, specs, mechanism, total.n_without_noise, key)
        if total.senders and self.channel is not None:
            self.downlink.owe(self.channel.nbytes(aligned_size(specs)))
        if self.releases is not None:
            self.releases.charge(total.senders, key, total.counts)
            return self.releases.publish(totals, specs, key, total.counts, centers or {})
        n_counted = n_accepted if total.weight is None else total.weight
        totals = {name: Total(totals[name], n_counted) for name in specs}
        return Upload(n_counted, single, **totals)

    def _plain_sum(self, total, single, key):
        """Return the sum, or what an aggregator makes of single updates; None if these are few."""
        if single is None:
            return total.sums
        changes = self._combined(single, robustly=total.learned)
        if changes is None:
            return None
        add_sums(total.sums, changes)
        add_sums(total.sums, single.rest())
        if self.channel is None:
            return total.sums
        return self._audited(self.channel, single, total.sums, total.specs, key)

    def _masked_sum(self, total, single, key):
        """Count a masked sum's messages, and return it; None if it cannot be unmasked."""
        assert self.masks is not None
        if not total.senders:
            return None
        senders, arrived, specs = *map(np.concatenate, (total.senders, total.arrived)), total.specs
        if not self.masks.open(senders, arrived, aligned_size(specs), key, self.ledger):
            return None
        if single is None:
            return self.masks.rounded(total.sums, specs)
        return self.masks.sum(single, specs, self.steps(specs, key))

    def steps(self, specs: dict[str, FieldSpec], key: Key) -> dict[str, float]:
        """Return the grid to which clients have rounded each field, if they add central noise."""
        return {} if self.releases is None else self.releases.steps(specs, key)

    def _combined(self, updates, *, robustly):
        """Combine the learned fields; None if there are too few clients for the aggregator."""
        aggregator = self.federation.aggregator
        if aggregator is not None and robustly:
            return aggregator._combine(updates, self._memory)
        return {name: updates.sum(name) for name in updates.specs}

    def _audited(self, channel, updates, totals, specs, key):
        """Encrypt the audited clients' uploads; use the decrypted sum if these are all clients."""
        codes = updates.codes
        channel.scheme._check_size(max(updates.each(_largest)), len(codes))
        chosen = channel.audited(codes, key)
        places = np.searchsorted(codes, chosen).tolist()
        vectors = [as_vector(updates.one(place), 0) for place in places]
        decrypted = channel.sum(vectors, len(codes))
        self.ledger.count(encrypted=len(vectors))
        if channel.scheme.audit != "all":
            # The noise of a sample's ciphertexts cannot be repeated by a seed.
            return totals
        return fields_of(decrypted, specs)

    def privacy_report(self, server_sees: str) -> PrivacyReport:
        """Report the privacy loss of all uploads so far, given what the server sees of them."""
        if self.releases is not None:
            report = self.releases.report(int(self._coordinates.max(initial=0)), server_sees)
        else:
            mechanism = self.federation.local_dp
            report = PrivacyReport.of(mechanism, self._uploads, self._coordinates, server_sees)
        if self.masks is None:
            return report
        plan, trust = self.masks.plan, report.trust.replace("uploads", "sums")
        seen = f"{plan.threshold} of the client's {plan.n_neighbors} neighbours"
        return replace(report, trust=f"{trust}; a single upload is seen by the server with {seen}")


@dataclass(eq=False)
class StepTotal:
    """What has arrived of all blocks' updates in one step; `learned`: it is a round."""

    uplink: Uplink
    specs: dict[str, FieldSpec]
    learned: bool = False
    # Whether they come from our own clients, who have diverged if all uploads are broken. Others
    # may be broken in other ways, and count as if none had arrived.
    is_trusted: bool = True
    sums: dict[str, np.ndarray] = field(default_factory=dict)
    held: list[HeldUpdates] = field(default_factory=list)
    senders: list[np.ndarray] = field(default_factory=list)
    arrived: list[np.ndarray] = field(default_factory=list)
    accepted: list[np.ndarray] = field(default_factory=list)
    # Sums of the training losses and of their weights, which only the simulator knows.
    loss: np.ndarray = field(default_factory=partial(np.zeros, 2))
    counts: Counts = field(default_factory=Counts)
    n_arrived: int = 0
    n_accepted: int = 0
    n_without_noise: int = 0
    # As how many clients the accepted ones count, if some of them have begun in earlier rounds.
    weight: float | None = None

    def add(self, updates: ClientUpdates) -> None:
        """Add the updates of a block, and count their bytes."""
        uplink, n_accepted = self.uplink, int(updates.accepted.sum())
        senders = updates.clients[updates.sends]
        nbytes, payload, coordinates = updates.sizes[:, updates.sends]
        if uplink.channel is not None:
            nbytes = np.full(len(senders), uplink.channel.nbytes(aligned_size(self.specs)))
        if uplink.masks is not None:
            # Counted when all have come, because masked numbers depend on how many they are.
            nbytes = np.zeros_like(nbytes)
        uplink.ledger.up(senders, nbytes, payload if self.learned else None)
        uplink._uploads[senders] += 1
        uplink._coordinates[senders] += coordinates
        self.senders.append(senders)
        self.arrived.append(updates.clients[updates.arrives])
        self.accepted.append(updates.clients[updates.accepted])
        self.n_arrived += len(self.arrived[-1])
        self.n_accepted += n_accepted
        self.counts = self.counts.plus(updates.counts)
        if updates.held is not None:
            self.held.append(updates.held)
        else:
            add_sums(self.sums, updates.fields)
            self.n_without_noise += n_accepted * updates.lacks_noise


def _add_noise(totals, specs, mechanism: GaussianMechanism | LaplaceMechanism, n_clients, key):
    """Add the noise of `n_clients` clients, drawn for their sum, without a client's fine grid."""
    for name, spec in specs.items():
        mechanism._check_spec(name, spec)
        generator = key.generator(f"noise of {name}")
        noise = mechanism.summed_noise(n_clients, spec.shape, generator)
        totals[name] = totals[name] + noise


def _largest(updates):
    """Bound the absolute numbers that these clients send."""
    sizes = [0.0]
    for rows in updates.fields.values():
        center = 0.0 if rows.center is None else np.abs(rows.center).max(initial=0)
        sizes.append(rows.largest().max(initial=0) + center)
    return float(max(sizes))
