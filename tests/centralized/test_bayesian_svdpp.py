import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone

from fedrecsk import SVDpp
from fedrecsk.centralized import BayesianSVDpp, bayesian_svdpp
from fedrecsk.centralized import _bayesian_svdpp_kernels as sampler
from fedrecsk.centralized._sgd import Rows
from fedrecsk.data.interactions import encode
from fedrecsk.protocol.keys import Key
from tests.conftest import make_toy, rmse, split
from tests.reference import bayesian_svdpp as reference
from tests.test_contract import Recorder, assert_same_fit

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
    problem = sampler.Problem.of(rows, model.kernel_rank, model.noise_df)
    pairs = problem.eigenvalues, problem.eigenvectors
    start = sampler.State.start(problem, model.n_factors, key.generator("first vectors"))
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


@pytest.mark.parametrize(
    ("weighted", "parameters"),
    [
        (True, {"n_factors": 2}),
        (False, {"n_factors": 8, "kernel_rank": 3, "noise_df": None}),
        (True, {"n_factors": 1, "kernel_rank": 0, "noise_df": 3, "n_burn_in": 0, "thinning": 1}),
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


@pytest.mark.parametrize(("small", "rank"), [(1000, 60), (10, 7)])
def test_leading_eigenpairs_are_those_of_the_reference_found_one_way_or_another(
    small, rank, monkeypatch
):
    monkeypatch.setattr(sampler, "SMALL", small)
    rows = Rows.of(encode(*make_toy(80, 60, density=0.2)))
    problem = sampler.Problem.of(rows, rank, None)
    values, vectors = (a[..., -rank:] for a in np.linalg.eigh(reference.kernel(dense(rows)[1])))
    found = (problem.eigenvectors * problem.eigenvalues) @ problem.eigenvectors.T
    assert found == pytest.approx((vectors * values) @ vectors.T, abs=1e-8)


def test_sweeps_leave_the_joint_distribution_as_it_is(monkeypatch):
    """Geweke 2004: ratings given the unknowns and unknowns given the ratings, in turn."""
    # A tamer prior of the precisions, so that moments exist and sweeps forget soon.
    shape, rate, df, d = 4.0, 3.0, 6.0, 1
    monkeypatch.setattr(sampler, "SHAPE", shape)
    monkeypatch.setattr(sampler, "RATE", rate)
    X = [(u, i) for u in range(4) for i in range(3) if (u, i) not in ((0, 1), (3, 2))]
    weights = np.random.default_rng(0).choice([0.5, 2.0], len(X))
    rows = Rows.of(encode(np.array(X), np.arange(len(X)) % 3 + 1.0, sample_weight=weights))
    _, W = dense(rows)
    problem = sampler.Problem.of(rows, 2, df)
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

    rng, n = np.random.default_rng(1), 3_000
    prior = [reference.prior_draw(W, pairs, d, df, shape, rate, rng) for _ in range(n)]
    state = sampler.State.start(problem, d, rng)
    for short, name in NAMES.items():
        setattr(state, name, prior[0][short])
    state.user_mean = np.hstack([np.zeros((4, 1)), reference.user_means(prior[0], W)[:, 1:]])
    chain = []
    for t in range(n):
        R = reference.ratings(as_dict(state), W, rng)[rows.users, rows.items]
        problem = problem._replace(
            users=problem.users._replace(values=R), items=problem.items._replace(values=R[by_item])
        )
        sampler.sweep(problem, state, Key(0, t))
        chain.append(features(as_dict(state)))
    independent = np.array([features(s) for s in prior])
    batches = np.array(chain).reshape(60, n // 60, -1)
    errors = np.sqrt(independent.var(axis=0) / n + batches.mean(axis=1).var(axis=0, ddof=1) / 60)
    z = (np.mean(chain, axis=0) - independent.mean(axis=0)) / errors
    assert np.abs(z).max() < 4, z


# ---------------------------------------------------------------------- what fit promises


def quick(n_factors=3, **parameters):
    defaults = {"n_samples": 6, "n_burn_in": 3, "thinning": 2, "random_state": 0}
    return BayesianSVDpp(n_factors, **(defaults | parameters))


def test_a_seed_fixes_the_model_for_any_number_of_threads(toy):
    one = quick().fit(*toy)
    assert (one.item_factors_ != quick(random_state=1).fit(*toy).item_factors_).any()
    for n_jobs in (2, 40):
        assert_same_fit(one, quick(n_jobs=n_jobs).fit(*toy))


def test_only_relative_weights_matter_but_for_the_noise(toy):
    X, y, weights = weighted_toy()
    one = quick().fit(X, y, sample_weight=weights)
    other = quick().fit(X, y, sample_weight=4 * weights)
    np.testing.assert_array_equal(one.predict(X), other.predict(X))
    assert other.user_noise_variance_ == pytest.approx(4 * one.user_noise_variance_)


def test_a_warm_start_goes_on_where_it_ended(toy):
    X, y = toy
    warm = quick(n_samples=3, warm_start=True).fit(X, y)
    warm.item_factors_[:] = 7
    warm.set_params(n_samples=6, n_jobs=2).fit(X, y)
    assert_same_fit(warm, quick().fit(X, y))
    with pytest.raises(ValueError, match="n_samples=2 must be larger or equal to the 6 samples"):
        warm.set_params(n_samples=2).fit(X, y)
    with pytest.raises(ValueError, match="noise_df has changed from"):
        warm.set_params(n_samples=7, noise_df=9).fit(X, y)


@pytest.mark.parametrize(("stop", "n_samples"), [(2, 1), (8, 2)])
def test_every_sweep_is_a_task_and_can_stop_the_fit(toy, stop, n_samples):
    class Watch(Recorder):
        def on_fit_task_end(self, estimator, context, *, X, fitted_estimator):
            self.ended.append(context.task_name)
            self.predictions.append(fitted_estimator.predict(X))
            fitted_estimator.item_factors_[:] = 7
            return len(self.ended) == stop

    watch = Watch()
    stopped = quick().set_callbacks(watch).fit(*toy)
    assert watch.ended == ["sweep"] * stop + ["fit"]
    assert stopped.n_samples_ == n_samples
    assert len(stopped.loss_curve_) == stop
    np.testing.assert_array_equal(watch.predictions[-1], watch.predictions[-2])
    if n_samples == 2:
        alone = quick(n_samples=2).fit(*toy)
        np.testing.assert_array_equal(alone.predict(toy[0]), watch.predictions[-1])


# ------------------------------------------------------------- newcomers, unknown, spread


@pytest.mark.parametrize("noise_df", [None, 5.0])
def test_newcomers_equal_the_naive_reference(noise_df, monkeypatch):
    monkeypatch.setattr(bayesian_svdpp, "DTYPE", np.float64)
    X, y, weights = weighted_toy()
    new = np.isin(X[:, 0], np.unique(X[:, 0])[[3, 8]])
    old = ~new
    model = quick(noise_df=noise_df).fit(X[old], y[old], sample_weight=weights[old])
    rows, kept, _ = by_the_reference(model, X[old], y[old], weights[old])
    model.fold_in(X[new], y[new], sample_weight=weights[new])
    mean, std = model.predict(X[new], return_std=True)
    for k, (user, item) in enumerate(X[new]):
        own = X[new][:, 0] == user
        rated = np.searchsorted(model.item_ids_, X[new][own, 1])
        values = (y[new][own] - rows.mean) / rows.scale
        relative = weights[new][own] / rows.weights.mean()
        drawn = reference.newcomer(rated, values, relative, kept, noise_df, Key(seed_of(model)))
        samples = [(P[None], given["Q"]) for (P, _), given in zip(drawn, kept, strict=True)]
        expected, variance = reference.moments(samples, 0, np.searchsorted(model.item_ids_, item))
        variance += np.mean([noise for _, noise in drawn]) * rows.weights.mean()
        assert mean[k] == pytest.approx(np.clip(rows.mean + rows.scale * expected, 1, 5), rel=1e-9)
        assert std[k] == pytest.approx(rows.scale * np.sqrt(variance), rel=1e-9)


def test_the_variance_of_what_is_unknown(toy):
    """By hand, from the samples' prior of a user and the spread of the items."""
    X, y = toy
    model = quick(items=[*np.unique(X[:, 1]), 5000]).fit(X, y)
    known = X[0]
    pairs = [[-1, known[1]], [known[0], 5000], [known[0], -1], [-1, -1]]
    _, std = model.predict(pairs, return_std=True)
    u, i = model.user_ids_.tolist().index(known[0]), model.item_ids_.tolist().index(known[1])
    noise, scale, d, n = model.user_noise_variance_, model._scale, 3, model.n_samples_
    P, Q = model.user_factors_[u].reshape(n, d), model.item_factors_.reshape(-1, n, d) * n
    user, item = 1 / model._user_precision, np.mean(Q[:-1] ** 2, axis=0) / scale
    item_bias = np.mean(model.item_bias_samples_[:-1] ** 2, axis=0)
    by_hand = [
        noise.mean()
        + model.item_bias_samples_[i].var()
        + np.mean(scale**2 * user[:, 0] + scale * (user[:, 1:] * Q[i] ** 2).sum(axis=1)),
        noise[u]
        + model.user_bias_samples_[u].var()
        + np.mean(item_bias + scale * (P**2 * item).sum(axis=1)),
    ]
    both = np.mean(scale**2 * (user[:, 0] + (user[:, 1:] * item).sum(axis=1)) + item_bias)
    by_hand += [by_hand[1], noise.mean() + both]
    assert std**2 == pytest.approx(by_hand, rel=1e-5)


# ----------------------------------------------------------------------------- real data


@pytest.fixture(scope="module")
def on_movielens(ml100k):
    """The four parts of a random split, and a model."""
    parts = split(*ml100k, seed=0)
    return *parts, BayesianSVDpp(n_samples=20, random_state=0).fit(*parts[:2])


def test_better_than_gradient_descent_and_sure_as_it_should_be_on_movielens_100k(on_movielens):
    train_X, train_y, test_X, test_y, model = on_movielens
    mean, std = model.predict(test_X, return_std=True)
    error = np.abs(mean - test_y)
    assert np.sqrt(np.mean(error**2)) <= 0.883
    assert rmse(SVDpp(random_state=0).fit(train_X, train_y), test_X, test_y) > 0.89
    for share in (0.5, 0.9):
        inside = np.mean(error < stats.norm.ppf(0.5 + share / 2) * std)
        assert inside == pytest.approx(share, abs=0.05 if share == 0.5 else 0.02)


def test_newcomers_are_served_nearly_as_well_as_users_of_the_fit(on_movielens):
    train_X, train_y, test_X, test_y, whole = on_movielens
    newcomers = np.unique(np.r_[train_X[:, 0], test_X[:, 0]])[::8]
    new, of_new = (np.isin(X[:, 0], newcomers) for X in (train_X, test_X))
    folded = clone(whole).fit(train_X[~new], train_y[~new])
    folded.fold_in(train_X[new], train_y[new])
    errors = [rmse(model, test_X[of_new], test_y[of_new]) for model in (whole, folded)]
    assert errors[1] < errors[0] + 0.015
    mean, std = folded.predict(test_X[of_new], return_std=True)
    assert np.mean(np.abs(mean - test_y[of_new]) < 1.645 * std) == pytest.approx(0.9, abs=0.02)
