"""One client on a machine of its own."""

from __future__ import annotations

import copy
import secrets
from typing import TYPE_CHECKING

import numpy as np
from sklearn.base import clone

from fedrecsk.base import attributes_of
from fedrecsk.interactions import catalogue_ids
from fedrecsk.simulation.blocks import of_clients
from fedrecsk.simulation.clients import Clients
from fedrecsk.simulation.keys import Key, Keys
from fedrecsk.simulation.stopping import hold_out

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

NOBODY = np.zeros(1, dtype=np.int64)


class Device(Clients):
    """One client that is made of its own rows, as it runs outside the simulator.

    It takes messages as the server sends them, and its uploads leave alone, with its own noise if
    the federation has any. It can be pickled at any time.

    Parameters
    ----------
    estimator : federated estimator
        With the same parameters as the server's. `items` must be the catalogue, and a rating
        method needs its `rating_scale`.
    X, y, sample_weight
        The client's rows, as in `fit`.
    client_id : int, float or str
        Unlike that of any other client.
    private : Key or None, default=None
        Seeds what nobody else may know: users' vectors, negatives, noise, held-out rows. None:
        the operating system's randomness.

    Raises
    ------
    ValueError
        If `items` is None, or as `fit` does.

    Examples
    --------
    >>> from fedrecsk import LocALS
    >>> from fedrecsk.datasets import make_interactions
    >>> from fedrecsk.simulation import Device, Server
    >>> X = make_interactions(n_users=60, n_items=40, n_interactions=900, random_state=0)
    >>> method = LocALS(n_factors=4, items=range(40))
    >>> server = Server.of(method)
    >>> shops = [Device(method, X[X[:, 0] % 2 == k], client_id=f"shop {k}") for k in (0, 1)]
    >>> for shop, place in zip(shops, server.register([shop.register() for shop in shops])):
    ...     shop.place(place)
    >>> server.n_setups
    1
    """

    def __init__(
        self,
        estimator,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        client_id,
        sample_weight: ArrayLike | None = None,
        private: Key | None = None,
    ):
        method = bare(estimator)
        private = Key(secrets.randbits(63)) if private is None else private
        whose = np.full(len(X), client_id)
        catalogue = catalogue_ids(method.items)
        self.data = method._read(X, y, whose, sample_weight, item_ids=catalogue)
        training, held_out = self.data, None
        if method.early_stopping:
            training, held_out = hold_out(self.data, method.validation_fraction, private)
            held_out = of_clients(held_out, NOBODY)
        block = of_clients(training, NOBODY)
        method._check_setting(method._setting(), training, [block])
        super().__init__(
            method,
            block,
            method._setting(),
            # The server sends the shared key along with the client's place.
            Keys(Key(0), private),
            held_out=held_out,
            client_ids=self.data.client_ids,
            separate=True,
        )

    def place(self, place):
        """Take the place that the server has given to this client.

        Parameters
        ----------
        place : Places
        """
        super().place(place.clients, place.first_users)
        self.keys = self.keys._replace(shared=place.shared)

    def receive(self, round, message):
        """Take a round's message as the server sends it, None if there is none."""
        super().receive(round, self._complete(message, round))

    def validate(self, round, message):
        """Measure a model on held-out rows; `message` is ``server.send_for_validation(...)``."""
        return super().validate(round, self._complete(message, round))

    def fitted(self, message, round):
        """A fitted estimator of this client's users.

        Parameters
        ----------
        message : Message
            As ``server.send_final()`` or ``server.send_best()`` gives it.
        round : int
            Rounds so far.

        Returns
        -------
        model : estimator
            It predicts and recommends for these users, and folds in others.
        """
        complete = self._complete(message, round)
        users = super().fitted(complete, round)
        model = copy.copy(self.method)
        vars(model).update(
            attributes_of(self.data) | self.method._server_attributes(complete) | users,
            _final_message=message,
            n_rounds_=round,
        )
        return model

    def _complete(self, message, round):
        """The message with what the receiver derives of it."""
        if not message:
            return None
        return self.method._on_receipt(message, self.keys.shared.at(round))


def bare(estimator):
    """A copy with checked parameters alone, as both sides of a deployment have it.

    Parameters
    ----------
    estimator : federated estimator

    Returns
    -------
    method : estimator
    """
    method = clone(estimator).set_params(random_state=None).set_callbacks()
    method._validate_params()
    method._check_before_fit()
    if method.items is None:
        raise ValueError(
            f"{type(method).__name__} on its own needs the catalogue, which it cannot read off "
            "everybody's data; set items= to the ids of all items on offer."
        )
    return method
