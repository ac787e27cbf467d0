"""One sweep of the Gibbs sampler of BayesianSVDpp: each group of unknowns given all others."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from joblib import delayed
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, eigsh

from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.threads import Threads
from fedrecsk.centralized._sgd import narrowed

bayesian_svdpp_kernels: LazyModule = LazyModule("fedrecsk.centralized._bayesian_svdpp_kernels")

# Every precision has the prior Gamma(SHAPE, rate RATE), which is nearly flat for a scale. A large
# rate would keep factors that the data do not need from vanishing: sparse data are then overfitted.
SHAPE, RATE = 0.5, 0.005
INIT_STD = 0.1
INIT_PRECISION = 30.0  # of y: it moves slowly, and the posterior's is about as large on MovieLens
RATINGS_PER_CALL = 2**20  # of a kernel
SMALL = 1000  # items up to which all eigenvectors are as quick to find as some


class Problem(NamedTuple):
    """What stays the same over the sweeps.

    Attributes
    ----------
    rated : ndarray of shape (n_rated_items,)
        The items with ratings; all else here is about these.
    users, items : bayesian_svdpp_kernels.Side
        The ratings by user and by item, less their mean, in standard deviations.
    shares : ndarray of shape (n_users,)
        |R_u|^-1/2.
    eigenvalues, eigenvectors : ndarray of shape (r,) and (n_items, r)
        Of the items' kernel.
    noise_df : float or None
        nu.
    """

    rated: np.ndarray
    users: NamedTuple
    items: NamedTuple
    shares: np.ndarray
    eigenvalues: np.ndarray
    eigenvectors: np.ndarray
    noise_df: float | None

    @classmethod
    def of(cls, rows: Any, kernel_rank: int, noise_df: float) -> Problem:
        """The problem of `rows` (Rows)."""
        Side = bayesian_svdpp_kernels.Side
        # Counted, because NumPy takes seconds to sort 25 million items.
        is_rated = np.bincount(rows.items, minlength=rows.n_items) > 0
        rated, places = np.flatnonzero(is_rated), np.cumsum(is_rated, dtype=np.int32) - 1
        items = places[rows.items].astype(np.int32, copy=False)
        values = (rows.values - rows.mean) / rows.scale
        weights = rows.weights / rows.weights.mean()
        by_item = np.argsort(narrowed(items), kind="stable")
        n_ratings = np.bincount(items)
        item_indptr = np.concatenate([[0], np.cumsum(n_ratings)])
        shape = rows.n_users, len(n_ratings)
        held = sparse.csr_array(((n_ratings**-0.5)[items], items, rows.indptr), shape=shape)
        return cls(
            rated,
            Side(rows.indptr, items, values, weights),
            # Calls, between which an interrupt arrives, unlike between brackets.
            Side(item_indptr, *(a.take(by_item) for a in (rows.users, values, weights))),
            np.diff(rows.indptr) ** -0.5,
            *leading_eigenpairs(held, kernel_rank),
            noise_df,
        )


def leading_eigenpairs(held, rank):
    """Eigenvalues and eigenvectors of held' held, at most `rank` and only what is not zero."""
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
    """All unknowns. Column 0 of the matrices with 1 + d columns is the bias.

    Attributes
    ----------
    P, Q : ndarray of shape (n_users, 1 + d) and (n_items, 1 + d)
        (b_u, p_u) and (b_i, q_i).
    Y : ndarray of shape (n_items, d)
        y_j.
    user_mean, item_mean : ndarray, as P and Q
        The means of their priors: (0, m_u) and f_i.
    user_precision, item_precision, kernel_precision : ndarray of shape (1 + d,)
        lambda, rho, psi.
    implicit_precision, noise_precision : float
        eta, alpha.
    user_noise : ndarray of shape (n_users,)
        tau_u.
    """

    P: np.ndarray
    Q: np.ndarray
    Y: np.ndarray
    user_mean: np.ndarray
    item_mean: np.ndarray
    user_precision: np.ndarray
    item_precision: np.ndarray
    kernel_precision: np.ndarray
    implicit_precision: float
    noise_precision: float
    user_noise: np.ndarray

    @classmethod
    def start(cls, problem: Problem, n_factors: int, generator: np.random.Generator) -> State:
        """Small random item vectors, and moderate precisions.

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


def sweep(problem, state, key, n_jobs=None, normal_again=None):
    """Draw everything once, changing `state`.

    Parameters
    ----------
    problem : Problem
    state : State
    key : Key
        Of this sweep: seeds all of its draws, whatever came before.
    n_jobs : int or None
        Threads.
    normal_again : ndarray of shape (n_users, 1 + d), default=None
        Standard normal numbers for a second draw of P from the same distribution.

    Returns
    -------
    loss : float
        Sum of weighted squared errors of the new P and the old Q.
    again : ndarray, as `normal_again`
        The second draw; of shape (0, 1 + d) if there is none.
    """
    squares, again = draw_users(problem, state, key.generator("users"), n_jobs, normal_again)
    draw_implicit(problem, state, key.generator("implicit"))
    draw_noise(problem, state, squares, key.generator("noise"))
    draw_items(problem, state, key.generator("items"), n_jobs)
    draw_kernel(problem, state, key.generator("kernel"))
    return float(squares.sum()), again


def draw_users(problem, state, generator, n_jobs, normal_again):
    """(b_u, p_u) | rest, then lambda."""
    normal = generator.standard_normal(state.P.shape)
    prior = bayesian_svdpp_kernels.Prior(state.user_mean, state.user_precision)
    precisions = state.noise_precision * state.user_noise, np.ones(len(state.Q))
    squares, again = draw_side(
        problem.users, state.Q, prior, precisions, normal, state.P, n_jobs, normal_again
    )
    rest = np.sum((state.P - state.user_mean) ** 2, axis=0)
    state.user_precision = drawn_precision(generator, len(state.P), rest)
    return squares, again


def draw_implicit(problem, state, generator):
    """y_j | rest, one after the other, then eta."""
    normal = generator.standard_normal(state.Y.shape)
    rest = state.P[:, 1:] - state.user_mean[:, 1:]
    arguments = (
        problem.items.indptr,
        problem.items.others,
        problem.shares,
        state.user_precision[1:],
        state.implicit_precision,
        normal,
        rest,
        state.Y,
    )
    bayesian_svdpp_kernels.implicit(*arguments)
    state.user_mean[:, 1:] = state.P[:, 1:] - rest
    state.implicit_precision = drawn_precision(generator, state.Y.size, np.sum(state.Y**2))


def draw_noise(problem, state, squares, generator):
    """tau_u | rest, then alpha; `squares` are the users' weighted squared errors."""
    if problem.noise_df is not None:
        counts = np.diff(problem.users.indptr)
        rates = (problem.noise_df + state.noise_precision * squares) / 2
        state.user_noise = generator.standard_gamma((problem.noise_df + counts) / 2) / rates
    n_ratings = len(problem.users.others)
    state.noise_precision = drawn_precision(generator, n_ratings, state.user_noise @ squares)


def draw_items(problem, state, generator, n_jobs):
    """(b_i, q_i) | rest, then rho."""
    normal = generator.standard_normal(state.Q.shape)
    prior = bayesian_svdpp_kernels.Prior(state.item_mean, state.item_precision)
    precisions = np.ones(len(state.Q)), state.noise_precision * state.user_noise
    draw_side(problem.items, state.P, prior, precisions, normal, state.Q, n_jobs)
    rest = np.sum((state.Q - state.item_mean) ** 2, axis=0)
    state.item_precision = drawn_precision(generator, len(state.Q), rest)


def draw_kernel(problem, state, generator):
    """f | rest, in the coordinates g of the eigenvectors, f = U g, then psi."""
    values, vectors = problem.eigenvalues[:, None], problem.eigenvectors
    if not len(values):
        return
    strength = state.kernel_precision / values + state.item_precision
    mean = state.item_precision * (vectors.T @ state.Q) / strength
    g = mean + generator.standard_normal(mean.shape) / np.sqrt(strength)
    state.item_mean = vectors @ g
    squares = np.sum(g**2 / values, axis=0)
    state.kernel_precision = drawn_precision(generator, len(values), squares)


def drawn_precision(generator, count, squares):
    """A precision given `count` normal numbers of mean 0 and the sum of their squares."""
    squares = np.asarray(squares)
    return generator.standard_gamma(SHAPE + count / 2, squares.shape) / (RATE + squares / 2)


def draw_side(side, factors, prior, precisions, normal, out, n_jobs=None, normal_again=None):
    """Replace the rows `out` of a side; threads take parts of about as many ratings.

    Returns
    -------
    squares : ndarray of shape (n_rows,)
        Sums of weighted squared errors.
    again : ndarray, as `normal_again`
        A second draw, or no rows.
    """
    module = bayesian_svdpp_kernels
    if normal_again is None:
        normal_again = np.empty((0, normal.shape[1]))
    drawn = module.Drawn(out, np.empty_like(normal_again), np.empty(len(out)))
    rest = side, factors, prior, module.Noise(*precisions), normal, normal_again, drawn
    with Threads(n_jobs) as threads:
        cuts = _cuts(side.indptr, threads.n_threads)
        for _ in threads(delayed(module.rows)(*cut, *rest) for cut in cuts):
            pass
    return drawn.squares, drawn.again


def _cuts(indptr, n_threads):
    """Runs of rows with about as many ratings each; Ctrl-C arrives between two of them."""
    n_parts = max(n_threads, int(indptr[-1]) // RATINGS_PER_CALL)
    goals = np.arange(1, n_parts) * indptr[-1] / n_parts
    return itertools.pairwise([0, *np.searchsorted(indptr, goals).tolist(), len(indptr) - 1])
