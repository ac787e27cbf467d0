"""Audit central privacy: what an attack says about epsilon, beside what is promised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import beta
from sklearn.base import clone
from sklearn.utils import check_random_state

from fedrecsk._utils import html
from fedrecsk.privacy.central_dp import weighted_norms

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from sklearn.base import BaseEstimator

# Canaries at a time, so that their directions need little memory.
PIECE = 64
# Least number of numbers in an upload.
FEWEST_NUMBERS = 100
# Share of the canaries by which the threshold is chosen, and the least number of them on either
# side of it, because the best of many thresholds that few canaries decide is luck.
CHOOSING, FEWEST = 0.5, 20


@dataclass(frozen=True, repr=False)
class PrivacyAudit:
    """An attack on central privacy: what it says about epsilon, beside the promise.

    Attributes
    ----------
    method : str
        Class of the estimator.
    promised : float
        Epsilon of the fit (`privacy_`), an upper bound.
    lower_bound, confidence : float
        Estimate of epsilon from below, and its confidence. If it is above `promised`, the noise is
        too small.
    delta : float
    n_canaries : int
        Number of canaries in the sums, and as many outside.
    advantage : float
        Share of the canaries in the sums that are taken for such, less the same share of the
        others, on the canaries that the threshold was not chosen by.
    longest_upload : float
        Norm of the longest upload, divided by the clip; it must not be above 1.
    """

    method: str
    promised: float
    lower_bound: float
    confidence: float
    delta: float
    n_canaries: int
    advantage: float
    longest_upload: float

    def __repr__(self) -> str:
        return (
            f"PrivacyAudit({self.method}: epsilon is at least {self.lower_bound:.2f} by attack "
            f"and at most {self.promised:.2f} by promise, delta {self.delta:g}; advantage "
            f"{self.advantage:.2f}, longest upload {self.longest_upload:.3f} of the clip)"
        )

    def _repr_html_(self) -> str:
        rows = [
            ["ε promised, at most", f"{self.promised:.3g}"],
            [f"ε by attack, at least ({self.confidence:.0%})", f"{self.lower_bound:.3g}"],
            ["δ", f"{self.delta:g}"],
            ["Advantage of the attack", f"{self.advantage:.3f}"],
            ["Longest upload, of the clip", f"{self.longest_upload:.3f}"],
        ]
        note = f"{self.n_canaries:,} canaries in the sums, and as many outside"
        return html.table(f"{self.method}: audit of central privacy", [], rows, notes=[note])


def audit_privacy(
    estimator: BaseEstimator,
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    n_canaries: int = 2000,
    confidence: float = 0.95,
    random_state: int | np.random.RandomState | None = None,
) -> PrivacyAudit:
    """Attack a fit with central privacy, and bound its epsilon from below.

    The attacker sees all sums that the server publishes and knows the uploads of all clients but
    one, the canary, and how the canary's upload would look: a random direction, as long as the clip
    allows. It subtracts what it knows and projects the rest onto that direction.

    The protocol runs once, with its real clipping and noise. Every canary is attacked with the same
    noise, because random directions of at least 100 numbers are nearly orthogonal [1]_. The
    threshold is chosen on half of the canaries, and the bound is computed from the others [2]_.

    Parameters
    ----------
    estimator : federated estimator with `central_dp`
        It is cloned, not changed.
    X, y
        As in `fit`.
    n_canaries : int, default=2000
        Number of canaries in the sums, and as many outside. No audit with n canaries
        can prove more than an epsilon of about ``log(n / 20)``.
    confidence : float in (0, 1), default=0.95
        Confidence of the lower bound.
    random_state : int, RandomState instance or None, default=None
        Seed of the canaries.

    Returns
    -------
    PrivacyAudit

    Notes
    -----
    The sums of the rounds are audited, and not set-up exchanges. A canary takes part as often as
    the promise allows: in every round, in as many as a client of a rotating cohort, or in each with
    the probability of a secret cohort.

    References
    ----------
    .. [1] G. Andrew, P. Kairouz, S. Oh, A. Oprea, H. B. McMahan and V. Suriyakumar, "One-shot
       empirical privacy estimation for federated learning", ICLR 2024.
    .. [2] M. Jagielski, J. Ullman and A. Oprea, "Auditing differentially private machine
       learning", NeurIPS 2020, section 3.

    Examples
    --------
    >>> from fedrecsk import Federation, RFRec
    >>> from fedrecsk.attacks import audit_privacy
    >>> from fedrecsk.datasets import make_ratings
    >>> from fedrecsk.privacy import CentralDP
    >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> private = Federation(central_dp=CentralDP(clip=0.5, epsilon=2, delta=1e-3))
    >>> public = {"items": range(40), "rating_scale": (1, 5), "aggregation": "clients"}
    >>> model = RFRec(n_rounds=5, federation=private, random_state=0, **public)
    >>> audit = audit_privacy(model, X, y, random_state=0)
    >>> 0 < audit.lower_bound <= audit.promised
    True
    """
    model: Any = clone(estimator)
    mechanism = model._setting().central_dp if hasattr(model, "_setting") else None
    if mechanism is None:
        raise ValueError(
            f"{type(model).__name__} has no central privacy to audit; set "
            "federation=Federation(central_dp=CentralDP(epsilon=10))."
        )
    if n_canaries < 2 or not 0 < confidence < 1:
        raise ValueError(
            f"n_canaries={n_canaries} and confidence={confidence}: there must be two canaries at "
            "least, and the confidence must be between 0 and 1."
        )
    model._validate_params()
    data = model._prepared(X, y)
    size = sum(np.prod(spec.shape) for spec in model._upload_specs(data.n_items).values())
    if size < FEWEST_NUMBERS:
        raise ValueError(
            f"{type(model).__name__} uploads {size} numbers, among which random directions are not "
            f"nearly orthogonal; an audit needs {FEWEST_NUMBERS}."
        )
    noises, longest, report, plan = _noise_of(model, data)
    generator = np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))
    inside, outside = _projections(noises, plan, n_canaries, generator)
    bound, advantage = _lower_bound(inside, outside, mechanism.delta, 1 - confidence)
    name, limit = type(model).__name__, mechanism.delta
    return PrivacyAudit(
        name, report.epsilon, bound, confidence, limit, n_canaries, advantage, longest
    )


def _noise_of(model, data):
    """Return the noise on each round's sum in units of the clip, and the longest upload."""
    noises, longest, server = [], 0.0, None
    for server, _, seen in model._watch(data, model._rounds(data.n_clients)):
        if seen.upload is None:
            continue
        clip = float(seen.message["privacy_terms"].values[0])
        weights = server.releases.mechanism.field_weights or {}
        # Before each client adds its share of the noise.
        n_last = int(server.releases.mechanism.noise == "clients")
        tiles = [tile for one in seen.held for tile in one.before(n_last).tiles()]
        known = _sums_of(tiles, server, seen.message)
        specs = model._upload_specs(data.n_items)
        parts = [
            weights.get(name, 1.0) * (seen.upload[name].sum - known.get(name, 0.0))
            for name in specs
        ]
        noises.append(np.concatenate([np.ravel(part) for part in parts]) / clip)
        norms = [weighted_norms(tile, weights).max(initial=0) for tile in tiles]
        longest = max(longest, float(max(norms, default=0)) / clip)
    assert server is not None
    return noises, longest, server.privacy_report(), server.releases.plan


def _sums_of(tiles, server, message):
    """Return what an attacker who knows all uploads subtracts from the sums."""
    n_clients = server.releases.expected
    centers = server.method._upload_centers(message)
    known = {name: n_clients * center for name, center in centers.items()}
    for tile in tiles:
        for name, rows in tile.fields.items():
            known[name] = known.get(name, 0.0) + rows.sum()
    return known


def _projections(noises, plan, n_canaries, generator):
    """Return what the attacker computes for canaries in the sums, and for others outside."""
    stacked = np.stack(noises)
    size = stacked.shape[1]
    results = []
    for first in range(0, 2 * n_canaries, PIECE):
        n = min(PIECE, 2 * n_canaries - first)
        directions = generator.standard_normal((n, size))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        is_inside = np.arange(first, first + n) < n_canaries
        results.append(_attack(directions @ stacked.T, is_inside, plan, generator))
    everything = np.concatenate(results)
    return everything[:n_canaries], everything[n_canaries:]


def _attack(projected, is_inside, plan, generator):
    """Return log-likelihood ratios of canaries, up to a factor, from projections of the noise."""
    n, n_rounds = projected.shape
    if plan.probability < 1:
        # The attacker does not know in which rounds a canary would have been.
        joins = generator.random((n, n_rounds)) < plan.probability
        seen = projected + joins * is_inside[:, None]
        variance = max(projected.var(), 1e-300)
        ratio = np.exp(np.minimum((seen - 0.5) / variance, 700))
        return np.log(1 - plan.probability + plan.probability * ratio).sum(axis=1)
    uses = min(n_rounds, int(plan.uses))
    return (projected[:, :uses] + is_inside[:, None]).sum(axis=1)


def _lower_bound(inside, outside, delta, level):
    """Return the epsilon that a threshold proves, and the attack's advantage."""
    n = int(CHOOSING * len(inside))
    candidates = np.sort(np.concatenate([inside[:n], outside[:n]]))
    candidates = candidates[min(FEWEST, n - 1) : max(n + 1, 2 * n - FEWEST)]
    bounds = [_proved(inside[:n], outside[:n], t, delta, level) for t in candidates]
    threshold = candidates[int(np.argmax(bounds))]
    inside, outside = inside[n:], outside[n:]
    proved = _proved(inside, outside, threshold, delta, level)
    advantage = (inside > threshold).mean() - (outside > threshold).mean()
    return max(0.0, float(proved)), float(advantage)


def _proved(inside, outside, threshold, delta, level):
    """Return the epsilon that two error rates at a threshold prove, with confidence 1 - level."""
    found, alarms = int((inside > threshold).sum()), int((outside > threshold).sum())
    n, m = len(inside), len(outside)
    # Two ways to look at the threshold, each with two rates, share the level.
    least_found = _at_least(found, n, level / 4)
    most_alarms = _at_least(m - alarms, m, level / 4)
    bounds = [0.0]
    for right, wrong in ((least_found, 1 - most_alarms), (most_alarms, 1 - least_found)):
        if right > delta and wrong > 0:
            bounds.append(np.log((right - delta) / wrong))
    return max(bounds)


def _at_least(k, n, level):
    """Return Clopper and Pearson's lower confidence limit of a probability, from k of n."""
    return 0.0 if k == 0 else float(beta.ppf(level, k, n - k + 1))
