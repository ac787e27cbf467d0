"""What a fit draws, said again for the naive references; and federations to compare them in."""

import numpy as np

from fedrecsk import Federation
from fedrecsk.aggregation import NormClipping
from fedrecsk.protocol.keys import Key, draw_participation

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


def key_of(model):
    return Key(int(np.random.RandomState(model.random_state).randint(2**31 - 1)))


def clients_of_kind(X, kind):
    """Clients who are users, groups of users, or both."""
    groups = X[:, 0] % 4
    both = np.where(X[:, 0] < 140, groups, X[:, 0])
    return {"users": None, "groups": groups, "both": both}[kind]


def turns_of(model, n_clients, **options):
    """Who receives, trains and delivers in each round."""
    key, setting = key_of(model), model.federation or Federation()
    return [
        draw_participation(n_clients, model.client_fraction, setting, key.at(t), **options)[:3]
        for t in range(model.n_rounds)
    ]
