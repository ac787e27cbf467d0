import numpy as np
import pytest
from scipy import stats

from fedrecsk import SVDpp
from fedrecsk.centralized import BayesianSVDpp, _gibbs, bayesian_svdpp
from fedrecsk.centralized._sgd import Rows
from fedrecsk.interactions import encode
from fedrecsk.simulation.keys import Key
from tests.conftest import make_toy, rmse, split
from tests.reference import bayesian_svdpp as reference

NAMES = {
    "P": "P",
    "Q": "Q",
    "Y": "Y",
    "F": "item_mean",
    "lam": "user_precision",
    "rho": "item_precision",
    "psi": "kernel_precision",
    "eta": "implicit_precision",
    "alpha": "noise_precision",
    "tau": "user_noise",
}


def weighted_toy(seed=0):
    X, y = make_toy(12, 9, seed=seed)
    return X, y, np.random.default_rng(seed).choice([0.3, 1.0, 2.0, 5.0], len(y))


def dense(rows):
    """R and W of Rows, all of whose items have ratings."""
    R, W = np.zeros((2, rows.n_users, rows.n_items))
    R[rows.users, rows.items] = (rows.values - rows.mean) / rows.scale
    W[rows.users, rows.items] = rows.weights / rows.weights.mean()
    return R, W


def as_dict(state):
    """A State as the reference has it; copies."""
    return {short: np.copy(getattr(state, name)) for short, name in NAMES.items()}


def seed_of(model):
    return int(np.random.RandomState(model.random_state).randint(2**31 - 1))


def by_the_reference(model, X, y, weights):
    """Rows, and kept (P, Q, Y, lam, alpha, tau) by naive sweeps from the model's own start."""
    rows, key = Rows.of(encode(X, y, sample_weight=weights)), Key(seed_of(model))
    R, W = dense(rows)
    problem = _gibbs.Problem.of(rows, model.kernel_rank, model.noise_df)
    pairs = problem.eigenvalues, problem.eigenvectors
    start = _gibbs.State.start(problem, model.n_factors, key.generator("first vectors"))
    state, kept, losses = as_dict(start), [], []
    for t in range(model.n_burn_in + model.n_samples * model.thinning):
        given, normal = state, None
        if t >= model.n_burn_in and (t + 1 - model.n_burn_in) % model.thinning == 0:
            s = len(kept)
            normal = key.at(s // 2).generator("samples").standard_normal(state["P"].shape)
            normal = (-1) ** s * normal
        state, loss, P = reference.sweep(state, R, W, pairs, model.noise_df, key.at(t), normal)
        losses.append(loss / len(y) * rows.scale**2)
        if normal is not None:
            kept.append(given | {"P": P})
    return rows, kept, losses


# ------------------------------------------------------------------- the sampler's draws


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "parameters",
    [
        {"n_factors": 2},
        {"n_factors": 8, "kernel_rank": 3, "noise_df": None},
        {"n_factors": 1, "kernel_rank": 0, "noise_df": 3, "n_burn_in": 0, "thinning": 1},
    ],
    ids=str,
)
def test_equals_the_naive_reference(parameters, weighted, monkeypatch):
    monkeypatch.setattr(bayesian_svdpp, "DTYPE", np.float64)
    X, y, weights = weighted_toy()
    weights = weights if weighted else np.ones(len(y))
    settings = {"n_samples": 3, "n_burn_in": 2, "thinning": 2, "random_state": 3} | parameters
    model = BayesianSVDpp(**settings).fit(X, y, sample_weight=weights)
    rows, kept, losses = by_the_reference(model, X, y, weights)
    assert model.loss_curve_ == pytest.approx(losses, rel=1e-9)
    samples = [(state["P"], state["Q"]) for state in kept]
    predicted, stds = model.predict(X, return_std=True)
    for k, (user, item) in enumerate(X):
        u, i = np.searchsorted(model.user_ids_, user), np.searchsorted(model.item_ids_, item)
        mean, variance = reference.moments(samples, u, i)
        noise = np.mean([1 / (state["alpha"] * state["tau"][u]) for state in kept])
        variance = rows.scale**2 * (variance + noise * weights.mean())
        mean = np.clip(rows.mean + rows.scale * mean, 1, 5)
        assert predicted[k] == pytest.approx(mean, rel=1e-9)
        assert stds[k] == pytest.approx(np.sqrt(variance), rel=1e-9)
    implicit = np.hstack([state["Y"] for state in kept]) * np.sqrt(rows.scale)
    assert model.implicit_factors_ == pytest.approx(implicit, rel=1e-9)


def test_the_kernel_is_that_of_the_reference(toy):
    rows = Rows.of(encode(*toy))
    problem = _gibbs.Problem.of(rows, 128, None)
    K = reference.kernel(dense(rows)[1])
    values, vectors = problem.eigenvalues, problem.eigenvectors
    assert vectors @ np.diag(values) @ vectors.T == pytest.approx(K, abs=1e-12)
    assert vectors.T @ vectors == pytest.approx(np.eye(len(values)), abs=1e-12)


def test_leading_eigenpairs_are_the_same_found_one_way_or_another(monkeypatch):
    rows = Rows.of(encode(*make_toy(80, 60, density=0.2)))
    exact = _gibbs.Problem.of(rows, 7, None)
    monkeypatch.setattr(_gibbs, "SMALL", 10)
    sparse = _gibbs.Problem.of(rows, 7, None)
    assert sparse.eigenvalues == pytest.approx(exact.eigenvalues, rel=1e-8)
    cosines = np.abs(np.sum(sparse.eigenvectors * exact.eigenvectors, axis=0))
    assert cosines == pytest.approx(np.ones(7), abs=1e-8)


def test_the_kernels_part_is_gaussian_process_regression(toy):
    """f has the mean and covariance of regression with the whole kernel."""
    rows = Rows.of(encode(*toy))
    problem = _gibbs.Problem.of(rows, 128, None)
    state = _gibbs.State.start(problem, 1, np.random.default_rng(0))
    state.Q = np.random.default_rng(1).normal(size=state.Q.shape)
    state.item_precision, state.kernel_precision = np.array([2.0, 5.0]), np.array([0.7, 3.0])
    K, draws = reference.kernel(dense(rows)[1]), []
    for t in range(20_000):
        before = state.kernel_precision
        _gibbs.draw_kernel(problem, state, np.random.default_rng(t))
        state.kernel_precision = before
        draws.append(state.item_mean)
    draws = np.array(draws)
    for f in range(2):
        prior, noise = K / before[f], np.eye(len(K)) / state.item_precision[f]
        gain = prior @ np.linalg.inv(prior + noise)
        covariance = prior - gain @ prior
        mean_error = draws[:, :, f].mean(axis=0) - gain @ state.Q[:, f]
        assert np.abs(mean_error / np.sqrt(np.diag(covariance) / 20_000)).max() < 4
        assert np.cov(draws[:, :, f].T) == pytest.approx(covariance, abs=0.03 * covariance.max())


def test_sweeps_leave_the_joint_distribution_as_it_is(monkeypatch):
    """Geweke 2004: ratings given the unknowns and unknowns given the ratings, in turn."""
    # A tamer prior of the precisions, so that moments exist and sweeps forget soon.
    shape, df, d = 4.0, 6.0, 1
    monkeypatch.setattr(_gibbs, "SHAPE", shape)
    X = [(u, i) for u in range(4) for i in range(3) if (u, i) not in ((0, 1), (3, 2))]
    weights = np.random.default_rng(0).choice([0.5, 2.0], len(X))
    rows = Rows.of(encode(np.array(X), np.arange(len(X)) % 3 + 1.0, sample_weight=weights))
    _, W = dense(rows)
    problem = _gibbs.Problem.of(rows, 2, df)
    pairs = problem.eigenvalues, problem.eigenvectors
    by_item = np.argsort(rows.items, kind="stable")

    def features(s):
        precisions = [s["alpha"], s["eta"], *s["lam"], *s["rho"], *s["psi"], *s["tau"]]
        vectors = [s["P"], s["Q"], s["Y"], s["F"], reference.user_means(s, W)[:, 1:]]
        scores = s["P"][:, 1:] @ s["Q"][:, 1:].T
        squares = [np.tanh(v**2).mean(axis=0) for v in vectors]
        signs = [np.tanh(v[0]) for v in vectors]
        across = [np.tanh(s["P"][0, 1] * s["Y"][0, 0]), np.tanh(s["Q"][0] * s["F"][0]).sum()]
        return np.concatenate(
            [
                np.log(precisions),
                *squares,
                *signs,
                across,
                np.tanh(scores[0]),
                [np.tanh(scores**2).mean()],
            ]
        )

    rng, n = np.random.default_rng(1), 6_000
    prior = [reference.prior_draw(W, pairs, d, df, shape, rng) for _ in range(n)]
    state = _gibbs.State.start(problem, d, rng)
    for short, name in NAMES.items():
        setattr(state, name, prior[0][short])
    state.user_mean = np.hstack([np.zeros((4, 1)), reference.user_means(prior[0], W)[:, 1:]])
    chain = []
    for t in range(n):
        R = reference.ratings(as_dict(state), W, rng)[rows.users, rows.items]
        problem = problem._replace(
            users=problem.users._replace(values=R),
            items=problem.items._replace(values=R[by_item]),
        )
        _gibbs.sweep(problem, state, Key(0, t))
        chain.append(features(as_dict(state)))
    independent = np.array([features(s) for s in prior])
    batches = np.array(chain).reshape(60, n // 60, -1)
    errors = np.sqrt(independent.var(axis=0) / n + batches.mean(axis=1).var(axis=0, ddof=1) / 60)
    z = (np.mean(chain, axis=0) - independent.mean(axis=0)) / errors
    assert np.abs(z).max() < 4, z
