"""Users personalised to a model: what clients measure, keep and end with."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from joblib import delayed
from scipy import sparse

from fedrecsk._utils.sklearn_compat import get_threadpool_controller
from fedrecsk._utils.threads import Threads
from fedrecsk.base import _placed
from fedrecsk.data._checks import hint, naming_clients
from fedrecsk.protocol import blocks as _blocks
from fedrecsk.protocol.blocks import by_user
from fedrecsk.protocol.early_stopping import HeldOut
from fedrecsk.protocol.participation import RoundMasks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from numpy.typing import NDArray

    from fedrecsk.protocol.blocks import Block
    from fedrecsk.protocol.keys import Keys
    from fedrecsk.protocol.messages import Message


# What clients do here, for errors.
WHEN = "while fitting its users to the model"

# Two threads that compute the same users write the same rows, but not into a sparse matrix.
_LOCK = threading.Lock()


class End(NamedTuple):
    """Personalised users of some clients.

    Attributes
    ----------
    block : Block
        The block that was given.
    places : ndarray of shape (n_users,)
        Positions of its users among those of the whole block.
    wanted : ndarray of shape (n_users,), dtype bool
        The users that `_personalize` was called for.
    state : dict
    """

    block: Block
    places: np.ndarray
    wanted: np.ndarray
    state: dict[str, Any]


class Personalized:
    """The users of some clients of a block, personalised to a model.

    Parameters
    ----------
    method : FederatedRecommender
    block : Block
    client_ids : ndarray of shape (n_clients,)
    state : dict or None
        The clients' private state. None: none has updated.
    updated : ndarray of shape (n_clients,), dtype bool
        Clients that have ever updated.
    who : ndarray of shape (n_clients,), dtype bool
        The clients.
    message : Message
        The announcement and the model, after `_decode_broadcast`.
    key : Keys
    """

    def __init__(
        self,
        method: Any,
        block: Block,
        client_ids: NDArray[Any],
        state: dict[str, Any] | None,
        updated: NDArray[np.bool_],
        who: NDArray[np.bool_],
        message: Message,
        key: Keys,
    ) -> None:
        self.method = method
        self.block = block
        self.client_ids = client_ids
        self.who = who
        self.message = message
        # First those that have updated.
        self.ends: list[End] = list(self._ends(state, updated, key))

    def _ends(self, state, updated, key) -> Iterator[End]:
        block, message = self.block, self.message
        old, new = self.who & updated, self.who & ~updated
        if old.any():
            turn, places = RoundMasks(old, old, False), np.arange(block.n_users)
            with naming_clients(self.client_ids, WHEN):
                state = self.method._personalize(block, state, message.of(block.clients), turn, key)
            yield End(block, places, block.users_of(old), state)
        if new.any():
            part, places = block.part(new), np.flatnonzero(block.users_of(new))
            ids = self.client_ids[new]
            state = personalized(self.method, part, ids, message.of(part.clients), key)
            yield End(part, places, np.ones(len(places), dtype=bool), state)

    def attributes(self, codes: NDArray[np.int64] | None = None) -> dict[str, Any]:
        """Users' attributes, in the order of the users.

        Parameters
        ----------
        codes : ndarray of shape (n_users,) or None
            Codes of the block's users for the method. None: those of the block.
        """
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
        """Return the sums of losses and of weights of each client, shape (n_clients, 2).

        Parameters
        ----------
        held_out : Block
            Held-out rows of these clients.
        """
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
    """Return the state of clients that have never updated, once they have the final model.

    Parameters
    ----------
    method : FederatedRecommender
    block : Block
    client_ids : ndarray of shape (n_clients,)
    message : Message
        The final model after `_decode_broadcast`: these clients' own message, or for new users the
        common one.
    key : Keys

    Returns
    -------
    state : dict
    """
    everyone = np.ones(block.n_clients, dtype=bool)
    turn = RoundMasks(everyone, everyone, False)
    with naming_clients(client_ids, WHEN):
        return method._personalize(block, None, message, turn, key)


def personal_attributes(
    method: Any, block: Block, client_ids: NDArray[Any], message: Message, key: Keys
) -> dict[str, Any]:
    """Users' attributes of clients that have never updated; parameters as of `personalized`.

    Raises
    ------
    ValueError
        If a client ends with infinite or NaN values.
    """
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


class LazyUserFactors:
    """Users that have taken part in no round; their vectors are computed when they are needed.

    Their clients' data, which would never leave real devices, are kept with the final model. For
    such a user the client's step on the final model is run, which the others have run at the end
    of the fit. The result depends neither on when this happens nor on which others are computed.

    Parameters
    ----------
    method : FederatedRecommender
        With the fit's parameters.
    message : Message
        The final model as the server sends it.
    key : Keys
        At the last round.
    blocks : list of Block
        All clients.
    client_ids : ndarray of shape (n_clients,)
    unreached : list of ndarray of shape (n_clients of the block,), dtype bool
    attributes : dict
        Attributes by user, whose rows are to be filled in for these clients' users.
    """

    def __init__(
        self,
        method: Any,
        message: Any,
        key: Any,
        blocks: Any,
        client_ids: Any,
        unreached: Any,
        attributes: Any,
    ) -> None:
        self.method = method
        self.message = message
        self.key = key
        self.blocks: list[Any] = [
            block if who.any() else None for block, who in zip(blocks, unreached, strict=True)
        ]
        self.client_ids = client_ids
        self.attributes = attributes
        self._received = None
        # The block of each user who is not computed yet, and -1 for the others.
        self._block_of_user = np.full(sum(block.n_users for block in blocks), -1, dtype=np.int32)
        for number, (block, who) in enumerate(zip(blocks, unreached, strict=True)):
            self._block_of_user[block.users[block.users_of(who)]] = number

    def __len__(self) -> Any:
        """Return the number of users that are not computed yet."""
        return int((self._block_of_user >= 0).sum())

    def serve(self, users: Any = None) -> None:
        """Compute these users (codes, -1 for unknown) unless that is done; None: all users."""
        with _LOCK:
            users = np.arange(len(self._block_of_user)) if users is None else users[users >= 0]
            users = np.unique(users[self._block_of_user[users] >= 0])
            if not len(users):
                return
            parts = self._parts(users)
            with (
                get_threadpool_controller().limit(limits=1, user_api="blas"),
                Threads(self.method.n_jobs) as parallel,
            ):
                answers = parallel(delayed(self._attributes_of)(part) for part in parts)
                for part, attributes in zip(parts, answers, strict=True):
                    self._take(part.users, attributes)

    def shown_in(self, model: Any) -> Any:
        """Return the model with the attributes as they are, complete or not."""
        vars(model).update(self.attributes, _waiting=None)
        return model

    def with_users(self, attributes: Any, places: Any) -> Any:
        """Return a copy for a model that has computed or added users with these codes."""
        nobody, other = np.full(len(places), -1, dtype=np.int32), object.__new__(LazyUserFactors)
        with _LOCK:
            # A copy would leave out data, as a pickle does, which takes long.
            vars(other).update(vars(self))
            other._block_of_user = _placed(nobody, places, self._block_of_user)
            other.attributes = {
                name: _placed(attributes[name], places, rows)
                for name, rows in self.attributes.items()
            }
        return other

    def _parts(self, users):
        """Return small blocks of the clients of these users."""
        numbers, parts = self._block_of_user[users], []
        for number in np.unique(numbers):
            block = self.blocks[number]
            asked = np.zeros(block.n_users, dtype=bool)
            asked[np.searchsorted(block.users, users[numbers == number])] = True
            parts += block.part(block.clients_of(asked)).cut(_blocks.RATINGS_PER_BLOCK)
        return parts

    def _attributes_of(self, block):
        message, ids = self._model.of(block.clients), self.client_ids[block.clients]
        return personal_attributes(self.method, block, ids, message, self.key)

    @property
    def _model(self):
        """Return the final model with the fields that clients derive from it, computed once."""
        if self._received is None:
            self._received = self.method._decode_broadcast(self.message, self.key.shared)
        return self._received

    def _take(self, users, attributes):
        # Other users of these clients may have been computed before, perhaps from newer data.
        waits = self._block_of_user[users] >= 0
        users = users[waits]
        for name, rows in self.attributes.items():
            if sparse.issparse(rows):
                self.attributes[name] = _placed(attributes[name][waits], users, rows)
                continue
            rows = self.attributes[name] = _writeable(rows)
            rows[users] = attributes[name][waits]
        self._block_of_user = _writeable(self._block_of_user)
        self._block_of_user[users] = -1

    def __getstate__(self) -> Any:
        """Leave out the data of users that are computed, and what can be derived again."""
        waits, blocks = self._block_of_user >= 0, []
        for block in self.blocks:
            kept = None
            if block is not None and (who := block.clients_of(waits[block.users])).any():
                kept = block.part(who)
            blocks.append(kept)
        return vars(self) | {"blocks": blocks, "_received": None}


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


def _writeable(array):
    """Return the array, or a copy if it is a memory map that was loaded read-only."""
    return array if array.flags.writeable else array.copy()
