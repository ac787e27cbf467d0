"""RFRec's local step, for a block of clients that share every unrated item's vector.

Vectors have `width` columns. With biases, column 0 of an item is its bias (met by a 1 on the
user's side) and column 0 of a user is the user's bias (met by a 1 on the item's side).

A step rule is the tuple (adam, rate, beta1, beta2, epsilon, debias): plain gradient descent at
`rate` if not adam, else Adam, with the correction of its first moment in `rate` and that of
its second in `debias`.
"""

import numpy as np

from fedrecsk._kernels._jit import kernel


@kernel
def link(score, sigmoid, one):
    """Estimate and slope at `score`: the logistic function, or the identity.

    `one` is 1 in the type to compute in.
    """
    if sigmoid:
        estimate = one / (one + np.exp(-score))
        return estimate, estimate * (one - estimate)
    return score, one


@kernel
def descend(x, gradient, mean, square, rule):
    """One step of the rule on the vector x with its moments, in place."""
    # Constants of x's own type: a float64 among float32 would halve the vector width.
    real = x.dtype.type
    adam, rate = rule[0], real(rule[1])
    if adam:
        beta1, beta2, epsilon, debias = real(rule[2]), real(rule[3]), real(rule[4]), real(rule[5])
        new1, new2 = real(1 - rule[2]), real(1 - rule[3])
        for f in range(len(x)):
            mean[f] = beta1 * mean[f] + new1 * gradient[f]
            square[f] = beta2 * square[f] + new2 * gradient[f] * gradient[f]
            x[f] -= rate * mean[f] / (np.sqrt(square[f] * debias) + epsilon)
    else:
        for f in range(len(x)):
            x[f] -= rate * gradient[f]


@kernel
def begin_with_pull(gradient, item, centre, pull):
    """Begin an item's gradient with the pull towards the server's vector."""
    for f in range(len(gradient)):
        gradient[f] = pull * (item[f] - centre[f])


@kernel
def local_step(
    client_indptr,
    indptr,
    row_indptr,
    rows,
    row_items,
    values,
    weights,
    active,
    users,
    user_mean,
    user_square,
    held,
    held_mean,
    held_square,
    broadcast,
    offset,
    sigmoid,
    biases,
    pull,
    reg_item,
    reg_item_bias,
    reg_user,
    reg_user_bias,
    rule,
    senders,
    clip,
    sums,
    holders,
):
    """Step every active client's users and rated items, in place, and add up the uploads.

    The objective of a client is sum_r w [(r - link(offset + b_u + b_i + p.q))^2
    + reg_item |q_i|^2 + reg_item_bias b_i^2] + sum_u [reg_user |p_u|^2 + reg_user_bias b_u^2]
    + pull / 2 |V - broadcast|^2, and all its gradients are taken at the same point.

    Parameters
    ----------
    client_indptr : (n_clients + 1,), users of each client
    indptr : (n_users + 1,), ratings of each user
    row_indptr : (n_clients + 1,), held item rows of each client
    rows : (n_ratings,), held row of each rating
    row_items : (n_rows,), item code of each held row
    values, weights : (n_ratings,)
    active : (n_clients,) bool
    users, user_mean, user_square : (n_users, width), vectors and their moments
    held, held_mean, held_square : (n_rows, width), the clients' own item vectors
    broadcast : (n_items, width), the server's item vectors
    pull : float, lambda
    reg_item, reg_item_bias : (n_items,)
    reg_user, reg_user_bias : (n_users,)
    rule : tuple, see the module
    senders, clip, sums, holders
        As for :func:`upload`, which adds without a step; here a client's vectors are added
        while they are still in the cache, finite or not.

    Returns
    -------
    loss, weight : sums of w (r - estimate)^2 and of w before the step
    """
    width = users.shape[1]
    real = held.dtype.type
    pull, offset = real(pull), real(offset)
    loss, mass = 0.0, 0.0
    largest = 0
    for c in range(len(active)):
        largest = max(largest, row_indptr[c + 1] - row_indptr[c])
    item_gradient = np.empty((largest, width), dtype=held.dtype)
    user_gradient = np.empty(width, dtype=held.dtype)
    partner = np.empty(width, dtype=held.dtype)
    is_bias = np.zeros(width, dtype=held.dtype)
    if biases:
        is_bias[0] = 1
    for c in range(len(active)):
        if not active[c]:
            continue
        first = row_indptr[c]
        n_rows = row_indptr[c + 1] - first
        # A lone user meets each row once, so its pull is added on the way.
        alone = client_indptr[c + 1] - client_indptr[c] == 1
        if not alone:
            for local in range(n_rows):
                centre = broadcast[row_items[first + local]]
                begin_with_pull(item_gradient[local], held[first + local], centre, pull)
        for u in range(client_indptr[c], client_indptr[c + 1]):
            user = users[u]
            partner[:] = user
            level = offset
            if biases:
                partner[0] = 1
                level += user[0]
            user_gradient[:] = 0
            slope_sum = real(0)
            for k in range(indptr[u], indptr[u + 1]):
                item = held[rows[k]]
                score = level
                for f in range(width):
                    score += partner[f] * item[f]
                estimate, slope = link(score, sigmoid, real(1))
                error = values[k] - estimate
                loss += weights[k] * error * error
                mass += weights[k]
                g = real(-2) * weights[k] * error * slope
                slope_sum += g
                i = row_items[rows[k]]
                shrink = real(2) * weights[k] * reg_item[i]
                extra = real(2) * weights[k] * (reg_item_bias[i] - reg_item[i])
                target = item_gradient[rows[k] - first]
                if alone:
                    begin_with_pull(target, item, broadcast[i], pull)
                for f in range(width):
                    user_gradient[f] += g * item[f]
                    target[f] += g * partner[f] + (shrink + extra * is_bias[f]) * item[f]
            for f in range(width):
                user_gradient[f] += real(2) * reg_user[u] * user[f]
            if biases:
                user_gradient[0] = slope_sum + real(2) * reg_user_bias[u] * user[0]
            descend(user, user_gradient, user_mean[u], user_square[u], rule)
        span = slice(first, first + n_rows)
        descend(
            held[span].ravel(),
            item_gradient[:n_rows].ravel(),
            held_mean[span].ravel(),
            held_square[span].ravel(),
            rule,
        )
        if senders[c]:
            add_held(row_items[span], held[span], clip, sums, holders)
    return loss, mass


@kernel
def follow(shared, shared_mean, shared_square, broadcast, pull, rule):
    """The same step for the vector that every client keeps of an item it has not rated."""
    gradient = shared.dtype.type(pull) * (shared - broadcast)
    descend(shared.ravel(), gradient.ravel(), shared_mean.ravel(), shared_square.ravel(), rule)


@kernel
def upload(row_indptr, row_items, held, senders, clip, sums, holders):
    """Add up the clipped own item vectors of the senders.

    Parameters
    ----------
    senders : (n_clients,) bool
    clip : float, infinity for none
    sums : (n_items, width), receives the sum of the held vectors
    holders : (n_items,), receives how many of the senders hold each item
    """
    for c in range(len(senders)):
        if senders[c]:
            span = slice(row_indptr[c], row_indptr[c + 1])
            add_held(row_items[span], held[span], clip, sums, holders)


@kernel
def sound_clients(row_indptr, held, client_indptr, users):
    """Clients whose own vectors are all finite, (n_clients,) bool."""
    sound = np.empty(len(row_indptr) - 1, dtype=np.bool_)
    for c in range(len(sound)):
        sound[c] = is_finite(held[row_indptr[c] : row_indptr[c + 1]]) and is_finite(
            users[client_indptr[c] : client_indptr[c + 1]]
        )
    return sound


@kernel
def is_finite(vectors):
    """Whether no entry is NaN or infinite."""
    # A comparison, because `reassoc` folds x - x whether or not x is NaN.
    n_broken = 0
    flat = vectors.ravel()
    for f in range(len(flat)):
        n_broken += not abs(flat[f]) < np.inf
    return n_broken == 0


@kernel
def add_held(items, vectors, clip, sums, holders):
    """Add the vectors that one client holds of its own."""
    clip = vectors.dtype.type(clip)
    for row in range(len(items)):
        vector, total = vectors[row], sums[items[row]]
        holders[items[row]] += 1
        for f in range(len(vector)):
            total[f] += min(max(vector[f], -clip), clip)


@kernel
def solve_users(
    indptr, items, values, weights, users, item_vectors, offset, sigmoid, biases, reg, n_steps
):
    """Fit every user's vector to its ratings with the items fixed, in place.

    At most `n_steps` Gauss-Newton steps, each halved until the user's objective falls; with
    the identity link the first one is the ridge solution. `reg` has shape (n_users, width).
    """
    width = users.shape[1]
    partner = np.empty(width)
    for u in range(len(users)):
        ratings = slice(indptr[u], indptr[u + 1])
        data = items[ratings], values[ratings], weights[ratings]
        x = users[u].astype(np.float64)
        current = user_loss(x, data, item_vectors, offset, sigmoid, biases, reg[u])
        for _ in range(n_steps):
            hessian = np.zeros((width, width))
            gradient = np.empty(width)
            for f in range(width):
                hessian[f, f] = reg[u, f] + 1e-9
                gradient[f] = reg[u, f] * x[f]
            for k in range(indptr[u], indptr[u + 1]):
                score = user_score(x, item_vectors[items[k]], offset, biases, partner)
                estimate, slope = link(score, sigmoid, 1.0)
                g = -weights[k] * (values[k] - estimate) * slope
                h = weights[k] * slope * slope
                for f in range(width):
                    gradient[f] += g * partner[f]
                    for e in range(width):
                        hessian[f, e] += h * partner[f] * partner[e]
            step = np.linalg.solve(hessian, gradient)
            if np.max(np.abs(step)) < 1e-7:
                break
            for halving in range(8):
                trial = x - step / 2**halving
                loss = user_loss(trial, data, item_vectors, offset, sigmoid, biases, reg[u])
                if loss <= current:
                    x, current = trial, loss
                    break
        users[u] = x


@kernel
def user_score(x, item, offset, biases, partner):
    """Score of an item for user x; `partner` receives the score's gradient in x."""
    score = float(offset)
    for f in range(len(x)):
        partner[f] = item[f]
    if biases:
        score += item[0]
        partner[0] = 1
    for f in range(len(x)):
        score += x[f] * partner[f]
    return score


@kernel
def user_loss(x, data, item_vectors, offset, sigmoid, biases, reg):
    """One user's regularised sum of squared errors at x."""
    items, values, weights = data
    partner = np.empty(len(x))
    loss = 0.0
    for f in range(len(x)):
        loss += reg[f] * x[f] * x[f]
    for k in range(len(items)):
        score = user_score(x, item_vectors[items[k]], offset, biases, partner)
        estimate = link(score, sigmoid, 1.0)[0]
        loss += weights[k] * (values[k] - estimate) ** 2
    return loss
