"""The ledger of what crosses between server and clients, and the two links that count into it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedrecsk._utils import html
from fedrecsk.compression._compressors import BlockCompressor
from fedrecsk.data._checks import Diverged
from fedrecsk.privacy.report import PrivacyReport
from fedrecsk.protocol.central_noise import warn_of_delta
from fedrecsk.protocol.messages import Message, Rows, Total, Upload, narrowed
from fedrecsk.updates import Counts, RoundUpdates, add_sums, split_fields

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, ClassVar, Self

    from numpy.typing import ArrayLike, NDArray

    from fedrecsk.privacy import GaussianMechanism, LaplaceMechanism
    from fedrecsk.protocol.central_noise import CentralNoise
    from fedrecsk.protocol.federation import Federation
    from fedrecsk.protocol.keys import Key
    from fedrecsk.protocol.secure_sums import MaskedChannel, SecureChannel
    from fedrecsk.updates import ClientUpdates, FieldSpec, HeldUpdates


# Names of the phases in the HTML table.
PHASES = {
    "catalogue": "Catalogue of items",
    "keys": "Secret keys",
    "setup": "Set-up",
    "taken back": "Taken back",
    "round": "Rounds",
    "stop": "Stop",
    "final": "Final model",
    "best": "Best model",
}
# What an entry counts, and what is counted for each client.
COUNTS = (
    *("participants", "messages_down", "messages_up", "dropped", "rejected"),
    *("bytes_down", "bytes_up", "bytes_down_whole", "bytes_down_missed", "bytes_down_latest"),
    *("payload_down", "payload_up", "encrypted"),
    *("messages_device_to_device", "bytes_device_to_device", "largest_down", "largest_up"),
)
PER_CLIENT = ("client_bytes_down", "client_bytes_up", "client_bytes_device_to_device")


class Ledger:
    """Communication of a fit, by round and by client.

    Attributes
    ----------
    entries : list of dict
        One entry per phase. `phase` is "catalogue" (the items' ids, down), "keys" (secret keys,
        with encryption), "setup" (exchanges before the rounds), "taken back" (what clients sent to
        take their earlier uploads out of the sum), "round", "stop" (the broadcast
        whose losses ended the fit early), "final" (the last model, from which clients
        recommend) or "best" (the best model, if early stopping keeps it instead). `round`: the
        round, or the step of the set-up. `participants`: clients that updated.
        `messages_down`, `messages_up` (arrived and accepted), `dropped` (clients without a
        connection, or whose uploads were lost), `rejected` (uploads with NaN or infinite
        values, or malformed), `bytes_up` (sent, whether or not they arrived), `encrypted`
        (uploads that were really encrypted), `messages_device_to_device` and
        `bytes_device_to_device` (sent from clients directly to other clients, and in no other
        count; zero for most methods).

        Downloads are counted three ways: `bytes_down_whole`, the full model each time;
        `bytes_down_missed`, all updates that the client has missed; `bytes_down_latest`, the
        latest update only, which is enough for clients that also receive the rounds in which they
        take no part. For each client, `bytes_down` counts the smaller of the first two; in a
        deployment on Flower, which always sends the full model, the first. A method that defines no
        updates always sends the full model, too, and the four numbers are equal. `payload_down` (of
        the latest update) and `payload_up` are what papers count: learned numbers only, compressed
        or not, in plaintext, without counts, item indices and everything before the rounds.
        `largest_down` and `largest_up` are the bytes of the client that received and sent most.
    client_ids : ndarray of shape (n_clients,)
    client_bytes_down, client_bytes_up : ndarray of shape (n_clients,), dtype int64
        Bytes that each client received from the server and sent to it.
    client_bytes_device_to_device : ndarray of shape (n_clients,), dtype int64
        Bytes that each client sent to other clients.
    """

    def __init__(self, client_ids: np.ndarray) -> None:
        n_clients = len(client_ids)
        self.client_ids: np.ndarray = client_ids
        self.entries: list[dict[str, Any]] = []
        self.client_bytes_down: NDArray[np.int64] = np.zeros(n_clients, dtype=np.int64)
        self.client_bytes_up: NDArray[np.int64] = np.zeros(n_clients, dtype=np.int64)
        self.client_bytes_device_to_device: NDArray[np.int64] = np.zeros(n_clients, dtype=np.int64)
        self._seconds = 0.0

    @classmethod
    def joined(cls, ledgers: Sequence[Ledger]) -> Self:
        """Join the ledgers of several fits with the same clients, one after the other."""
        whole = cls(ledgers[0].client_ids)
        for ledger in ledgers:
            whole.entries += copy.deepcopy(ledger.entries)
            whole._seconds += ledger._seconds
            for name in PER_CLIENT:
                getattr(whole, name)[:] += getattr(ledger, name)
        return whole

    def admit(self, client_ids: np.ndarray) -> None:
        """Add clients that join late, after the others."""
        self.client_ids = np.concatenate([self.client_ids, client_ids])
        for name in PER_CLIENT:
            setattr(self, name, np.pad(getattr(self, name), (0, len(client_ids))))

    def open(self, phase: str, round: int = -1) -> None:
        """Begin an entry, to which all following counts belong."""
        self.entries.append({"phase": phase, "round": round} | dict.fromkeys(COUNTS, 0))

    def take_over(self, ledger: Ledger, first: Ledger) -> None:
        """Add what `ledger` has counted in its last entry, since its copy `first`, as taken back.

        Clients that are not in this ledger count in the entry alone.
        """
        self.entries.append(ledger.entries[-1] | {"phase": "taken back", "round": -1})
        _, here, there = np.intersect1d(self.client_ids, ledger.client_ids, return_indices=True)
        for name in PER_CLIENT[:2]:
            new = getattr(ledger, name) - getattr(first, name)
            getattr(self, name)[here] += new[there]

    def count(self, **counts: int) -> None:
        """Add to the counts of the open entry."""
        for name, count in counts.items():
            self.entries[-1][name] += int(count)

    def work(self, seconds: float) -> None:
        """Add seconds of the clients' updates."""
        self._seconds += seconds

    def down(
        self,
        clients: NDArray[np.int64],
        whole: np.ndarray,
        missed: np.ndarray | None = None,
        latest: np.ndarray | None = None,
        payload: np.ndarray | None = None,
    ) -> None:
        """Count the bytes that each of `clients` (codes) received, in each of the three ways."""
        missed = whole if missed is None else missed
        latest = whole if latest is None else latest
        nbytes = np.minimum(whole, missed)
        self.client_bytes_down[clients] += nbytes
        self.count(
            messages_down=len(clients),
            bytes_down=nbytes.sum(),
            bytes_down_whole=whole.sum(),
            bytes_down_missed=missed.sum(),
            bytes_down_latest=latest.sum(),
            payload_down=0 if payload is None else payload.sum(),
        )
        entry = self.entries[-1]
        entry["largest_down"] = max(entry["largest_down"], int(nbytes.max(initial=0)))

    def more_down(self, clients: NDArray[np.int64], nbytes: np.ndarray) -> None:
        """Count more bytes that each of `clients` (codes) received with the last message."""
        self.client_bytes_down[clients] += nbytes
        names = "bytes_down", "bytes_down_whole", "bytes_down_missed", "bytes_down_latest"
        self.count(**dict.fromkeys(names, nbytes.sum()), largest_down=nbytes.max(initial=0))

    def up(
        self, clients: NDArray[np.int64], nbytes: np.ndarray, payload: np.ndarray | None = None
    ) -> None:
        """Count the bytes that each of `clients` (codes) sent; `payload` is part of them."""
        self.client_bytes_up[clients] += nbytes
        n_payload = 0 if payload is None else payload.sum()
        self.count(bytes_up=nbytes.sum(), payload_up=n_payload)
        entry = self.entries[-1]
        entry["largest_up"] = max(entry["largest_up"], int(nbytes.max(initial=0)))

    def between_devices(
        self, clients: NDArray[np.int64], n_messages: np.ndarray, nbytes: np.ndarray
    ) -> None:
        """Count the messages and bytes that each of `clients` (codes) sent to other clients."""
        self.client_bytes_device_to_device[clients] += nbytes
        self.count(messages_device_to_device=n_messages.sum(), bytes_device_to_device=nbytes.sum())

    @property
    def client_seconds(self) -> float:
        """Seconds of one thread that a client's update took on the simulating machine.

        The mean over all updates of the rounds, without compiling. 0 in a deployment. It does not
        count when two ledgers are compared.
        """
        n_updates = sum(entry["participants"] for entry in self.entries)
        return self._seconds / n_updates if n_updates else 0.0

    @property
    def bytes_down(self) -> int:
        """Total number of bytes from the server to clients."""
        return int(self.client_bytes_down.sum())

    @property
    def bytes_up(self) -> int:
        """Total number of bytes from clients to the server."""
        return int(self.client_bytes_up.sum())

    @property
    def bytes_device_to_device(self) -> int:
        """Total number of bytes from clients directly to other clients."""
        return int(self.client_bytes_device_to_device.sum())

    def to_frame(self) -> pd.DataFrame:
        """Return the entries as a pandas DataFrame, one row per phase."""
        return pd.DataFrame(self.entries)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Ledger)
            and self.entries == other.entries
            and all(
                np.array_equal(getattr(self, name), getattr(other, name))
                for name in ("client_ids", *PER_CLIENT)
            )
        )

    __hash__: ClassVar[None] = None

    def __repr__(self) -> str:
        n_clients, n_rounds = len(self.client_ids), sum(e["phase"] == "round" for e in self.entries)
        between = self.bytes_device_to_device
        also = f"; {_readable(between)} from device to device" if between else ""
        return (
            f"Ledger({n_rounds} rounds, {n_clients} clients, {_readable(self.bytes_up)} up and "
            f"{_readable(self.bytes_down)} down; per client {_readable(self.bytes_up / n_clients)} "
            f"up and {_readable(self.bytes_down / n_clients)} down{also})"
        )

    def _repr_html_(self) -> str:
        n_clients = len(self.client_ids)
        between = self.bytes_device_to_device > 0
        head = ["", "Messages up", "Messages down", "Up", "Down", "Up per client"]
        head += ["Down per client", *["Device to device"] * between]
        phases: dict[str, list] = {}
        for entry in self.entries:
            phases.setdefault(entry["phase"], []).append(entry)
        rows = [
            [
                PHASES.get(phase, phase) + (f" ({len(own)})" if len(own) > 1 else ""),
                *_sums(own, n_clients, between),
            ]
            for phase, own in phases.items()
        ]
        rows.append(["Total", *_sums(self.entries, n_clients, between)])
        notes = []
        for name, what in (("dropped", "lost or not sent"), ("rejected", "rejected")):
            count = sum(entry[name] for entry in self.entries)
            notes += [f"{count:,} uploads {what}"] if count else []
        caption = f"Communication of {n_clients:,} clients"
        return html.table(caption, head, rows, notes=notes, total=True)


def _sums(entries, n_clients, between):
    """Return some entries' messages and bytes as text; with `between`, among devices too."""
    names = "messages_up", "messages_down", "bytes_up", "bytes_down", "bytes_device_to_device"
    n_up, n_down, up, down, direct = (sum(entry[name] for entry in entries) for name in names)
    sizes = [up, down, up / max(n_clients, 1), down / max(n_clients, 1)] + [direct] * between
    return [f"{n_up:,}", f"{n_down:,}", *map(_readable, sizes)]


def _readable(nbytes):
    power = max(0, min(4, int(np.log10(max(nbytes, 1)) // 3)))
    return f"{nbytes / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


# ------------------------------------------------------------------------------- the links


class Downlink:
    """Sends the server's messages, and counts what each client receives."""

    def __init__(
        self,
        federation: Federation,
        ledger: Ledger,
        n_held: NDArray[np.int64],
        channel: SecureChannel | None,
        sends_whole: bool = False,
    ) -> None:
        self.federation = federation
        self.ledger = ledger
        self.channel = channel
        self._n_held = n_held
        # Bytes of the updates that each client has missed; inf if it needs the full model.
        self._missed = np.full(len(n_held), np.inf if channel is None else 0.0)
        # The model as clients know it, if its changes are compressed, and the fields of the last
        # message that are sent as such changes.
        self._known = {}
        self.changes: set[str] = set()
        # Whether clients always receive the full model, as in a deployment.
        self.sends_whole = sends_whole
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
        whole, payload = message.sizes(self._n_held, self.federation.wire_dtype)
        latest = whole
        if delta is not None:
            latest, payload = delta.sizes(self._n_held, self.federation.wire_dtype)
        if self.channel is not None:
            # The server sends only encrypted sums and its own draws.
            first = self._pending is None
            drawn = {name: f for name, f in message.items() if first or not f.is_learned}
            latest = self._sizes(Message(**drawn)) + (self._pending or 0)
            self._pending = 0
            self._missed += latest
            whole = self._missed.astype(np.int64)
        else:
            self._missed += np.inf if delta is None else latest
        needs_whole = np.isinf(self._missed) | self.sends_whole
        missed = np.where(needs_whole, whole, self._missed).astype(np.int64)
        self._missed[receives] = 0
        self.ledger.down(
            receives.nonzero()[0],
            whole[receives],
            missed[receives],
            latest[receives],
            payload[receives],
        )
        return message

    def admit(self, n_held: NDArray[np.int64]) -> None:
        """Add clients that join late, given how many items each holds; they need the full model."""
        self._n_held = np.concatenate([self._n_held, n_held])
        self._missed = np.pad(self._missed, (0, len(n_held)), constant_values=np.inf)

    def announce(self, message: Message | None, who: NDArray[np.bool_] | None = None) -> None:
        """Send a message once to the clients of the mask, or to all."""
        if not message:
            return
        sizes = self._sizes(message)
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
        self.ledger.more_down(receives.nonzero()[0], self._sizes(message)[receives])

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
        encoded: Any = compression._encoded(packed.values.astype(np.float64), packed.step)
        values, extra = encoded
        extra = None if extra is None else narrowed(extra, wire)
        received: Any = compression._decoded(narrowed(values, wire), extra, change.shape)
        return replace(packed, values=received.astype(change.dtype))

    def _sizes(self, message):
        """Return the bytes of the message for each client, shape (n_clients,)."""
        return message.sizes(self._n_held, self.federation.wire_dtype)[0]


def matrix_to_compress(field: Any) -> Any:
    """Return the matrix of a field that may be compressed, else None."""
    # Fields that are not learned, such as a basis, are sent as they are.
    if isinstance(field, Rows) or not (field.is_learned and field.compressible):
        return None
    values = np.asarray(field.values)
    return values if values.ndim == 2 and values.dtype.kind == "f" else None


class Uplink:
    """Turns the clients' updates into what the server sees."""

    def __init__(
        self,
        federation: Federation,
        ledger: Ledger,
        downlink: Downlink,
        channel: SecureChannel | None,
        n_clients: int,
        releases: CentralNoise | None = None,
        masks: MaskedChannel | None = None,
    ) -> None:
        self.federation = federation
        self.releases = releases
        self.ledger = ledger
        self.downlink = downlink
        # One of the two, if sums are secure.
        self.channel = channel
        self.masks = masks
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
        """Combine the updates of all blocks; None if too few are sound, an error if none is.

        For central privacy, `centers` are what a client without any change sends, unless that is 0.
        """
        n_arrived, n_accepted, totals = total.n_arrived, total.n_accepted, total.sums
        specs, senders, counts = total.specs, total.senders, total.counts
        self.ledger.count(messages_up=n_accepted, rejected=n_arrived - n_accepted)
        if n_accepted == 0:
            if n_arrived and total.is_trusted:
                when = "the set-up" if key.round < 0 else f"round {key.round}"
                raise Diverged(
                    f"The clients diverged: all {n_arrived} uploads of {when} held NaN or infinite "
                    "values."
                )
            if self.releases is None or not (senders or self.releases.always):
                return None
        single = None
        if self.masks is not None and not self._opened(total, key):
            return None
        if total.held and n_accepted and self.masks is not None:
            single = RoundUpdates(total.held)
            totals = self.masks.sum(single, specs, self.steps(specs, key), key)
        elif self.masks is not None:
            totals = self.masks.rounded(totals, specs)
        elif total.held and n_accepted:
            single = RoundUpdates(total.held)
            changes = self._combined(single, robustly=total.learned)
            if changes is None:
                return None
            add_sums(totals, changes)
            add_sums(totals, single.rest())
            if self.channel is not None:
                totals = self._audited(self.channel, single, totals, specs, key)
        mechanism = self.federation.local_dp
        if mechanism is not None and total.n_without_noise:
            _add_noise(totals, specs, mechanism, total.n_without_noise, key)
        if senders and self.channel is not None:
            self.downlink.owe(self.channel.nbytes(aligned_size(specs)))
        if self.releases is not None:
            self.releases.charge(senders, key, counts)
            return self.releases.publish(totals, specs, key, counts, centers or {})
        totals = {name: Total(totals[name], n_accepted) for name in specs}
        return Upload(n_accepted, single, **totals)

    def _opened(self, total, key):
        """Count a masked sum's messages, and return whether it can be unmasked."""
        assert self.masks is not None
        if not total.senders:
            return False
        senders, arrived = (np.concatenate(one) for one in (total.senders, total.arrived))
        return self.masks.open(senders, arrived, aligned_size(total.specs), key, self.ledger)

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

    def count_encrypted(self, clients: NDArray[np.int64], n_values: int, nbytes: int) -> None:
        """Count ciphertexts of `n_values` numbers from these clients (codes)."""
        self.ledger.up(clients, np.full(len(clients), nbytes), None)
        self._uploads[clients] += 1
        self._coordinates[clients] += n_values

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
    """What has arrived of all blocks' updates in one step; `learned` in a round."""

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
