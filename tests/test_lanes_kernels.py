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
