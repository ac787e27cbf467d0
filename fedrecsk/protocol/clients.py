"""The clients' side of the protocol: their data, their private state and their uploads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrecsk.data._checks import naming_clients
from fedrecsk.privacy.central_dp import clip_updates, round_updates
from fedrecsk.protocol.blocks import codes_of_users
from fedrecsk.protocol.keys import setup_round
from fedrecsk.protocol.messages import Message, Registration
from fedrecsk.protocol.participation import Participation, RoundMasks
from fedrecsk.protocol.personal import Personalized
from fedrecsk.updates import (
    ClientUpdates,
    Counts,
    FieldSpec,
    HeldUpdates,
    SparseRows,
    Summed,
    all_finite,
    joined,
    through,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Self

    from numpy.typing import NDArray

    from fedrecsk.protocol.blocks import Block
    from fedrecsk.protocol.federation import Federation
    from fedrecsk.protocol.keys import Key, Keys
    from fedrecsk.protocol.messages import GroupMessages


# The field of every message that tells clients the clip, and the variance of their shares.
TERMS = "privacy_terms"
VALIDATION = {"validation_loss": FieldSpec((2,), learned=False)}


@dataclass(eq=False)
class Group:
    """What clients with equal histories share, and the last round in which it took its step."""

    common: Any = None
    round: int = -1


class Clients:
    """One or more clients with their private state.

    The simulator has one object for many clients, a deployed device has one for itself. Both call
    the same methods in this order: `setup` for each set-up exchange; `announce`; in each round
    `receive`, `validate` (under early stopping) and `update`; finally `fitted`.

    Parameters
    ----------
    method : FederatedRecommender
        A copy of the estimator with hyperparameters only.
    block : Block
        The clients' data.
    federation : Federation
    keys : Keys
        The keys before the first round.
    group : Group or None
        Group shared with other clients of equal history. None: a new one.
    held_out : Block or None
        Held-out rows of the same clients, for validation.
    forge : callable or None
        Forges the uploads, if an adversary controls these clients (all of them).
    client_ids : ndarray of shape (n_clients,) or None
        Ids of the clients. None: their codes.
    separate : bool
        Whether to return single uploads, each with its client's own noise, even if the federation
        needs sums only. Deployed clients must do so; the simulator adds up what it can.
    """

    def __init__(
        self,
        method: Any,
        block: Block,
        federation: Federation,
        keys: Keys,
        *,
        group: Group | None = None,
        held_out: Block | None = None,
        forge: Callable[..., Any] | None = None,
        client_ids: np.ndarray | None = None,
        separate: bool = False,
    ) -> None:
        self.method = method
        self.block: Block = block
        self.federation = federation
        self.keys = keys
        self._specs: dict[str, FieldSpec] = method._upload_specs(block.n_items)
        self.group: Group = Group() if group is None else group
        self.held_out = held_out
        self.forge = forge
        self.separate = separate
        # Whether single updates are handed over instead of their sum; whether each client draws
        # its own noise; whether single updates are needed; and whether the method returns them.
        self._holds: bool = separate or federation.holds_uploads
        self._draws_each: bool = self._holds or federation.draws_each
        self._separates: bool = separate or federation.looks_at_uploads or forge is not None
        self._hands_over_single: bool = self._separates and method._single_uploads
        self.client_ids: np.ndarray = block.clients if client_ids is None else client_ids
        self.state: Any = None
        # What they keep of an earlier fit; None: nothing.
        self.remembered: Any = None
        self._announcement = Message()
        # Messages that clients received last, by round, and the round of each client's last one.
        self._messages = {}
        self._last = np.full(block.n_clients, -1)
        # Clients that have ever updated.
        self._has_updated = np.zeros(block.n_clients, dtype=bool)
        self._part = None
        # The clients that took part in the last exchange among devices.
        self._met = None
        # The local updates of a round, between `honest` and `update`.
        self._training = None
        # Users' attributes under the model evaluated last, and under the best model.
        self._measured = None
        self._kept = None

    @property
    def _codes(self):
        """Codes of their users in the fitted model; None: those of the block."""
        return None

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
        return self

    def setup(self, step: int, message: Message | None) -> ClientUpdates | None:
        """Answer a set-up message: ClientUpdates, or None."""
        everyone = Participation.full(self.block.n_clients)
        turn = RoundMasks(everyone.active, everyone.delivers, False)
        keys, address = self.keys.at(setup_round(step)), ("setup", step)
        specs = self.method._setup_specs(self.block.n_items, step)
        central, local = self.federation.central_dp, self.federation.local_dp
        updates = self.method._setup_update(self.block, message, step, keys)
        if updates is None:
            return None
        is_alone = self.separate and self.block.n_clients == 1
        if central is not None or (local is not None and local.protects_uploads):
            updates = self._single_setup(step, message, updates, specs, keys)
        elif not is_alone:
            return completed(self, updates, address, specs, turn, single=False)
        each = is_alone or self._draws_each
        done = stages(self.federation, keys.private, message, self.forge, each=each, is_setup=True)
        single = completed(self, updates, address, specs, turn, single=True)
        hold = self.separate if central is None else self._holds
        return protected(single, done, hold=hold)

    def _single_setup(self, step, message, updates, specs, keys):
        """Return each client's own answer to a set-up message."""
        if all(isinstance(one, SparseRows) for one in updates.fields.values()):
            return updates
        numbers = np.arange(self.block.n_clients)
        parts = [self.block.part(numbers == number) for number in numbers]
        answers = [self.method._setup_update(part, message, step, keys).fields for part in parts]
        return ClientUpdates(
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
        """Store the message of a round, None if there is none, and take the step of the group.

        Parameters
        ----------
        round : int
        message : Message or None
            The message after `_decode_broadcast`.
        participation : Participation or None
            Participation of all clients of the fit, in the order of their codes. None: all clients
            take part and no upload is lost.
        """
        if self._part is not None and self._part[0] == round:
            return
        if self._part is not None and self._part[0] > round:
            raise ValueError(
                f"These clients are in round {self._part[0]} and cannot go back to round {round}; "
                "send them the message of the next round."
            )
        if participation is None:
            part = Participation.full(self.block.n_clients)
        else:
            part = participation.of(self.block.clients)
        self._part = round, part
        if message is not None:
            self._messages[round] = message.of(self.block.clients)
            self._last[part.receives] = round
        ready = part.active & (self._last >= 0)
        group = self.group
        if self.method._shares_state and ready.any() and group.round != round:
            message, key = self._messages[self._last[ready][0]], self.keys.at(round)
            group.common = self.method._update_unrated_items(group.common, message, key)
            group.round = round

    def exchange(self, round: int, step: int) -> GroupMessages | None:
        """Return what these clients send directly to others in a round; None if nothing.

        Parameters
        ----------
        round : int
        step : int
            Number of the exchange within the round.
        """
        part, key = self._part_in(round), self.keys.at(round)
        turn = RoundMasks(
            part.active & (self._last == round), part.delivers, self._hands_over_single
        )
        if not turn.active.any():
            return None
        message = self._messages[round]
        self._begin(message, key)
        self.state, messages = self.method._exchange(
            self.block, self.state, message, turn, step, key
        )
        self._met = turn
        return messages

    def end_exchange(self, step: int, means: NDArray[np.float64]) -> None:
        """Store the means over these clients' groups, after an `exchange` that sent something."""
        self.state = self.method._after_exchange(self.block, self.state, means, self._met, step)

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
        address, single = ("round", round), self._separates
        for updates, turn, message in steps:
            if updates is None:
                continue
            done = completed(self, updates, address, self._specs, turn, single=single)
            if single:
                through = stages(federation, key, message, self.forge, each=self._draws_each)
                done = protected(done, through, hold=self._holds)
            result.append(done)
        return result, total

    def honest(self, round: int) -> list[ClientUpdates]:
        """Train in this round, before `update`; return the updates that an adversary replaces."""
        steps, _ = self._trained(round)
        return [
            completed(self, one, ("round", round), self._specs, turn, single=True)
            for one, turn, _ in steps
            if one is not None
        ]

    def _trained(self, round):
        """Take a round's local updates, once; return each with masks and message, and the loss."""
        if self._training is not None and self._training[0] == round:
            return self._training[1:]
        part, key = self._part_in(round), self.keys.at(round)
        ready = part.active & (self._last >= 0)
        self._has_updated = self._has_updated | ready
        steps, total = [], np.zeros(2)
        for last in np.unique(self._last[ready]).tolist():
            turn = RoundMasks(ready & (self._last == last), part.delivers, self._hands_over_single)
            message = self._messages[last]
            self._begin(message, key)
            if self.method._shares_state:
                self.state["common"] = self.group.common
            with naming_clients(self.client_ids, f"in round {round}"):
                self.state, updates, loss = self.method._client_update(
                    self.block, self.state, message, turn, key
                )
            total += (0.0, 0.0) if loss is None else loss
            steps.append((updates, turn, message))
        federation, messages = self.federation, {}
        if self.method._may_be_silent or (
            federation.dropout > 0 and federation.dropout_mode == "stale"
        ):
            # Only then clients may start from an earlier message again.
            messages = {t: self._messages[t] for t in np.unique(self._last).tolist() if t >= 0}
        self._messages = messages
        self._training = round, steps, total
        return self._training[1:]

    def _part_in(self, round):
        """Return these clients' Participation in a round, whose message they must have got."""
        if self._part is None or self._part[0] != round:
            raise ValueError(
                f"These clients cannot update in round {round}, because they have received no "
                "message of it; call receive(round, message) first."
            )
        return self._part[1]

    def _begin(self, message, key):
        """Make the clients' private state before their first step."""
        if self.state is None:
            first = Message(**self._announcement, **message)
            self.state = self.method._init_clients(self.block, first, key)
            if self.remembered is not None:
                self.state = self.method._recalled(self.state, self.remembered)
                self.remembered = None

    def has_sent(self) -> NDArray[np.bool_]:
        """Return a mask of the clients whose upload the server's sum has, of a method of sums."""
        if self.state is not None:
            return self.state["has_sent"]
        nobody = np.zeros(self.block.n_clients, dtype=bool)
        return nobody if self.remembered is None else self.remembered

    def take_back(self, round: int) -> None:
        """Let the update of a round take back what these clients have sent, in a method of sums."""
        self._begin(Message(), self.keys.at(round))
        self.state = self.method._taking_back(self.state)

    # ------------------------------------------------------------------- the model's end

    def validate(
        self, round: int, message: Message, participation: Participation | None = None
    ) -> ClientUpdates:
        """Evaluate a model on held-out rows; returns sums of losses and weights.

        Parameters
        ----------
        round : int
        message : Message
            The announcement and the model, after `_decode_broadcast`.
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
        block = self.block
        part = Participation.full(block.n_clients)
        if participation is not None:
            part = participation.of(block.clients)
        asked = part.receives
        users = self._personalized(asked, message, round)
        sums = np.zeros((block.n_clients, 2))
        sums[asked] = users.losses(self.held_out.part(asked))
        if self.federation.masks:
            scheme: Any = self.federation.secure_aggregation
            unit = scheme.unit_of(VALIDATION["validation_loss"])
            sums[asked] = unit * scheme.fixed(sums[asked], unit)
        self._measured = users.attributes(self._codes), asked
        arrives, is_finite = part.receives & part.delivers, np.isfinite(sums).all(axis=1)
        accepted = arrives & is_finite
        nothing = ClientUpdates({"validation_loss": None})
        return ClientUpdates(
            {"validation_loss": sums[accepted].sum(axis=0)} if accepted.any() else {},
            phase="validation",
            round=round,
            clients=block.clients,
            sends=part.receives,
            arrives=arrives,
            accepted=accepted,
            specs=VALIDATION,
            sizes=measured(nothing, VALIDATION, block.row_counts, self.federation.wire_dtype),
        )

    def _personalized(self, who, message, round):
        """Return the users of the clients of a mask under a model."""
        key, updated = self.keys.at(round), self._has_updated
        state, ids = self.state, self.client_ids
        return Personalized(self.method, self.block, ids, state, updated, who, message, key)

    def keep_measured(self) -> None:
        """Keep the users' state under the model evaluated last, because it is the best so far."""
        self._kept = self._measured

    def forget_kept(self) -> None:
        """Delete the kept state, because a model that they did not evaluate is the best so far."""
        self._kept = None

    def fitted(self, message: Message, round: int, *, kept: bool = True) -> dict[str, Any]:
        """Users' attributes under the final model, as a dict. Does not change the clients.

        Parameters
        ----------
        message : Message
            The announcement and the final model, after `_decode_broadcast`.
        round : int
            Number of rounds so far.
        kept : bool
            Whether to use the state that clients have kept under the best model.
        """
        everyone = np.ones(self.block.n_clients, dtype=bool)
        attributes = self._personalized(everyone, message, round).attributes(self._codes)
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


# ------------------------------------------------------------------ what leaves the clients


def completed(
    clients: Clients,
    updates: ClientUpdates,
    step: tuple[str, int],
    specs: Mapping[str, FieldSpec],
    turn: RoundMasks,
    *,
    single: bool,
) -> ClientUpdates:
    """Add to a method's updates what the protocol must know about them, and check their fields.

    With `single` return the updates of the clients that send something, and not the sums over the
    block. If the method has added them up, there must be one client.
    """
    method, block = type(clients.method).__name__, clients.block
    if updates.fields.keys() != specs.keys():
        raise ValueError(
            f"{method} uploads the fields {sorted(updates.fields)}, but its _upload_specs (or "
            f"_setup_specs) declares {sorted(specs)}; make them agree."
        )
    sends = turn.active if updates.sends is None else turn.active & updates.sends
    accepted = arrives = sends & turn.delivers
    if updates.is_finite is not None:
        accepted = arrives & updates.is_finite
    fields = {}
    for name, spec in specs.items():
        one = updates.fields[name]
        is_sparse = isinstance(one, SparseRows)
        if is_sparse and not single:
            raise ValueError(
                f"{method} returns {name!r} client by client, but turn.separate is False; return "
                "the sum."
            )
        values = one.values if isinstance(one, Summed | SparseRows) else np.asarray(one)
        shape = (spec.shape[0], *values.shape[1:]) if is_sparse else values.shape
        if tuple(shape) != tuple(spec.shape):
            raise ValueError(
                f"{method} uploads {name!r} with shape {tuple(shape)}, but its FieldSpec says "
                f"{tuple(spec.shape)}; make them agree."
            )
        if single:
            rows = one if is_sparse else _of_one_client(values, spec, block)
            fields[name] = replace(rows, spec=spec)
            if updates.is_finite is None:
                accepted = accepted & fields[name].finite()
        else:
            fields[name] = values.astype(spec.sum_dtype, copy=False)
            if not all_finite(fields[name]):
                accepted = np.zeros_like(accepted)
    done = replace(
        updates,
        fields=fields if single or accepted.any() else {},
        phase=step[0],
        round=step[1],
        clients=block.clients,
        sends=sends,
        arrives=arrives,
        accepted=accepted,
        specs=specs,
        sizes=measured(updates, specs, block.row_counts, clients.federation.wire_dtype),
        lacks_noise=not single,
    )
    return done.take(sends) if single else done


def _of_one_client(values, spec, block):
    """Take the sum over a one-client block as that client's rows."""
    rows = np.arange(len(values))
    if spec.rows == "held":
        rows = block.row_items
    elif spec.rows == "chosen":
        rows = np.flatnonzero(values.reshape(len(values), -1).any(axis=1))
    return SparseRows(np.array([0, len(rows)]), rows, values[rows])


def measured(
    updates: ClientUpdates,
    specs: Mapping[str, FieldSpec],
    n_held: NDArray[np.int64],
    wire_dtype: str,
) -> NDArray[np.int64]:
    """Return the `sizes` of ClientUpdates as the method returns them, by items that each holds."""
    sizes = np.zeros((3, len(n_held)), dtype=np.int64)
    for name, spec in specs.items():
        one, n_rows, n_columns = updates.fields[name], n_held, None
        if isinstance(one, Summed | SparseRows):
            n_columns = one.n_columns
            if spec.rows == "chosen":
                n_rows = one.n_rows
        sizes += spec.sizes(wire_dtype, n_rows, n_columns)
    return sizes


def stages(
    federation: Federation,
    key: Key,
    message: Message | None,
    forge: Callable[..., Any] | None = None,
    *,
    each: bool,
    is_setup: bool = False,
) -> list[Callable[[ClientUpdates], ClientUpdates]]:
    """List functions of ClientUpdates: what becomes of updates before they leave the clients.

    `key` is the clients' private one, and `message` may have the terms of central privacy. Clients
    that an adversary controls `forge`, and add no noise. `each`: every client draws its own noise,
    even if one draw of the sum would do. Answers in the set-up are neither forged nor compressed.
    """
    compressor, local, central = federation.compression, federation.local_dp, federation.central_dp
    compresses = compressor is not None and compressor.up and not is_setup
    result = []
    if forge is not None and not is_setup:
        result.append(lambda updates: forge(updates, key.hashed("forged", updates.clients)))
    elif local is not None:
        result.append(partial(_add_noise, mechanism=local, key=key, each=each or compresses))
    if compresses:
        result.append(partial(_compress, federation=federation, key=key))
    if central is not None and message is not None:
        bound, variance = message[TERMS].values
        # Poisoned clients add no noise, and if only the sum matters, its noise is drawn at once.
        adds = central.noise == "clients" and forge is None
        says_short = central.quantile is not None and not is_setup
        terms = {"clip": float(bound), "field_weights": central.field_weights or {}}
        result.append(partial(_clip, **terms, adds=adds, is_late=not each, says_short=says_short))
        if central.noise == "clients":
            own = float(variance) if adds and each else 0.0
            result.append(partial(round_updates, **terms, variance=own, key=key))
    return result


def protected(
    updates: ClientUpdates, through_stages: Sequence[Callable[..., Any]], *, hold: bool
) -> ClientUpdates:
    """Pass single updates through all stages, and add them up, or hold them for the server."""
    if not len(updates.clients):
        return replace(updates, fields={})
    # Clipping leaves rows as they are; other stages may write out whole matrices.
    only_clips = all(getattr(stage, "func", None) is _clip for stage in through_stages)
    tiles = [updates] if only_clips else updates.tiles()
    whole = joined(_through_and_added(tile, through_stages, hold) for tile in tiles)
    if hold:
        whole.held = HeldUpdates(updates, through_stages, whole.accepted)
    return whole


def _through_and_added(updates, through_stages, hold):
    """Pass updates through all stages; return their sums, or nothing of them to hold."""
    updates = through(updates, through_stages)
    if hold:
        return replace(updates.without_broken() if through_stages else updates, fields={})
    done = updates.added_up()
    if through_stages and not all(all_finite(done.fields[n]) for n in done.learned):
        # Once more without those whose numbers are broken.
        done = updates.without_broken().added_up()
    return done


def _add_noise(updates, *, mechanism, key, each):
    seeds = partial(key.hashed, index=updates.clients)
    return mechanism._protect(updates, seeds, each=each)


def is_compressed(federation: Federation | None, spec: FieldSpec) -> bool:
    """Return whether clients compress a field of this form, if they send all its columns."""
    compressor = None if federation is None else federation.compression
    is_matrix = len(spec.shape) == 2 and not spec.is_integer and spec.learned
    return compressor is not None and compressor.up and is_matrix and spec.compressible


def _compress(updates, *, federation, key):
    """Compress all compressible fields."""
    compressor, wire_dtype = federation.compression, federation.wire_dtype
    fields, sizes = {}, updates.sizes.copy()
    for name, rows in updates.learned.items():
        spec = updates.specs[name]
        if not is_compressed(federation, spec) or rows.columns is not None:
            continue
        seeds = key.hashed(f"compression of {name}", updates.clients)
        itemsize = np.dtype(spec.dtype or wire_dtype).itemsize
        packed = compressor._compress_rows(rows, seeds, itemsize)
        fields[name] = packed.rows
        whole = spec.sizes(wire_dtype, rows.n_rows)
        sizes[:2] += np.array([packed.nbytes, packed.payload]) - whole[:2]
    updates = updates.with_fields(**fields)
    return replace(updates, sizes=sizes)


def _clip(updates, *, clip, field_weights, adds, is_late, says_short):
    """Clip each client's whole update, and count what the server must know to add noise."""
    clipped, is_short = clip_updates(updates, clip, field_weights)
    clipped = clipped.without_broken()
    n_accepted = clipped.n_accepted
    n_shares = n_accepted if adds else 0
    excess = int((clipped.accepted & is_short).sum()) - n_accepted / 2
    if says_short:
        # Whether the upload was short enough is one bit, which takes a byte.
        clipped = replace(clipped, sizes=clipped.sizes + np.array([[1], [0], [1]]))
    return replace(clipped, counts=Counts(n_shares, n_shares * is_late, excess))
