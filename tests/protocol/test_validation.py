"""One number that is wrong, wherever it is in an upload."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedrecsk import Federation
from fedrecsk.data.interactions import encode
from fedrecsk.protocol.blocks import of_clients
from fedrecsk.protocol.client_message import ClientMessage, Numbers, are_numbers, unpacked
from fedrecsk.protocol.outgoing import completed
from fedrecsk.protocol.participation import RoundMasks
from fedrecsk.updates import ClientUpdates, FieldSpec

BROKEN = pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
LARGEST = 1e15
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
    spec, values = FieldSpec(shape), np.ones(shape, dtype)
    assert are_numbers(values, spec, shape)
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
    for number in (np.nan, np.inf, -np.inf):
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


@BROKEN
@SHAPES
def test_a_simulated_sum_with_one_number_that_is_not_finite_is_left_out(shape, broken):
    block = of_clients(encode(np.stack([np.arange(3), np.zeros(3)], axis=1)), np.arange(3))
    clients = SimpleNamespace(method=None, block=block, federation=Federation())
    turn = RoundMasks(*np.ones((2, 3), dtype=bool), False)
    for copy in everywhere(np.ones(shape), broken):
        updates = ClientUpdates({"x": copy})
        specs = {"x": FieldSpec(shape)}
        one = completed(clients, updates, ("round", 0), specs, turn, single=False)
        assert (one.n_accepted, one.fields) == (0, {})
