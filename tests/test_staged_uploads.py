"""Attacks, local noise and robust aggregators on hand-made batches, all clients at once.

Whatever is done for all clients of a batch must equal what is done client by client.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from fedrecsk.aggregation import (
    Aggregator,
    CoordinateMedian,
    GeometricMedian,
    HierarchicalClipping,
    Krum,
    NormClipping,
    PopularityFilter,
    RowClipping,
    TrimmedMean,
    plain_sum,
)
from fedrecsk.aggregation._tiles import tiles
from fedrecsk.attacks import (
    Adversary,
    LabelFlip,
    Promotion,
    RandomDirection,
    RandomUpload,
    SignFlip,
)
from fedrecsk.privacy import LaplaceMechanism
from fedrecsk.uploads import Batch, Common, Form, Listed, Ragged, Update, client_generator
from tests.reference import aggregation as reference

N_ITEMS, WIDTH = 7, 3
TARGET = 4
VIEW = SimpleNamespace(n_items=N_ITEMS, item_ids=10 * np.arange(N_ITEMS))
FORMS = {
    "followed": Form((N_ITEMS, WIDTH)),
    "sparse": Form((N_ITEMS, WIDTH)),
    "held": Form((N_ITEMS, WIDTH), rows="held"),
    "picked": Form((N_ITEMS, 2), rows="chosen"),
    "votes": Form((N_ITEMS, 2), rows="chosen", dtype="int32"),
    "bias": Form((N_ITEMS,), rows="held"),
    "gram": Form((WIDTH, WIDTH)),
    "trained": Form((N_ITEMS, WIDTH)),
    "trained_held": Form((N_ITEMS, WIDTH), rows="held"),
}


NARROW_FORMS = {
    "bits": Form((N_ITEMS, 2), rows="chosen", bits=True),
    "counts": Form((N_ITEMS, 2), rows="chosen", dtype="int8"),
}


def make_batch(clients, seed=0, forms=FORMS):
    """A batch of clients. The third sends nothing, and the fifth is not accepted."""
    rng = np.random.default_rng(seed)
    n = len(clients)
    sends = np.arange(n) != 2
    counts = np.where(sends, rng.integers(1, N_ITEMS, n), 0)
    held = [np.sort(rng.choice(N_ITEMS, count, replace=False)) for count in counts]
    indptr = np.concatenate([[0], np.cumsum([len(rows) for rows in held])])
    rows = np.concatenate(held).astype(np.int32)

    def numbers(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    columns = rng.random((n, WIDTH)) < 0.6
    of_columns = np.repeat(columns, np.diff(indptr), axis=0)
    changes = {
        "followed": Ragged(
            indptr,
            rows,
            numbers(len(rows), WIDTH),
            origin=numbers(N_ITEMS, WIDTH),
            common=Common(rng.standard_normal((N_ITEMS, WIDTH))),
        ),
        "sparse": Ragged(indptr, rows, numbers(len(rows), WIDTH)),
        "held": Ragged(indptr, rows, numbers(len(rows), WIDTH), origin=numbers(N_ITEMS, WIDTH)),
        "picked": Ragged(indptr, rows, numbers(len(rows), 2)),
        "votes": Ragged(indptr, rows, rng.integers(-9, 9, (len(rows), 2))),
        "bias": Ragged(indptr, rows, numbers(len(rows)), origin=numbers(N_ITEMS)),
        "gram": Ragged.stacked(numbers(n, WIDTH, WIDTH), origin=np.eye(WIDTH)),
        "trained": Ragged(indptr, rows, numbers(len(rows), WIDTH) * of_columns, columns=columns),
        "trained_held": Ragged(
            indptr, rows, numbers(len(rows), WIDTH) * of_columns, columns=columns
        ),
        "bits": Ragged(indptr, rows, (-1) ** rng.integers(0, 2, (len(rows), 2))),
        "counts": Ragged(indptr, rows, rng.integers(-99, 99, (len(rows), 2))),
    }
    changes = {name: with_form(changes[name], form) for name, form in forms.items()}
    arrives = sends.copy()
    accepted = arrives & (np.arange(n) != 4)
    return Batch(np.asarray(clients), sends, arrives, accepted, forms, changes, {})


def with_form(changes, form):
    return Ragged(**{**vars(changes), "form": form})


def make_batches(forms=FORMS):
    """Two batches whose clients' codes interleave."""
    return [make_batch([8, 1, 5, 3, 0, 11], 0, forms), make_batch([2, 9, 4, 6, 10, 7], 1, forms)]


def listed(batch):
    """The same batch, its uploads written down one by one."""
    changes = {
        name: Listed(
            [c.update(k) if batch.sends[k] else None for k in range(c.n_clients)], batch.forms[name]
        )
        for name, c in batch.changes.items()
    }
    return Batch(
        batch.clients, batch.sends, batch.arrives, batch.accepted, batch.forms, changes, {}
    )


def seeds_of(batch):
    return np.random.default_rng(9).integers(2**64, size=len(batch.clients), dtype=np.uint64)


def dense(batches, name):
    """All accepted clients' changes in the order of their codes."""
    wholes = {
        batch.clients[k]: batch.changes[name].whole(k)
        for batch in batches
        for k in np.flatnonzero(batch.accepted)
    }
    return np.stack([wholes[code] for code in sorted(wholes)])


def assert_same_changes(left, right, batch):
    """Equal in all that anybody asks of them."""
    assert left.keys() == right.keys()
    weights = np.random.default_rng(3).random(len(batch.clients)) * batch.accepted
    for name in left:
        a, b = left[name], right[name]
        assert (a.shape, a.n_clients, a.is_integer) == (b.shape, b.n_clients, b.is_integer)
        for client in np.flatnonzero(batch.sends):
            assert a.update(client).change.dtype == b.update(client).change.dtype
            np.testing.assert_array_equal(a.update(client).rows, b.update(client).rows)
            np.testing.assert_allclose(
                a.update(client).change, b.update(client).change, rtol=1e-9, atol=1e-9
            )
        for ask in ("norms", "finite"):
            np.testing.assert_allclose(
                getattr(a, ask)(batch.sends), getattr(b, ask)(batch.sends), rtol=1e-9, atol=1e-9
            )
        sums = np.zeros((2, *a.shape))
        a.add_to(sums[0], weights)
        b.add_to(sums[1], weights)
        np.testing.assert_allclose(*sums, rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------------------------- attacks

ATTACKS = [
    RandomUpload(strength=3.0),
    SignFlip(scale=2.5),
    RandomDirection(),
    Promotion(item=10 * TARGET, scale=4.0),
]
every_attack = pytest.mark.parametrize("adversary", ATTACKS, ids=lambda a: type(a).__name__)


def one_by_one(adversary, batch, seeds):
    """`_forged` client by client and field by field, on the draws of each client's field."""
    updates = {name: [None] * len(batch.clients) for name in batch.changes}
    for client in np.flatnonzero(batch.sends):
        for name, changes in batch.changes.items():
            honest = changes.update(client)
            generator = client_generator(seeds[client], name)
            change = adversary._forged(VIEW, {name: honest}, generator)[name].change
            if changes.columns is not None:
                change = change * changes.columns[client]
            if changes.is_integer:
                change = np.rint(change).astype(np.int64)
            updates[name][client] = Update(honest.rows, change)
    return {name: Listed(each, batch.forms[name]) for name, each in updates.items()}


@every_attack
def test_a_batch_is_forged_as_its_clients_one_by_one(adversary):
    forms = dict(FORMS)
    if isinstance(adversary, RandomDirection):
        # What is left out of it does not count towards its length; see below.
        del forms["trained"], forms["trained_held"]
    for batch in make_batches(forms):
        seeds = seeds_of(batch)
        forged = adversary._forged_batch(VIEW, batch, seeds, False)
        assert_same_changes(forged, one_by_one(adversary, batch, seeds), batch)


class Silent(Adversary):
    """Zeros, as a user would write it."""

    def _forged(self, view, upload, generator):
        return {name: u._replace(change=0.0 * u.change) for name, u in upload.items()}


@pytest.mark.parametrize(
    "adversary",
    [*ATTACKS, RandomUpload(strength=1e-9), RandomUpload(strength=1e9), Silent()],
    ids=str,
)
@pytest.mark.parametrize("change", [lambda batch: batch, listed], ids=["ragged", "listed"])
def test_forged_integers_fit_into_the_message(adversary, change):
    for batch in make_batches(NARROW_FORMS):
        batch = change(batch)
        forged = adversary._forged_batch(VIEW, batch, seeds_of(batch), True)
        for client in np.flatnonzero(batch.sends):
            bits, counts = (forged[name].update(client).change for name in NARROW_FORMS)
            assert bits.dtype == counts.dtype == np.int64
            assert np.isin(bits, [-1, 1]).all()
            assert np.abs(counts + 0.5).max() <= 127.5


@pytest.mark.parametrize("scale", [0.5, 5.0])
def test_a_flipped_bit_is_the_other_bit(scale):
    for batch in make_batches(NARROW_FORMS):
        forged = SignFlip(scale=scale)._forged_batch(VIEW, batch, seeds_of(batch), False)
        for client in np.flatnonzero(batch.sends):
            honest = batch.changes["bits"].update(client).change
            np.testing.assert_array_equal(forged["bits"].update(client).change, -honest)


@pytest.mark.parametrize("adversary", ATTACKS[1::2], ids=lambda a: type(a).__name__)
def test_what_draws_nothing_equals_the_default_for_a_user(adversary):
    for batch in make_batches():
        seeds = seeds_of(batch)
        default = Adversary._forged_batch(adversary, VIEW, batch, seeds, False)
        for summed in (False, True):
            forged = adversary._forged_batch(VIEW, batch, seeds, summed)
            assert all(isinstance(changes, Ragged) for changes in forged.values())
            assert_same_changes(forged, default, batch)


@every_attack
def test_uploads_that_are_not_ragged_are_forged_alike(adversary):
    forms = {name: form for name, form in FORMS.items() if not name.startswith("trained")}
    batch = make_batch(range(6), forms=forms)
    seeds = seeds_of(batch)
    forged = adversary._forged_batch(VIEW, listed(batch), seeds, False)
    assert_same_changes(adversary._forged_batch(VIEW, batch, seeds, False), forged, batch)


def test_promotion_scales_what_all_have_in_common_of_an_item_that_a_client_does_not_hold():
    batch = make_batch(range(6), forms={"followed": FORMS["followed"]})
    changes = batch.changes["followed"]
    lacking = [c for c in range(6) if TARGET not in changes.own(c)[0]]
    assert len(lacking) >= 2
    forged = ATTACKS[3]._forged_batch(VIEW, batch, seeds_of(batch), False)["followed"]
    for client in lacking:
        rows, _ = forged.own(client)
        assert TARGET in rows
        assert (np.diff(rows) > 0).all()
        expected = changes.common.change.copy()
        own, change = changes.own(client)
        expected[own] = change
        expected[TARGET] *= 4
        np.testing.assert_allclose(forged.update(client).change, expected)


def test_a_random_direction_is_as_long_as_the_honest_change_whatever_columns_cross():
    batch = make_batch(range(6), forms={"trained": FORMS["trained"]})
    honest = batch.changes["trained"]
    forged = RandomDirection()._forged_batch(VIEW, batch, seeds_of(batch), False)["trained"]
    assert not honest.columns.all()
    for client in np.flatnonzero(batch.sends):
        change = forged.update(client).change
        assert not change[:, ~honest.columns[client]].any()
        assert np.linalg.norm(change) == pytest.approx(honest.norms(batch.sends)[client])
    np.testing.assert_allclose(forged.norms(batch.sends), honest.norms(batch.sends))


def test_each_client_and_field_has_draws_of_its_own():
    forms = {"a": FORMS["gram"], "b": FORMS["gram"]}
    changes = {name: Ragged.stacked(np.ones((3, WIDTH, WIDTH))) for name in forms}
    changes = {name: with_form(c, forms[name]) for name, c in changes.items()}
    everyone = np.ones(3, dtype=bool)
    batch = Batch(np.arange(3), everyone, everyone, everyone, forms, changes, {})
    forged = RandomUpload()._forged_batch(VIEW, batch, seeds_of(batch), False)
    drawn = [forged[name].update(client).change for name in forms for client in range(3)]
    assert len({change.tobytes() for change in drawn}) == 6


SUMMED = ["followed", "held", "picked", "bias", "trained", "trained_held"]


@pytest.mark.parametrize("name", SUMMED)
def test_noise_of_a_sum_is_distributed_as_the_sum_of_noises(name):
    batch = make_batch(range(6), forms={name: FORMS[name]})
    weights = np.array([1.0, 0.5, 0.0, 1.0, 0.0, 2.0])
    draws = {True: [], False: []}
    rng = np.random.default_rng(1)
    for _ in range(600):
        seeds = rng.integers(2**64, size=6, dtype=np.uint64)
        for summed, all_sums in draws.items():
            forged = RandomUpload(strength=3.0)._forged_batch(VIEW, batch, seeds, summed)
            sums = np.zeros(FORMS[name].shape)
            forged[name].add_to(sums, weights)
            all_sums.append(sums)
    once, each = (np.array(draws[summed]) for summed in (True, False))
    np.testing.assert_array_equal(once.any(axis=0), each.any(axis=0))
    sent = each.any(axis=0)
    spread = each[:, sent].std(axis=0)
    np.testing.assert_allclose(once[:, sent].std(axis=0), spread, rtol=0.2)
    assert (
        stats.ks_2samp((once[:, sent] / spread).ravel(), (each[:, sent] / spread).ravel()).pvalue
        > 1e-3
    )
    across = np.corrcoef(once[:, sent], rowvar=False)
    assert np.abs(across - np.eye(sent.sum())).max() < 0.25


def test_noise_of_a_sum_of_integers_is_a_sum_of_integers():
    batch = make_batch(range(6), forms={"votes": FORMS["votes"]})
    seeds = seeds_of(batch)
    sums = np.zeros((2, N_ITEMS, 2))
    for summed in (0, 1):
        forged = RandomUpload(strength=0.4)._forged_batch(VIEW, batch, seeds, bool(summed))
        forged["votes"].add_to(sums[summed], batch.accepted.astype(float))
    np.testing.assert_array_equal(*sums)
    np.testing.assert_array_equal(sums, np.rint(sums))


def test_a_sum_without_weights_is_not_touched():
    batch = make_batch(range(6), forms={"sparse": FORMS["sparse"]})
    forged = RandomUpload()._forged_batch(VIEW, batch, seeds_of(batch), True)["sparse"]
    sums = np.ones((N_ITEMS, WIDTH))
    forged.add_to(sums, np.zeros(6))
    assert (sums == 1).all()


class Custom(SignFlip):
    """Adds a given number to every change, instead of flipping its sign."""

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
    batch = make_batch(range(6))
    forged = Custom(everywhere(lambda c: c + 0.6))._forged_batch(
        VIEW, batch, seeds_of(batch), False
    )
    for client in np.flatnonzero(batch.sends):
        for name, honest in batch.changes.items():
            change = honest.update(client).change
            expected = change + 1 if honest.is_integer else change + 0.6
            if honest.columns is not None:
                expected = expected * honest.columns[client]
            found = forged[name].update(client).change
            assert found.dtype == change.dtype
            np.testing.assert_allclose(found, expected)
    assert [update is None for update in forged["held"].updates] == list(~batch.sends)


def test_an_adversary_may_send_nan_which_the_server_then_sees():
    forms = {name: form for name, form in FORMS.items() if not name.startswith("trained")}
    batch = make_batch(range(6), forms=forms)
    forged = Custom(everywhere(lambda c: c * np.nan))
    for changes in forged._forged_batch(VIEW, batch, seeds_of(batch), False).values():
        np.testing.assert_array_equal(changes.finite(batch.sends), ~batch.sends)


def test_each_client_is_forged_with_its_own_generator():
    class Drawing(Adversary):
        def _forged(self, view, upload, generator):
            return everywhere(lambda c: c * 0 + generator.random())(upload)

    batch = make_batch(range(6), forms={"bias": FORMS["bias"], "gram": FORMS["gram"]})
    seeds = seeds_of(batch)
    forged = Drawing()._forged_batch(VIEW, batch, seeds, True)
    for client in np.flatnonzero(batch.sends):
        draws = np.random.default_rng(int(seeds[client])).random(2)
        assert (forged["bias"].update(client).change == draws[0]).all()
        assert (forged["gram"].update(client).change == draws[1]).all()


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
    batch = make_batch(range(6), forms={name: FORMS[name] for name in ("gram", "held")})
    with pytest.raises(ValueError, match=message):
        Custom(returns)._forged_batch(VIEW, batch, seeds_of(batch), False)


def test_an_adversary_chooses_rows_where_clients_choose_them():
    batch = make_batch(range(6), forms={"picked": FORMS["picked"]})
    moved = Custom(
        lambda u: {"picked": u["picked"]._replace(rows=(u["picked"].rows + 1) % N_ITEMS)}
    )
    forged = moved._forged_batch(VIEW, batch, seeds_of(batch), False)["picked"]
    for client in np.flatnonzero(batch.sends):
        expected = np.roll(batch.changes["picked"].whole(client), 1, axis=0)
        np.testing.assert_array_equal(forged.whole(client), expected)
    for rows in (lambda rows: rows + N_ITEMS, lambda rows: rows * 0 + 1):
        outside = Custom(
            lambda u, r=rows: {"picked": u["picked"]._replace(rows=r(u["picked"].rows))}
        )
        with pytest.raises(ValueError, match="as many different rows of the field"):
            outside._forged_batch(VIEW, batch, seeds_of(batch), False)


def test_who_forges_uploads_says_so():
    class Quiet(LabelFlip):
        pass

    class Loud(LabelFlip):
        def _forged(self, view, upload, generator):
            return upload

    forging = [RandomUpload(), SignFlip(), RandomDirection(), Promotion(item=1), Loud()]
    assert all(adversary.forges for adversary in forging)
    assert not any(a.forges for a in [LabelFlip(), Quiet(), Promotion(item=1, scale=1.0)])


def test_an_intrusion_forges_batches():
    from fedrecsk.interactions import encode
    from fedrecsk.simulation.keys import Key

    data = encode(np.stack([np.arange(8), np.arange(8) % 3], axis=1))
    intrusion = SignFlip(clients=[2, 5]).enter(data, False, Key(0))
    batch = make_batch([2, 5])
    batch.sends[:] = batch.accepted[:] = True
    forged = intrusion.forge(batch, seeds_of(batch), False)
    expected = -5 * batch.sum_of_changes("followed")
    sums = np.zeros((N_ITEMS, WIDTH))
    forged["followed"].add_to(sums, np.ones(2))
    np.testing.assert_allclose(sums, expected)


# ------------------------------------------------------------------------------ local noise


def test_each_client_has_laplace_noise_of_its_own():
    form = Form((400, 5), clip=0.5)
    honest = Ragged(np.array([0, 1, 1, 2]), np.array([3, 7]), np.ones((2, 5)), form=form)
    mechanism = LaplaceMechanism(clip=0.5, scale=0.3)
    noised = mechanism._noised(honest, form, np.array([5, 6, 7], dtype=np.uint64), "items")
    noise = [noised.update(c).change - honest.whole(c) for c in range(3)]
    for sample in noise:
        assert stats.kstest(sample.ravel(), stats.laplace(scale=0.3).cdf).pvalue > 1e-3
    assert np.abs(np.corrcoef([sample.ravel() for sample in noise]) - np.eye(3)).max() < 0.1
    again = mechanism._noised(honest, form, np.array([5, 6, 7], dtype=np.uint64), "items")
    np.testing.assert_array_equal(again.whole(1), noised.whole(1))
    other = mechanism._noised(honest, form, np.array([5, 6, 7], dtype=np.uint64), "others")
    assert (other.whole(1) != noised.whole(1)).any()
    sums = np.zeros(form.shape)
    noised.add_to(sums, np.array([1.0, 0.0, 2.0]))
    np.testing.assert_allclose(sums, noised.whole(0) + 2 * noised.whole(2))
    assert noised.finite(np.ones(3, dtype=bool)).all()


def test_noise_keeps_to_the_columns_and_to_integers():
    columns = np.array([[True, False, True]])
    form = Form((50, 3), clip=1.0)
    honest = Ragged(
        np.zeros(2, int), np.zeros(0, int), np.zeros((0, 3)), columns=columns, form=form
    )
    mechanism = LaplaceMechanism(clip=1.0, scale=5.0)
    seeds = np.array([1], dtype=np.uint64)
    change = mechanism._noised(honest, form, seeds, "x").update(0).change
    np.testing.assert_array_equal(change.any(axis=0), columns[0])
    form = Form((50, 3), clip=1.0, dtype="int16")
    counts = Ragged.stacked(np.ones((1, 50, 3), dtype=np.int64))
    noised = mechanism._noised(with_form(counts, form), form, seeds, "n")
    assert noised.is_integer
    assert noised.update(0).change.dtype == np.int64
    assert noised.update(0).change.std() > 2


@pytest.mark.parametrize(
    "form", [Form((3, 2)), Form((3, 2), rows="held", clip=1.0), Form((3, 2), clip=2.0)]
)
def test_what_noise_would_not_protect_is_refused(form):
    honest = Ragged.stacked(np.ones((2, 3, 2)))
    with pytest.raises(RuntimeError, match="Field 'n' would be sent without noise: it has rows="):
        LaplaceMechanism(clip=1.0, scale=1.0)._noised(honest, form, np.arange(2), "n")


def test_noise_does_not_hide_what_is_not_finite():
    form = Form((3, 2), clip=1.0)
    values = np.ones((2, 3, 2))
    values[1, 0, 0] = np.nan
    honest = with_form(Ragged.stacked(values), form)
    noised = LaplaceMechanism(clip=1.0, scale=1.0)._noised(honest, form, np.arange(2), "x")
    assert noised.finite(np.ones(2, dtype=bool)).tolist() == [True, False]


# ------------------------------------------------------------------------------ aggregators


class Plain(Aggregator):
    """As a user writes it."""

    def combine(self, uploads, shapes):
        return plain_sum(uploads, shapes)


class Returning(Aggregator):
    def __init__(self, change=None):
        self.change = change

    def combine(self, uploads, shapes):
        return self.change(plain_sum(uploads, shapes))


AGGREGATORS = [
    NormClipping(1.5),
    NormClipping(),
    NormClipping(multiple=0.5),
    CoordinateMedian(),
    TrimmedMean(0.25),
    Krum(2),
    Krum(1, n_selected=3),
    GeometricMedian(4),
    RowClipping(0.9),
    RowClipping(multiple=0.5),
    HierarchicalClipping(),
    HierarchicalClipping(multiple=0.5, total_multiple=0.8, share=0.6),
    PopularityFilter(0.0, popular=0.3),
]
every_aggregator = pytest.mark.parametrize("aggregator", AGGREGATORS, ids=str)


@every_aggregator
@pytest.mark.parametrize("one_by_one", [False, True])
def test_batches_are_combined_as_their_clients_one_by_one(aggregator, one_by_one):
    batches = make_batches()
    uploads = [
        batch.upload(k)
        for _, batch, k in sorted(
            (batch.clients[k], batch, k)
            for batch in batches
            for k in np.flatnonzero(batch.accepted)
        )
    ]
    shapes = {name: form.shape for name, form in FORMS.items()}
    expected = aggregator.combine(uploads, shapes)
    found = aggregator._combine_batches([listed(b) for b in batches] if one_by_one else batches)
    assert found.keys() == FORMS.keys()
    for name, form in FORMS.items():
        assert found[name].shape == form.shape
        assert found[name].dtype == form.sum_dtype
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", FORMS)
def test_aggregators_equal_the_naive_reference(name):
    batches = make_batches({name: FORMS[name]})
    changes = list(dense(batches, name).astype(float))
    n, form = len(changes), FORMS[name]
    assert n == 8
    norms = [np.linalg.norm(change) for change in changes]
    for aggregator, expected in {
        NormClipping(1.2): reference.clipped_sum(changes, 1.2),
        NormClipping(): reference.clipped_sum(changes, np.median(norms)),
        CoordinateMedian(): n * reference.median(changes),
        TrimmedMean(0.3): n * reference.trimmed_mean(changes, 3),
        Krum(1): n * reference.krum(changes, 1, 1),
        Krum(2, n_selected=2): n * reference.krum(changes, 2, 2),
    }.items():
        found = aggregator._combine_batches(batches)[name]
        if form.is_integer:
            assert found.dtype == np.int64
            assert np.abs(found - expected).max() <= 0.5 + 1e-9
        else:
            np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("max_bytes", [1, 8 * 3 * 8 * 2, 10**6])
def test_tiles_cut_up_all_clients_changes(max_bytes):
    batches = make_batches()
    batches[1] = listed(batches[1])
    for name, form in FORMS.items():
        rows, stacks = zip(*tiles(batches, name, max_bytes), strict=True)
        whole = dense(batches, name)
        stack = np.concatenate(stacks, axis=1)
        np.testing.assert_allclose(stack, whole.reshape(len(whole), form.shape[0], -1), atol=1e-12)
        assert max_bytes > 1 or len(rows) == form.shape[0]
        assert np.concatenate([np.arange(99)[r] for r in rows]).tolist() == list(
            range(form.shape[0])
        )


def test_rows_that_no_form_sends_are_zero_in_tiles_although_there_is_a_common_change():
    batch = make_batch(range(6), forms={"followed": FORMS["followed"]})
    held = Form((N_ITEMS, WIDTH), rows="held")
    batch.forms = {"followed": held}
    batch.changes = {"followed": with_form(batch.changes["followed"], held)}
    [(_, stack)] = tiles([batch], "followed")
    np.testing.assert_allclose(stack, dense([batch], "followed"))


def test_a_users_own_combine_gets_the_accepted_uploads_in_the_order_of_the_codes():
    batches = make_batches()
    seen = []

    class Looking(Aggregator):
        def combine(self, uploads, shapes):
            seen.extend([len(uploads), uploads[0], uploads[-1], uploads[1:3], list(uploads)])
            with pytest.raises(IndexError):
                uploads[8]
            assert shapes == {name: form.shape for name, form in FORMS.items()}
            return plain_sum(uploads, shapes)

    sums = Looking()._combine_batches(batches)
    n, first, last, some, everyone = seen
    whole = dense(batches, "gram")
    assert n == len(everyone) == len(whole) == 8
    grams = [upload["gram"].change for upload in everyone]
    np.testing.assert_allclose(grams, whole)
    np.testing.assert_array_equal(first["gram"].change, grams[0])
    np.testing.assert_array_equal(last["gram"].change, grams[-1])
    np.testing.assert_array_equal(some[1]["gram"].change, grams[2])
    for name, form in FORMS.items():
        assert sums[name].dtype == form.sum_dtype
        expected = sum(batch.sum_of_changes(name) for batch in batches)
        np.testing.assert_allclose(sums[name], expected, atol=1e-9)


def test_integers_are_rounded_whatever_a_users_own_combine_returns():
    batches = make_batches({"votes": FORMS["votes"]})
    half = Returning(lambda sums: {"votes": sums["votes"] / 2 + 0.1})
    total = sum(batch.sum_of_changes("votes") for batch in batches)
    found = half._combine_batches(batches)["votes"]
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, np.rint(total / 2 + 0.1))
    huge = Returning(lambda sums: {"votes": sums["votes"] * 0 + 1e40})
    assert (huge._combine_batches(batches)["votes"] == 2**62).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: {"gram": s["gram"]},
            r"Returning.combine returned \['gram'\];.*\['bias', 'gram'\]",
        ),
        (lambda s: {**s, "x": s["gram"]}, r"returned \['bias', 'gram', 'x'\]"),
        (lambda s: s["gram"], "Returning.combine returned ndarray"),
        (
            lambda s: {**s, "gram": s["gram"][0]},
            r"Returning.combine .*shape \(3,\) .*'gram'; return numbers of shape \(3, 3\)",
        ),
        (lambda s: {**s, "gram": "no"}, r"shape \(\) and dtype <U2 for field 'gram'"),
        (lambda s: {**s, "bias": s["bias"] * np.nan}, r"NaN or infinite .*'bias' of shape \(7,\)"),
        (lambda s: {**s, "bias": s["bias"] + np.inf}, r"NaN or infinite .*'bias' of shape \(7,\)"),
    ],
)
def test_what_an_aggregator_must_not_return_is_named(change, message):
    batches = make_batches({name: FORMS[name] for name in ("bias", "gram")})
    with pytest.raises(ValueError, match=message):
        Returning(change)._combine_batches(batches)


def test_too_few_uploads_change_nothing():
    batches = make_batches()
    assert Returning(lambda sums: None)._combine_batches(batches) is None
    assert Krum(3)._combine_batches(batches) is None
    assert Krum(2)._combine_batches(batches) is not None
    for batch in batches:
        batch.accepted[:] = False
    for aggregator in [Plain(), *AGGREGATORS]:
        assert aggregator._combine_batches(batches) is None


def test_a_users_combine_takes_precedence_over_an_inherited_one():
    class Few(NormClipping):
        def combine(self, uploads, shapes):
            return super().combine(uploads[:3], shapes)

    batches = make_batches({"gram": FORMS["gram"]})
    first = list(dense(batches, "gram")[:3])
    bound = np.median([np.linalg.norm(change) for change in first])
    expected = reference.clipped_sum(first, bound)
    np.testing.assert_allclose(Few()._combine_batches(batches)["gram"], expected)


@pytest.mark.filterwarnings("error")
def test_uploads_too_large_for_their_squares_do_not_stop_robust_aggregators():
    batches = make_batches({"gram": FORMS["gram"]})
    largest = batches[0].clients[0]
    for batch in batches:
        values = batch.changes["gram"].values.astype(float)
        values[: 3 * (batch.clients[0] == largest)] = 1e200
        batch.changes["gram"] = Ragged(**{**vars(batch.changes["gram"]), "values": values})
    whole = dense(batches, "gram")
    honest = np.abs(whole).max(axis=(1, 2)) < 1e100
    assert honest.sum() == 7
    defences = [NormClipping(), CoordinateMedian(), TrimmedMean(0.25), Krum(1), Krum(2)]
    defences += [GeometricMedian(), RowClipping(), HierarchicalClipping(), PopularityFilter()]
    for aggregator in defences:
        total = aggregator._combine_batches(batches)["gram"]
        assert np.abs(total).max() < 1e3
    np.testing.assert_allclose(
        NormClipping(10.0)._combine_batches(batches)["gram"], whole[honest].sum(axis=0)
    )


@every_attack
@every_aggregator
def test_forged_batches_are_combined_like_written_down_ones(adversary, aggregator):
    batches = make_batches()
    forged = adversary._forged_batch(VIEW, batches[0], seeds_of(batches[0]), False)
    lazy = Batch(**{**vars(batches[0]), "changes": forged})
    found = aggregator._combine_batches([lazy, batches[1]])
    expected = aggregator._combine_batches([listed(lazy), batches[1]])
    for name in FORMS:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-9)
