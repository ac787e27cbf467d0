"""The ledger of what crosses between server and clients."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pandas as pd

from fedrecsk._utils import html

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fedrecsk.protocol.clock import Clock


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
    "evaluation": "Evaluation",
}
# What an entry counts, and what is counted for each client.
COUNTS = (
    *("participants", "messages_down", "messages_up", "dropped", "rejected"),
    *("bytes_down", "bytes_up", "bytes_down_whole", "bytes_down_missed", "bytes_down_latest"),
    *("payload_down", "payload_up", "encrypted"),
    *("messages_device_to_device", "bytes_device_to_device", "largest_down", "largest_up"),
    *("late", "bytes_late"),
)
# What counts once if messages of several fits travel together.
TOGETHER = "participants", "messages_down", "messages_up", "dropped", "messages_device_to_device"
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
        recommend), "best" (the best model, if early stopping keeps it instead) or "evaluation"
        (sums of a federated evaluation). `round`: the
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

        `late` counts the uploads, among those `dropped`, that came after the end of a round, and
        `bytes_late` all bytes that these clients received and sent in it. If the federation has
        `devices`, `seconds` is how long the phase took by the simulated clock.
    client_ids : ndarray of shape (n_clients,)
    client_bytes_down, client_bytes_up : ndarray of shape (n_clients,), dtype int64
        Bytes that each client received from the server and sent to it.
    client_bytes_device_to_device : ndarray of shape (n_clients,), dtype int64
        Bytes that each client sent to other clients.
    """

    # The simulated clock, if there is one.
    clock: Clock | None = None
    # Seconds until the end of the last entry, by that clock.
    now: float = 0.0

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
        """Join the ledgers of several fits, one after the other; clients may differ."""
        whole = cls._of_clients(ledgers)
        whole.clock = ledgers[0].clock
        for ledger in ledgers:
            whole.now += ledger.now
            whole.entries += copy.deepcopy(ledger.entries)
            whole._add_clients(ledger)
        return whole

    @classmethod
    def _of_clients(cls, ledgers):
        """Return an empty ledger of all clients of some."""
        ids = ledgers[0].client_ids
        for ledger in ledgers[1:]:
            ids = np.concatenate([ids, ledger.client_ids[~np.isin(ledger.client_ids, ids)]])
        return cls(ids)

    def _add_clients(self, ledger):
        """Add the bytes of a ledger's clients, and its seconds; return the clients' places here."""
        order = np.argsort(self.client_ids, kind="stable")
        places = order[np.searchsorted(self.client_ids, ledger.client_ids, sorter=order)]
        self._seconds += ledger._seconds
        for name in PER_CLIENT:
            getattr(self, name)[places] += getattr(ledger, name)
        return places

    @classmethod
    def side_by_side(cls, ledgers: Sequence[Ledger]) -> Self:
        """Add up the ledgers of fits whose messages travel together; clients may join late.

        Round by round; the catalogue is sent once. `largest_down` and `largest_up` are sums too.
        """
        # The first one has all clients, unless none of them has.
        ledgers = sorted(ledgers, key=lambda one: -len(one.client_ids))
        whole, merged = cls._of_clients(ledgers), {}
        for number, ledger in enumerate(ledgers):
            places = whole._add_clients(ledger)
            if number:
                whole.client_bytes_down[places] -= ledger.entries[0]["largest_down"]
            for entry in ledger.entries:
                phase = entry["phase"]
                if phase == "catalogue" and number:
                    continue
                # A fit may stop in a round that others end.
                kind = "round" if phase == "stop" else phase
                one = merged.setdefault((kind, entry["round"]), dict.fromkeys(entry, 0))
                one["phase"] = phase if one["phase"] in (0, "stop") else one["phase"]
                one["round"] = entry["round"]
                for name in COUNTS:
                    add = max if name in TOGETHER else int.__add__
                    one[name] = add(one[name], entry[name])
        # A fit may have a set-up that the first one does not have.
        phases = list(PHASES)
        order = sorted(merged, key=lambda one: phases.index(one[0]))
        whole.entries = [merged[one] for one in order]
        return whole

    def admit(self, client_ids: np.ndarray) -> None:
        """Add clients that join late, after the others."""
        self.client_ids = np.concatenate([self.client_ids, client_ids])
        for name in PER_CLIENT:
            setattr(self, name, np.pad(getattr(self, name), (0, len(client_ids))))

    def open(self, phase: str, round: int = -1) -> None:
        """Begin an entry, to which all following counts belong."""
        self.close()
        self.entries.append({"phase": phase, "round": round} | dict.fromkeys(COUNTS, 0))

    def close(
        self,
        works: NDArray[np.bool_] | bool = False,
        late: NDArray[np.bool_] | None = None,
        seconds: float | None = None,
    ) -> None:
        """Note how long what the open entry has counted so far took, if there is a clock.

        It took `seconds`, or as long as the slowest of the clients, of whom those of the mask
        `works` trained. The bytes of those that were `late` count as such.
        """
        if self.clock is None or not self.entries:
            return
        down, up = self.not_timed()
        if late is not None:
            self.count(late=late.sum(), bytes_late=(down + up)[late].sum())
        if seconds is None:
            seconds = float(self.clock.seconds(self.now, down, up, works).max(initial=0))
        self.entries[-1]["seconds"] = self.entries[-1].get("seconds", 0.0) + seconds
        self.now += seconds
        self._timed = [getattr(self, name).copy() for name in PER_CLIENT]

    def not_timed(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the bytes that each client has received and sent since the last `close`."""
        # What devices send to each other counts both ways.
        timed = getattr(self, "_timed", [0, 0, 0])
        down, up, direct = (getattr(self, n) - t for n, t in zip(PER_CLIENT, timed, strict=True))
        return down + direct, up + direct

    @property
    def hours(self) -> float:
        """Simulated hours so far; NaN if the federation has no `devices`."""
        return float("nan") if self.clock is None else self.now / 3600

    def since(self, first: Ledger) -> Self:
        """Return what has been counted since a copy, with the clients of both."""
        rest = copy.deepcopy(self)
        rest.entries, rest._seconds = rest.entries[len(first.entries) :], 0.0
        for name in PER_CLIENT:
            getattr(rest, name)[:] -= getattr(first, name)
        return rest

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

    def take_back_up(self) -> None:
        """Count no bytes of the first uploads, which clients have sent for another fit already."""
        self.client_bytes_up[:] = 0
        self.entries[-1] |= {"bytes_up": 0, "payload_up": 0, "largest_up": 0}

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
            f"up and {_readable(self.bytes_down / n_clients)} down{also}{self._in_hours()})"
        )

    def _in_hours(self):
        return "" if self.clock is None else f"; {self.hours:.3g} simulated hours"

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
        counted = (
            ("dropped", "lost or not sent"),
            ("late", "of them late"),
            ("rejected", "rejected"),
        )
        for name, what in counted:
            count = sum(entry[name] for entry in self.entries)
            notes += [f"{count:,} uploads {what}"] if count else []
        notes += [] if self.clock is None else [f"{self.hours:.3g} simulated hours"]
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
