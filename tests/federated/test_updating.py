"""`partial_fit` with new rows, and `forget`."""

import copy
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone

from fedrecsk import (
    CoLR,
    FedEASE,
    FedEB,
    Federation,
    FedFast,
    FedItemKNN,
    FedMF,
    FedSpectral,
    LightFR,
    LocALS,
    RFRec,
    RFRecF,
)
from fedrecsk.aggregation import NormClipping
from fedrecsk.attacks import SignFlip
from fedrecsk.base import _item_weights
from fedrecsk.datasets import make_ratings
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.privacy import CKKS, CentralDP, PrivacyBudget, SecAggPlus
from fedrecsk.protocol import blocks
from fedrecsk.simulation.run import Run
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


@pytest.mark.parametrize("Method", [FedMF, RFRecF, CoLR])
def test_who_has_trained_in_no_round_has_nothing_to_go_on_from(Method, monkeypatch):
    """Even if others of the same block have."""
    model = small(Method, client_fraction=0.2).set_params(n_rounds=2)
    scores = []
    for size in (blocks.RATINGS_PER_BLOCK, 1):
        monkeypatch.setattr(blocks, "block_size", lambda *_, size=size: size)
        fitted = clone(model).fit(X[~IS_NEW], y[~IS_NEW])
        for new in (IS_NEW & (X[:, 0] < 35), IS_NEW & (X[:, 0] >= 35)):
            fitted.partial_fit(X[new], y[new], n_rounds=2)
        scores.append(fitted.predict(X))
    np.testing.assert_allclose(*scores, rtol=1e-5, atol=1e-6)


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
    expected = clone(model).fit(rest)
    np.testing.assert_allclose(model.predict(rest), expected.predict(rest), rtol=1e-4, atol=1e-5)


def text(rows):
    """Return rows whose ids are strings; those of new items are longer."""
    return np.array([[f"user {user}", f"{item}{'!' * int(item >= 28)}"] for user, item in rows])


KINDS = {
    "strings": text,
    "lists": lambda rows: text(rows).tolist(),
    "frame": lambda rows: pd.DataFrame(text(rows)),
    "categories": lambda rows: pd.DataFrame(text(rows)).astype("category"),
    "large integers": lambda rows: rows.astype(np.uint64) + np.uint64(2**63),
}


def test_old_rows_that_come_again_are_warned_of():
    model = FedEASE(reg=20.0, warm_start=True).fit(X)
    for rows in np.r_[X, [[0, 30]]], X[: len(X) // 3]:
        with pytest.warns(UserWarning, match="pairs of user and item in X are in the last fit"):
            model.partial_fit(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(np.r_[X[: len(X) // 3], [[1, 30]]]).partial_fit(X[:3])


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
@pytest.mark.parametrize("with_silos", [False, True])
def test_ids_of_every_kind_can_be_updated(kind, with_silos):
    model, silos = FedEASE(reg=20.0, warm_start=True), X[:, 0] % 5 if with_silos else None
    own = [None if silos is None else silos[rows] for rows in (~IS_NEW, IS_NEW)]
    model.fit(kind(X[~IS_NEW]), clients=own[0]).partial_fit(kind(X[IS_NEW]), clients=own[1])
    assert_equal(model, FedEASE(reg=20.0).fit(kind(X), clients=silos))
    # Known users need no clients, whose ids are of another type.
    twice = np.r_[np.arange(len(X)), 0]
    assert_equal(model.partial_fit(kind(X[:1])), FedEASE(reg=20.0).fit(kind(X[twice])))
    gone = np.unique(X[:, 0])[[3, 7]]
    model.forget(pd.DataFrame(kind(np.c_[gone, gone]))[0])
    assert_equal(model, FedEASE(reg=20.0).fit(kind(X[twice][~np.isin(X[twice, 0], gone)])))


def assert_equal(model, expected):
    """Raise unless two models of weights are the same."""
    assert set(model.user_ids_) == set(expected.user_ids_)
    assert model.item_ids_.dtype == expected.item_ids_.dtype
    np.testing.assert_array_equal(model.item_ids_, expected.item_ids_)
    np.testing.assert_allclose(model.item_weights_, expected.item_weights_, rtol=0, atol=1e-6)


def test_new_rows_have_ids_of_the_type_of_the_old_ones():
    model = FedEASE(reg=20.0, warm_start=True).fit(X[~IS_NEW])
    for column, wrong in enumerate(["user ids", "item ids"]):
        rows = pd.DataFrame(X[IS_NEW]).astype({column: str})
        with pytest.raises(ValueError, match=f"{wrong} were numbers in fit and are strings here"):
            model.partial_fit(rows)
    model.partial_fit(X[IS_NEW].astype(float))
    assert_equal(model, FedEASE(reg=20.0).fit(X))
    model = LocALS(4, n_rounds=2, warm_start=True, random_state=0).fit(text(X[~IS_NEW]))
    assert model.partial_fit(text(X[IS_NEW])).predict(text(X)).min() > 0


@by_name
def test_a_silo_gets_new_users(model):
    rows = np.array([[3, 0], [5, 3], [4, 3], [2, 1], [1, 1], [1, 3]])
    model = clone(model).fit(rows, clients=rows[:, 0] % 3).partial_fit([[8, 2]], clients=[2])
    both = np.r_[rows, [[8, 2]]]
    expected = clone(model).fit(both, clients=both[:, 0] % 3)
    np.testing.assert_allclose(model.predict(both), expected.predict(both), atol=1e-6)
    assert model._run.server.state.gram == pytest.approx(expected._run.server.state.gram)


def assert_equal_lists(model, expected, rows):
    """Raise unless two models are the same, of which one may have kept a sparse sum."""
    np.testing.assert_array_equal(model.item_ids_, expected.item_ids_)
    np.testing.assert_allclose(model.predict(rows), expected.predict(rows), atol=1e-6)


def test_a_client_of_several_users_takes_all_of_them_back():
    clients = X[:, 0] // 4
    model = FedEASE(reg=20.0, warm_start=True).fit(X, clients=clients).forget([5])
    rest = X[:, 0] != 5
    assert_equal(model, FedEASE(reg=20.0).fit(X[rest], clients=clients[rest]))
    assert len(model.communication_.client_ids) == 10


def test_a_receipt_lists_what_was_removed():
    rows, clients = np.r_[X, [[3, 99], [50, 1]]], np.r_[X[:, 0] // 4, [0, 30]]
    rest = ~np.isin(rows[:, 0], [3, 50])
    exact, other = (
        method.fit(rows, clients=clients).forget([3, 50])
        for method in (
            FedEASE(reg=20.0, warm_start=True),
            LocALS(4, n_rounds=3, warm_start=True, random_state=0),
        )
    )
    for model, is_exact, n_withdrawn in ((exact, True, 2), (other, False, 0)):
        receipt, ledger = model.forgotten_, model.communication_
        assert (receipt.n_users, receipt.n_rows, receipt.n_items) == (2, (~rest).sum(), 1)
        assert (receipt.n_clients, receipt.n_withdrawn) == (2, n_withdrawn)
        assert (receipt.bytes_up, receipt.bytes_down) == (ledger.bytes_up, ledger.bytes_down)
        assert receipt.is_exact is is_exact
        assert receipt.n_rounds == model.n_rounds_
        assert "2 users by " in str(receipt)
    assert "2 uploads withdrawn" in str(exact.forgotten_)
    assert "not equal to a new fit" in str(other.forgotten_)
    assert exact.forgotten_ == pickle.loads(pickle.dumps(exact)).forgotten_
    assert_equal(exact, FedEASE(reg=20.0).fit(rows[rest], clients=clients[rest]))
    assert not hasattr(exact.partial_fit([[0, 1]], clients=[0]), "forgotten_")


@pytest.mark.parametrize("many", [9, 30, 10**6], ids=["sparse", "sparse to dense", "dense"])
def test_items_that_only_the_forgotten_had_go_with_them(many, monkeypatch):
    monkeypatch.setattr(_item_weights, "MANY_ITEMS", many)
    method = FedItemKNN(5, warm_start=True)
    gone, rest = (X[:, 0] == 3) | (X[:, 1] == 11), X[(X[:, 0] != 3) & (X[:, 1] != 11)]
    rows = np.r_[rest, X[gone & (X[:, 0] == 3)], [[3, 11]]]
    model = clone(method).fit(rows).forget([3])
    assert 11 not in model.item_ids_
    assert_equal_lists(model, clone(method).fit(rest), rest)
    # A public catalogue stays, and so do the columns of a matrix.
    model = clone(method).set_params(items=range(31)).fit(rows).forget([3])
    assert_equal_lists(model, clone(method).set_params(items=range(31)).fit(rest), rest)
    matrix = sparse.coo_array((np.ones(len(rows)), tuple(rows.T)), shape=(40, 31))
    matrix.sum_duplicates()
    model = clone(method).fit(matrix).forget([3])
    assert model.item_ids_.tolist() == list(range(31))


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


def test_factors_that_the_old_rows_did_not_need_can_be_learned():
    """They are 0 after a fit to few rows, and would have no gradient."""
    before, now = (small(FedEB, n_rounds=n).fit(X, y)._run.server for n in (5, 1))
    dead = replace(before.state.items, now=np.zeros_like(before.state.items.now))
    state = replace(before.state, items=dead)
    after = before.algorithm.resume(now.state, state, np.arange(len(state.n_ratings)))
    np.testing.assert_array_equal(after.items.now, now.state.items.now)
    np.testing.assert_array_equal(after.items.average, before.state.items.average)
    assert (after.items.now[:, 1:] != 0).all()
    assert after.scales is now.state.scales
    assert after.n_steps == 5


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
    title = "a title"
    items = X[:, 1].astype("U7")
    items[np.flatnonzero(X[:, 0] == 3)[0]] = title
    table = np.column_stack([users, items]).astype(object)
    model = small(Method, n_rounds=2).fit(table, y)
    texts = [one.encode("utf-32-le") for one in (name, title)]
    assert all(one in pickle.dumps(model) for one in texts)
    model.forget([name])
    assert not any(one in pickle.dumps(model) for one in texts)
    assert name not in model.user_ids_
    assert len(model.user_ids_) == 39
    assert len(model.item_ids_) == 30
    assert np.isfinite(model.predict(table)).all()


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
    ("settings", "what"),
    [
        ({"federation": Federation(dropout=0.5)}, "dropout"),
        ({"federation": Federation(aggregator=NormClipping())}, "aggregator"),
        ({"federation": Federation(adversary=SignFlip())}, "adversary"),
        ({"federation": Federation(secure_aggregation=SecAggPlus())}, "SecAggPlus"),
        ({"early_stopping": True, "n_rounds": 3, "client_fraction": 0.4}, "early_stopping"),
    ],
    ids=["dropout", "aggregator", "adversary", "masks", "early stopping"],
)
def test_what_cannot_be_taken_back_stays(settings, what):
    model = FedEASE(reg=20.0, warm_start=True, random_state=0, **settings).fit(X)
    before = {name: copy.deepcopy(value) for name, value in vars(model).items() if name[-1] == "_"}
    calls = (
        lambda: model.forget([0]),
        lambda: model.forget(range(10)),
        lambda: model.partial_fit([[0, 1], [50, 1], [51, 1], [52, 31]]),
    )
    for call in calls:
        with pytest.raises(ValueError, match=f"withdraw uploads sent under {what}, .*clone"):
            call()
    assert vars(model)["communication_"] == before["communication_"]
    for name in ("user_ids_", "item_ids_", "item_weights_"):
        np.testing.assert_array_equal(getattr(model, name), before[name])
    # It goes on, and the cure is one.
    assert model.fit(X).communication_ == before["communication_"]
    rest = X[X[:, 0] != 0]
    assert 0 not in clone(model).fit(rest).user_ids_


@pytest.mark.parametrize("audit", [3, "all"])
def test_ciphertexts_are_taken_back(audit):
    """The server learns nothing from them, however few they are."""
    encrypted = Federation(secure_aggregation=CKKS(audit=audit))
    model = FedEASE(reg=20.0, warm_start=True, random_state=0, federation=encrypted)
    rows = [[0, 1], [50, 1]]
    model.fit(X).forget([3, 4]).partial_fit(rows)
    rest = np.r_[X[~np.isin(X[:, 0], [3, 4])], rows]
    expected = FedEASE(reg=20.0).fit(rest)
    np.testing.assert_array_equal(model.item_ids_, expected.item_ids_)
    np.testing.assert_allclose(model.item_weights_, expected.item_weights_, atol=1e-5)


@pytest.mark.parametrize("call", ["forget", "partial_fit"])
def test_an_update_that_fails_takes_nothing_back(call, monkeypatch):
    def fail(run):
        raise KeyboardInterrupt

    model = FedEASE(reg=20.0, warm_start=True).fit(X)
    update = {
        "forget": lambda: model.forget([3]),
        "partial_fit": lambda: model.partial_fit([[3, 1]]),
    }
    before = model._run.server.state.gram.copy(), copy.deepcopy(model._run.server.ledger)
    with monkeypatch.context() as patch:
        # After clients have taken back uploads.
        patch.setattr(Run, "set_up", fail)
        with pytest.raises(KeyboardInterrupt):
            update[call]()
    assert 3 in model.user_ids_
    np.testing.assert_array_equal(model._run.server.state.gram, before[0])
    assert model._run.server.ledger == before[1]
    update[call]()
    expected = X[X[:, 0] != 3] if call == "forget" else np.r_[X, [[3, 1]]]
    assert_equal(model, FedEASE(reg=20.0).fit(expected))


def test_a_sum_needs_three_clients_after_forgetting_too():
    masked = Federation(secure_aggregation=SecAggPlus())
    few = X[:, 0] < 4
    model = RFRec(2, n_rounds=2, random_state=0, warm_start=True, federation=masked)
    model.fit(X[few], y[few])
    with pytest.raises(ValueError, match="at least 3 clients"):
        model.forget([0, 1])
    assert model.forget([1]).user_ids_.tolist() == [0, 2, 3]


def test_a_public_catalogue_only_grows():
    model = FedEB(2, n_rounds=2, random_state=0, warm_start=True, items=range(31)).fit(X, y)
    with pytest.raises(ValueError, match="`items` lacks item 30 of the last fit"):
        model.set_params(items=range(30)).partial_fit(X[:1], y[:1])
    model.set_params(items=range(40)).partial_fit([[0, 39]], [4.0])
    assert len(model.forget([0]).item_ids_) == 40


def test_errors_say_what_to_do():
    for model, cure in (
        (RFRec().fit(X, y), "set warm_start=True before the first fit"),
        (LightFR(warm_start=True), "LightFR cannot continue from its last model; call fit"),
    ):
        with pytest.raises(AttributeError) as info:
            model.partial_fit  # noqa: B018
        assert cure in str(info.value.__cause__)
    assert not hasattr(FedFast(warm_start=True), "forget")
    model = RFRec(n_rounds=2, warm_start=True, random_state=0).fit(X, y, clients=X[:, 0] // 4)
    changed = pickle.loads(pickle.dumps(model)).set_params(reg_user=3.0)
    for call, message in (
        (lambda: model.partial_fit(X), "requires y"),
        (lambda: model.forget([1, 99]), "user 99; give ids of its users"),
        (lambda: model.forget(np.unique(X[:, 0])), "Cannot forget all users"),
        (lambda: model.forget([1], n_rounds=0), "n_rounds"),
        (lambda: changed.partial_fit(X, y), "continues the last fit, but reg_user has changed"),
        (lambda: model.partial_fit([[1, 2]], [np.nan]), "NaN"),
        (lambda: model.partial_fit([[99, 1]], [3.0]), "User 99 is new, and the last fit was given"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    # Nothing is lost by a refused call.
    assert model.partial_fit([[1, 2]], [3.0]).n_rounds_ == 1


def test_no_ids_are_nothing_to_forget():
    model = LocALS(4, n_rounds=2, warm_start=True, random_state=0).fit(X)
    before = model.predict(X)
    assert np.array_equal(model.forget([]).predict(X), before)


def test_a_mask_is_not_taken_for_ids():
    model = LocALS(4, n_rounds=2, warm_start=True, random_state=0).fit(X)
    with pytest.raises(TypeError, match="in place of a mask, give the ids that it selects"):
        model.forget(model.user_ids_ == 5)
    assert len(model.user_ids_) == 40


def test_what_was_added_is_not_dropped_silently():
    model = FedEASE(20.0, warm_start=True).fit(X).fold_in([[99, 1], [99, 2]])
    with pytest.warns(UserWarning, match="no longer knows user 99 of fold_in"):
        model.forget([3])


def test_large_integers_of_two_types_stay_apart():
    known, others = 2**60 + np.array([1, 2]), np.array([2**63 + 5, 2**63 + 6], dtype=np.uint64)
    rows = np.c_[np.repeat(known, 3), [0, 1, 2, 0, 1, 3]]
    new = np.c_[np.repeat(others, 2), np.array([0, 1, 2, 3], dtype=np.uint64)]
    model = FedEASE(5.0, warm_start=True).fit(rows)
    model.partial_fit(new)
    assert model.user_ids_.tolist() == [*known.tolist(), *others.tolist()]


@pytest.mark.parametrize("Method", [FedMF, CoLR])
def test_an_update_without_uploads_keeps_what_was_learned(Method):
    losing = Federation(dropout=0.99)
    model = Method(n_rounds=3, warm_start=True, random_state=0, federation=losing).fit(X)
    before = model.item_factors_.copy()
    model.partial_fit(X[:3], n_rounds=1)
    assert model.communication_.entries[-2]["messages_up"] == 0
    assert np.corrcoef(model.item_factors_.ravel(), before.ravel())[0, 1] > 0.9
