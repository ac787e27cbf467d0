"""Whether a fit is worse than what costs nothing: biases for ratings, popularity for rankings.

The simulation looks at training rows of some users, as no server could; nothing is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import rankdata
from sklearn.exceptions import ConvergenceWarning

from fedrecsk._utils.user_warnings import warn
from fedrecsk.base import RatingMixin

if TYPE_CHECKING:
    from fedrecsk.base import Recommender
    from fedrecsk.data.interactions import Interactions

# With fewer rows, or on fewer users, chance decides.
LEAST_ROWS = 10_000
N_USERS = 200
# Scores that are ranked, but of no fewer than 20 users.
N_SCORES = 200_000
# Number of rows with which half of what an item's or a user's mean says counts.
SHRINKAGE = 5.0
# So many times the error, or the pairs in the wrong order, are clearly worse.
MARGIN = 1.02
PAIRS_MARGIN = 1.2


def warn_if_weak(model: Recommender, data: Interactions) -> None:
    """Warn if the training rows of some users are rated or ranked worse than without a model."""
    if len(data.items) < LEAST_ROWS:
        return
    rates = isinstance(model, RatingMixin)
    n_users = N_USERS if rates else int(np.clip(N_SCORES // data.n_items, 20, N_USERS))
    users = np.unique(np.linspace(0, data.n_users - 1, n_users).astype(np.int64))
    owners = np.repeat(np.arange(data.n_users), np.diff(data.indptr))
    rows = np.flatnonzero(np.isin(owners, users))
    if rates:
        ours, simple = _errors(model, data, owners, rows)
        worse, text = ours > MARGIN * simple, f"worse than biases alone would: RMSE {ours:.3g}"
    else:
        ours, simple = _areas(model, data, users, owners, rows)
        worse = 1 - ours > PAIRS_MARGIN * (1 - simple)
        text = f"worse than popularity alone would: AUC {ours:.3g}"
    if worse:
        others = "another learning_rate" if hasattr(model, "learning_rate") else "other parameters"
        warn(
            f"{type(model).__name__} predicts the training rows of {len(users)} users {text} "
            f"instead of {simple:.3g}. Allow more rounds (n_rounds), a larger client_fraction, "
            f"fewer lost uploads or less noise, or search for {others}.",
            ConvergenceWarning,
        )


def _errors(model, data, owners, rows):
    """Return the RMSE of some rows, by the model and by biases."""
    values, weights = data.values, data.weights
    biases = np.full(len(values), np.average(values, weights=weights))
    for codes in (data.items, owners):
        sums = np.bincount(codes, weights * (values - biases))
        biases += (sums / (np.bincount(codes, weights) + SHRINKAGE))[codes]
    estimates = model._model().predict(owners[rows], data.items[rows]), biases[rows]
    return [
        np.sqrt(np.average((values[rows] - one) ** 2, weights=weights[rows])) for one in estimates
    ]


def _areas(model, data, users, owners, rows):
    """Return the mean AUC of some users' likes among all items, by the model and by counts."""
    rows = rows[data.values[rows] > 0]
    own = np.zeros((len(users), data.n_items), dtype=bool)
    own[np.searchsorted(users, owners[rows]), data.items[rows]] = True
    n_own = own.sum(axis=1)
    n_pairs = n_own * (data.n_items - n_own)
    able = n_pairs > 0
    counts = np.bincount(data.items[data.values > 0], minlength=data.n_items)
    areas = []
    for scores in (model._model().score_all(users), counts[None]):
        n_below = np.sum(rankdata(scores, axis=1) * own, axis=1) - n_own * (n_own + 1) / 2
        areas.append(np.mean(n_below[able] / n_pairs[able]) if able.any() else 0.5)
    return areas
