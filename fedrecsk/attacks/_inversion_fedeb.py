"""FedEB: from one client's upload to its exact items, ratings and user vector."""

from __future__ import annotations

import numpy as np

from fedrecsk.attacks._guesses import Guess, one_by_one, sent_rows


@one_by_one
def fedeb(model, message, upload, n_items):
    """Solve the client's own equations backwards.

    ``alpha_u`` follows from n_u and ``alpha_u / alpha E``; it turns the rows of b_i into residuals;
    at the posterior mean these and ``Lambda (phi - m_u)`` balance, which gives phi; and residuals
    and phi give the ratings. All ratings are assumed to have the same weight, n_u / n_rows.
    """
    rows, items = sent_rows(upload["items"], n_items)
    n = max(len(items), 1)
    n_ratings = float(upload["scales"].change[3])
    weight = n_ratings / n or 1.0
    low, high, mean = message["ratings"].values
    alpha, lambda_0, *reg = message["scales"].values
    precision = alpha
    if model.user_noise:
        nu = model._nu
        precision = alpha * (nu + n_ratings - alpha * upload["scales"].change[2]) / nu
    # Times their weights.
    residuals = rows[:, 0] / (precision or 1)
    received = message["items"].values[items].astype(np.float64)
    x = np.column_stack([np.ones(len(items)), received[:, 1:]])
    center, prior = np.zeros(x.shape[1]), np.ones(x.shape[1])
    prior[0] = lambda_0
    if model.implicit:
        center[1:] = message["implicit"].values[items].sum(axis=0) / np.sqrt(n)
    pull = np.zeros(x.shape[1])
    if model.posterior == "variational":
        known = alpha * message["n_ratings"].values[items, None]
        pull = alpha * weight * (1 / (np.array(reg) + known)).sum(axis=0)
        pull[0] = 0
    phi = (alpha * residuals @ x + prior * center) / (prior + pull)
    unit = model._unit(low, high)
    ratings = mean + unit * (received[:, 0] + x @ phi + residuals / weight)
    return Guess(phi, items, ratings)
