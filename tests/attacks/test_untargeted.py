"""ALIE, MinMax and Fang, compared with their papers' formulas."""

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

X, Y = make_toy(n_users=20, n_items=12)
USERS = np.unique(X[:, 0])
METHODS = {
    "LocALS": LocALS(4, n_rounds=3, random_state=0),
    "FedMF": FedMF(4, n_rounds=3, client_fraction=1.0, random_state=0),
    "RFRec": RFRec(4, n_rounds=3, random_state=0),
    "LightFR": LightFR(
        16, n_rounds=3, client_fraction=1.0, shrinkage=1.0, sparse_shrinkage=0.0, random_state=0
    ),
}
every_method = pytest.mark.parametrize("method", METHODS)
every_attack = pytest.mark.parametrize("attack", [ALIE(z=5.0), MinMax(), Fang()], ids=repr)
SEEN = []


def watching(Attack):
    """The attack, which also writes down what it has seen and forged."""

    class Watching(Attack):
        def _plan(self, view):
            # Before anything goes on training.
            honest = {name: whole_uploads(view, name) for name in view.forms}
            SEEN.append((honest, []))
            return super()._plan(view)

        def _forged(self, view, upload, generator):
            forged = super()._forged(view, upload, generator)
            SEEN[-1][1].append((upload, forged))
            return forged

    return Watching


def whole_uploads(view, name):
    """Honest uploads of one field, with NaN where nothing is sent."""
    whole = np.full((view.n_own, *view.forms[name].shape), np.nan)
    for one, upload in zip(whole, view.uploads, strict=True):
        one[upload[name].rows] = upload[name].change
    return list(whole)


def rounds_of(Attack, method, **parameters):
    SEEN.clear()
    adversary = watching(Attack)(clients=USERS[[1, 4, 9, 16]], **parameters)
    federation = Federation(adversary=adversary)
    model = clone(METHODS[method]).set_params(federation=federation, n_rounds=2)
    model.fit(X, Y)
    return list(SEEN)


@every_method
def test_alie_sends_the_mean_less_some_deviations(method):
    for uploads, forged in rounds_of(ALIE, method, z=1.5):
        for name in uploads:
            mean, deviation = reference.mean_and_deviation(uploads[name])
            for honest, sent in forged:
                expected = (mean - 1.5 * deviation)[honest[name].rows]
                np.testing.assert_allclose(sent[name].change, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("n_clients", "n_own"), [(50, 12), (51, 5), (20, 4)])
def test_the_deviations_of_alie_are_those_of_the_paper(n_clients, n_own):
    assert largest_z(n_clients, n_own) == pytest.approx(reference.alie_z(n_clients, n_own))


def test_without_enough_clients_for_a_majority_alie_sends_the_mean():
    assert largest_z(2, 1) == 0
    # Half of the clients: every value finds the one supporter that it needs.
    assert largest_z(20, 10) > 1


@every_method
@pytest.mark.parametrize("perturbation", ["unit_vector", "std", "sign"])
def test_min_max_goes_as_far_as_honest_uploads_are_from_each_other(method, perturbation):
    n_beyond = 0
    for uploads, forged in rounds_of(MinMax, method, perturbation=perturbation):
        for name in uploads:
            mean, _ = reference.mean_and_deviation(uploads[name])
            for honest, sent in forged:
                rows = honest[name].rows
                expected = reference.min_max(uploads[name], rows, perturbation)
                scale = np.abs(expected).max()
                np.testing.assert_allclose(sent[name].change, expected, atol=1e-6 * scale)
                n_beyond += np.abs(expected - mean[rows]).max() > 1e-3 * scale
    assert n_beyond > 0


@every_method
def test_fang_lies_beyond_the_honest_values_on_the_wrong_side(method):
    for uploads, forged in rounds_of(Fang, method):
        for name in uploads:
            mean, deviation = reference.mean_and_deviation(uploads[name])
            for honest, sent in forged:
                rows = honest[name].rows
                off = (sent[name].change - mean[rows]) * -np.sign(mean[rows])
                slack = 1e-6 * (1 + np.abs(mean[rows]))
                spread = np.where(mean[rows] == 0, 0, deviation[rows])
                assert (off >= 3 * spread - slack).all()
                assert (off <= 4 * spread + slack).all()
                assert (spread > 0).any()


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
