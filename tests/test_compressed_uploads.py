"""Compression of all clients of a block at once, against one client after the other."""

import warnings

import numpy as np
import pytest

from fedrecsk.compression import Compressed, Compressor, LowRank, Quantization, TopK
from fedrecsk.uploads import Changes, Common, Form, Listed, Ragged, Update

N_ROWS = 11
SETTINGS = ["all", "common", "common+origin", "held", "chosen", "ties", "zeros", "tied common"]


def make_blocks(setting, *, width=4, n_rows=N_ROWS, n_blocks=2, seed=0, scale=1.0):
    """Blocks of five to six clients, one without own rows and one that holds all of them."""
    rng = np.random.default_rng(seed)
    rows_kind = setting if setting in ("held", "chosen") else "all"
    form = Form((n_rows, width), rows=rows_kind)
    common = origin = None
    if "common" in setting or setting in ("ties", "zeros"):
        change = scale * rng.normal(0, 0.7, (n_rows, width))
        if setting in ("ties", "tied common"):
            change = np.rint(change)
        if setting == "zeros":
            change[rng.random((n_rows, width)) < 0.8] = 0
        common = Common(change)
    if "origin" in setting:
        origin = rng.normal(size=(n_rows, width))
    blocks = []
    for block in range(n_blocks):
        counts = np.append(rng.integers(1, n_rows, 4 + block), [0, n_rows])[
            rng.permutation(6 + block)
        ]
        rows = [np.sort(rng.choice(n_rows, n, replace=False)) for n in counts]
        values = scale * rng.normal(size=(counts.sum(), width))
        if setting == "ties":
            values = np.rint(values)
        if setting == "zeros":
            values[rng.random(values.shape) < 0.8] = 0
        indptr = np.append(0, np.cumsum(counts))
        rows = np.concatenate(rows).astype(np.int32)
        blocks.append(Ragged(indptr, rows, values, origin=origin, common=common, form=form))
    return blocks


def seeds_of(n, seed=3):
    return np.random.default_rng(seed).integers(0, 2**63, n).astype(np.uint64)


def pack(method, changes, *, sends=None, itemsize=4, summed=False):
    n = changes.n_clients
    sends = np.ones(n, dtype=bool) if sends is None else sends
    return method._compress_uploads(changes, changes.form, sends, seeds_of(n), itemsize, summed)


# ---- what a single client would do


def counter(seed, place):
    """The 24 bits of a draw, in Python's integers."""
    mask = 0xFFFFFFFF
    x = ((seed ^ (seed >> 32)) + place * 0x9E3779B1) & mask
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & mask
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & mask
    return (x ^ (x >> 16)) >> 8


def rounded(kind, update, seed, shape):
    rows = np.arange(shape[0])[update.rows]
    places = rows[:, None] * shape[1] + np.arange(shape[1])
    draws = np.vectorize(lambda place: counter(int(seed), int(place)), otypes=[float])(places)
    change, draws = update.change, draws * 2.0**-24
    if kind == "float16":
        nearest = change.astype(np.float16)
        low = np.where(nearest > change, np.nextafter(nearest, np.float16(-np.inf)), nearest)
        high = np.nextafter(low, np.float16(np.inf)).astype(float)
        low = low.astype(float)
        return np.where((change - low) / (high - low) + draws >= 1, high, low)
    if not change.any():
        return change
    step = float(np.float32(np.abs(change).max() / 127 * (1 + 2.0**-21)))
    return step * np.floor(change / step + draws)


def oracle(method, changes, client):
    update = changes.update(client)
    if isinstance(method, Quantization):
        seed = seeds_of(changes.n_clients)[client]
        return update.rows, rounded(method.dtype, update, seed, changes.shape)
    return update.rows, method.compress(update.change, None).values


METHODS = [
    TopK(1e-9),
    TopK(0.1),
    TopK(0.5),
    TopK(1.0),
    LowRank(1),
    LowRank(2),
    Quantization("int8"),
    Quantization("float16"),
]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_updates_norms_and_sums_are_those_of_single_clients(method, setting):
    for block in make_blocks(setting):
        n, sums = block.n_clients, np.zeros(block.shape)
        weights = np.random.default_rng(1).normal(size=n)
        weights[1] = 0
        packed = pack(method, block)
        everyone, expected = np.ones(n, dtype=bool), np.zeros(block.shape)
        norms, largest = packed.changes.norms(everyone), packed.changes.largest(everyone)
        packed.changes.add_to(sums, weights)
        for client in range(n):
            rows, received = oracle(method, block, client)
            update = packed.changes.update(client)
            np.testing.assert_array_equal(update.rows, rows)
            np.testing.assert_allclose(update.change, received, atol=1e-9)
            np.testing.assert_allclose(norms[client], np.linalg.norm(received), atol=2e-8)
            assert largest[client] >= np.abs(received).max(initial=0) - 1e-9
            expected[rows] += weights[client] * received
        np.testing.assert_allclose(sums, expected, atol=1e-9)
        assert packed.changes.finite(everyone).all()
        assert packed.changes.shape == block.shape
        assert packed.changes.n_clients == n


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("setting", ["common", "ties", "zeros", "tied common", "held"])
def test_top_k_of_many_random_blocks(setting, seed):
    rng = np.random.default_rng(seed)
    for block in make_blocks(setting, width=int(rng.integers(1, 6)), seed=seed):
        changes = pack(TopK(rng.random()), block).changes
        for client in range(block.n_clients):
            alone, sums = np.zeros(block.n_clients), np.zeros(block.shape)
            alone[client] = 1
            changes.add_to(sums, alone)
            np.testing.assert_allclose(sums, changes.whole(client), atol=1e-12)


def test_top_k_of_sizes_that_float32_cannot_hold_or_tell_apart():
    values = np.array([[1e300, 2e300], [1 + 1e-12, 1 + 2e-12], [1e-300, 1.0], [3e-300, 0.0]])
    indptr, rows = np.array([0, 4]), np.arange(4)
    block = Ragged(indptr, rows, values, form=Form((4, 2)))
    for k in range(1, 9):
        method, sums = TopK(k / 8), np.zeros((4, 2))
        pack(method, block).changes.add_to(sums, np.ones(1))
        np.testing.assert_array_equal(sums, method.compress(values, None).values)


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_of_both_types_and_one_matrix_a_client(method, dtype):
    values = np.random.default_rng(0).normal(size=(6, 5, 5)).astype(dtype)
    block = Ragged.stacked(values, origin=np.eye(5))
    object.__setattr__(block, "form", Form((5, 5)))
    changes, sums = pack(method, block).changes, np.zeros((5, 5))
    changes.add_to(sums, np.ones(6))
    expected = sum(oracle(method, block, client)[1] for client in range(6))
    np.testing.assert_allclose(sums, expected, atol=1e-9)


@pytest.mark.parametrize("setting", ["common", "held", "chosen"])
@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_bytes_are_those_of_single_messages(method, itemsize, setting):
    (block,) = make_blocks(setting, n_blocks=1)
    sends = np.arange(block.n_clients) != 2
    packed = pack(method, block, sends=sends, itemsize=itemsize)
    for client in range(block.n_clients):
        change = block.update(client).change
        sent = method.compress(change, np.random.default_rng(0))
        numbers = 4 * len(change) * (setting == "chosen")
        assert packed.nbytes[client] == sends[client] * (sent.nbytes(itemsize) + numbers)
        assert packed.payload[client] == sends[client] * sent.payload_nbytes(itemsize)


# ---- low rank


def test_low_rank_of_a_larger_width():
    rng = np.random.default_rng(0)
    (block,) = make_blocks("common", width=24, n_rows=60, n_blocks=1)
    gap = np.diag(0.6 ** np.arange(24))
    block = Ragged(
        block.indptr, block.rows, block.values @ gap, common=Common(block.common.change @ gap),
        form=block.form,
    )  # fmt: skip
    changes = pack(LowRank(4), block).changes
    weights, sums, expected = rng.normal(size=block.n_clients), np.zeros((60, 24)), 0
    changes.add_to(sums, weights)
    for client in range(block.n_clients):
        u, s, vt = np.linalg.svd(block.whole(client), full_matrices=False)
        expected = expected + weights[client] * (u[:, :4] * s[:4]) @ vt[:4]
    np.testing.assert_allclose(sums, expected, atol=1e-9)


def grams():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(12, 12)))[0]
    yield "double", (basis * [5, 5, 3, 3, 1, 1, 0.5, 0.1, 0, 0, 0, 0]) @ basis.T
    yield "blocks", np.kron(np.eye(3), np.diag([4.0, 3, 0.5, 0.2])) + 0.0
    yield "diagonal", np.diag(np.arange(12.0))
    yield "one", 1e-40 * np.ones((12, 12))
    yield "identity", np.eye(12)
    yield "huge", 1e200 * (basis * np.arange(12.0) ** 3) @ basis.T
    yield "tridiagonal", 2 * np.eye(12) - np.eye(12, k=1) - np.eye(12, k=-1)
    yield "nothing", np.zeros((12, 12))


@pytest.mark.parametrize("gram", [gram for _, gram in grams()], ids=[name for name, _ in grams()])
@pytest.mark.parametrize("rank", [1, 2, 3, 6, 11])
def test_leading_eigenvectors(gram, rank):
    from fedrecsk._kernels import low_rank

    bases, squares = np.empty((1, rank, 12)), np.zeros(1)
    empty = np.zeros(2, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros((0, 12)), None
    low_rank.factor(*empty, None, gram, np.ones(1, dtype=bool), bases, squares)
    best = np.linalg.eigvalsh(gram)[::-1][:rank].clip(0).sum()
    np.testing.assert_allclose(squares, best, rtol=1e-12)
    np.testing.assert_allclose(bases[0] @ bases[0].T, np.eye(rank), atol=1e-12)
    # No other subspace holds as much of the matrix (Ky Fan).
    np.testing.assert_allclose(np.trace(bases[0] @ gram @ bases[0].T), best, rtol=1e-12)


def test_low_rank_of_numbers_whose_squares_are_infinite():
    values = 1e200 * np.random.default_rng(0).normal(size=(9, 5))
    block = Ragged(np.array([0, 9]), np.arange(9), values, form=Form((9, 5)))
    changes, sums = pack(LowRank(2), block).changes, np.zeros((9, 5))
    changes.add_to(sums, np.ones(1))
    u, s, vt = np.linalg.svd(values, full_matrices=False)
    np.testing.assert_allclose(sums, (u[:, :2] * s[:2]) @ vt[:2], atol=1e190)
    assert changes.finite(np.ones(1, dtype=bool)).all()


# ---- float16 of the common part


def test_float16_of_the_common_change_is_deferred_in_sums():
    blocks = make_blocks("common")
    deferred, own, expected, variance = None, np.zeros(blocks[0].shape), 0, 0
    for block in blocks:
        changes = pack(Quantization("float16"), block, summed=True).changes
        assert changes.deferred is None
        weights = (np.arange(block.n_clients) % 3 > 0).astype(float)
        changes.add_to(own, weights)
        assert changes.deferred.common is block.common
        later = changes.deferred
        deferred = later if deferred is None else deferred.merged(later)
        for client in np.flatnonzero(weights):
            rows, change = block.own(client)
            others = np.setdiff1d(np.arange(N_ROWS), rows)
            seed = seeds_of(block.n_clients)[client]
            own[rows] -= rounded("float16", Update(rows, change), seed, block.shape)
            x = block.common.change[others]
            grid = np.spacing(np.abs(x).astype(np.float16)).astype(float)
            chance = x / grid - np.floor(x / grid)
            whole = np.zeros((2, *block.shape))
            whole[:, others] = x, grid**2 * chance * (1 - chance)
            expected, variance = expected + whole[0], variance + whole[1]
    np.testing.assert_allclose(own, 0, atol=1e-9)
    assert deferred.counts.dtype == np.int64
    generator = np.random.default_rng(0)
    totals = np.stack([deferred.total(generator) for _ in range(4000)])
    error = np.sqrt(variance / 4000) + 1e-12
    assert np.all(np.abs(totals.mean(axis=0) - expected) < 5 * error)
    np.testing.assert_allclose(totals.var(axis=0), variance, rtol=0.2, atol=1e-15)


@pytest.mark.parametrize("setting", ["all", "held"])
def test_without_a_common_change_nothing_is_deferred(setting):
    (block,) = make_blocks(setting, n_blocks=1)
    changes = pack(Quantization("float16"), block, summed=True).changes
    changes.add_to(np.zeros(block.shape), np.ones(block.n_clients))
    assert changes.deferred is None


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_counters_are_unbiased(dtype):
    change = np.array([[0.1234567, -0.7654321], [1e-3, 1.0]])
    n = 4000
    block = Ragged(
        np.zeros(n + 1, dtype=np.int64), np.zeros(0, dtype=np.int32), np.zeros((0, 2)),
        common=Common(change), form=Form((2, 2)),
    )  # fmt: skip
    changes, sums = pack(Quantization(dtype), block).changes, np.zeros((2, 2))
    changes.add_to(sums, np.ones(n))
    step = 1 / 127 if dtype == "int8" else 2.0**-11
    assert np.all(np.abs(sums / n - change) < 2.5 * step / np.sqrt(n))
    assert len({changes.update(client).change[0, 0] for client in range(20)}) == 2


@pytest.mark.parametrize("common", [0.5, -70000.0])
def test_float16_reports_who_sends_what_it_cannot_hold(common):
    # The last client holds the row in which the common change may be too large.
    indptr, rows = np.array([0, 1, 2, 4]), np.array([0, 0, 0, 2])
    values = np.array([[1.0, 2.0], [65505.0, 0.0], [65504.0, 1.0], [3.0, 4.0]])
    change = np.zeros((3, 2))
    change[2, 1] = common
    block = Ragged(indptr, rows, values, common=Common(change), form=Form((3, 2)))
    whom = np.ones(3, dtype=bool)
    for summed in (False, True):
        changes = pack(Quantization("float16"), block, summed=summed).changes
        expected = [np.isfinite(changes.update(client).change).all() for client in range(3)]
        assert expected == [common == 0.5, False, True]
        np.testing.assert_array_equal(changes.finite(whom), expected)
        np.testing.assert_array_equal(np.isfinite(changes.largest(whom)), expected)


# ---- broken, odd, and foreign


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_broken_clients_are_reported_and_leave_the_others_alone(method, broken):
    for setting in ("common", "held"):
        (block,) = make_blocks(setting, n_blocks=1)
        whole = pack(method, block).changes
        client = int(np.argmax(block.n_rows))
        block.values[block.indptr[client]] = broken
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            changes = pack(method, block).changes
            finite = changes.finite(np.ones(block.n_clients, dtype=bool))
            np.testing.assert_array_equal(finite, np.arange(block.n_clients) != client)
            sums = np.zeros(block.shape)
            changes.norms(finite)
            changes.add_to(sums, finite.astype(float))
        expected = np.zeros(block.shape)
        whole.add_to(expected, finite.astype(float))
        np.testing.assert_array_equal(sums, expected)
        assert (
            np.isnan(changes.update(client).change).any()
            or not np.isfinite(changes.update(client).change).all()
        )


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_common_change_that_is_not_finite_affects_all_clients(method):
    (block,) = make_blocks("common", n_blocks=1)
    block.common.change[3, 1] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        finite = pack(method, block).changes.finite(np.ones(block.n_clients, dtype=bool))
    assert not finite.any()


@pytest.mark.parametrize("scale", [1e-40, 1e-25, 1e25])
def test_int8_follows_any_scale(scale):
    (block,) = make_blocks("common", n_blocks=1, scale=scale)
    changes = pack(Quantization("int8"), block).changes
    sums, n = np.zeros(block.shape), block.n_clients
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        changes.add_to(sums, np.ones(n))
        assert changes.finite(np.ones(n, dtype=bool)).all()
    for client in range(n):
        change = block.update(client).change
        step = max(np.abs(change).max() / 126, 2.0**-100)
        assert np.all(np.abs(changes.update(client).change - change) <= step)
    np.testing.assert_allclose(sums, sum(changes.whole(c) for c in range(n)), rtol=1e-9)


def test_int8_reports_numbers_beyond_float32():
    (block,) = make_blocks("common", n_blocks=1, scale=1e300)
    for changes in (block, listed(block)):
        packed = pack(Quantization("int8"), changes).changes
        assert not packed.finite(np.ones(block.n_clients, dtype=bool)).any()


def listed(block):
    return Listed([block.update(client) for client in range(block.n_clients)], block.form)


@pytest.mark.parametrize("setting", ["common", "held", "chosen"])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_changes_of_another_kind_are_compressed_alike(method, setting):
    (block,) = make_blocks(setting, n_blocks=1)
    ragged, other = pack(method, block), pack(method, listed(block))
    np.testing.assert_array_equal(ragged.nbytes, other.nbytes)
    np.testing.assert_array_equal(ragged.payload, other.payload)
    sums = np.zeros((2, *block.shape))
    weights = np.random.default_rng(0).normal(size=block.n_clients)
    ragged.changes.add_to(sums[0], weights)
    other.changes.add_to(sums[1], weights)
    np.testing.assert_allclose(sums[0], sums[1], atol=1e-9)
    assert getattr(other.changes, "deferred", None) is None


def test_clients_that_send_nothing_are_not_looked_at():
    class Sent(Changes):
        shape, n_clients, form = (3, 2), 2, Form((3, 2), rows="chosen")

        def update(self, client):
            assert client == 1
            return Update(np.array([0, 2]), np.ones((2, 2)))

    for method in [*METHODS, Noisy()]:
        packed = pack(method, Sent(), sends=np.array([False, True]))
        sums = np.zeros((3, 2))
        packed.changes.add_to(sums, np.array([0.0, 1.0]))
        assert sums[1].max() == 0 < sums.max()
        assert packed.nbytes[0] == packed.payload[0] == 0 < packed.nbytes[1]


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


@pytest.mark.parametrize("setting", ["common", "held", "chosen"])
def test_a_users_compressor_gets_each_client_with_a_generator_of_its_own(setting):
    (block,) = make_blocks(setting, n_blocks=1)
    packed, sums, expected = pack(Noisy(), block), np.zeros(block.shape), np.zeros(block.shape)
    packed.changes.add_to(sums, np.ones(block.n_clients))
    for client, seed in enumerate(seeds_of(block.n_clients)):
        rows, change = block.update(client)
        expected[rows] += change + np.random.default_rng(int(seed)).normal(size=change.shape)
        assert packed.nbytes[client] == 16 + 4 * len(change) * (setting == "chosen")
        assert packed.payload[client] == 8
    np.testing.assert_allclose(sums, expected, atol=1e-12)
    assert isinstance(packed.changes, Listed)


def test_mistakes_of_a_users_compressor_are_named():
    (block,) = make_blocks("common", n_blocks=1)
    with pytest.raises(ValueError, match=r"Crooked.* \(11, 4\).* \(10, 4\)"):
        pack(Crooked(), block)
    with pytest.raises(TypeError, match=r"Bare.* \(11, 4\).* ndarray"):
        pack(Bare(), block)


@pytest.mark.parametrize("method", ["compress", "_compress"])
def test_a_subclass_that_compresses_in_another_way_is_asked(method):
    class Half(TopK):
        pass

    def halve(self, values, generator):
        return Compressed(values / 2, 1, 1)

    setattr(Half, method, halve)
    (block,) = make_blocks("common", n_blocks=1)
    packed, plain = pack(Half(), block), np.zeros(block.shape)
    sums = np.zeros(block.shape)
    packed.changes.add_to(sums, np.ones(block.n_clients))
    block.add_to(plain, np.ones(block.n_clients))
    np.testing.assert_allclose(sums, plain / 2, atol=1e-12)
    assert (packed.nbytes == 4).all()
