"""Users that have taken part in no round; their vectors are computed when they are needed."""

from __future__ import annotations

import threading

import numpy as np
from joblib import delayed
from scipy import sparse

from fedrecsk._utils.sklearn_compat import get_threadpool_controller
from fedrecsk._utils.threads import Threads
from fedrecsk.base import _placed
from fedrecsk.protocol import blocks as _blocks
from fedrecsk.protocol.personal import personal_attributes

# Two threads that compute the same users write the same rows, but not into a sparse matrix.
_LOCK = threading.Lock()


class LazyUserFactors:
    """What is needed to compute the vectors of users that have taken part in no round.

    It has their clients' data, which would never leave real devices, and the final model. For such
    a user it runs its client's step on the final model, which the others have run at the end of
    the fit. The result depends neither on when this happens nor on which others are computed.

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

    def __init__(self, method, message, key, blocks, client_ids, unreached, attributes):
        self.method = method
        self.message = message
        self.key = key
        self.blocks = [
            block if who.any() else None for block, who in zip(blocks, unreached, strict=True)
        ]
        self.client_ids = client_ids
        self.attributes = attributes
        self._received = None
        # The block of each user who is not computed yet, and -1 for the others.
        self._block_of_user = np.full(sum(block.n_users for block in blocks), -1, dtype=np.int32)
        for number, (block, who) in enumerate(zip(blocks, unreached, strict=True)):
            self._block_of_user[block.users[block.users_of(who)]] = number

    def __len__(self):
        """Number of users that are not computed yet."""
        return int((self._block_of_user >= 0).sum())

    def serve(self, users=None):
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

    def shown_in(self, model):
        """The model with the attributes as they are, complete or not."""
        vars(model).update(self.attributes, _waiting=None)
        return model

    def with_users(self, attributes, places):
        """The same for a model that has computed or added users, with their rows and codes."""
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
        """Small blocks of the clients of these users."""
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
        """The final model with the fields that clients derive from it, computed once."""
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

    def __getstate__(self):
        """Leave out the data of users that are computed, and what can be derived again."""
        waits, blocks = self._block_of_user >= 0, []
        for block in self.blocks:
            kept = None
            if block is not None and (who := block.clients_of(waits[block.users])).any():
                kept = block.part(who)
            blocks.append(kept)
        return vars(self) | {"blocks": blocks, "_received": None}


def _writeable(array):
    """The array, or a copy if it is a memory map that was loaded read-only."""
    return array if array.flags.writeable else array.copy()
