"""The server of a deployed fit: registration, set-up, rounds, the end, and checkpoints."""

from __future__ import annotations

import copy
import logging
import math
import secrets
import time
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from fedrecsk.base import attributes_of
from fedrecsk.data._checks import LARGEST, check_items, hint
from fedrecsk.data.interactions import Ids, catalogue_ids, named
from fedrecsk.deployment.checks import (
    check_deployable,
    check_updatable,
    differences,
    digests,
)
from fedrecsk.deployment.exchanges import Exchanges, Members, NotEnough
from fedrecsk.deployment.masked_sums import PHASES, ask_for_sum
from fedrecsk.deployment.records import (
    MalformedMessage,
    message_arrays,
    pack,
    place_head,
    upload_of,
)
from fedrecsk.deployment.store import MODEL, RECORDS
from fedrecsk.federated._updating import SHARE
from fedrecsk.protocol.encryption import EncryptedSums
from fedrecsk.protocol.messages import Message, Rows
from fedrecsk.protocol.server import Server
from fedrecsk.updates import ClientUpdates

if TYPE_CHECKING:
    from fedrecsk.deployment.exchanges import Carrier, Member
    from fedrecsk.deployment.store import Store
    from fedrecsk.privacy import Party, PrivacyReport
    from fedrecsk.protocol import Ledger
    from fedrecsk.protocol.keys import Key

log: logging.Logger = logging.getLogger("fedrecsk.deployment")
CHECKPOINT = "checkpoint"
STATE = "state"


@dataclass(eq=False)
class Progress:
    """All that a restarted server needs."""

    # Name of the fit, by which nodes know their state.
    fit: str
    # Of the estimator's parameters.
    digests: dict[str, str]
    server: Server
    members: Members
    # Number of the validation whose model is the best so far.
    best: int | None = None
    # One per exchange: what was sent, and how long it took.
    traffic: list[dict[str, Any]] = field(default_factory=list)
    # Codes of the clients in the masked sum that is being unmasked, by its kind and number.
    survivors: dict[tuple[str, int], list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Records:
    """The server's results of a fit under secure sums, in which it has no model.

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


class Coordinator:
    """Runs a fit over a carrier; its parameters are those of :func:`server_app`."""

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
        update: bool = False,
        key: Key | None = None,
        party: Party | None = None,
    ) -> None:
        check_deployable(estimator)
        if update:
            check_updatable(estimator)
        if party is not None and n_clients > party.n_clients:
            raise ValueError(
                f"n_clients is {n_clients}, but the keys are for {party.n_clients} clients; make "
                f"keys with write_keys(..., n_clients={n_clients})."
            )
        compression = estimator._setting().compression
        if compression is not None and compression.down:
            log.warning(
                "Models are sent whole, so %s saves bytes of uploads only, but rounds the models "
                'too; direction="up" leaves them as they are.',
                compression,
            )
        self.estimator = estimator
        self.party = party
        self.store = store
        self.n_clients = n_clients
        # The fit that this one goes on from, at its end.
        self._last: Progress | None = self._last_fit() if update else None
        self.quorum = quorum
        self.gathering = gathering
        self.is_resumed: bool = False
        # Codes of the clients that have answered last.
        self._answered: set[int] = set()
        # What clients received last to measure it.
        self._measured = Message()
        store.remove_drafts(CHECKPOINT)
        self.progress: Progress = self._resumed() or Progress(
            secrets.token_hex(8),
            digests(estimator, party),
            Server.of(self._with_its_rounds(), key, party=party),
            Members(
                None if party is None else party.n_clients,
                self._last.members.counted if self._last else (),
            ),
        )
        # The server's half of the protocol, and the clients.
        self.server: Server = self.progress.server
        self.members: Members = self.progress.members
        greeting = {
            "kind": "register",
            "fit": self.progress.fit,
            "parameters": self.progress.digests,
        }
        if self._last is not None:
            greeting["after"] = self._last.fit
        self.exchanges: Exchanges = Exchanges(
            carrier,
            self.members,
            pack(greeting, {}),
            patience,
            len(self.server.item_ids),
            # Under secure sums it has no model that it could send.
            repeats=party is None,
        )

    def _last_fit(self):
        """Return the last fit, of which only the items may differ."""
        last = self.store.load(STATE)
        if last is None:
            raise ValueError(
                f"{self.store.folder} has no state of a fit that has ended, so there is nothing to "
                "update; run without update first."
            )
        ours = digests(self.estimator, self.party)
        of_items = {name: ours[name] for name in ("items", "item_features") if name in ours}
        differing = differences(ours, last.digests | of_items)
        if differing:
            raise ValueError(f"{self.store.folder / STATE} is of another fit: {differing}")
        lacking = np.setdiff1d(last.server.item_ids, catalogue_ids(self.estimator.items).values)
        if len(lacking):
            raise ValueError(
                f"items lacks {named('item', lacking)}, which the last fit had; add new items to "
                "the old ones."
            )
        return last

    def _with_its_rounds(self):
        """Return the estimator with the number of rounds that are to be run."""
        if self._last is None:
            return self.estimator
        n_rounds = max(1, round(SHARE * self.estimator._rounds(self.n_clients)))
        return clone(self.estimator).set_params(n_rounds=n_rounds)

    def _resumed(self):
        """Return the progress of a fit that was interrupted; None if there is none."""
        progress = self.store.load(CHECKPOINT)
        if progress is None:
            return None
        differing = differences(digests(self.estimator, self.party), progress.digests)
        if differing:
            raise ValueError(
                f"{self.store.folder / CHECKPOINT} is of a fit that has not ended, but "
                f"{differing} Or remove the file to begin anew."
            )
        progress.members.forget_addresses()
        self.is_resumed = True
        log.info("Resumed after %d rounds", progress.server.round)
        return progress

    # ------------------------------------------------------------------------ the loop

    def run(self) -> Any:
        """Run the fit; return the server's fitted estimator, or Records, which are also saved."""
        if self.is_resumed:
            self._gather_again()
        else:
            self._begin()
        server = self.server
        while (
            server.round < server.method._rounds(server.n_clients) and not server.stopping.stopped
        ):
            self._admit_newcomers()
            self._round()
            if not server.stopping.stopped:
                self.store.save(CHECKPOINT, self.progress)
        result = self._end() if self.party is None else self._end_encrypted()
        self.store.remove(CHECKPOINT)
        log.info("The fit has ended after %d rounds: %s", server.round, self.store.folder)
        return result

    def _gather_again(self):
        """Wait for the clients of a resumed fit: for all of them, or for enough."""
        n_enough = self.n_enough(len(self.members))
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
        server.sends_whole = True
        places = server.register([one.registration for one in registered])
        for one, place in zip(registered, places, strict=True):
            one.place = place
        self._set_up(registered, quorum=1.0)
        if self._last is not None:
            self._go_on(self._last.server)
        self.store.save(CHECKPOINT, self.progress)

    def _go_on(self, last):
        """Continue the model of a server at the end of the last fit."""
        server, members = self.server, self.members
        items = np.searchsorted(server.item_ids, last.item_ids)
        server.state = server.method._resumed(server.state, last.state, items)
        if not server.method._sends_once:
            return
        counted = np.array([one.name in members.counted for one in members.by_code.values()])
        changed = np.array([bool(one.has_changed) for one in members.by_code.values()])
        log.info("%d of %d clients have new rows", (changed | ~counted).sum(), len(counted))
        if (counted & changed).any():
            self._withdraw(counted & changed)
        server.only = changed | ~counted

    def _withdraw(self, who):
        """Let the clients of a mask take back what they have sent to the sum."""
        server = self.server
        server.only = who
        _, message = server.open_round()
        specs = server.method._upload_specs(len(server.item_ids))
        uploads, _ = self._ask("withdraw", 0, self._of(who), message, specs, 1.0)
        server.close_round(uploads)
        entry = server.ledger.entries[-1]
        if entry["messages_up"] < who.sum():
            raise NotEnough(
                "Some clients did not take back what they have sent; the log names them. Mend "
                "these nodes, and run this app again."
            )
        self.members.counted -= {one.name for one in self._of(who).values()}
        # It is no round of the update.
        entry |= {"phase": "taken back", "round": -1}
        server.round, server.history = 0, []

    def _set_up(self, members, quorum, late=False):
        """Take the set-up exchanges with some members."""
        server = self.server
        asked = {one.code: one for one in sorted(members, key=lambda one: one.code)}
        for step in range(server.n_setups):
            message = server.setup_message(step, late=late)
            specs = server.method._setup_specs(len(server.item_ids), step)
            uploads, n_malformed = self._ask("setup", step, asked, message, specs, quorum, late)
            if n_malformed and not late:
                raise NotEnough(
                    f"{n_malformed} answers to set-up exchange {step} were malformed, and the fit "
                    "needs those of all clients; the log names them. Mend these nodes or leave "
                    "them out, and run this app again."
                )
            if late and server.federation.masks:
                # A sum over those that join late would be over few.
                answered = self._answered
            else:
                if not uploads and server.federation.masks:
                    raise NotEnough(
                        f"The sum of set-up exchange {step} is lost; run this app again."
                    )
                server.close_setup(step, uploads, late=late)
                answered = _senders_of(uploads)
            server.ledger.count(rejected=n_malformed)
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
            if self.server.only is not None:
                # What it has sent before stays until the next update.
                self.server.only[one.code] = one.name not in self.members.counted
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
        specs = server.method._upload_specs(len(server.item_ids))
        number = server.round
        uploads, n_malformed = self._ask("round", number, asked, message, specs, self.quorum)
        senders = _senders_of(uploads)
        n_undecided = server.n_undecided_rounds
        server.close_round(uploads)
        if server.method._sends_once and not server.federation.secure_aggregation:
            accepted = [one.client for one in uploads if server.accept(one).n_accepted]
            self.members.counted |= {asked[code].name for code in accepted}
        n_silent = len(asked) - self.progress.traffic[-1]["answers"]
        server.ledger.count(dropped=n_silent, rejected=n_malformed)
        if server.totals is not None:
            server.totals.forget(min(one.n_steps for one in self.members))
        self._warn_of_lost_round(number, n_undecided)
        log.info(
            "Round %d of %d: %d uploads of %d clients, %.2f s",
            *(number + 1, server.method._rounds(server.n_clients), len(senders), len(asked)),
            self.progress.traffic[-1]["seconds"],
        )

    def _warn_of_lost_round(self, number, n_undecided):
        entry = self.server.ledger.entries[-1]
        if entry["rejected"] and not entry["messages_up"]:
            log.warning(
                "All %d uploads of round %d held NaN or numbers beyond %g, or were malformed, so "
                "the model stays as it is. If all nodes are honest, their training diverges. %s",
                *(entry["rejected"], number, LARGEST, hint(self.estimator)),
            )
        if self.server.n_undecided_rounds > n_undecided:
            log.warning(
                "%s had too few uploads in round %d, so the model stays as it is. Let more clients "
                "take part, raise quorum or patience, or choose another aggregator.",
                *(self.server.federation.aggregator, number),
            )

    def _of(self, mask):
        """Return the clients of a mask that have been set up, by code."""
        by_code = self.members.by_code
        chosen = {code: by_code[code] for code in np.flatnonzero(mask).tolist()}
        return {code: one for code, one in chosen.items() if one.is_set_up}

    def _validate(self, receives):
        """Let clients evaluate the model, and note whether it is the best so far."""
        server = self.server
        message = self._without_announcement(server.send_for_validation(receives))
        self._measured = message
        specs = server._specs(("validation", server.round))
        asked = self._of(receives)
        uploads, n_malformed = self._ask(
            *("validate", server.round, asked, message, specs, self.quorum)
        )
        server.ledger.count(rejected=n_malformed)
        if server.close_validation(uploads, receives):
            self.progress.best = server.round

    def _end(self):
        """Send the final model, save the server's estimator and return it."""
        server, stopping = self.server, self.server.stopping
        if stopping.stopped:
            message = server.send_best()
        else:
            message = server.send_final()
            if server.method.early_stopping:
                receives = server.final_participation().receives
                self._validate(receives)
                if stopping.message is None:
                    warnings.warn(
                        "No client has measured a validation loss, so the last model is kept.",
                        ConvergenceWarning,
                        stacklevel=2,
                    )
                elif stopping.best_round != server.round - 1:
                    message = server.send_best()
        final = self._without_announcement(message)
        self._ask("finish", server.round, self.members.by_code, final, {}, 0.0)
        self._refuse_newcomers(
            "the fit has ended; its server's model.joblib serves new users by fold_in"
        )
        model = model_for_newcomers(self.estimator, server, message)
        model.traffic_ = self.progress.traffic
        model.n_rounds = self.estimator.n_rounds
        self.store.save_result(MODEL, model)
        if self.estimator.warm_start:
            self.store.save(STATE, self.progress)
        return model

    def _end_encrypted(self):
        """Send the last sums, save the server's records and return them."""
        server = self.server
        self._ask("finish", server.round, self.members.by_code, server.send_final(), {}, 0.0)
        self._refuse_newcomers("the fit has ended; begin a new one with all clients")
        records = Records(
            server.ledger, server.privacy_report(), server.round, self.progress.traffic
        )
        self.store.save_result(RECORDS, records)
        return records

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

    def n_enough(self, n_asked: int, quorum: float | None = None) -> int:
        """Return the number of clients that must answer."""
        return math.ceil((self.quorum if quorum is None else quorum) * n_asked)

    def exchange(self, kind: str, number: int, asked: dict, n_enough: int, request: Any) -> dict:
        """Ask clients, note the traffic, and return their answers by name."""
        exchanges, began = self.exchanges, time.monotonic()
        before = exchanges.bytes_down, exchanges.bytes_up
        answers = exchanges.ask(kind, asked.values(), request, n_enough)
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
        self._answered = {code for code, one in asked.items() if one.name in answers}
        return answers

    def note_survivors(self, kind: str, number: int, survivors: list[int]) -> None:
        """Note who is in a masked sum before it is unmasked, and save that."""
        self.progress.survivors = {(kind, number): survivors}
        if kind != "setup":
            self.store.save(CHECKPOINT, self.progress)

    def _ask(self, kind, number, asked, message, specs, quorum, late=False):
        """Ask clients; return their messages in the order of codes, and how many were malformed."""
        if self.server.federation.masks and kind != "finish" and not late:
            uploads = ask_for_sum(self, kind, number, asked, message, specs, quorum)
            if kind == "validate":
                for code in self._answered:
                    asked[code].measured = number
            return uploads, 0
        answers = self.exchange(
            *(kind, number, asked, self.n_enough(len(asked), quorum)),
            lambda member: self.request(kind, number, member, message),
        )
        uploads, n_malformed = [], 0
        if self.server.federation.masks:
            return uploads, n_malformed
        for member in asked.values():
            if member.name not in answers:
                continue
            if kind == "validate":
                member.measured = number
            if isinstance(message, EncryptedSums):
                member.n_steps = message.first + len(message.sums)
            try:
                uploads += self._upload(kind, number, member, answers[member.name], specs)
            except MalformedMessage as error:
                n_malformed += 1
                log.warning("Client %s: %s", member.name, error)
        return uploads, n_malformed

    def request(
        self,
        kind: str,
        number: int,
        member: Member,
        message: Any,
        more: dict[str, Any] | None = None,
        own_arrays: dict[str, np.ndarray] | None = None,
    ) -> bytes:
        """Return the bytes of a request to one member; `more` is put into its head."""
        server, code = self.server, member.code
        wire_dtype = server.federation.wire_dtype
        if isinstance(message, EncryptedSums):
            message = message.since(member.n_steps)
        held = None if kind == "finish" else server._held.get(code)
        head: dict[str, Any] = {"kind": kind, "fit": self.progress.fit, "number": number}
        head |= more or {}
        parts = {"message": message}
        if not member.knows_place:
            head["place"] = place_head(member.place)
            is_plain = not kind.startswith("setup") and self.party is None
            parts["announcement"] = server.announcement() if is_plain else None
        if self.progress.best is not None:
            head["best"] = self.progress.best
        arrays = dict(own_arrays or {})
        for name, one in parts.items():
            spec, own = message_arrays(one, held, code, wire_dtype)
            is_model = name == "message" and kind in ("round", "finish")
            if is_model and spec and member.measured == number:
                # It has what it has just measured.
                known = {
                    n: self._measured.get(n)
                    for n in own
                    if held is not None or type(one[n]) is not Rows
                }
                spec["kept"] = [n for n, field in known.items() if _same(one[n], field)]
                own = {label: one for label, one in own.items() if label not in spec["kept"]}
            head[name] = spec
            arrays |= {f"{name}/{label}": values for label, values in own.items()}
        return pack(head, arrays)

    def _upload(self, kind, number, member: Member, answer, specs):
        """Return a list of a member's message, if any; raise if it was not asked for that."""
        head = answer.head.get("upload", "nothing")
        if head is None or kind == "finish":
            return []
        one = upload_of(head, answer.arrays, specs)
        step, expected = (one.phase, one.round, one.client), (PHASES[kind], number, member.code)
        if step != expected or not type(one.round) is type(one.client) is int:
            raise MalformedMessage(f"it sends {str(step)[:80]} instead of {expected}.")
        return [one]


def _senders_of(uploads):
    """Return the codes of the clients of messages, or of a sum."""
    return {
        code
        for one in uploads
        for code in (one.clients.tolist() if isinstance(one, ClientUpdates) else [int(one.client)])
    }


def _same(field, other):
    """Return whether two fields of messages are the same on the wire."""
    if type(field) is not type(other) or field.dtype != other.dtype:
        return False
    ours, theirs = np.asarray(field.values), np.asarray(other.values)
    return ours.dtype == theirs.dtype and np.array_equal(ours, theirs)


def model_for_newcomers(estimator: Any, server: Server, message: Message) -> Any:
    """Return a fitted estimator without users, which folds in newcomers."""
    model = copy.copy(server.method)
    received = model._decode_broadcast(message, server.key.at(server.round))
    # An invented user shows which attributes users have.
    items = catalogue_ids(estimator.items)
    low, high = getattr(estimator, "rating_scale", None) or (1, 1)
    X = np.array([["nobody", items.values[0]]], dtype=object)
    # The user has no time, and X of newcomers may have more columns.
    reader = copy.copy(model)
    if getattr(reader, "timestamps", None) is not None:
        reader.timestamps = None
    data = reader._read(X, np.array([(low + high) / 2]), None, None, item_ids=items)
    attributes = model._server_attributes(received)
    check_items(model, data, attributes)
    vars(model).update(
        attributes_of(data) | attributes,
        _final_message=message,
        n_rounds_=server.round,
        history_=server.history,
        communication_=server.ledger,
        privacy_=server.privacy_report(),
    )
    if (server.state or {}).get("content") is not None:
        model._content = server.state["content"]
    if model.early_stopping:
        model.best_round_ = server.stopping.best_round
    try:
        users = model._new_user_attributes(data)
    except ValueError as error:
        raise ValueError(
            f"{type(model).__name__} diverged: no user can be fitted to its final items. "
            f"{hint(estimator)}"
        ) from error
    nobody = {name: rows[:0] for name, rows in users.items()}
    no_ids = Ids(np.zeros(0, dtype=np.int64), "user ids")
    vars(model).update(
        nobody,
        user_ids_=no_ids.values.copy(),
        n_users_=0,
        _users=no_ids,
        _seen=(np.zeros(1, dtype=np.int64), data.items[:0]),
    )
    return model
