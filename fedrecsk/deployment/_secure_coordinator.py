"""The server of a deployed fit in which it sees nothing but ciphertexts."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedrecsk.deployment._agreement import digests
from fedrecsk.deployment._ciphertexts import steps_arrays, uploads_of
from fedrecsk.deployment._coordinator import CHECKPOINT, Coordinator
from fedrecsk.deployment._forms import place_head
from fedrecsk.deployment._members import Members
from fedrecsk.deployment._wire import MalformedMessage, pack
from fedrecsk.simulation import SecureServer

if TYPE_CHECKING:
    from fedrecsk.deployment._carrier import Carrier
    from fedrecsk.deployment._store import Store
    from fedrecsk.privacy import Party, PrivacyReport
    from fedrecsk.simulation import Ledger

log = logging.getLogger("fedrecsk.deployment")
# Under which name the server notes how many steps a client has taken.
STEPS = "steps"


@dataclass(frozen=True)
class Records:
    """What the server knows after a fit under secure sums; it has no model.

    Attributes
    ----------
    communication_ : Ledger
    privacy_ : PrivacyReport
    n_rounds_ : int
    traffic_ : list of dict
        One per exchange: what was actually sent, and how long it took.
    """

    communication_: Ledger
    privacy_: PrivacyReport
    n_rounds_: int
    traffic_: list[dict[str, Any]]


class SecureCoordinator(Coordinator):
    """Runs a fit under ``Federation(secure_aggregation=...)`` over a carrier.

    Parameters
    ----------
    estimator, carrier, store
        As for :class:`Coordinator`.
    party : Party
        The server's side of the keys.
    **settings
        As for :class:`Coordinator`.
    """

    def __init__(
        self, estimator: Any, carrier: Carrier, store: Store, *, party: Party, **settings: Any
    ) -> None:
        self.party = party
        n_clients = settings["n_clients"]
        if n_clients > party.n_clients:
            raise ValueError(
                f"n_clients is {n_clients}, but the keys are for {party.n_clients} clients; make "
                f"keys with write_keys(..., n_clients={n_clients})."
            )
        super().__init__(estimator, carrier, store, **settings)

    _repeats = False

    def _no_members(self):
        return Members(self.party.n_clients)

    def _digests(self):
        return digests(self.estimator) | {"keys": self.party.key_id}

    def _new_server(self, key):
        return SecureServer.of(self.estimator, self.party, key)

    def run(self) -> Records:
        """Run the fit; returns the server's records, which are also saved."""
        if self.is_resumed:
            self._gather_again()
        else:
            self._begin()
        server = self.server
        while server.round < server.method._rounds():
            self._admit_newcomers()
            self._round()
            self.store.save(CHECKPOINT, self.progress)
        self._ask_securely("finish", server.round, self.members.by_code, 0.0)
        self._refuse_newcomers("the fit has ended; begin a new one with all clients")
        records = Records(
            server.ledger, server.privacy_report(), server.round, self.progress.traffic
        )
        self.store.save_records(records)
        self.store.remove(CHECKPOINT)
        log.info(
            "The fit has ended after %d rounds. The models are on the nodes; what the server "
            "knows is in %s",
            *(server.round, self.store.folder),
        )
        return records

    def _set_up(self, members, quorum, late=False):
        server = self.server
        asked = self.members.by_code
        for step in range(server.n_setups):
            server.open("setup", step)
            server.close(*self._ask_securely("setup", step, asked, quorum))
        for one in members:
            one.is_set_up = True

    def _round(self):
        server = self.server
        asked = self._of(server.open_round().active)
        number = server.round
        uploads, n_malformed = self._ask_securely("round", number, asked, self.quorum)
        server.close(uploads, n_malformed)
        server.forget(min(one.received.get(STEPS, 0) for one in self.members))
        log.info(
            "Round %d of %d: %d uploads of %d clients, %.2f s",
            *(number + 1, server.method._rounds(), len(uploads), len(asked)),
            self.progress.traffic[-1]["seconds"],
        )

    def _ask_securely(self, kind, number, asked, quorum):
        """Ask clients; returns their uploads by code, and how many were malformed."""
        server = self.server
        answers = self._exchange(
            *(kind, number, asked, quorum),
            lambda member: self._secure_request(kind, number, member),
        )
        uploads, n_malformed = [], 0
        for member in asked.values():
            if member.name not in answers:
                continue
            member.received[STEPS] = server.n_steps
            if kind == "finish":
                continue
            answer = answers[member.name]
            try:
                uploads += self._uploads(member, answer)
            except MalformedMessage as error:
                n_malformed += 1
                log.warning("Client %s: %s", member.name, error)
        return uploads, n_malformed

    def _secure_request(self, kind, number, member):
        """The bytes of a request: all steps that a member has not taken yet."""
        server, first = self.server, member.received.get(STEPS, 0)
        heads, arrays = steps_arrays(server.steps_from(first))
        head = {
            "kind": kind,
            "fit": self.progress.fit,
            "number": number,
            "first": first,
            "steps": heads,
        }
        if not member.knows_place:
            head |= {"place": place_head(member.place), "n_clients": server.n_clients}
        return pack(head, arrays)

    def _uploads(self, member, answer):
        """What a member has sent, if it is its own."""
        uploads = uploads_of(answer.head.get("uploads"), answer.arrays)
        for one in uploads:
            if one.client != member.code:
                raise MalformedMessage(f"it sends an upload of client {one.client}.")
        return uploads
