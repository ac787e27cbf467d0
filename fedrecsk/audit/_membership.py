"""Measure whether a model, or its noisy sums, show whose data it was trained on."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import beta
from sklearn.base import BaseEstimator, clone
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.utils import check_random_state

from fedrecsk._utils import html
from fedrecsk.audit._leakage import check_is_instance, check_same_data
from fedrecsk.data._checks import estimates_y
from fedrecsk.privacy.local_dp import norms
from fedrecsk.simulation.run import watch

# Fewest models: with three others, both kinds are among them.
FEWEST = 4
FALSE_ALARMS = 0.01
ROUNDING = 1e-8
# Audits: canaries at a time, so that their directions need little memory.
PIECE = 64
# Least number of numbers in an upload.
FEWEST_NUMBERS = 100
# Share of the canaries by which the threshold is chosen, and the least number of them on either
# side of it, because the best of many thresholds that few canaries decide is luck.
CHOOSING, FEWEST_BESIDE = 0.5, 20


@dataclass(frozen=True, repr=False)
class MembershipReport:
    """How well the final model shows which users, or which rows, it was trained on.

    Attributes
    ----------
    method : str
        Class of the estimator.
    level : {"user", "pair"}
        Whose membership was inferred: users with all their rows, or single rows of X.
    n_targets : int
        Number of users or pairs.
    n_models : int
        Number of models fitted. Each was attacked, with the others as shadow models.
    advantage : float
        Share of the members that are taken for members, less the same share of the others. 0 by
        chance, 1 at best.
    auc : float
        Area under the ROC curve; 0.5 by chance.
    tpr_at_1_fpr : float
        Share of the members that are found if 1% of the others are taken for members; 0.01 by
        chance.
    """

    method: str
    level: str
    n_targets: int
    n_models: int
    advantage: float
    auc: float
    tpr_at_1_fpr: float

    def __repr__(self) -> str:
        return (
            f"MembershipReport({self.method}, level={self.level!r}, n_targets={self.n_targets}, "
            f"n_models={self.n_models}: advantage {self.advantage:.3f} (by chance 0), AUC "
            f"{self.auc:.3f} (by chance 0.5), TPR at 1% FPR {self.tpr_at_1_fpr:.3f} (by chance "
            "0.01))"
        )

    def _repr_html_(self) -> str:
        rows = [
            ["advantage", f"{self.advantage:.3f}", "0"],
            ["AUC", f"{self.auc:.3f}", "0.5"],
            ["TPR at 1% FPR", f"{self.tpr_at_1_fpr:.3f}", "0.01"],
        ]
        note = f"{self.n_targets} {self.level}s, {self.n_models} models"
        caption = f"{self.method}: membership in the training data"
        return html.table(caption, ["", "inferred", "by chance"], rows, notes=[note])


def measure_membership(
    estimator: BaseEstimator,
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    level: Literal["user", "pair"] = "user",
    n_models: int = 16,
    random_state: int | np.random.RandomState | None = None,
) -> MembershipReport:
    """Measure what the final model alone reveals about who was in its training data.

    The attacker sees what every client receives at the end, no upload, and knows the target: all
    rows of a user, whose membership it wants to infer (``level="user"``), or a row of X and the
    user's other rows (``level="pair"``). It has data like these, to fit shadow models of its own
    with and without the target. This is the likelihood-ratio attack (LiRA) of [1]_.

    Parameters
    ----------
    estimator : estimator with `fold_in`
        It is cloned, not changed. Every fit has the catalogue of the whole X, and its rating scale
        if the estimator has a `rating_scale` that is None.
    X, y
        As in `fit`.
    level : {"user", "pair"}, default="user"
        Whether each user is in a model's data with all rows or not at all ("user"), or each row of
        X is in it or not independently ("pair").
    n_models : int, default=16
        Number of fits, an even number of at least 4. Each target is in half of the models, at
        random. Every model is attacked once, with all others as shadow models. The paper has 256;
        few models understate what an attacker can find out.
    random_state : int, RandomState instance or None, default=None
        Seed of the random halves and, if the models have a `random_state`, of each model's own.

    Returns
    -------
    MembershipReport

    Raises
    ------
    ValueError
        If the estimator was fitted on other data, or if a parameter is out of range.
    TypeError
        If `estimator` is a class, or has no `fold_in`.

    Notes
    -----
    For every target and model the attacker computes a number: it folds all users' rows
    into the model as those of new users, and takes the mean predicted score of the target's rows
    or, if the method estimates ratings, their negative mean squared error. The numbers of the
    shadow models with and without a target are two normal distributions, whose likelihood ratio
    ranks the targets; it is taken for a member above 1. No threshold is chosen after the fact.

    References
    ----------
    .. [1] N. Carlini, S. Chien, M. Nasr, S. Song, A. Terzis and F. Tramer, "Membership Inference
       Attacks From First Principles", IEEE S&P 2022, algorithm 1.

    Examples
    --------
    >>> from fedrecsk import LocALS
    >>> from fedrecsk.audit import measure_membership
    >>> from fedrecsk.datasets import make_interactions
    >>> X = make_interactions(n_users=60, n_items=40, n_interactions=900, random_state=0)
    >>> model = LocALS(n_factors=8, reg_user=1.0, n_rounds=5)
    >>> report = measure_membership(model, X, n_models=4, random_state=0)
    >>> report.n_targets
    60
    >>> 0 <= report.auc <= 1
    True
    """
    _check(estimator, level, n_models)
    data = clone(estimator)._prepared(X, y)
    check_same_data(estimator, data, "measure_membership")
    targets = data.users if level == "user" else np.arange(len(data.items))
    n_targets = int(targets.max()) + 1
    random = check_random_state(random_state)
    is_member = _halves(n_models, n_targets, random)
    models = (_fit(estimator, data, members[targets], random) for members in is_member)
    signals = np.stack([_signal(model, data, targets) for model in models])
    ratios = np.stack([_ratios(signals, is_member, model) for model in range(n_models)])
    truth, ratios = is_member.ravel(), ratios.ravel()
    false, true, _ = roc_curve(truth, ratios)
    return MembershipReport(
        method=type(estimator).__name__,
        level=level,
        n_targets=n_targets,
        n_models=n_models,
        advantage=float((ratios[truth] > 0).mean() - (ratios[~truth] > 0).mean()),
        auc=float(roc_auc_score(truth, ratios)),
        tpr_at_1_fpr=float(true[false <= FALSE_ALARMS].max()),
    )


@dataclass(frozen=True)
class ForgettingReport:
    """How well an attacker distinguishes forgotten users from those who were never there.

    Attributes
    ----------
    method : str
        Class of the estimator.
    n_forgotten, n_others : int
        Number of users who were forgotten, and of those who were never in the data.
    auc_before, auc_after : float
        Area under the ROC curve before and after `forget`; 0.5 by chance.
    n_rounds : int
        Rounds that forgetting took.
    n_bytes : int
        Bytes that it sent, up and down.
    """

    method: str
    n_forgotten: int
    n_others: int
    auc_before: float
    auc_after: float
    n_rounds: int
    n_bytes: int


def measure_forgetting(
    estimator: BaseEstimator,
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    share: float = 0.25,
    n_models: int = 16,
    random_state: int | np.random.RandomState | None = None,
) -> ForgettingReport:
    """Measure whether the model still reveals forgotten users.

    A model is fitted to half of the users and made to `forget` some of them. Before and after, an
    attacker tries to tell these from the other half, who were never in its data, as in
    :func:`measure_membership`, with shadow models of its own.

    Parameters
    ----------
    estimator : estimator with `forget`
        With ``warm_start=True``. It is cloned, not changed.
    X, y
        As in `fit`.
    share : float in (0, 1), default=0.25
        Share of the model's users that it forgets, at random.
    n_models : int, default=16
        Number of shadow models, an even number of at least 4.
    random_state : int, RandomState instance or None, default=None
        Seed of the users drawn and, if the models have a `random_state`, of each model's own.

    Returns
    -------
    ForgettingReport

    Examples
    --------
    >>> from fedrecsk import FedEASE
    >>> from fedrecsk.audit import measure_forgetting
    >>> from fedrecsk.datasets import make_interactions
    >>> X = make_interactions(n_users=60, n_items=40, n_interactions=900, random_state=0)
    >>> model = FedEASE(reg=5.0, warm_start=True)
    >>> report = measure_forgetting(model, X, n_models=4, random_state=0)
    >>> report.n_forgotten, report.n_others
    (8, 30)
    >>> report.auc_before > report.auc_after
    True
    """
    _check(estimator, "user", n_models, "measure_forgetting")
    if not hasattr(estimator, "forget"):
        raise TypeError(
            f"{type(estimator).__name__} has no forget; set warm_start=True, or use a method that "
            "goes on from its last model."
        )
    if not 0 < share < 1:
        raise ValueError(f"share={share!r} must be between 0 and 1.")
    data = clone(estimator)._prepared(X, y)
    random = check_random_state(random_state)
    # Half of the users are in the model under attack, and each is in half of the shadow models.
    is_member = _halves(n_models, data.n_users, random)
    inside = random.permutation(data.n_users) < data.n_users // 2
    forgotten = random.permutation(np.flatnonzero(inside))
    forgotten = forgotten[: max(1, round(share * len(forgotten)))]

    users = data.users
    shadows = [_signal(_fit(estimator, data, m[users], random), data, users) for m in is_member]
    model = _fit(estimator, data, inside[users], random)
    before = _signal(copy.copy(model), data, users)
    model.forget(forgotten)
    targets, truth = np.r_[forgotten, np.flatnonzero(~inside)], np.zeros(data.n_users, bool)
    truth[forgotten] = True
    aucs = [
        roc_auc_score(
            truth[targets],
            _ratios(np.stack([*shadows, one]), np.vstack([is_member, inside]), -1)[targets],
        )
        for one in (before, _signal(copy.copy(model), data, users))
    ]
    return ForgettingReport(
        method=type(estimator).__name__,
        n_forgotten=len(forgotten),
        n_others=int((~inside).sum()),
        auc_before=float(aucs[0]),
        auc_after=float(aucs[1]),
        n_rounds=int(model.n_rounds_),
        n_bytes=int(model.communication_.bytes_up + model.communication_.bytes_down),
    )


def _check(estimator, level, n_models, caller="measure_membership"):
    check_is_instance(estimator, caller)
    if not hasattr(estimator, "fold_in"):
        raise TypeError(
            f"{type(estimator).__name__} has no fold_in, by which the attacker computes how well "
            "rows fit a model; pass a recommender of fedrecsk."
        )
    if level not in ("user", "pair"):
        raise ValueError(f'level={level!r} must be "user" or "pair".')
    if not isinstance(n_models, Integral) or n_models < FEWEST or n_models % 2:
        raise ValueError(
            f"n_models={n_models!r} must be an even whole number, at least {FEWEST}, so that each "
            "target can be in half of the models."
        )


def _halves(n_models, n_targets, random):
    """Draw the targets of each model, each in half of the models: a mask (n_models, n_targets)."""
    draws = random.uniform(size=(n_models, n_targets))
    return np.argsort(np.argsort(draws, axis=0), axis=0) < n_models // 2


def _fit(estimator, data, members, random):
    """Return the estimator fitted on these rows (a mask)."""
    model = clone(estimator)
    wanted = {"items": np.arange(data.n_items)}
    if getattr(model, "rating_scale", 0) is None:
        wanted["rating_scale"] = (float(data.values.min()), float(data.values.max()))
    if hasattr(model, "random_state"):
        wanted["random_state"] = int(random.randint(2**31 - 1))
    rows = np.column_stack([data.users, data.items])
    return model._set(**wanted).fit(rows[members], data.values[members])


def _signal(model, data, targets):
    """Return how well each target's rows fit the model, after folding in all users as new ones."""
    strangers = np.column_stack([data.users + data.n_users, data.items])
    model.fold_in(strangers, data.values)
    fit = model.predict(strangers)
    if estimates_y(model):
        fit = -((data.values - fit) ** 2)
    return np.bincount(targets, fit) / np.bincount(targets)


def _ratios(signals, is_member, model):
    """Return log-likelihood ratios of all targets, given all models but this one."""
    shadows, seen = np.delete(signals, model, axis=0), np.delete(is_member, model, axis=0)
    means, squares = [], np.zeros(signals.shape[1])
    for wanted in (seen, ~seen):
        means.append((shadows * wanted).sum(axis=0) / wanted.sum(axis=0))
        squares += ((shadows - means[-1]) ** 2 * wanted).sum(axis=0)
    # Between a target's own variance, from few models, and the usual one.
    variance = squares / (len(shadows) - 2)
    variance = (variance + np.median(variance)) / 2
    # Numbers that do not depend on the data still differ by rounding.
    variance = variance + ROUNDING**2 * np.mean(signals**2) + 1e-300
    inside, outside = ((signals[model] - mean) ** 2 for mean in means)
    return np.round((outside - inside) / (2 * variance), 6)


# ------------------------------------------------------------------- central privacy


@dataclass(frozen=True, repr=False)
class PrivacyAudit:
    """An attack on central privacy: its estimate of epsilon, beside the guarantee.

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
        Norm of the longest upload, divided by the clip; it must not be above 1. With
        ``unit="user"`` that of a client is divided by the number of its users, too, which does not
        show that each of them is clipped.
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
    clients: ArrayLike | None = None,
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
    X, y, clients
        As in `fit`. With ``CentralDP(unit="user")`` a canary is one more user of a client.
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
    >>> from fedrecsk.audit import audit_privacy
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
    data = model._prepared(X, y, clients)
    size = sum(np.prod(spec.shape) for spec in model._algorithm().fields(data.n_items).values())
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
    noises, longest = [], 0.0
    server: Any = None
    plan = model._plan()
    for server, _, seen in watch(model, data, plan.rounds(plan.units(data))):
        if seen.upload is None or seen.message is None:
            continue
        clip = float(seen.message["privacy_terms"].values[0])
        weights = server.releases.mechanism.field_weights or {}
        # Before each client adds its share of the noise.
        n_last = int(server.releases.mechanism.noise == "clients")
        tiles = [tile for one in seen.held for tile in one.before(n_last).tiles()]
        known = _sums_of(tiles, server, seen.message)
        specs = model._algorithm().fields(data.n_items)
        parts = [
            weights.get(name, 1.0) * (seen.upload[name].sum - known.get(name, 0.0))
            for name in specs
        ]
        noises.append(np.concatenate([np.ravel(part) for part in parts]) / clip)
        n_users = np.diff(data.client_indptr) if server.plan.by_user else np.ones(data.n_clients)
        lengths = [
            (norms(tile.fields, weights) / n_users[tile.clients]).max(initial=0) for tile in tiles
        ]
        longest = max(longest, float(max(lengths, default=0)) / clip)
    return noises, longest, server.privacy_report(), server.releases.uploads


def _sums_of(tiles, server, message):
    """Return what an attacker who knows all uploads subtracts from the sums."""
    n_clients = server.releases.expected
    centers = server.algorithm.centers(message)
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
    candidates = candidates[min(FEWEST_BESIDE, n - 1) : max(n + 1, 2 * n - FEWEST_BESIDE)]
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
    least_found = at_least(found, n, level / 4)
    most_alarms = at_least(m - alarms, m, level / 4)
    bounds = [0.0]
    for right, wrong in ((least_found, 1 - most_alarms), (most_alarms, 1 - least_found)):
        if right > delta and wrong > 0:
            bounds.append(np.log((right - delta) / wrong))
    return max(bounds)


def at_least(k, n, level):
    """Return Clopper and Pearson's lower confidence limit of a probability, from k of n."""
    return 0.0 if k == 0 else float(beta.ppf(level, k, n - k + 1))
