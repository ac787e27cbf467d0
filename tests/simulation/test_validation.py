"""One number that is wrong, wherever it is in an upload."""

from dataclasses import replace

import numpy as np
import pytest

from fedrecsk.simulation.contributions import Contribution, measured
from fedrecsk.simulation.parcel import Numbers, Parcel, unpacked
from fedrecsk.simulation.participation import Turn
from fedrecsk.simulation.validation import are_numbers, validated
from fedrecsk.uploads import Batch, Common, Form, Listed, Ragged, Update

BROKEN = pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
LARGEST = float(np.finfo("float32").max)
SHAPES = pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 3, 2)])


def everywhere(values, number):
    """Copies of the array with the number in one place, for every place."""
    for place in np.ndindex(values.shape):
        copy = values.copy()
        copy[place] = number
        yield copy


@BROKEN
@SHAPES
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_sum_with_one_number_that_is_not_finite_is_none(shape, dtype, broken):
    form, values = Form(shape), np.ones(shape, dtype)
    assert are_numbers(values, form, shape)
    assert not any(are_numbers(copy, form, shape) for copy in everywhere(values, broken))


@pytest.mark.parametrize(
    ("form", "lowest", "highest"),
    [
        (Form((4, 3), dtype="int8"), -128, 127),
        (Form((4, 3), dtype="uint8"), 0, 255),
        (Form((4, 3), dtype="bool"), 0, 1),
        (Form((4, 3), bits=True), -1, 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("n_clients", [1, 3])
def test_an_integer_that_so_many_clients_cannot_send_is_found(form, lowest, highest, n_clients):
    values = np.ones((4, 3), dtype=np.int64)
    for number in (n_clients * lowest, n_clients * highest):
        for copy in everywhere(values, number):
            assert are_numbers(copy, form, (4, 3), n_clients)
    for number in (n_clients * lowest - 1, n_clients * highest + 1):
        for copy in everywhere(values, number):
            assert not are_numbers(copy, form, (4, 3), n_clients)
    # A bit is +1 or -1, and two of them may add up to 0.
    zeros = [are_numbers(copy, form, (4, 3), n_clients) for copy in everywhere(values, 0)]
    assert set(zeros) == {not form.bits or n_clients > 1}


PARCELS = {
    "all": (Form((4, 3)), None, None),
    "held": (Form((9, 3), "held"), None, None),
    "chosen": (Form((9, 3), "chosen"), np.array([0, 2, 5, 8]), None),
    "columns": (Form((4, 5)), None, np.array([False, True, True, False, True])),
    "a bound of its own": (Form((4, 3), dtype="float64"), None, None),
}


@pytest.mark.parametrize("kind", PARCELS)
@pytest.mark.parametrize("hold", [True, False])
def test_a_parcel_with_one_wrong_number_is_rejected(kind, hold):
    form, rows, columns = PARCELS[kind]
    forms, held = {"x": form}, np.array([1, 2, 3, 8])

    def accepts(values):
        parcel = Parcel("round", 0, 0, {"x": Numbers(values, rows, columns)})
        return bool(unpacked(parcel, forms, 4, held=held, hold=hold).accepted.all())

    values = np.ones((4, 3))
    assert accepts(values)
    for number in (np.nan, np.inf, -np.inf):
        assert not any(accepts(copy) for copy in everywhere(values, number))
    # The numbers of a message are float32, unless the field has a type of its own.
    for number in (LARGEST, -LARGEST):
        assert all(accepts(copy) for copy in everywhere(values, number))
        beyond = [accepts(copy) for copy in everywhere(values, 1.01 * number)]
        assert set(beyond) == {form.dtype == "float64"}


def test_before_the_rounds_clients_name_as_many_items_as_they_have_registered():
    forms = {"x": Form((9,), "held", dtype="uint8", learned=False)}
    for n_rows in (3, 4, 5):
        numbers = Numbers(np.ones(n_rows, dtype=np.uint8), np.arange(n_rows))
        one = unpacked(Parcel("setup", 0, 0, {"x": numbers}), forms, 4, hold=True)
        assert one.accepted.tolist() == [n_rows == 4]


@BROKEN
@SHAPES
def test_a_simulated_sum_with_one_number_that_is_not_finite_is_left_out(shape, broken):
    sizes = measured({"x": None}, {"x": Form(shape)}, np.full(3, 2), "float32")
    turn = Turn(EVERYONE, EVERYONE, False)
    for copy in everywhere(np.ones(shape), broken):
        one = Contribution.of_sums(("round", 0), CLIENTS, turn, None, {"x": copy}, sizes)
        assert (one.accepted.any(), one.sums) == (False, {})


FORM = Form((5, 3))
CLIENTS = np.arange(3)
EVERYONE = np.ones(3, dtype=bool)


def single(changes, centers=None, form=FORM):
    """A contribution of three clients' single uploads."""
    sizes = measured({"x": None}, {"x": form}, np.full(3, 2), "float32")
    masks = EVERYONE, EVERYONE, EVERYONE.copy()
    batch = Batch(CLIENTS, *masks, {"x": form}, {"x": changes}, {}, centers or {}, sizes)
    return Contribution.of_batch(("round", 0), batch, hold=True)


def accepted(changes, centers=None):
    return validated(single(changes, centers), {"x": FORM}, {}).accepted.tolist()


def two_rows_each(**parts):
    rows = np.array([0, 1, 2, 3, 1, 4])
    return Ragged(np.array([0, 2, 4, 6]), rows, np.ones((6, 3)), form=FORM, **parts)


@BROKEN
def test_a_single_upload_with_one_number_that_is_not_finite_is_rejected(broken):
    whole = two_rows_each(origin=np.ones((5, 3)), common=Common(np.ones((5, 3))))
    assert accepted(whole) == [True] * 3
    for k, values in enumerate(everywhere(whole.values, broken)):
        # Each client has two rows of three numbers.
        others = [client != k // 6 for client in range(3)]
        assert accepted(replace(whole, values=values)) == others
        listed = Listed([Update(r, v) for r, v in zip_by_client(whole.rows, values)], FORM)
        assert accepted(listed) == others


def zip_by_client(rows, values):
    return zip(np.split(rows, 3), np.split(values, 3), strict=True)


@BROKEN
def test_what_all_clients_have_in_common_must_be_finite_too(broken):
    ones = np.ones((5, 3))
    for copy in everywhere(ones, broken):
        assert accepted(two_rows_each(common=Common(copy))) == [False] * 3
        assert accepted(two_rows_each(origin=copy)) == [False] * 3
        assert accepted(two_rows_each(), {"x": copy}) == [False] * 3
    assert accepted(two_rows_each(), {"x": ones}) == [True] * 3
