"""What a fit guarantees for the privacy of its clients, and a budget that several fits share."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from fedrecsk._utils import html
from fedrecsk._utils.constraints import AtLeast1, From0Below1
from fedrecsk._utils.parameters import checked, limits_of
from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk.privacy.accounting import Event, epsilon_of, is_one_gaussian, scaled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from fedrecsk.privacy.local_dp import LocalMechanism

# In the order of how much they reveal.
SERVER_SEES = ("encrypted sums", "noisy sums", "exact sums", "single uploads")
CENTRAL = ("central noise", "distributed noise")
# Mechanisms without an epsilon for each number.
WHOLE_UPLOADS = (*CENTRAL, "gaussian", "sphere")


@dataclass(frozen=True, repr=False)
class PrivacyReport:
    """The privacy guarantee of a fit for the data of its clients.

    Attributes
    ----------
    mechanism : {"laplace", "gaussian", "sphere", "central noise", "distributed noise", "none"}
        The first three: every client protects each of its uploads. Central noise: by the server on
        sums; distributed: shares of it by the clients.
    epsilon_per_coordinate : float
        Epsilon of one coordinate of one upload, the number that papers quote for Laplace noise. If
        whole uploads are protected, a bound for one upload.
    n_uploads : int
        Largest number of uploads of a client.
    n_coordinates : int
        Largest number of coordinates that a client sent, over all uploads.
    epsilon : float
        Total epsilon of the client that lost most, over all its uploads.
    server_sees : {"exact sums", "noisy sums", "encrypted sums", "single uploads"}
        What the protocol shows to the server. "noisy sums": with noise that clients have added.
        "single uploads": the method, a robust aggregator or compression needs each client's.
    delta : float
        Probability, roughly, with which the guarantee may fail. 0: pure differential privacy.
    neighbours : str
        Change of the data that is hidden.
    sampling : str
        What the guarantee assumes about who takes part in a round.
    trust : str
        Who must be trusted because it sees uploads without enough noise.
    events : tuple of Event
        The noisy sums that the epsilon of central noise comes from, by which fits compose.
    """

    mechanism: str
    epsilon_per_coordinate: float
    n_uploads: int
    n_coordinates: int
    epsilon: float
    server_sees: str = "exact sums"
    delta: float = 0.0
    neighbours: str = "any other data of one client"
    sampling: str = "every client may be in every round"
    trust: str = "no party"
    events: tuple[Event, ...] = ()

    @classmethod
    def of(
        cls,
        mechanism: LocalMechanism | None,
        n_uploads: ArrayLike,
        n_coordinates: ArrayLike,
        server_sees: str = "exact sums",
    ) -> PrivacyReport:
        """Make a report from what each client sent, given arrays of shape (n_clients,)."""
        uploads, coordinates = int(np.max(n_uploads)), int(np.max(n_coordinates))
        if mechanism is None:
            unbounded = float("inf") if coordinates else 0.0
            trust = "everyone who sees uploads or models"
            return cls("none", unbounded, uploads, coordinates, unbounded, server_sees, trust=trust)
        name, each, delta = mechanism.name, mechanism.epsilon_per_coordinate, mechanism.delta
        epsilon = mechanism.total_epsilon(uploads, coordinates)
        return cls(name, each, uploads, coordinates, epsilon, server_sees, delta)

    @classmethod
    def joined(cls, reports: Sequence[PrivacyReport], delta: float | None = None) -> PrivacyReport:
        """Combine the reports of several fits to the same clients.

        Fits with central noise compose by the privacy loss distribution. The epsilons and deltas of
        others add up. `delta` is the total one, of which fits with central noise have what others
        leave. If None, the largest delta of any of them, and those of the others.
        """
        central = [one for one in reports if one.is_central]
        others = [one for one in reports if not one.is_central]
        events = tuple(event for one in central for event in one.events)
        others_delta = sum(one.delta for one in others)
        if not central:
            left = 0.0
        elif delta is None:
            left = max(one.delta for one in central)
        else:
            left = max(0.0, delta - others_delta)
        epsilon, trusted = epsilon_of(events, left), [one.trust for one in reports]
        return cls(
            _common((one.mechanism for one in reports), ", "),
            max(one.epsilon_per_coordinate for one in reports),
            sum(one.n_uploads for one in reports),
            sum(one.n_coordinates for one in reports),
            epsilon + sum(one.epsilon for one in others),
            # The fit in which the server sees the most.
            max((one.server_sees for one in reports), key=SERVER_SEES.index),
            delta=left + others_delta,
            neighbours=_common((one.neighbours for one in reports), "; "),
            sampling=_common((one.sampling for one in reports), "; "),
            trust=_common([one for one in trusted if one != "no party"] or ["no party"], "; "),
            events=events,
        )

    def for_group(self, n_clients: AtLeast1) -> tuple[float, float]:
        """Return the epsilon and delta for the data of several clients together.

        This is the guarantee for one person with rows on `n_clients` clients.

        Parameters
        ----------
        n_clients : int
            Number of clients (k), at least 1. With ``CentralDP(unit="user")`` count the person's
            ids. Otherwise, where a client has several users, the person leaves it and the client
            stays: then count each client twice with central noise, once without its upload and
            once with another. Noise by each client hides any other data of one client, so count
            each client once.

        Returns
        -------
        epsilon, delta : float
            With noise by each client: k epsilon and k delta, as k mechanisms compose. With central
            Gaussian noise and no sampling: the epsilon for the same delta if the sums change by k
            times as much. Otherwise: k epsilon, and delta times
            ``1 + e^epsilon + ... + e^((k - 1) epsilon)``, at most ``k e^((k - 1) epsilon)``, by
            group privacy [1]_ [2]_. Infinity and 1 if delta is not below 1.

        References
        ----------
        .. [1] C. Dwork and A. Roth, "The Algorithmic Foundations of Differential Privacy", 2014,
           theorem 2.2 (delta 0).
        .. [2] S. Vadhan, "The Complexity of Differential Privacy", 2017, lemma 2.2.

        Examples
        --------
        >>> from fedrecsk import Federation, PrivFedEB
        >>> from fedrecsk.privacy import CentralDP
        >>> federation = Federation(central_dp=CentralDP(epsilon=1, delta=1e-6))
        >>> model = PrivFedEB(items=range(9), rating_scale=(1, 5), federation=federation)
        >>> epsilon, delta = model.planned_privacy(n_clients=6000).for_group(3)
        >>> round(epsilon, 1), delta
        (3.3, 1e-06)
        """
        checked("for_group", limits_of(PrivacyReport.for_group), n_clients=n_clients)
        epsilon, delta = n_clients * self.epsilon, n_clients * self.delta
        if self.events and self.is_central and is_one_gaussian(self.events):
            epsilon, delta = epsilon_of(scaled(self.events, 1 / n_clients), self.delta), self.delta
        elif self.events and delta and np.isfinite(epsilon):
            # As a logarithm, which does not overflow.
            steps = np.arange(n_clients) * self.epsilon
            delta = float(np.exp(min(0.0, np.log(self.delta) + logsumexp(steps))))
        return (epsilon, delta) if delta < 1 else (float("inf"), 1.0)

    @property
    def is_central(self) -> bool:
        """Whether the noise is on sums, by the server or in shares by the clients."""
        return self.mechanism in CENTRAL

    def __repr__(self) -> str:
        delta = f", delta {self.delta:g}" if self.delta else ""
        hides = f"; hides {self.neighbours}" if np.isfinite(self.epsilon) else ""
        return (
            f"PrivacyReport(mechanism={self.mechanism!r}, epsilon {_epsilon(self.epsilon)}{delta} "
            f"in {self.n_uploads:,} uploads{hides}; to be trusted: {self.trust}; "
            f"server_sees={self.server_sees!r})"
        )

    def _repr_html_(self) -> str:
        whole, unlimited = self.mechanism in WHOLE_UPLOADS, np.isinf(self.epsilon)
        rows = {
            "Mechanism": self.mechanism,
            "Total ε of the client that lost most": _epsilon(self.epsilon, "∞"),
            "δ": f"{self.delta:.3g}" if self.delta else None,
            "What the guarantee hides": "nothing" if unlimited else self.neighbours,
            "Who takes part": self.sampling,
            "Who must be trusted": self.trust,
            "What the server sees": self.server_sees,
            "ε of one coordinate of one upload": None
            if whole
            else _epsilon(self.epsilon_per_coordinate, "∞"),
            "Most uploads of one client": f"{self.n_uploads:,}",
            "Most coordinates of one client": f"{self.n_coordinates:,}",
        }
        advice = "ε = ∞: no formal guarantee. Set central_dp or local_dp for differential privacy."
        notes = [advice] if unlimited else []
        shown = [[name, value] for name, value in rows.items() if value is not None]
        return html.table("Privacy", [], shown, notes=notes)


def _common(words, separator):
    """Return the one thing that all say, or all things that some say."""
    different = list(dict.fromkeys(words))
    if len(different) == 1:
        return different[0]
    return "none" if "none" in different else separator.join(different)


def _epsilon(value, infinite="inf"):
    # Not every terminal can print the sign of infinity.
    if np.isinf(value):
        return infinite
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


class PrivacyBudget:
    """Add up the privacy cost of fits to the same clients, including searches.

    Every fit whose results are used costs privacy, including those of a search. Only the fits are
    counted: the scores of a search have no noise, and the choice itself is not covered.

    Parameters
    ----------
    epsilon : float
        The budget.
    delta : float, default=1e-5
        Probability, roughly, with which the guarantee may fail. The cost of fits with central noise
        is computed for this delta, not for their own; that of fits with local noise for their own.

    Attributes
    ----------
    spent : float
        Total epsilon of all charged fits, at the budget's `delta`.
    is_exceeded : bool
        Whether that is more than the budget, or the delta of fits with local noise is larger. The
        budget's repr states which.
    report : PrivacyReport or None
        Of everything together, at the budget's `delta`.

    Examples
    --------
    >>> from fedrecsk import Federation, RFRec
    >>> from fedrecsk.datasets import make_ratings
    >>> from fedrecsk.privacy import CentralDP, PrivacyBudget
    >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> private = Federation(central_dp=CentralDP(clip=0.5, noise_multiplier=4, delta=1e-3))
    >>> public = {"items": range(40), "rating_scale": (1, 5), "aggregation": "clients"}
    >>> model = RFRec(n_rounds=5, federation=private, random_state=0, **public)
    >>> budget = PrivacyBudget(epsilon=5, delta=1e-3)
    >>> budget.check(model, n_clients=60).charge(model.fit(X, y)).charge(model)
    PrivacyBudget(epsilon=5, delta=0.001): epsilon 2.352 spent by 2 fits
    """

    def __init__(
        self,
        epsilon: Annotated[float, Interval(Real, 0, None, closed="right")],
        delta: From0Below1 = 1e-5,
    ) -> None:
        limits = limits_of(PrivacyBudget.__init__)
        given = checked("PrivacyBudget", limits, epsilon=epsilon, delta=delta)
        self.epsilon: float = given[0]
        self.delta: float = given[1]
        self._reports: list[PrivacyReport] = []

    @property
    def report(self) -> PrivacyReport | None:
        """Report on everything together; None before the first fit."""
        return PrivacyReport.joined(self._reports, self.delta) if self._reports else None

    @property
    def spent(self) -> float:
        """Total epsilon of what has been charged."""
        report = self.report
        return 0.0 if report is None else report.epsilon

    @property
    def is_exceeded(self) -> bool:
        """Whether more has been spent than the budget allows."""
        return bool(self._excess(self.report))

    def charge(self, fitted: Any) -> Self:
        """Charge a fitted federated estimator, an ensemble, a search, or a report.

        A search counts every candidate on every fold as it was planned, and the refit. The
        EvaluationReport of each :func:`~fedrecsk.selection.federated_evaluate` counts without the
        fit, like one more fit.

        Raises
        ------
        TypeError
            If it reports no privacy.
        """
        self._reports += _reports(fitted)
        return self

    def check(self, estimator: Any, n_clients: AtLeast1, n_fits: AtLeast1 = 1) -> Self:
        """Raise a ValueError if fits of an estimator with `central_dp` would exceed the budget.

        It charges nothing.
        """
        given, limits = {"n_clients": n_clients, "n_fits": n_fits}, limits_of(PrivacyBudget.check)
        n_clients, n_fits = checked("PrivacyBudget.check", limits, **given)
        if not hasattr(estimator, "planned_privacy"):
            raise TypeError(
                f"{type(estimator).__name__} plans no privacy; pass a federated estimator with "
                "central_dp."
            )
        planned = [estimator.planned_privacy(n_clients)] * n_fits
        total = PrivacyReport.joined([*self._reports, *planned], self.delta)
        excess = self._excess(total)
        if "delta" in excess:
            raise ValueError(
                f"{excess}; give local mechanisms a smaller delta, or the budget a larger one."
            )
        if excess:
            raise ValueError(
                f"{n_fits} more fit{'s' * (n_fits != 1)} would spend epsilon {total.epsilon:.4g} "
                f"in total (delta {total.delta:g}), and the budget is {self.epsilon:g} (delta "
                f"{self.delta:g}); add noise, fit less often, or raise the budget's delta."
            )
        return self

    def _excess(self, total):
        """Return why a total exceeds the budget, or "" if it does not."""
        for name in ("delta", "epsilon"):
            value, limit = (0.0 if one is None else getattr(one, name) for one in (total, self))
            if value > limit * (1 + 1e-9):
                return f"The fits' {name} {value:.6g} is above the budget's {limit:g}"
        return ""

    def __repr__(self) -> str:
        n_fits, excess = len(self._reports), self._excess(self.report)
        return (
            f"PrivacyBudget(epsilon={self.epsilon:g}, delta={self.delta:g}): epsilon "
            f"{self.spent:.4g} spent by {n_fits} fit{'s' * (n_fits != 1)}"
            f"{excess and f' (exceeded: {excess})'}"
        )

    def _repr_html_(self) -> str:
        rows = [
            ["Budget", f"ε = {self.epsilon:g}, δ = {self.delta:g}"],
            ["Spent", f"ε = {self.spent:.3g}"],
            ["Fits", f"{len(self._reports):,}"],
            ["Exceeded", self._excess(self.report) or "no"],
        ]
        return html.table("Privacy budget", [], rows)


def _reports(fitted):
    """Return the reports of all fits behind an object."""
    if isinstance(fitted, PrivacyReport):
        return [fitted]
    if hasattr(fitted, "total_privacy"):
        # An evaluation; its fit is charged by itself.
        return [fitted.privacy]
    if not hasattr(fitted, "cv_results_") and hasattr(fitted, "fit"):
        check_is_fitted(fitted)
    if hasattr(fitted, "privacy_"):
        return [fitted.privacy_]
    if not hasattr(fitted, "cv_results_"):
        raise TypeError(
            f"{type(fitted).__name__} has no privacy_; charge a fitted federated estimator (of a "
            "Pipeline its last step), an ensemble, a search, a PrivacyReport or an "
            "EvaluationReport."
        )
    if not hasattr(fitted, "best_estimator_"):
        raise ValueError(
            f"{type(fitted).__name__} has no best_estimator_, from which the number of clients is "
            "read; set refit=True."
        )
    best = fitted.best_estimator_
    refit = _reports(best)
    n_clients = len(best.communication_.client_ids)
    candidates = [clone(fitted.estimator).set_params(**p) for p in fitted.cv_results_["params"]]
    planned = [
        PrivacyReport.of(None, [1], [1])
        if one._setting().central_dp is None
        else one.planned_privacy(n_clients)
        for one in candidates
    ]
    return planned * fitted.n_splits_ + refit
