"""A client outside the simulator that shows the server nothing but ciphertexts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from sklearn.base import clone

from fedrecsk.simulation.clients import Clients, Registration
from fedrecsk.simulation.device import Device, bare
from fedrecsk.simulation.replica import Replica
from fedrecsk.simulation.uplink import as_vector

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import ArrayLike, NDArray

    from fedrecsk.privacy import Ciphertext, Party
    from fedrecsk.simulation.keys import Key
    from fedrecsk.simulation.replica import SecureStep
    from fedrecsk.simulation.server import Places


class SecureUpload(NamedTuple):
    """One client's encrypted upload.

    Attributes
    ----------
    phase : {"setup", "round"}
    round : int
        The round, or the step of the set-up.
    client : int
        Code that the server has assigned to the client.
    content : Ciphertext
        All fields, one after the other.
    """

    phase: str
    round: int
    client: int
    content: Ciphertext


class SecureDevice(Device):
    """A :class:`Device` under ``Federation(secure_aggregation=...)``.

    It encrypts its uploads, decrypts the sums that :class:`SecureServer` hands to all clients, and
    takes the server's steps itself, so that the model is only on the clients. It can be pickled at
    any time; the keys are not part of the pickle.

    Parameters
    ----------
    estimator : federated estimator
        An estimator with the same parameters as the server's, as for :class:`Device`.
    X, y, sample_weight
        Rows of this client, as in `fit`.
    client_id : int, float or str
        Id of the client, different from all others.
    party : Party
        The clients' side of the keys, which the server must not have.
    private : Key or None, default=None
        As for :class:`Device`.

    Raises
    ------
    ValueError
        For the reasons of :class:`Device`; if the federation has no `secure_aggregation`; with
        early stopping; or if a method chooses cohorts from what it has learned.

    Examples
    --------
    >>> from fedrecsk import FedMF, Federation
    >>> from fedrecsk.datasets import make_interactions
    >>> from fedrecsk.privacy import CKKS
    >>> from fedrecsk.simulation import SecureDevice, SecureServer
    >>> X = make_interactions(n_users=60, n_items=40, n_interactions=900, random_state=0)
    >>> scheme = CKKS()
    >>> keys = scheme.generate_keys(n_clients=2)
    >>> method = FedMF(
    ...     4,
    ...     client_fraction=1.0,
    ...     items=range(40),
    ...     federation=Federation(secure_aggregation=scheme),
    ... )
    >>> server = SecureServer.of(method, keys.server)
    >>> shops = [
    ...     SecureDevice(method, X[X[:, 0] % 2 == k], client_id=f"shop {k}", party=keys.clients)
    ...     for k in (0, 1)
    ... ]
    >>> for shop, place in zip(shops, server.register([shop.register() for shop in shops])):
    ...     shop.place(place, server.n_clients)
    >>> for step in range(server.n_setups):
    ...     server.open("setup", step)
    ...     server.close([one for shop in shops for one in shop.setup(step)])
    >>> turn = server.open_round()
    >>> for shop in shops:
    ...     shop.take(server.steps)
    >>> server.close([one for shop in shops for one in shop.update(0)[0]])
    >>> for shop in shops:
    ...     shop.take(server.steps)
    >>> shops[0].fitted().item_factors_.shape
    (40, 4)
    """

    def __init__(
        self,
        estimator: Any,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        client_id: float | str,
        party: Party,
        sample_weight: ArrayLike | None = None,
        private: Key | None = None,
    ) -> None:
        if not party.holds_secret_key:
            raise ValueError(
                "A client needs the clients' side of the keys, and these are the server's; pass "
                "party=keys.clients."
            )
        super().__init__(
            estimator, X, y, client_id=client_id, sample_weight=sample_weight, private=private
        )
        self.party: Party | None = party
        self.replica: Replica | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The keys are kept where the operator has put them, and nowhere else.
        return vars(self) | {"party": None}

    def _check_secure_sums(self, method):
        check_secure(method)

    def register(self) -> Registration:
        """Return this client's Registration, without the number of its items."""
        ids, n_users, n_held = super().register()
        return Registration(ids, n_users, np.zeros_like(n_held))

    def place(self, place: Places, n_clients: int) -> None:
        """Store the code that the server has assigned to this client, and make a replica.

        Parameters
        ----------
        place : Places
        n_clients : int
            Clients of the fit.
        """
        super().place(place)
        if self.replica is None:
            self.replica = Replica(self.method, place.shared, n_clients)
            self._announce()

    def take(self, steps: Sequence[SecureStep], first: int = 0) -> None:
        """Take the server's steps of exchanges that have ended, but for those taken before.

        Parameters
        ----------
        steps : list of SecureStep
        first : int, default=0
            Number of the first of these among all steps of the fit.

        Raises
        ------
        ValueError
            If there is a gap before these steps.
        """
        replica, party = self._ready()
        if first > replica.n_taken:
            raise ValueError(
                f"This client has taken {replica.n_taken} steps and cannot go on from step "
                f"{first}; send it all that it lacks."
            )
        for step in steps[replica.n_taken - first :]:
            replica.take(step, party)
            if step.phase == "setup":
                self._announce()

    def _ready(self):
        """The replica and the keys."""
        if self.replica is None:
            raise ValueError("This client has no place yet; call place(place, n_clients) first.")
        if self.party is None:
            raise ValueError(
                "This client's keys are not in its pickle; set its `party` to the clients' side "
                "of the keys, scheme.load_party(...)."
            )
        return self.replica, self.party

    def _announce(self):
        """Store the announcement when the set-up is over."""
        replica, _ = self._ready()
        if replica.n_taken == replica.server.n_setups:
            self.announce(replica.server.send_announcement())

    def setup(self, step: int) -> list[SecureUpload]:
        """Answer a set-up exchange; returns a list of SecureUpload, which may be empty."""
        replica, _ = self._ready()
        message, _ = replica.open("setup", step)
        return self._once(
            "setup", step, lambda: self._encrypted([Clients.setup(self, step, message)])
        )

    def update(self, round: int) -> tuple[list[SecureUpload], NDArray[np.float64]]:
        """Receive the round's message from the replica, and run one local update.

        Returns
        -------
        uploads : list of SecureUpload
            Upload to send to the server; empty if the update has diverged.
        loss : ndarray of shape (2,)
            Sums of the training losses and of their weights. Do not send them.
        """
        replica, _ = self._ready()
        message, turn = replica.open("round", round)
        assert turn is not None
        if not turn.active[self.block.clients[0]]:
            raise ValueError(f"This client was not selected in round {round}.")
        self.receive(round, message)
        contributions, loss = Clients.update(self, round)
        return self._once("round", round, lambda: self._encrypted(contributions)), loss

    def _encrypted(self, contributions):
        _, party = self._ready()
        uploads = []
        for one in contributions:
            if one is None or not one.accepted[0]:
                continue
            content = party.encrypt(as_vector(one.batch, 0))
            uploads.append(SecureUpload(one.phase, one.round, int(one.clients[0]), content))
        return uploads

    def validate(self, round: int, message: Any) -> list[Any]:
        """Not supported under secure sums; raises."""
        raise NotImplementedError("There is no early stopping under secure sums on devices.")

    def fitted(self) -> Any:
        """Return a fitted estimator for this client's users, of the last model."""
        replica, _ = self._ready()
        server = replica.server
        return super().fitted(server.send_final(), server.round)


def check_secure(estimator: Any) -> Any:
    """Check an estimator's parameters for secure sums on devices.

    Parameters
    ----------
    estimator : federated estimator

    Returns
    -------
    method : estimator
        A copy.

    Raises
    ------
    ValueError
        If the federation has no `secure_aggregation`, or for what secure sums rule out.
    """
    method = bare(clone(estimator))
    name = type(method).__name__
    if method._setting().secure_aggregation is None:
        raise ValueError(
            "The federation has no secure_aggregation; set it to CKKS(), for example, or use "
            "Server and Device."
        )
    if method.early_stopping:
        raise ValueError(
            "Devices do not evaluate models under secure sums yet, which only the simulator does; "
            "set early_stopping=False, or call fit."
        )
    if method._setting().sampling == "poisson":
        raise ValueError(
            'With sampling="poisson" only the server knows the cohorts, but under secure sums '
            'all clients must; set federation.sampling="auto".'
        )
    if method._chooses_cohorts:
        raise ValueError(
            f"{name} chooses its cohorts from what it has learned, which the server of secure sums "
            "does not know; set federation.secure_aggregation=None."
        )
    return method
