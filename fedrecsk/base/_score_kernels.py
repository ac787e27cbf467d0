"""Scores of (user, item) pairs under a matrix factorisation with biases."""

from fedrecsk._utils.jit import kernel


@kernel
def pairs(users, items, offset, user_bias, item_bias, user_factors, item_factors, scores):
    """offset + b_u + b_i + p_u . q_i for each pair; code -1 contributes nothing.

    Parameters
    ----------
    users, items : (n,) integer codes, -1 for unknown
    offset : float
    user_bias, item_bias : (n_users,) and (n_items,)
    user_factors, item_factors : (n_users, d) and (n_items, d)
    scores : (n,) float64, receives them
    """
    for k in range(len(users)):
        u, i = users[k], items[k]
        score = float(offset)
        if u >= 0:
            score += user_bias[u]
        if i >= 0:
            score += item_bias[i]
        if u >= 0 and i >= 0:
            dot = 0.0
            for f in range(user_factors.shape[1]):
                dot += float(user_factors[u, f]) * float(item_factors[i, f])
            score += dot
        scores[k] = score
    return scores
