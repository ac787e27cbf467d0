"""One number that is wrong, wherever it is in an upload."""

import numpy as np
import pytest

from fedrecsk.protocol.client_message import ClientMessage, Numbers, are_numbers, unpacked
from fedrecsk.updates import FieldSpec

LARGEST = 1e15


def everywhere(values, number):
    """Copies of the array with the number in one place, for every place."""
    for place in np.ndindex(values.shape):
        copy = values.copy()
        copy[place] = number
        yield copy


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 3, 2)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_sum_with_one_number_that_is_not_finite_or_too_large_is_none(shape, dtype):
    spec, values = FieldSpec(shape), np.ones(shape, dtype)
    assert are_numbers(values, spec, shape)
    for broken in (np.nan, np.inf, -np.inf):
        assert not any(are_numbers(copy, spec, shape) for copy in everywhere(values, broken))
    if dtype == "float64":
        for number in (LARGEST, -LARGEST):
            assert all(are_numbers(copy, spec, shape) for copy in everywhere(values, number))
            copies = list(everywhere(values, 1.01 * number))
            assert not any(are_numbers(copy, spec, shape) for copy in copies)
            assert all(are_numbers(copy, spec, shape, 2) for copy in copies)


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


def test_before_the_rounds_clients_name_as_many_items_as_they_have_registered():
    specs = {"x": FieldSpec((9,), "held", dtype="uint8", learned=False)}
    for n_rows in (3, 4, 5):
        numbers = Numbers(np.ones(n_rows, dtype=np.uint8), np.arange(n_rows))
        one = unpacked(ClientMessage("setup", 0, 0, {"x": numbers}), specs, 4, hold=True)
        assert one.accepted.tolist() == [n_rows == 4]
