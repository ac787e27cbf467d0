"""Gibbs sampling of SVD++, one unknown vector at a time with dense matrices.

Slow on purpose. R and W are users x items: ratings less their mean in standard deviations, and
their weights, 0 where there is no rating. A state is a dict; P, Q have the bias in column 0:

    P, Q, Y           (b_u, p_u), (b_i, q_i), y_j
    lam, rho, eta     precisions of P about its mean M, of Q about its mean F, and of Y
    F, psi            Gaussian process of the items, and its precision
    alpha, tau        precision of the noise, of all and of each user
"""

import numpy as np
from scipy.stats import gamma


def kernel(W):
    """K_ij: how many users have rated i and j, over the root of both items' numbers."""
    m = W.shape[1]
    K = np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            both = np.sum((W[:, i] > 0) & (W[:, j] > 0))
            K[i, j] = both / np.sqrt(np.sum(W[:, i] > 0) * np.sum(W[:, j] > 0))
    return K


def user_means(state, W):
    """M: (0, |R_u|^-1/2 sum_{j in R_u} y_j)."""
    M = np.zeros((len(W), 1 + state["Y"].shape[1]))
    for u in range(len(W)):
        rated = np.flatnonzero(W[u] > 0)
        M[u, 1:] = sum(state["Y"][j] for j in rated) / np.sqrt(len(rated))
    return M


def row(others, values, weights, mean, precision, normal):
    """Draw x = (b, v) ~ N(mean, 1/precision) given values_k ~ N(b + b_k + v.v_k, 1/weights_k)."""
    A, right = np.diag(precision), precision * mean
    for other, value, weight in zip(others, values, weights, strict=True):
        x = np.append(1.0, other[1:])
        A = A + weight * np.outer(x, x)
        right = right + weight * (value - other[0]) * x
    # A = L L', and L'^-1 normal has the covariance A^-1.
    return np.linalg.solve(A, right) + np.linalg.solve(np.linalg.cholesky(A).T, normal)


def users(state, R, W, normal):
    """P given all else."""
    M, P = user_means(state, W), np.empty_like(state["P"])
    for u in range(len(R)):
        rated = np.flatnonzero(W[u] > 0)
        weights = W[u, rated] * state["alpha"] * state["tau"][u]
        P[u] = row(state["Q"][rated], R[u, rated], weights, M[u], state["lam"], normal[u])
    return P


def items(state, R, W, normal):
    """Q given all else."""
    Q = np.empty_like(state["Q"])
    for i in range(len(Q)):
        raters = np.flatnonzero(W[:, i] > 0)
        weights = W[raters, i] * state["alpha"] * state["tau"][raters]
        prior = state["F"][i], state["rho"]
        Q[i] = row(state["P"][raters], R[raters, i], weights, *prior, normal[i])
    return Q


def implicit(state, W, normal):
    """Y given all else, y_j after y_j."""
    Y, lam = state["Y"].copy(), state["lam"][1:]
    for j in range(len(Y)):
        strength, right = np.full(Y.shape[1], state["eta"]), np.zeros(Y.shape[1])
        for u in np.flatnonzero(W[:, j] > 0):
            rated = np.flatnonzero(W[u] > 0)
            share = len(rated) ** -0.5
            others = share * sum((Y[k] for k in rated if k != j), start=np.zeros(Y.shape[1]))
            strength += lam * share**2
            right += lam * share * (state["P"][u, 1:] - others)
        Y[j] = right / strength + normal[j] / np.sqrt(strength)
    return Y


def errors(state, R, W):
    """Of each rating, times the root of its weight."""
    E = np.zeros(R.shape)
    for u, i in zip(*np.nonzero(W), strict=True):
        p, q = state["P"][u], state["Q"][i]
        E[u, i] = np.sqrt(W[u, i]) * (R[u, i] - p[0] - q[0] - p[1:] @ q[1:])
    return E


def precision(generator, normals, shape=0.5, rate=0.005):
    """Of columns of normal numbers of mean 0, prior Gamma(shape, rate)."""
    squares = np.sum(normals**2, axis=0)
    draw = generator.standard_gamma(shape + len(normals) / 2, np.shape(squares))
    return draw / (rate + squares / 2)


def sweep(state, R, W, eigenpairs, df, key, normal_again=None):
    """All draws of a sweep in a new state; sum of squared errors, and P drawn again."""
    state, generator = dict(state), key.generator("users")
    normal = generator.standard_normal(state["P"].shape)
    again = None if normal_again is None else users(state, R, W, normal_again)
    state["P"] = users(state, R, W, normal)
    state["lam"] = precision(generator, state["P"] - user_means(state, W))
    E = errors(state, R, W)

    generator = key.generator("implicit")
    state["Y"] = implicit(state, W, generator.standard_normal(state["Y"].shape))
    state["eta"] = precision(generator, state["Y"].ravel())

    generator = key.generator("noise")
    if df is not None:
        tau = np.empty(len(R))
        for u in range(len(R)):
            draw = generator.standard_gamma((df + np.sum(W[u] > 0)) / 2)
            tau[u] = draw / ((df + state["alpha"] * np.sum(E[u] ** 2)) / 2)
        state["tau"] = tau
    state["alpha"] = precision(generator, (np.sqrt(state["tau"])[:, None] * E)[W > 0])

    generator = key.generator("items")
    state["Q"] = items(state, R, W, generator.standard_normal(state["Q"].shape))
    state["rho"] = precision(generator, state["Q"] - state["F"])

    values, vectors = eigenpairs
    generator = key.generator("kernel")
    normal = generator.standard_normal((len(values), len(state["rho"])))
    state["F"], g = np.zeros_like(state["Q"]), np.zeros(normal.shape)
    for k in range(len(values)):
        for f in range(normal.shape[1]):
            strength = state["psi"][f] / values[k] + state["rho"][f]
            mean = state["rho"][f] * (vectors[:, k] @ state["Q"][:, f]) / strength
            g[k, f] = mean + normal[k, f] / np.sqrt(strength)
            state["F"][:, f] += vectors[:, k] * g[k, f]
    state["psi"] = precision(generator, g / np.sqrt(values)[:, None])
    return state, np.sum(E**2), again


def prior_draw(W, eigenpairs, d, df, shape, rate, generator):
    """A state from the prior, top down."""

    def gamma_draw(size=None):
        return generator.standard_gamma(shape, size) / rate

    n, m = W.shape
    values, vectors = eigenpairs
    state = {"eta": gamma_draw(), "alpha": gamma_draw()}
    state |= {name: gamma_draw(1 + d) for name in ("lam", "rho", "psi")}
    state["tau"] = generator.standard_gamma(df / 2, n) / (df / 2)
    state["Y"] = generator.standard_normal((m, d)) / np.sqrt(state["eta"])
    noise = generator.standard_normal((n, 1 + d)) / np.sqrt(state["lam"])
    state["P"] = user_means(state, W) + noise
    g = generator.standard_normal((len(values), 1 + d)) * np.sqrt(values)[:, None]
    state["F"] = vectors @ (g / np.sqrt(state["psi"]))
    noise = generator.standard_normal((m, 1 + d)) / np.sqrt(state["rho"])
    state["Q"] = state["F"] + noise
    return state


def ratings(state, W, generator):
    """R given a state."""
    R = np.zeros(W.shape)
    for u, i in zip(*np.nonzero(W), strict=True):
        p, q = state["P"][u], state["Q"][i]
        std = (W[u, i] * state["alpha"] * state["tau"][u]) ** -0.5
        R[u, i] = p[0] + q[0] + p[1:] @ q[1:] + std * generator.standard_normal()
    return R


def moments(samples, u, i):
    """Mean and variance over samples (P, Q) of what user u gives item i, without noise."""
    scores = [P[u, 0] + Q[i, 0] + P[u, 1:] @ Q[i, 1:] for P, Q in samples]
    return np.mean(scores), np.var(scores)


def newcomer(rated, values, weights, samples, df, key):
    """(P, 1 / (alpha tau)) of a new user for each sample, given its items, Y, lam and alpha."""
    tau, drawn = 1.0, []
    for s, given in enumerate(samples):
        mean = np.append(0.0, sum(given["Y"][j] for j in rated) / np.sqrt(len(rated)))
        others, precisions = given["Q"][rated], weights * given["alpha"] * tau

        def draw(normal):
            return row(others, values, precisions, mean, given["lam"], normal)  # noqa: B023

        P = draw(key.at(s).generator("newcomers").standard_normal(len(mean)))
        kept = key.at(s // 2).generator("samples of newcomers").standard_normal(len(mean))
        drawn.append((draw((-1) ** s * kept), 1 / (given["alpha"] * tau)))
        if df is not None:
            squares = weights @ (values - P[0] - others[:, 0] - others[:, 1:] @ P[1:]) ** 2
            # The same uniform number for all newcomers, through the inverse of the distribution.
            quantile = gamma.ppf(key.at(s).uniform("newcomers' noise"), (df + len(rated)) / 2)
            tau = quantile / ((df + given["alpha"] * squares) / 2)
    return drawn
