"""What a fit draws, said again for the naive references; and federations to compare them in."""

import numpy as np

from fedrecsk import Federation
from fedrecsk.aggregation import NormClipping
from fedrecsk.protocol.keys import Key
from tests.conftest import BLOCK_SIZES

# Nothing is that long; but single uploads are looked at.
IDLE = NormClipping(1e9)
SETTINGS = [
    {"federation": Federation(dropout=0.4)},
    {"federation": Federation(dropout=0.4, dropout_mode="stale")},
    {"federation": Federation(dropout=0.4, dropout_mode="offline")},
    {"client_fraction": 0.4},
    {"client_fraction": 0.4, "federation": Federation(sampling="rotating", dropout=0.3)},
    {"federation": Federation(aggregator=IDLE)},
    {"federation": Federation(aggregator=IDLE, dropout=0.4, dropout_mode="stale")},
    {"client_fraction": 0.4, "federation": Federation(aggregator=IDLE, dropout=0.3)},
]
# Those without an aggregator.
PLAIN_SETTINGS = SETTINGS[:5]


def crossed(parameters, settings, n=3):
    """Return each of the parameters with n settings; every setting has its turn."""
    return [
        (one, settings[(n * place + k) % len(settings)])
        for place, one in enumerate(parameters)
        for k in range(n)
    ]


def key_of(model):
    return Key(int(np.random.RandomState(model.random_state).randint(2**31 - 1)))


def spans_of(data):
    """The slice of users of each client."""
    return [slice(*data.client_indptr[c : c + 2]) for c in range(data.n_clients)]


def first_items(model, n_items):
    shape = (n_items, model.n_factors)
    return model.INIT_STD * key_of(model).generator("item factors").standard_normal(shape)


def two_fits(X, y, shift=0):
    """Arguments for fits of a client per user, and of groups and single users with weights."""
    weight = np.random.default_rng(3).integers(1, 4, len(y)) / 3
    mixed = np.where(X[:, 0] < 140, X[:, 0] % 4, X[:, 0])
    yield (X, y), {"block_sizes": BLOCK_SIZES}
    yield (X, y - shift), {"block_sizes": BLOCK_SIZES, "clients": mixed, "sample_weight": weight}


def turns_of(model, n_clients):
    """Who receives, trains and delivers in each round."""
    key, sampling = key_of(model), model._plan().sampling
    return [sampling.draw(n_clients, key.at(t))[:3] for t in range(model.n_rounds)]
