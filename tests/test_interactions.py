import datetime

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from fedrecsk import EASE
from fedrecsk.data import ids as _ids
from fedrecsk.data.ids import Ids, id_array
from fedrecsk.data.interactions import coded_ids, encode
from fedrecsk.model_selection import UserHoldout, WarmStartKFold
from fedrecsk.preprocessing import IdEncoder, filter_k_core
from tests.conftest import make_toy

ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(1, 5), st.integers(0, 3)),
    min_size=1,
    max_size=40,
).filter(lambda rows: any(weight for *_, weight in rows))


def by_hand(rows):
    """Weighted mean and summed weight of each (user, item), the naive way."""
    merged = {}
    for user, item, y, weight in rows:
        if weight:
            total, mass = merged.get((user, item), (0.0, 0.0))
            merged[user, item] = (total + weight * y, mass + weight)
    return {pair: (total / mass, mass) for pair, (total, mass) in merged.items()}


def as_dict(data):
    users = data.user_ids.values[data.users]
    items = data.item_ids.values[data.items]
    pairs = zip(users, items, data.values, data.weights, strict=True)
    return {(u, i): (y, w) for u, i, y, w in pairs}


@given(ROWS, st.randoms(use_true_random=False))
def test_rows_are_merged_and_their_order_never_matters(rows, random):
    shuffled = random.sample(rows, len(rows))
    results = []
    for table in (np.array(rows), np.array(shuffled)):
        data = encode(table[:, :2], table[:, 2].astype(float), sample_weight=table[:, 3] * 1.0)
        results.append(data)
        merged, expected = as_dict(data), by_hand(rows)
        assert merged.keys() == expected.keys()
        for pair, (y, weight) in expected.items():
            assert merged[pair] == pytest.approx((y, weight))
    assert results[0].fingerprint() == results[1].fingerprint()


def test_rounding_of_merged_rows_does_not_depend_on_their_order():
    rng = np.random.default_rng(0)
    X = np.repeat([(1, 5), (2, 7), (2, 8)], 40, axis=0)
    y, weight = rng.random((2, len(X)))
    first = encode(X, y, sample_weight=weight).fingerprint()
    for _ in range(9):
        order = rng.permutation(len(X))
        assert encode(X[order], y[order], sample_weight=weight[order]).fingerprint() == first


@given(ROWS, st.lists(st.integers(0, 2), min_size=6, max_size=6))
def test_every_client_is_one_run_of_users(rows, client_of_user):
    table = np.array(rows)
    clients = np.array(client_of_user)[table[:, 0]]
    data = encode(table[:, :2], clients=clients, sample_weight=table[:, 3] * 1.0)
    for c, client in enumerate(data.client_ids):
        users = data.user_ids.values[data.client_indptr[c] : data.client_indptr[c + 1]]
        assert len(users)
        assert all(client_of_user[u] == client for u in users)
        assert list(users) == sorted(users)
    assert data.client_indptr[-1] == data.n_users
    assert data.indptr[-1] == len(data.items)
    assert np.all(np.diff(data.indptr) > 0)


def test_take_keeps_the_catalogue():
    X = [[1, 10], [1, 11], [2, 10], [3, 12]]
    data = encode(np.array(X), np.array([1.0, 2.0, 3.0, 4.0]))
    part = data.take(np.array([False, True, False, True]))
    assert as_dict(part) == {(1, 11): (2.0, 1.0), (3, 12): (4.0, 1.0)}
    assert part.n_users == 3
    assert part.n_items == 3
    assert np.diff(part.indptr).tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        ([1, 2, 2], "i"),
        ([1.5, 2, 3], "f"),
        (np.array(["a", "bb"], dtype=object), "U"),
        (pd.Series(["a", "b"]), "U"),
        (np.array([1, 2**63], dtype=np.uint64), "u"),
        ([2**70, 1], "O"),
        ([-1, 2**63], "O"),
        (["12345678901234567890", "12345678901234567891"], "U"),
        ([12345678901234567890, 12345678901234567891], "u"),
        (pd.Series(["b", "a", "b"], dtype="category"), "U"),
        (pd.Series([7, 3, 7], dtype="Int64"), "i"),
    ],
)
def test_ids_of_any_kind_find_themselves(ids, kind):
    array = id_array(ids, "user ids")
    assert array.dtype.kind == kind
    known = Ids(np.unique(array), "user ids")
    assert known.values[known.codes(array)].tolist() == list(ids)
    values, codes = coded_ids(ids, "user ids")
    assert values.dtype == known.values.dtype
    assert_array_equal(values, known.values)
    assert values[codes].tolist() == list(ids)


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (["1", 1], ValueError, "user ids mix strings and numbers"),
        ([1.0, float("nan")], ValueError, "NaN or infinity"),
        ([1, None], ValueError, r"missing values \(None\); drop"),
        (["a", pd.NA], ValueError, r"missing values \(<NA>\)"),
        ([b"a", b"b"], TypeError, "not 'bytes'; decode"),
        ([(1, 2), (1, 3)], ValueError, "one-dimensional"),
        ([1j, 2], TypeError, "not 'complex'; convert"),
        ([datetime.date(2024, 1, 1)], TypeError, "not 'date'; if it is the time.*later column"),
        (pd.to_datetime(["2024-01-01"]), TypeError, "not 'datetime64.*later column"),
        (["a\0", "a"], ValueError, "NUL characters"),
        ([2.0**53, 1.5], ValueError, r"floats of 2\*\*53 or more"),
        (pd.Series([[1], [2]]), TypeError, "must be a string or a number"),
        (pd.Series([1, None], dtype="Int64"), ValueError, "NaN or infinity|missing values"),
        *(
            (pd.Series(["ann", missing, "ann"], dtype=dtype), ValueError, "user ids contain")
            for missing in (None, np.nan)
            for dtype in ("str", "category", object)
        ),
    ],
)
def test_bad_ids_are_named(ids, error, message):
    for read in (id_array, coded_ids):
        with pytest.raises(error, match=message):
            read(ids, "user ids")


def test_a_user_on_two_clients_is_named():
    with pytest.raises(ValueError, match=r"user 5 has rows on clients (a and b|b and a)"):
        encode(np.array([[5, 1], [5, 2], [6, 1]]), clients=["a", "b", "b"])


@given(
    st.lists(st.integers(-50, 50), min_size=1, unique=True),
    st.lists(st.integers(-60, 60) | st.floats(-60, 60), min_size=1),
)
def test_codes_are_positions(known, asked):
    codes = Ids(np.array(known), "ids").codes(np.array(asked))
    assert codes.tolist() == [known.index(one) if one in known else -1 for one in asked]


@pytest.mark.parametrize(
    ("known", "others", "dtype"),
    [
        ([2**62, 3], [5.0], np.int64),
        ([2, 3], [0.5], np.float64),
        (["ann"], ["roberta"], np.dtype("U7")),
        (["roberta"], ["ann"], np.dtype("U7")),
        (np.array([1, 2], dtype=np.int8), [1e12], np.float64),
        ([1, 2], [2**70], object),
        ([1, 2], np.array([], dtype=float), np.int64),
    ],
)
def test_ids_keep_their_type_when_others_follow(known, others, dtype):
    known, others = np.asarray(known), np.asarray(others)
    ids = Ids(known, "user ids").followed_by(others)
    assert ids.values.dtype == dtype
    assert ids.name == "user ids"
    assert ids.values.tolist() == [*known.tolist(), *others.tolist()]


LONG_IDS = st.one_of(
    st.lists(st.integers(-128, 127), min_size=1).map(lambda ids: np.array(ids, dtype=np.int8)),
    st.lists(st.integers(250, 255), min_size=1).map(lambda ids: np.array(ids, dtype=np.uint8)),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1).map(np.array),
    st.lists(st.integers(0, 2**64 - 1), min_size=1).map(lambda ids: np.array(ids, dtype="u8")),
    st.lists(st.floats(-1e15, 1e15), min_size=1).map(np.array),
    st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), min_size=1).map(
        lambda ids: np.array(ids, dtype=str)
    ),
    st.lists(st.text("ab", max_size=20), min_size=1).map(lambda ids: np.array(ids, dtype=str)),
)


@given(LONG_IDS)
def test_distinct_ids_and_their_codes_are_numpys(ids):
    expected_values, expected = np.unique(ids, return_inverse=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_ids, "_MANY_IDS", 1)
        values, codes = coded_ids(ids, "ids")
        assert_array_equal(Ids(values[::2], "ids").codes(ids), np.where(codes % 2, -1, codes // 2))
    assert values.dtype == expected_values.dtype
    assert_array_equal(values, expected_values)
    assert_array_equal(codes, expected)


@pytest.mark.parametrize(("dtype", "limit"), [(np.float16, 2**11), (np.float32, 2**24)])
def test_floats_that_stand_for_several_integers_are_refused(dtype, limit):
    below = np.array([limit - 1, 3, limit - 1], dtype=dtype)
    values, codes = coded_ids(below, "user ids")
    assert values.tolist() == [3, limit - 1]
    assert codes.tolist() == [1, 0, 1]
    above = np.array([limit + 1, 3], dtype=dtype)
    message = rf"user ids are floats of 2\*\*\d+ or more.* {np.dtype(dtype)} .*as integers or str"
    for ids in (above, pd.Series(above), -above):
        with pytest.raises(ValueError, match=message):
            coded_ids(ids, "user ids")
        with pytest.raises(ValueError, match=message):
            id_array(ids, "user ids")
    X = np.column_stack([above, above])
    with pytest.raises(ValueError, match=r"user ids \(column 0 of X\) are floats"):
        encode(X)


@pytest.mark.parametrize("kind", ["i8", "u4"])
def test_big_endian_ids_are_those_of_the_other_order(kind):
    X, y = make_toy()
    other = X.astype(f">{kind}")
    model, expected = EASE(1.0).fit(other, clients=other[:, 0]), EASE(1.0).fit(X)
    assert_array_equal(model.predict(other), expected.predict(X))
    assert_array_equal(model.recommend(other[:3, 0], 2)[0], expected.recommend(X[:3, 0], 2)[0])
    assert model.user_ids_.dtype.isnative
    for splitter in (UserHoldout(random_state=0), WarmStartKFold(3)):
        for ours, theirs in zip(splitter.split(other, y), splitter.split(X, y), strict=True):
            assert_array_equal(ours[1], theirs[1])
    assert_array_equal(filter_k_core(other, k=2), filter_k_core(X, k=2))
    assert_array_equal(IdEncoder().fit_transform(other), IdEncoder().fit_transform(X))
