import warnings

import numpy as np
import pytest

from fedrecsk.compression import Compressed, Compressor, LowRank, Quantization, TopK
from fedrecsk.updates import FieldSpec, SparseRows


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
        nothing = method.compress(np.zeros_like(values), rng())
    assert sent.values.shape == shape
    assert sent.values.dtype == dtype
    np.testing.assert_array_equal(values, before)
    assert not nothing.values.any()
    with pytest.raises(TypeError, match="compresses real numbers, but got int64"):
        method.compress(np.ones(shape, dtype=np.int64), rng())


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
    assert sent.payload_nbytes() == 8 * k


@pytest.mark.parametrize("rank", [1, 2, 5])
@pytest.mark.parametrize("shape", [(30, 5), (5, 5), (3, 5), (9, 1)])
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
    sent = Quantization(dtype).compress(values[:6, :4], rng())
    assert sent.nbytes(4) == sent.nbytes(8) == {"float16": 48, "int8": 28}[dtype]
    assert sent.payload_nbytes(4) == {"float16": 48, "int8": 24}[dtype]


@pytest.mark.parametrize("values", [[1e-30, -1e-38], [2.5e-43, 0.0], [1e-300, 0.0], [3e38, -1e30]])
def test_int8_follows_any_scale(values):
    values = np.array(values)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        received = Quantization("int8").compress(values, rng()).values
    assert np.all(np.abs(received - values) <= max(np.abs(values).max() / 126, 2e-45))


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


# ------------------------------------------------------------------- blocks of clients

N_ROWS, WIDTH = 11, 4
SETTINGS = ["own rows", "default", "factors", "held", "chosen", "ties", "zeros"]
METHODS = [TopK(1e-9), TopK(0.1), TopK(0.5), TopK(1.0), LowRank(1), LowRank(2), *ALL[2:]]
every_method = pytest.mark.parametrize("method", METHODS, ids=str)


def make_rows(setting, *, scale=1.0, seed=0):
    """Rows of six clients, one without own rows and one that holds all of them."""
    generator = rng(seed)
    spec = FieldSpec((N_ROWS, WIDTH), setting if setting in ("held", "chosen") else "all")
    counts = np.array([3, 0, N_ROWS, 1, 5, 2])
    rows = [np.sort(generator.choice(N_ROWS, n, replace=False)) for n in counts]
    values = scale * generator.normal(size=(counts.sum(), WIDTH))
    default = scale * generator.normal(0, 0.7, (N_ROWS, WIDTH))
    if setting == "ties":
        values, default = np.rint(values), np.rint(default)
    if setting == "zeros":
        values[generator.random(values.shape) < 0.8] = 0
        default[generator.random(default.shape) < 0.8] = 0
    others = {} if setting in ("own rows", "held", "chosen") else {"default": default}
    if setting == "factors":
        others["factors"] = generator.normal(size=6)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return SparseRows(indptr, np.concatenate(rows), values, spec=spec, **others)


def seeds_of(rows):
    return rng(3).integers(2**63, size=rows.n_clients, dtype=np.uint64)


@pytest.mark.parametrize("setting", SETTINGS)
@every_method
def test_a_block_is_compressed_as_its_clients_one_by_one(method, setting):
    rows = make_rows(setting)
    packed = method._compress_rows(rows, seeds_of(rows), 4)
    for client, seed in enumerate(seeds_of(rows)):
        numbers, change = rows.update(client)
        received = packed.rows.update(client)
        np.testing.assert_array_equal(received.rows, numbers)
        sent = method.compress(change, np.random.default_rng(seed))
        if not isinstance(method, Quantization):
            np.testing.assert_allclose(received.change, sent.values, atol=1e-9)
        else:
            # Zeros that a client does not hold need no draw, so draws may differ.
            step = 1e-3 if method.dtype == "float16" else np.abs(change).max(initial=0) / 126
            assert (np.abs(received.change - change) <= step * np.maximum(1, np.abs(change))).all()
        if len(change):
            row_numbers = 4 * len(change) * (setting == "chosen")
            assert packed.nbytes[client] == sent.nbytes(4) + row_numbers
            assert packed.payload[client] == sent.payload_nbytes(4)


@every_method
def test_what_is_sent_is_what_the_server_reconstructs(method):
    rows = make_rows("default")
    received = method._compress_rows(rows, seeds_of(rows), 4).rows
    for client in range(rows.n_clients):
        step = None if received.steps is None else received.steps[client]
        change = received.update(client).change
        sent = method._encoded(change, step)
        np.testing.assert_allclose(method._decoded(*sent, change.shape), change, rtol=1e-6)


@every_method
def test_the_order_of_an_array_in_memory_does_not_matter(method):
    values = rng(0).normal(size=(9, 5))
    sent, same = (method.compress(one, rng(1)).values for one in (values, values.copy(order="F")))
    np.testing.assert_array_equal(sent, same)


@pytest.mark.parametrize("scale", [1e-300, 1e-40, 1e300])
def test_top_k_of_sizes_that_float32_cannot_hold(scale):
    values = scale * np.array([[1.0, 1 + 1e-9, 0.5, -1.0]])
    sent = TopK(0.5).compress(values, None).values
    np.testing.assert_array_equal(sent, [[values[0, 0], values[0, 1], 0, 0]])


@pytest.mark.parametrize("scale", [1e-40, 1.0, 1e200])
def test_low_rank_of_a_matrix_of_rank_one(scale):
    matrix = scale * np.outer(np.arange(1.0, 31), np.cos(np.arange(12)))
    method = LowRank(1)
    np.testing.assert_allclose(method.compress(matrix, None).values, matrix, rtol=1e-9)
    first, basis = method._encoded(matrix, None)
    np.testing.assert_allclose(basis @ basis.T, [[1.0]])
    np.testing.assert_allclose(first @ basis, matrix, rtol=1e-9)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@every_method
def test_broken_clients_are_reported_and_leave_the_others_alone(method, broken):
    for setting in ("default", "held"):
        rows = make_rows(setting)
        expected = method._compress_rows(rows, seeds_of(rows), 4).rows
        values = rows.values.copy()
        values[rows.indptr[2]] = broken
        found = method._compress_rows(rows.with_values(values), seeds_of(rows), 4).rows
        assert found.finite().tolist() == [True, True, False, True, True, True]
        others = np.arange(6) != 2
        np.testing.assert_array_equal(found.take(others).whole(), expected.take(others).whole())


def test_numbers_that_the_message_cannot_hold_are_reported():
    received = Quantization("float16").compress(np.array([1.0, -1e6, 65504, 1e300]), rng()).values
    np.testing.assert_array_equal(received, [1, -np.inf, 65504, np.inf])
    values = np.zeros((3, 2, 2))
    values[0], values[1] = 65504.0, 65505.0
    rows = SparseRows.stacked(values, spec=FieldSpec((2, 2)))
    found = Quantization("float16")._compress_rows(rows, seeds_of(rows), 4).rows
    assert found.finite().tolist() == [True, False, True]
    rows = SparseRows.stacked(1e38 * values, spec=FieldSpec((2, 2)))
    found = Quantization("int8")._compress_rows(rows, seeds_of(rows), 4).rows
    assert found.finite().tolist() == [False, False, True]


class Noisy(Compressor):
    """A user's compressor, which draws random numbers."""

    direction = "up"

    def _compress(self, values, generator):
        return Compressed(values + generator.normal(size=values.shape), 3, 2, n_scales=1)


class Crooked(Noisy):
    def _compress(self, values, generator):
        return Compressed(values[:-1], 3, 3)


class Bare(Noisy):
    def _compress(self, values, generator):
        return values


@pytest.mark.parametrize("setting", ["default", "held", "chosen"])
def test_a_users_compressor_gets_each_client_with_a_generator_of_its_own(setting):
    rows = make_rows(setting)
    packed = Noisy()._compress_rows(rows, seeds_of(rows), 4)
    for client, seed in enumerate(seeds_of(rows)):
        change = rows.update(client).change
        expected = change + np.random.default_rng(int(seed)).normal(size=change.shape)
        np.testing.assert_allclose(packed.rows.update(client).change, expected)
        assert packed.nbytes[client] == 16 + 4 * len(change) * (setting == "chosen")
        assert packed.payload[client] == 8


def test_mistakes_of_a_users_compressor_are_named():
    rows = make_rows("default")
    with pytest.raises(ValueError, match=r"Crooked.* \(11, 4\).* \(10, 4\)"):
        Crooked()._compress_rows(rows, seeds_of(rows), 4)
    with pytest.raises(TypeError, match=r"Bare.* \(11, 4\).* ndarray"):
        Bare()._compress_rows(rows, seeds_of(rows), 4)


@pytest.mark.parametrize("method", ["compress", "_compress"])
def test_a_subclass_that_compresses_in_another_way_is_asked(method):
    class Half(TopK):
        pass

    setattr(Half, method, lambda self, values, generator: Compressed(values / 2, 1, 1))
    rows = make_rows("default")
    packed = Half()._compress_rows(rows, seeds_of(rows), 4)
    np.testing.assert_allclose(packed.rows.whole(), rows.whole() / 2)
    assert (packed.nbytes == 4).all()
