"""A client outside the simulator, on its own machine."""

from __future__ import annotations

import copy
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedrecsk.base import attributes_of, fitted_copy
from fedrecsk.data._checks import check_fitted
from fedrecsk.data.ids import catalogue_ids
from fedrecsk.deployment.checks import Refused, terms_of_noise
from fedrecsk.deployment.client_message import ClientMessage, packed
from fedrecsk.deployment.deployable import deployable_copy
from fedrecsk.metrics import check_rows
from fedrecsk.privacy import SecAggPlus
from fedrecsk.privacy.central_dp import steps_of
from fedrecsk.protocol.blocks import of_clients
from fedrecsk.protocol.central_noise import CentralNoise
from fedrecsk.protocol.clients import ClientGroup
from fedrecsk.protocol.early_stopping import HoldOut, hold_out
from fedrecsk.protocol.keys import SETUP, Key, Keys
from fedrecsk.protocol.messages import Form
from fedrecsk.protocol.protection import TERMS
from fedrecsk.protocol.secure_accounts import integers_of, units_of
from fedrecsk.selection._evaluate import rows_of, single_updates

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from fedrecsk.data.interactions import Interactions
    from fedrecsk.federated.base import FederatedRecommender
    from fedrecsk.protocol.evaluation import Scoring
    from fedrecsk.protocol.messages import ClientCodes, Message, Registration
    from fedrecsk.protocol.states import Remembered

NOBODY = np.zeros(1, dtype=np.int64)
# In a fit. A client that adds noise draws the cohorts of all of them.
MOST_CLIENTS = 1_000_000
# Of the variance that a share of the noise must have: `wire_dtype` rounds what the server names.
LEAST_SHARE = 0.99


class Device(ClientGroup):
    """A client outside the simulator, made from its own rows.

    It receives messages as the server sends them, and returns a :class:`ClientMessage` for each
    upload, with local noise if the federation has any. It can be pickled at any time, and answers
    a repeated request (of the same round, set-up exchange or validation) with the same message.

    Under ``Federation(secure_aggregation=SecAggPlus())`` its uploads are integers, which the
    transport must mask (``fedrecsk.deployment`` does).

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
        Seed of all private draws: user vectors, negatives, noise, held-out rows. If None, drawn by
        the operating system.
    holds_out : HoldOut or None, default=None
        Which of its rows it holds out for a search; None: none, or those of early stopping.

    Raises
    ------
    ValueError
        If `items` is None; if the federation has an `adversary`, encryption or a compressor of
        your own, which only the simulator supports; or for the reasons of `fit`.

    Examples
    --------
    >>> from fedrecsk import LocALS
    >>> from fedrecsk.datasets import make_interactions
    >>> from fedrecsk.deployment import Device, DeviceServer
    >>> X = make_interactions(n_users=60, n_items=40, n_interactions=900, random_state=0)
    >>> method = LocALS(n_factors=4, items=range(40))
    >>> server = DeviceServer.of(method)
    >>> shops = [Device(method, X[X[:, 0] % 2 == k], client_id=f"shop {k}") for k in (0, 1)]
    >>> for shop, place in zip(shops, server.register([shop.register() for shop in shops])):
    ...     shop.place(place)
    >>> server.has_setup
    True
    """

    def __init__(
        self,
        estimator: FederatedRecommender,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        client_id: float | str,
        sample_weight: ArrayLike | None = None,
        private: Key | None = None,
        holds_out: HoldOut | None = None,
    ) -> None:
        self.method: FederatedRecommender = deployable_copy(estimator)
        method, plan = self.method, self.method._plan()
        if holds_out is not None:
            plan = replace(plan, holds_out=holds_out)
        self._clip = 0.0
        # What central privacy requires of the clients, if they add the noise, and in how many
        # rounds this client has sent something.
        self._noise: CentralNoise | None = None
        self._n_uses = 0
        private = Key(secrets.randbits(63)) if private is None else private
        whose = np.full(len(X), client_id)
        catalogue = catalogue_ids(method.items)
        # The last answer to a set-up exchange, and to a validation, with its number.
        self._answers = {}
        self.data: Interactions = method._read(X, y, whose, sample_weight, item_ids=catalogue)
        training, held_out = self.data, None
        if plan.holds_out is not None:
            training, held_out = hold_out(self.data, plan.holds_out, private, is_device=True)
            held_out = of_clients(held_out, NOBODY)
        block = of_clients(training, NOBODY)
        method._check_setting(plan, training, [block])
        super().__init__(
            plan,
            block,
            # The server sends the shared key together with the client's code.
            Keys(Key(0), private),
            held_out=held_out,
            client_ids=self.data.client_ids,
            is_device=True,
        )

    @property
    def _codes(self):
        # A device's model has no users but its own.
        return np.arange(self.block.n_users)

    def register(self) -> Registration:
        """Return this client's Registration; under secure sums without the number of its items."""
        registration = super().register()
        if self.federation.secure_aggregation is not None:
            return registration._replace(n_held=np.zeros_like(registration.n_held))
        return registration

    def place(self, place: ClientCodes) -> None:
        """Store the code that the server assigns; raise Refused if it is not for one client."""
        _check_place(place, self.block.n_users)
        super().place(place.clients, place.first_users)
        self.keys: Keys = self.keys._replace(shared=place.shared)
        mechanism = self.federation.central_dp
        if mechanism is not None and mechanism.noise == "clients":
            given = self.plan, place.n_clients, place.shared, None, place.n_users
            self._noise = CentralNoise.of(*given)

    def setup(self, message: Message | None) -> list[ClientMessage]:
        """Answer the set-up message; return a list of ClientMessage, which may be empty."""
        specs = self.algorithm.setup_fields(self.block.n_items)
        self._check(message)
        self._check_terms(message, SETUP)
        return self._once(
            *("setup", 0), lambda: self._packed(super(Device, self).setup(message), specs)
        )

    def announce(self, message: Message) -> None:
        """Store the server's announcement after the set-up."""
        self._check(message)
        super().announce(message)

    def _check(self, message):
        """Raise MalformedMessage if a message of the server is not as its algorithm declares."""
        if message:
            terms = {} if self.federation.central_dp is None else {TERMS: Form((2,))}
            message.of(self.block.clients).check(
                self.algorithm.downloads(self.block.n_items) | terms
            )

    def receive(self, round: int, message: Message | None) -> None:
        """Store a round's message as the server sends it, None if there is none.

        It also takes the step that clients of equal history share.
        """
        self._check(message)
        self._check_terms(message, round)
        super().receive(round, self._complete(message, round))

    def _check_terms(self, message, round):
        """Note the clip of central privacy; raise if this client is to add too little noise."""
        # Quiet rounds have no message; clients then keep the terms of the last one.
        if self.federation.central_dp is None or not (message or round == SETUP):
            return
        if not message or TERMS not in message:
            raise Refused("the server names no clip and no noise, but this client has a CentralDP")
        self._clip, variance = map(float, message[TERMS].values)
        if self._noise is None:
            return
        needed = self._noise.variance_of_share(self.keys.shared.at(round))
        if not (variance >= LEAST_SHARE * needed and 0 < self._clip < np.inf):
            raise Refused(
                f"the server asks for a share of noise of variance {variance:g} under a clip of "
                f"{self._clip:g}, but this client's CentralDP requires {needed:g}"
            )

    @property
    def adds_noise(self) -> bool:
        """Whether this client adds a share of the noise of central privacy."""
        return self._noise is not None

    @property
    def terms_of_noise(self) -> str:
        """What all clients of a masked sum must have heard alike, so that their noise adds up."""
        if self._noise is None:
            return ""
        planned = self._noise.uploads
        return terms_of_noise(self.method, planned.n_clients, planned.n_users, self.keys.shared)

    def check_sum(self, kind: str, round: int, n_clients: int) -> None:
        """Raise if a masked sum over so many clients may have less noise than was planned."""
        scheme = self.federation.secure_aggregation
        if self._noise is None or kind not in ("setup", "round"):
            return
        key = self.keys.shared.at(SETUP if kind == "setup" else round)
        n_shares = self._noise.exchange(key).n_shares
        if isinstance(scheme, SecAggPlus) and scheme.sure_shares(n_clients) < n_shares:
            raise Refused(
                f"a sum over {n_clients} clients may have too little noise: this client's share is "
                f"1/{n_shares} of it, for the number of clients that the server has announced"
            )

    def update(self, round: int) -> tuple[list[ClientMessage], NDArray[np.float64]]:
        """Run one local update. Repeated calls for the same round return the same answer.

        Returns
        -------
        uploads : list of ClientMessage
            Upload to send to the server; empty if there is none.
        loss : ndarray of shape (2,)
            Sums of the training losses and of their weights. Do not send them.
        """
        return self._once("round", round, lambda: self._updated(round))

    def _updated(self, round):
        """Run one local update, and pack it."""
        updates, loss = super().update(round)
        uploads = [upload for one in updates for upload in self._packed(one, self._specs)]
        self._n_uses += bool(uploads)
        if self._noise is not None and self._n_uses > self._noise.uploads.uses:
            raise Refused(
                f"the server asks for uploads of {self._n_uses} rounds, but by its own draws this "
                f"client's noise is planned for {self._noise.uploads.uses}"
            )
        return uploads, loss

    def validate(self, round: int, message: Message) -> list[ClientMessage]:
        """Evaluate a model on held-out rows; returns a list of one ClientMessage.

        Parameters
        ----------
        round : int
        message : Message
            ``server.send_for_validation(...)``.
        """
        complete = self._complete(message, round)
        return self._once(
            *("validation", round),
            lambda: self._packed(
                super(Device, self).validate(round, complete), self.scoring.fields()
            ),
        )

    def evaluate(
        self,
        round: int,
        message: Message,
        scoring: Scoring,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
    ) -> list[ClientMessage]:
        """Evaluate the final model on rows given for it; return a list of one ClientMessage.

        Parameters
        ----------
        round : int
            Number of rounds so far.
        message : Message
            As in `fitted`.
        scoring : Scoring
            The server's ``evaluation``.
        X, y
            Test rows of this client, as in `fit`. None: it has none, and sends zeros.
        """
        return self._once(
            "evaluation", round, lambda: self._evaluated(round, message, scoring, X, y)
        )

    def _evaluated(self, round, message, scoring, X, y):
        """Return the sums of a model's metrics as a message."""
        found = {name: np.zeros((1, 2)) for name in scoring.metrics}
        if X is not None:
            scoring.check_y(y)
            X, y, _ = check_rows(X, y)
            model = self.fitted(message, round)
            rows = rows_of(model, X, y, np.full(len(X), self.client_ids[0]))
            own = rows.held_out, rows.clients, rows.codes, self.keys.private, rows.places
            found = scoring.measure(model._model(), model._seen, *own)
        specs, clients = scoring.fields(), self.block.clients
        dtype = self.federation.wire_dtype
        updates = single_updates(specs, scoring.packed(found), clients, round, dtype)
        return self._packed(updates.added_up(), specs)

    def _once(self, phase, number, answer):
        """Return the answer to a request, made once even if it is repeated after later steps."""
        if self._answers.get(phase, (None,))[0] != number:
            self._answers[phase] = number, answer()
        # Copies: whoever writes into what is sent changes nothing here.
        return copy.deepcopy(self._answers[phase][1])

    def _packed(self, updates, specs):
        if self.federation.secure_aggregation is not None:
            return self._secured(updates, specs)
        told = updates is not None and updates.phase != "setup" and self._has_told
        return packed(updates, specs, self.federation, numbered=not told)

    @property
    def _has_told(self):
        """Whether the server knows from the set-up which items this client holds."""
        specs = self.algorithm.setup_fields(self.block.n_items).values()
        return any(spec.rows == "held" for spec in specs)

    # ------------------------------------------------------------------- later fits

    def memory(self) -> dict[str, tuple]:
        """Return what a fit to other rows goes on from: ids and arrays, by whose they are."""
        if self.algorithm.traits.sends_once:
            return {}
        return {by: (self._ids(by)[mask], arrays) for by, (mask, arrays) in self.learned().items()}

    def remember(self, memory: dict[str, tuple]) -> None:
        """Go on from the `memory` of an earlier fit."""
        found = {}
        for name, (ids, arrays) in memory.items():
            places = pd.Index(ids).get_indexer(pd.Index(self._ids(name)))
            known = places >= 0
            found[name] = known, [values[places[known]] for values in arrays]
        self.remembered: Remembered | NDArray[np.bool_] | None = found or None

    def _ids(self, name):
        """Return the ids of "users", of "clients", or of the items of the "rows".

        If users are treated apart, those of the users, also as clients and beside the items.
        """
        block, users = self._inner, self.data.user_ids.values
        by_user = self.plan.by_user
        if name != "rows":
            return users if by_user or name == "users" else self.client_ids
        items = self.data.item_ids.values[block.row_items]
        if not by_user:
            return items
        users = np.repeat(users, block.row_counts)
        return np.array([repr(pair) for pair in zip(users.tolist(), items.tolist(), strict=True)])

    # ------------------------------------------------------------------- secure sums

    def _secured(self, updates, specs):
        """Return a list of one upload for a secure sum; an empty one if the update has diverged."""
        if updates is None or not updates.accepted[0]:
            return []
        step, client = (updates.phase, updates.round), int(updates.clients[0])
        fields = updates.fields if updates.held is None else updates.held.single(0).whole(0)
        central, steps = self.federation.central_dp, {}
        if central is not None and central.noise == "clients":
            steps = steps_of(central, self._clip, specs)
        scheme = self.federation.secure_aggregation
        content = integers_of(scheme, fields, units_of(scheme, specs, steps), steps)
        return [ClientMessage(*step, client, integers=content)]

    # ----------------------------------------------------------------------- the end

    def fitted(self, message: Message, round: int) -> FederatedRecommender:
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

        Raises
        ------
        ValueError
            If the model is infinite or NaN. As in `fit`, a model that has diverged warns.
        """
        complete = self._complete(message, round)
        users = super().fitted(complete, round)
        attributes = self.algorithm.server_attributes(complete) | users
        check_fitted(self.method, self.data, attributes)
        attributes |= {"_final_message": message, "n_rounds_": round}
        return fitted_copy(self.method, attributes_of(self.data) | attributes)

    def _complete(self, message, round):
        """Return the message with the fields that clients derive from it."""
        if not message:
            return None
        self._check(message)
        return self.algorithm.decode(message, self.keys.shared.at(round))


def _check_place(place, n_own):
    """Raise Refused if a place is not one of a client with `n_own` users among possible others."""
    counts = place.n_clients, place.n_users
    parts = [np.asarray(one) for one in (place.clients, place.first_users, *counts)]
    if any(one.dtype.kind not in "iu" or one.size != 1 for one in parts):
        raise Refused(
            "a client's place has one code, one first user, n_clients and n_users, all integers"
        )
    code, first_user, n_clients, n_users = (one.item() for one in parts)
    # Every client has a user.
    fits = 0 <= code < n_clients <= MOST_CLIENTS and n_clients <= n_users
    if not fits or not code <= first_user <= n_users - n_own or not n_users < 2**62:
        raise Refused(
            f"the server gives this client code {code} and first user {first_user} among n_users="
            f"{n_users} and n_clients={n_clients}; codes must be below n_clients, which is at most "
            f"{MOST_CLIENTS:,}, no first user is below its code, and each client has a user"
        )
