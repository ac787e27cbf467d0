"""The Gibbs sampler of Bayesian SVD++: all unknowns of the model, and how each is drawn.

A row of a side, users or items, is x = (bias, vector), and a rating of rows a and b is normal with
mean ``x_a[0] + x_b[0] + x_a[1:] . x_b[1:]``.
"""

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, eigsh

from fedrecsk._utils.jit import inline, kernel
from fedrecsk._utils.shared_kernels import factor, solve
from fedrecsk._utils.threads import Threads
from fedrecsk.centralized._sgd import Side, grouped
from fedrecsk.centralized._sgd_kernels import dot

# Every precision has the prior Gamma(SHAPE, rate RATE), which is nearly flat for a scale. A large
# rate would keep factors that the data do not need from vanishing: sparse data are then overfitted.
SHAPE, RATE = 0.5, 0.005
INIT_STD = 0.1
INIT_PRECISION = 30.0  # of y: it moves slowly, and the posterior's is about as large on MovieLens
RATINGS_PER_CALL = 2**20  # of a kernel
SMALL = 1000  # items up to which all eigenvectors are as quick to find as some


class Problem(NamedTuple):
    """What stays the same over the sweeps."""

    # The items with ratings; all else here is about these.
    rated: np.ndarray
    # Values less their mean, in standard deviations, and weights relative to their mean.
    users: Side
    items: Side
    # |R_u|^-1/2.
    shares: np.ndarray
    # Of the items' kernel, (r,) and (n_items, r).
    eigenvalues: np.ndarray
    eigenvectors: np.ndarray
    # nu, or None.
    noise_df: float | None
    # What features say of all items: an ItemPrior, or None.
    content: Any

    @classmethod
    def of(cls, rows, kernel_rank, noise_df, content=None):
        """Return the problem of `rows` (Rows)."""
        # Counted, because NumPy takes seconds to sort 25 million items.
        is_rated = np.bincount(rows.items, minlength=rows.n_items) > 0
        rated, places = np.flatnonzero(is_rated), np.cumsum(is_rated, dtype=np.int32) - 1
        items = places[rows.items].astype(np.int32, copy=False)
        values = (rows.values - rows.mean) / rows.scale
        weights = rows.weights / rows.weights.mean()
        by_item = Side(*grouped(items, len(rated), rows.users, values, weights))
        shares = np.diff(by_item.indptr) ** -0.5
        held = sparse.csr_array(
            (shares[items], items, rows.indptr), shape=(rows.n_users, len(rated))
        )
        return cls(
            rated,
            Side(rows.indptr, items, values, weights),
            by_item,
            np.diff(rows.indptr) ** -0.5,
            *leading_eigenpairs(held, kernel_rank),
            noise_df,
            content,
        )


def leading_eigenpairs(held, rank):
    """Return eigenvalues and eigenvectors of held' held, at most `rank`, none of them 0."""
    n_items = held.shape[1]
    rank = min(rank, n_items)
    if rank == 0:
        return np.empty(0), np.empty((n_items, 0))
    if n_items <= SMALL or rank > n_items // 4:
        values, vectors = np.linalg.eigh((held.T @ held).toarray())
    else:
        transposed = held.T.tocsr()
        # LinearOperator.__new__ makes an object of a subclass, which takes other arguments.
        shape, times = (n_items, n_items), lambda x: transposed @ (held @ x)
        product = LinearOperator(shape, matvec=times)  # pyright: ignore[reportCallIssue]
        values, vectors = eigsh(product, rank, v0=np.ones(n_items))
    best = np.argsort(-values, kind="stable")[:rank]
    best = best[values[best] > 1e-8 * values.max()]
    return values[best], np.ascontiguousarray(vectors[:, best])


@dataclass
class State:
    """All unknowns. Column 0 of the matrices with 1 + d columns is the bias."""

    # (b_u, p_u) and (b_i, q_i), (n_users, 1 + d) and (n_items, 1 + d); y_j, (n_items, d).
    P: np.ndarray
    Q: np.ndarray
    Y: np.ndarray
    # The means of the priors of P and Q: (0, m_u) and f_i.
    user_mean: np.ndarray
    item_mean: np.ndarray
    # lambda, rho, psi, (1 + d,).
    user_precision: np.ndarray
    item_precision: np.ndarray
    kernel_precision: np.ndarray
    # eta, alpha, and tau_u.
    implicit_precision: float
    noise_precision: float
    user_noise: np.ndarray
    # The part of f_i that features predict.
    content_mean: np.ndarray | float = 0.0

    @classmethod
    def start(cls, problem, n_factors, generator):
        """Return small random item vectors, and moderate precisions.

        A chain forgets slowly how large it took the factors to be, most of all where ratings are
        few. It starts as if they explained a quarter of the variance, which is
        d / lambda (1 / rho + 1 / psi) where all three are equal and K_ii = 1.
        """
        n_users, n_items, size = len(problem.shares), len(problem.rated), 1 + n_factors
        precision = np.full(size, np.sqrt(8 * n_factors))
        Q = INIT_STD * generator.standard_normal((n_items, size))
        Q[:, 0] = 0
        return cls(
            P=np.zeros((n_users, size)),
            Q=Q,
            Y=np.zeros((n_items, n_factors)),
            user_mean=np.zeros((n_users, size)),
            item_mean=np.zeros((n_items, size)),
            user_precision=precision,
            item_precision=precision.copy(),
            kernel_precision=precision.copy(),
            implicit_precision=INIT_PRECISION,
            noise_precision=1.0,
            user_noise=np.ones(n_users),
        )

    def sample(self, dtype):
        """Return copies of what is kept of a draw; `noise` is 1 / (alpha tau_u)."""
        return {
            "P": self.P.astype(dtype),
            "Q": self.Q.astype(dtype),
            "Y": self.Y.astype(dtype),
            "user_precision": self.user_precision,
            "noise_precision": float(self.noise_precision),
            "noise": (1 / (self.noise_precision * self.user_noise)).astype(dtype),
        }


def sweep(problem, state, key, n_jobs=None, normal_again=None):
    """Draw everything once, P twice if `normal_again`; return the new P's loss and the second P."""
    squares, again = draw_users(problem, state, key.generator("users"), n_jobs, normal_again)
    draw_implicit(problem, state, key.generator("implicit"))
    draw_noise(problem, state, squares, key.generator("noise"))
    draw_items(problem, state, key.generator("items"), n_jobs)
    draw_kernel(problem, state, key.generator("kernel"))
    return float(squares.sum()), again


def draw_users(problem, state, generator, n_jobs, normal_again):
    """Draw (b_u, p_u) | rest, then lambda; return squared errors, and P by other numbers."""
    normals = [generator.standard_normal(state.P.shape)]
    if normal_again is not None:
        normals.append(normal_again)
    prior = state.user_mean, state.user_precision
    noise = state.noise_precision * state.user_noise, np.ones(len(state.Q))
    (state.P, *again), squares = drawn_rows(problem.users, state.Q, prior, noise, normals, n_jobs)
    rest = np.sum((state.P - state.user_mean) ** 2, axis=0)
    state.user_precision = drawn_precision(generator, len(state.P), rest)
    return squares, again[0] if again else None


def draw_implicit(problem, state, generator):
    """Draw y_j | rest, one after the other, then eta."""
    normal = generator.standard_normal(state.Y.shape)
    rest = state.P[:, 1:] - state.user_mean[:, 1:]
    implicit(
        problem.items.indptr,
        problem.items.others,
        problem.shares,
        state.user_precision[1:],
        state.implicit_precision,
        normal,
        rest,
        state.Y,
    )
    state.user_mean[:, 1:] = state.P[:, 1:] - rest
    state.implicit_precision = drawn_precision(generator, state.Y.size, np.sum(state.Y**2))


def draw_noise(problem, state, squares, generator):
    """Draw tau_u | rest, then alpha; `squares` are the users' weighted squared errors."""
    if problem.noise_df is not None:
        counts = np.diff(problem.users.indptr)
        rates = (problem.noise_df + state.noise_precision * squares) / 2
        state.user_noise = generator.standard_gamma((problem.noise_df + counts) / 2) / rates
    n_ratings = len(problem.users.others)
    state.noise_precision = drawn_precision(generator, n_ratings, state.user_noise @ squares)


def draw_items(problem, state, generator, n_jobs):
    """Draw (b_i, q_i) | rest, then rho."""
    normals = [generator.standard_normal(state.Q.shape)]
    prior = state.item_mean, state.item_precision
    noise = np.ones(len(state.Q)), state.noise_precision * state.user_noise
    (state.Q,), _ = drawn_rows(problem.items, state.P, prior, noise, normals, n_jobs)
    rest = np.sum((state.Q - state.item_mean) ** 2, axis=0)
    state.item_precision = drawn_precision(generator, len(state.Q), rest)


def draw_kernel(problem, state, generator):
    """Draw f = U g | rest, then psi; what features predict of the rest is added to f."""
    values, vectors = problem.eigenvalues[:, None], problem.eigenvectors
    rest = state.Q - state.content_mean
    strength = state.kernel_precision / values + state.item_precision
    mean = state.item_precision * (vectors.T @ rest) / strength
    g = mean + generator.standard_normal(mean.shape) / np.sqrt(strength)
    state.item_mean = vectors @ g
    if problem.content is not None:
        rest = np.zeros((len(problem.content.n_ratings), state.Q.shape[1]))
        rest[problem.rated] = state.Q - state.item_mean
        state.content_mean = problem.content.means(rest)[problem.rated]
        state.item_mean = state.item_mean + state.content_mean
    if len(values):
        squares = np.sum(g**2 / values, axis=0)
        state.kernel_precision = drawn_precision(generator, len(values), squares)


def drawn_precision(generator, count, squares):
    """Draw a precision given `count` normal numbers of mean 0 and the sum of their squares."""
    squares = np.asarray(squares)
    return generator.standard_gamma(SHAPE + count / 2, squares.shape) / (RATE + squares / 2)


def drawn_rows(side, factors, prior, noise, normals, n_jobs=None):
    """Return a side's rows drawn by each of some normals, and the first one's squared errors."""
    normals = np.asarray(normals)
    drawn, squares = np.empty_like(normals), np.empty(normals.shape[1])
    with Threads(n_jobs) as threads:
        # Runs of rows with about as many ratings each; Ctrl-C arrives between two of them.
        n_runs = max(threads.n_threads, int(side.indptr[-1]) // RATINGS_PER_CALL)
        goals = np.arange(1, n_runs) * side.indptr[-1] / n_runs
        ends = [0, *np.searchsorted(side.indptr, goals).tolist(), len(squares)]
        given = side, factors, prior, noise, normals, drawn, squares
        for _ in threads(lambda run: rows(*run, *given), itertools.pairwise(ends)):
            pass
    return drawn, squares


@kernel
def rows(first, last, side, factors, prior, noise, normals, drawn, squares):
    """Draw rows first to last of a side given those of the other, `factors`, by some normals.

    Row a has the precision A = diag(precision) + sum w x x' over x = (1, vector) of what it
    rates, and the mean A^-1 (diag(precision) mean[a] + sum w x (value - bias)), where
    w = weight * row_noise[a] * other_noise[b].
    """
    prior_mean, precision = prior
    row_noise, other_noise = noise
    size = normals.shape[2]
    longest = 0
    for a in range(first, last):
        longest = max(longest, side.indptr[a + 1] - side.indptr[a])
    design, targets = np.empty((longest, size)), np.empty(longest)
    matrix, mean = np.empty((size, size)), np.empty((1, size))
    for a in range(first, last):
        start, n = side.indptr[a], side.indptr[a + 1] - side.indptr[a]
        right = mean[0]
        for f in range(size):
            right[f] = precision[f] * prior_mean[a, f]
        for k in range(n):
            b = side.others[start + k]
            root = np.sqrt(side.weights[start + k] * row_noise[a] * other_noise[b])
            x, v = design[k], factors[b]
            targets[k] = root * (side.values[start + k] - v[0])
            x[0] = root
            for f in range(1, size):
                x[f] = root * v[f]
            for f in range(size):
                right[f] += targets[k] * x[f]
        np.dot(design[:n].T, design[:n], matrix)
        for f in range(size):
            matrix[f, f] += precision[f]
        lower = factor(matrix)
        solve(lower, size, mean, mean, 0)
        for draw in range(len(normals)):
            add_normal(lower, right, normals[draw, a], drawn[draw, a])
        total = 0.0
        for k in range(n):
            error = targets[k] - dot(design[k], drawn[0, a])
            b = side.others[start + k]
            total += error * error / (row_noise[a] * other_noise[b])
        squares[a] = total


@inline
def add_normal(lower, mean, normal, out):
    """out = mean + L'^-1 normal with a lower triangular L: covariance (LL')^-1."""
    size = len(normal)
    for f in range(size - 1, -1, -1):
        left = normal[f]
        for g in range(f + 1, size):
            left -= lower[g, f] * out[g]
        out[f] = left / lower[f, f]
    for f in range(size):
        out[f] += mean[f]


@kernel
def implicit(indptr, users, shares, user_precision, precision, normal, rest, Y):
    """Draw all y_j, one after the other, given the others and p_u ~ N(share_u sum_j y_j, .).

    y_j has the prior precision `precision` and, in coordinate f, user_precision[f] for each p_u.
    `rest` is p_u - share_u sum_j y_j, kept up to date.
    """
    size = Y.shape[1]
    move = np.empty(size)
    for j in range(len(Y)):
        squares = 0.0
        for f in range(size):
            move[f] = 0.0
        for k in range(indptr[j], indptr[j + 1]):
            share, left = shares[users[k]], rest[users[k]]
            squares += share * share
            for f in range(size):
                move[f] += share * left[f]
        for f in range(size):
            strength = precision + user_precision[f] * squares
            mean = user_precision[f] * (move[f] + squares * Y[j, f]) / strength
            move[f] = mean + normal[j, f] / np.sqrt(strength) - Y[j, f]
            Y[j, f] += move[f]
        for k in range(indptr[j], indptr[j + 1]):
            share, left = shares[users[k]], rest[users[k]]
            for f in range(size):
                left[f] -= share * move[f]
