"""What the upload of a client with several users reveals about them."""

import numpy as np
import pytest

from fedrecsk import FCF, FedEASE, FedEB, FedMF, GlobSGD, LocALS, RFRec
from fedrecsk.audit import measure_leak
from fedrecsk.audit._server_view import Reconstruction
from fedrecsk.audit._silos import Silo, auc_of_membership
from tests.conftest import make_toy


def few_users_each(n_silos, n_each, n_own=4, n_common=6):
    """Return rows in which each user has some items that no other user of its silo has."""
    rng = np.random.default_rng(0)
    rows = []
    for user in range(n_silos * n_each):
        first = (user // n_silos) * n_own
        common = n_each * n_own + rng.choice(n_common, 3, replace=False)
        rows += [(user, item) for item in [*range(first, first + n_own), *common]]
    X = np.array(rows)
    return X, X[:, 0] % n_silos


@pytest.mark.parametrize(
    "model",
    [
        LocALS(8, reg_user=0.1),
        LocALS(8, reg_user=0.1, upload="all", local_epochs=2, reg_item=0.0),
        GlobSGD(8, reg_user=0.1),
    ],
    ids=str,
)
def test_users_with_items_of_their_own_are_isolated_in_a_silo(model):
    X, clients = few_users_each(3, 5)
    report = measure_leak(model.set_params(random_state=0), X, clients=clients)
    assert (report.n_clients, report.n_users, report.n_profiles) == (3, 15, 15)
    assert report.items == report.directions == report.interactions == report.membership == 1.0
    if isinstance(model, LocALS):
        assert report.vectors == 1.0
    assert report.chance["membership"] == 0.5
    assert "n_users=15, n_profiles=15" in repr(report)
    assert "not tried: to infer attributes of users" in repr(report)
    assert "Not tried: to infer attributes" in report._repr_html_()


def test_a_masked_sum_over_silos_says_nothing_of_which_silo_it_is():
    X, clients = few_users_each(3, 5)
    model = LocALS(8, reg_user=0.1, upload="all", random_state=0)
    report = measure_leak(model, X, clients=clients, cohort="all")
    assert report.vectors == 0.0
    assert report.membership == 0.5
    assert report.items <= report.chance["items"]
    assert any("sums over several" in one for one in report.not_tried)


def test_pairs_of_a_silo_are_taken_apart_user_by_user():
    X, clients = few_users_each(4, 3)
    report = measure_leak(FedEASE(), X, clients=clients, max_clients=2)
    assert (report.n_clients, report.n_users, report.n_profiles) == (2, 6, 6)
    assert report.vectors == report.interactions == report.items == report.membership == 1.0


@pytest.mark.parametrize("model", [RFRec(4), FedEB(3), FedMF(4), FCF(4)], ids=str)
def test_other_methods_say_what_was_not_tried(model):
    X, y = make_toy(n_users=12, n_items=20, density=0.4)
    model.set_params(random_state=0)
    report = measure_leak(model, X, y, clients=X[:, 0] % 3, n_rounds=2)
    assert report.n_users == 12
    assert 0 <= report.membership <= 1
    if isinstance(model, RFRec | FedEB):
        assert report.items == 1.0
    is_made_for_silos = isinstance(model, RFRec)
    assert any("made for silos" in one for one in report.not_tried) != is_made_for_silos


@pytest.mark.parametrize(
    ("changed", "is_isolating"),
    [
        ({}, True),
        ({"aggregation": "clients"}, False),
        ({"aggregation": "holders"}, False),
        ({"prox": 0.0}, False),
    ],
    ids=str,
)
def test_it_is_said_if_users_were_not_isolated(changed, is_isolating):
    X, clients = few_users_each(2, 3)
    model = LocALS(4, random_state=0, **changed)
    report = measure_leak(model, X, clients=clients)
    assert ("to isolate users" in report.not_tried) != is_isolating
    # What is not tried with one silo is tried with their sum.
    summed = measure_leak(model, X, clients=clients, cohort="all")
    assert "to isolate users" not in summed.not_tried


def test_clients_with_one_user_are_attacked_as_without_clients():
    X, _ = make_toy(n_users=10, n_items=15, density=0.4)
    model = LocALS(3, random_state=0)
    assert repr(measure_leak(model, X, clients=X[:, 0])) == repr(measure_leak(model, X))


def test_a_user_at_two_silos_is_refused_with_the_cure():
    X = np.array([[1, 5], [1, 6], [2, 5]])
    with pytest.raises(ValueError, match="split_users"):
        measure_leak(LocALS(2), X, clients=[1, 2, 2])


def test_membership_is_judged_by_items_pairs_and_isolated_users():
    lists = [np.array(one) for one in ([0, 1], [1, 2], [0, 2], [3])]
    is_member = np.array([True, True, False, False])
    held = Reconstruction(None, np.array([0, 1, 2]))
    # The third could be a user by its items, but not by its pairs, or beside isolated users.
    assert auc_of_membership(Silo(held, []), lists, is_member, 4) == 0.75
    pairs = np.zeros((4, 4), dtype=bool)
    for one in lists[:2]:
        pairs[np.ix_(one, one)] = True
    assert auc_of_membership(Silo(held, [], pairs), lists, is_member, 4) == 1.0
    profiles = [Reconstruction(None, one) for one in lists[:2]]
    assert auc_of_membership(Silo(held, profiles), lists, is_member, 4) == 1.0
    assert auc_of_membership(Silo(held, profiles), lists, np.ones(4, dtype=bool), 4) == 0.5
