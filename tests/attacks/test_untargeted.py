"""ALIE, MinMax and Fang in whole fits; test_forging.py has their formulas."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import Federation, FedMF, LightFR, LocALS, RFRec
from fedrecsk.aggregation import NormClipping
from fedrecsk.attacks import ALIE, Fang, MinMax
from fedrecsk.attacks._untargeted import largest_z
from tests.conftest import make_toy
from tests.reference import attacks as reference


class Unshrunk(LightFR):
    """LightFR that does not shrink users with few rows more."""

    SPARSE_REG = 0.0


pytestmark = pytest.mark.sampled

X, Y = make_toy(n_users=20, n_items=12)
USERS = np.unique(X[:, 0])
METHODS = {
    "LocALS": LocALS(4, n_rounds=3, random_state=0),
    "FedMF": FedMF(4, n_rounds=3, client_fraction=1.0, random_state=0),
    "RFRec": RFRec(4, n_rounds=3, random_state=0),
    "LightFR": Unshrunk(16, n_rounds=3, client_fraction=1.0, reg_user=1.0, random_state=0),
}
every_method = pytest.mark.parametrize("method", METHODS)
every_attack = pytest.mark.parametrize("attack", [ALIE(z=5.0), MinMax(), Fang()], ids=repr)


@pytest.mark.parametrize(("n_clients", "n_own"), [(50, 12), (51, 5), (20, 4)])
def test_the_deviations_of_alie_are_those_of_the_paper(n_clients, n_own):
    assert largest_z(n_clients, n_own) == pytest.approx(reference.alie_z(n_clients, n_own))


def test_without_enough_clients_for_a_majority_alie_sends_the_mean():
    assert largest_z(2, 1) == 0
    # Half of the clients: every value finds the one supporter that it needs.
    assert largest_z(20, 10) > 1


@every_method
@every_attack
def test_attacks_change_the_model_and_are_reproducible(method, attack):
    model = clone(METHODS[method])
    honest = model.fit(X, Y).item_factors_
    model.set_params(federation=Federation(adversary=clone(attack).set_params(fraction=0.25)))
    attacked = clone(model).fit(X, Y).item_factors_
    np.testing.assert_array_equal(
        clone(model).set_params(n_jobs=2).fit(X, Y).item_factors_, attacked
    )
    assert not np.array_equal(attacked, honest)
    started = clone(model).set_params(n_rounds=1, warm_start=True).fit(X, Y)
    going_on = pickle.loads(pickle.dumps(started)).set_params(n_rounds=3).fit(X, Y)
    np.testing.assert_array_equal(going_on.item_factors_, attacked)


def test_a_lone_client_sends_the_mean_of_itself():
    for Attack in (ALIE, MinMax, Fang):
        federation = Federation(adversary=Attack(clients=USERS[[3]]), aggregator=NormClipping())
        model = clone(METHODS["LocALS"]).set_params(federation=federation)
        honest = clone(model).set_params(federation__adversary=None).fit(X)
        np.testing.assert_allclose(
            model.fit(X).item_factors_, honest.item_factors_, rtol=1e-4, atol=1e-6
        )
