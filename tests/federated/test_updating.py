"""`partial_fit` with new rows, and `forget`."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import FedEASE, Federation, FedFast, FedSpectral, LightFR, RFRec
from fedrecsk.aggregation import NormClipping
from fedrecsk.attacks import SignFlip
from fedrecsk.datasets import make_ratings
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.privacy import CentralDP, PrivacyBudget
from tests.listed import THINGS

X, y = make_ratings(n_users=40, n_items=30, n_ratings=500, random_state=0)
X = X[:, :2]
SUMS = [FedEASE(reg=20.0, warm_start=True), FedSpectral(n_factors=8, warm_start=True)]
by_name = pytest.mark.parametrize("model", SUMS, ids=lambda model: type(model).__name__)
# New rows: all of the last five users, all of the last two items, and some of everybody.
IS_NEW = (X[:, 0] >= 35) | (X[:, 1] >= 28) | (np.arange(len(X)) % 10 == 0)

UPDATED = {
    name: Method
    for name, Method in THINGS.items()
    if isinstance(Method, type)
    and issubclass(Method, FederatedRecommender)
    and hasattr(Method(warm_start=True), "partial_fit")
}


def small(Method, **parameters):
    """Return a method of few rounds and factors."""
    has = Method().get_params()
    sizes = {name: 4 for name in ("n_factors", "rank") if name in has}
    sizes["n_rounds"] = 1 if Method in (FedEASE, FedSpectral) else 10
    return Method(**sizes | parameters, random_state=0, warm_start=True)


@by_name
def test_an_updated_sum_is_that_of_a_fit_to_all_rows(model):
    weights = np.random.default_rng(0).random(len(X)) + 0.5
    # A pair that is repeated is merged with its old row.
    new = np.r_[np.flatnonzero(IS_NEW), np.flatnonzero(~IS_NEW)[:3]]
    old = np.flatnonzero(~IS_NEW)
    model = clone(model).fit(X[old], sample_weight=weights[old])
    before = model.predict(X)
    model.partial_fit(X[new], sample_weight=weights[new])
    both = np.r_[old, new]
    expected = clone(model).fit(X[both], sample_weight=weights[both])
    np.testing.assert_allclose(model.predict(X), expected.predict(X), rtol=1e-4, atol=1e-5)
    assert not np.allclose(model.predict(X), before, atol=1e-2)
    assert model.user_ids_.tolist() == expected.user_ids_.tolist()


@by_name
def test_only_clients_with_new_rows_send(model):
    model = clone(model).fit(X[X[:, 0] != 7])
    model.partial_fit(np.r_[X[X[:, 0] == 7], [[5, 29]]])
    entries = {entry["phase"]: entry for entry in model.communication_.entries}
    assert entries["taken back"]["messages_up"] == 1
    assert entries["round"]["messages_up"] == 2
    # Down to everybody: the new model.
    assert entries["final"]["messages_down"] == 40


@by_name
def test_updates_follow_one_another(model):
    first, second = IS_NEW, ~IS_NEW & (np.arange(len(X)) % 3 == 0)
    model = clone(model).fit(X[~first & ~second])
    model.partial_fit(X[first]).forget([1, 2]).partial_fit(X[second]).forget([3])
    gone = np.isin(X[:, 0], [1, 2]) & ~second
    rest = X[~gone & (X[:, 0] != 3)]
    expected = clone(model).set_params(items=np.unique(X[:, 1])).fit(rest)
    np.testing.assert_allclose(model.predict(rest), expected.predict(rest), rtol=1e-4, atol=1e-5)


def test_a_client_of_several_users_takes_all_of_them_back():
    clients = X[:, 0] // 4
    model = FedEASE(reg=20.0, warm_start=True).fit(X, clients=clients).forget([5])
    rest = X[:, 0] != 5
    expected = FedEASE(reg=20.0, items=np.unique(X[:, 1])).fit(X[rest], clients=clients[rest])
    np.testing.assert_allclose(model.predict(X[rest]), expected.predict(X[rest]), atol=1e-5)
    assert len(model.communication_.client_ids) == 10


@pytest.mark.parametrize("Method", UPDATED.values(), ids=list(UPDATED))
def test_it_learns_from_new_rows_users_and_items(Method):
    model = small(Method).fit(X[~IS_NEW], y[~IS_NEW])
    model.partial_fit(X[IS_NEW], y[IS_NEW])
    assert model.user_ids_.tolist() == np.unique(X[:, 0]).tolist()
    assert model.item_ids_.tolist() == np.unique(X[:, 1]).tolist()
    assert model.n_rounds_ == (1 if Method in (FedEASE, FedSpectral) else 2)
    assert np.isfinite(model.predict(X)).all()
    items, _ = model.recommend([38], n_recommendations=5)
    assert not np.isin(items[0], X[X[:, 0] == 38, 1]).any()
    # Again, and as often as there is something new.
    assert model.partial_fit([[0, 29]], [4.0]).n_rounds_ > 0


def test_clients_go_on_with_the_steps_of_their_optimiser():
    method = RFRec(4, n_rounds=8, aggregation="holders", random_state=0, warm_start=True)
    model = clone(method).fit(X, y)
    # A row without weight changes nothing, so these are the next rounds of the fit.
    model.partial_fit(X[:1], y[:1], sample_weight=[0.0], n_rounds=12)
    expected = clone(method).set_params(n_rounds=20).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), expected.predict(X))


@pytest.mark.parametrize("Method", UPDATED.values(), ids=list(UPDATED))
def test_nothing_of_a_forgotten_user_is_left(Method):
    name = "a name that nobody else has"
    users = np.where(X[:, 0] == 3, name, X[:, 0].astype(str))
    table = np.column_stack([users, X[:, 1].astype(str)]).astype(object)
    model = small(Method, n_rounds=2).fit(table, y)
    written = name.encode("utf-32-le")
    assert written in pickle.dumps(model)
    model.forget([name])
    assert written not in pickle.dumps(model)
    assert name not in model.user_ids_
    assert len(model.user_ids_) == 39


def test_a_private_update_is_charged():
    private = Federation(central_dp=CentralDP(clip=0.5, noise_multiplier=4, delta=1e-3))
    public = {"items": range(30), "rating_scale": (1, 5), "aggregation": "clients"}
    model = RFRec(n_rounds=5, federation=private, random_state=0, warm_start=True, **public)
    budget = PrivacyBudget(epsilon=50, delta=1e-3).charge(model.fit(X[~IS_NEW], y[~IS_NEW]))
    spent = budget.spent
    model.partial_fit(X[IS_NEW], y[IS_NEW])
    assert model.privacy_.epsilon > 0
    assert budget.charge(model).spent > spent


@pytest.mark.parametrize(
    ("federation", "what"),
    [
        (Federation(dropout=0.5), "dropout"),
        (Federation(aggregator=NormClipping()), "an aggregator"),
        (Federation(adversary=SignFlip()), "an adversary"),
    ],
    ids=["dropout", "aggregator", "adversary"],
)
def test_what_a_sum_does_not_have_is_not_taken_back(federation, what):
    model = FedEASE(reg=20.0, warm_start=True, federation=federation).fit(X)
    with pytest.raises(ValueError, match=f"cannot take back what they have sent under {what}"):
        model.partial_fit([[0, 1]])
    with pytest.raises(ValueError, match="call fit on all rows"):
        model.forget([0])


def test_errors_say_what_to_do():
    for model, cure in (
        (RFRec().fit(X, y), "set warm_start=True before the first fit"),
        (LightFR(warm_start=True), "LightFR cannot go on from its last model; call fit"),
    ):
        with pytest.raises(AttributeError) as info:
            model.partial_fit  # noqa: B018
        assert cure in str(info.value.__cause__)
    assert not hasattr(FedFast(warm_start=True), "forget")
    model = RFRec(n_rounds=2, warm_start=True, random_state=0).fit(X, y, clients=X[:, 0] // 4)
    changed = pickle.loads(pickle.dumps(model)).set_params(reg_user=3.0)
    for call, message in (
        (lambda: model.partial_fit(X), "requires y"),
        (lambda: model.forget([1, 99]), "user 99; give ids of users that it had"),
        (lambda: model.forget(np.unique(X[:, 0])), "Nobody would be left"),
        (lambda: model.forget([1], n_rounds=0), "n_rounds"),
        (lambda: changed.partial_fit(X, y), "from the last fit, but reg_user has changed"),
        (lambda: model.partial_fit([[1, 2]], [np.nan]), "NaN"),
        (lambda: model.partial_fit([[99, 1]], [3.0]), "User 99 is new, and the last fit was given"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    # Nothing is lost by a refused call.
    assert model.partial_fit([[1, 2]], [3.0]).n_rounds_ == 1
