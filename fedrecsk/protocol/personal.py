"""Users personalised to a model: what clients measure, keep and end with."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedrecsk.data._checks import hint, naming_clients
from fedrecsk.protocol.blocks import by_user
from fedrecsk.protocol.early_stopping import HeldOut
from fedrecsk.protocol.participation import RoundMasks

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from fedrecsk.protocol.blocks import Block
    from fedrecsk.protocol.keys import Keys
    from fedrecsk.protocol.messages import Message


# What clients do here, for errors.
WHEN = "while fitting its users to the model"


class End(NamedTuple):
    """Personalised users of some clients."""

    block: Block
    # Places of its users among those of the whole block.
    places: np.ndarray
    # Mask of the users that `_personalize` was called for.
    wanted: np.ndarray
    state: dict[str, Any]


@dataclass(eq=False)
class Personalized:
    """The users of the clients `who` of a block, personalised to a model.

    `updated` is a mask of the clients that have ever updated; `state` is None if none has. The
    message has the announcement and the model, after `_decode_broadcast`.
    """

    method: Any
    block: Block
    client_ids: NDArray[Any]
    state: dict[str, Any] | None
    updated: NDArray[np.bool_]
    who: NDArray[np.bool_]
    message: Message
    key: Keys

    @cached_property
    def ends(self) -> list[End]:
        """First the clients that have updated, then the others."""
        block, message, ends = self.block, self.message, []
        old, new = self.who & self.updated, self.who & ~self.updated
        if old.any():
            turn, places = RoundMasks(old, old, False), np.arange(block.n_users)
            with naming_clients(self.client_ids, WHEN):
                state = self.method._personalize(
                    block, self.state, message.of(block.clients), turn, self.key
                )
            ends.append(End(block, places, block.users_of(old), state))
        if new.any():
            part, places = block.part(new), np.flatnonzero(block.users_of(new))
            ids = self.client_ids[new]
            state = personalized(self.method, part, ids, message.of(part.clients), self.key)
            ends.append(End(part, places, np.ones(len(places), dtype=bool), state))
        return ends

    def attributes(self, codes: NDArray[np.int64] | None = None) -> dict[str, Any]:
        """Users' attributes in the order of the users; `codes` are theirs for the method."""
        users, attributes = [], []
        numbers = _numbers(self.block.users_of(self.who))
        for block, places, wanted, state in self.ends:
            if codes is not None:
                block = replace(block, users=codes[places])
            its = self.method._user_attributes(block, state)
            attributes.append({name: _of_users(rows, wanted) for name, rows in its.items()})
            users.append(numbers[places[wanted]])
        return by_user(users, attributes)

    def losses(self, held_out: Block) -> NDArray[np.float64]:
        """Return the sums of losses and weights on each client's held-out rows, (n_clients, 2)."""
        block, who = self.block.part(self.who), self.who
        model = copy.copy(self.method)
        vars(model).update(
            self.method._server_attributes(self.message.of(block.clients)),
            # Users of these rows are numbered among those of the clients asked.
            **self.attributes(_numbers(self.block.users_of(who))),
            n_users_=block.n_users,
            n_items_=block.n_items,
            _seen=(block.indptr, block.items),
        )
        losses = model._validation_losses(HeldOut.of(held_out))
        clients = np.repeat(np.arange(block.n_clients), np.diff(held_out.rating_indptr))
        sums: list[Any] = [np.bincount(clients, one, minlength=block.n_clients) for one in losses]
        return np.stack(sums, axis=1)


def personalized(
    method: Any, block: Block, client_ids: NDArray[Any], message: Message, key: Keys
) -> dict[str, Any]:
    """Return the state of clients that have never updated, once they have the final model."""
    everyone = np.ones(block.n_clients, dtype=bool)
    turn = RoundMasks(everyone, everyone, False)
    with naming_clients(client_ids, WHEN):
        return method._personalize(block, None, message, turn, key)


def personal_attributes(
    method: Any, block: Block, client_ids: NDArray[Any], message: Message, key: Keys
) -> dict[str, Any]:
    """Users' attributes of clients that have never updated; an error if a number is not finite."""
    state = personalized(method, block, client_ids, message, key)
    attributes = method._user_attributes(block, state)
    for name, rows in attributes.items():
        broken = _broken(rows)
        if broken.any():
            (client, *_) = np.flatnonzero(block.clients_of(broken))
            raise ValueError(
                f"Client {client_ids[client]!s} diverged {WHEN}: its {name} are infinite or NaN. "
                f"{hint(method)}"
            )
    return attributes


def _broken(rows):
    """Return a mask of the users of whom an attribute has infinite or NaN values."""
    if not isinstance(rows, np.ndarray) or rows.dtype.kind != "f":
        return np.zeros(0, dtype=bool)
    return ~np.isfinite(rows).all(axis=tuple(range(1, rows.ndim)))


def _numbers(mask):
    """Number each True of a mask; -1 for the others."""
    return np.where(mask, np.cumsum(mask) - 1, -1)


def _of_users(rows, wanted):
    """Select the rows of some users in dense or sparse arrays; return anything else as it is."""
    return rows[wanted] if hasattr(rows, "shape") and not wanted.all() else rows
