"""Items' features: reading them, and the prior that they are."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse

from fedrecsk import FedEASE
from fedrecsk.base import _item_prior
from fedrecsk.base._item_prior import ItemPrior, Regression
from fedrecsk.data.item_features import aligned
from tests.reference import item_prior as reference


def problem(n_items=40, n_features=6, seed=0):
    rng = np.random.default_rng(seed)
    features = (rng.random((n_items, n_features)) < 0.4).astype(float)
    features[:, 0] = rng.normal(1990, 10, n_items)
    vectors = features[:, 1:4] @ rng.normal(size=(3, 3)) + rng.normal(size=(n_items, 3)) + 2
    vectors[:, 2] = rng.normal(size=n_items)
    n_ratings = rng.integers(0, 50, n_items)
    n_ratings[:4] = 0
    return features, vectors, n_ratings


def scaled(features):
    wide = np.abs(features).max(axis=0) > 1
    spread = np.where(wide, 2 * features.std(axis=0), 1)
    return (features - np.where(wide, features.mean(axis=0), 0)) / spread


# --------------------------------------------------------------------------- the prior


@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
def test_means_equal_the_naive_reference(convert):
    features, vectors, n_ratings = problem()
    features[:, 0] = np.abs(features[:, 0] - 1990) / 100  # sparse columns are not shifted
    prior = ItemPrior(convert(features), n_ratings)
    new = np.vstack([features[:2], np.eye(6)])
    expected = reference.means(features, n_ratings / (n_ratings + 20), vectors, features)
    np.testing.assert_allclose(prior.means(vectors), expected, rtol=1e-8)
    typical = n_ratings[n_ratings > 0].mean()
    expected = reference.means(features, n_ratings / (n_ratings + 10 * typical), vectors, new)
    np.testing.assert_allclose(prior.predicted(vectors, convert(new)), expected, rtol=1e-8)


def test_years_count_as_if_standardised():
    features, vectors, n_ratings = problem()
    prior, design = ItemPrior(features, n_ratings), scaled(features)
    expected = reference.means(design, n_ratings / (n_ratings + 20), vectors, design)
    np.testing.assert_allclose(prior.means(vectors), expected, rtol=1e-7)
    other = features.copy()
    other[:, 0] = 3 * features[:, 0] - 500
    again = ItemPrior(other, n_ratings).means(vectors)
    np.testing.assert_allclose(again, expected, rtol=1e-7)
    # Constant columns change nothing, and copies of others little.
    constant = np.column_stack([features, np.ones(len(features)), np.full(len(features), 7.0)])
    np.testing.assert_allclose(ItemPrior(constant, n_ratings).means(vectors), expected, rtol=1e-6)
    twice = np.column_stack([features, features[:, 3]])
    np.testing.assert_allclose(ItemPrior(twice, n_ratings).means(vectors), expected, atol=0.5)


@pytest.mark.parametrize("n_rated", [0, 1, 2])
def test_few_or_no_rated_items(n_rated):
    features, vectors, _ = problem()
    weights = np.zeros(len(features))
    weights[:n_rated] = 1
    found = Regression(features, weights).means(vectors)
    assert np.isfinite(found).all()
    if n_rated < 2:
        expected = vectors[:n_rated].sum(axis=0)
        np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape))


def test_many_sparse_columns_keep_the_leading_directions(monkeypatch):
    monkeypatch.setattr(_item_prior, "RANK", 20)
    rng = np.random.default_rng(0)
    topics = rng.integers(0, 5, 200)
    words = rng.random((200, 300)) < 0.01 + 0.2 * (np.arange(300) % 5 == topics[:, None])
    vectors = np.eye(5)[topics]
    weights = np.ones(200)
    weights[:40] = 0
    prior = Regression(sparse.csr_array(words.astype(float)), weights)
    assert len(prior._directions[1]) == 20
    found = prior.means(np.where(weights[:, None] > 0, vectors, 99.0))
    assert (found[:40].argmax(axis=1) == topics[:40]).mean() > 0.95
    dense = Regression(words.astype(float), weights)
    np.testing.assert_allclose(dense.means(vectors), found, atol=1e-6)


def test_filled_keeps_what_is_known():
    features, vectors, n_ratings = problem()
    prior = ItemPrior(features, n_ratings)
    filled = prior.filled(vectors.astype(np.float32))
    assert filled.dtype == np.float32
    np.testing.assert_array_equal(filled[n_ratings > 0], vectors.astype(np.float32)[n_ratings > 0])
    np.testing.assert_allclose(filled[:4], prior.predicted(vectors, features[:4]), rtol=1e-5)


# ------------------------------------------------------------------------- reading

FRAME = pd.DataFrame({"crime": [0, 1, 1], "year": [1990, 2001, 1985]}, index=["c", "a", "b"])


def test_ids_of_a_polars_frame_are_its_first_column():
    frame = pl.DataFrame(FRAME.reset_index(names="movie").to_dict("list"))
    np.testing.assert_array_equal(aligned(frame, None), aligned(FRAME, None))
    X = [["ann", "a"], ["ann", "b"], ["bob", "c"], ["bob", "a"]]
    new = pd.DataFrame({"crime": [1], "year": [1999]}, index=["d"])
    theirs = FedEASE(item_features=FRAME).fit(X).add_items(new)
    pairs = [*X, ["ann", "d"]]
    for added in (new, pl.DataFrame(new.reset_index(names="movie").to_dict("list"))):
        ours = FedEASE(item_features=frame).fit(X).add_items(added)
        np.testing.assert_array_equal(ours.predict(pairs), theirs.predict(pairs))
    with pytest.raises(ValueError, match="columns"):
        ours.add_items(pl.DataFrame({"movie": ["e"], "year": [2000]}))
    with pytest.raises(ValueError, match="The first column of item_features has item 1 more than"):
        aligned(frame.drop("movie"), ["c", "a", "b"])
    with pytest.raises(ValueError, match="which holds the ids, has numbers, and items has str"):
        aligned(frame.select("year"), ["c", "a", "b"])
    with pytest.raises(ValueError, match=r"'crime' of item_features holds .*, not numbers"):
        aligned(frame.with_columns(crime=pl.lit("yes")), None)
    with pytest.raises(ValueError, match="item a has the value nan in the column 'year'"):
        aligned(frame.with_columns(year=pl.Series([1990, None, 1985])), None)
    with pytest.raises(ValueError, match="item_features has no columns"):
        aligned(frame.select("movie"), None)
    with pytest.raises(ValueError, match="has no ids"):
        aligned(frame["year"], None)


def test_rows_come_in_the_order_of_ids():
    expected = [[1, 2001], [1, 1985], [0, 1990]]
    for features, items in (
        (FRAME, None),
        (FRAME, ["b", "c", "a"]),
        (FRAME.to_numpy(), ["c", "a", "b"]),
        (sparse.coo_array(FRAME.to_numpy()), ["c", "a", "b"]),
        (FRAME.astype(pd.SparseDtype(float, 0)), None),
        (FRAME.astype({"crime": bool}), None),
    ):
        rows = aligned(features, items)
        rows = rows.toarray() if sparse.issparse(rows) else rows
        np.testing.assert_array_equal(rows, expected)


BAD = [
    (FRAME.to_numpy(), ["a", "b"], "has 3 rows, but items has 2 ids"),
    (FRAME, ["a", "b", "c", "d"], "The index of item_features, .* lacks item d; give it"),
    (FRAME, ["a", "b"], "has item c, which items does not list"),
    (FRAME.rename(index={"a": "b"}), None, "The index of item_features has item b more than once"),
    (FRAME.replace({2001: np.nan}), None, "item a has the value nan in the column 'year'; fill in"),
    (
        FRAME.astype(float).replace({2001: -1.797e308}),
        None,
        "item a has the value -1.797e.308 in the .*fill in",
    ),
    (sparse.csr_array([[1e16], [0]]), ["a", "b"], "item a has the value 1e.16; fill in"),
    (np.ma.masked_less(FRAME.to_numpy(), 1), ["a", "b", "c"], "has masked values"),
    (FRAME.assign(title=["x", "y", "z"]), None, "column 'title' of item_features holds .*Tfidf"),
    (FRAME.astype({"crime": "category"}), None, "column 'crime' .*get_dummies"),
    (FRAME.iloc[:, :0], None, "no columns"),
]


@pytest.mark.parametrize(("features", "items", "message"), BAD, ids=[m for *_, m in BAD])
def test_bad_features_are_named(features, items, message):
    with pytest.raises(ValueError, match=message):
        aligned(features, items)
