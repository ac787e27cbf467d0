"""The server of a deployed fit: registration, set-up, rounds, the end, and checkpoints."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedrecsk._utils.sklearn_compat import clone
from fedrecsk.data._checks import LARGEST, hint
from fedrecsk.deployment import records
from fedrecsk.deployment.checks import (
    check_deployable,
    check_updatable,
    digests,
    evaluation_of,
    terms_of_noise,
)
from fedrecsk.deployment.client_message import ClientMessage, senders
from fedrecsk.deployment.device_server import DeviceServer
from fedrecsk.deployment.exchanges import Carrier, Exchanges, Members, NotEnough
from fedrecsk.deployment.progress import CHECKPOINT, SUMS, Progress, interrupted, last_fit
from fedrecsk.deployment.records import MalformedMessage
from fedrecsk.deployment.server_model import model_for_newcomers
from fedrecsk.deployment.store import MODEL, STATE, Store
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.privacy import MaskingFailed
from fedrecsk.privacy._secagg_protocol import FEWEST_CLIENTS, MaskingServer
from fedrecsk.protocol.evaluation import Scoring
from fedrecsk.protocol.keys import SETUP, Key
from fedrecsk.protocol.loop import Loop
from fedrecsk.protocol.messages import Dense, Message, PerClient, Rows
from fedrecsk.protocol.participation import Participation
from fedrecsk.protocol.secure_accounts import aligned_size, summed_updates, units_of
from fedrecsk.selection._evaluate import report_of
from fedrecsk.simulation.updating import SHARE
from fedrecsk.updates import ClientUpdates

log: logging.Logger = logging.getLogger("fedrecsk.deployment")
# What the protocol calls each kind of request.
PHASES = {
    "setup": "setup",
    "withdraw": "round",
    "round": "round",
    "validate": "validation",
    "evaluate": "evaluation",
}
# What a person can read of an evaluation.
REPORT = "evaluation.txt"


# Messages of clients, or a masked sum of them.
Uploads = Sequence[ClientMessage | ClientUpdates]


@dataclass(eq=False)
class Coordinator(Loop[Uploads, None]):
    """Runs a fit over a carrier.

    `last` is the fit that it goes on from, `evaluation` what clients report of the final model.
    If fewer than `n_clients` come in time, it begins with `n_enough`; None: it waits for all.
    Unless it `is_alone`, a search saves and logs in its place. All else is as in `server_app`.
    """

    estimator: FederatedRecommender
    carrier: InitVar[Carrier]
    store: Store
    progress: Progress
    _: KW_ONLY
    last: Progress | None = None
    n_clients: int
    quorum: float = 0.5
    patience: InitVar[float] = 60.0
    gathering: float = 600.0
    evaluation: InitVar[Scoring | None] = None
    n_enough: int | None = None
    is_alone: bool = True

    def __post_init__(self, carrier: Carrier, patience: float, evaluation: Scoring | None) -> None:
        compression = self.estimator._setting().compression
        if compression is not None and compression.down:
            log.warning(
                "Models are sent whole, so %s saves bytes of uploads only, but rounds the models "
                'too; direction="up" leaves them as they are.',
                compression,
            )
        # What clients have received last to measure it.
        self._measured = Message()
        # The server's half of the protocol, and the clients.
        self.server: DeviceServer = self.progress.server
        self.server.evaluation = evaluation
        self.members: Members = self.progress.members
        self.is_resumed: bool = len(self.members) > 0
        # Codes of the clients in the masked sums of this round, by their kind and number.
        self.survivors: dict[tuple[str, int], list[int]] = self.store.load(self._sums) or {}
        greeting, n_items = self.progress.greeting(), len(self.server.item_ids)
        self.exchanges: Exchanges = Exchanges(
            carrier, self.members, greeting, patience, n_items, self.progress.traffic
        )

    @classmethod
    def of(
        cls,
        estimator: FederatedRecommender,
        carrier: Carrier,
        store: Store,
        *,
        update: bool = False,
        key: Key | None = None,
        evaluate: Sequence[str] | None = None,
        n_negatives: int | None = None,
        **settings: Any,
    ) -> Self:
        """Return the coordinator of a fit, which may be interrupted or go on from the last one."""
        check_deployable(estimator)
        evaluation = evaluation_of(estimator, evaluate, n_negatives)
        if update:
            check_updatable(estimator)
        ours, method = digests(estimator), estimator
        last = last_fit(estimator, ours, store) if update else None
        store.remove_drafts(CHECKPOINT, SUMS)
        progress = interrupted(ours, store)
        if progress is None:
            if last is not None:
                n_rounds = max(1, round(SHARE * method._plan().rounds(settings["n_clients"])))
                method = clone(method)._set(n_rounds=n_rounds)
            progress = Progress.new(method, ours, key, last)
        elif len(progress.members):
            log.info("Resumed after %d rounds", progress.server.round)
        settings |= {"last": last, "evaluation": evaluation}
        return cls(estimator, carrier, store, progress, **settings)

    @property
    def _sums(self):
        """Name of the file of survivors."""
        return SUMS.replace("*", self.progress.fit)

    def _save(self):
        """Write a checkpoint."""
        if self.is_alone:
            self.store.save(CHECKPOINT, self.progress)

    # ------------------------------------------------------------------------ the loop

    def run(self) -> FederatedRecommender:
        """Run the fit; save and return the server's fitted estimator."""
        result = self.fit()
        self.forget()
        return result

    def fit(self) -> FederatedRecommender:
        """Run the fit, from a checkpoint if there is one, which stays."""
        if self.is_resumed:
            self.gather_again()
        else:
            self._begin()
        server = self.server
        while not self.is_over:
            if self.give_places():
                # If the server is killed now, they keep their places.
                self._save()
            self.set_up_late()
            self.round()
            if not server.stopping.stopped:
                self._save()
        result = self._end()
        log.info("The fit has ended after %d rounds: %s", server.round, self.store.folder)
        return result

    def forget(self) -> None:
        """Remove what only a restarted server needs."""
        self.store.remove(self._sums)
        if self.is_alone:
            self.store.remove(CHECKPOINT)

    def gather_again(self) -> None:
        """Wait for the clients of a resumed fit: for all of them, or for enough."""
        self._gather(len(self.members), math.ceil(self.quorum * len(self.members)))

    def _gather(self, n_clients, n_enough):
        """Wait for clients as long as for answers, and then for the least number of them."""
        try:
            self.exchanges.gather(n_clients, self.exchanges.patience)
        except NotEnough as error:
            log.warning("%s", error)
            self.exchanges.gather(n_enough, self.gathering)

    def _begin(self):
        """Take the set-up, and go on from the last fit."""
        self.set_up()
        if self.last is not None:
            self._go_on(self.last.server)
        self._save()

    def set_up(self) -> None:
        """Register clients, and take the set-up with all of them."""
        if self.n_enough is None:
            self.exchanges.gather(self.n_clients, self.gathering)
        else:
            self._gather(self.n_clients, self.n_enough)
        registered, server = list(self.members), self.server
        server.sends_whole = True
        places = server.register([one.registration for one in registered])
        for one, place in zip(registered, places, strict=True):
            one.place = place
        super().set_up()

    def ask_setup(self, message: Message) -> Uploads:
        """Return the answers of all clients to the message of the set-up."""
        uploads, n_malformed = self._ask("setup", 0, self.members.by_code, message, 1.0)
        if n_malformed:
            raise NotEnough(
                f"{n_malformed} answers to the set-up message were malformed, and the fit needs "
                "those of all clients; the log names them. Repair these nodes or leave them out, "
                "and run this app again."
            )
        if not uploads and self.server.federation.masks:
            raise NotEnough("The sum of the set-up is lost; run this app again.")
        self._answered = _senders_of(uploads)
        return uploads

    def announce(self, message: Message) -> None:
        """Let the announcement come with the next request to each client."""
        for code, one in self.members.by_code.items():
            if not self.server.has_setup or code in self._answered:
                one.is_set_up, one.knows_place = True, False

    def _ask_late(self, members):
        """Take the set-up with clients that join after it."""
        server, asked = self.server, {one.code: one for one in members}
        if server.has_setup:
            message = server.setup_message(late=True)
            uploads, n_malformed = self._ask("setup", 0, asked, message, 0.0, late=True)
            if server.federation.masks:
                # A sum over those that join late would be over few.
                answered = {one.code for one in self.exchanges.answered}
            else:
                server.close_setup(uploads, late=True)
                answered = _senders_of(uploads)
            server.ledger.count(rejected=n_malformed)
            asked = {code: one for code, one in asked.items() if code in answered}
        server.send_announcement(late=True)
        for one in asked.values():
            one.is_set_up, one.knows_place = True, False

    def _go_on(self, last):
        """Continue the model of a server at the end of the last fit."""
        server, members = self.server, self.members
        items = np.searchsorted(server.item_ids, last.item_ids)
        server.state = server.algorithm.resume(server.state, last.state, items)
        if not server.algorithm.traits.sends_once:
            return
        clients = members.by_code.values()
        changed = np.array([one.has_changed is not False for one in clients])
        counted = np.array([one.name in members.counted for one in clients])
        log.info("%d of %d clients have new rows", changed.sum(), len(changed))
        if (counted & changed).any():
            self._withdraw(counted & changed)
        server.only = changed | np.array([one.name in members.lost for one in clients])

    def _withdraw(self, who):
        """Let the clients of a mask withdraw their uploads from the sum."""
        server, asked = self.server, self._of(who)
        server.only = who
        _, message = server.open_round()
        uploads, _ = self._ask("withdraw", 0, asked, message, 1.0)
        server.close_round(uploads)
        entry = server.ledger.entries[-1]
        if entry["messages_up"] < len(asked):
            raise NotEnough(
                "Some clients did not withdraw their uploads; the log names them. Repair these "
                "nodes, and run this app again."
            )
        self.members.counted -= {one.name for one in asked.values()}
        # It is no round of the update.
        entry |= {"phase": "taken back", "round": -1}
        server.round, server.history = 0, []

    def give_places(self) -> bool:
        """Admit clients that have come since the fit began; return whether there are any."""
        server, newcomers = self.server, self.members.newcomers
        if not newcomers:
            return False
        try:
            places = server.admit([one.registration for one in newcomers])
        except ValueError as error:
            self._turn_away(newcomers, str(error))
            return False
        for one, place in zip(newcomers, places, strict=True):
            one.place = place
            if server.only is not None:
                # What it has sent before stays until the next update.
                server.only[one.code] = one.name not in self.members.counted
        return True

    def set_up_late(self) -> None:
        """Let clients join that have a place, but have not taken part in the set-up."""
        server = self.server
        waiting = [one for one in self.members if one.place is not None and not one.is_set_up]
        if not waiting:
            return
        # Some may have been asked before, and their answers were lost.
        server.repeat_setup([one.code for one in waiting])
        self._ask_late(sorted(waiting, key=lambda one: one.code))
        for one in waiting:
            if one.is_set_up:
                log.info("Client %s joins in round %d", one.name, server.round + 1)

    def _turn_away(self, newcomers, why):
        """Tell clients that they cannot join."""
        for one in newcomers:
            del self.members.by_name[one.name]
            log.warning("Client %s cannot join: %s", one.name, why)
            if one.node is not None:
                self.exchanges.refuse(one.node, why)

    def ask_round(self, participation: Participation, message: Message | None) -> None:
        """Let clients update, close the round, and log it."""
        server, number = self.server, self.server.round
        asked, n_undecided = self._of(participation.active), server.n_undecided_rounds
        uploads, n_malformed = self._ask("round", number, asked, message, self.quorum)
        server.close_round(uploads)
        if server.algorithm.traits.sends_once and not server.federation.secure_aggregation:
            members = self.members
            members.counted |= {asked[code].name for code in server.accepted.tolist()}
            members.lost |= {one.name for one in asked.values()}
            members.lost -= members.counted
        traffic = self.progress.traffic[-1]
        server.ledger.count(dropped=len(asked) - traffic["answers"], rejected=n_malformed)
        self._warn_of_lost_round(number, n_undecided)
        if not self.is_alone:
            return
        log.info(
            "Round %d of %d: %d uploads of %d clients, %.2f s",
            *(number + 1, server.plan.rounds(server.plan.units(server))),
            *(len(_senders_of(uploads)), len(asked), traffic["seconds"]),
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

    def ask_validation(self, participation: Participation, message: Message) -> Uploads:
        """Return the clients' sums of losses on the rows that they hold out."""
        server, asked = self.server, self._of(participation.receives)
        # Clients know the announcement.
        message = self._measured = message.without(server.announcement())
        uploads, n_malformed = self._ask("validate", server.round, asked, message, self.quorum)
        server.ledger.count(rejected=n_malformed)
        return uploads

    def keep_best(self, who: NDArray[np.bool_]) -> None:
        """Let clients keep what they have measured last, when they are asked again."""
        self.progress.best = self.server.round

    def _end(self):
        """Send the final model; save the server's model and return it."""
        server = self.server
        message = self.final_message()
        final = message.without(server.announcement())
        report = None if server.evaluation is None else self._evaluate(final)
        self._ask("finish", server.round, self.members.by_code, final, 0.0)
        if self.exchanges.failed and not self.exchanges.answered:
            member, reason = next(iter(self.exchanges.failed.items()))
            raise ValueError(
                f"No client has taken the final model of {server.plan.name}; client {member.name}: "
                f"{reason}. If the model has diverged: {hint(self.estimator)}"
            )
        self._turn_away(
            self.members.newcomers,
            "the fit has ended; its server's model.joblib serves new users by fold_in",
        )
        model = model_for_newcomers(self.estimator, server, message)
        model.traffic_ = self.progress.traffic
        if report is not None:
            model.evaluation_ = report
            self.store.save_text(REPORT, f"{report}\n")
            log.info("Evaluation: %r", report)
        self.store.save_result(MODEL, model)
        if self.estimator.warm_start:
            self.store.save(STATE, self.progress)
        return model

    def _evaluate(self, message):
        """Let all clients evaluate the final model on their test rows; return the report."""
        server, first = self.server, copy.deepcopy(self.server.ledger)
        server.ledger.open("evaluation", server.round)
        server.downlink.count(0)
        self._measured = message
        asked = self.members.by_code
        uploads, n_malformed = self._ask("evaluate", server.round, asked, message, self.quorum)
        upload = server.close_evaluation(uploads)
        server.ledger.count(participants=len(asked), rejected=n_malformed)
        if upload is None:
            raise NotEnough("The sums of the evaluation are lost; run this app again.")
        masks, scoring = server.uplink.masks, server.evaluation
        masking, privacy = masks and masks.report(), [server.privacy_report()]
        return report_of(scoring, upload, server.ledger.since(first), privacy, masking)

    # ---------------------------------------------------------------------- exchanges

    def _ask(self, kind, number, asked, message, quorum, late=False):
        """Ask clients; return their messages in the order of codes, and how many were malformed."""
        server = self.server
        specs = {} if kind == "finish" else server._specs((PHASES[kind], number))
        masks = server.uplink.masks
        if masks is not None and kind != "finish" and not late:
            uploads = self._masked(masks, kind, number, asked, message, specs, quorum)
            n_malformed = 0
        else:
            n_enough = math.ceil(quorum * len(asked))
            request = partial(self._request, kind, number, message=message)
            answers = self.exchanges.ask(kind, number, asked.values(), request, n_enough)
            # Late clients send nothing under masks.
            expects = masks is None and kind != "finish"
            uploads, n_malformed = self._read(kind, number, answers, specs) if expects else ([], 0)
        for member in self.exchanges.answered:
            if kind in ("validate", "evaluate"):
                member.measured = number
        return uploads, n_malformed

    def _masked(self, masks, kind, number, asked, message, specs, quorum):
        """Ask clients for a masked sum; return a list of their updates, empty if it is lost.

        It takes five requests: for keys, for shares, for the masked vectors (the request that a
        plain fit has), for confirmations, and for shares again. Each exchange has one sum: a node
        answers a repeated request with the same bytes, and no other.
        """
        server, step = self.server, (PHASES[kind], number)
        key = server.key.at(SETUP if kind == "setup" else number)
        terms = terms_of_noise(self.estimator, server.n_clients, server.n_users, server.key)
        session = records.session_of(self.progress.fit, kind, number, terms)
        # Codes of the clients in this sum, if a server that was killed has named them already.
        named = self.survivors.get((kind, number))

        def ask(stage, messages):
            """Send clients messages of a stage; return the answers that arrive and can be read."""
            # Vectors are what a plain fit asks for, too.
            name, sent = (kind, message) if stage == "vectors" else (f"{kind} {stage}", None)
            n_enough = math.ceil(quorum * len(asked))
            if stage == "confirm":
                self._name_survivors(kind, number, list(messages))
            if stage in ("confirm", "unmask"):
                n_enough = min(len(messages), plan.threshold + 1)

            def request(member):
                arrays = records.masking_arrays(messages[member.code])
                more = {"n_clients": plan.n_clients, "n_bits": plan.n_bits}
                return self._request(name, number, member, sent, more, arrays)

            members = [asked[code] for code in messages]
            found = _masks_of(self.exchanges.ask(name, number, members, request, n_enough), stage)
            if stage == "vectors" and named is not None:
                return {code: one for code, one in found.items() if code in named}
            return found

        try:
            if len(asked) < FEWEST_CLIENTS:
                # Notes that nobody was asked.
                self.exchanges.ask(kind, number, (), lambda member: b"", 0)
                raise MaskingFailed(f"Its cohort has {len(asked)} clients, fewer than a sum needs.")
            plan, ring = masks.ring_of(np.array(sorted(asked)), key)
            total, alive = MaskingServer(plan, session, ring, aligned_size(specs)).run(ask)
        except MaskingFailed as error:
            log.warning("The sum of %s %d is lost, and the model stays as it is: %s", *step, error)
            return []
        units = units_of(masks.scheme, specs, server.uplink.steps(specs, key))
        return [summed_updates(total, step, np.flatnonzero(alive), specs, units)]

    def _name_survivors(self, kind, number, codes):
        """Let a server that is killed now go on with the same clients in a masked sum."""
        # Of a validation, too, which a restarted server repeats with its round.
        now = {one: named for one, named in self.survivors.items() if one[1] == number}
        self.survivors = now | {(kind, number): codes}
        if kind != "setup":
            self.store.save(self._sums, self.survivors)

    def _read(self, kind, number, answers, specs):
        """Return the messages of answers in the order of codes, and how many were malformed."""
        uploads, n_malformed = [], 0
        for member in sorted(answers, key=lambda one: one.code):
            head, arrays = answers[member]
            try:
                # None: it has nothing to send.
                if head.get("upload", "") is not None:
                    step = PHASES[kind], number, member.code
                    uploads.append(records.upload_of(head.get("upload"), arrays, specs, step))
            except MalformedMessage as error:
                n_malformed += 1
                log.warning("Client %s: %s", member.name, error)
        return uploads, n_malformed

    def _request(self, kind, number, member, message, more=None, arrays=None):
        """Return the bytes of a request to one member, with more for its head and more arrays."""
        server, code = self.server, member.code
        known = server._held
        held = None if kind == "finish" else known.get(code)
        head = {"kind": kind, "fit": self.progress.fit, "number": number} | (more or {})
        if kind == "evaluate" and server.evaluation is not None:
            scoring = server.evaluation
            head["evaluation"] = {"metrics": scoring.metrics, "n_negatives": scoring.n_negatives}
        parts = {"message": message}
        if not member.knows_place:
            head["place"] = records.place_head(member.place)
            is_set_up = not kind.startswith("setup")
            parts["announcement"] = server.announcement() if is_set_up else None
        if self.progress.best is not None:
            head["best"] = self.progress.best
        kept = []
        if message and member.measured == number and kind in ("round", "finish"):
            # It has what it has just measured, of Rows those of its own items.
            whole = kind == "finish" and code in known
            kept = [n for n in message if _same(message[n], self._measured.get(n), whole)]
            parts["message"] = message.without(kept)
        arrays = dict(arrays or {})
        for name, one in parts.items():
            head[name], own = records.message_arrays(one, held, code, server.federation.wire_dtype)
            arrays |= {f"{name}/{label}": values for label, values in own.items()}
        if kept:
            head["message"]["kept"] = kept
        return records.pack(head, arrays)


def _masks_of(answers, stage):
    """Return what clients have answered in a stage of a masked sum, by code, if it can be read."""
    found = {}
    for member, (_, arrays) in answers.items():
        try:
            answer = records.masking_of(arrays)
        except MalformedMessage as error:
            log.warning("Client %s: %s", member.name, error)
            continue
        # A client that has diverged sends nothing.
        if isinstance(answer, bytes if stage in ("keys", "vectors") else dict):
            found[member.code] = answer
    return found


def _senders_of(uploads):
    """Return the codes of the clients of messages, or of a sum."""
    return {code for one in uploads for code in senders(one).tolist()}


def _same(field, other, whole):
    """Return whether a field is the same on the wire as another; if `whole` with all rows."""
    if type(field) not in (Dense, PerClient, *(() if whole else (Rows,))):
        return False
    if type(field) is not type(other) or field.dtype != other.dtype:
        return False
    ours, theirs = np.asarray(field.values), np.asarray(other.values)
    return ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
