"""The vectorised logistic function against SciPy's."""

import numpy as np
import pytest
from scipy.special import expit

from fedrecsk._kernels import _logistic
from fedrecsk._kernels._jit import kernel

BOTH_TYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@kernel
def logistic(x, n):
    _logistic.logistic(x, n)


@BOTH_TYPES
def test_the_logistic_function_is_exact_to_a_few_roundings(dtype):
    x = np.r_[np.linspace(-87, 87, 20_001), np.linspace(-1, 1, 20_001), 0.0, -0.0, 1e-30]
    if dtype is np.float64:
        x = np.r_[x, np.linspace(-708, 708, 20_001)]
    x = x.astype(dtype)
    ours = np.zeros(_logistic.room(len(x)), dtype)
    ours[: len(x)] = x
    logistic(ours, len(x))
    expected = expit(x.astype(np.float64))
    np.testing.assert_allclose(ours[: len(x)], expected, rtol=4 * np.finfo(dtype).eps)


@BOTH_TYPES
def test_the_logistic_function_of_what_is_far_out(dtype):
    x = np.zeros(_logistic.room(7), dtype)
    x[:7] = np.inf, -np.inf, np.nan, np.finfo(dtype).max, np.finfo(dtype).min, 800, -800
    logistic(x, 7)
    np.testing.assert_array_equal(x[:7], [1, 0, np.nan, 1, 0, 1, 0])


def test_numbers_beyond_the_group_stay():
    x = np.zeros(48)
    logistic(x, 17)
    np.testing.assert_array_equal(x, np.repeat([0.5, 0.0], [32, 16]))
