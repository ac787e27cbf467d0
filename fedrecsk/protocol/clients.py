"""The clients' side of the protocol: their data, their private state and their uploads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from fedrecsk.data._checks import ClientFailed
from fedrecsk.privacy import SecAggPlus
from fedrecsk.protocol.algorithm import MeetsPeers, SendsOnce, SharesHistory, extended
from fedrecsk.protocol.blocks import by_user, codes_of_users
from fedrecsk.protocol.evaluation import HeldOut, Scoring
from fedrecsk.protocol.keys import SETUP
from fedrecsk.protocol.messages import Message, Registration
from fedrecsk.protocol.participation import Participation, RoundMasks
from fedrecsk.protocol.protection import added_up_by, as_sent, completed, protected, stages
from fedrecsk.updates import ClientUpdates, FieldSpec, SparseRows, Updates
from fedrecsk.updates import through as apply

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedrecsk.protocol.algorithm import AnyAlgorithm
    from fedrecsk.protocol.blocks import Attributes, Block
    from fedrecsk.protocol.federation import Federation
    from fedrecsk.protocol.keys import Keys
    from fedrecsk.protocol.messages import GroupMessages
    from fedrecsk.protocol.plan import FitPlan, Uploads
    from fedrecsk.protocol.protection import Forge
    from fedrecsk.protocol.states import Remembered


# Clients whose uploads arrive in the same later round are added up at once if they are at least
# this share of a block's; others are kept one by one.
ADDED_UP = 0.05


@dataclass(eq=False)
class SharedHistory:
    """What clients with equal histories share, and the last round in which it took its step."""

    common: object = None
    round: int = -1


@dataclass(eq=False, repr=False)
class ClientGroup:
    """One or more clients with their private state.

    The simulator has one object for many clients, a deployed device has one for itself. Both call
    the same methods in this order: `register`; `place`; `setup`, if the method has one;
    `announce`; in each round `validate` (under early stopping), `receive`, `exchange` and
    `end_exchange` (between devices) and `update`; finally `fitted`.

    Parameters
    ----------
    plan : FitPlan
        How the fit runs, as the server has it.
    block : Block
        The clients' data.
    keys : Keys
        The keys before the first round.
    client_ids : ndarray of shape (n_clients,)
        Ids of the clients.
    shared : SharedHistory
        What is shared with other clients of equal history.
    held_out : Block or None
        Held-out rows of the same clients, for validation.
    forge : callable or None
        Forges the uploads, if an adversary controls these clients (all of them).
    is_device : bool
        Whether they are on a machine of their own, which can add nothing up with others.
    user_codes : ndarray of shape (n_users,) or None
        Codes of their users in draws, if the method runs for each user apart. None: those of the
        block.
    """

    plan: FitPlan
    block: Block
    keys: Keys
    _: KW_ONLY
    client_ids: np.ndarray
    shared: SharedHistory = field(default_factory=SharedHistory)
    held_out: Block | None = None
    forge: Forge | None = None
    is_device: bool = False
    user_codes: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        plan, block = self.plan, self.block
        self.algorithm: AnyAlgorithm = plan.algorithm
        traits = self.algorithm.traits
        self._inner: Block = self._seen_by_the_method(block)
        # To which of these clients each client of the method belongs.
        n_units = np.diff(block.client_indptr) if plan.by_user else 1
        self._owners = np.repeat(np.arange(block.n_clients), n_units)
        self.federation: Federation = plan.federation
        self._specs: dict[str, FieldSpec] = self.algorithm.fields(block.n_items)
        self.scoring: Scoring = plan.scoring
        # Whether nothing is added up here, not even answers in the set-up.
        self._is_apart: bool = self.is_device or traits.treats_clients_apart
        is_forged = self.forge is not None
        self.uploads: Uploads = plan.uploads(is_apart=self._is_apart, is_forged=is_forged)
        # Whether every client draws its own noise.
        self._draws_each: bool = self.uploads == "held" or plan.draws_each
        # Whether clients of equal history share state, and whether they may start from an earlier
        # message again.
        self._shares_state: bool = traits.shares_history
        stale = self.federation.dropout > 0 and self.federation.dropout_mode == "stale"
        self._goes_back: bool = traits.may_be_silent or stale
        self.state: object = None
        # What they keep of an earlier fit; in a method of sums, a mask of who has sent.
        self.remembered: Remembered | NDArray[np.bool_] | None = None
        self._announcement = Message()
        # Messages that clients received last, by round, and the round of each client's last one.
        self._messages = {}
        self._last = np.full(block.n_clients, -1)
        # Clients that have ever updated.
        self._has_updated = np.zeros(block.n_clients, dtype=bool)
        # The round that they are in, None before the first, and their participation in it.
        self._round: int | None = None
        self._part = Participation.full(block.n_clients)
        # The clients that took part in the last exchange among devices.
        self._met = None
        # The local updates of a round, between `honest` and `update`.
        self._training = None
        # Users' attributes under the model evaluated last, and under the best model.
        self._measured = None
        self._kept = None

    @property
    def _adds_up(self):
        """Whether they add up updates of several users, each of which is clipped before."""
        return self.plan.by_user and self.block.n_users > self.block.n_clients

    @property
    def _codes(self):
        """Codes of their users in the fitted model; None: those that the method sees."""
        return self.block.users if self.plan.by_user else None

    def _seen_by_the_method(self, block):
        """Return a block in which, if the method treats users apart, every user is a client."""
        return block.by_user(self.user_codes) if self.plan.by_user else block

    # --------------------------------------------------------------- before the rounds

    def register(self) -> Registration:
        """Return the clients' Registration."""
        n_held = self.block.row_counts
        if self.federation.local_dp is not None or self.federation.central_dp is not None:
            # Under differential privacy it is not sent, because it depends on the data.
            n_held = np.zeros_like(n_held)
        return Registration(self.client_ids, np.diff(self.block.client_indptr), n_held)

    def place(self, codes: NDArray[np.int64], first_users: NDArray[np.int64]) -> Self:
        """Store the codes that the server has assigned to these clients and their users."""
        users = codes_of_users(self.block.client_indptr, first_users)
        self.block = replace(self.block, clients=np.asarray(codes), users=users)
        self._inner = self._seen_by_the_method(self.block)
        return self

    def setup(self, message: Message | None) -> ClientUpdates:
        """Answer the set-up message."""
        everyone = Participation.full(self.block.n_clients)
        turn = RoundMasks(everyone.active, everyone.delivers, False)
        keys, address = self.keys.at(SETUP), ("setup", 0)
        specs = self.algorithm.setup_fields(self.block.n_items)
        central, local = self.federation.central_dp, self.federation.local_dp
        updates = self.algorithm.answer(self._inner, message, keys)
        is_alone = self._is_apart and self.block.n_clients == 1
        if central is not None or (local is not None and local.protects_uploads):
            updates = self._single_setup(message, updates, specs, keys)
            if self._adds_up:
                updates = self._by_client(updates, message, address, specs, turn)
        elif not is_alone:
            return self._completed(updates, address, specs, turn, "sum")
        each = is_alone or self._draws_each
        given = {"each": each, "clips": not self._adds_up, "is_setup": True}
        done = stages(self.federation, keys.private, message, self.forge, **given)
        uploads = "held" if self._is_apart else "single" if central is None else self.uploads
        single = self._completed(updates, address, specs, turn, uploads)
        return protected(single, done, uploads)

    def _single_setup(self, message, updates, specs, keys):
        """Return each client's own answer to a set-up message."""
        if all(isinstance(one, SparseRows) for one in updates.fields.values()):
            return updates
        numbers = np.arange(self._inner.n_clients)
        parts = [self._inner.part(numbers == number) for number in numbers]
        answers = [self.algorithm.answer(part, message, keys).fields for part in parts]
        return Updates(
            {
                name: SparseRows.stacked(
                    np.stack([np.reshape(one[name], spec.shape) for one in answers])
                )
                for name, spec in specs.items()
            }
        )

    def announce(self, message: Message) -> None:
        """Store the server's announcement after the set-up."""
        self._announcement = message

    # --------------------------------------------------------------------- each round

    def receive(
        self, round: int, message: Message | None, participation: Participation | None = None
    ) -> None:
        """Store the message of a round (None: there is none), and take the step that is shared.

        Parameters
        ----------
        round : int
        message : Message or None
            The message after `decode`.
        participation : Participation or None
            Participation of all clients of the fit, in the order of their codes. None: all clients
            take part and no upload is lost.
        """
        if self._round == round:
            return
        if self._round is not None and self._round > round:
            raise ValueError(
                f"These clients are in round {self._round} and cannot go back to round {round}; "
                "send them the message of the next round."
            )
        self._round, self._part = round, self._part_in(participation)
        part = self._part
        if message is not None:
            self._messages[round] = message.of(self.block.clients)
            self._last[part.receives] = round
        ready = part.active & (self._last >= 0)
        shared = self.shared
        if self._shares_state and ready.any() and shared.round != round:
            message, key = self._messages[self._last[ready][0]], self.keys.at(round)
            algorithm = extended(self.algorithm, SharesHistory)
            shared.common = algorithm.share(shared.common, message, key)
            shared.round = round

    def exchange(self, round: int, step: int) -> GroupMessages | None:
        """Return what these clients send directly to others in a round; None if nothing.

        Parameters
        ----------
        round : int
        step : int
            Number of the exchange within the round.
        """
        self._check_in(round)
        part, key = self._part, self.keys.at(round)
        turn = self._turn(part.active & (self._last == round))
        if not turn.active.any():
            return None
        message = self._messages[round]
        self._begin(message, key)
        self.state, messages = extended(self.algorithm, MeetsPeers).exchange(
            self.block, self.state, message, turn, step, key
        )
        self._met = turn
        return messages

    def end_exchange(self, step: int, means: NDArray[np.float64]) -> None:
        """Store the means over these clients' groups, after an `exchange` that sent something."""
        peers = extended(self.algorithm, MeetsPeers)
        self.state = peers.after_exchange(self.block, self.state, means, self._met, step)

    def update(self, round: int) -> tuple[list[ClientUpdates], NDArray[np.float64]]:
        """Run one local update.

        Returns
        -------
        updates : list of ClientUpdates
            One for each broadcast that clients start from.
        loss : ndarray of shape (2,)
            Sums of the training losses and of their weights, which are never sent.
        """
        steps, total = self._trained(round)
        self._training = None
        federation, key, result = self.federation, self.keys.private.at(round), []
        address = "round", round
        for updates, turn, uploads, message in steps:
            if updates is None:
                continue
            if self._adds_up:
                updates = self._by_client(updates, message, address, self._specs, turn)
            done = self._completed(updates, address, self._specs, turn, uploads)
            if uploads != "sum":
                given = {"each": self._draws_each, "clips": not self._adds_up}
                through = stages(federation, key, message, self.forge, **given)
                if uploads == "kept":
                    done = apply(done, through).without_broken()
                else:
                    done = protected(done, through, uploads)
            result.append(done)
        return result, total

    def _completed(self, updates, step, specs, turn, uploads):
        """Check the method's updates, and add to them what the protocol must know."""
        specs = as_sent(specs, self.federation)
        return completed(self.plan, self.block, updates, step, specs, turn, uploads)

    def _by_client(self, updates, message, step, specs, turn):
        """Clip users' updates, and add them up by client."""
        inner, turn = self._inner, self._inner_turn(turn)
        each = completed(self.plan, inner, updates, step, specs, turn, "single")
        owners = self._owners[np.isin(inner.clients, each.clients)]
        mechanism = self.federation.central_dp
        return added_up_by(each, mechanism, message, owners, self.block.n_clients)

    def _inner_turn(self, turn):
        """Return the masks of the method's clients, given those of these clients."""
        active, delivers = turn.active[self._owners], turn.delivers[self._owners]
        return RoundMasks(active, delivers, turn.separate or self.plan.by_user)

    def _turn(self, active):
        """Return what a method must know of the round for these active clients."""
        separate = self.uploads != "sum" and self.algorithm.traits.single_uploads
        return RoundMasks(active, self._part.delivers, separate)

    def _turns(self, active):
        """Yield the masks of these active clients, and what becomes of their uploads."""
        arrivals, rest = self._part.arrivals, active
        if arrivals is None:
            yield self._turn(active), self.uploads
            return
        if self.federation.compression is None:
            # Most arrive in the same few rounds.
            rounds, counts = np.unique(arrivals[active], return_counts=True)
            for round in rounds[counts >= ADDED_UP * active.sum()].tolist():
                group = active & (arrivals == round)
                rest = rest & ~group
                yield RoundMasks(group, group & self._part.delivers, False), "sum"
        if rest.any():
            yield self._turn(rest), "kept"

    def honest(self, round: int) -> list[ClientUpdates]:
        """Train in this round, before `update`; return the updates that an adversary replaces."""
        steps, _ = self._trained(round)
        return [
            self._completed(one, ("round", round), self._specs, turn, "single")
            for one, turn, _, _ in steps
            if one is not None
        ]

    def _trained(self, round):
        """Take a round's local updates, once; return each with masks and message, and the loss."""
        if self._training is not None and self._training[0] == round:
            return self._training[1:]
        self._check_in(round)
        part, key = self._part, self.keys.at(round)
        ready = part.active & (self._last >= 0)
        self._has_updated = self._has_updated | ready
        steps, total = [], np.zeros(2)
        for last in np.unique(self._last[ready]).tolist():
            message = self._messages[last]
            self._begin(message, key)
            if self._shares_state:
                shares = extended(self.algorithm, SharesHistory)
                self.state = shares.with_shared(self.state, self.shared.common)
            for turn, uploads in self._turns(ready & (self._last == last)):
                with _naming_clients(self.client_ids[self._owners], f"in round {round}"):
                    self.state, updates, loss = self.algorithm.update(
                        self._inner, self.state, message, self._inner_turn(turn), key
                    )
                total += (0.0, 0.0) if loss is None else loss
                steps.append((updates, turn, uploads, message))
        kept, self._messages = self._messages, {}
        if self._goes_back:
            self._messages = {t: kept[t] for t in np.unique(self._last).tolist() if t >= 0}
        self._training = round, steps, total
        return self._training[1:]

    def _part_in(self, participation):
        """Return these clients' part of a Participation; None: of all clients."""
        if participation is None:
            return Participation.full(self.block.n_clients)
        return participation.of(self.block.clients)

    def _check_in(self, round):
        """Raise if the clients have not received the message of a round."""
        if self._round != round:
            raise ValueError(
                f"These clients cannot update in round {round}, because they have received no "
                "message of it; call receive(round, message) first."
            )

    def _begin(self, message, key):
        """Make the clients' private state before their first step."""
        if self.state is not None:
            return
        first = Message(**self._announcement, **message)
        self.state = self.algorithm.enter(self._inner, first, key)
        if self.remembered is not None:
            self.state = self.algorithm.recall(self.state, self.remembered)

    def learned(self) -> Remembered:
        """Return what each client has learned in the last fit in which it has trained, by whose."""
        before = self.remembered if isinstance(self.remembered, dict) else {}
        if self.state is None:
            return before
        block, who, learned = self._inner, self._has_updated[self._owners], {}
        masks = {"clients": who, "users": block.users_of(who)}
        masks["rows"] = np.repeat(who, block.row_counts)
        for by, arrays in self.algorithm.memory(self.state).items():
            mask, arrays = masks[by], [np.array(values) for values in arrays]
            if by in before:
                known, old = before[by]
                for now, values in zip(arrays, old, strict=True):
                    now[known & ~mask] = values[~mask[known]]
                mask = mask | known
            learned[by] = mask, [values[mask] for values in arrays]
        return learned

    def has_sent(self) -> NDArray[np.bool_]:
        """Return a mask of the clients whose upload the server's sum has, of a method of sums."""
        if self.state is not None:
            return extended(self.algorithm, SendsOnce).has_sent(self.state)
        if isinstance(self.remembered, np.ndarray):
            return self.remembered
        return np.zeros(self.block.n_clients, dtype=bool)

    def take_back(self, round: int) -> None:
        """Let the update of a round take back what these clients have sent, in a method of sums."""
        self._begin(Message(), self.keys.at(round))
        self.state = extended(self.algorithm, SendsOnce).take_back(self.state)

    # ------------------------------------------------------------------- the model's end

    def validate(
        self, round: int, message: Message, participation: Participation | None = None
    ) -> ClientUpdates:
        """Evaluate a model on held-out rows; returns the sums of the scoring's metrics.

        Parameters
        ----------
        round : int
        message : Message
            The announcement and the model, after `decode`.
        participation : Participation or None
            Clients that receive it, and clients whose answer arrives. None: all.

        Raises
        ------
        ValueError
            If the clients hold out no rows.
        """
        if self.held_out is None:
            raise ValueError(
                "These clients hold no rows out to evaluate a model on; set early_stopping=True."
            )
        part, specs = self._part_in(participation), self.scoring.fields()
        asked = part.receives
        who = asked[self._owners]
        users = self._personalized(who, message, round)
        found = self._measure(who, users, message, self.held_out.part(asked))
        finite = who.copy()
        finite[who] = np.isfinite(list(found.values())).all(axis=(0, 2))
        # A user whose sums are broken is left out, not all users of the client.
        is_finite = self.block.clients_of(finite) if self.plan.by_user else finite
        accepted = (part.delivers[self._owners] & finite)[who]
        own = self.scoring.packed({n: sums[accepted] for n, sums in found.items()})
        scheme = self.federation.secure_aggregation
        if isinstance(scheme, SecAggPlus):
            units = {name: scheme.unit_of(spec) for name, spec in specs.items()}
            own = {name: units[name] * scheme.fixed(one, units[name]) for name, one in own.items()}
        self._measured = self._attributes(who, users, self._codes), asked
        updates = Updates({name: one.sum(axis=0) for name, one in own.items()}, is_finite)
        turn, step = RoundMasks(asked, part.delivers, False), ("validation", round)
        done = self._completed(updates, step, specs, turn, "sum")
        # No noise is added to the sums of a validation.
        return replace(done, lacks_noise=False)

    def _personalized(self, who, message, round):
        """Personalise users of the method's clients of a mask: first those that have updated.

        The message has the announcement and the model.
        """
        block, key, result = self._inner, self.keys.at(round), []
        updated, names = self._has_updated[self._owners], self.client_ids[self._owners]
        old, new = who & updated, who & ~updated
        if old.any():
            turn, places = RoundMasks(old, old, False), np.arange(block.n_users)
            with _naming_clients(names, WHEN):
                state = self.algorithm.personalize(
                    block, self.state, message.of(block.clients), turn, key
                )
            result.append(Personalized(block, places, block.users_of(old), state))
        if new.any():
            part, places = block.part(new), np.flatnonzero(block.users_of(new))
            state = newcomers(self.algorithm, part, names[new], message.of(part.clients), key)
            result.append(Personalized(part, places, np.ones(len(places), dtype=bool), state))
        return result

    def _attributes(self, who, personalized, codes):
        """Return users' attributes in their order; `codes` are theirs for the method, if others."""
        users, attributes = [], []
        numbers = _numbers(self._inner.users_of(who))
        for block, places, wanted, state in personalized:
            if codes is not None:
                block = replace(block, users=codes[places])
            its = self.algorithm.user_attributes(block, state)
            attributes.append({name: _of_users(rows, wanted) for name, rows in its.items()})
            users.append(numbers[places[wanted]])
        return by_user(users, attributes)

    def _measure(self, who, personalized, message, held_out):
        """Return the sums of the clients of a mask over their held-out rows, by metric."""
        block = self._inner.part(who)
        # Users of these rows are numbered among those of the clients asked.
        own = self._attributes(who, personalized, _numbers(self._inner.users_of(who)))
        of_items = self.algorithm.server_attributes(message.of(block.clients))
        sizes = {"n_users_": block.n_users, "n_items_": block.n_items}
        model = self.algorithm.model(of_items | own | sizes)
        clients = np.repeat(np.arange(block.n_clients), np.diff(block.client_indptr))
        rows = (block.indptr, block.items), HeldOut.of(held_out), clients, block.users
        losses = self.algorithm.losses
        return self.scoring.measure(model, *rows, self.keys.private, losses=losses)

    def keep_measured(self) -> None:
        """Keep the users' state under the model evaluated last, because it is the best so far."""
        self._kept = self._measured

    def forget_kept(self) -> None:
        """Delete the kept state, because a model that they did not evaluate is the best so far."""
        self._kept = None

    def fitted(self, message: Message, round: int, *, kept: bool = True) -> Attributes:
        """Users' attributes under the final model, as a dict. Does not change the clients.

        Parameters
        ----------
        message : Message
            The announcement and the final model, after `decode`.
        round : int
            Number of rounds so far.
        kept : bool
            Whether to use the state that clients have kept under the best model.
        """
        everyone = np.ones(self._inner.n_clients, dtype=bool)
        users = self._personalized(everyone, message, round)
        attributes = self._attributes(everyone, users, self._codes)
        if self._kept is None or not kept:
            return attributes
        best, measured_it = self._kept
        users = self.block.users_of(measured_it)
        for name, values in attributes.items():
            if isinstance(values, np.ndarray):
                values[users] = best[name]
            elif users.all():
                attributes[name] = best[name]
        return attributes


# ------------------------------------------------- users personalised to a model


# What clients do here, for errors.
WHEN = "while fitting its users to the model"


class Personalized(NamedTuple):
    """Users of some clients, personalised to a model.

    Attributes
    ----------
    block : Block
    places : places of its users among those of the whole block
    wanted : mask of the users that `personalize` was called for
    state : what `personalize` returns
    """

    block: Block
    places: np.ndarray
    wanted: np.ndarray
    state: object


def newcomers(
    algorithm: AnyAlgorithm, block: Block, client_ids: np.ndarray, message: Message, key: Keys
) -> object:
    """Return the state of clients that have never updated, once they have a model."""
    everyone = np.ones(block.n_clients, dtype=bool)
    with _naming_clients(client_ids, WHEN):
        turn = RoundMasks(everyone, everyone, False)
        return algorithm.personalize(block, None, message, turn, key)


def _numbers(mask):
    """Number each True of a mask; -1 for the others."""
    return np.where(mask, np.cumsum(mask) - 1, -1)


def _of_users(rows, wanted):
    """Select the rows of some users in dense or sparse arrays; return anything else as it is."""
    return rows[wanted] if hasattr(rows, "shape") and not wanted.all() else rows


@contextmanager
def _naming_clients(client_ids: np.ndarray, when: str) -> Iterator[None]:
    """Let errors of clients give the client's id and `when`, for example "in round 3"."""
    try:
        yield
    except ClientFailed as error:
        raise ValueError(f"Client {client_ids[error.client]!s} {when}: {error}") from error
