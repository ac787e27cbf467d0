"""The server of a protocol in which it sees nothing but ciphertexts."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk.interactions import catalogue_ids
from fedrecsk.privacy import Ciphertext
from fedrecsk.privacy.report import PrivacyReport
from fedrecsk.simulation import participation
from fedrecsk.simulation.contributions import Counts
from fedrecsk.simulation.encryption import SecureChannel
from fedrecsk.simulation.keys import Key, setup_round
from fedrecsk.simulation.ledger import Ledger
from fedrecsk.simulation.release import Releases
from fedrecsk.simulation.replica import SecureStep
from fedrecsk.simulation.secure_device import SecureUpload, check_secure
from fedrecsk.simulation.server import Places, catalogue_nbytes, sort_registrations
from fedrecsk.simulation.uplink import aligned_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, Self

    from fedrecsk.privacy import Party
    from fedrecsk.simulation.clients import Registration
    from fedrecsk.simulation.participation import Participation


class SecureServer:
    """Draws cohorts and adds ciphertexts for clients of the class :class:`SecureDevice`.

    It never has the model. Call its methods in this order: `register`; for each set-up exchange
    `open` and `close`; for each round `open_round` and `close`. After each exchange hand `steps`
    to all clients. Pickle it to make a checkpoint; its keys, which are public, are in it.

    Parameters
    ----------
    method : FederatedRecommender
        A copy of the estimator with hyperparameters only.
    key : Key
        The shared key, before the first round.
    party : Party
        The server's side of the keys.

    Attributes
    ----------
    steps : list of SecureStep
        Exchanges that have ended. The sums of those that all clients have taken can be deleted
        with `forget`.
    ledger : Ledger
        What clients send and receive: the sums are counted when they are made, for all clients.
    """

    def __init__(self, method: Any, key: Key, party: Party) -> None:
        if party.holds_secret_key:
            raise ValueError(
                "These are the clients' keys, with which the server could decrypt every upload. "
                "Pass the server's side, keys.server, and delete the clients' keys from this "
                "machine."
            )
        self.method = method
        self.federation: Any = method._setting()
        self.key = key
        self.party: Party = party
        self.item_ids: np.ndarray = catalogue_ids(method.items).values
        self.round: int = 0
        self.steps: list[SecureStep] = []
        # Number of steps that were deleted from the beginning of the list.
        self.n_forgotten: int = 0
        self._open: tuple[Any, ...] | None = None

    @classmethod
    def of(cls, estimator: Any, party: Party, key: Key | None = None) -> Self:
        """A server for clients that have an estimator with the same parameters.

        Parameters
        ----------
        estimator : federated estimator
        party : Party
            The server's side of the keys.
        key : Key or None
            The shared key. None: drawn by the operating system.

        Raises
        ------
        ValueError
            If the estimator or its federation is not one for secure sums on devices; or if these
            are the clients' keys.
        """
        method = check_secure(estimator)
        return cls(method, Key(secrets.randbits(63)) if key is None else key, party)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"party": self.party.to_bytes()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.party = self.federation.secure_aggregation.load_party(state["party"])

    # --------------------------------------------------------------- before the rounds

    def register(self, registrations: Sequence[Registration]) -> list[Places]:
        """Register clients, as for `Server.register`.

        Raises
        ------
        ValueError
            If a client registers twice, or if there are more clients than the keys are for.
        """
        ids, order, n_users, _ = sort_registrations(registrations)
        if len(ids) > self.party.n_clients:
            raise ValueError(
                f"{len(ids)} clients have registered, but the keys are for sums over at most "
                f"{self.party.n_clients}; make keys with generate_keys(n_clients={len(ids)})."
            )
        self.client_ids: np.ndarray = ids
        first_users = np.cumsum(n_users) - n_users
        self.ledger: Ledger = Ledger(ids)
        self._channel: SecureChannel = SecureChannel(self.federation.secure_aggregation)
        self._releases: Releases | None = None
        if self.federation.central_dp is not None:
            self._releases = Releases(self.method, self.federation, len(ids), self.key, None)
        self._uploads = np.zeros(len(ids), dtype=np.int64)
        self._coordinates = np.zeros(len(ids), dtype=np.int64)
        for phase, nbytes in (
            ("catalogue", catalogue_nbytes(self.item_ids)),
            ("keys", self._channel.key_nbytes),
        ):
            self.ledger.open(phase)
            self._count_down(nbytes)
        codes = np.empty(len(ids), dtype=np.int64)
        codes[order] = np.arange(len(ids))
        splits = np.cumsum([len(one.client_ids) for one in registrations])[:-1]
        return [Places(part, first_users[part], self.key) for part in np.split(codes, splits)]

    def admit(self, registrations: Sequence[Registration]) -> list[Places]:
        """Refuse clients that join late: nobody would give them the model."""
        raise ValueError(
            "No client can join late under secure_aggregation, because only the other clients "
            "have the model; begin a new fit with all clients."
        )

    @property
    def n_clients(self) -> int:
        """Clients that have registered."""
        if "client_ids" not in vars(self):
            raise ValueError("No client has registered yet; call register(registrations) first.")
        return len(self.client_ids)

    @property
    def n_setups(self) -> int:
        """Number of set-up exchanges before the rounds."""
        return self.method._n_setups

    @property
    def n_steps(self) -> int:
        """Exchanges that have ended."""
        return self.n_forgotten + len(self.steps)

    # ------------------------------------------------------------------- each exchange

    def open(self, phase: str, round: int) -> None:
        """Begin a set-up exchange, in which all clients take part."""
        self._begin(phase, round, np.ones(self.n_clients, dtype=bool))

    def open_round(self) -> Participation:
        """Begin a round; returns the participation."""
        fraction, key = self.method.client_fraction, self.key.at(self.round)
        turn = participation.draw(
            self.n_clients,
            fraction,
            self.federation,
            key,
            prefers_rotation=self.method._prefers_rotation,
        )
        self._begin("round", self.round, turn.active)
        return turn

    def _begin(self, phase, round, asked):
        if self._open is not None:
            raise ValueError(
                f"The exchange {self._open[0]} {self._open[1]} is open; close it first."
            )
        self.ledger.open(phase, round)
        if phase == "round":
            self.ledger.count(participants=int(asked.sum()))
        self._open = phase, round, asked

    def accept(self, upload: SecureUpload) -> None:
        """Raise if this is not an upload that belongs to the open exchange.

        Raises
        ------
        ValueError, TypeError
            If its ciphertext is malformed, or if it belongs to another exchange or to a client
            that was not asked.
        """
        phase, round, asked = self._in_progress()
        if (upload.phase, upload.round) != (phase, round):
            raise ValueError(
                f"An upload of {upload.phase} {upload.round} came in {phase} {round}; send "
                "uploads in their own step."
            )
        if not 0 <= upload.client < self.n_clients or not asked[upload.client]:
            raise ValueError(f"Client {upload.client} was not selected in {phase} {round}.")
        self.party.check(upload.content, self._n_values(phase, round))

    def _in_progress(self):
        if self._open is None:
            raise ValueError("No exchange is open; call open() or open_round() first.")
        return self._open

    def _n_values(self, phase, round):
        method, n_items = self.method, len(self.item_ids)
        if phase == "setup":
            return aligned_size(method._setup_forms(n_items, round))
        return aligned_size(method._upload_forms(n_items))

    def close(self, uploads: Iterable[SecureUpload], n_malformed: int = 0) -> None:
        """End the open exchange with the uploads that have arrived.

        Uploads that are malformed, and second ones, are left out and counted as rejected.

        Parameters
        ----------
        uploads : iterable of SecureUpload
        n_malformed : int, default=0
            Uploads that could not be read at all.

        Raises
        ------
        ValueError
            If no exchange is open; or if it is a set-up exchange without any upload.
        """
        phase, round, asked = self._in_progress()
        accepted, n_rejected = self._accepted(uploads)
        if phase == "setup" and not accepted:
            raise ValueError(
                f"No client has answered set-up exchange {round}, but all registered ones must."
            )
        clients = np.array(sorted(accepted), dtype=np.int64)
        n_values = self._n_values(phase, round)
        nbytes = self._channel.nbytes(n_values)
        self.ledger.up(clients, np.full(len(clients), nbytes), None)
        n_rejected += n_malformed
        n_missing = max(0, int(asked.sum()) - len(clients) - n_rejected)
        self.ledger.count(messages_up=len(clients), dropped=n_missing, rejected=n_rejected)
        self._uploads[clients] += 1
        self._coordinates[clients] += n_values
        if self._releases is not None and accepted:
            key = self.key.at(setup_round(round) if phase == "setup" else round)
            self._releases.charge([clients], key, Counts(n_shares=len(clients)))
        total = self.party.sum(accepted[one] for one in clients.tolist()) if accepted else None
        self.steps.append(SecureStep(phase, round, clients, total))
        if total is not None:
            self._count_down(nbytes)
        self.round += phase == "round"
        self._open = None

    def _accepted(self, uploads):
        """Ciphertexts of uploads that belong here, by client, and how many uploads do not."""
        accepted: dict[int, Ciphertext] = {}
        n_rejected = 0
        for one in uploads:
            try:
                self.accept(one)
            except (ValueError, TypeError):
                n_rejected += 1
                continue
            if one.client in accepted:
                n_rejected += 1
            else:
                accepted[one.client] = one.content
        return accepted, n_rejected

    def _count_down(self, nbytes):
        everyone = np.arange(self.n_clients)
        self.ledger.down(everyone, np.full(self.n_clients, nbytes))

    def steps_from(self, first: int) -> list[SecureStep]:
        """Steps that a client lacks that has taken `first` of them.

        Raises
        ------
        ValueError
            If some of them have been deleted.
        """
        if first < self.n_forgotten:
            raise ValueError(
                f"Steps {first} to {self.n_forgotten - 1} were deleted with forget(), so this "
                "client cannot get them; restore its state."
            )
        return self.steps[first - self.n_forgotten :]

    def forget(self, n_taken: int) -> None:
        """Delete the first steps, which all clients have taken."""
        n_more = max(0, n_taken - self.n_forgotten)
        del self.steps[:n_more]
        self.n_forgotten += n_more

    def privacy_report(self) -> PrivacyReport:
        """Report the privacy loss of all uploads so far."""
        sees, n_coordinates = "encrypted sums", self._coordinates
        if self._releases is not None:
            return self._releases.report(int(n_coordinates.max(initial=0)), sees)
        return PrivacyReport.of(self.federation.local_dp, self._uploads, n_coordinates, sees)
