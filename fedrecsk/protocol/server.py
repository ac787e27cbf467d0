"""The server of a fit: registers clients, draws cohorts, sends messages, takes steps."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk._utils.user_warnings import warn
from fedrecsk.protocol.algorithm import ChoosesCohorts, extended
from fedrecsk.protocol.central_noise import CentralNoise
from fedrecsk.protocol.clock import Clock, Timetable
from fedrecsk.protocol.early_stopping import EarlyStopping
from fedrecsk.protocol.keys import SETUP, Key
from fedrecsk.protocol.ledger import Ledger
from fedrecsk.protocol.links import Downlink, SideBySide, StepTotal, Uplink, matrix_to_compress
from fedrecsk.protocol.messages import Catalogue, ClientCodes, MalformedMessage, Message, Rows
from fedrecsk.protocol.participation import Participation, Sampling
from fedrecsk.protocol.protection import is_compressed, measured
from fedrecsk.protocol.schedules import Synchronous

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fedrecsk.privacy.report import PrivacyReport
    from fedrecsk.protocol.algorithm import AnyAlgorithm
    from fedrecsk.protocol.evaluation import Scoring
    from fedrecsk.protocol.federation import Federation
    from fedrecsk.protocol.messages import Registration, Upload
    from fedrecsk.protocol.plan import FitPlan


@dataclass(eq=False, repr=False)
class Server:
    """The server of one fit. Pickle it to make a checkpoint.

    Call its methods in this order: `register`; `setup_message` and `close_setup`, if the method
    `has_setup`; `send_announcement`; for each round `open_round` and `close_round`; `send_final`.

    Parameters
    ----------
    plan : FitPlan
        How the fit runs.
    key : Key
        The shared key, before the first round.
    item_ids : ndarray of shape (n_items,)
        The catalogue, which is sent to all clients.
    rating_range : tuple of float or None
        Lowest and highest rating. If None, that of the plan.
    secret : Key or None
        Key of the server's own draws under central privacy: noise, and secret cohorts. If None,
        each comes afresh from the operating system, so that no checkpoint holds it.
    """

    plan: FitPlan
    key: Key
    item_ids: np.ndarray
    rating_range: tuple[float, float] | None = None
    secret: Key | None = None

    def __post_init__(self) -> None:
        plan = self.plan
        self.algorithm: AnyAlgorithm = plan.algorithm
        self.federation: Federation = plan.federation
        self.rating_range = self.rating_range or plan.rating_scale
        self.sampling: Sampling = plan.sampling
        self._round_specs = self.algorithm.fields(len(self.item_ids))
        # What the method keeps; None before the set-up has ended.
        self.state: object = None
        self.history: list[dict[str, float]] = []
        # Rounds run so far.
        self.round: int = 0
        # Rounds in which all uploads were lost, and rounds with too few for the aggregator.
        self.n_empty_rounds: int = 0
        self.n_undecided_rounds: int = 0
        self.scoring: Scoring = plan.scoring
        # Of the final model, on rows that clients are given for it; None: it is not evaluated.
        self.evaluation: Scoring | None = None
        self.stopping: EarlyStopping[Message] = EarlyStopping(plan.tol, plan.patience)
        # Whether clients always receive the full model, as deployed ones do.
        self.sends_whole: bool = False
        # Of a fit of a search, whose messages travel with those of the other fits.
        self.beside: SideBySide | None = None
        # The simulated clock, and who begins when in asynchronous rounds, from the first one.
        self.clock: Clock | None = None
        self.timetable: Timetable | None = None
        # Mask of the clients that rounds are for; None: cohorts are drawn.
        self.only: NDArray[np.bool_] | None = None
        # Codes of the clients whose uploads of the last round count.
        self.accepted: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._leave_out_clients()
        self._opened: tuple[Participation, Message | None] | None = None
        # Clients that are late in the open round, and how long it takes if not until all have come.
        self._late: NDArray[np.bool_] | None = None
        self._seconds: float | None = None
        # The last message that was sent.
        self._last_message = Message()

    # ------------------------------------------------------------------------- clients

    def _leave_out_clients(self):
        """Begin without clients, or again after a registration that was refused."""
        self.n_clients: int = 0
        self.n_users: int = 0
        self.client_ids: np.ndarray = np.zeros(0)
        self.n_held: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._first_users = np.zeros(0, dtype=np.int64)
        # Clients that have received the message of a round.
        self._has_received = np.zeros(0, dtype=bool)

    def register(self, registrations: Sequence[Registration]) -> list[ClientCodes]:
        """Register clients and send them the catalogue; without a set-up, make the first state.

        Parameters
        ----------
        registrations : list of Registration

        Returns
        -------
        places : list of ClientCodes
            Codes for each registration, in the order of the clients' ids.

        Raises
        ------
        ValueError
            If a client registers twice.
        """
        if self.federation.schedule is not None and self.clock is None:
            raise ValueError(
                f"{type(self.federation.schedule).__name__} goes by a simulated clock, and real "
                "devices have their own; set schedule=None, or call fit."
            )
        self._leave_out_clients()
        places = self._added(registrations)
        self.releases: CentralNoise | None = None
        if self.federation.central_dp is not None:
            given = self.plan, self.n_clients, self.key, self.secret, self.n_users
            self.releases = CentralNoise.of(*given)
            self.releases.check_range(int(self._user_counts.max()))
        self.ledger: Ledger = Ledger(self.client_ids)
        self.ledger.clock = self.clock
        given = self.federation, self.ledger, self.n_held, self.sends_whole, self.beside
        self.downlink: Downlink = Downlink(*given)
        cohort = self.sampling.smallest_cohort(self.n_clients)
        self.uplink: Uplink = Uplink(self.downlink, cohort, self.releases)
        self.ledger.open("catalogue")
        self.downlink.count(catalogue_nbytes(self.item_ids))
        if self.uplink.channel is not None:
            self.ledger.open("keys")
            self.downlink.count(self.uplink.channel.scheme.key_nbytes())
        if not self.has_setup:
            self.state = self.algorithm.begin(self._catalogue, None, self.key)
        return places

    def _added(self, registrations):
        """Give clients codes that follow those of the others; return these by registration."""
        ids = np.concatenate([one.client_ids for one in registrations])
        order = np.argsort(ids, kind="stable")
        twice = np.flatnonzero(ids[order][1:] == ids[order][:-1])
        if len(twice):
            raise ValueError(
                f"Client {ids[order][twice[0]]!s} registers twice; give each client its own id."
            )
        first, n_new, all_ids = self.n_clients, len(ids), ids[order]
        if first:
            all_ids = np.concatenate([self.client_ids, all_ids])
        n_users = np.concatenate([one.n_users for one in registrations])[order]
        n_held = np.concatenate([one.n_held for one in registrations])[order]
        first_users = self.n_users + np.cumsum(n_users) - n_users
        self.client_ids, self.n_clients = all_ids, len(all_ids)
        self.n_held = np.concatenate([self.n_held, n_held])
        self._first_users = np.concatenate([self._first_users, first_users])
        self._has_received = np.pad(self._has_received, (0, n_new))
        self.n_users += int(n_users.sum())
        self.stopping.n_cohorts = self.sampling.n_cohorts(self.n_clients)
        codes = np.empty(n_new, dtype=np.int64)
        codes[order] = first + np.arange(n_new)
        ends = np.cumsum([len(one.client_ids) for one in registrations])
        return [
            ClientCodes(own, self._first_users[own], self.key, self.n_clients, self.n_users)
            for own in np.split(codes, ends[:-1])
        ]

    # --------------------------------------------------------------- before the rounds

    @property
    def has_setup(self) -> bool:
        """Whether there is an exchange of sums before the rounds."""
        return bool(self._specs(("setup", 0)))

    @property
    def _catalogue(self):
        return Catalogue(len(self.item_ids), self.plan.units(self), self.rating_range)

    @property
    def _user_counts(self):
        """Number of users of each client."""
        return np.diff(self._first_users, append=self.n_users)

    @property
    def _everyone(self):
        self._check_registered()
        return np.ones(self.n_clients, dtype=bool)

    def _check_registered(self):
        """Raise if there are no clients."""
        if not self.n_clients:
            raise ValueError("No client has registered yet; call register() first.")

    def _specs(self, step):
        """Return the uploads' specs in a step, which is a tuple of phase and number."""
        phase, _ = step
        if phase == "setup":
            return self.algorithm.setup_fields(len(self.item_ids))
        if phase == "evaluation" and self.evaluation is not None:
            return self.evaluation.fields()
        return self.scoring.fields() if phase == "validation" else self._round_specs

    def setup_message(self) -> Message:
        """Return the message to every client in the set-up."""
        return self._send_setup(self._everyone)

    def _send_setup(self, who):
        """Send the clients of a mask the message of the set-up."""
        self.ledger.open("setup", 0)
        message = self._declared(self.algorithm.request(self._catalogue))
        if self.releases is not None:
            message = message | self.releases.terms(self.key.at(SETUP))
        self.downlink.announce(message, who)
        return message

    def close_setup(self, total: StepTotal) -> None:
        """Make the server's first state from the answers to the set-up message.

        Parameters
        ----------
        total : StepTotal
            As in `close_round`.
        """
        upload = self.uplink.close(total, self.key.at(SETUP))
        if upload is None:
            raise ValueError(
                "No client has answered the set-up message, but all registered ones must."
            )
        is_plain = self.federation.secure_aggregation is None
        if self.beside is not None and is_plain:
            sums = [part for name, total in upload.items() for part in (name, total.sum)]
            if not self.beside.is_first(*sums):
                self.ledger.take_back_up()
        self.state = self.algorithm.begin(self._catalogue, upload, self.key)

    def announcement(self) -> Message:
        """Message to every client after the set-up."""
        self._check_registered()
        return self._declared(self.algorithm.announce(self.state))

    def send_announcement(self) -> Message:
        """Send the announcement to every client, and count its bytes."""
        return self._announce(self._everyone)

    def _announce(self, who):
        """Send the announcement to the clients of a mask."""
        message = self.announcement()
        if message and self.ledger.entries[-1]["phase"] != "setup":
            self.ledger.open("setup")
        self.downlink.announce(message, who)
        return message

    def _declared(self, message):
        """Return one of the algorithm's messages; raise TypeError if it is not as declared."""
        if not message:
            return message
        try:
            return message.check(self.algorithm.downloads(len(self.item_ids)), self.n_clients)
        except MalformedMessage as error:
            raise TypeError(
                f"{self.plan.name} sends what its algorithm's downloads() does not declare: {error}"
            ) from error

    # --------------------------------------------------------------------- each round

    def _drawn(self, key):
        """Draw the participation of a round, unless the method chooses the cohort."""
        if self.releases is not None and self.releases.always:
            # Clients know the shared key.
            key = self.releases.secret_of(key)
        algorithm, cohort = self.algorithm, self.only
        if cohort is None and algorithm.traits.chooses_cohorts:
            size = self.sampling.cohort_size(self.n_clients)
            cohort = extended(algorithm, ChoosesCohorts).choose(
                self.state, self.n_clients, size, key
            )
            if cohort is not None and algorithm.traits.shares_history:
                raise TypeError(
                    f"{self.plan.name} shares state between clients of equal history, "
                    "and chosen cohorts give each client its own; let `choose` return None."
                )
        return self.sampling.draw(self.n_clients, key, cohort)

    def open_round(self) -> tuple[Participation, Message | None]:
        """Begin a round; returns the participation and the message, None if none is sent."""
        self._check_registered()
        key = self.key.at(self.round)
        message = self._declared(self.algorithm.broadcast(self.state, key))
        self.ledger.open("round", self.round)
        part = self._planned(message, key)
        if self.plan.by_user and self.releases is not None:
            chosen = part.active | part.dropped
            self.releases.expect(int(self._user_counts[chosen].sum()))
        if self.round == 0 and self.federation.compression is not None:
            self._warn_of_idle_compression(message or {})
        delta = self.algorithm.delta(self.state)
        message = self.downlink.send(message, part.receives, delta, key)
        if not message and not self.algorithm.traits.may_be_silent:
            raise TypeError(
                f"{self.plan.name} broadcasts nothing in round {self.round}; a method "
                "whose clients continue with an earlier message must have the trait may_be_silent."
            )
        if message and self.releases is not None:
            terms = self.releases.terms(key)
            self.downlink.add(terms, part.receives)
            message = message | terms
        if message:
            self._has_received |= part.receives
            self._last_message = message
        self._opened = self._without_late(part), message
        return self._opened

    def _planned(self, message, key):
        """Return the participation of a round, before anybody is late."""
        if not self.federation.is_asynchronous:
            return self._drawn(key)
        if self.timetable is None:
            sizes = self.downlink.nbytes(message), self._bytes_up()
            given = self.clock, self.federation.schedule, self.sampling, self.key
            self.timetable = Timetable(*given, self.ledger.now, *sizes)
            # A pass reaches each client about once.
            self.stopping.n_cohorts = max(1, round(self.n_clients / self.timetable.n_awaited))
        return self.timetable.participation(self.round)

    def _bytes_up(self):
        """Return the bytes that each client will send in a round."""
        specs, federation = self._round_specs, self.federation
        how = federation.wire_dtype, federation.compression
        return measured(dict.fromkeys(specs), specs, self.n_held, *how)[0]

    def _without_late(self, part):
        """Find how long the open round will take; return its participation without late uploads."""
        self._late, self._seconds = None, None
        schedule, clock = self.federation.schedule, self.clock
        if self.timetable is not None:
            self._seconds = self.timetable.seconds(self.round)
        elif isinstance(schedule, Synchronous) and clock is not None:
            down, _ = self.ledger.not_timed()
            up = self._bytes_up() * part.active
            seconds = clock.seconds(self.ledger.now, down, up, part.active)
            end = schedule.seconds(seconds[part.active], part.delivers[part.active])
            late = part.delivers & (seconds > end)
            delivers, dropped = part.delivers & ~late, part.dropped | late
            part = part._replace(delivers=delivers, dropped=dropped)
            self._late, self._seconds = late, min(end, float(seconds.max(initial=0)))
        return part

    def _warn_of_idle_compression(self, message):
        """Warn if compression has nothing to do in one of its directions."""
        compressor, method = self.federation.compression, self.plan.name
        assert compressor is not None
        specs = self._specs(("round", 0)).values()
        down = any(matrix_to_compress(one) is not None for one in message.values())
        up = any(is_compressed(compressor, spec) for spec in specs)
        up_alone, down_alone, none = 'direction="up"', 'direction="down"', "compression=None"
        if compressor.down and not down:
            warn(
                f"{compressor} compresses nothing that clients of {method} download in a round, "
                "because rows of a client's own items, vectors and counts are sent as they are; "
                f"set {up_alone if up else none}."
            )
        if compressor.up and not up:
            warn(
                f"{compressor} compresses nothing that clients of {method} upload in a round, "
                "because the method has shortened it already, or sends no matrices of real "
                f"numbers; set {f'{down_alone} or ' if down else ''}{none}."
            )

    def close_round(self, total: StepTotal) -> Upload | None:
        """Take the server's step of a round, with the uploads that have arrived.

        Uploads that contain NaN or numbers beyond 1e15 are left out and counted as rejected.

        Parameters
        ----------
        total : StepTotal
            The `new_total` to which the clients' updates have been added. Add them in the order of
            the clients' codes to get the same sums bit for bit.

        Returns
        -------
        Upload or None
            What the server sees of the uploads.

        Raises
        ------
        ValueError
            If no round is open.
        """
        key, (turn, _) = self.key.at(self.round), self.opened
        self.accepted = np.concatenate([np.zeros(0, dtype=np.int64), *total.accepted])
        updating = turn.active & self._has_received
        self.ledger.count(participants=updating.sum(), dropped=turn.dropped.sum())
        centers = self._centers() if self.releases is not None else None
        upload = self.uplink.close(total, key, centers)
        if upload is None and any(map(len, total.senders)):
            if self.ledger.entries[-1]["messages_up"] > 0:
                self.n_undecided_rounds += 1
            else:
                self.n_empty_rounds += 1
        # What overflows ends the fit, or warns, with its likely cause.
        with np.errstate(over="ignore", invalid="ignore"):
            self.state = self.algorithm.step(self.state, upload, key)
        self._end_round(turn, total.loss)
        return upload

    @property
    def opened(self) -> tuple[Participation, Message | None]:
        """The open round's participation and message."""
        if self._opened is None:
            raise ValueError(f"Round {self.round} is not open; call open_round() first.")
        return self._opened

    def stop(self) -> None:
        """Let the fit end in the open round, in which clients receive, but do not train."""
        self.ledger.entries[-1]["phase"] = "stop"

    def _end_round(self, turn, loss):
        """Record the open round, and close it."""
        self._opened = None
        self.ledger.close(turn.active, self._late, self._seconds)
        entry, (total, weight) = self.ledger.entries[-1], loss
        # If no client has made a training step, the last loss is kept.
        last = self.history[-1]["loss"] if self.history and entry["participants"] else float("nan")
        row = {
            "round": entry["round"],
            "loss": float(total / weight) if weight else last,
            "participants": entry["participants"],
            "bytes_down": entry["bytes_down"],
            "bytes_up": entry["bytes_up"],
        }
        if self.clock is not None:
            row["hours"] = self.ledger.hours
        if self.plan.early_stopping:
            row[self.scoring.curve] = float("nan")
        self.history.append(row)
        self.round += 1

    def new_total(self, phase: str = "round", number: int = 0) -> StepTotal:
        """Return an empty total of an exchange, to which updates of own clients are added."""
        self._check_registered()
        return StepTotal(self.uplink, self._specs((phase, number)), learned=phase == "round")

    def _centers(self):
        """Return what a client without any change would send in a round, unless that is zero."""
        if not self._last_message:
            return {}
        return self.algorithm.centers(self._last_message)

    # ------------------------------------------------------------------ early stopping

    def final_participation(self) -> Participation:
        """Return the clients that evaluate the last model: all, or the next cohort."""
        self._check_registered()
        if self.sampling.fraction == 1:
            return Participation.full(self.n_clients)
        return self._drawn(self.key.at(self.round))

    def close_validation(self, total: StepTotal, receives: NDArray[np.bool_]) -> bool:
        """Use what clients have measured; returns whether the model is the best so far.

        Parameters
        ----------
        total : StepTotal
            As in `close_round`.
        receives : ndarray of shape (n_clients,), dtype bool
            Clients that received it for evaluation.
        """
        key = self.key.at(self.round)
        upload = self.uplink.close(total, key)
        score = self.scoring.values(upload)[self.scoring.metrics[0]]
        self.history[-1][self.scoring.curve] = score
        return self.stopping.judge(
            -score if self.scoring.greater_is_better else score,
            self.round - 1,
            self.current_message,
            by_everybody=bool(receives.all()),
            is_last=self.ledger.entries[-1]["phase"] == "final",
        )

    def send_for_validation(self, receives: NDArray[np.bool_]) -> Message:
        """Send the clients of the mask what they need to evaluate the model.

        If a round's message lacks fields of the final model, has the rows of own items only, or
        has compressed changes, the rest is sent too, and counted.
        """
        if self._opened is not None and not self._opened[1]:
            # The open round sends nothing.
            self.downlink.announce(self._final(), receives)
            return self.current_message()
        sent, model = self._last_message, self._final()
        # The rounds of some methods do not send the model at all.
        if not model.keys() & sent.keys():
            sent = {}
        lacking = {
            name: field
            for name, field in model.items()
            if name not in sent or isinstance(sent[name], Rows) or name in self.downlink.changes
        }
        if lacking and self.ledger.entries[-1]["phase"] != "final":
            self.downlink.add(Message(**lacking), receives)
        return self.current_message()

    # ------------------------------------------------------------------------- the end

    def fork(self) -> Server:
        """Return a copy that may end the fit, while this one can go on."""
        other = copy.copy(self)
        memo = {
            id(one): one
            for one in (self.federation, self.uplink.channel, self.ledger.client_ids, self.beside)
        }
        accounts = self.ledger, self.downlink, self.uplink
        other.ledger, other.downlink, other.uplink = copy.deepcopy(accounts, memo)
        other.history = copy.deepcopy(self.history)
        other.stopping = copy.copy(self.stopping)
        return other

    def current_message(self) -> Message:
        """Return the announcement and the current model, as clients need them to recommend."""
        return Message(**self.announcement(), **self._final())

    def _final(self):
        """Return the current model."""
        return self._declared(self.algorithm.final(self.state))

    def send_final(self) -> Message:
        """Send all clients the model of the last round; returns it with the announcement."""
        self._check_registered()
        self.ledger.open("final", self.round)
        model, delta = self._final(), None
        if model.keys() <= self._last_message.keys():
            delta = self.algorithm.delta(self.state)
        self.downlink.send(model, self._everyone, delta)
        return self.current_message()

    def send_best(self) -> Message:
        """Send all clients the best model instead; returns it with the announcement.

        Raises
        ------
        ValueError
            If no client has measured a validation loss.
        """
        best = self.stopping.message
        if best is None:
            raise ValueError(
                "There is no best model, because no client has measured a validation loss; use "
                "send_final() instead."
            )
        self.ledger.open("best", self.round)
        # The full model, because the latest change does not lead back to an earlier one.
        self.downlink.send(best.without(self.announcement()), self._everyone)
        return best

    def privacy_report(self) -> PrivacyReport:
        """Report the privacy loss of all uploads so far."""
        self._check_registered()
        return self.uplink.privacy_report(self.plan.server_sees)


def catalogue_nbytes(item_ids: np.ndarray) -> int:
    """Return the items' ids' bytes. Strings count as UTF-8 with one byte as terminator."""
    if item_ids.dtype.kind in "UO":
        return sum(len(str(one).encode()) + 1 for one in item_ids.tolist())
    return item_ids.nbytes
