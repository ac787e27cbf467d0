"""The public catalogue, `items`: what it may be, and what the centralised models make of it."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import is_regressor

from fedrecsk import (
    PMF,
    BayesianSVDpp,
    BiasedMF,
    BiasOnly,
    ImplicitALS,
    ImplicitBPR,
    ImplicitLMF,
    Popularity,
    SVDpp,
)
from fedrecsk.datasets import make_interactions, make_ratings

X = np.array([[1, 20], [1, 30], [2, 20], [3, 40]])
y = np.array([4.0, 3.0, 5.0, 1.0])

CENTRALIZED = [
    BayesianSVDpp(8, n_samples=10, random_state=0),
    BiasOnly(),
    Popularity(),
    ImplicitALS(8, random_state=0),
    ImplicitBPR(8, random_state=0),
    ImplicitLMF(8, random_state=0),
    PMF(8, random_state=0),
    BiasedMF(8, random_state=0),
    BiasedMF(8, early_stopping=True, random_state=0),
    SVDpp(8, random_state=0),
]

centralized = pytest.mark.parametrize("model", CENTRALIZED, ids=str)

# One of the catalogues has a fraction on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:.* ids .* have fractions:UserWarning")


# -------------------------------------------------------------------- what it may be


def test_a_catalogue_of_any_kind_in_any_order():
    for items in (
        (40, 10, 30, 20),
        np.array([40.0, 10.0, 30.0, 20.0]),
        pd.Series([40, 10, 30, 20], index=list("abcd"), dtype="Int64"),
        np.array([40, 10, 30, 20], dtype=object),
    ):
        model = BiasOnly(items=items).fit(X, y)
        assert model.item_ids_.tolist() == [10, 20, 30, 40]
        assert model.n_items_ == 4
        np.testing.assert_array_equal(model.predict(X), BiasOnly().fit(X, y).predict(X))


@pytest.mark.parametrize(
    ("items", "error", "message"),
    [
        ([], ValueError, "items is empty; pass None"),
        ([20, 30, 20, 40], ValueError, "items has item 20 more than once; give each id once"),
        ([[20], [30], [40]], ValueError, r"items should be one-dimensional, .* shape \(3, 1\)"),
        (np.array(20), TypeError, r"items should be a list or an array of ids, got array\(20\)"),
        ({20, 30}, TypeError, r"items should be a list or an array of ids, got {20, 30}"),
        ([20, float("nan")], ValueError, "items contain NaN or infinity"),
        ("20", ValueError, "The 'items' parameter of BiasOnly must be an array-like"),
        ([20, 30], ValueError, "X has item 40 that is not in `items`; add"),
        ([30, 10], ValueError, "X has items 20, 40 that are not in `items`"),
        (["20", "30", "40"], ValueError, "item ids of X are numbers and those of `items` are str"),
    ],
    ids=str,
)
def test_bad_catalogues_are_named(items, error, message):
    model = BiasOnly().fit(X, y)
    before = vars(model).copy()
    with pytest.raises(error, match=message):
        model.set_params(items=items).fit(X, y)
    assert vars(model).keys() == before.keys()
    np.testing.assert_array_equal(model.item_ids_, [20, 30, 40])


def test_rows_of_weight_zero_do_not_matter():
    weight = np.array([1.0, 0.0, 1.0, 0.0])
    model = BiasOnly(items=[20, 30]).fit(X, y, sample_weight=weight)
    assert model.item_ids_.tolist() == [20, 30]
    assert model.item_bias_[1] == 0
    assert model.user_ids_.tolist() == [1, 2]


def test_a_warm_start_keeps_its_catalogue():
    model = PMF(2, items=[10, 20, 30, 40], n_epochs=2, warm_start=True, random_state=0)
    model.fit(X, y).set_params(items=pd.Series([40, 30, 20, 10]), n_epochs=4).fit(X, y)
    straight = PMF(2, items=[10, 20, 30, 40], n_epochs=4, random_state=0).fit(X, y)
    np.testing.assert_array_equal(model.item_factors_, straight.item_factors_)
    with pytest.raises(ValueError, match="sample_weight or items have changed since"):
        model.set_params(items=None).fit(X, y)


# ---------------------------------------------------------------- what the models make of it


@pytest.fixture(scope="module")
def data():
    """Ratings, interactions, and ids of items that are not among them."""
    ratings = make_ratings(n_users=100, n_items=60, n_ratings=2000, random_state=0)
    taken = make_interactions(n_users=100, n_items=60, n_interactions=2000, random_state=0)
    return (ratings[0][:, :2], ratings[1]), (taken[:, :2], None), [-1, 40.5, 1000, 1001]


def fitted(model, data):
    (X, y), unrated = data[0] if is_regressor(model) else data[1], data[2]
    items = np.append(np.unique(X[:, 1])[::-1], unrated)
    return model.fit(X, y), type(model)(**model.get_params() | {"items": items}).fit(X, y), X


@centralized
def test_unrated_items_change_nothing_and_are_nobodys_favourites(model, data):
    alone, model, X = fitted(model, data)
    assert model.n_items_ == alone.n_items_ + 4
    np.testing.assert_array_equal(model.predict(X), alone.predict(X))
    scores = model._model().score_all(np.arange(-1, model.n_users_))
    unrated = np.isin(model.item_ids_, data[2])
    assert np.isfinite(scores).all()
    assert (np.ptp(scores[:, unrated], axis=1) < 1e-6).all()
    above = (scores[:, ~unrated] > scores[:, unrated].max(axis=1, keepdims=True)).mean(axis=1)
    # Of ratings nothing is known but the mean; of preferences, that nobody has taken them.
    assert above.min() > 0.05
    assert above.mean() > (0.25 if is_regressor(model) else 0.6)
    # Who rates them later is served.
    later = [[-8, item] for item in [*data[2], 777]], [5.0, 1.0, 4.0, 3.0, 2.0]
    items, scores = model.recommend([-8], model.n_items_, interactions=later)
    assert np.isfinite(scores[0, :-4]).all()
    assert not np.isin(data[2], items[0, :-4]).any()
    assert np.isfinite(model.fold_in(*later).predict(later[0])).all()
    # Of other items nothing is learned.
    with pytest.raises(ValueError, match="only item 777"):
        model.fold_in([[-9, 777]], [5])
    newcomer = np.stack([np.full(9, -7), alone.item_ids_[:9]], axis=1)
    folded = [one.fold_in(newcomer, np.arange(9.0)).predict(newcomer) for one in (model, alone)]
    assert folded[0] == pytest.approx(folded[1], rel=1e-5)
