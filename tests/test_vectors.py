"""Rows as vectors, and Cholesky's solution with them, against NumPy."""

import numpy as np
import pytest

from fedrecsk._kernels import _cholesky, _vectors
from fedrecsk._kernels._jit import kernel

every_type = pytest.mark.parametrize("dtype", [np.float32, np.float64])
every_width = pytest.mark.parametrize("n", [1, 3, 4, 7, 16, 20, 37, 64])


@kernel
def row_by_row(x, y, n, number, out, wide, flat, dots, finite):
    for k in range(len(x)):
        dots[k] = _vectors.dot_rows(x, k, y, k, n)
        finite[k] = _vectors.is_finite_row(x, k, n)
        _vectors.scale_row(out, k, number, x, k, n)
        _vectors.add_row(wide, k, number, x, k, n)
        _vectors.copy_row(flat, k * x.shape[1], x, k, n)


@kernel
def weighed(left, right, total, x, weights, pulls, n):
    for k in range(len(x)):
        _vectors.weigh_row(left, k, right, k, total, 0, x, k, weights[k], pulls[k], n)


@kernel
def least_squares(matrix, base, left, right, target, d, x):
    n = len(left)
    _cholesky.add_products(matrix, base, left, 0, right, n, d)
    _cholesky.factor(matrix, d, left.shape[1])
    return _cholesky.solve(matrix, d, left.shape[1], target, x, 0)


@every_type
@every_width
def test_rows_are_those_of_numpy(dtype, n):
    rng = np.random.default_rng(n)
    x, y = rng.normal(size=(2, 6, n + 2)).astype(dtype)
    out, wide, flat = (
        np.full((6, n + 2), 7, dtype),
        np.ones((6, n + 2)),
        np.zeros(6 * (n + 2), dtype),
    )
    dots, finite = np.zeros(6), np.zeros(6, dtype=bool)
    row_by_row(x, y, n, dtype(3), out, wide, flat, dots, finite)
    np.testing.assert_allclose(dots, (x * y)[:, :n].sum(axis=1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(out[:, :n], 3 * x[:, :n], rtol=1e-6)
    np.testing.assert_allclose(wide[:, :n], 1 + 3 * x[:, :n], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(flat.reshape(x.shape)[:, :n], x[:, :n])
    assert finite.all()
    # Nothing beyond the numbers that count.
    assert (out[:, n:] == 7).all() and (wide[:, n:] == 1).all()
    assert not flat.reshape(x.shape)[:, n:].any()


@every_type
@every_width
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_broken_numbers_are_seen_wherever_they_are(dtype, n, broken):
    x = np.full((n + 1, n + 1), np.finfo(dtype).max, dtype)
    np.fill_diagonal(x, broken)
    finite, dots, wide = np.zeros(n + 1, dtype=bool), np.zeros(n + 1), np.zeros((n + 1, n + 1))
    row_by_row(x, x, n, dtype(1), x.copy(), wide, x.ravel().copy(), dots, finite)
    # The last row's is beyond those that count.
    np.testing.assert_array_equal(finite, np.arange(n + 1) == n)


@every_type
@every_width
def test_weighed_rows(dtype, n):
    rng = np.random.default_rng(n)
    x = rng.normal(size=(5, n)).astype(dtype)
    weights, pulls = rng.random((2, 5)).astype(dtype)
    left, right, total = np.zeros((5, n), dtype), np.zeros((5, n), dtype), np.zeros(n, dtype)
    weighed(left, right, total, x, weights, pulls, n)
    np.testing.assert_array_equal(left, x)
    np.testing.assert_allclose(right, weights[:, None] * x, rtol=1e-6)
    np.testing.assert_allclose(total, pulls @ x, rtol=1e-4, atol=1e-6)


@every_type
@every_width
def test_least_squares(dtype, n):
    rng = np.random.default_rng(n)
    width = _cholesky.width_of(n, dtype)
    left, right = np.zeros((2, 90, width), dtype)
    left[:, :n] = rng.normal(size=(90, n))
    weights = rng.random(90).astype(dtype)
    right[:] = weights[:, None] * left
    base, target, x = (
        np.zeros((width, width), dtype),
        np.zeros(width, dtype),
        np.zeros((1, n), dtype),
    )
    base[:n, :n] = 3 * np.eye(n)
    target[:n] = rng.normal(size=n)
    expected = np.linalg.solve((base + left.T @ right)[:n, :n].astype(float), target[:n])
    fitted = expected @ target[:n]
    # Whatever is left of an earlier solution, NaN even, does not matter.
    matrix = np.full(width * width, np.nan, dtype)
    assert least_squares(matrix, base.ravel(), left, right, target, n, x) == pytest.approx(
        fitted, rel=1e-3
    )
    np.testing.assert_allclose(x[0], expected, rtol=1e-3, atol=1e-5)
    assert not target[n:].any()


@every_type
@pytest.mark.parametrize("bad", [0, 9, 19])
def test_a_matrix_that_is_not_positive_gives_nan(dtype, bad):
    width = _cholesky.width_of(20, dtype)
    base, empty = np.zeros((width, width), dtype), np.zeros((0, width), dtype)
    base[:20, :20] = np.eye(20)
    base[bad, bad] = -1
    target, x = np.zeros(width, dtype), np.zeros((1, 20), dtype)
    target[:20] = 1
    matrix = np.zeros(width * width, dtype)
    least_squares(matrix, base.ravel(), empty, empty, target, 20, x)
    assert np.isnan(x).all()
    assert not target[20:].any()
