"""One number that is wrong, wherever it is in an upload."""

import numpy as np
import pytest

from fedrecsk.protocol.client_message import ClientMessage, Numbers, are_numbers, unpacked
from fedrecsk.updates import FieldSpec

BROKEN = np.nan, np.inf, -np.inf
LARGEST = 1e15
SHAPES = pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 3, 2)])


def everywhere(values, number):
    """Copies of the array with the number in one place, for every place."""
    for place in np.ndindex(values.shape):
        copy = values.copy()
        copy[place] = number
        yield copy


@SHAPES
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_sum_with_one_number_that_is_not_finite_is_none(shape, dtype):
    spec, values = FieldSpec(shape), np.ones(shape, dtype)
    assert are_numbers(values, spec, shape)
    for broken in BROKEN:
        assert not any(are_numbers(copy, spec, shape) for copy in everywhere(values, broken))


@pytest.mark.parametrize(
    ("spec", "lowest", "highest"),
    [
        (FieldSpec((4, 3), dtype="int8"), -128, 127),
        (FieldSpec((4, 3), dtype="uint8"), 0, 255),
        (FieldSpec((4, 3), dtype="bool"), 0, 1),
        (FieldSpec((4, 3), bits=True), -1, 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("n_clients", [1, 3])
def test_an_integer_that_so_many_clients_cannot_send_is_found(spec, lowest, highest, n_clients):
    values = np.ones((4, 3), dtype=np.int64)
    for number in (n_clients * lowest, n_clients * highest):
        for copy in everywhere(values, number):
            assert are_numbers(copy, spec, (4, 3), n_clients)
    for number in (n_clients * lowest - 1, n_clients * highest + 1):
        for copy in everywhere(values, number):
            assert not are_numbers(copy, spec, (4, 3), n_clients)
    # A bit is +1 or -1, and two of them may add up to 0.
    zeros = [are_numbers(copy, spec, (4, 3), n_clients) for copy in everywhere(values, 0)]
    assert set(zeros) == {not spec.bits or n_clients > 1}


PARCELS = {
    "all": (FieldSpec((4, 3)), None, None),
    "held": (FieldSpec((9, 3), "held"), None, None),
    "chosen": (FieldSpec((9, 3), "chosen"), np.array([0, 2, 5, 8]), None),
    "columns": (FieldSpec((4, 5)), None, np.array([False, True, True, False, True])),
    "float64": (FieldSpec((4, 3), dtype="float64"), None, None),
}


@pytest.mark.parametrize("kind", PARCELS)
@pytest.mark.parametrize("hold", [True, False])
def test_an_upload_with_one_wrong_number_is_rejected(kind, hold):
    spec, rows, columns = PARCELS[kind]
    specs, held = {"x": spec}, np.array([1, 2, 3, 8])

    def accepts(values):
        upload = ClientMessage("round", 0, 0, {"x": Numbers(values, rows, columns)})
        return bool(unpacked(upload, specs, 4, held=held, hold=hold).accepted.all())

    values = np.ones((4, 3))
    assert accepts(values)
    for number in BROKEN:
        assert not any(accepts(copy) for copy in everywhere(values, number))
    for number in (LARGEST, -LARGEST):
        assert all(accepts(copy) for copy in everywhere(values, number))
        assert not any(accepts(copy) for copy in everywhere(values, 1.01 * number))


def test_before_the_rounds_clients_name_as_many_items_as_they_have_registered():
    specs = {"x": FieldSpec((9,), "held", dtype="uint8", learned=False)}
    for n_rows in (3, 4, 5):
        numbers = Numbers(np.ones(n_rows, dtype=np.uint8), np.arange(n_rows))
        one = unpacked(ClientMessage("setup", 0, 0, {"x": numbers}), specs, 4, hold=True)
        assert one.accepted.tolist() == [n_rows == 4]
