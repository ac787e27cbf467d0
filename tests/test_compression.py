import warnings

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk.compression import LowRank, Quantization, TopK


def rng(seed=0):
    return np.random.default_rng(seed)


ALL = [TopK(0.25), LowRank(2), Quantization("int8"), Quantization("float16")]


@pytest.mark.parametrize("method", ALL, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(12,), (7, 5), (3, 4, 2), (2, 30), (0, 5), (0,)])
def test_shape_and_dtype_come_back(method, dtype, shape):
    values = rng().normal(size=shape).astype(dtype)
    before = values.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sent = method.compress(values, rng())
    assert sent.values.shape == shape
    assert sent.values.dtype == dtype
    np.testing.assert_array_equal(values, before)


@pytest.mark.parametrize("method", ALL, ids=str)
def test_zeros_stay_zeros(method):
    sent = method.compress(np.zeros((6, 4)), rng())
    np.testing.assert_array_equal(sent.values, np.zeros((6, 4)))


@pytest.mark.parametrize("method", ALL, ids=str)
def test_counts_are_refused(method):
    with pytest.raises(TypeError, match="compresses real numbers, but got int64"):
        method.compress(np.ones((3, 3), dtype=np.int64), rng())


@pytest.mark.parametrize("method", ALL, ids=str)
def test_directions(method):
    readings = {d: clone(method).set_params(direction=d) for d in ("both", "up", "down")}
    assert [(m.up, m.down) for m in readings.values()] == [
        (True, True),
        (True, False),
        (False, True),
    ]


def naive_top_k(values, k):
    order = sorted(range(values.size), key=lambda i: (-abs(values.flat[i]), i))
    out = np.zeros_like(values)
    for i in order[:k]:
        out.flat[i] = values.flat[i]
    return out


@pytest.mark.parametrize("ratio", [1 / 64, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("decimals", [0, 8])
def test_top_k_keeps_the_largest_and_the_first_of_equals(ratio, decimals):
    values = rng().normal(size=(13, 7)).round(decimals)
    sent = TopK(ratio).compress(values, None)
    k = max(1, round(ratio * 91))
    np.testing.assert_array_equal(sent.values, naive_top_k(values, k))
    assert sent.n_coordinates == sent.n_indices == k
    assert sent.nbytes(4) == 8 * k
    assert sent.nbytes(8) == 12 * k


def test_top_k_of_papers_size():
    sent = TopK(1 / 64).compress(rng().normal(size=(3706, 64)).astype(np.float32), None)
    assert sent.payload_nbytes() == 2 * 3706 * 4


@pytest.mark.parametrize("rank", [1, 2, 5])
@pytest.mark.parametrize("shape", [(30, 5), (5, 5), (3, 5)])
def test_low_rank_is_the_best_approximation(rank, shape):
    values = rng().normal(size=shape)
    u, s, vt = np.linalg.svd(values, full_matrices=False)
    sent = LowRank(rank).compress(values, None)
    factors, whole = rank * sum(shape), values.size
    best = (u[:, :rank] * s[:rank]) @ vt[:rank] if factors < whole else values
    np.testing.assert_allclose(sent.values, best, atol=1e-9)
    assert sent.n_coordinates == min(factors, whole)
    assert sent.nbytes(4) == 4 * min(factors, whole)
    assert sent.payload_nbytes(4) == 4 * (rank * shape[0] if factors < whole else whole)


def test_low_rank_keeps_a_matrix_of_that_rank():
    values = rng().normal(size=(40, 3)) @ rng(1).normal(size=(3, 16))
    np.testing.assert_allclose(LowRank(3).compress(values, None).values, values, atol=1e-10)


def test_low_rank_leaves_vectors_as_they_are():
    values = rng().normal(size=9)
    sent = LowRank(4).compress(values, None)
    np.testing.assert_array_equal(sent.values, values)
    assert sent.nbytes(4) == sent.payload_nbytes(4) == 36


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_rounding_is_unbiased(dtype):
    least = 2.5e-8 if dtype == "float16" else 1e-4
    values = np.array([[0.1234567, -0.7654321], [1e-3, least], [0.0, 1.0]])
    draws = np.stack([Quantization(dtype).compress(values, rng(k)).values for k in range(4000)])
    error = draws.mean(axis=0) - values
    deviation = draws.std(axis=0) / np.sqrt(len(draws))
    assert np.all(np.abs(error) <= 5 * deviation + (1e-6 if dtype == "int8" else 1e-9))
    assert (draws.std(axis=0) > 0).sum() >= 4


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_each_number_becomes_one_of_its_neighbours(dtype):
    values = rng().normal(size=(200, 5)) * 10.0 ** rng(1).integers(-6, 3, (200, 1))
    received = Quantization(dtype).compress(values, rng()).values
    if dtype == "float16":
        np.testing.assert_array_equal(received, received.astype(np.float16).astype(float))
        step = np.maximum(np.spacing(np.abs(values).astype(np.float16)).astype(float), 2.0**-24)
    else:
        step = np.abs(values).max() / 127 * (1 + 1e-6)
        assert len(np.unique(received)) <= 255
    assert np.all(np.abs(received - values) <= step)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_the_largest_numbers_survive(dtype):
    values = np.array([65504.0, -65504.0, 0.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        received = Quantization(dtype).compress(values, rng()).values
    np.testing.assert_allclose(received, values, rtol=0.01)


@pytest.mark.parametrize("values", [[1e-30, -1e-38], [1e-300, 0.0], [3e38, -1e30]])
def test_int8_follows_any_scale(values):
    values = np.array(values)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        received = Quantization("int8").compress(values, rng()).values
    assert np.all(np.abs(received - values) <= max(np.abs(values).max() / 126, 2e-45))


def test_what_float16_cannot_hold_becomes_infinite():
    received = Quantization("float16").compress(np.array([1.0, -1e6, 65504, 1e300]), rng()).values
    np.testing.assert_array_equal(received, [1, -np.inf, 65504, np.inf])


@pytest.mark.parametrize(("dtype", "nbytes"), [("float16", 48), ("int8", 28)])
def test_bytes_of_quantised_numbers(dtype, nbytes):
    sent = Quantization(dtype).compress(rng().normal(size=(6, 4)), rng())
    assert sent.nbytes(4) == sent.nbytes(8) == nbytes
    assert sent.payload_nbytes(4) == nbytes - 4 * (dtype == "int8")


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_a_number_next_to_nothing_does_not_change_how_others_are_rounded(dtype):
    # Sums over blocks may give 0 in one cut of the clients and 1e-17 in another.
    values = rng().normal(size=(50, 4))
    values[::7, 0] = 0
    others = values != 0
    sent = Quantization(dtype).compress(values, rng(1)).values
    almost = Quantization(dtype).compress(np.where(others, values, 1e-17), rng(1)).values
    np.testing.assert_array_equal(sent[others], almost[others])
    assert not sent[~others].any()


def test_the_generator_decides():
    values = rng().normal(size=(50, 4))
    first, same, other = (Quantization().compress(values, rng(k)).values for k in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (TopK(0), "'ratio' parameter"),
        (TopK(1.5), "'ratio' parameter"),
        (TopK(-0.1), "'ratio' parameter"),
        (LowRank(0), "'rank' parameter"),
        (LowRank(1.5), "'rank' parameter"),
        (Quantization("int4"), "'dtype' parameter"),
        (TopK(direction="sideways"), "'direction' parameter"),
    ],
)
def test_bad_parameters_are_named(method, message):
    with pytest.raises(ValueError, match=message):
        method._validate_params()


@pytest.mark.parametrize("rank", [5, 6])
def test_a_matrix_that_factors_would_not_shorten_is_sent_as_it_is(rank):
    values = np.arange(500.0).reshape(100, 5)
    sent = LowRank(rank).compress(values, None)
    np.testing.assert_array_equal(sent.values, values)
    assert sent.nbytes() == 4 * 500
