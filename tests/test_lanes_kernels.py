"""Rows as vectors against their plain twins, and the logistic function against SciPy's."""

import numpy as np
import pytest
from scipy.special import expit

from fedrecsk._kernels import _lanes
from fedrecsk._kernels._jit import kernel

BOTH_TYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
WIDTHS = pytest.mark.parametrize("width", [1, 3, 4, 5, 16, 20, 21, 64])


@kernel
def dot_row(x, k, y, i):
    return _lanes.dot_row(x, k, y, i)


@kernel
def add_row(total, i, number, x, k):
    _lanes.add_row(total, i, number, x, k)


@kernel
def add_change(total, i, x, k, origin, clip):
    _lanes.add_change(total, i, x, k, origin, clip)


@kernel
def descend_row(x, k, mean, square, centre, i, partner, p, factors, rule):
    _lanes.descend_row(x, k, mean, square, centre, i, partner, p, factors, rule)


@kernel
def step_row(x, k, mean, square, centre, i, user, factors, rule, total, t, origin, clip):
    _lanes.step_row(x, k, mean, square, centre, i, user, factors, rule, total, t, origin, clip)


@kernel
def add_inverse(total, i, number, x, k, shift):
    _lanes.add_inverse(total, i, number, x, k, shift)


@kernel
def add_outer(total, numbers, n, x, k):
    _lanes.add_outer(total, numbers, n, x, k)


@kernel
def clear_rows(x, n):
    _lanes.clear_rows(x, n)


@kernel
def scale_row(copy, i, number, x, k):
    _lanes.scale_row(copy, i, number, x, k)


@kernel
def copy_row(copy, scaled, a, x, k, number):
    _lanes.copy_row(copy, scaled, a, x, k, number)


@kernel
def multiply(product, left, right, n_rows, n_inner):
    _lanes.multiply(product, left, right, n_rows, n_inner)


@kernel
def multiply_turned(product, left, right, n_inner):
    _lanes.multiply_turned(product, left, right, n_inner)


@kernel
def logistic(x, n):
    _lanes.logistic(x, n)


def matrices(width, dtype, n):
    return np.random.default_rng(width).normal(size=(n, 6, width)).astype(dtype)


def assert_equal_to_the_plain_twin(compiled, plain, arguments):
    """Whatever the functions return, and whatever they write."""
    ours, theirs = (
        [one.copy() if isinstance(one, np.ndarray) else one for one in arguments] for _ in range(2)
    )
    returned, expected = compiled(*ours), plain(*theirs)
    dtype = next(one.dtype for one in arguments if isinstance(one, np.ndarray))
    tolerance = 50 * np.finfo(dtype).eps
    for one, other in zip([returned, *ours], [expected, *theirs], strict=True):
        if isinstance(other, np.ndarray | np.generic):
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@BOTH_TYPES
@WIDTHS
def test_products_equal_their_plain_twins(width, dtype):
    x, y = matrices(width, dtype, 2)
    assert_equal_to_the_plain_twin(dot_row, _lanes.dot_row_plain, (x, 4, y, 2))
    for total in (y, y.astype(np.float64)):
        number = total.dtype.type(0.3)
        assert_equal_to_the_plain_twin(add_row, _lanes.add_row_plain, (total, 5, number, x, 0))
    for clip in (None, 0.4):
        arguments = y.astype(np.float64), 1, x, 3, y, clip
        assert_equal_to_the_plain_twin(add_change, _lanes.add_change_plain, arguments)


@BOTH_TYPES
@WIDTHS
def test_what_fedeb_does_with_rows_equals_its_plain_twins(width, dtype):
    x, y = matrices(width, dtype, 2)
    wide = np.zeros((6, width + 3), dtype)
    number, shift = dtype(0.3), dtype(5)
    for compiled, plain, arguments in (
        (add_inverse, _lanes.add_inverse_plain, (x, 5, number, y, 1, shift)),
        (add_outer, _lanes.add_outer_plain, (x, y[:, 0].copy(), 4, y, 2)),
        (clear_rows, _lanes.clear_rows_plain, (x, 2)),
        (scale_row, _lanes.scale_row_plain, (x, 3, number, y, 1)),
        (scale_row, _lanes.scale_row_plain, (x, 3, number, np.hstack([y, y]), 1)),
        (copy_row, _lanes.copy_row_plain, (wide, wide.copy(), 3, x, 1, number)),
    ):
        assert_equal_to_the_plain_twin(compiled, plain, arguments)


def test_scaling_a_row_in_place_and_adding_a_matrix_to_itself():
    (x,) = matrices(21, np.float64, 1)
    scaled, added = x.copy(), x.copy()
    scale_row(scaled, 2, 3.0, scaled, 2)
    np.testing.assert_allclose(scaled[2], 3 * x[2])
    numbers = np.array([1.0, 2, 0, 4, 5])
    add_outer(added, numbers, 5, added, 2)
    np.testing.assert_allclose(added[:5], x[:5] + numbers[:, None] * x[2])


@BOTH_TYPES
@pytest.mark.parametrize("width", [8, 16, 24, 72])
def test_products_of_matrices_equal_numpys(width, dtype):
    generator = np.random.default_rng(width)
    left, right = (generator.normal(size=(16, width)).astype(dtype) for _ in range(2))
    square, product = np.zeros((width, width), dtype), np.zeros((16, width), dtype)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype is np.float32 else {"atol": 1e-12}
    multiply_turned(square, left, right, 13)
    np.testing.assert_allclose(square, left[:13].T @ right[:13], **tolerance)
    multiply(product, left, square, 5, width - 1)
    expected = left[:8, : width - 1] @ square[: width - 1]
    np.testing.assert_allclose(product[:8], expected, **tolerance)
    assert not product[8:].any()


RULE = 0.1, 0.9, 0.1, 0.8, 0.2, 1e-3, 1.3


@BOTH_TYPES
@WIDTHS
@pytest.mark.parametrize("adam", [True, False])
def test_steps_equal_their_plain_twins(width, dtype, adam):
    x, mean, square, centre, partner, user = matrices(width, dtype, 6)
    moments = (mean, square**2) if adam else (None, None)
    factors = tuple(map(dtype, (0.3, 0.7, 0.2, -0.6)))
    rule = tuple(map(dtype, RULE))
    for middle in (centre, None):
        arguments = x, 3, *moments, middle, 1, partner, 4, factors, rule
        assert_equal_to_the_plain_twin(descend_row, _lanes.descend_row_plain, arguments)
    total = np.zeros((6, width))
    for clip in (None, 0.4):
        arguments = x, 3, *moments, centre, 1, user, factors, rule, total, 2, partner, clip
        assert_equal_to_the_plain_twin(step_row, _lanes.step_row_plain, arguments)


@BOTH_TYPES
def test_a_row_at_its_centre_stays_there(dtype):
    # Adam makes a step of any gradient that is not exactly zero.
    (x,), zeros = matrices(20, dtype, 1), np.zeros((6, 20), dtype)
    factors, rule = tuple(map(dtype, (0, 0, 0.1, 0))), tuple(map(dtype, RULE))
    moved = x.copy()
    descend_row(moved, 2, zeros.copy(), zeros.copy(), x, 2, zeros, 0, factors, rule)
    np.testing.assert_array_equal(moved, x)


@BOTH_TYPES
def test_the_logistic_function_is_exact_to_a_few_roundings(dtype):
    x = np.r_[np.linspace(-87, 87, 20_001), np.linspace(-1, 1, 20_001), 0.0, -0.0, 1e-30]
    if dtype is np.float64:
        x = np.r_[x, np.linspace(-708, 708, 20_001)]
    x = x.astype(dtype)
    ours = np.zeros(_lanes.room(len(x)), dtype)
    ours[: len(x)] = x
    logistic(ours, len(x))
    expected = expit(x.astype(np.float64))
    np.testing.assert_allclose(ours[: len(x)], expected, rtol=4 * np.finfo(dtype).eps)


@BOTH_TYPES
def test_the_logistic_function_of_what_is_far_out(dtype):
    x = np.zeros(_lanes.room(7), dtype)
    x[:7] = np.inf, -np.inf, np.nan, np.finfo(dtype).max, np.finfo(dtype).min, 800, -800
    logistic(x, 7)
    np.testing.assert_array_equal(x[:7], [1, 0, np.nan, 1, 0, 1, 0])


def test_numbers_beyond_the_group_stay():
    x = np.zeros(48)
    logistic(x, 17)
    np.testing.assert_array_equal(x, np.repeat([0.5, 0.0], [32, 16]))
