"""The federation that a method runs in: who takes part, what is lost, what protects uploads."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal, Self

from fedrecsk._utils.constraints import From0Below1
from fedrecsk._utils.parameters import PlainParameters
from fedrecsk._utils.sklearn_compat import InvalidParameterError
from fedrecsk.aggregation import Aggregator
from fedrecsk.attacks import Adversary
from fedrecsk.compression import Compressor
from fedrecsk.privacy import CentralDP, LocalMechanism, SecureAggregation
from fedrecsk.protocol.devices import DeviceProfile, profile_of
from fedrecsk.protocol.schedules import Asynchronous, Schedule

# What errors suggest to pass for each part.
_EXAMPLES = {
    "central_dp": "CentralDP(epsilon=10) from fedrecsk.privacy",
    "local_dp": "LaplaceMechanism(clip=0.2, scale=0.04) from fedrecsk.privacy",
    "compression": 'Quantization("int8"), TopK() or LowRank() from fedrecsk.compression',
    "secure_aggregation": "SecAggPlus(), CKKS() or Paillier() from fedrecsk.privacy",
    "aggregator": "NormClipping() or Krum() from fedrecsk.aggregation",
    "adversary": "SignFlip(fraction=0.1) from fedrecsk.attacks",
    "schedule": "Synchronous(deadline=60) or Asynchronous() from fedrecsk.protocol",
}


@dataclass(eq=False, repr=False)
class Federation(PlainParameters):
    """The federation that a method runs in: dropout, sampling, protections and attacks.

    Pass it to any federated estimator as ``federation``. A search can vary its parameters, as in
    ``federation__dropout``.

    Parameters
    ----------
    dropout : float in [0, 1), default=0.0
        Probability with which each client chosen for a round drops out of that round.
    dropout_mode : {"upload", "stale", "offline"}, default="upload"
        Kind of dropout. "upload": the client receives the broadcast and updates, but its upload is
        lost. "stale": it has no connection, and updates from the last broadcast that it received
        (RFRec, section 3.3). "offline": it does nothing in that round.
    sampling : {"auto", "random", "rotating", "poisson"}, default="auto"
        How the cohort of a round, a share ``client_fraction`` of the clients, is chosen. "random":
        at random in each round. "rotating": in turn, from a shuffled list cut into
        ``round(1 / client_fraction)`` equal parts. "poisson": every client joins with probability
        ``client_fraction``, so that cohorts differ in size; the best choice with `central_dp`.
        "auto": the method's default, mostly "random".
        Some methods choose their cohorts themselves.
    central_dp : CentralDP or None, default=None
        User-level differential privacy: every client's whole upload is clipped, and the sum of all
        uploads receives noise, see :class:`fedrecsk.privacy.CentralDP`.
    local_dp : LocalMechanism or None, default=None
        Clipping and noise that every client applies to everything it uploads:
        :class:`fedrecsk.privacy.GaussianMechanism`, :class:`fedrecsk.privacy.SphereMechanism` or
        :class:`fedrecsk.privacy.LaplaceMechanism`.
    wire_dtype : {"float32", "float64"}, default="float32"
        Type of real numbers in messages, for counting bytes. It does not change what is
        computed.
    aggregator : Aggregator or None, default=None
        Robust aggregator, by which the server combines uploads that it does not trust; see
        :mod:`fedrecsk.aggregation`. If None, the sum of all uploads.
    adversary : Adversary or None, default=None
        Poisoned clients, see :mod:`fedrecsk.attacks`.
    compression : Compressor or None, default=None
        Compression of matrices of real numbers by Top-K, low rank or quantisation; see
        :mod:`fedrecsk.compression`. Each client compresses its upload of a round. The server
        compresses the difference between its model and the model that clients have, so that what
        is left out of one message is sent in a later one; clients must follow every round. Fields
        whose rows are sent only to the clients that hold the items are compressed in uploads only,
        and SCoLR's uploads not at all. LightFR, which sends binary codes, raises an error.
    secure_aggregation : SecureAggregation or None, default=None
        Sums without single uploads. :class:`fedrecsk.privacy.SecAggPlus`: clients mask their
        uploads, and the server sees only the sum. :class:`fedrecsk.privacy.CKKS`,
        :class:`fedrecsk.privacy.Paillier`: the server adds ciphertexts and learns nothing; the
        clients, who share a key, decrypt the sum and take the server's step. See
        ``encryption_`` of the fitted model for the cost.
    devices : DeviceProfile, str or None, default=None
        Speeds of the clients' devices and networks, see :class:`fedrecsk.protocol.DeviceProfile`,
        or the name of a profile, as in :func:`fedrecsk.protocol.estimate_training_time`. The fit
        then has a simulated clock: each row of ``history_`` has the `hours` until the end of its
        round. They depend on `random_state`, not on the simulating machine.
    schedule : Synchronous, Asynchronous or None, default=None
        When a round ends by that clock: at a deadline, see :class:`fedrecsk.protocol.Synchronous`;
        or whenever some uploads have arrived, while other clients go on, see
        :class:`fedrecsk.protocol.Asynchronous`. If None, when all uploads have arrived.

    Examples
    --------
    >>> from fedrecsk import Federation, RFRec
    >>> model = RFRec(federation=Federation(dropout=0.5))
    >>> model.set_params(federation__dropout=0.9).federation
    Federation(dropout=0.9)
    """

    _: KW_ONLY
    dropout: From0Below1 = 0.0
    dropout_mode: Literal["upload", "stale", "offline"] = "upload"
    sampling: Literal["auto", "random", "rotating", "poisson"] = "auto"
    central_dp: CentralDP | None = None
    local_dp: LocalMechanism | None = None
    compression: Compressor | None = None
    secure_aggregation: SecureAggregation | None = None
    aggregator: Aggregator | None = None
    adversary: Adversary | None = None
    wire_dtype: Literal["float32", "float64"] = "float32"
    devices: DeviceProfile | str | None = None
    schedule: Schedule | None = None

    def set_params(self, **params: object) -> Self:
        """Set parameters. Parameters of a part that is None raise an error.

        Returns
        -------
        self : object
        """
        for name in params:
            part, nested, _ = name.partition("__")
            missing = getattr(self, part, self) is None and params.get(part) is None
            if nested and missing:
                kind = self._parameter_constraints[part][0].__name__
                raise ValueError(
                    f"{name} cannot be set because {part} is None; set {part} to a {kind} that "
                    "has this parameter first, or in the same call."
                )
        return super().set_params(**params)

    def _validate_params(self):
        for name, example in _EXAMPLES.items():
            part, kind = getattr(self, name), self._parameter_constraints[name][0]
            if part is not None and not isinstance(part, kind):
                shown = part.__name__ if isinstance(part, type) else repr(part)
                raise InvalidParameterError(
                    f"Federation({name}={shown}): the parameter takes an object, such as "
                    f"{example}, or None."
                )
        super()._validate_params()
        if self.devices is not None:
            profile_of("devices", self.devices)
        for part in (getattr(self, name) for name in _EXAMPLES):
            if part is not None:
                part._validate_params()

    def _suspect(self):
        """Return a sentence about the part that may have made the clients diverge, or None."""
        of_noise = "scale", "noise_multiplier", "clip"
        forger = None if self.adversary is None or not self.adversary.forges else self.adversary
        for part, names in ((forger, ("strength",)), (self.local_dp, of_noise)):
            if part is None:
                continue
            known = [name for name in names if name in part.get_params(deep=False)]
            lower = f"lower its {known[0]}" if known else "check what it uploads"
            undefended = part is forger and self.aggregator is None
            aggregate = ", or set an aggregator such as NormClipping()" * undefended
            return f"The likely cause is {part}: {lower}{aggregate}."
        if self.central_dp is not None:
            return f"The likely cause is {self.central_dp}: raise its epsilon, or lower its clip."
        largest = None if self.compression is None else self.compression._largest_number
        if largest is None:
            return None
        return (
            f"The likely cause is {self.compression}, whose numbers end at {largest:g}: use "
            'Quantization("int8").'
        )

    @property
    def is_asynchronous(self) -> bool:
        """Whether uploads may come in a later round than the one in which they began."""
        return isinstance(self.schedule, Asynchronous)

    @property
    def encrypts(self) -> bool:
        """Whether not even the server sees the sums, so that clients take its steps."""
        return self.secure_aggregation is not None and self.secure_aggregation.hides_sums

    @property
    def masks(self) -> bool:
        """Whether clients mask their uploads, so that the server sees the sums only."""
        return self.secure_aggregation is not None and not self.secure_aggregation.hides_sums

    @property
    def compresses_up(self) -> bool:
        """Whether clients compress their uploads."""
        return self.compression is not None and self.compression.up
