"""The server of a deployed fit: registration, set-up, rounds, the end, and checkpoints."""

from __future__ import annotations

import logging
import math
import secrets
import time
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from fedrecsk._checks import cure
from fedrecsk.deployment._agreement import check_deployable, differences, digests
from fedrecsk.deployment._changes import Changes
from fedrecsk.deployment._exchange import Exchanges, NotEnough
from fedrecsk.deployment._forms import message_arrays, parcels_of, place_head
from fedrecsk.deployment._members import Members
from fedrecsk.deployment._newcomers import model_for_newcomers
from fedrecsk.deployment._wire import MalformedMessage, pack
from fedrecsk.simulation.messages import Message
from fedrecsk.simulation.server import Server

if TYPE_CHECKING:
    from fedrecsk.deployment._carrier import Carrier
    from fedrecsk.deployment._members import Member
    from fedrecsk.deployment._store import Store
    from fedrecsk.simulation.keys import Key

log = logging.getLogger("fedrecsk.deployment")
CHECKPOINT = "checkpoint"


@dataclass(eq=False)
class Progress:
    """All that a restarted server needs.

    Parameters
    ----------
    fit : str
        Name of the fit, by which nodes know their state.
    digests : dict of {str: str}
        Of the estimator's parameters.
    server : Server
    members : Members
    best : int or None
        Number of the validation whose model is the best so far.
    traffic : list of dict
        One per exchange: what was sent, and how long it took.
    sent : dict of {str: tuple}
        Number and content of the last messages, of which clients get the changes.
    """

    fit: str
    digests: dict[str, str]
    server: Server
    members: Members
    best: int | None = None
    traffic: list[dict[str, Any]] = field(default_factory=list)
    sent: dict[str, tuple[int, Message]] = field(default_factory=dict)


class Coordinator:
    """Runs a fit over a carrier.

    Parameters
    ----------
    estimator : federated estimator
    carrier : Carrier
    store : Store
        For the checkpoint, and at the end for the fitted estimator.
    n_clients : int
        Number of clients with which the fit begins.
    quorum : float in (0, 1]
        Share of a round's clients whose uploads suffice.
    patience : float
        Seconds to wait for the answers of a round.
    gathering : float
        Seconds to wait for the clients to register.
    key : Key or None
        The shared key. None: drawn by the operating system.
    """

    def __init__(
        self,
        estimator: Any,
        carrier: Carrier,
        store: Store,
        *,
        n_clients: int,
        quorum: float = 0.5,
        patience: float = 60.0,
        gathering: float = 600.0,
        key: Key | None = None,
    ) -> None:
        check_deployable(estimator)
        self.estimator = estimator
        self.store = store
        self.n_clients = n_clients
        self.quorum = quorum
        self.gathering = gathering
        self.is_resumed: bool = False
        store.remove_drafts(CHECKPOINT)
        self.progress: Progress = self._resumed() or Progress(
            secrets.token_hex(8), self._digests(), self._new_server(key), self._no_members()
        )
        greeting = {
            "kind": "register",
            "fit": self.progress.fit,
            "parameters": self.progress.digests,
        }
        self.exchanges: Exchanges = Exchanges(
            carrier,
            self.progress.members,
            pack(greeting, {}),
            patience,
            len(self.server.item_ids),
            repeats=self._repeats,
        )

    # Whether the server has all that it has sent.
    _repeats = True

    def _no_members(self):
        return Members()

    def _digests(self):
        return digests(self.estimator)

    def _new_server(self, key):
        return Server.of(self.estimator, key)

    def _resumed(self):
        """The progress of a fit that was interrupted; None if there is none."""
        progress = self.store.load(CHECKPOINT)
        if progress is None:
            return None
        differing = differences(self._digests(), progress.digests)
        if differing:
            raise ValueError(
                f"{self.store.folder / CHECKPOINT} is of a fit that has not ended, but "
                f"{differing} Or remove the file to begin anew."
            )
        progress.members.forget_addresses()
        self.is_resumed = True
        log.info("Resumed after %d rounds", progress.server.round)
        return progress

    @property
    def server(self) -> Server:
        """The server's half of the protocol."""
        return self.progress.server

    @property
    def members(self) -> Members:
        """The clients."""
        return self.progress.members

    # ------------------------------------------------------------------------ the loop

    def run(self) -> Any:
        """Run the fit; returns the server's fitted estimator, which is also saved."""
        if self.is_resumed:
            self._gather_again()
        else:
            self._begin()
        server = self.server
        while server.round < server.method._rounds() and not server.stopping.stopped:
            self._admit_newcomers()
            self._round()
            if not server.stopping.stopped:
                self.store.save(CHECKPOINT, self.progress)
        model = self._end()
        model.traffic_ = self.progress.traffic
        self.store.save_model(model)
        self.store.remove(CHECKPOINT)
        log.info("The fit has ended after %d rounds: %s", server.round, self.store.folder)
        return model

    def _gather_again(self):
        """Wait for the clients of a resumed fit: for all of them, or for enough."""
        n_enough = self._quorum(len(self.members))
        try:
            self.exchanges.gather(len(self.members), self.exchanges.patience)
        except NotEnough as error:
            log.warning("%s", error)
            self.exchanges.gather(n_enough, self.gathering)

    def _begin(self):
        """Register clients, and take the set-up exchanges with all of them."""
        self.exchanges.gather(self.n_clients, self.gathering)
        members, server = self.members, self.server
        registered = list(members)
        places = server.register([one.registration for one in registered])
        for one, place in zip(registered, places, strict=True):
            one.place = place
        self._set_up(registered, quorum=1.0)
        self.store.save(CHECKPOINT, self.progress)

    def _set_up(self, members, quorum, late=False):
        """Take the set-up exchanges with some members."""
        server = self.server
        asked = {one.code: one for one in sorted(members, key=lambda one: one.code)}
        for step in range(server.n_setups):
            message = server.setup_message(step, late=late)
            forms = server.method._setup_forms(len(server.item_ids), step)
            parcels, n_malformed = self._ask("setup", step, asked, message, forms, quorum=quorum)
            _check_setup(step, n_malformed, late)
            server.close_setup(step, parcels, late=late)
            server.ledger.count(rejected=n_malformed)
            answered = {int(one.client) for one in parcels}
            asked = {code: one for code, one in asked.items() if code in answered}
        server.send_announcement(late=late)
        for one in asked.values():
            one.is_set_up = True
            # The announcement comes with the next request.
            one.knows_place = False

    def _admit_newcomers(self):
        """Let clients join that have come since the fit began."""
        newcomers = self.members.newcomers
        if newcomers:
            self._give_places(newcomers)
        waiting = [one for one in self.members if one.place is not None and not one.is_set_up]
        if not waiting:
            return
        # Some may have been asked before, and their answers were lost.
        self.server.repeat_setup([one.code for one in waiting])
        self._set_up(waiting, quorum=0.0, late=True)
        for one in waiting:
            if one.is_set_up:
                log.info("Client %s joins in round %d", one.name, self.server.round + 1)

    def _give_places(self, newcomers):
        """Admit clients, if the server can."""
        try:
            places = self.server.admit([one.registration for one in newcomers])
        except ValueError as error:
            for one in newcomers:
                self.members.remove(one)
                log.warning("Client %s cannot join: %s", one.name, error)
                if one.node is not None:
                    self.exchanges.refuse(one.node, str(error))
            return
        for one, place in zip(newcomers, places, strict=True):
            one.place = place
        # If the server is killed now, they keep their places.
        self.store.save(CHECKPOINT, self.progress)

    def _round(self):
        server = self.server
        turn, message = server.open_round()
        if message and server.round and server.method.early_stopping:
            self._validate(turn.receives)
            if server.stopping.stopped:
                return
        asked = self._of(turn.active)
        forms = server.method._upload_forms(len(server.item_ids))
        number = server.round
        parcels, n_malformed = self._ask("round", number, asked, message, forms, self.quorum)
        senders = {int(one.client) for one in parcels}
        server.close_round(parcels)
        n_silent = len(asked) - self.progress.traffic[-1]["answers"]
        server.ledger.count(dropped=n_silent, rejected=n_malformed)
        self._warn_of_broken_uploads(number)
        log.info(
            "Round %d of %d: %d uploads of %d clients, %.2f s",
            *(number + 1, server.method._rounds(), len(senders), len(asked)),
            self.progress.traffic[-1]["seconds"],
        )

    def _warn_of_broken_uploads(self, number):
        entry = self.server.ledger.entries[-1]
        if entry["rejected"] and not entry["messages_up"]:
            log.warning(
                "All %d uploads of round %d held NaN or infinite values, or were malformed, so the "
                "model stays as it is. If all nodes are honest, their training diverges. %s",
                *(entry["rejected"], number, cure(self.estimator)),
            )

    def _of(self, mask):
        """The clients of a mask that have been set up, by code."""
        by_code = self.members.by_code
        chosen = {code: by_code[code] for code in np.flatnonzero(mask).tolist()}
        return {code: one for code, one in chosen.items() if one.is_set_up}

    def _validate(self, receives):
        """Let clients evaluate the model; returns the codes of those that have.

        Notes whether it is the best so far.
        """
        server = self.server
        message = self._without_announcement(server.send_for_validation(receives))
        forms = server._forms(("validation", server.round))
        asked = self._of(receives)
        parcels, n_malformed = self._ask(
            *("validate", server.round, asked, message, forms, self.quorum)
        )
        server.ledger.count(rejected=n_malformed)
        if server.close_validation(parcels, receives):
            self.progress.best = server.round
        return {int(one.client) for one in parcels}

    def _end(self):
        """Send the final model; returns the server's estimator."""
        server, stopping = self.server, self.server.stopping
        if stopping.stopped:
            message, known = server.send_best(), ()
        else:
            message, known = server.send_final(), ()
            if server.method.early_stopping:
                receives = server.final_participation().receives
                known = self._validate(receives)
                if stopping.message is None:
                    warnings.warn(
                        "No client has measured a validation loss, so the last model is kept.",
                        ConvergenceWarning,
                        stacklevel=2,
                    )
                elif stopping.best_round != server.round - 1:
                    message, known = server.send_best(), ()
        final = self._without_announcement(message)
        self._ask("finish", server.round, self.members.by_code, final, {}, 0.0, known=known)
        self._refuse_newcomers(
            "the fit has ended; its server's model.joblib serves new users by fold_in"
        )
        return model_for_newcomers(self.estimator, server, message)

    def _refuse_newcomers(self, why):
        """Tell clients that have come too late that nothing will be asked of them."""
        for one in self.members.newcomers:
            log.warning("Client %s cannot join: %s", one.name, why)
            if one.node is not None:
                self.exchanges.refuse(one.node, why)

    def _without_announcement(self, message):
        announced = self.server.announcement()
        return Message(**{name: one for name, one in message.items() if name not in announced})

    # ---------------------------------------------------------------------- exchanges

    def _quorum(self, n_asked, quorum=None):
        return math.ceil((self.quorum if quorum is None else quorum) * n_asked)

    def _ask(self, kind, number, asked, message, forms, quorum, known=()):
        """Ask clients; returns their parcels in the order of codes, and how many were malformed.

        The clients `known` have the message already.
        """
        changes = Changes(self.server, self.progress.sent)

        def request(member):
            sent = None if member.code in known else message
            return self._request(kind, number, member, sent, changes)

        answers = self._exchange(kind, number, asked, quorum, request)
        changes.note(kind, number, message, [m for m in asked.values() if m.name in answers])
        parcels, n_malformed = [], 0
        for member in asked.values():
            if member.name not in answers:
                continue
            try:
                parcels += self._parcels(kind, number, member, answers[member.name], forms)
            except MalformedMessage as error:
                n_malformed += 1
                log.warning("Client %s: %s", member.name, error)
        return parcels, n_malformed

    def _exchange(self, kind, number, asked, quorum, request):
        """Send clients a request each and return their answers, by name; notes the traffic."""
        exchanges, began = self.exchanges, time.monotonic()
        before = exchanges.bytes_down, exchanges.bytes_up
        answers = exchanges.ask(kind, asked.values(), request, self._quorum(len(asked), quorum))
        self.progress.traffic.append(
            {
                "kind": kind,
                "number": number,
                "requests": len(asked),
                "answers": len(answers),
                "bytes_down": exchanges.bytes_down - before[0],
                "bytes_up": exchanges.bytes_up - before[1],
                "seconds": time.monotonic() - began,
            }
        )
        return answers

    def _request(self, kind, number, member, message, changes):
        """The bytes of a request to one member."""
        server, code = self.server, member.code
        wire_dtype = server.federation.wire_dtype
        held = None if kind == "finish" else server._held.get(code)
        head: dict[str, Any] = {"kind": kind, "fit": self.progress.fit, "number": number}
        parts = {"message": message}
        if not member.knows_place:
            head["place"] = place_head(member.place)
            parts["announcement"] = None if kind == "setup" else server.announcement()
        if self.progress.best is not None:
            head["best"] = self.progress.best
        arrays = {}
        for name, one in parts.items():
            form, own = message_arrays(one, held, code, wire_dtype)
            if name == "message" and form is not None and kind != "setup":
                form, own = changes.instead_of(form, own, member)
            head[name] = form
            arrays |= {f"{name}/{label}": values for label, values in own.items()}
        return pack(head, arrays)

    def _parcels(self, kind, number, member: Member, answer, forms):
        """What a member has sent, if it is what it was asked for."""
        if kind == "finish":
            return []
        heads = answer.head.get("parcels")
        if isinstance(heads, list) and len(heads) > 1:
            raise MalformedMessage(f"it sends {len(heads)} uploads at once.")
        parcels = parcels_of(heads, answer.arrays, forms)
        phase = {"setup": "setup", "round": "round", "validate": "validation"}[kind]
        for one in parcels:
            step = one.phase, one.round, one.client
            are_codes = type(one.round) is type(one.client) is int
            if step != (phase, number, member.code) or not are_codes:
                raise MalformedMessage(
                    f"it sends {str(step)[:80]} instead of {(phase, number, member.code)}."
                )
        return parcels


def _check_setup(step, n_malformed, late):
    """Raise if a fit cannot begin, because a client does not answer as it should."""
    if n_malformed and not late:
        raise NotEnough(
            f"{n_malformed} answers to set-up exchange {step} were malformed, and the fit needs "
            "those of all clients; the log names them. Mend these nodes or leave them out, and run "
            "this app again."
        )
