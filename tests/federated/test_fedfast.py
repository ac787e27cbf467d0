"""FedFast: its reference, what its page claims, its leak, and cohorts chosen by a method."""

from collections import Counter

import numpy as np
import pytest
from sklearn.base import clone

from benchmarks._variants import variant
from fedrecsk import Federation, FedFast
from fedrecsk.aggregation import NormClipping
from fedrecsk.data import _checks
from fedrecsk.data.interactions import encode
from fedrecsk.federated.papers.fedfast import FedFastServer
from fedrecsk.privacy import CKKS
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.participation import Sampling
from tests.conftest import BLOCK_SIZES, fits_in_blocks
from tests.federated.test_colr import clients_of
from tests.federated.turns import SETTINGS, crossed, first_items, key_of, two_fits
from tests.reference import fedfast as reference

PLAIN = {"sampling": "federation", "aggregation": "visits", "discount": None}


pytestmark = pytest.mark.usefixtures("float64")


def make(**parameters):
    """Small, with half of the clients in a round and clusters that change on the way."""
    defaults = {
        "n_factors": 5,
        "n_rounds": 4,
        "n_negatives": 2,
        "batch_size": 7,
        "reg": 0.01,
        "INIT_STD": 0.5,
        "client_fraction": 0.5,
        "n_clusters": 3,
        "cluster_every": 2,
        "random_state": 0,
    }
    return variant(FedFast, **defaults | parameters)


def first_vectors(model, n_clients):
    shape = (n_clients, model.n_factors)
    return model.INIT_STD * key_of(model).generator("client vectors").standard_normal(shape)


def server_of(**known):
    """A server that knows clients alone."""
    return FedFastServer(None, None, None, **known)


def turn_of(model, n, key):
    """The round's participation as a function of the clusters."""
    federation = model.federation or Federation()
    if model.sampling == "federation":
        turn = model._plan().sampling.draw(n, key)
        return lambda clusters: turn[:3]
    chance, offset = key.hashed("cohort", np.arange(n)), int(n * key.uniform("first of the cohort"))
    size = model._plan().sampling.cohort_size(n)

    def chosen(clusters):
        cohort = reference.cohort_of(clusters, size, chance, offset)
        return Sampling.of(federation, 1.0).draw(n, key, cohort)[:3]

    return chosen


def assert_equals_reference(model, X, y=None, block_sizes=BLOCK_SIZES[:1], **fit_params):
    data, key = encode(X, y, **fit_params), key_of(model)
    clients, n = clients_of(model, data), data.n_clients
    for client in clients:
        client.users[:] = 0
    keys = [key.at(t) for t in range(model.n_rounds)]
    rounds = [(turn_of(model, n, k), k.hashed("visit", np.arange(n))) for k in keys]
    start = first_items(model, data.n_items), first_vectors(model, n)
    items, vectors = reference.run(
        model, clients, *start, rounds, lambda t: int(key.at(t).hashed("clusters") >> np.uint64(32))
    )
    users = reference.final_users(model, clients, items, vectors, Key(0).hashed("personal"))
    for fitted in fits_in_blocks(model, X, y, block_sizes=block_sizes, **fit_params):
        np.testing.assert_allclose(fitted.item_factors_, items, atol=1e-9)
        np.testing.assert_allclose(fitted.user_factors_, users, atol=1e-9)
        assert np.abs(items - start[0]).max() > 1e-3


PARAMETERS = [
    {},
    {"discount": 0.0, "cluster_every": 1},
    {"discount": None, "aggregation": "data_size"},
    {"sampling": "federation", "aggregation": "visits"},
    PLAIN,
    {"loss": "squared", "learning_rate": 0.1, "n_clusters": 1},
    {"client_fraction": 1.0, "FINAL_EPOCHS": 2},
    {"n_clusters": 99, "client_fraction": 0.1},
]


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_equals_the_naive_reference(parameters, toy):
    for arguments, options in two_fits(*toy, shift=2):
        assert_equals_reference(make(**parameters), *arguments, **options)


@pytest.mark.parametrize(("parameters", "setting"), crossed(PARAMETERS, SETTINGS[:3], 1))
def test_equals_the_naive_reference_in_any_federation(parameters, setting, toy):
    X, y = toy
    model = make(**parameters, **setting)
    assert_equals_reference(clone(model), X, y)
    assert_equals_reference(clone(model), X, y, clients=X[:, 0] % 5)


# ----------------------------------------------------------------- what the page claims


def test_a_cohort_has_of_each_cluster_its_share():
    algorithm, n, size = make(n_clusters=4)._algorithm(), 1000, 60
    clusters = np.random.default_rng(0).choice(4, n, p=[0.5, 0.3, 0.15, 0.05])
    server, share = server_of(clusters=clusters), np.bincount(clusters) * size / n
    drawn = np.zeros(n)
    for t in range(400):
        cohort = algorithm.choose(server, n, size, Key(3, t))
        assert cohort.sum() == size
        assert np.abs(np.bincount(clusters[cohort], minlength=4) - share).max() < 1
        drawn += cohort
    # Everybody is as likely as everybody else: binomial, five standard deviations.
    assert np.abs(drawn - 400 * 0.06).max() < 5 * np.sqrt(400 * 0.06 * 0.94)


def test_the_ledger_counts_a_vector_both_ways_and_visited_rows_up(toy):
    X, _ = toy
    n, m, d = 12, 9, 5
    model = make(client_fraction=1.0, n_negatives=0, n_rounds=2).fit(X)
    for entry in (e for e in model.communication_.entries if e["phase"] == "round"):
        assert entry["bytes_down"] == n * 4 * (m * d + d)
        assert entry["bytes_up"] == len(X) * 4 * (d + 1) + n * 4 * d
    plain = make(**PLAIN, client_fraction=1.0, n_rounds=1).fit(X).communication_
    (entry,) = [e for e in plain.entries if e["phase"] == "round"]
    assert entry["bytes_up"] == n * (4 * m * d + m + 4 * d)


def test_a_client_that_diverges_goes_back_to_where_it_began(toy, monkeypatch):
    monkeypatch.setattr(_checks, "LARGEST", np.inf)
    X, _ = toy
    weight = np.where(X[:, 0] == X[0, 0], 1e-300, 1.0)
    huge = np.where(X[:, 0] == X[0, 0], 1e200, 3.0)
    model = make(client_fraction=1.0, loss="squared", learning_rate=0.1, discount=None)
    with np.errstate(over="ignore", invalid="ignore"):
        model.fit(X, huge, sample_weight=weight)
    rejected = sum(e["rejected"] for e in model.communication_.entries)
    assert rejected == model.n_rounds
    code = model.user_ids_.tolist().index(X[0, 0])
    np.testing.assert_array_equal(model.user_factors_[code], first_vectors(model, 12)[code])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"federation": Federation(aggregator=NormClipping())},
            "the aggregator would have no effect; set aggregator=None, or aggregation='visits' and",
        ),
        ({"federation": Federation(secure_aggregation=CKKS())}, "set secure_aggregation=None"),
    ],
)
def test_bad_settings_are_named(parameters, message, toy):
    with pytest.raises(ValueError, match=message):
        make(**parameters).fit(toy[0])


def test_plain_averaging_takes_an_aggregator(toy):
    X, _ = toy
    free, loose, tight = (
        make(**PLAIN, federation=Federation(aggregator=a)).fit(X).item_factors_
        for a in (None, NormClipping(1e6), NormClipping(1e-3))
    )
    np.testing.assert_allclose(free, loose, atol=1e-12)
    assert np.abs(free - tight).max() > 1e-3


def test_equal_vectors_make_fewer_clusters(toy, recwarn):
    server = server_of(vectors=np.array([[0.0, 1.0]] * 3 + [[2.0, 1.0]]))
    clusters = make(n_clusters=5)._algorithm().with_clusters(server, Key(0)).clusters
    assert Counter(clusters.tolist()).most_common(1)[0][1] == 3
    assert not recwarn
