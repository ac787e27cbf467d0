"""A privacy budget that several fits to the same clients share."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from fedrecsk._utils import html
from fedrecsk._utils.parameters import checked
from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk.privacy.report import PrivacyReport

if TYPE_CHECKING:
    from typing import Self


class PrivacyBudget:
    """Add up what fits to the same clients cost in privacy, searches included.

    Every fit whose results are used costs privacy, also those of a search that only serve to
    choose parameters. Only the fits are counted. The scores of a search have no noise: do not
    publish them, and search on data that you may look at, because the choice itself is not
    covered.

    Parameters
    ----------
    epsilon : float
        The budget.
    delta : float, default=1e-5
        Probability, roughly, with which the guarantee may fail. What fits with central noise spend
        is computed for it, and not for their own delta; those with local noise count with theirs.

    Attributes
    ----------
    spent : float
        Total epsilon of what has been charged, at the budget's `delta`.
    is_exceeded : bool
        Whether that is more than the budget, or the delta of fits with local noise is larger.
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
    PrivacyBudget(epsilon=5, delta=0.001): epsilon 2.35 spent by 2 fits
    """

    def __init__(self, epsilon: float, delta: float = 1e-5) -> None:
        constraints = {
            "epsilon": [Interval(Real, 0, None, closed="right")],
            "delta": [Interval(Real, 0, 1, closed="left")],
        }
        given = checked("PrivacyBudget", constraints, epsilon=epsilon, delta=delta)
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
        return self._exceeds(self._reports)

    def charge(self, fitted: Any) -> Self:
        """Charge a fit, or all fits of a search.

        Parameters
        ----------
        fitted : federated estimator, ensemble, PrivacyReport, GridSearchCV or RandomizedSearchCV
            Fitted. A search counts every candidate on every fold as it was planned, and the refit.

        Returns
        -------
        self : PrivacyBudget
        """
        self._reports += _reports(fitted)
        return self

    def check(self, estimator: Any, n_clients: int, n_fits: int = 1) -> Self:
        """Raise if further fits would exceed the budget; charges nothing.

        Parameters
        ----------
        estimator : federated estimator
            Not fitted, with `central_dp`.
        n_clients : int
        n_fits : int, default=1

        Returns
        -------
        self : PrivacyBudget

        Raises
        ------
        ValueError
            If the budget does not suffice.
        """
        whole = [Interval(Integral, 1, None, closed="left")]
        constraints = {"n_clients": whole, "n_fits": whole}
        n_clients, n_fits = checked(
            "PrivacyBudget.check", constraints, n_clients=n_clients, n_fits=n_fits
        )
        planned = [estimator.planned_privacy(n_clients)] * n_fits
        everything = [*self._reports, *planned]
        if self._exceeds(everything):
            total = PrivacyReport.joined(everything, self.delta)
            if self._has_too_large_delta(total):
                raise ValueError(
                    f"The fits' delta {total.delta:g} is above the budget's {self.delta:g}; give "
                    "local mechanisms a smaller delta, or the budget a larger one."
                )
            more = f"{n_fits} more fit{'s' * (n_fits != 1)}"
            raise ValueError(
                f"{more} would spend epsilon {total.epsilon:.4g} in total (delta "
                f"{total.delta:g}), and the budget is {self.epsilon:g} (delta {self.delta:g}); add "
                "noise, fit less often, or raise the budget's delta."
            )
        return self

    def _exceeds(self, reports):
        if not reports:
            return False
        total = PrivacyReport.joined(reports, self.delta)
        return total.epsilon > self.epsilon * (1 + 1e-9) or self._has_too_large_delta(total)

    def _has_too_large_delta(self, total):
        return total.delta > self.delta * (1 + 1e-9)

    def __repr__(self) -> str:
        n_fits = len(self._reports)
        return (
            f"PrivacyBudget(epsilon={self.epsilon:g}, delta={self.delta:g}): epsilon "
            f"{self.spent:.3g} spent by {n_fits} fit{'s' * (n_fits != 1)}"
            f"{' (exceeded)' * self.is_exceeded}"
        )

    def _repr_html_(self) -> str:
        rows = [
            ["Budget", f"ε = {self.epsilon:g}, δ = {self.delta:g}"],
            ["Spent", f"ε = {self.spent:.3g}"],
            ["Fits", f"{len(self._reports):,}"],
            ["Exceeded", "yes" if self.is_exceeded else "no"],
        ]
        return html.table("Privacy budget", [], rows)


def _reports(fitted):
    """Return the reports of all fits behind an object."""
    if isinstance(fitted, PrivacyReport):
        return [fitted]
    if not hasattr(fitted, "cv_results_"):
        check_is_fitted(fitted)
        return [fitted.privacy_]
    if not hasattr(fitted, "best_estimator_"):
        raise ValueError(
            f"{type(fitted).__name__} has no best_estimator_, from which the number of clients is "
            "read; set refit=True."
        )
    best = fitted.best_estimator_
    n_clients = len(best.communication_.client_ids)
    candidates = [clone(fitted.estimator).set_params(**p) for p in fitted.cv_results_["params"]]
    planned = [_planned(one, n_clients) for one in candidates]
    return planned * fitted.n_splits_ + [best.privacy_]


def _planned(candidate, n_clients):
    """Return the report that a fit of a candidate would have."""
    if candidate._setting().central_dp is None:
        return PrivacyReport.of(None, [1], [1])
    return candidate.planned_privacy(n_clients)
