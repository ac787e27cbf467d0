"""ALIE, MinMax and Fang in whole fits; test_forging.py has their formulas."""

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import Federation, LocALS
from fedrecsk.aggregation import NormClipping
from fedrecsk.attacks import ALIE, Fang, MinMax
from fedrecsk.attacks._untargeted import largest_z
from tests.conftest import make_toy
from tests.reference import attacks as reference

pytestmark = pytest.mark.sampled

X, Y = make_toy(n_users=20, n_items=12)
USERS = np.unique(X[:, 0])


@pytest.mark.parametrize(("n_clients", "n_own"), [(50, 12), (51, 5), (20, 4)])
def test_the_deviations_of_alie_are_those_of_the_paper(n_clients, n_own):
    assert largest_z(n_clients, n_own) == pytest.approx(reference.alie_z(n_clients, n_own))


def test_without_enough_clients_for_a_majority_alie_sends_the_mean():
    assert largest_z(2, 1) == 0
    # Half of the clients: every value finds the one supporter that it needs.
    assert largest_z(20, 10) > 1


def test_a_lone_client_sends_the_mean_of_itself():
    for Attack in (ALIE, MinMax, Fang):
        federation = Federation(adversary=Attack(clients=USERS[[3]]), aggregator=NormClipping())
        model = LocALS(4, n_rounds=3, random_state=0, federation=federation)
        honest = clone(model).set_params(federation__adversary=None).fit(X)
        np.testing.assert_allclose(
            model.fit(X).item_factors_, honest.item_factors_, rtol=1e-4, atol=1e-6
        )
