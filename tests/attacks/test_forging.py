"""Attacks on hand-made updates of many clients, compared with plain lines for one at a time."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedrecsk import LocALS
from fedrecsk.attacks import (
    ALIE,
    Adversary,
    Fang,
    MinMax,
    Promotion,
    RandomDirection,
    RandomUpload,
    SignFlip,
    TargetedAdversary,
    View,
)
from fedrecsk.data.interactions import encode
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.messages import Message
from fedrecsk.updates import (
    FieldSpec,
    SparseRows,
    as_integers,
    client_generator,
)
from tests.reference import attacks as reference
from tests.updates.making import updates_of

N_ITEMS, WIDTH, TARGET, SILENT = 7, 3, 4, 2
FORMS = {
    "followed": FieldSpec((N_ITEMS, WIDTH)),
    "sparse": FieldSpec((N_ITEMS, WIDTH)),
    "votes_on_all": FieldSpec((N_ITEMS, 2), dtype="int32"),
    "held": FieldSpec((N_ITEMS, WIDTH), rows="held"),
    "picked": FieldSpec((N_ITEMS, 2), rows="chosen"),
    "bias": FieldSpec((N_ITEMS,), rows="held"),
    "gram": FieldSpec((WIDTH, WIDTH)),
    "trained": FieldSpec((N_ITEMS, WIDTH)),
    "trained_held": FieldSpec((N_ITEMS, WIDTH), rows="held"),
    "bits": FieldSpec((N_ITEMS, 2), rows="chosen", bits=True),
    "counts": FieldSpec((N_ITEMS, 2), rows="chosen", dtype="int8"),
    "n_visits": FieldSpec((N_ITEMS,), rows="held", dtype="int64", learned=False),
}


def make_updates(clients, seed, names=FORMS):
    """Updates of clients, the third of which sends nothing."""
    rng = np.random.default_rng(seed)
    n = len(clients)
    sends = np.arange(n) != SILENT
    n_rows = np.where(sends, rng.integers(1, N_ITEMS, n), 0)
    held = [np.sort(rng.choice(N_ITEMS, count, replace=False)) for count in n_rows]
    indptr, rows = np.concatenate([[0], np.cumsum(n_rows)]), np.concatenate(held)
    columns = rng.random((n, WIDTH)) < 0.6
    fields = {}
    for name in names:
        spec, others = FORMS[name], {}
        values = rng.standard_normal((len(rows), *spec.shape[1:])).astype(np.float32)
        if spec.bits:
            values = np.where(values < 0, -1, 1)
        elif spec.is_integer:
            values = np.rint(40 * values).astype(np.int64)
        if name == "followed":
            others["default"] = rng.standard_normal(spec.shape)
            others["center"] = rng.standard_normal(spec.shape)
        if name.startswith("trained"):
            others["columns"] = columns
            values *= np.repeat(columns, n_rows, axis=0)
        fields[name] = SparseRows(indptr, rows, values, **others)
    if "gram" in fields:
        fields["gram"] = SparseRows.stacked(rng.standard_normal((n, WIDTH, WIDTH)))
    updates = updates_of(fields, {name: FORMS[name] for name in names}, sends)
    return replace(updates, sends=sends.copy(), arrives=sends, clients=np.asarray(clients))


def make_view(blocks, adversary=None, method=None):
    """What the adversary sees, with its plan."""
    data = SimpleNamespace(item_ids=SimpleNamespace(values=10 * np.arange(N_ITEMS)))
    data.n_items = N_ITEMS
    view = View(method, 0, None, n_senders=30, data=data, updates=blocks)
    view.plan = None if adversary is None else adversary._plan(view)
    return view


def make_blocks(names=FORMS):
    return [make_updates([8, 1, 5, 3, 0, 11], 0, names), make_updates([2, 9, 4, 6, 10], 1, names)]


def seeds_of(updates):
    return 2**63 + 7 * np.asarray(updates.clients, dtype=np.uint64)


def forge(adversary, view, updates):
    return adversary._forge_tile(view, updates, seeds_of(updates))


def sendable(change, spec, columns):
    """What a client can send of a change."""
    change = as_integers(change, spec) if spec.is_integer else np.asarray(change, dtype=float)
    return change if columns is None else np.where(columns, change, 0)


# ------------------------------------------------------------- one client and field at a time


def random_upload(attack, view, name, honest, generator, columns):
    return attack.strength * generator.standard_normal(honest.change.shape)


def sign_flip(attack, view, name, honest, generator, columns):
    return -attack.strength * honest.change


def random_direction(attack, view, name, honest, generator, columns):
    direction = generator.standard_normal(honest.change.shape)
    direction = direction if columns is None else direction * columns
    return direction * np.linalg.norm(honest.change) / (np.linalg.norm(direction) or 1)


def promotion(attack, view, name, honest, generator, columns):
    change = np.array(honest.change, dtype=float)
    if name != "gram":
        change[np.arange(N_ITEMS)[honest.rows] == TARGET] *= attack.strength
    return change


def moments(view, name):
    return reference.mean_and_deviation(whole_uploads(view, name))


def whole_uploads(view, name):
    """Honest uploads of one field, with NaN where nothing is sent."""
    whole = np.full((view.n_own, *FORMS[name].shape), np.nan)
    for one, upload in zip(whole, view.uploads, strict=True):
        one[upload[name].rows] = upload[name].change
    return list(whole)


def alie(attack, view, name, honest, generator, columns):
    mean, deviation = moments(view, name)
    return (mean - attack.z * deviation)[honest.rows]


def fang(attack, view, name, honest, generator, columns):
    mean, deviation = moments(view, name)
    drawn = generator.uniform(attack.nearest, attack.farthest, honest.change.shape)
    return mean[honest.rows] - drawn * (np.sign(mean) * deviation)[honest.rows]


def min_max(attack, view, name, honest, generator, columns):
    return reference.min_max(whole_uploads(view, name), honest.rows, attack.perturbation)


def shift(attack, view, name, honest, generator, columns):
    change = np.array(honest.change, dtype=float) * FORMS[name].bits
    moves = dict(zip(view.plan.rows, view.plan.changes.get(name, ()), strict=False))
    for k, row in enumerate(np.arange(FORMS[name].shape[0])[honest.rows]):
        if row in moves:
            change[k] = moves[row].reshape(change[k].shape)
    return change


class Shift(TargetedAdversary):
    """Moves two items."""

    def _moves(self, view):
        return np.array([1, TARGET]), np.array([[0.5, -1.0, 2.5], [-3.0, 0.25, 1.0]])


class Movable:
    """A method whose server moves items by what is uploaded in nearly all fields."""

    def _algorithm(self):
        return self

    def item_vectors(self, message):
        return np.zeros((N_ITEMS, WIDTH))

    def _upload_moving(self, view, rows, moves):
        fields = set(view.specs) - {"sparse", "gram", "picked"}
        return {name: moves[:, : view.specs[name].width] for name in fields}


ATTACKS = [
    (RandomUpload(strength=3.0), random_upload),
    (RandomUpload(strength=1e9), random_upload),
    (SignFlip(strength=2.5), sign_flip),
    (RandomDirection(), random_direction),
    (Promotion(item=10 * TARGET, strength=4.0), promotion),
    (ALIE(z=1.5), alie),
    (Fang(), fang),
    (MinMax(), min_max),
    (MinMax(perturbation="sign"), min_max),
    (MinMax(perturbation="unit_vector"), min_max),
    (Shift(item=10 * TARGET), shift),
]
every_attack = pytest.mark.parametrize(
    ("attack", "naive"), ATTACKS, ids=lambda one: getattr(one, "__name__", str(one))[:40]
)


@every_attack
def test_many_clients_are_forged_as_one_at_a_time(attack, naive):
    blocks = make_blocks()
    view = make_view(blocks, attack, Movable())
    for updates in blocks:
        before = copy.deepcopy(updates)
        forged = forge(attack, view, updates)
        for client in np.flatnonzero(updates.sends):
            sent = forged.upload(client)
            assert sent.keys() == updates.learned.keys()
            for name, honest in before.upload(client).items():
                columns = updates.fields[name].columns
                columns = None if columns is None else columns[client]
                generator = client_generator(seeds_of(updates)[client], name)
                change = naive(attack, view, name, honest, generator, columns)
                expected = sendable(change, FORMS[name], columns)
                np.testing.assert_array_equal(sent[name].rows, honest.rows)
                assert sent[name].change.dtype == expected.dtype
                scale = 1 + np.abs(expected).max(initial=0)
                np.testing.assert_allclose(sent[name].change, expected, atol=1e-6 * scale)
            # The honest updates are as they were.
            for name, after in updates.all_fields(client).items():
                np.testing.assert_array_equal(after.change, before.all_fields(client)[name].change)
        assert forged.fields["n_visits"] is updates.fields["n_visits"]
        assert forged.fields["followed"].center is updates.fields["followed"].center
        assert forged.specs is updates.specs


def test_what_all_clients_send_is_stored_once():
    blocks = make_blocks()
    for attack in (ALIE(), MinMax(), Shift(item=10 * TARGET)):
        forged = forge(attack, make_view(blocks, attack, Movable()), blocks[0])
        assert forged.fields["followed"].default is not None
        assert len(forged.fields["followed"].rows) == 0


# --------------------------------------------------------------------------- users' adversaries


class Custom(SignFlip):
    """Sends what a function returns, instead of flipped signs."""

    def __init__(self, returns, fraction=0.1):
        super().__init__(fraction)
        self.returns = returns

    def _forged(self, view, upload, generator):
        return self.returns(upload)


def everywhere(change):
    def returns(upload):
        return {name: u._replace(change=change(u.change)) for name, u in upload.items()}

    return returns


def test_a_users_forgery_is_rounded_and_stays_within_the_columns():
    updates = make_updates(range(6), 0)
    forged = forge(Custom(everywhere(lambda change: change + 0.6)), None, updates)
    for client in range(6):
        for name, honest in updates.upload(client).items():
            expected = honest.change
            if updates.sends[client]:
                columns = updates.fields[name].columns
                columns = None if columns is None else columns[client]
                expected = sendable(honest.change + 0.6, FORMS[name], columns)
            sent = forged.upload(client)[name].change
            assert sent.dtype == honest.change.dtype
            np.testing.assert_allclose(sent, expected)


def test_each_client_is_forged_with_its_own_generator():
    class Drawing(Adversary):
        def _forged(self, view, upload, generator):
            return everywhere(lambda change: change * 0 + generator.random())(upload)

    updates = make_updates(range(6), 0, ["bias", "gram"])
    forged = forge(Drawing(), None, updates)
    for client in np.flatnonzero(updates.sends):
        draws = np.random.default_rng(int(seeds_of(updates)[client])).random(2)
        assert (forged.upload(client)["bias"].change == draws[0]).all()
        assert (forged.upload(client)["gram"].change == draws[1]).all()


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        (
            lambda u: {"gram": u["gram"]},
            r"Custom._forged returned \['gram'\]; .*\['gram', 'held'\]",
        ),
        (lambda u: None, "Custom._forged returned NoneType; return a dict"),
        (lambda u: {**u, "x": u["gram"]}, r"returned \['gram', 'held', 'x'\]"),
        (
            lambda u: {**u, "gram": u["gram"]._replace(change=np.ones((2, 3)))},
            r"Custom._forged .*shape \(2, 3\) .*'gram'.*shape \(3, 3\); return upload\['gram'\]",
        ),
        (
            lambda u: {**u, "gram": u["gram"]._replace(change=np.full((3, 3), "a"))},
            r"dtype <U1 for field 'gram'",
        ),
        (lambda u: {**u, "gram": u["gram"].change}, "returned ndarray for field 'gram'"),
        (
            lambda u: {**u, "held": u["held"]._replace(rows=6 - u["held"].rows)},
            r"other rows than the client sends for field 'held' of shape \(7, 3\)",
        ),
    ],
)
def test_what_an_adversary_must_not_return_is_named(returns, message):
    with pytest.raises(ValueError, match=message):
        forge(Custom(returns), None, make_updates(range(6), 0, ["gram", "held"]))


def test_an_adversary_chooses_rows_where_clients_choose_them():
    updates = make_updates(range(6), 0, ["picked"])

    def moved(change):
        return Custom(lambda u: {"picked": u["picked"]._replace(rows=change(u["picked"].rows))})

    forged = forge(moved(lambda rows: (rows + 1) % N_ITEMS), None, updates)
    for client in np.flatnonzero(updates.sends):
        expected = np.roll(updates.whole(client)["picked"], 1, axis=0)
        np.testing.assert_array_equal(forged.whole(client)["picked"], expected)
        assert (np.diff(forged.upload(client)["picked"].rows) > 0).all()
    for outside in (lambda rows: rows + N_ITEMS, lambda rows: rows * 0 + 1):
        with pytest.raises(ValueError, match="as many different rows of the field"):
            forge(moved(outside), None, updates)


class Doubling:
    """A mixin that forges one upload."""

    def _forged(self, view, upload, generator):
        return everywhere(lambda change: 2 * change)(upload)


class DoublingAfterAll(Doubling, SignFlip):
    pass


class Calling(SignFlip):
    def _forged(self, view, upload, generator):
        return super()._forged(view, upload, generator)


def test_a_subclass_of_an_attack_is_not_ignored():
    updates = make_updates(range(6), 0, ["held"])
    honest = updates.fields["held"].values
    forged = forge(DoublingAfterAll(), None, updates).fields["held"].values
    np.testing.assert_allclose(forged, 2 * honest)
    with pytest.raises(TypeError, match=r"Calling derives from .*no inherited `_forged`"):
        forge(Calling(), None, updates)


def test_an_attack_forges_the_clients_that_it_controls():
    data = encode(np.stack([np.arange(8), np.arange(8) % 3], axis=1))
    attack = SignFlip(clients=[2, 5]).enter(data, False, Key(0))
    np.testing.assert_array_equal(np.flatnonzero(attack.controlled), [2, 5])
    updates = make_updates([2, 5], 0)
    forged = attack.forge(updates, seeds_of(updates))
    np.testing.assert_allclose(forged.total("held"), -5 * updates.total("held"))
    silent = updates.take(np.array([True, False]))
    silent.sends[:] = False
    assert attack.forge(silent, seeds_of(silent)) is silent


def test_the_view_has_the_uploads_of_clients_that_send():
    blocks = make_blocks()
    view = make_view(blocks)
    assert view.n_own == len(view.uploads) == 9
    assert view.specs == {name: spec for name, spec in FORMS.items() if spec.learned}
    expected = [one.upload(c) for one in blocks for c in np.flatnonzero(one.sends)]
    for one, other in zip(view.uploads, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name].change, other[name].change)
    np.testing.assert_array_equal(view.uploads[-1]["gram"].change, expected[-1]["gram"].change)
    assert len(view.uploads[2:5]) == 3


def test_a_view_with_a_broken_upload_says_so():
    updates = make_updates(range(4), 0, ["held"])
    assert make_view([updates], method=Movable()).is_finite
    updates.fields["held"].values[0, 0] = np.inf
    assert not make_view([updates], method=Movable()).is_finite


def test_vectors_that_an_algorithm_does_not_name_are_an_error_with_the_cure():
    algorithm = LocALS()._algorithm()
    with pytest.raises(TypeError, match=r"LocALSAlgorithm broadcasts .*implement item_vectors"):
        algorithm.item_vectors(Message())
    with pytest.raises(TypeError, match=r"no state `users`; implement private_vectors"):
        algorithm.private_vectors(())
