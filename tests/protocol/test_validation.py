"""One number that is wrong in an upload."""

import numpy as np
import pytest

from fedrecsk.deployment.client_message import are_numbers
from fedrecsk.updates import FieldSpec

SHAPE = (4, 3)
LARGEST = 1e15


@pytest.mark.parametrize(
    ("spec", "lowest", "highest", "step"),
    [
        (FieldSpec(SHAPE), -LARGEST, LARGEST, 0.01 * LARGEST),
        (FieldSpec(SHAPE, dtype="int8"), -128, 127, 1),
        (FieldSpec(SHAPE, dtype="uint8"), 0, 255, 1),
        (FieldSpec(SHAPE, dtype="bool"), 0, 1, 1),
        (FieldSpec(SHAPE, bits=True), -1, 1, 1),
    ],
    ids=str,
)
def test_a_number_that_a_client_cannot_send_is_found(spec, lowest, highest, step):
    def is_valid(number):
        values = np.ones(SHAPE, dtype=np.int64 if spec.is_integer else np.float64)
        values[2, 1] = number
        return are_numbers(values, spec, SHAPE)

    assert is_valid(lowest)
    assert is_valid(highest)
    assert not is_valid(lowest - step)
    assert not is_valid(highest + step)
    # A bit is +1 or -1.
    assert is_valid(0) != spec.bits
