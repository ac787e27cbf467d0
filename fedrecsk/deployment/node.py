"""What a node does with each request of the server."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk.data.ids import are_strings, catalogue_ids, id_array
from fedrecsk.deployment import records
from fedrecsk.deployment.checks import (
    HOLDS_OUT,
    Refused,
    check_deployable,
    differences,
    evaluation_of,
    fits_of,
)
from fedrecsk.deployment.device import Device
from fedrecsk.deployment.exchanges import MODEL, PLACE
from fedrecsk.deployment.records import MalformedMessage
from fedrecsk.deployment.store import MODEL as MODEL_FILE
from fedrecsk.privacy import MaskingFailed
from fedrecsk.privacy._secagg_protocol import MaskingClient
from fedrecsk.privacy.secagg import MOST_BITS
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.messages import Message
from fedrecsk.selection import FederatedSearch
from fedrecsk.simulation.continuing import next_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedrecsk.deployment.checks import Fit
    from fedrecsk.deployment.exchanges import Id
    from fedrecsk.deployment.store import Store
    from fedrecsk.federated.base import FederatedRecommender
    from fedrecsk.privacy import Identity

# What `load_data` returns: the client's id, and X, y and sample_weight.
Loaded = dict[str, object]
log: logging.Logger = logging.getLogger("fedrecsk.deployment")
SETUP = -1
NOTHING = np.zeros(0, dtype=np.int32)
# Requests about masks, beside the plain one, which the masked vectors answer.
STAGES = frozenset({"keys", "shares", "confirm", "unmask"})
KINDS = frozenset({"setup", "validate", "withdraw", "round", "evaluate", "finish"})
# What `load_data` returns for an evaluation.
TESTS = frozenset({"X_test", "y_test"})
STATE = ".state"
# Number of first characters that the names of all fits of a search share.
SEARCH = 12
ANOTHER_PLACE = (
    "the server gives this node another place in the fit, which has one: its checkpoint is older "
    "than this node's state, or it wants a second answer to the same request. Begin a new fit, "
    "with an empty folder of the server"
)


@dataclass
class Past:
    """What a client keeps of the last fit in which it has trained."""

    # What `load_data` returned.
    rows: Loaded
    # Of its Device.
    memory: dict[str, tuple]


@dataclass
class Memory:
    """A node's state of one fit."""

    # None: the fit has ended, and the folder has the model.
    device: Device | None
    # The client's id.
    client: Id
    registration: records.Head
    # What `load_data` returned, and what is known from fits before; kept for updates only.
    rows: Loaded | None
    past: Past | None
    # By which the server knows this node again, whatever its address is then.
    token: str
    # Whether it is a fit of a search.
    is_searched: bool
    # Its place as the server has sent it, and whether the announcement has come, too.
    place: records.Head | None = None
    has_begun: bool = False
    announcement: Message = field(default_factory=Message)
    # Rounds of the model evaluated last, and of the one whose users are kept.
    measured: int | None = None
    kept: int | None = None
    # The last model that was received to be evaluated, with the announcement.
    model: Message | None = None
    # Answers of the round that is under way, by kind and number.
    answers: dict[tuple[str, int], bytes] = field(default_factory=dict)
    round: int = SETUP
    # The round after which it has evaluated the model on its test rows; None: it has not.
    evaluated: int | None = None
    # Its part in the masked sums of the round that is under way, by kind and number.
    masks: dict[tuple[str, int], MaskingClient] = field(default_factory=dict)


def _past(memory):
    """Return what a client keeps of the last fit in which it has trained, or of its first."""
    if memory is None or memory.device is None:
        return memory and memory.past
    if memory.device.state is None:
        return memory.past or Past(memory.rows, {})
    return Past(memory.rows, memory.device.memory())


class Lacking(Exception):
    """This node's folder is an older copy, and lacks what it was sent before."""


@dataclass(eq=False, repr=False)
class Node:
    """One client's machine: answers the server's requests.

    `load_data` returns the client's id and rows, as :func:`client_app` wants them.
    """

    estimator: FederatedRecommender | FederatedSearch
    load_data: Callable[[], Loaded]
    store: Store
    # By which it signs its keys, if uploads are masked.
    identity: Identity | None = None

    def __post_init__(self) -> None:
        # What `load_data` has returned, or why it has not, for the requests of one message; and
        # what the log has of them.
        self._rows: Loaded | Exception | None = None
        self._logged: set[str] = set()

    @cached_property
    def _fits(self) -> list[Fit]:
        """The fits in which this node may take part."""
        return fits_of(self.estimator)

    @cached_property
    def _digests(self) -> list[dict[str, str]]:
        """What the server must agree on in each of them."""
        check_deployable(self._fits[0].method)
        return [one.digests() for one in self._fits]

    def answer(self, content: bytes) -> bytes:
        """Answer a request, or several that come together.

        If this fails, the server learns that it failed; this node's log says why.
        """
        self._rows, self._logged = None, set()
        try:
            head, arrays = records.unpack(content)
            together = records.bundled(head, arrays)
        except MalformedMessage as error:
            log.error("This node refuses a request: %s", error)
            return records.pack({"refused": str(error)}, {})
        if together:
            return records.bundle([self._answer_one(*one) for one in together])
        return self._answer_one(head, arrays)

    def _answer_one(self, head, arrays):
        try:
            return self._answer(head, arrays)
        except Lacking as error:
            # The state is as it was, and the server asks again.
            self._log(log.info, "This node's folder is an older copy, which lacks its %s", error)
            return records.pack({"lacks": str(error)}, {})
        except (Refused, MalformedMessage, MaskingFailed) as error:
            self._log(log.error, "This node refuses a request: %s", error)
            return records.pack({"refused": str(error)}, {})
        except Exception as error:
            # The text of an error may have private data in it, so it stays here.
            self._log(log.exception, "This node cannot answer a request: %r", error)
            return records.pack({"failed": type(error).__name__}, {})

    def _log(self, log_it, text, error):
        """Log what has happened, once for all requests of a message."""
        if text % error not in self._logged:
            self._logged.add(text % error)
            log_it(text, error)

    def _answer(self, head, arrays):
        records.check_request(head)
        kind, fit = head["kind"], head["fit"]
        if kind == "register":
            return self._register(fit, head)
        if kind == "refuse":
            raise Refused(f"the server does not let this node take part: {head['reason']}")
        memory = self._loaded(fit)
        if memory is None:
            raise Refused("this node has no state of this fit; it must register first")
        if kind == "items":
            return self._add_items(memory, head, arrays)
        kind, _, stage = kind.partition(" ")
        if kind not in KINDS or (stage and stage not in STAGES):
            raise MalformedMessage(f"No request is of the kind {str(head['kind'])[:20]!r}.")
        return self._step(kind, stage, fit, memory, head, arrays)

    def _step(self, kind, stage, fit, memory, head, arrays):
        """Take one step of the fit, unless it has been taken, and save the state after it."""
        number = head["number"]
        step = f"{kind} {stage}".strip(), number
        # A server that was killed has the places in its checkpoint, or begins a new fit.
        if memory.place is not None and head.get("place") not in (None, memory.place):
            raise Refused(ANOTHER_PLACE)
        if step in memory.answers:
            return memory.answers[step]
        reached = SETUP if kind == "setup" else number
        _check_number(kind, number, reached, memory)
        self._learn(memory, kind, head, arrays)
        if reached != memory.round:
            memory.answers, memory.masks, memory.round = {}, {}, reached
        if stage:
            answer = self._masking(memory, fit, kind, stage, head, arrays)
        elif kind == "finish":
            answer = self._finish(memory, head, arrays)
            if memory.is_searched:
                for other in self._others(fit):
                    self.store.remove(other)
            # The users' data and vectors are in the model; only an update needs them again.
            past = _past(memory) if memory.device.method.warm_start else None
            nothing = {"device": None, "rows": None, "model": None, "announcement": Message()}
            memory = replace(memory, past=past, **nothing)
        else:
            answer = self._sent(memory, kind, number, head, arrays)
        memory.answers[step] = answer
        self.store.save(fit + STATE, memory)
        return answer

    # --------------------------------------------------------------- before the rounds

    def _register(self, fit, head):
        part = self._part(head["parameters"])
        data = {name: one for name, one in self._read().items() if name not in TESTS}
        memory = self._loaded(fit)
        if memory is None:
            past = _past(self._loaded(head["after"])) if head.get("after") else None
            # Other fits must not draw alike, or their noise could be subtracted.
            is_searched = bool(head.get("search")) and isinstance(self.estimator, FederatedSearch)
            others = self._others(fit) if is_searched else []
            if is_searched:
                data["private"] = self._private(others, head.get("after"), data.get("private"))
            device = Device(part.method, **data, holds_out=part.holds_out)
            registration = records.registration_head(device.register())
            if past is not None:
                device.remember(past.memory)
            rows = data if part.method.warm_start else None
            token = secrets.token_hex(8)
            memory = Memory(
                *(device, data["client_id"], registration, rows, past, token, is_searched)
            )
            if not others:
                self._forget_fits(but=head.get("after"))
            self.store.save(fit + STATE, memory)
            log.info("Client %s registers", data["client_id"])
        if str(memory.client) != str(data["client_id"]):
            raise Refused(
                f"the folder {self.store.folder} holds the state of client {memory.client!s}, but "
                f"load_data returns client {data['client_id']!s}; give each node its own folder"
            )
        answer = {"registration": memory.registration, "token": memory.token}
        sends_once = part.method._algorithm().traits.sends_once
        if sends_once and memory.past is not None and memory.device is not None:
            before = Device(part.method, **memory.past.rows).data
            answer["has_changed"] = before.fingerprint() != memory.device.data.fingerprint()
        return records.pack(answer, {})

    def _read(self):
        """Return what `load_data` returns, which all requests of a message share."""
        if self._rows is None:
            try:
                self._rows = self.load_data()
            except Exception as error:
                self._rows = error
        if isinstance(self._rows, Exception):
            raise self._rows
        return self._rows

    def _part(self, theirs):
        """Return which fit the server's digests are of; raise Refused if it is none."""
        found = [differences(ours, theirs) for ours in self._digests]
        if None not in found:
            searches = isinstance(self.estimator, FederatedSearch)
            if searches != (HOLDS_OUT in theirs):
                side, other = ("client_app", "server_app")[:: 1 if searches else -1]
                raise Refused(
                    f"{side} was given a FederatedSearch, and {other} a method alone; pass the "
                    "same to both."
                )
            raise Refused(min(found, key=len))
        return self._fits[found.index(None)]

    def _others(self, fit):
        """Return the names of the states of a search's other fits."""
        names = self.store.names(f"{fit[:SEARCH]}*{STATE}")
        return [name for name in names if name != fit + STATE]

    def _private(self, others, after, given):
        """Return the key of a client's draws, by which it holds out the same rows for all fits."""
        if not others:
            return Key(secrets.randbits(63)) if given is None else given
        private = self.store.load(others[0]).device.keys.private
        return next_key(private) if after else private

    def _forget_fits(self, but):
        """Delete what is kept of fits that have ended, of other searches, and unfinished files."""
        self.store.remove_drafts(f"*{STATE}")
        for name in self.store.names(f"*{STATE}"):
            memory = self.store.load(name)
            if name != f"{but}{STATE}" and (memory.device is None or memory.is_searched):
                self.store.remove(name)

    def _loaded(self, fit):
        """Return what this node keeps of a fit; None if it has no part in it."""
        return self.store.load(fit + STATE)

    def _learn(self, memory, kind, head, arrays):
        """Take what may come with any request: place, announcement, and which model is the best."""
        device = memory.device
        if head.get("place") is not None:
            device.place(records.place_of(head["place"]))
            memory.place, memory.has_begun = head["place"], kind != "setup"
        if memory.place is None or not (memory.has_begun or kind == "setup"):
            raise Lacking(PLACE)
        if head.get("announcement") is not None:
            announcement = self._message(memory, head, arrays, "announcement")
            memory.announcement = announcement
            device.announce(announcement)
        best = head.get("best")
        if best is not None and best != memory.kept:
            has_measured = best == memory.measured
            device.keep_measured() if has_measured else device.forget_kept()
            memory.kept = best if has_measured else None

    def _message(self, memory, head, arrays, name="message"):
        block, algorithm = memory.device.block, memory.device.algorithm
        start = f"{name}/"
        own = {n.removeprefix(start): one for n, one in arrays.items() if n.startswith(start)}
        form, forms = head.get(name), algorithm.downloads(block.n_items)
        message = records.message_of(form, own, block.row_items, forms)
        if message is None or not form.get("kept"):
            return message
        kept = form["kept"]
        # Fields of the model that it has just measured are not sent again.
        if memory.model is None or memory.measured != head["number"]:
            raise Lacking(MODEL)
        if not memory.model.keys() >= set(kept):
            raise MalformedMessage("The message refers to fields that the node does not have.")
        return message | {one: memory.model[one] for one in kept}

    def _masking(self, memory, fit, kind, stage, head, arrays):
        """Answer a request about masks."""
        if self.identity is None or not memory.device.federation.masks:
            raise Refused("this node has no identity to mask its uploads, or does not mask them")
        step, device = (kind, head["number"]), memory.device
        if stage == "keys":
            plan = _plan_of(device, head)
            device.check_sum(*step, plan.n_clients)
            code = int(device.block.clients[0])
            session = records.session_of(fit, *step, device.terms_of_noise)
            memory.masks[step] = MaskingClient(plan, session, code)
        if step not in memory.masks:
            raise Refused("this node has sent no keys for this sum")
        answer = memory.masks[step].answer(stage, records.masking_of(arrays), self.identity)
        return records.pack({}, records.masking_arrays(answer))

    def _sent(self, memory, kind, number, head, arrays):
        """Return what a client sends in a set-up exchange, a round or a validation."""
        message, federation = self._message(memory, head, arrays), memory.device.federation
        if kind == "evaluate":
            uploads, specs = self._evaluation(memory, number, message, head["evaluation"])
        else:
            uploads, specs = self._uploads(memory, kind, number, message)
        if not federation.masks:
            head, sent = None, {}
            if uploads:
                head, sent = records.upload_arrays(uploads[0], specs, federation.wire_dtype)
            return records.pack({"upload": head}, sent)
        masks = memory.masks.get((kind, number))
        # Without masks, as when a client joins late, nothing is sent.
        if masks is None or not uploads:
            return records.pack({}, {})
        masked = masks.answer(
            "vectors", records.masking_of(arrays), self.identity, uploads[0].integers
        )
        return records.pack({}, records.masking_arrays(masked))

    def _evaluation(self, memory, number, message, asked):
        """Return a list of the client's sums of the final model's metrics, and their specs."""
        if memory.evaluated is not None:
            raise Refused("this node has evaluated the model of this fit already")
        device, tests = memory.device, self.load_data()
        try:
            scoring = evaluation_of(device.method, asked["metrics"] or (), asked["n_negatives"])
            assert scoring is not None
        except (ValueError, TypeError, KeyError) as error:
            raise Refused(
                f"the server asks for an evaluation that does not suit: {error}"
            ) from error
        memory.model, memory.measured = memory.announcement | message, number
        memory.evaluated = number
        rows = tests.get("X_test"), tests.get("y_test")
        return device.evaluate(number, memory.model, scoring, *rows), scoring.fields()

    def _uploads(self, memory, kind, number, message):
        """Return a list of the client's upload, if it has any, and its specs."""
        device = memory.device
        n_items = device.block.n_items
        if kind == "setup":
            return device.setup(message), device.algorithm.setup_fields(n_items)
        if kind == "validate":
            memory.model, memory.measured = memory.announcement | message, number
            return device.validate(number, memory.model), device.scoring.fields()
        if kind == "withdraw":
            if memory.past is None or device.federation.secure_aggregation is not None:
                raise Refused("this node has sent nothing to an earlier fit that it could withdraw")
            device = Device(device.method, **memory.past.rows)
            device.place(records.place_of(memory.place))
            device.remembered = np.ones(1, dtype=bool)
            device.take_back(number)
        device.receive(number, message)
        uploads, _ = device.update(number)
        log.info("Client %s has trained in round %d", device.client_ids[0], number)
        return uploads, device.algorithm.fields(n_items)

    # ------------------------------------------------------------------------- the end

    def _finish(self, memory, head, arrays):
        message = memory.announcement | self._message(memory, head, arrays)
        model = memory.device.fitted(message, head["number"])
        self.store.save_result(MODEL_FILE, model)
        log.info("Client %s has its model: %s", *memory.device.client_ids, self.store.folder)
        return records.pack({"n_users": int(np.size(model.user_ids_))}, {})

    def _add_items(self, memory, head, arrays):
        """Add the rows of items that are new since the fit to this node's model."""
        model = self.store.load(MODEL_FILE)
        if memory.device is not None or model is None:
            raise Refused("this node has not ended the fit, so no model can take new items")
        # As they were in the fit, whatever has been added since, or is added again.
        items, algorithm = catalogue_ids(model.items), model._algorithm()
        message, ids = Message(**model._final_message), id_array(head["ids"], "ids")
        is_alike = are_strings(ids) == are_strings(items)
        if not is_alike or len(np.unique(ids)) < len(ids) or (items.codes(ids) >= 0).any():
            raise MalformedMessage("New items need new, distinct ids of the type of the others.")
        by_item = {
            name: field.values[: len(items)]
            for name, field in message.items()
            if len(field.values) == model.n_items_
        }
        declared = algorithm.downloads(len(items) + len(ids))
        forms = {
            name: declared[name]._replace(shape=(len(ids), *known.shape[1:]))
            for name, known in by_item.items()
        }
        rows = (records.message_of(head["rows"], arrays, NOTHING, {}) or Message()).check(forms)
        for name, known in by_item.items():
            values = np.concatenate([known, rows[name].values])
            message[name] = replace(message[name], values=values)
        items = items.followed_by(ids)
        message.check(declared)
        received = algorithm.decode(message, Key(0))
        model._take_items(
            items, algorithm.server_attributes(received) | {"_final_message": message}
        )
        self.store.save(MODEL_FILE, model)
        log.info("This node's model has %d new items", len(head["ids"]))
        return records.pack({}, {})


def _plan_of(device, head):
    """Return the plan of a masked sum, of which the server tells how many clients it has."""
    n_clients, n_bits = head.get("n_clients"), head.get("n_bits")
    scheme, noisy = device.federation.secure_aggregation, 0.0 if device.adds_noise else None
    try:
        plan = scheme.plan(n_clients, noisy)
    except ValueError as error:
        raise Refused(str(error)) from error
    # Noise of the clients may need more bits than their numbers.
    if type(n_bits) is not int or not plan.n_bits <= n_bits <= MOST_BITS:
        raise MalformedMessage(
            f"The masked numbers of {n_clients} clients have {plan.n_bits} to {MOST_BITS} bits, "
            f"and not {str(n_bits)[:20]}."
        )
    return plan._replace(n_bits=n_bits)


def _check_number(kind, number, reached, memory):
    """Raise if this request cannot follow those before it, or the fit has no such exchange."""
    if memory.device is None:
        raise Refused("this node has ended the fit, and its folder has the model")
    # A node does not know how many clients there are. More of them may need more rounds.
    n_rounds = memory.device.plan.rounds(np.inf)
    # Each may cost privacy: two masked sums of the same numbers differ by single clients' numbers.
    limits = {
        "setup": (int(bool(memory.device.algorithm.setup_fields(1))), "set-up exchanges"),
        "withdraw": (1, "chance to take something back"),
        "round": (n_rounds, "rounds"),
        "validate": (n_rounds + 1, "validations"),
    }
    if kind in limits and not 0 <= number < limits[kind][0]:
        most, what = limits[kind]
        raise Refused(f"the server asks for {kind} {number}, but the fit has {most} {what}")
    if reached < memory.round:
        asked = "the set-up" if kind == "setup" else f"round {number}"
        raise Refused(
            f"this node is in round {memory.round}, and the server asks for {asked}: the "
            "server's checkpoint is older than this node's state. Begin a new fit, with an empty "
            "folder of the server"
        )
