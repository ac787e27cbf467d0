"""The plan of a fit: all that server and clients know of it before they see any data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from fedrecsk.protocol.algorithm import AnyAlgorithm, Traits
    from fedrecsk.protocol.early_stopping import HoldOut
    from fedrecsk.protocol.evaluation import Scoring
    from fedrecsk.protocol.federation import Federation
    from fedrecsk.protocol.participation import Sampling

    class Counted(Protocol):
        """The data of a fit, or its server."""

        @property
        def n_clients(self) -> int: ...
        @property
        def n_users(self) -> int: ...


# What becomes of uploads on their way to the server. "sum": those of a block are added up as soon
# as they are computed; "single": each is looked at before; "held": the server combines single ones;
# "kept": they are added up in the round in which they arrive, which may be a later one.
Uploads = Literal["sum", "single", "held", "kept"]


@dataclass(frozen=True)
class FitPlan:
    """How a fit runs; made from an estimator, and known to the server and to all clients.

    Attributes
    ----------
    name : str
        Name of the method, for errors.
    algorithm : Algorithm
    federation : Federation
    sampling : Sampling
        How clients are drawn in each round.
    n_rounds : int or None
        None: as many as the algorithm plans (`rounds`).
    n_items : int or None
        Number of items in the public catalogue. None: the catalogue comes from the data.
    rating_scale : tuple of float or None
        Lowest and highest rating, if they are public.
    rates : bool
        Whether the method learns how much users like an item, instead of whether they do.
    scoring : Scoring
        What clients report of a model on rows that they hold out.
    holds_out : HoldOut or None
        Which of their rows clients hold out. None: none.
    early_stopping : bool
        Whether clients evaluate the model in each round, and the fit may end before the last.
    tol : float
        Least improvement that counts.
    patience : int
        Number of passes over the clients without an improvement that end the fit.
    warm_start : bool
        Whether clients keep their rows after the fit, for another one.
    is_watched : bool
        Whether single uploads are recorded, as by `measure_leak`.
    draws_each : bool
        Whether every client draws its own noise even if only the sum matters, so that one draw of
        the same distribution would do. For tests.
    """

    name: str
    algorithm: AnyAlgorithm
    federation: Federation
    sampling: Sampling
    n_rounds: int | None
    n_items: int | None
    rating_scale: tuple[float, float] | None
    rates: bool
    scoring: Scoring
    holds_out: HoldOut | None
    early_stopping: bool
    tol: float
    patience: int
    warm_start: bool
    is_watched: bool = False
    draws_each: bool = False

    @property
    def by_user(self) -> bool:
        """Whether clients run the method for each user apart, and add the uploads up."""
        mechanism = self.federation.central_dp
        return mechanism is not None and mechanism.unit == "user"

    @property
    def traits(self) -> Traits:
        """Traits of the algorithm."""
        return self.algorithm.traits

    def units(self, fit: Counted) -> int:
        """Return the number of the method's clients in a fit: users, if it treats them apart."""
        return fit.n_users if self.by_user else fit.n_clients

    def rounds(self, n_clients: float) -> int:
        """Return the number of rounds of a fit to `n_clients` of the method's clients."""
        if self.n_rounds is not None:
            return self.n_rounds
        return self.algorithm.rounds(self.sampling, n_clients)

    def uploads(self, *, is_apart: bool = False, is_forged: bool = False) -> Uploads:
        """Return what becomes of clients' uploads on their way to the server.

        `is_apart`: it needs single ones, or the client is alone on its machine. `is_forged`: an
        adversary replaces some.
        """
        federation = self.federation
        protected = federation.aggregator is not None or federation.secure_aggregation is not None
        if federation.is_asynchronous:
            return "kept"
        if is_apart or protected or self.is_watched:
            return "held"
        # Local noise is added to single uploads, or needs their norms.
        mechanism = federation.local_dp
        local = mechanism is not None and (self.draws_each or mechanism.protects_uploads)
        looks = federation.compresses_up or local or federation.central_dp is not None
        return "single" if looks or is_forged else "sum"

    @property
    def server_sees(self) -> str:
        """Kind of uploads that the protocol shows to the server, as in :class:`PrivacyReport`."""
        federation, central = self.federation, self.federation.central_dp
        if federation.encrypts:
            return "encrypted sums"
        apart = self.algorithm.traits.treats_clients_apart
        if federation.aggregator is not None or federation.compresses_up or apart:
            return "single uploads"
        by_clients = central is not None and central.noise == "clients"
        return "noisy sums" if federation.local_dp is not None or by_clients else "exact sums"
