"""PMF, biased MF and SVD++ by stochastic gradient descent, one rating at a time.

Slow on purpose. Ratings are tuples (user, item, target, weight) in the order of the updates.
A parameter's decay per rating is `reg` plus `shrinkage` over the summed weight of its user or
item, at most what takes it to 0 in one step.
"""

import numpy as np


def step_size(rate, weight):
    """However heavy the rating, at most 1/2."""
    return rate * weight / (1 + 2 * rate * weight)


def decay(ratings, side, index, reg, shrinkage, learning_rate):
    """Decay per rating of user (side 0) or item (side 1) `index`."""
    raw = sum(weight for *pair, _, weight in ratings if pair[side] == index)
    heaviest = max(relative(ratings))
    return min(reg + shrinkage / raw, 1 / step_size(learning_rate, heaviest))


def relative(ratings):
    """Weights divided by their mean."""
    weights = [rating[-1] for rating in ratings]
    return [weight / np.mean(weights) for weight in weights]


def pmf_epoch(ratings, P, Q, *, rate, learning_rate, reg, shrinkage, few_ratings, prior_mean):
    """p <- p + step (e q - decay (p - m)), and likewise q, from the old p and q."""
    mean_user, mean_item = np.zeros(P.shape[1]), np.zeros(P.shape[1])
    mean_user[0] = mean_item[1] = prior_mean
    loss = 0.0
    for (u, i, target, _), weight in zip(ratings, relative(ratings), strict=True):
        p, q = P[u].copy(), Q[i].copy()
        e = target - p @ q
        loss += weight * e**2
        step = step_size(rate, weight)
        n = sum(row[-1] for row in ratings if row[0] == u)
        more = shrinkage * max(1, few_ratings / max(n, 1))
        a = decay(ratings, 0, u, reg, more, learning_rate)
        b = decay(ratings, 1, i, reg, shrinkage, learning_rate)
        P[u] = p + step * (e * q - a * (p - mean_user))
        Q[i] = q + step * (e * p - b * (q - mean_item))
    return loss


def biased_mf_epoch(
    ratings,
    user_bias,
    item_bias,
    P,
    Q,
    *,
    rate,
    learning_rate,
    reg,
    shrinkage,
    reg_bias,
    shrinkage_bias,
):
    """b <- b + step (e - decay b), then the vectors."""
    loss = 0.0
    for (u, i, target, _), weight in zip(ratings, relative(ratings), strict=True):
        p, q = P[u].copy(), Q[i].copy()
        e = target - user_bias[u] - item_bias[i] - p @ q
        loss += weight * e**2
        step = step_size(rate, weight)
        a, b, c, d = (
            decay(ratings, side, index, *strengths, learning_rate)
            for strengths in ((reg, shrinkage), (reg_bias, shrinkage_bias))
            for side, index in ((0, u), (1, i))
        )
        P[u] = p + step * (e * q - a * p)
        Q[i] = q + step * (e * p - b * q)
        user_bias[u] += step * (e - c * user_bias[u])
        item_bias[i] += step * (e - d * item_bias[i])
    return loss


def svdpp_epoch(
    ratings,
    order,
    user_bias,
    item_bias,
    P,
    Q,
    Y,
    *,
    rate,
    learning_rate,
    reg,
    shrinkage,
    reg_bias,
    shrinkage_bias,
    reg_implicit,
):
    """User by user; the gradients of p_u and of all its y_j are collected and applied last."""
    weights = relative(ratings)
    loss = 0.0
    for u in order:
        own = [k for k in range(len(ratings)) if ratings[k][0] == u]
        if not own:
            continue
        rated = [ratings[k][1] for k in own]
        scale = len(rated) ** -0.5
        implicit = scale * sum(Y[j] for j in rated)
        gradient = np.zeros(P.shape[1])
        steps = 0.0
        for k in own:
            _, i, target, _ = ratings[k]
            q = Q[i].copy()
            x = P[u] + implicit + gradient
            e = target - user_bias[u] - item_bias[i] - x @ q
            loss += weights[k] * e**2
            step = step_size(rate, weights[k])
            steps += step
            b = decay(ratings, 1, i, reg, shrinkage, learning_rate)
            c = decay(ratings, 0, u, reg_bias, shrinkage_bias, learning_rate)
            d = decay(ratings, 1, i, reg_bias, shrinkage_bias, learning_rate)
            user_bias[u] += step * (e - c * user_bias[u])
            item_bias[i] += step * (e - d * item_bias[i])
            Q[i] = q + step * (e * x - b * q)
            gradient += step * e * q
        a = decay(ratings, 0, u, reg, shrinkage, learning_rate)
        P[u] = np.exp(-steps * a) * P[u] + gradient
        for j in rated:
            Y[j] = np.exp(-steps * reg_implicit) * Y[j] + scale * gradient
    return loss


def predict(mean, scale, user, item, *, user_bias=0.0, item_bias=0.0):
    """A rating from parameters that were learned on (rating - mean) / scale."""
    return mean + scale * (user_bias + item_bias + user @ item)
