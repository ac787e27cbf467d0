"""`fit` of a ranking model takes a sparse matrix of users by items, as implicit does."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from fedrecsk import EASE, BiasOnly, FedEASE, FedMF, LocALS, Popularity
from fedrecsk.base import RankingMixin
from fedrecsk.ensemble import RankingEnsemble
from tests.test_contract import make, one_of_each_kind

N_USERS, N_ITEMS = 15, 11


def make_matrix(kind=sparse.csr_array):
    """Counts, with a row and two columns without entries."""
    rng = np.random.default_rng(0)
    dense = rng.poisson(0.8, (N_USERS, N_ITEMS)).astype(float)
    dense[3], dense[:, 4], dense[:, -1] = 0, 0, 0
    return kind(dense)


def as_rows(matrix):
    """The same as X, y and weights, the naive way."""
    rows = [
        (user, item, count)
        for user, counts in enumerate(matrix.toarray())
        for item, count in enumerate(counts)
        if count
    ]
    users, items, counts = map(np.array, zip(*rows, strict=True))
    return np.column_stack([users, items]), np.sign(counts), np.abs(counts)


@one_of_each_kind
def test_a_matrix_is_its_rows(Estimator):
    model, matrix = make(Estimator), make_matrix()
    if not issubclass(Estimator, RankingMixin) or model.__sklearn_tags__().target_tags.required:
        with pytest.raises(TypeError, match=r"sparse matrix.*tocoo"):
            model.fit(matrix)
        return
    X, y, weights = as_rows(matrix)
    expected = make(Estimator).set_params(items=np.arange(N_ITEMS)).fit(X, y, sample_weight=weights)
    model.fit(matrix)
    assert model.item_ids_.tolist() == list(range(N_ITEMS))
    assert 3 not in model.user_ids_
    assert model.n_features_in_ == 2
    theirs, ours = expected.recommend(range(N_USERS), 5), model.recommend(range(N_USERS), 5)
    assert np.array_equal(theirs[0], ours[0])
    assert np.allclose(theirs[1][np.isfinite(theirs[1])], ours[1][np.isfinite(ours[1])])


@pytest.mark.parametrize(
    "kind", [sparse.csr_matrix, sparse.coo_array, sparse.csc_array, sparse.lil_matrix]
)
def test_all_kinds_of_matrices(kind):
    expected = EASE(reg=5.0).fit(make_matrix()).item_weights_
    assert np.allclose(EASE(reg=5.0).fit(make_matrix(kind)).item_weights_, expected)
    halves = make_matrix(sparse.coo_array)
    twice = [np.repeat(part, 2) for part in (halves.data / 2, *halves.coords)]
    matrix = sparse.coo_array((twice[0], tuple(twice[1:])), shape=halves.shape)
    assert np.allclose(EASE(reg=5.0).fit(matrix).item_weights_, expected)


def test_clients_are_those_of_the_users():
    clients = np.arange(N_USERS) % 4
    X, y, weights = as_rows(make_matrix())
    ours = LocALS(2, n_rounds=3, random_state=0).fit(make_matrix(), clients=clients)
    theirs = LocALS(2, n_rounds=3, random_state=0, items=np.arange(N_ITEMS))
    theirs.fit(X, y, clients=clients[X[:, 0]], sample_weight=weights)
    assert np.array_equal(ours.item_factors_, theirs.item_factors_)
    with pytest.raises(ValueError, match=r"clients has shape \(3,\).*15 rows"):
        LocALS().fit(make_matrix(), clients=[1, 2, 3])


def test_a_given_catalogue_is_kept_and_updates_work():
    matrix = make_matrix()
    model = FedEASE(reg=5.0, warm_start=True, items=np.arange(20)).fit(matrix)
    assert model.n_items_ == 20
    more = np.array([[3, 4], [99, 0]])
    model = FedEASE(reg=5.0, warm_start=True).fit(matrix).partial_fit(more)
    X, y, weights = as_rows(matrix)
    refitted = FedEASE(reg=5.0, items=np.arange(N_ITEMS)).fit(
        np.concatenate([X, more]), np.append(y, [1, 1]), sample_weight=np.append(weights, [1, 1])
    )
    assert np.allclose(model.item_weights_, refitted.item_weights_, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"y": np.ones(15)}, TypeError, "sparse matrix"),
        ({"sample_weight": np.ones(15)}, TypeError, "its entries are the weights"),
        ({"X": make_matrix() * np.nan}, ValueError, "NaN or infinite"),
        ({"X": make_matrix() * 0}, ValueError, "no non-zero entries"),
        ({"X": make_matrix() * 1j}, TypeError, "dtype complex"),
        ({"X": -make_matrix()}, ValueError, "no positives"),
    ],
)
def test_wrong_matrices(change, error, message):
    with pytest.raises(error, match=message):
        EASE().fit(**({"X": make_matrix()} | change))


@pytest.mark.parametrize("model", [FedMF(2, n_rounds=2, random_state=0), FedEASE(), Popularity()])
def test_a_negative_entry_is_a_row_that_is_not_a_positive(model):
    matrix = make_matrix()
    matrix.data[::3] *= -1
    X, y, weights = as_rows(matrix)
    rows = clone(model).set_params(items=np.arange(N_ITEMS)).fit(X, y, sample_weight=weights)
    assert np.allclose(clone(model).fit(matrix).predict(X), rows.predict(X))


def test_only_fit_takes_a_matrix_of_which_negative_entries_are_seen_and_not_liked():
    matrix = sparse.csr_array(np.array([[1.0, -2.0, 0, 0], [1, 0, 1, 0], [0, 1, 1, 1]]))
    model = Popularity().fit(matrix)
    assert model.item_popularity_.tolist() == pytest.approx([2 / 3, 1 / 3, 2 / 3, 1 / 3])
    assert set(model.recommend([0], 4)[0][0].tolist()) == {2, 3, -1}
    for use in (model.predict, model.fold_in, BiasOnly().fit):
        with pytest.raises(TypeError, match="Only fit of a ranking model takes M itself"):
            use(matrix)
    ensemble = RankingEnsemble([("ease", EASE(reg=5.0)), ("popularity", Popularity())]).fit(matrix)
    assert all(part.n_items_ == 4 for part in ensemble.estimators_)
