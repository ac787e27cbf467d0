import warnings

import implicit.utils
import joblib
import numpy as np
import pytest
from implicit.cpu.als import AlternatingLeastSquares
from implicit.cpu.bpr import BayesianPersonalizedRanking
from implicit.cpu.lmf import LogisticMatrixFactorization
from scipy import sparse
from threadpoolctl import threadpool_limits

from fedrecsk import ImplicitALS, ImplicitBPR, ImplicitLMF, Popularity
from tests.conftest import make_toy
from tests.reference import als as reference

LIBRARY = {
    ImplicitALS: AlternatingLeastSquares,
    ImplicitBPR: BayesianPersonalizedRanking,
    ImplicitLMF: LogisticMatrixFactorization,
}

# Where our defaults are not the library's.
AS_THE_LIBRARY = {"reg": 0.01, "item_bias": False}


def plain(Estimator, *arguments, **parameters):
    """The adapter as the library would fit it."""
    ours = AS_THE_LIBRARY if Estimator is ImplicitALS else {}
    return Estimator(*arguments, **ours | parameters)


every_adapter = pytest.mark.parametrize("Estimator", list(LIBRARY))


def by_hand(X, y):
    """The users x items matrix of y, ids sorted."""
    users = np.unique(X[:, 0], return_inverse=True)[1]
    items = np.unique(X[:, 1], return_inverse=True)[1]
    return sparse.csr_matrix((y.astype(np.float32), (users, items)))


def by_the_library(Estimator, matrix=None, **parameters):
    """The library's own model, fitted if there is something to fit."""
    with threadpool_limits(1, "blas"):
        library = LIBRARY[Estimator](num_threads=1, **parameters)
        if matrix is not None:
            library.fit(matrix, show_progress=False)
    return library


def grid(model):
    """All (user, item) pairs of a model, user by user."""
    users = np.repeat(model.user_ids_, model.n_items_)
    return np.stack([users, np.tile(model.item_ids_, model.n_users_)], axis=1)


def all_scores(model):
    return model.predict(grid(model)).reshape(model.n_users_, model.n_items_)


def factors(model):
    names = ("user_factors_", "item_factors_", "user_bias_", "item_bias_")
    return {name: getattr(model, name) for name in names if hasattr(model, name)}


def assert_same_factors(one, other):
    assert factors(one).keys() == factors(other).keys()
    for name, value in factors(one).items():
        np.testing.assert_array_equal(value, getattr(other, name), err_msg=name)


# ----------------------------------------------------------------- the library's own models


@every_adapter
def test_scores_and_lists_are_the_librarys(Estimator):
    X, y = make_toy(60, 40, density=0.2)
    matrix = by_hand(X, y)
    library = by_the_library(Estimator, matrix, factors=7, random_state=3)
    model = plain(Estimator, n_factors=7, random_state=3).fit(X, y)
    expected = library.user_factors @ library.item_factors.T
    assert all_scores(model) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    items, scores = model.recommend(model.user_ids_, 5)
    its, values = library.recommend(np.arange(60), matrix, N=5)
    np.testing.assert_array_equal(items, model.item_ids_[its])
    assert scores == pytest.approx(values, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(("regularization", "exponent"), [(0.5, 0.7), (10.0, 0.0)])
def test_als_is_the_papers(regularization, exponent):
    X, y = make_toy(30, 20, density=0.3)
    y[::5] = -1
    strengths = 3 * np.maximum(by_hand(X, y).toarray().astype(float), 0)
    assert strengths.any(axis=1).all()
    rng = np.random.default_rng(0)
    start = [rng.random((n, 4), dtype=np.float32).astype(float) * 0.01 for n in (30, 20)]
    users, items = reference.als(strengths, *start, regularization, 6, exponent)
    parameters = {"alpha": 3, "reg": regularization, "reg_exponent": exponent, "random_state": 0}
    exact = ImplicitALS(4, solver="cholesky", n_epochs=6, **parameters).fit(X, y)
    assert exact.user_factors_ == pytest.approx(users, rel=1e-3, abs=1e-4)
    assert exact.item_factors_ == pytest.approx(items, rel=1e-3, abs=1e-4)
    assert exact.user_factors_.dtype == exact.item_factors_.dtype == np.float32

    converged = reference.als(strengths, users, items, regularization, 200, exponent)
    best = reference.loss(strengths, *converged, regularization, exponent)
    approximate = ImplicitALS(4, n_epochs=200, **parameters).fit(X, y)
    found = reference.loss(
        strengths, approximate.user_factors_, approximate.item_factors_, regularization, exponent
    )
    assert found == pytest.approx(best, rel=1e-3)


def test_biases_of_als_minimise_what_it_minimises():
    X, y = make_toy(30, 20, density=0.3)
    y[y == 2] = -1
    model = ImplicitALS(3, alpha=2, reg=1, random_state=0).fit(X, y)
    bare = ImplicitALS(3, alpha=2, reg=1, item_bias=False, random_state=0).fit(X, y)
    scores = all_scores(bare)
    strengths = 2 * np.maximum(by_hand(X, y).toarray().astype(float), 0)
    liked = strengths > 0
    likers, weights = liked.any(axis=1), np.where(liked, strengths, 1.0)
    errors = (weights * (liked - scores))[likers].sum(axis=0)
    expected = errors / weights[likers].sum(axis=0)
    assert model.item_bias_ == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert all_scores(model) == pytest.approx(scores + expected, rel=1e-4, abs=1e-6)
    # An item that everybody likes, with so little weight that nothing of 1 + weight is left.
    X = np.column_stack([np.arange(9), np.zeros(9)])
    assert np.isfinite(ImplicitALS(3).fit(X, sample_weight=np.full(9, 1e-20)).item_bias_).all()


@every_adapter
def test_fit_is_quiet_and_minds_the_blas_threads(Estimator, toy, capfd, monkeypatch):
    monkeypatch.setattr(implicit.utils, "_checked_blas_config", False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Estimator(4).fit(*toy)
    assert capfd.readouterr() == ("", "")


# --------------------------------------------------------------------- what a row comes to


@pytest.mark.parametrize("Estimator", [ImplicitALS, ImplicitLMF])
def test_confidence_is_weight_times_y(Estimator, toy):
    X, y = toy
    expected = Estimator(4, random_state=0).fit(X, 2 * y)
    weighted = Estimator(4, random_state=0).fit(X, y, sample_weight=np.full(len(y), 2.0))
    assert_same_factors(weighted, expected)
    assert_same_factors(Estimator(4, random_state=0).fit(np.r_[X, X], np.r_[y, y]), expected)
    assert (all_scores(Estimator(4, random_state=0).fit(X, y)) != all_scores(expected)).any()


@every_adapter
def test_rows_that_are_not_positive_are_seen_and_not_liked(Estimator):
    X, _ = make_toy(30, 12)
    y = np.ones(len(X))
    y[::4] = 0
    y[X[:, 1] == X[0, 1]] = -2
    matrix = by_hand(X, np.maximum(y, 0))
    matrix.eliminate_zeros()
    library = by_the_library(Estimator, matrix, factors=4, random_state=0)
    model = plain(Estimator, 4, random_state=0).fit(X, y)
    expected = library.user_factors @ library.item_factors.T
    disliked = model.item_ids_ == X[0, 1]
    liked = all_scores(model)[:, ~disliked]
    assert liked == pytest.approx(expected[:, ~disliked], rel=1e-5, abs=1e-5)
    assert not model.item_factors_[disliked].any()
    if hasattr(model, "item_bias_"):
        assert model.item_bias_[disliked] == model.item_bias_[~disliked].min()
    user = X[y == 0][0, 0]
    items, _ = model.recommend([user], 1)
    assert not set(items[0]) & set(X[X[:, 0] == user, 1])


def test_fits_without_a_solution_are_errors_that_name_the_culprit(toy):
    model = ImplicitBPR(4, learning_rate=1e15, reg=1e15)
    with pytest.raises(ValueError, match=r"diverged: its factors are infinite .*learning_rate=1e"):
        model.fit(*toy)
    assert not hasattr(model, "user_factors_")
    with pytest.raises(ValueError, match="increasing the regularization"):
        ImplicitALS(solver="cholesky", reg=0).fit(*toy)


# ------------------------------------------------------------------------- unknown users


@every_adapter
def test_a_user_who_likes_nothing_is_like_a_stranger(Estimator, toy):
    X, y = toy
    sour, newcomer = X[0, 0], -5
    y = np.where(X[:, 0] == sour, 0.0, y)
    model = Estimator(4, random_state=0).fit(X, y)
    model.fold_in([[newcomer, X[0, 1]]], [0.0])
    for user in (sour, newcomer):
        scores = [model.predict([[who, item] for item in model.item_ids_]) for who in (user, -1)]
        assert scores[0] == pytest.approx(scores[1], rel=1e-5, abs=1e-6)
    rest = model.user_ids_[(model.user_ids_ != sour) & (model.user_ids_ != newcomer)]
    likers = [model.predict([[user, X[0, 1]]])[0] for user in rest]
    assert model.predict([[sour, X[0, 1]]]) == pytest.approx([np.mean(likers)], rel=1e-5)


# ------------------------------------------------------------------------------- fold_in


def newcomers(toy):
    """Training data and the rows of two users kept out of it."""
    X, y = toy
    out = np.isin(X[:, 0], np.unique(X[:, 0])[[2, 5]])
    return (X[~out], y[~out]), (X[out], y[out])


def test_als_solves_newcomers_exactly(toy):
    training, (X, y) = newcomers(toy)
    model = ImplicitALS(4, reg=2, reg_exponent=0.7, alpha=3, random_state=0).fit(*training)
    n_users = model.n_users_
    model.fold_in(X, y)
    for user, found in zip(model.user_ids_[n_users:], model.user_factors_[n_users:], strict=True):
        strengths = np.zeros(model.n_items_)
        mine = X[:, 0] == user
        strengths[np.searchsorted(model.item_ids_, X[mine, 1])] = 3 * y[mine]
        confidences = np.where(strengths > 0, strengths, 1)
        reg = reference.penalty(confidences, 2, 0.7)
        expected = reference.ridge(model.item_factors_, confidences, strengths > 0, reg)
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_lmf_maximises_the_expected_likelihood_of_newcomers(toy):
    training, (X, y) = newcomers(toy)
    model = ImplicitLMF(4, n_epochs=2000, reg=2, random_state=0).fit(*training)
    n_users, popularity = model.n_users_, np.unique(training[0][:, 1], return_counts=True)[1]
    model.fold_in(X, y)
    vectors = np.column_stack([model.item_factors_, np.ones(model.n_items_)])
    for u in range(n_users, model.n_users_):
        mine = X[:, 0] == model.user_ids_[u]
        user = np.r_[model.user_factors_[u], model.user_bias_[u]]
        likely = 1 / (1 + np.exp(-(vectors @ user + model.item_bias_)))
        liked = np.searchsorted(model.item_ids_, X[mine, 1])
        pull = (y[mine] * (1 - likely[liked])) @ vectors[liked]
        push = 6 * (popularity / popularity.sum() * likely) @ vectors
        assert pull - push == pytest.approx(2 * user, rel=1e-3, abs=1e-3)


# -------------------------------------------------------------------------- real data


def precision(model, X, users, **options):
    """Share of each user's first ten that are in X."""
    items, _ = model.recommend(users, 10, **options)
    held_out = {user: set(X[X[:, 0] == user, 1]) for user in users}
    hits = [held_out[u].intersection(row) for u, row in zip(users, items.tolist(), strict=True)]
    return np.mean([len(hit) for hit in hits]) / 10


@pytest.fixture(scope="module")
def per_user_split(ml100k):
    """Training and test rows: a fifth of each user's, at random."""
    X, _ = ml100k
    order = np.random.default_rng(0).permutation(len(X))
    X = X[order][np.argsort(X[order, 0], kind="stable")]
    _, first, counts = np.unique(X[:, 0], return_index=True, return_counts=True)
    place = np.arange(len(X)) - np.repeat(first, counts)
    test = place < np.repeat(counts // 5, counts)
    return X[~test], X[test]


TUNED = [
    (ImplicitALS(20, alpha=2, reg=10, random_state=0), 0.355, 0.33),
    (ImplicitBPR(random_state=0), 0.215, 0.215),
    (ImplicitLMF(reg=2, random_state=0), 0.27, 0.25),
]


@pytest.mark.parametrize(("model", "known", "new"), TUNED, ids=lambda x: type(x).__name__)
def test_precision_on_movielens(per_user_split, model, known, new):
    training, test = per_user_split
    newcomers = np.unique(test[:, 0])[::5]
    users = np.setdiff1d(test[:, 0], newcomers)
    out = np.isin(training[:, 0], newcomers)
    assert precision(Popularity().fit(training[~out]), test, users) < 0.2
    assert precision(model.fit(training[~out]), test, users) > known
    assert precision(model, test, newcomers, interactions=training[out]) > new


# ------------------------------------------------------------ threads, seeds, callbacks


def test_als_does_not_depend_on_threads():
    X, y = make_toy(300, 60)
    one = ImplicitALS(random_state=0).fit(X, y)
    for n_jobs in (2, 3, -1):
        assert_same_factors(ImplicitALS(n_jobs=n_jobs, random_state=0).fit(X, y), one)


@every_adapter
def test_threads_reach_the_library(Estimator, toy, monkeypatch):
    seen = []
    model = Estimator(4, n_jobs=2)
    make = model._library_model
    monkeypatch.setattr(model, "_library_model", lambda *args: seen.append(make(*args)) or seen[-1])
    model.fit(*toy)
    assert seen[0].num_threads == 2
    assert model.set_params(n_jobs=None).fit(*toy)
    assert seen[1].num_threads == 1


def test_a_model_that_is_mapped_into_memory_takes_newcomers(tmp_path):
    X, y = make_toy()
    model, rows = ImplicitALS(3, random_state=0).fit(X, y), [[999, X[0, 1]], [999, X[1, 1]]]
    joblib.dump(model, tmp_path / "model")
    mapped = joblib.load(tmp_path / "model", mmap_mode="r")
    assert not mapped.item_factors_.flags.writeable
    pairs = [[999, item] for item in model.item_ids_]
    np.testing.assert_array_equal(
        mapped.fold_in(rows).predict(pairs), model.fold_in(rows).predict(pairs)
    )
