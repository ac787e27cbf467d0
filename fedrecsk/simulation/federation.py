"""The setting that a federated method runs in."""

from __future__ import annotations

from numbers import Real
from typing import ClassVar, Literal

from sklearn.base import BaseEstimator

from fedrecsk._sklearn import Interval, InvalidParameterError, StrOptions
from fedrecsk.aggregation import Aggregator
from fedrecsk.attacks import Adversary
from fedrecsk.compression import Compressor
from fedrecsk.privacy import LaplaceMechanism, SecureAggregation

# What errors suggest to pass for each part.
_EXAMPLES = {
    "local_dp": "LaplaceMechanism(clip=0.2, scale=0.04) from fedrecsk.privacy",
    "compression": 'Quantization("int8"), TopK() or LowRank() from fedrecsk.compression',
    "secure_aggregation": "CKKS() or Paillier() from fedrecsk.privacy",
    "aggregator": "NormClipping() or Krum() from fedrecsk.aggregation",
    "adversary": "SignFlip(fraction=0.1) from fedrecsk.attacks",
}


class Federation(BaseEstimator):
    """The network, the cohorts and the protections around a federated method.

    Nested in every federated estimator as ``federation``, so that a search can vary
    ``federation__dropout`` with any method.

    Parameters
    ----------
    dropout : float in [0, 1), default=0.0
        Probability that a client of a round's cohort fails in that round, independently.
    dropout_mode : {"upload", "stale", "offline"}, default="upload"
        What failing means. "upload": the client receives the broadcast and updates, and its
        upload is lost. "stale": it has no connection and goes on with the last broadcast it
        received (RFRec, section 3.3). "offline": it does nothing that round.
    sampling : {"auto", "random", "rotating"}, default="auto"
        How a cohort of ``client_fraction`` of the clients is chosen. "random": anew each round.
        "rotating": in turn, from a shuffled list cut into ``round(1 / client_fraction)`` equal
        parts. "auto": as suits the method; most take them at random. A method may also choose
        its cohorts itself.
    local_dp : LaplaceMechanism or None, default=None
        Clipping and noise that every client applies to all it uploads.
    wire_dtype : {"float32", "float64"}, default="float32"
        Type in which real numbers are counted in messages. It does not change what is
        computed.
    aggregator : Aggregator or None, default=None
        How the server adds up uploads that it does not trust, see
        :mod:`fedrecsk.aggregation`. None: it adds up all of them.
    adversary : Adversary or None, default=None
        Poisoned clients, see :mod:`fedrecsk.attacks`.
    compression : Compressor or None, default=None
        Top-K, low rank or quantisation of matrices of real numbers, see
        :mod:`fedrecsk.compression`. Up, each client compresses what it has learned in a
        round. Down, the server compresses by how much its model differs from what clients
        know, so that what one message lacks comes in a later one; clients are taken to follow
        every round, and under early stopping they measure the whole model. Rows of some items
        only are compressed on their way up alone; SCoLR's columns, of which each client sends
        some only, are sent as they are. LightFR, which sends codes, refuses it.
    secure_aggregation : SecureAggregation or None, default=None
        Homomorphic encryption of all uploads: the server adds ciphertexts and learns
        nothing; the clients, who hold the key, decrypt the sum and take the server's step. See
        :class:`fedrecsk.privacy.CKKS`, :class:`fedrecsk.privacy.Paillier`, and
        ``encryption_`` of the fitted model.

    Examples
    --------
    >>> from fedrecsk import Federation, RFRec
    >>> model = RFRec(federation=Federation(dropout=0.5))
    >>> model.set_params(federation__dropout=0.9).federation
    Federation(dropout=0.9)
    """

    _parameter_constraints: ClassVar[dict] = {
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "dropout_mode": [StrOptions({"upload", "stale", "offline"})],
        "sampling": [StrOptions({"auto", "random", "rotating"})],
        "local_dp": [LaplaceMechanism, None],
        "wire_dtype": [StrOptions({"float32", "float64"})],
        "compression": [Compressor, None],
        "secure_aggregation": [SecureAggregation, None],
        "aggregator": [Aggregator, None],
        "adversary": [Adversary, None],
    }

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        dropout_mode: Literal["upload", "stale", "offline"] = "upload",
        sampling: Literal["auto", "random", "rotating"] = "auto",
        local_dp: LaplaceMechanism | None = None,
        compression: Compressor | None = None,
        secure_aggregation: SecureAggregation | None = None,
        aggregator: Aggregator | None = None,
        adversary: Adversary | None = None,
        wire_dtype: Literal["float32", "float64"] = "float32",
    ):
        self.dropout = dropout
        self.dropout_mode = dropout_mode
        self.sampling = sampling
        self.local_dp = local_dp
        self.compression = compression
        self.secure_aggregation = secure_aggregation
        self.aggregator = aggregator
        self.adversary = adversary
        self.wire_dtype = wire_dtype

    def set_params(self, **params):
        """Set parameters; those of a part that is None are refused.

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
        self._check_kinds()
        super()._validate_params()
        if self.secure_aggregation is not None:
            self._check_secure_sums()
        for part in self._parts:
            if part is not None:
                part._validate_params()

    def _check_kinds(self):
        """Raise if a part is a name or a class instead of an object, and say what to pass."""
        for name, example in _EXAMPLES.items():
            part, kind = getattr(self, name), self._parameter_constraints[name][0]
            if part is not None and not isinstance(part, kind):
                shown = part.__name__ if isinstance(part, type) else repr(part)
                raise InvalidParameterError(
                    f"Federation({name}={shown}): the parameter takes an object, such as "
                    f"{example}, or None."
                )

    def _cure_for_divergence(self):
        """What to do when models become infinite: the attack or the noise comes first."""
        for part, names in ((self.adversary, ("strength", "scale")), (self.local_dp, ("scale",))):
            if part is None or (part is self.adversary and not part.forges):
                continue
            known = [name for name in names if name in part.get_params(deep=False)]
            lower = f"lower its {known[0]}" if known else "look at what it uploads"
            aggregate = ", or set an aggregator such as NormClipping()" * (part is self.adversary)
            return (
                f"The likely cause is {part}: {lower}{aggregate}. If the clients diverge without "
                "it, too, lower the learning rate, or scale the ratings."
            )
        return "Lower the learning rate, or scale the ratings."

    def _check_secure_sums(self):
        if self.aggregator is not None:
            raise ValueError(
                "secure_aggregation shows the server nothing but sums, but "
                f"{type(self.aggregator).__name__} looks at single uploads; set aggregator=None, "
                "or secure_aggregation=None."
            )
        if self.compression is not None:
            raise ValueError(
                f"Ciphertexts add up value by value, which {type(self.compression).__name__} "
                "undoes; set compression=None under secure_aggregation. CoLR is a method whose "
                "small uploads do add up."
            )

    @property
    def _parts(self):
        return (
            self.local_dp,
            self.compression,
            self.secure_aggregation,
            self.aggregator,
            self.adversary,
        )

    @property
    def looks_at_uploads(self):
        """Whether something looks at every client's upload before they are added up."""
        compresses = self.compression is not None and self.compression.up
        return self.holds_uploads or compresses or (self.draws_each and self.local_dp is not None)

    @property
    def holds_uploads(self):
        """Whether a round's uploads must all be there before they can be added up."""
        protected = self.aggregator is not None or self.secure_aggregation is not None
        return protected or self.is_watched

    # Whether somebody reads single uploads along, as `measure_leak` does.
    is_watched = False

    # Whether every client draws its own noise even where only the sum of all matters, and one
    # draw of the same distribution would do. Tests set it.
    draws_each = False
