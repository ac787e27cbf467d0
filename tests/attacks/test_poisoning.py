import pickle

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import Federation, FedMF, LocALS, RFRec
from fedrecsk.aggregation import NormClipping
from fedrecsk.attacks import (
    ALIE,
    PIECK,
    PSMU,
    AHum,
    Fang,
    FedRecAttack,
    LabelFlip,
    MinMax,
    PipAttack,
    Promotion,
    RandomDirection,
    RandomUpload,
    SignFlip,
)
from fedrecsk.attacks._untargeted import largest_z
from fedrecsk.data.interactions import encode
from fedrecsk.metrics import exposure
from fedrecsk.protocol.keys import Key
from tests.conftest import make_toy
from tests.reference import attacks as reference

ATTACKS = [
    RandomUpload(),
    SignFlip(),
    RandomDirection(),
    LabelFlip(),
    Promotion(item=1003),
    ALIE(z=5.0),
    MinMax(),
    Fang(),
    PipAttack(item=1003, n_popular=3),
    FedRecAttack(item=1003, public_fraction=0.3, n_best=3),
    AHum(item=1003, n_users=10),
    PIECK(item=1003, n_popular=3),
    PIECK(item=1003, n_popular=3, variant="uea"),
    PSMU(item=1003, n_best=3),
]


@pytest.mark.parametrize("adversary", ATTACKS, ids=str)
def test_every_attack_changes_the_model_is_reproducible_and_goes_on(adversary, toy):
    X, y = toy
    model = RFRec(4, n_rounds=4, random_state=0, federation=Federation())
    model.set_params(federation__adversary=clone(adversary).set_params(fraction=0.25))
    attacked = clone(model).fit(X, y)
    started = clone(model).set_params(n_rounds=2, warm_start=True, n_jobs=2).fit(X, y)
    going_on = pickle.loads(pickle.dumps(started)).set_params(n_rounds=4).fit(X, y)
    assert len(attacked.compromised_clients_) == 3
    for name in ("item_factors_", "user_factors_", "compromised_clients_"):
        np.testing.assert_array_equal(getattr(attacked, name), getattr(going_on, name))
    honest = going_on.set_params(federation__adversary=None, warm_start=False).fit(X, y)
    assert np.abs(attacked.item_factors_ - honest.item_factors_).max() > 1e-6
    assert not hasattr(honest, "compromised_clients_")


def trained_on(adversary, X, y, rates):
    data = encode(X, y)
    return data, adversary.enter(data, rates, Key(0)).data


def test_flipped_ratings_are_mirrored(toy):
    X, y = toy
    bad = X[0, 0]
    data, poisoned = trained_on(LabelFlip(clients=[bad]), X, y, rates=True)
    theirs = data.user_ids.values[data.users] == bad
    np.testing.assert_array_equal(poisoned.values[theirs], 6 - data.values[theirs])
    np.testing.assert_array_equal(poisoned.values[~theirs], data.values[~theirs])
    np.testing.assert_array_equal(poisoned.items, data.items)


def test_flipped_preferences_are_other_items(toy):
    X, _ = toy
    for bad in np.unique(X[:, 0]):
        data, poisoned = trained_on(LabelFlip(clients=[bad]), X, None, rates=False)
        for u, user in enumerate(data.user_ids.values):
            before, after = (
                set(d.items[d.indptr[u] : d.indptr[u + 1]].tolist()) for d in (data, poisoned)
            )
            if user == bad:
                assert not before & after
                assert len(after) == min(len(before), data.n_items - len(before))
            else:
                assert before == after
        assert poisoned.indptr[-1] == len(poisoned.items) == len(poisoned.values)


def test_promoters_all_love_the_item_once(toy):
    X, y = toy
    target = X[0, 1]
    bad = np.unique(X[:, 0])[:4]
    data, poisoned = trained_on(Promotion(item=target, clients=bad), X, y, rates=True)
    code = data.item_ids.codes(np.array([target]))[0]
    for u, user in enumerate(data.user_ids.values):
        rows = slice(poisoned.indptr[u], poisoned.indptr[u + 1])
        assert (np.diff(poisoned.items[rows]) > 0).all()
        of_target = poisoned.values[rows][poisoned.items[rows] == code]
        if user in bad:
            assert of_target.tolist() == [5.0]


def test_exposure_counts_users_without_the_item(toy):
    X, _ = toy
    model = LocALS(2, random_state=0).fit(X)
    item = X[0, 1]
    without = np.setdiff1d(X[:, 0], X[X[:, 1] == item, 0])
    items, _ = model.recommend(without, 1)
    assert exposure(model, item, k=1) == (items == item).mean()
    with pytest.raises(ValueError, match="Item 5 is unknown"):
        exposure(model, 5)
    with pytest.raises(ValueError, match=r"have item .* already"):
        exposure(model, item, X[X[:, 1] == item, 0])


@pytest.mark.parametrize(
    ("adversary", "message"),
    [
        (RandomUpload(1.0), r"'fraction' parameter of RandomUpload must be"),
        (RandomUpload(0), r"'fraction' parameter of RandomUpload must be"),
        (SignFlip(clients=[1, 2]), "names 1, which is not a client of this fit"),
        (SignFlip(clients=100 + 7 * np.arange(12)), "would control all 12 clients"),
        (SignFlip(0.99), "would control all 12 clients"),
        (SignFlip(clients=["107"]), "clients were numbers in fit and are strings here"),
        (SignFlip(clients=[]), "controls no client"),
        (Promotion(item=[1003, 1006]), "not among the items of X"),
        (Fang(nearest=5.0), r"nearest=5.0, farthest=4.0\): nearest must not exceed"),
    ],
)
def test_bad_input_is_named(adversary, message, toy):
    X, _ = toy
    with pytest.raises(ValueError, match=message):
        LocALS(federation=Federation(adversary=adversary)).fit(X)


@pytest.mark.parametrize("Estimator", [FedMF, LocALS])
def test_a_flipper_who_has_everything_keeps_it(Estimator):
    X = np.array([[0, 0], [0, 1], [1, 1], [1, 2], *([3, item] for item in range(4))])
    data, poisoned = trained_on(LabelFlip(clients=[3]), X, None, rates=False)
    np.testing.assert_array_equal(poisoned.items, data.items)
    np.testing.assert_array_equal(poisoned.indptr, data.indptr)
    federation = Federation(adversary=LabelFlip(clients=[3]))
    model = Estimator(2, client_fraction=1.0, random_state=0, federation=federation)
    assert np.isfinite(model.fit(X).predict(X)).all()


# ------------------------------------------------------------ ALIE, MinMax and Fang in whole fits


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
