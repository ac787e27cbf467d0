"""Forms of uploads, and uploads client by client against whole arrays."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrecsk.simulation.uplink import _largest
from fedrecsk.uploads import (
    Batch,
    Changes,
    Common,
    Form,
    Listed,
    Ragged,
    Update,
    add_sums,
    as_integers,
)

N_ROWS, WIDTH = 6, 3


def drawn(seed, n_clients, *, rows="all", shared=False, origin=False, integers=False, width=WIDTH):
    """A Ragged of random clients and, written down naively, the change of each of them."""
    rng = np.random.default_rng(seed)
    shape = (N_ROWS,) if width is None else (N_ROWS, width)
    own = [np.flatnonzero(rng.random(N_ROWS) < 0.5) for _ in range(n_clients)]
    indptr = np.concatenate([[0], np.cumsum([len(r) for r in own])]).astype(np.int64)
    numbers = np.concatenate([np.empty(0, dtype=int), *own]).astype(np.int32)
    size = (len(numbers), *shape[1:])
    values = rng.integers(-9, 9, size) if integers else rng.standard_normal(size)
    values = values if integers else values.astype(np.float32)
    start = rng.standard_normal(shape) if origin else None
    common = Common(rng.standard_normal(shape)) if shared else None
    form = Form(shape, rows, dtype="int64" if integers else None)
    ragged = Ragged(indptr, numbers, values, origin=start, common=common, form=form)
    wholes = np.zeros((n_clients, *shape), dtype=np.int64 if integers else np.float64)
    for client in range(n_clients):
        if shared:
            wholes[client] = common.change
        for k in range(indptr[client], indptr[client + 1]):
            wholes[client, numbers[k]] = values[k]
            if origin:
                wholes[client, numbers[k]] -= start[numbers[k]]
    return ragged, wholes


KINDS = pytest.mark.parametrize(
    "kind",
    [
        {},
        {"shared": True},
        {"origin": True},
        {"shared": True, "origin": True},
        {"rows": "held"},
        {"rows": "chosen", "origin": True},
        {"integers": True},
        {"integers": True, "rows": "chosen"},
        {"width": None},
        {"width": None, "rows": "held", "origin": True},
    ],
    ids=str,
)


class Naive(Changes):
    """The same changes, known one by one only: what the base class makes of them."""

    def __init__(self, ragged):
        self.ragged, self.shape, self.n_clients = ragged, ragged.shape, ragged.n_clients
        self.is_integer = ragged.is_integer

    def update(self, client):
        return self.ragged.update(client)


@KINDS
@settings(deadline=None)
@given(seed=st.integers(0, 99), n_clients=st.integers(1, 5), data=st.data())
def test_ragged_changes_are_those_written_down_in_full(kind, seed, n_clients, data):
    ragged, wholes = drawn(seed, n_clients, **kind)
    masks = st.lists(st.booleans(), min_size=n_clients, max_size=n_clients).map(np.array)
    whom = data.draw(masks)
    weights = np.random.default_rng(seed).integers(-3, 4, n_clients).astype(float)
    for changes in (ragged, Naive(ragged)):
        assert changes.n_clients == n_clients
        assert changes.shape == wholes.shape[1:]
        for client in range(n_clients):
            whole = changes.whole(client)
            np.testing.assert_allclose(whole, wholes[client], atol=1e-12)
            assert whole.dtype == wholes.dtype
            rows, change = changes.update(client)
            assert change.dtype == wholes.dtype
            np.testing.assert_allclose(change, wholes[client][rows], atol=1e-12)
        flat = wholes.reshape(n_clients, -1)
        norms = np.where(whom, np.linalg.norm(flat, axis=1), 0)
        np.testing.assert_allclose(changes.norms(whom), norms, atol=1e-6)
        largest = np.where(whom, np.abs(flat).max(axis=1, initial=0), 0)
        if kind.get("shared"):
            # An upper bound is enough for what it is asked.
            assert (changes.largest(whom) >= largest - 1e-12).all()
            assert (changes.largest(~whom)[whom] == 0).all()
        else:
            np.testing.assert_allclose(changes.largest(whom), largest, atol=1e-12)
        assert changes.finite(whom).all()
        sums = np.zeros(ragged.shape, dtype=wholes.dtype)
        changes.add_to(sums, (weights * whom).astype(sums.dtype))
        expected = np.tensordot(weights * whom, wholes, 1)
        np.testing.assert_allclose(sums, expected, atol=1e-9)


@KINDS
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_clients_with_a_number_that_is_not_finite_are_found(kind, broken):
    if kind.get("integers"):
        kind = {"rows": kind.get("rows", "all")}
    ragged, _ = drawn(3, 5, **kind)
    values = ragged.values.copy()
    last = ragged.indptr[3] - 1
    assert last >= ragged.indptr[2]
    values[last] = (
        np.where(np.arange(values[last].size) == 1, broken, 1.0) if values.ndim > 1 else broken
    )
    ragged = replace(ragged, values=values)
    everyone = np.ones(5, dtype=bool)
    for changes in (ragged, Naive(ragged)):
        assert changes.finite(everyone).tolist() == [True, True, False, True, True]
        # Clients outside the mask count as finite.
        assert changes.finite(np.arange(5) != 2).all()


def test_a_common_change_that_is_not_finite_affects_all_clients():
    ragged, _ = drawn(3, 5, shared=True)
    change = ragged.common.change.copy()
    change[0, 0] = np.nan
    ragged = replace(ragged, common=Common(change))
    whom = np.arange(5) < 3
    assert ragged.finite(whom).tolist() == [False] * 3 + [True] * 2


@KINDS
@pytest.mark.parametrize("factor", [-2.0, 0.5])
def test_scaled_changes_are_the_changes_times_the_factor(kind, factor):
    ragged, wholes = drawn(4, 4, **kind)
    expected = factor * wholes
    if kind.get("integers"):
        expected = np.rint(expected).astype(np.int64)
    scaled = ragged.scaled(factor)
    for client in range(4):
        np.testing.assert_allclose(scaled.whole(client), expected[client], atol=1e-6)
    assert scaled.is_integer == ragged.is_integer


def test_stacked_arrays_cross_whole():
    values = np.arange(12.0).reshape(3, 2, 2)
    origin, center = np.ones((2, 2)), 5 * np.ones((2, 2))
    stacked = replace(Ragged.stacked(values, origin=origin, center=center), form=Form((2, 2)))
    for client in range(3):
        np.testing.assert_array_equal(stacked.whole(client), values[client] - 1)
    assert stacked.center is center
    flat = replace(Ragged.stacked(np.arange(6.0).reshape(3, 2)), form=Form((2,)))
    assert flat.whole(2).tolist() == [4, 5]


def test_a_common_change_knows_its_size_and_its_order():
    common = Common([[0, -3], [2, 0], [0.5, 3]])
    assert common.row_squares.tolist() == [9, 4, 9.25]
    assert common.square == 22.25
    order, sizes, rank = common.descending
    assert order.tolist() == [1, 5, 2, 4]
    assert sizes.tolist() == [3, 3, 2, 0.5]
    assert rank.tolist() == [[6, 0], [2, 6], [3, 1]]
    assert common.scaled(-2).change.tolist() == [[0, 6], [-4, 0], [-1, -6]]


# -------------------------------------------------------------------------------- forms


def test_a_form_weighs_what_a_client_sends():
    every, held = Form((9, 4)), Form((9, 4), "held")
    chosen = Form((9, 4), "chosen")
    n_rows, wire = np.array([2, 5]), "float32"
    assert every.nbytes(wire, n_rows).tolist() == [144, 144]
    assert held.nbytes(wire, n_rows).tolist() == [32, 80]
    assert chosen.nbytes(wire, n_rows).tolist() == [40, 100]
    assert chosen.payload_nbytes(wire, n_rows).tolist() == [32, 80]
    assert held.nbytes("float64", n_rows).tolist() == [64, 160]
    assert Form((9, 4), dtype="uint8").nbytes(wire, n_rows).tolist() == [36, 36]
    assert Form((9, 4), learned=False).payload_nbytes(wire, n_rows).tolist() == [0, 0]
    assert every.coordinates(n_rows).tolist() == [36, 36]
    assert held.coordinates(n_rows, np.array([1, 3])).tolist() == [2, 15]
    assert held.nbytes(wire, n_rows, np.array([1, 3])).tolist() == [8, 60]


@pytest.mark.parametrize(("shape", "width"), [((9,), 1), ((9, 4), 4), ((9, 2, 3), 6), ((9, 0), 0)])
def test_the_width_of_a_form_is_the_numbers_in_a_row(shape, width):
    assert Form(shape).width == width


@pytest.mark.parametrize(("columns", "words"), [(1, 1), (64, 1), (65, 2), (128, 2), (129, 3)])
def test_bits_are_sent_in_words_of_64_a_row(columns, words):
    form = Form((9, columns), "chosen", bits=True)
    assert form.nbytes("float32", np.array([3])).tolist() == [3 * (8 * words + 4)]


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        (Form((2,)), np.float64),
        (Form((2,), dtype="float32"), np.float64),
        (Form((2,), dtype="uint8"), np.int64),
        (Form((2,), dtype="int64"), np.int64),
        (Form((2,), bits=True), np.int64),
    ],
)
def test_integers_add_up_as_integers(form, dtype):
    assert form.sum_dtype is dtype
    assert form.is_integer == (dtype is np.int64)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (Form((5,), dtype="int64"), [0, -2, 300, 2**53, -(2**53)]),
        (Form((5,), dtype="int8"), [0, -2, 127, 127, -128]),
        (Form((5,), dtype="uint16"), [0, 0, 300, 2**16 - 1, 0]),
        (Form((5,), dtype="bool"), [0, 0, 1, 1, 0]),
        (Form((5,), bits=True), [1, -1, 1, 1, -1]),
    ],
)
def test_numbers_become_the_nearest_integers_that_can_be_sent(form, expected):
    integers = as_integers([0.0, -1.6, 300.4, 1e300, -1e300], form)
    assert integers.dtype == np.int64
    assert integers.tolist() == expected


@pytest.mark.parametrize("form", [Form((3,), dtype="int8"), Form((3,), bits=True)])
def test_what_is_not_finite_stays_so_among_integers(form):
    np.testing.assert_array_equal(as_integers([np.nan, np.inf, 1.4], form), [np.nan, np.inf, 1])


# ------------------------------------------------------------------------------- batches


def batch():
    """Four clients; the second one's upload is not accepted, the last one sends nothing."""
    forms = {"q": Form((N_ROWS, WIDTH)), "n": Form((N_ROWS,), dtype="uint8", learned=False)}
    changes, wholes = drawn(1, 4, shared=True)
    changes = replace(changes, form=forms["q"])
    ones = np.ones(len(changes.rows), dtype=np.uint8)
    counts = Ragged(changes.indptr, changes.rows, ones, form=forms["n"])
    accepted = np.array([True, False, True, False])
    sends = np.array([True, True, True, False])
    center = np.full((N_ROWS, WIDTH), 2.0)
    both = {"q": changes}, {"n": counts}
    one = Batch(np.array([5, 3, 8, 1]), sends, sends, accepted, forms, *both, {"q": center})
    return one, wholes


def test_a_batch_adds_up_its_accepted_clients():
    one, wholes = batch()
    assert one.n_accepted == 2
    np.testing.assert_allclose(one.sum_of_changes("q"), wholes[0] + wholes[2])
    weights = np.array([0.5, 9, 2, 9])
    np.testing.assert_allclose(one.sum_of_changes("q", weights), 0.5 * wholes[0] + 2 * wholes[2])
    rest = one.sum_of_rest()
    np.testing.assert_array_equal(rest["q"], np.full((N_ROWS, WIDTH), 4.0))
    counts = one.counts["n"]
    assert rest["n"].dtype == np.int64
    assert rest["n"].tolist() == (counts.whole(0) + counts.whole(2)).tolist()


def test_what_is_encrypted_of_a_client_adds_up_to_the_sums():
    one, _ = batch()
    wholes = [one.whole(client) for client in np.flatnonzero(one.accepted)]
    assert list(wholes[0]) == ["q", "n"]
    sums = one.sum_of_rest()
    add_sums(sums, {"q": one.sum_of_changes("q")})
    for name, total in sums.items():
        np.testing.assert_allclose(sum(whole[name] for whole in wholes), total)


def test_nothing_that_is_encrypted_is_larger_than_the_bound():
    one, _ = batch()
    # A change away from the centre, and one towards it.
    for sign in (1, -1):
        both = replace(one, centers={"q": sign * one.centers["q"]})
        wholes = [both.whole(client).values() for client in np.flatnonzero(both.accepted)]
        largest = max(np.abs(values).max() for whole in wholes for values in whole)
        assert largest <= _largest(both) < 2 * largest


def test_users_own_classes_get_what_was_learned_alone():
    one, wholes = batch()
    upload = one.upload(2)
    assert list(upload) == ["q"]
    np.testing.assert_allclose(upload["q"].change, wholes[2])


def test_listed_changes_are_what_was_written_down():
    updates = [Update(np.array([1, 4]), np.ones((2, WIDTH))), None]
    listed = Listed(updates, Form((N_ROWS, WIDTH), "held"))
    sends = np.array([True, False])
    assert listed.norms(sends).tolist() == [np.sqrt(6), 0]
    sums = np.zeros((N_ROWS, WIDTH))
    listed.add_to(sums, np.array([2.0, 0.0]))
    assert sums.sum(axis=1).tolist() == [0, 6, 0, 0, 6, 0]


def test_sums_are_never_added_in_place():
    theirs = {"q": np.ones(2)}
    totals = {}
    for _ in range(3):
        add_sums(totals, theirs)
    assert totals["q"].tolist() == [3, 3]
    assert theirs["q"].tolist() == [1, 1]
