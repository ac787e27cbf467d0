"""RFRec's local step, for a block of clients that share every unrated item's vector.

Vectors have `width` columns. With biases, column 0 of an item is its bias (met by a 1 on the
user's side) and column 0 of a user is the user's bias (met by a 1 on the item's side).
"""

import numpy as np

from fedrecsk._kernels._jit import kernel

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


@kernel
def link(score, sigmoid):
    """Estimate and slope at `score`: the logistic function, or the identity."""
    if sigmoid:
        estimate = 1.0 / (1.0 + np.exp(-score))
        return estimate, estimate * (1.0 - estimate)
    return score, 1.0


@kernel
def descend(x, gradient, mean, square, rate, adam, debias1, debias2):
    """One step on the vector x, in place: Adam with moments `mean`, `square`, or plain."""
    # Constants of x's own type: a float64 among float32 would halve the vector width.
    real = x.dtype.type
    rate = real(rate)
    if adam:
        keep1, keep2, tiny = real(BETA1), real(BETA2), real(EPSILON)
        take1, take2 = real(1 - BETA1), real(1 - BETA2)
        rate, debias2 = real(rate * debias1), real(debias2)
        for f in range(len(x)):
            mean[f] = keep1 * mean[f] + take1 * gradient[f]
            square[f] = keep2 * square[f] + take2 * gradient[f] * gradient[f]
            x[f] -= rate * mean[f] / (np.sqrt(square[f] * debias2) + tiny)
    else:
        for f in range(len(x)):
            x[f] -= rate * gradient[f]


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
    reg_user,
    rate,
    adam,
    debias1,
    debias2,
    senders,
    shared,
    clip,
    sums,
    holders,
):
    """Step every active client's users and rated items, in place, and add up the uploads.

    The objective of a client is sum_r w (r - link(offset + b_u + b_i + p.q))^2
    + sum_r w |v_i|^2_reg_item + sum_u |x_u|^2_reg_user + pull / 2 |V - broadcast|^2, and all
    its gradients are taken at the same point.

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
    reg_item : (width,)
    reg_user : (n_users, width)
    pull : float, lambda

    The last five arguments are those of :func:`upload`, which does the adding alone; here it
    is done while a client's vectors are still in the cache.

    Returns
    -------
    loss, weight : sums of w (r - estimate)^2 and of w before the step
    sound : (n_clients,) bool, as from :func:`upload`
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
    sound = np.ones(len(active), dtype=np.bool_)
    n_added = 0
    for c in range(len(active)):
        if not active[c]:
            continue
        first = row_indptr[c]
        n_rows = row_indptr[c + 1] - first
        # A lone user meets each row once, so its pull is added on the way.
        alone = client_indptr[c + 1] - client_indptr[c] == 1
        if not alone:
            for local in range(n_rows):
                begin_with_pull(item_gradient[local], held[first + local],
                         broadcast[row_items[first + local]], pull)  # fmt: skip
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
                estimate, slope = link(score, sigmoid)
                error = values[k] - estimate
                loss += weights[k] * error * error
                mass += weights[k]
                g = real(-2 * weights[k] * error * slope)
                slope_sum += g
                shrink = real(2 * weights[k])
                target = item_gradient[rows[k] - first]
                if alone:
                    begin_with_pull(target, item, broadcast[row_items[rows[k]]], pull)
                for f in range(width):
                    user_gradient[f] += g * item[f]
                    target[f] += g * partner[f] + shrink * reg_item[f] * item[f]
            if biases:
                user_gradient[0] = slope_sum
            for f in range(width):
                user_gradient[f] += real(2) * reg_user[u, f] * user[f]
            descend(
                user, user_gradient, user_mean[u], user_square[u], rate, adam, debias1, debias2
            )
        span = slice(first, first + n_rows)
        descend(
            held[span].ravel(),
            item_gradient[:n_rows].ravel(),
            held_mean[span].ravel(),
            held_square[span].ravel(),
            rate,
            adam,
            debias1,
            debias2,
        )
        sound[c] = is_finite(held[span]) and is_finite(users[client_indptr[c]:client_indptr[c + 1]])
        if sound[c] and senders[c]:
            n_added += 1
            add_held(row_items[span], held[span], clip, sums, holders)
    add_shared(n_added, holders, shared, clip, sums)
    return loss, mass, sound


@kernel
def begin_with_pull(gradient, item, centre, pull):
    """Begin a gradient with the pull towards the server's vector."""
    for f in range(len(gradient)):
        gradient[f] = pull * (item[f] - centre[f])


@kernel
def follow(shared, shared_mean, shared_square, broadcast, pull, rate, adam, debias1, debias2):
    """The same step for the vector that every client keeps of an item it has not rated."""
    gradient = shared.dtype.type(pull) * (shared - broadcast)
    descend(
        shared.ravel(),
        gradient.ravel(),
        shared_mean.ravel(),
        shared_square.ravel(),
        rate,
        adam,
        debias1,
        debias2,
    )


@kernel
def upload(row_indptr, row_items, users, client_indptr, held, shared, senders, clip, sums, holders):
    """Add up the clipped item matrices of the senders whose values are all finite.

    Parameters
    ----------
    senders : (n_clients,) bool
    clip : float, infinity for none
    sums : (n_items, width), receives the sum of the clipped matrices
    holders : (n_items,), receives how many of the added clients hold each item

    Returns
    -------
    sound : (n_clients,) bool
        Clients whose own vectors are finite, senders or not.
    """
    sound = np.ones(len(senders), dtype=np.bool_)
    n_added = 0
    for c in range(len(senders)):
        span = slice(row_indptr[c], row_indptr[c + 1])
        sound[c] = is_finite(held[span]) and is_finite(users[client_indptr[c]:client_indptr[c + 1]])
        if sound[c] and senders[c]:
            n_added += 1
            add_held(row_items[span], held[span], clip, sums, holders)
    add_shared(n_added, holders, shared, clip, sums)
    return sound


@kernel
def is_finite(vectors):
    """Whether no entry is NaN or infinite."""
    residue = vectors.dtype.type(0)
    flat = vectors.ravel()
    for f in range(len(flat)):
        residue += flat[f] - flat[f]
    return residue == 0


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
def add_shared(n_clients, holders, shared, clip, sums):
    """Add the shared vectors, once for each of the clients that does not hold the item."""
    clip = shared.dtype.type(clip)
    for i in range(len(sums)):
        others = n_clients - holders[i]
        for f in range(sums.shape[1]):
            sums[i, f] += others * min(max(shared[i, f], -clip), clip)


@kernel
def solve_users(
    indptr, items, values, weights, users, item_vectors, offset, sigmoid, biases, reg_user, n_steps
):
    """Fit every user's vector to its ratings with the items fixed, in place.

    Gauss-Newton steps, each halved until the user's objective falls; with the identity link
    the first one is the ridge solution.
    """
    width = users.shape[1]
    partner = np.empty(width)
    for u in range(len(users)):
        if indptr[u] == indptr[u + 1]:
            continue
        x = users[u].astype(np.float64)
        current = user_loss(
            u, x, indptr, items, values, weights, item_vectors, offset, sigmoid, biases, reg_user
        )
        for _ in range(n_steps):
            hessian = np.zeros((width, width))
            gradient = np.empty(width)
            for f in range(width):
                hessian[f, f] = reg_user[u, f] + 1e-9
                gradient[f] = reg_user[u, f] * x[f]
            for k in range(indptr[u], indptr[u + 1]):
                score = user_score(x, item_vectors[items[k]], offset, biases, partner)
                estimate, slope = link(score, sigmoid)
                g = -weights[k] * (values[k] - estimate) * slope
                h = weights[k] * slope * slope
                for f in range(width):
                    gradient[f] += g * partner[f]
                    for e in range(f + 1):
                        hessian[f, e] += h * partner[f] * partner[e]
            for f in range(width):
                for e in range(f):
                    hessian[e, f] = hessian[f, e]
            step = np.linalg.solve(hessian, gradient)
            length = 1.0
            for _ in range(8):
                trial = x - length * step
                loss = user_loss(
                    u, trial, indptr, items, values, weights, item_vectors, offset, sigmoid,
                    biases, reg_user,
                )  # fmt: skip
                if loss <= current:
                    x, current = trial, loss
                    break
                length /= 2
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
def user_loss(
    u, x, indptr, items, values, weights, item_vectors, offset, sigmoid, biases, reg_user
):
    """The user's regularised sum of squared errors at x."""
    partner = np.empty(len(x))
    loss = 0.0
    for f in range(len(x)):
        loss += reg_user[u, f] * x[f] * x[f]
    for k in range(indptr[u], indptr[u + 1]):
        score = user_score(x, item_vectors[items[k]], offset, biases, partner)
        estimate = link(score, sigmoid)[0]
        loss += weights[k] * (values[k] - estimate) ** 2
    return loss
