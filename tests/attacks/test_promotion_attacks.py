"""Attacks that promote an item: their moves, and what becomes of them in each method."""

import copy
import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone

from benchmarks._variants import with_constants
from fedrecsk import (
    FCF,
    ExplicitFCF,
    FedEASE,
    FedEB,
    Federation,
    FedFast,
    FedMF,
    FedRec,
    GlobSGD,
    LightFR,
    LocALS,
    LocSGD,
    PrivFedEB,
    RFRec,
    RFRecF,
    SCoLR,
)
from fedrecsk.attacks import (
    PIECK,
    PSMU,
    AHum,
    FedRecAttack,
    PipAttack,
    Promotion,
    TargetedAdversary,
)
from fedrecsk.attacks._targeted import margin_step, top_k_threshold
from fedrecsk.data.interactions import encode
from fedrecsk.datasets import make_ratings
from fedrecsk.metrics import exposure
from fedrecsk.protocol.keys import Key
from tests.conftest import make_toy
from tests.reference import attacks as reference

X, Y = make_toy(n_users=20, n_items=12)
USERS, ITEMS = np.unique(X[:, 0]), np.unique(X[:, 1])
TARGET = ITEMS[5]
OURS = USERS[[1, 4, 9, 16]]
ATTACKS = [
    PipAttack(n_popular=3),
    FedRecAttack(public_fraction=0.3, n_best=3),
    AHum(n_users=10),
    PIECK(n_popular=3),
    PIECK(n_popular=3, variant="uea"),
    PSMU(n_best=3),
]


class Watched:
    """Mixin that writes down each round's view, honest uploads excepted, and its plan."""

    def _plan(self, view):
        plan = super()._plan(view)
        self.seen.append((copy.copy(view), plan))
        return plan


def rounds_of(attack, method, X=X, y=Y):
    """The views and plans of a fit, and the fitted model."""
    Watching = type("Watching", (Watched, type(attack)), {"seen": []})
    adversary = Watching(**attack.get_params())
    adversary.set_params(item=TARGET, clients=OURS)
    model = clone(method).set_params(federation=Federation(adversary=adversary))
    model.fit(X, y)
    return Watching.seen, model


# ------------------------------------------------------------------------------- the moves


@pytest.mark.parametrize("boost", [0.0, 1.5])
def test_pip_attack_aims_between_popular_items_and_what_its_users_like(boost):
    attack = PipAttack(popular=ITEMS[[0, 7]], boost=boost, strength=1.5)
    seen, _ = rounds_of(attack, LocALS(4, n_rounds=3, random_state=0))
    for view, _ in seen:
        likes = [view.data.items[view.data.users == u] for u in np.unique(view.data.users)]
        assert len(likes) == 4
        goal = reference.pip_attack(view.item_vectors, [0, 7], 5, likes, 1.5, boost)
        rows, moves = attack.set_params(item=TARGET)._moves(view)
        assert rows.tolist() == [5]
        np.testing.assert_allclose(view.item_vectors[5] + moves[0], goal, rtol=1e-6)


def test_the_distance_constraint_bounds_the_length_of_uploads():
    method = LocALS(4, n_rounds=2, random_state=0)
    for distance in (0.5, 1e-3):
        seen, _ = rounds_of(PipAttack(n_popular=3, strength=100, distance=distance), method)
        for view, plan in seen:
            norms = [one.fields["rows"].norms() for one in view.updates]
            bound = distance * np.median(np.concatenate(norms))
            assert np.linalg.norm(plan.changes["rows"]) == pytest.approx(bound)


def test_pieck_finds_the_items_that_move_most():
    seen, _ = rounds_of(PIECK(n_popular=4, n_moves=2), RFRec(4, n_rounds=5, random_state=0))
    broadcasts = []
    for view, plan in seen:
        broadcasts.append(view.item_vectors)
        if len(broadcasts) == 1:
            assert not plan.changes["item_vectors"].any()
            continue
        found = reference.popular_by_moves(broadcasts[:3], 5, 4)
        lengths = np.linalg.norm(view.item_vectors[found], axis=1)
        direction = sum(
            (4 - k) * view.item_vectors[item] / lengths[k] for k, item in enumerate(found)
        )
        goal = lengths.mean() * direction / np.linalg.norm(direction)
        # 20 clients upload, and 4 of them are the adversary's.
        expected = 20 / 4 * (goal - view.item_vectors[5])
        np.testing.assert_allclose(plan.changes["item_vectors"][0], expected, rtol=1e-9)


def test_fed_rec_attack_knows_only_the_public_rows():
    seen, _ = rounds_of(FedRecAttack(public_fraction=0.1), LocALS(4, n_rounds=1, random_state=0))
    indptr, items = seen[0][0].memory["public"]
    honest = ~np.isin(X[:, 0], OURS)
    assert indptr[-1] == len(items) == round(0.1 * honest.sum())
    assert (np.diff(indptr) > 0).all()


def test_raised_items_are_on_the_lists_of_half_of_the_users_they_lacked():
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((30, 5)) + 0.5
    users = generator.standard_normal((40, 5)) + 0.5
    last = top_k_threshold(vectors, users, 3, 10)
    for user, score in zip(users, last, strict=True):
        assert score == pytest.approx(np.sort(np.delete(vectors @ user, 3))[-10], rel=1e-9)
    before = users @ vectors[3] >= last
    after = users @ (1.0001 * margin_step(vectors[3], users, last) + vectors[3]) >= last
    gained = after & ~before
    assert 0.35 <= gained.sum() / (~before).sum() <= 0.65
    np.testing.assert_array_equal(margin_step(10 * users.mean(axis=0), users[:1], last[:1]), 0)


def test_synthetic_users_have_as_many_random_items_and_the_target():
    data = encode(X, Y)
    attack = PSMU(item=TARGET, clients=OURS).enter(data, False, Key(0))
    poisoned = attack.data
    n_moved = 0
    for user in range(20):
        before, after = (set(d.items[d.users == user].tolist()) for d in (data, poisoned))
        if USERS[user] not in OURS:
            assert before == after
            continue
        assert 5 in after
        assert len(after) == len(before | {5})
        n_moved += before != after
    assert n_moved > 0


# ------------------------------------------------------------- what the server makes of them


class Shift(TargetedAdversary):
    """Moves the target by `strength` times a fixed vector."""

    def _moves(self, view):
        width = view.item_vectors.shape[1]
        return np.array([5]), self.strength * SHIFT[None, :width]


class ShiftBack(Shift):
    """The opposite."""

    def _moves(self, view):
        rows, moves = super()._moves(view)
        return rows, -moves


SHIFT = np.array([0.3, -0.2, 0.1, 0.25, -0.15])
PART = {"n_rounds": 1, "random_state": 0, "client_fraction": 1.0}
LINEAR = {
    "RFRec holders": (RFRec(4, aggregation="holders", **PART), 1e-5),
    "RFRecF": (RFRecF(4, **PART | {"n_rounds": 4}), 1e-5),
    "LocALS": (LocALS(4, alpha=0.1, **PART), 0.2),
    "LocALS all": (LocALS(4, aggregation="clients", **PART), 1e-5),
    "LocALS holders": (LocALS(4, aggregation="holders", **PART), 0.25),
    "LocSGD": (LocSGD(4, **PART), 1e-4),
    "GlobSGD": (GlobSGD(4, learning_rate=0.5, **PART), 1e-4),
    "GlobSGD preconditioned": (GlobSGD(4, preconditioner=True, alpha=0.1, **PART), 0.2),
    "FedMF by size": (FedMF(4, aggregation="data_size", **PART), 0.25),
    "FedFast": (FedFast(4, aggregation="visits", **PART), 0.25),
    "SCoLR": (SCoLR(4, n_factors=4, local_rank=2, **PART), 0.25),
    "FedRec": (FedRec(4, **PART), 0.4),
    "FCF": (FCF(4, optimizer="gd", **PART), 1e-4),
    "ExplicitFCF": (ExplicitFCF(4, optimizer="gd", **PART), 1e-4),
}


def target_vector(model):
    items = np.asarray(model.item_factors_, dtype=float)
    if hasattr(model, "item_bias_"):
        items = np.column_stack([model.item_bias_, items])
    return items[5]


@pytest.mark.sampled
@pytest.mark.parametrize("name", LINEAR)
def test_the_server_moves_the_item_as_far_as_wanted(name):
    method, tolerance = LINEAR[name]
    ends = []
    for strength in (1.0, 2.0):
        _, model = rounds_of(Shift(strength=strength), method)
        ends.append(target_vector(model))
    moved, wanted = ends[1] - ends[0], SHIFT[: len(ends[0])]
    assert np.linalg.norm(moved - wanted) <= tolerance * np.linalg.norm(wanted), moved / wanted


@pytest.mark.sampled
@pytest.mark.parametrize(
    "method",
    [
        FedFast(4, **PART),
        FCF(4, upload="local", **PART),
        FedEB(4, **PART),
        PrivFedEB(4, **PART),
    ],
    ids=repr,
)
def test_a_server_with_steps_of_its_own_moves_the_item_to_the_wanted_side(method):
    ends = []
    for attack in (Shift(), ShiftBack()):
        _, model = rounds_of(attack, method)
        ends.append(target_vector(model))
    moved = (ends[0] - ends[1])[: len(SHIFT)]
    assert (moved * SHIFT[: len(moved)] > 0).all(), moved


@pytest.mark.parametrize("aggregation", ["full", "gradient"])
def test_the_servers_codes_become_the_signs_that_are_wanted(aggregation):
    method = LightFR(5, aggregation=aggregation, **PART)
    _, model = rounds_of(Shift(strength=20.0), method)
    np.testing.assert_array_equal(model.item_factors_[5], np.sign(SHIFT))


def test_a_round_may_have_no_honest_client():
    adversary = PipAttack(0.6, item=TARGET)
    method = GlobSGD(4, aggregation="full", reg_item=0.0, random_state=0)
    method.set_params(n_rounds=8, client_fraction=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert np.isfinite(fitted(adversary, method).item_factors_).all()


# --------------------------------------------------------------------------- what it brings

BIG, RATINGS = make_ratings(n_users=90, n_items=80, n_ratings=1400, random_state=0)
COLD = np.unique(BIG[:, 1])[np.bincount(BIG[:, 1])[np.unique(BIG[:, 1])].argsort()[10]]
FEW = {"n_factors": 8, "n_rounds": 40, "random_state": 0}
RAISED = [
    (LocALS(20, random_state=0), Promotion(strength=50.0)),
    (LocALS(20, random_state=0), PipAttack()),
    (LocALS(20, random_state=0), PIECK()),
    (LocALS(20, random_state=0), PIECK(variant="uea", strength=4)),
    (LocALS(20, random_state=0), FedRecAttack(strength=4)),
    (LocALS(20, random_state=0), AHum(strength=16)),
    (LocALS(20, random_state=0), PSMU(strength=4)),
    (GlobSGD(random_state=0), PipAttack()),
    (FedMF(**FEW), PipAttack(boost=0.0, strength=2)),
    (RFRec(n_rounds=30, random_state=0), PipAttack()),
    (RFRec(n_rounds=30, random_state=0), FedRecAttack()),
    (LightFR(n_rounds=10, random_state=0), PipAttack()),
]


@pytest.mark.parametrize(("method", "attack"), RAISED, ids=repr)
def test_promoted_items_are_recommended_more_often(method, attack):
    method = clone(method).set_params(federation=Federation())
    reach = {}
    for adversary in (None, clone(attack).set_params(item=COLD, fraction=0.05)):
        model = clone(method).set_params(federation__adversary=adversary).fit(BIG, RATINGS)
        honest = np.setdiff1d(BIG[:, 0], getattr(model, "compromised_clients_", []))
        reach[adversary is None] = exposure(model, COLD, honest)
    assert reach[False] > reach[True] + 0.2


# ---------------------------------------------------------------------- what it must not know


@pytest.mark.parametrize(
    "attack",
    [PipAttack(popular=ITEMS[:3]), AHum(n_users=10), PSMU(n_best=3), PIECK(n_popular=3)],
    ids=repr,
)
def test_what_it_uploads_does_not_depend_on_honest_data(attack):
    others = ~np.isin(X[:, 0], OURS)
    elsewhere = X.copy()
    # Each honest user's items, mirrored; the catalogue is the same.
    elsewhere[others, 1] = ITEMS[::-1][np.searchsorted(ITEMS, X[others, 1])]
    method = LocALS(4, n_rounds=1, items=ITEMS, random_state=0)
    plans = [rounds_of(attack, method, rows, None)[0][0][1] for rows in (X, elsewhere)]
    np.testing.assert_array_equal(plans[0].changes["rows"], plans[1].changes["rows"])
    if not isinstance(attack, PIECK):
        assert plans[0].changes["rows"].any()


class Secret:
    """Data that nobody may look at."""

    def __getattr__(self, name):
        raise AssertionError(f"looked at {name}")


@pytest.mark.parametrize("attack", [PIECK(), PIECK(variant="uea")], ids=repr)
def test_pieck_looks_at_broadcasts_alone(attack, monkeypatch):
    seen, _ = rounds_of(attack, LocALS(4, n_rounds=2, random_state=0))
    view = replace(seen[-1][0], data=Secret(), updates=[])
    monkeypatch.setattr(PIECK, "_target", lambda self, view: 5)
    rows, moves = attack._moves(view)
    assert rows.tolist() == [5]
    assert np.abs(moves).max() > 0


# -------------------------------------------------------------------------------- bad input


def fitted(adversary, method=None, X=X):
    method = clone(LocALS(4, random_state=0) if method is None else method)
    return method.set_params(federation=Federation(adversary=adversary)).fit(X)


@pytest.mark.parametrize("attack", [PSMU(n_best=3), Promotion()], ids=repr)
def test_items_that_cannot_be_promoted_are_named(attack):
    with pytest.raises(ValueError, match=r"item=77.*not among the items of X"):
        fitted(clone(attack).set_params(item=77))
    with pytest.raises(ValueError, match=r"needs item=\.\.\."):
        fitted(clone(attack))
    theirs = X[X[:, 1] == TARGET, 0]
    with pytest.raises(ValueError, match=r"item=.*no honest client holds"):
        fitted(clone(attack).set_params(item=TARGET, clients=theirs))
    # An item of the catalogue that nobody holds.
    catalogue = LocALS(4, items=[*ITEMS.tolist(), 99], n_rounds=1)
    with pytest.raises(ValueError, match=r"item=99.*no honest client holds"):
        fitted(clone(attack).set_params(item=99), catalogue)


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_methods_without_rows_of_items_and_wrong_strengths_are_named(attack):
    attack = clone(attack).set_params(item=TARGET)
    with pytest.raises(ValueError, match=r"moves item vectors.*FedEASE has no such rows"):
        fitted(attack, FedEASE())
    with pytest.raises(ValueError, match=r"nothing to forge.*LightFR upload nothing"):
        fitted(attack, with_constants(LightFR, _trains_items=False)(8))
    with pytest.raises(ValueError, match="strength"):
        fitted(attack.set_params(strength=0.0))


def test_a_method_without_rows_of_items_takes_promotion_by_data_alone():
    with pytest.raises(ValueError, match=r"FedEASE has no rows of items.*set strength=1"):
        fitted(Promotion(item=TARGET), FedEASE())
    assert len(fitted(Promotion(item=TARGET, strength=1), FedEASE()).compromised_clients_) == 2


def test_unknown_popular_items_are_named():
    with pytest.raises(ValueError, match=r"popular=...\) names 77, which is not among"):
        fitted(PipAttack(item=TARGET, popular=[ITEMS[0], 77]))
    with pytest.raises(ValueError, match=r"popular=\[\]\) names no item"):
        fitted(PipAttack(item=TARGET, popular=[]))
