"""A client outside the simulator, on its own machine."""

from __future__ import annotations

import copy
import secrets
from typing import TYPE_CHECKING

import numpy as np
from sklearn.base import clone

from fedrecsk.base import attributes_of
from fedrecsk.compression._base import Shortener
from fedrecsk.interactions import catalogue_ids
from fedrecsk.simulation.blocks import of_clients
from fedrecsk.simulation.clients import VALIDATION, Clients
from fedrecsk.simulation.keys import Key, Keys
from fedrecsk.simulation.parcel import packed
from fedrecsk.simulation.stopping import hold_out

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import ArrayLike, NDArray

    from fedrecsk.interactions import Interactions
    from fedrecsk.simulation.messages import Message
    from fedrecsk.simulation.parcel import Parcel
    from fedrecsk.simulation.server import Places

NOBODY = np.zeros(1, dtype=np.int64)


class Device(Clients):
    """A client outside the simulator, made from its own rows.

    It receives messages as the server sends them, and returns a :class:`Parcel` for each upload,
    with local noise if the federation has any. It can be pickled at any time, and answers a
    repeated request (of the same round, set-up exchange or validation) with the same Parcel.

    Parameters
    ----------
    estimator : federated estimator
        An estimator with the same parameters as the server's. `items` must be the catalogue, and
        rating methods need `rating_scale`.
    X, y, sample_weight
        Rows of this client, as in `fit`.
    client_id : int, float or str
        Id of the client, different from all others.
    private : Key or None, default=None
        Seed of what must stay private: users' vectors, negatives, noise, held-out rows. None:
        drawn by the operating system.

    Raises
    ------
    ValueError
        If `items` is None; if the federation has an `adversary` or a compressor of your own,
        which only the simulator supports; if it has `secure_aggregation`, which is for
        :class:`SecureDevice`; or for the reasons of `fit`.

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
        estimator: Any,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        client_id: float | str,
        sample_weight: ArrayLike | None = None,
        private: Key | None = None,
    ) -> None:
        method = bare(estimator)
        self._check_secure_sums(method)
        private = Key(secrets.randbits(63)) if private is None else private
        whose = np.full(len(X), client_id)
        catalogue = catalogue_ids(method.items)
        # The last answer to a set-up exchange, and to a validation, with its number.
        self._answers = {}
        self.data: Interactions = method._read(X, y, whose, sample_weight, item_ids=catalogue)
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
            # The server sends the shared key together with the client's code.
            Keys(Key(0), private),
            held_out=held_out,
            client_ids=self.data.client_ids,
            separate=True,
        )

    def _check_secure_sums(self, method):
        """Raise unless the federation is for this kind of device."""
        check_plain(method, "SecureDevice, which encrypts")

    def place(self, place: Places) -> None:
        """Store the code that the server has assigned to this client.

        Parameters
        ----------
        place : Places
        """
        super().place(place.clients, place.first_users)
        self.keys: Keys = self.keys._replace(shared=place.shared)

    def setup(self, step: int, message: Message | None) -> list[Parcel]:
        """Answer a set-up message; returns a list of Parcel, which may be empty."""
        forms = self.method._setup_forms(self.block.n_items, step)
        answer = self._once("setup", step, lambda: super(Device, self).setup(step, message))
        return self._packed(answer, forms)

    def receive(self, round: int, message: Message | None) -> None:
        """Store a round's message as the server sends it, None if there is none."""
        super().receive(round, self._complete(message, round))

    def update(self, round: int) -> tuple[list[Parcel], NDArray[np.float64]]:
        """Run one local update. Repeated calls for the same round return the same answer.

        Returns
        -------
        parcels : list of Parcel
            Upload to send to the server; empty if there is none.
        loss : ndarray of shape (2,)
            Sums of the training losses and of their weights. Do not send them.
        """
        contributions, loss = super().update(round)
        forms = self.method._upload_forms(self.block.n_items)
        return [one for c in contributions for one in self._packed(c, forms)], loss

    def validate(self, round: int, message: Message) -> list[Parcel]:
        """Evaluate a model on held-out rows; returns a list of one Parcel.

        Parameters
        ----------
        round : int
        message : Message
            ``server.send_for_validation(...)``.
        """
        complete = self._complete(message, round)
        answer = self._once(
            "validation", round, lambda: super(Device, self).validate(round, complete)
        )
        return self._packed(answer, VALIDATION)

    def _once(self, phase, number, answer):
        """The answer to a request, made once even if it is repeated after later steps."""
        if self._answers.get(phase, (None,))[0] != number:
            self._answers[phase] = number, answer()
        return self._answers[phase][1]

    def _packed(self, contribution, forms):
        told = contribution is not None and contribution.phase != "setup" and self._has_told
        return packed(
            contribution,
            forms,
            self.block.row_items,
            numbered=not told,
            federation=self.federation,
        )

    @property
    def _has_told(self):
        """Whether the server knows from the set-up which items this client holds."""
        n_items, steps = self.block.n_items, range(self.method._n_setups)
        forms = [self.method._setup_forms(n_items, step).values() for step in steps]
        return any(form.rows == "held" for those in forms for form in those)

    def fitted(self, message: Message, round: int) -> Any:
        """Return a fitted estimator for this client's users.

        Parameters
        ----------
        message : Message
            Result of ``server.send_final()`` or ``server.send_best()``.
        round : int
            Number of rounds so far.

        Returns
        -------
        model : estimator
            Predicts and recommends for these users, and can fold in others.
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
        """The message with the fields that clients derive from it."""
        if not message:
            return None
        return self.method._on_receipt(message, self.keys.shared.at(round))


def bare(estimator: Any) -> Any:
    """Check an estimator's parameters and return a copy for one side of a deployment.

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
            f"{type(method).__name__} needs the catalogue, because it does not see "
            "the data of all clients; set items= to the ids of all items on offer."
        )
    method._check_on_devices(method._setting())
    if method._n_exchanges:
        raise ValueError(
            f"A Device does not talk to other devices yet, as {type(method).__name__} needs, which "
            "only the simulator does; call fit."
        )
    _check_parts(method._setting())
    return method


def _check_parts(federation):
    """Raise if a federation has parts that only the simulator supports."""
    _check_compression(federation)
    if federation.adversary is not None:
        raise ValueError(
            "A Device does not attack, which only the simulator does; set "
            "federation.adversary=None, or call fit."
        )


def check_plain(method: Any, instead: str) -> None:
    """Raise if a method's uploads are to be encrypted; `instead` is the class that does it."""
    if method._setting().secure_aggregation is not None:
        raise ValueError(
            f"The federation has secure_aggregation; use {instead}, or set "
            "federation.secure_aggregation=None."
        )


def _check_compression(federation):
    """Raise if the server could not reconstruct compressed uploads."""
    compressor = federation.compression
    if compressor is None or not compressor.up:
        return
    if not isinstance(compressor, Shortener) or compressor._is_changed:
        raise ValueError(
            f"A Device cannot send what {type(compressor).__name__} makes of an upload, whose form "
            "the server does not know; use TopK, LowRank or Quantization as they are, or call fit."
        )
    if federation.dropout > 0 and federation.dropout_mode == "stale":
        raise ValueError(
            "A Device sends compressed changes from the latest message, but with "
            'dropout_mode="stale" it would start from an older one; set dropout_mode="upload" or '
            '"offline", or call fit.'
        )
