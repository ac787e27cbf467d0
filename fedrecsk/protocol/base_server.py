"""What both kinds of server do: register clients, draw cohorts, and keep ledger and history."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk.data.interactions import catalogue_ids
from fedrecsk.protocol.central_noise import CentralNoise
from fedrecsk.protocol.checks import bare, check_keys
from fedrecsk.protocol.early_stopping import VALIDATION, EarlyStopping
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.ledger import Ledger
from fedrecsk.protocol.links import Downlink, Uplink
from fedrecsk.protocol.messages import ClientCodes
from fedrecsk.protocol.participation import (
    cohort_size,
    draw_participation,
    n_rotating,
    smallest_cohort,
)
from fedrecsk.protocol.secure_sums import EncryptedChannel, MaskedChannel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from numpy.typing import ArrayLike, NDArray

    from fedrecsk.privacy import Party
    from fedrecsk.privacy.report import PrivacyReport
    from fedrecsk.protocol.federation import Federation
    from fedrecsk.protocol.messages import Registration


class BaseServer:
    """A server, whether it sees sums or ciphertexts."""

    def __init__(
        self,
        method: Any,
        federation: Federation,
        key: Key,
        item_ids: np.ndarray,
        secret: Key | None = None,
    ) -> None:
        self.secret = secret
        self.method = method
        self.federation = federation
        self.key = key
        self.item_ids = item_ids
        self._round_specs = method._upload_specs(len(item_ids))
        # What the method keeps; None under encryption.
        self.state: Any = None
        self.history: list[dict[str, Any]] = []
        # Rounds run so far.
        self.round: int = 0
        # Rounds in which all uploads were lost, and rounds with too few for the aggregator.
        self.n_empty_rounds: int = 0
        self.n_undecided_rounds: int = 0
        self.stopping: EarlyStopping = EarlyStopping(method.tol, method.n_iter_no_change)
        # Whether clients always receive the full model, as deployed ones do.
        self.sends_whole: bool = False
        # Mask of the clients that rounds are for; None: cohorts are drawn.
        self.only: NDArray[np.bool_] | None = None
        self._leave_out_clients()
        self._participation = None
        self._is_set_up = False
        # Mask of the clients that have joined since the last round; None before any.
        self._late: Any = None

    @classmethod
    def _made(
        cls, estimator: Any, key: Key | None, secret: Key | None, party: Party | None = None
    ) -> Self:
        """Return a server outside the simulator."""
        method = bare(estimator)
        check_keys(method, party, "server")
        key = Key(secrets.randbits(63)) if key is None else key
        ids = catalogue_ids(method.items).values
        return cls(method, method._setting(), key, ids, secret=secret)

    # ------------------------------------------------------------------------- clients

    def _leave_out_clients(self):
        """Begin without clients, or again after a registration that was refused."""
        self.n_clients: int = 0
        self.n_users: int = 0
        self.client_ids: Any = None
        self.n_held: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._first_users = np.zeros(0, dtype=np.int64)
        # Clients that have received the message of a round.
        self._has_received = np.zeros(0, dtype=bool)

    def register(self, registrations: Sequence[Registration]) -> list[ClientCodes]:
        """Register clients, send them the catalogue, and initialise the state.

        Parameters
        ----------
        registrations : list of Registration

        Returns
        -------
        places : list of ClientCodes
            Codes for each registration, in the order of the clients' ids.

        Raises
        ------
        ValueError
            If a client registers twice.
        """
        self._leave_out_clients()
        places = self._added(registrations)
        self.releases: CentralNoise | None = None
        if self.federation.central_dp is not None:
            self.releases = CentralNoise(
                self.method, self.federation, self.n_clients, self.key, self.secret
            )
        scheme = self.federation.secure_aggregation
        # Of ciphertexts; masks are the uplink's alone, because the server has the sum.
        self.channel: EncryptedChannel | None = None
        masks = None
        if self.federation.encrypts:
            self.channel = EncryptedChannel(scheme)
        elif self.federation.masks:
            cohort = smallest_cohort(
                self.n_clients,
                self.method.client_fraction,
                self.federation,
                prefers_rotation=self.method._prefers_rotation,
            )
            masks = MaskedChannel(scheme, cohort, self.releases)
        self.ledger: Ledger = Ledger(self.client_ids)
        self.downlink: Downlink = Downlink(
            self.federation, self.ledger, self.n_held, self.channel, self.sends_whole
        )
        self.uplink: Uplink = Uplink(
            self.federation,
            self.ledger,
            self.downlink,
            self.n_clients,
            releases=self.releases,
            channel=self.channel,
            masks=masks,
        )
        self.ledger.open("catalogue")
        self.downlink.count(catalogue_nbytes(self.item_ids))
        if self.channel is not None:
            self.ledger.open("keys")
            self.downlink.count(self.channel.scheme.key_nbytes())
        self.state = self._first_state()
        return places

    def _first_state(self):
        """Return what the method keeps, if the server sees sums."""

    def _added(self, registrations):
        """Give clients codes that follow those of the others; return these by registration."""
        ids = np.concatenate([one.client_ids for one in registrations])
        order = np.argsort(ids, kind="stable")
        twice = np.flatnonzero(ids[order][1:] == ids[order][:-1])
        if len(twice):
            raise ValueError(
                f"Client {ids[order][twice[0]]!s} registers twice; give each client its own id."
            )
        first, n_new, all_ids = self.n_clients, len(ids), ids[order]
        if first:
            self._check_late_ids(ids)
            all_ids = np.concatenate([self.client_ids, all_ids])
        n_users = np.concatenate([one.n_users for one in registrations])[order]
        n_held = np.concatenate([one.n_held for one in registrations])[order]
        first_users = self.n_users + np.cumsum(n_users) - n_users
        self.client_ids, self.n_clients = all_ids, len(all_ids)
        self.n_held = np.concatenate([self.n_held, n_held])
        self._first_users = np.concatenate([self._first_users, first_users])
        self._has_received = np.pad(self._has_received, (0, n_new))
        self.n_users += int(n_users.sum())
        share = self.method.client_fraction
        self.stopping.n_cohorts = n_rotating(self.n_clients, share)
        codes = np.empty(n_new, dtype=np.int64)
        codes[order] = first + np.arange(n_new)
        ends = np.cumsum([len(one.client_ids) for one in registrations])
        return [
            ClientCodes(own, self._first_users[own], self.key, self.n_clients)
            for own in np.split(codes, ends[:-1])
        ]

    def _check_late_ids(self, ids):
        """Raise if ids of late clients are of another type, or known."""
        if (ids.dtype.kind in "iuf") != (self.client_ids.dtype.kind in "iuf"):
            raise ValueError(
                f"The late clients' ids, such as {ids[0]!r}, and those of the others, such as "
                f"{self.client_ids[0]!r}, must all be numbers or all be strings."
            )
        known = np.isin(ids, self.client_ids)
        if known.any():
            name = ids[known][0]
            raise ValueError(
                f"Client {name!s} is registered already; if it has come back, it goes on with the "
                "place that it has, and otherwise give each client its own id."
            )

    def admit(self, registrations: Sequence[Registration]) -> list[ClientCodes]:
        """Register clients that join late, between rounds, and send them the catalogue.

        Their codes follow those of the others, for whom nothing changes. A client that comes back
        keeps its code.

        Parameters
        ----------
        registrations : list of Registration

        Returns
        -------
        places : list of ClientCodes
            Codes for each registration, in the order of the late clients' ids.

        Raises
        ------
        ValueError
            If a round or the set-up is open; if a client is registered already; or if the
            federation has `central_dp` or encryption, or the method keeps something for
            each client, which were made for the clients of the set-up.
        """
        self._check_admission()
        first = self.n_clients
        places = self._added(registrations)
        n_late = self.n_clients - first
        self._late = np.arange(self.n_clients) >= first - self._n_late
        self.ledger.admit(self.client_ids[first:])
        self.downlink.admit(self.n_held[first:])
        self.uplink.admit(n_late)
        if self.only is not None:
            self.only = np.pad(self.only, (0, n_late))
        self.ledger.open("catalogue")
        newest = np.arange(self.n_clients) >= first
        self.downlink.count(catalogue_nbytes(self.item_ids), newest)
        return places

    def repeat_setup(self, codes: ArrayLike) -> None:
        """Begin the set-up of late clients again, whose answers were lost.

        Parameters
        ----------
        codes : array-like of int
            Late clients, which have places already.

        Raises
        ------
        ValueError
            If a round or the set-up is open.
        """
        self._check_admission()
        self._late = np.isin(np.arange(self.n_clients), codes)

    @property
    def _n_late(self):
        return 0 if self._late is None else int(self._late.sum())

    def _check_admission(self):
        """Raise if no client may join now, or ever."""
        if self._participation is not None:
            raise ValueError(
                f"Round {self.round} is open; admit clients after close_round, before open_round."
            )
        if not self._is_set_up:
            raise ValueError(
                "The set-up is not over; register all clients that are there before it, and admit "
                "late ones after send_announcement()."
            )
        made = "were made for the clients of the set-up"
        whys = {
            f"central_dp, whose plan and noise {made}": self.federation.central_dp is not None,
            f"secure_aggregation, whose keys {made}": self.channel is not None,
        }
        for why, applies in whys.items():
            if applies:
                raise ValueError(
                    f"No client can join late under {why}; begin a new fit with all clients."
                )
        if not self.method._admits_late_clients:
            raise ValueError(
                f"No client can join {type(self.method).__name__} late, because it keeps something "
                "for each client of the set-up; begin a new fit with all clients."
            )

    # --------------------------------------------------------------------- exchanges

    @property
    def n_setups(self) -> int:
        """Number of set-up exchanges before the rounds."""
        return self.method._n_setups

    @property
    def _everyone(self):
        self._check_registered()
        return np.ones(self.n_clients, dtype=bool)

    def _check_registered(self):
        """Raise if there are no clients."""
        if not self.n_clients:
            raise ValueError("No client has registered yet; call register() first.")

    @staticmethod
    def _no_answer(step):
        return ValueError(
            f"No client has answered set-up exchange {step}, but all registered ones must."
        )

    def _specs(self, step):
        """Return the uploads' specs in a step, which is a tuple of phase and number."""
        phase, number = step
        if phase == "setup":
            return self.method._setup_specs(len(self.item_ids), number)
        return VALIDATION if phase == "validation" else self._round_specs

    def _drawn(self, key):
        """Draw the participation of a round, unless the method chooses the cohort."""
        self._check_registered()
        if self.releases is not None and self.releases.always:
            # Clients know the shared key.
            key = self.releases.secret_of(key)
        method, fraction, cohort = self.method, self.method.client_fraction, self.only
        if cohort is None and method._choose_cohort is not None:
            size = cohort_size(self.n_clients, fraction)
            cohort = method._choose_cohort(self.state, self.n_clients, size, key)
            if cohort is not None and method._shares_state:
                raise TypeError(
                    f"{type(method).__name__} shares state between clients of equal history, and "
                    "chosen cohorts give each client its own; let _choose_cohort return None."
                )
        return draw_participation(
            self.n_clients,
            fraction,
            self.federation,
            key,
            prefers_rotation=method._prefers_rotation,
            cohort=cohort,
        )

    def _turn(self):
        """Return the open round's participation."""
        if self._participation is None:
            raise ValueError(f"Round {self.round} is not open; call open_round() first.")
        return self._participation

    def _end_round(self, loss=(0.0, 0.0)):
        """Record the open round, and close it."""
        self._participation = None
        entry, (total, weight) = self.ledger.entries[-1], loss
        # If no client has made a training step, the last loss is kept.
        last = self.history[-1]["loss"] if self.history and entry["participants"] else float("nan")
        row = {
            "round": entry["round"],
            "loss": float(total / weight) if weight else last,
            "participants": entry["participants"],
            "bytes_down": entry["bytes_down"],
            "bytes_up": entry["bytes_up"],
        }
        if self.method.early_stopping:
            row["validation_loss"] = float("nan")
        self.history.append(row)
        self.round += 1

    def privacy_report(self) -> PrivacyReport:
        """Report the privacy loss of all uploads so far."""
        self._check_registered()
        return self.uplink.privacy_report(server_sees(self.method, self.federation))


def server_sees(method: Any, federation: Federation) -> str:
    """Return what the protocol shows to the server, as in :class:`PrivacyReport`."""
    compresses = federation.compression is not None and federation.compression.up
    if federation.encrypts:
        return "encrypted sums"
    if federation.aggregator is not None or compresses or method._treats_clients_apart:
        return "single uploads"
    central = federation.central_dp
    noisy = federation.local_dp is not None or (central is not None and central.noise == "clients")
    return "noisy sums" if noisy else "exact sums"


def catalogue_nbytes(item_ids: np.ndarray) -> int:
    """Return the items' ids' bytes. Strings count as UTF-8 with one byte as terminator."""
    if item_ids.dtype.kind in "UO":
        return sum(len(str(one).encode()) + 1 for one in item_ids.tolist())
    return item_ids.nbytes
