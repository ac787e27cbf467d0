import functools
import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrecsk.data.interactions import encode
from fedrecsk.protocol.blocks import block_size, by_user, cut, of_clients

DATA = st.builds(
    lambda seed, n_users, n_clients: _random_data(seed, n_users, n_clients),
    st.integers(0, 99),
    st.integers(1, 20),
    st.integers(1, 6),
)


def _random_data(seed, n_users, n_clients):
    rng = np.random.default_rng(seed)
    X = np.stack([rng.integers(0, n_users, 60), rng.integers(0, 8, 60)], axis=1)
    client_of_user = rng.integers(0, n_clients, n_users)
    return encode(X, rng.random(60), clients=client_of_user[X[:, 0]])


@given(DATA, st.integers(1, 70), st.integers(0, 9))
def test_blocks_partition_the_clients_with_their_ratings(data, max_ratings, seed):
    groups = np.random.default_rng(seed).integers(0, 3, data.n_clients)
    blocks = cut(data, groups, max_ratings)
    assert sorted(np.concatenate([b.clients for b in blocks])) == list(range(data.n_clients))
    for block in blocks:
        assert len(set(groups[block.clients])) == 1
        assert block.n_clients == 1 or len(block.items) <= max_ratings
        for local, client in enumerate(block.clients):
            mine = slice(*block.rating_indptr[local : local + 2])
            theirs = slice(*data.rating_indptr[client : client + 2])
            assert np.array_equal(block.items[mine], data.items[theirs])
            assert np.array_equal(block.values[mine], data.values[theirs])


@given(DATA)
def test_rows_are_a_clients_distinct_items(data):
    (block,) = cut(data, max_ratings=10**6)
    for c in range(block.n_clients):
        rows = slice(*block.row_indptr[c : c + 2])
        ratings = slice(*block.rating_indptr[c : c + 2])
        assert block.row_items[rows].tolist() == sorted(set(block.items[ratings]))
    assert np.array_equal(block.row_items[block.rows], block.items)


def test_one_group_a_client_gives_one_client_blocks():
    data = _random_data(0, 10, 10)
    blocks = cut(data, np.arange(data.n_clients))
    assert [b.n_clients for b in blocks] == [1] * data.n_clients


class Named(list):
    """An attribute that is no array."""

    @classmethod
    def joined(cls, parts):
        return cls(functools.reduce(operator.iadd, parts, []))


def test_attributes_are_put_together_in_the_order_of_users():
    data = _random_data(1, 12, 4)
    blocks = cut(data, np.arange(data.n_clients)[::-1])
    attributes = by_user(
        [block.users for block in blocks],
        [{"x": 10 * block.users, "names": Named(block.clients.tolist())} for block in blocks],
    )
    assert attributes["x"].tolist() == [10 * user for user in range(data.n_users)]
    assert attributes["names"] == list(range(data.n_clients))[::-1]


@given(DATA, st.integers(0, 9))
def test_a_block_of_some_clients_has_their_ratings_in_their_order(data, seed):
    clients = np.random.default_rng(seed).permutation(data.n_clients)[: 1 + data.n_clients // 2]
    block = of_clients(data, clients)
    theirs = [slice(*data.rating_indptr[c : c + 2]) for c in clients]
    assert np.array_equal(block.items, np.concatenate([data.items[one] for one in theirs]))
    assert np.array_equal(block.clients, clients)
    assert block.n_items == data.n_items


@pytest.mark.parametrize("n_items", [2, 90_000])
def test_blocks_are_few_and_catalogues_never_outweigh_ratings(n_items):
    rng = np.random.default_rng(0)
    X = np.stack([rng.integers(0, 5000, 200_000), rng.integers(0, n_items, 200_000)], axis=1)
    data = encode(X)
    blocks = cut(data)
    assert block_size(data) >= 2**16
    assert len(blocks) <= 64
    assert (len(blocks) - 1) * data.n_items <= len(data.items)
