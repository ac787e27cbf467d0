"""Operations on rows, tiles and steps of descent against their plain twins and NumPy."""

import numpy as np
import pytest

from fedrecsk._kernels import _cholesky, _descent, _rows, _tiles
from fedrecsk._kernels._jit import kernel

BOTH_TYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
WIDTHS = pytest.mark.parametrize("n", [1, 3, 4, 5, 7, 16, 20, 21, 37, 64])


@kernel
def fetch_row(x, k, n):
    _rows.fetch_row(x, k, n)


@kernel
def copy_row(out, i, x, k, n):
    _rows.copy_row(out, i, x, k, n)


@kernel
def fill_row(out, i, number, n):
    _rows.fill_row(out, i, number, n)


@kernel
def is_finite_row(x, k, n):
    return _rows.is_finite_row(x, k, n)


@kernel
def dot_rows(x, k, y, i, n):
    return _rows.dot_rows(x, k, y, i, n)


@kernel
def dot_and_fetch(x, k, y, i, ahead, n):
    return _rows.dot_and_fetch(x, k, y, i, ahead, n)


@kernel
def scale_row(out, i, number, x, k, n):
    _rows.scale_row(out, i, number, x, k, n)


@kernel
def add_row(total, i, number, x, k, n):
    _rows.add_row(total, i, number, x, k, n)


@kernel
def weigh_row(left, i, right, j, total, t, x, k, weight, pull, n):
    _rows.weigh_row(left, i, right, j, total, t, x, k, weight, pull, n)


@kernel
def add_inverse(total, i, number, x, k, shift, n):
    _rows.add_inverse(total, i, number, x, k, shift, n)


@kernel
def add_outer(total, numbers, rows, x, k, width):
    _tiles.add_outer(total, numbers, rows, x, k, width)


@kernel
def add_tile(out, i, base, j, left, a, right, b, n, r, c, width):
    _tiles.add_tile(out, i, base, j, left, a, right, b, n, r, c, width)


@kernel
def subtract_tile(out, i, base, j, left, a, right, b, n, r, c, width):
    _tiles.subtract_tile(out, i, base, j, left, a, right, b, n, r, c, width)


@kernel
def multiply(product, left, right, n_rows, n_inner, width):
    _tiles.multiply(product, left, right, n_rows, n_inner, width)


@kernel
def multiply_turned(product, left, right, n_inner, width):
    _tiles.multiply_turned(product, left, right, n_inner, width)


@kernel
def add_change(total, t, x, k, origin, i, clip, n):
    _descent.add_change(total, t, x, k, origin, i, clip, n)


@kernel
def descend_row(x, k, mean, m, square, s, centre, i, partner, p, factors, rule, n):
    _descent.descend_row(x, k, mean, m, square, s, centre, i, partner, p, factors, rule, n)


@kernel
def step_row(
    x, k, mean, m, square, s, centre, i, partner, p, gradient, g, factors, rule,
    total, t, origin, o, clip, ahead, n,
):  # fmt: skip
    _descent.step_row(
        x, k, mean, m, square, s, centre, i, partner, p, gradient, g, factors, rule,
        total, t, origin, o, clip, ahead, n,
    )  # fmt: skip


def matrices(n, dtype, count, width=None):
    """Matrices of 6 rows, of n numbers that count and others."""
    width = n + 2 if width is None else width
    return np.random.default_rng(n).normal(size=(count, 6, width)).astype(dtype)


def assert_equal_to_the_plain_twin(module, name, *arguments):
    """Whatever the functions return, and whatever they write; nothing else is written."""
    compiled, plain = globals()[name], getattr(module, f"{name}_plain")
    ours, theirs = (
        [one.copy() if isinstance(one, np.ndarray) else one for one in arguments] for _ in range(2)
    )
    returned, expected = compiled(*ours), plain(*theirs)
    types = (one.dtype for one in arguments if isinstance(one, np.ndarray))
    tolerance = 50 * max((np.finfo(kind).eps for kind in types), default=0)
    assert (returned is None) == (expected is None)
    for one, other in zip([returned, *ours], [expected, *theirs], strict=True):
        if isinstance(other, np.ndarray | np.generic | bool):
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------------------- one row


@BOTH_TYPES
@WIDTHS
def test_rows_equal_their_plain_twins(n, dtype):
    x, y, z = matrices(n, dtype, 3)
    number, shift, wide = dtype(0.3), dtype(5), z.astype(np.float64)
    for name, arguments in (
        ("fetch_row", (x, 3)),
        ("fetch_row", (x, 40)),
        ("fetch_row", (None, 3)),
        ("copy_row", (x, 4, y, 2)),
        ("copy_row", (x, 4, wide.astype(dtype), 5)),
        ("fill_row", (x, 3, number)),
        ("is_finite_row", (x, 3)),
        ("dot_rows", (x, 4, y, 2)),
        ("dot_and_fetch", (x, 4, y, 2, 32)),
        ("scale_row", (x, 3, number, y, 1)),
        ("add_row", (x, 5, number, y, 0)),
        ("add_row", (wide, 5, number, y, 0)),
        ("weigh_row", (x, 1, y, 2, z, 5, np.hstack([x, y]), 3, number, shift)),
        ("add_inverse", (x, 5, number, np.abs(y), 1, shift)),
    ):
        assert_equal_to_the_plain_twin(_rows, name, *arguments, n)


@BOTH_TYPES
def test_rows_are_those_of_numpy(dtype):
    # The twins themselves.
    x, y = matrices(20, dtype, 2)
    number, tight = dtype(3), {"rtol": 20 * np.finfo(dtype).eps, "atol": 20 * np.finfo(dtype).eps}
    np.testing.assert_allclose(dot_rows(x, 1, y, 2, 20), x[1, :20] @ y[2, :20], **tight)
    assert is_finite_row(x, 1, 20)
    for operate, expected in (
        (lambda out: copy_row(out, 4, y, 2, 20), y[2]),
        (lambda out: fill_row(out, 4, number, 20), np.full(22, 3)),
        (lambda out: scale_row(out, 4, number, y, 2, 20), 3 * y[2]),
        (lambda out: add_row(out, 4, number, y, 2, 20), x[4] + 3 * y[2]),
        (lambda out: add_inverse(out, 4, number, y, 2, number, 20), x[4] + 3 / (y[2] + 3)),
    ):
        out, theirs = x.copy(), x.copy()
        theirs[4, :20] = expected[:20]
        operate(out)
        np.testing.assert_allclose(out, theirs, **tight)


@BOTH_TYPES
@WIDTHS
def test_rows_of_flat_arrays_and_of_stacks(n, dtype):
    x, y = matrices(n, dtype, 2)
    width, stack = n + 2, x.reshape(2, 3, n + 2)
    for matrix, row in ((x.ravel(), 4 * width), (stack, 4)):
        assert_equal_to_the_plain_twin(_rows, "copy_row", matrix, row, y, 2, n)
        assert_equal_to_the_plain_twin(_rows, "add_row", y, 2, dtype(2), matrix, row, n)
        out = np.zeros((1, n), dtype)
        copy_row(out, 0, matrix, row, n)
        np.testing.assert_array_equal(out[0], x[4, :n])


@pytest.mark.parametrize("place", [np.int8, np.int32])
def test_narrow_numbers_of_rows_do_not_overflow_in_twins(place):
    x = np.arange(600.0).reshape(100, 6)
    assert _rows.dot_rows_plain(x, place(90), np.ones((1, 6)), 0, place(1)) == x[90, 0]
    _rows.fill_row_plain(x, place(90), 7, 6)
    assert (x[90] == 7).all()


def test_a_row_may_be_the_one_that_it_is_made_of():
    (x,) = matrices(21, np.float64, 1, 21)
    scaled, added = x.copy(), x.copy()
    scale_row(scaled, 2, 3.0, scaled, 2, 21)
    np.testing.assert_allclose(scaled[2], 3 * x[2])
    numbers = np.array([1.0, 2, 0, 4, 5])
    add_outer(added, numbers, 5, added, 2, 21)
    np.testing.assert_allclose(added[:5], x[:5] + numbers[:, None] * x[2])
    np.testing.assert_array_equal(added[5], x[5])


@BOTH_TYPES
@WIDTHS
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_broken_numbers_are_seen_wherever_they_are(dtype, n, broken):
    x = np.full((n + 1, n + 1), np.finfo(dtype).max, dtype)
    np.fill_diagonal(x, broken)
    # The last row's is beyond those that count.
    assert [is_finite_row(x, k, n) for k in range(n + 1)] == [k == n for k in range(n + 1)]
    assert not _rows.is_finite_row_plain(x, 0, n)
    assert _rows.is_finite_row_plain(x, n, n)


def test_rows_must_be_contiguous():
    x = np.zeros((4, 6))
    with pytest.raises(Exception, match="C-contiguous"):
        copy_row(x, 0, x[:, ::2], 1, 3)


# ------------------------------------------------------------------------------ matrices


@BOTH_TYPES
@WIDTHS
def test_outer_products_equal_their_plain_twin(n, dtype):
    x, y = matrices(n, dtype, 2, n)
    assert_equal_to_the_plain_twin(_tiles, "add_outer", x, y.ravel()[:6].copy(), 4, y, 2, n)


@BOTH_TYPES
@pytest.mark.parametrize("width", [8, 16, 24, 72])
def test_products_of_matrices_equal_numpys(width, dtype):
    generator = np.random.default_rng(width)
    left, right = (generator.normal(size=(16, width)).astype(dtype) for _ in range(2))
    square, product = np.zeros((width, width), dtype), np.zeros((16, width), dtype)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype is np.float32 else {"atol": 1e-12}
    multiply_turned(square, left, right, 13, width)
    np.testing.assert_allclose(square, left[:13].T @ right[:13], **tolerance)
    multiply(product, left, square, 5, width - 1, width)
    expected = left[:8, : width - 1] @ square[: width - 1]
    np.testing.assert_allclose(product[:8], expected, **tolerance)
    assert not product[8:].any()
    theirs, whole = np.zeros_like(square), np.zeros_like(product)
    _tiles.multiply_turned_plain(theirs, left, right, 13, width)
    _tiles.multiply_plain(whole, left, square, 5, width - 1, width)
    np.testing.assert_allclose(square, theirs, **tolerance)
    np.testing.assert_allclose(product, whole, **tolerance)


@BOTH_TYPES
@pytest.mark.parametrize("n", [0, 1, 13])
def test_tiles_equal_their_plain_twins(n, dtype):
    width = 32
    out, base, left, right = np.random.default_rng(n).normal(size=(4, 64, width)).astype(dtype)
    for name in ("add_tile", "subtract_tile"):
        arguments = out, 9, base, 4, left, 3, right, 5, n, 8, 16, width
        assert_equal_to_the_plain_twin(_tiles, name, *arguments)
    # Rows of flat arrays, counted in numbers.
    flat = [matrix.ravel() for matrix in (out, base, left, right)]
    starts = [number * width for number in (9, 4, 3, 5)]
    pairs = [one for pair in zip(flat, starts, strict=True) for one in pair]
    assert_equal_to_the_plain_twin(_tiles, "add_tile", *pairs, n, 8, 16, width)
    expected = out.copy()
    size = _tiles.TILE_BYTES // out.itemsize
    product = left[3 : 3 + n, 8:16].T @ right[5 : 5 + n, 16 : 16 + size]
    expected[9:17, 16 : 16 + size] = base[4:12, 16 : 16 + size] + product
    add_tile(out, 9, base, 4, left, 3, right, 5, n, 8, 16, width)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


@kernel
def least_squares(matrix, base, left, right, target, d, x):
    n = len(left)
    _cholesky.add_products(matrix, base, left, 0, right, n, d)
    _cholesky.factor(matrix, d, left.shape[1])
    return _cholesky.solve(matrix, d, left.shape[1], target, x, 0)


@BOTH_TYPES
@WIDTHS
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


@BOTH_TYPES
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


# ------------------------------------------------------------------------------- descent

RULE = 0.1, 0.9, 0.1, 0.8, 0.2, 1e-3, 1.3


@BOTH_TYPES
@WIDTHS
@pytest.mark.parametrize("adam", [True, False])
def test_steps_equal_their_plain_twins(n, dtype, adam):
    x, mean, square, centre, partner, origin = matrices(n, dtype, 6)
    moments = (mean, 2, square**2, 5) if adam else (None, 0, None, 0)
    numbers = tuple(map(dtype, (0.3, 0.7, 0.2, -0.6))), tuple(map(dtype, RULE))
    for middle in (centre, None):
        arguments = x, 3, *moments, middle, 1, partner, 4, *numbers, n
        assert_equal_to_the_plain_twin(_descent, "descend_row", *arguments)
    for total in (np.zeros((6, n + 2)), np.zeros((6, n + 2), dtype)):
        for clip in (None, 0.4):
            ends = total, 2, origin, 5, clip, 32, n
            arguments = x, 3, *moments, centre, 1, partner, 4, partner, 0, *numbers, *ends
            assert_equal_to_the_plain_twin(_descent, "step_row", *arguments)
            arguments = total, 1, x, 3, origin, 5, clip, n
            assert_equal_to_the_plain_twin(_descent, "add_change", *arguments)


@BOTH_TYPES
def test_a_row_at_its_centre_stays_there(dtype):
    # Adam makes a step of any gradient that is not exactly zero.
    (x,), zeros = matrices(20, dtype, 1), np.zeros((6, 22), dtype)
    factors, rule = tuple(map(dtype, (0, 0, 0.1, 0))), tuple(map(dtype, RULE))
    moved, moments = x.copy(), (zeros.copy(), 2, zeros.copy(), 2)
    descend_row(moved, 2, *moments, x, 2, zeros, 0, factors, rule, 20)
    np.testing.assert_array_equal(moved, x)
