"""The world that a federated method runs in."""

from __future__ import annotations

from numbers import Real
from typing import Literal

from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions

from fedrecsk.aggregation import Aggregator
from fedrecsk.attacks import Adversary
from fedrecsk.privacy.local_dp import LaplaceMechanism

_LATER = ("compression", "secure_aggregation")


class Federation(BaseEstimator):
    """The network, the cohorts and the protections around a federated method.

    Nested in every federated estimator as ``federation``, so that a search can vary
    ``federation__dropout`` with any method.

    Parameters
    ----------
    dropout : float in [0, 1), default=0.0
        Probability that a client of a round's cohort fails in that round, independently.
    dropout_mode : {"upload", "stale", "offline"}, default="upload"
        What failing means. "upload": the client hears the broadcast and updates, and its
        upload is lost. "stale": it has no connection and goes on with the last broadcast it
        heard (RFRec, section 3.3). "offline": it does nothing that round.
    sampling : {"random", "rotating"}, default="random"
        How a cohort of ``client_fraction`` of the clients is chosen: anew each round, or in
        turn from a shuffled list cut into ``round(1 / client_fraction)`` cohorts.
    local_dp : LaplaceMechanism or None, default=None
        Clipping and noise that every client applies to all it uploads.
    wire_dtype : {"float32", "float64"}, default="float32"
        Type in which real numbers are counted on the wire. It does not change what is
        computed.
    aggregator : Aggregator or None, default=None
        How the server adds up uploads that it does not trust, see
        :mod:`fedrecsk.aggregation`. None: it adds up all of them.
    adversary : Adversary or None, default=None
        Poisoned clients, see :mod:`fedrecsk.attacks`.
    compression, secure_aggregation : None, default=None
        Reserved; anything but None is refused until there is something to give.

    Examples
    --------
    >>> from fedrecsk import Federation, RFRec
    >>> model = RFRec(federation=Federation(dropout=0.5))
    >>> model.set_params(federation__dropout=0.9).federation
    Federation(dropout=0.9)
    """

    _parameter_constraints: dict = {
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "dropout_mode": [StrOptions({"upload", "stale", "offline"})],
        "sampling": [StrOptions({"random", "rotating"})],
        "local_dp": [LaplaceMechanism, None],
        "wire_dtype": [StrOptions({"float32", "float64"})],
        "compression": "no_validation",
        "secure_aggregation": "no_validation",
        "aggregator": [Aggregator, None],
        "adversary": [Adversary, None],
    }

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        dropout_mode: Literal["upload", "stale", "offline"] = "upload",
        sampling: Literal["random", "rotating"] = "random",
        local_dp: LaplaceMechanism | None = None,
        compression: None = None,
        secure_aggregation: None = None,
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

    def _validate_params(self):
        super()._validate_params()
        for name in _LATER:
            if getattr(self, name) is not None:
                raise ValueError(
                    f"Federation({name}=...) is not available in this version of fedrecsk; "
                    f"leave {name}=None."
                )
        for part in (self.local_dp, self.aggregator, self.adversary):
            if part is not None:
                part._validate_params()

    @property
    def one_by_one(self):
        """Whether somebody looks at the clients' uploads before they are added up."""
        return self.aggregator is not None or self.adversary is not None
