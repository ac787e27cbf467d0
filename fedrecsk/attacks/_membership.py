"""Measure whether a model shows whose data it was trained on: membership inference."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Literal

import numpy as np
from sklearn.base import clone
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.utils import check_random_state

from fedrecsk._utils import html
from fedrecsk.attacks._leakage import check_is_instance, check_same_data
from fedrecsk.data._checks import estimates_y

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from sklearn.base import BaseEstimator

# Fewest models: with three others, both kinds are among them.
FEWEST = 4
FALSE_ALARMS = 0.01
ROUNDING = 1e-8


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
        Share of the members that are found if 1 % of the others are taken for members; 0.01 by
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
            f"{self.auc:.3f} (by chance 0.5), TPR at 1 % FPR {self.tpr_at_1_fpr:.3f} (by chance "
            "0.01))"
        )

    def _repr_html_(self) -> str:
        rows = [
            ["advantage", f"{self.advantage:.3f}", "0"],
            ["AUC", f"{self.auc:.3f}", "0.5"],
            ["TPR at 1 % FPR", f"{self.tpr_at_1_fpr:.3f}", "0.01"],
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
    >>> from fedrecsk.attacks import measure_membership
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
    """How well an attacker tells forgotten users from those who were never there.

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
    """Measure whether users who were forgotten still show in the model.

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
    >>> from fedrecsk.attacks import measure_forgetting
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
    parameters = model.get_params()
    wanted = {"items": np.arange(data.n_items)}
    if parameters.get("rating_scale", 0) is None:
        wanted["rating_scale"] = (float(data.values.min()), float(data.values.max()))
    if "random_state" in parameters:
        wanted["random_state"] = int(random.randint(2**31 - 1))
    rows = np.column_stack([data.users, data.items])
    return model.set_params(**wanted).fit(rows[members], data.values[members])


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
