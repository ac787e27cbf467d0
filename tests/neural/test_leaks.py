"""What an honest but curious server infers from uploads of neural methods."""

import numpy as np
import pytest
from torch import nn

from fedrecsk.audit import measure_leak
from fedrecsk.datasets import make_interactions, make_ratings
from fedrecsk.neural import FederatedModule, FedNCF, FedRAP, GPFedRec, Net, PFedRec

X = make_interactions(n_users=40, n_items=300, n_interactions=600, random_state=0)


class TwoTables(nn.Module):
    def __init__(self, n_users, n_items):
        super().__init__()
        self.user, self.item = nn.Embedding(n_users, 3), nn.Embedding(n_items, 3)
        self.bias = nn.Parameter(0.1 * self.item.weight[:, 0].detach().clone())

    def forward(self, users, items):
        return (self.user(users) * self.item(items)).sum(-1) + self.bias[items]


@pytest.mark.parametrize(
    ("model", "n_rounds"),
    [
        (FedNCF(aggregation="mean", random_state=0), 1),
        (PFedRec(random_state=0), 1),
        (FedRAP(random_state=0), 1),
        (FederatedModule(Net(TwoTables), random_state=0), 2),
    ],
)
def test_one_upload_reveals_the_items(model, n_rounds):
    report = measure_leak(model, X, n_rounds=n_rounds)
    assert report.interactions > 0.97
    assert report.chance["interactions"] < 0.5


def test_a_private_network_hides_the_items_for_some_rounds():
    """Its units turn with the item, so positives and negatives are not along one line."""
    first, later = (measure_leak(GPFedRec(random_state=0), X, n_rounds=n) for n in (1, 8))
    assert first.interactions < 0.75
    assert later.interactions > 0.9


def test_ratings_are_not_inverted_but_items_are():
    Xr, y = make_ratings(40, 60, 500, random_state=0)
    model = FedNCF(loss="squared", random_state=0)
    report = measure_leak(model, Xr, y)
    assert (report.interactions, report.values) == (1.0, 0.0)


def test_what_was_not_trained_in_every_round_was_a_negative():
    """With a single positive per client, most visited items are negatives, redrawn each round."""
    lonely = np.stack([np.arange(40), np.arange(40) % 20], axis=1)
    reports = [
        measure_leak(PFedRec(n_negatives=1, random_state=0), lonely, n_rounds=n) for n in (1, 4)
    ]
    assert reports[0].interactions < reports[1].interactions
