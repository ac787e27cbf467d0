import numpy as np
import pytest

from fedrecsk.privacy import CKKS, secure_sum

pytestmark = pytest.mark.sampled

tenseal = pytest.importorskip("tenseal", reason="needs the extra: pip install 'fedrecsk[privacy]'")

SETTINGS = [
    CKKS(),
    CKKS(scale_bits=30),
    CKKS(4096, (60, 49)),
    CKKS(8192, [60, 60], 40),
    CKKS(8192, (50, 50, 50), 50),
    CKKS(8192, (60, 60, 60), 60),
]


@pytest.fixture(scope="module")
def keys():
    return CKKS().generate_keys(n_clients=60)


@pytest.mark.parametrize("scheme", SETTINGS, ids=str)
@pytest.mark.parametrize("n_clients", [1, 30])
def test_sums_are_as_precise_as_stated(scheme, n_clients):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(n_clients, 3 * scheme.values_per_block // 2))
    result = secure_sum(scheme.generate_keys(n_clients), vectors)
    bound = scheme.precision(n_clients, np.abs(vectors).max())
    assert result.n_clients == n_clients
    assert 0 < result.error <= bound
    if len(scheme.coeff_mod_bit_sizes) == 2:
        # The bound is not so wide as to say nothing.
        assert bound < 4 * result.error


@pytest.mark.parametrize("scheme", SETTINGS[:4], ids=str)
@pytest.mark.parametrize("n_clients", [3])
def test_the_noise_bound_is_eight_standard_deviations_of_the_noise(scheme, n_clients):
    zeros, keys = np.zeros(4 * scheme.values_per_block), scheme.generate_keys(n_clients)
    noise = secure_sum(keys, [zeros] * n_clients).values
    # So many values determine their standard deviation to about one percent.
    assert scheme.precision(n_clients, 0.0) == pytest.approx(8 * noise.std(), rel=0.06)
    assert noise.mean() == pytest.approx(0, abs=0.1 * noise.std())


@pytest.mark.parametrize("scheme", SETTINGS, ids=str)
@pytest.mark.parametrize("n_clients", [1, 7])
def test_the_largest_values_do_not_overflow(scheme, n_clients):
    limit, keys = scheme.max_value(n_clients), scheme.generate_keys(n_clients)
    for signs in (np.ones(100), np.random.default_rng(0).choice([-1.0, 1.0], 100)):
        result = secure_sum(keys, [limit * signs] * n_clients)
        assert result.error <= scheme.precision(n_clients, limit)


def test_tenseal_itself_finds_no_key_on_the_server(keys):
    with pytest.raises(ValueError, match="has no secret key and cannot encrypt"):
        keys.server.encrypt([1.0])
    context = keys.server._context
    assert not context.has_secret_key()
    loaded = tenseal.ckks_vector_from(context, keys.clients.encrypt([1.0]).blocks[0])
    with pytest.raises(ValueError, match="doesn't hold a secret_key"):
        loaded.decrypt()
    with pytest.raises(ValueError, match="doesn't hold a Secret key"):
        context.serialize(save_secret_key=True)


def test_a_value_that_may_overflow_is_refused_with_its_cure(keys):
    limit = CKKS().max_value(60)
    assert limit == pytest.approx(8192 / 60, rel=1e-4)
    keys.clients.encrypt([limit, -limit])
    with pytest.raises(ValueError, match=r"size 400 may overflow.*scale_bits to at most 38"):
        keys.clients.encrypt([0.0, -400.0])
    assert CKKS(scale_bits=38).max_value(60) > 400 > CKKS(scale_bits=39).max_value(60)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"poly_modulus_degree": 1000}, "'poly_modulus_degree' parameter"),
        ({"coeff_mod_bit_sizes": (60, 60)}, "120 bits, but 128-bit security .* allows 109"),
        ({"coeff_mod_bit_sizes": (54,)}, "at least two whole numbers"),
        ({"coeff_mod_bit_sizes": (54, 61)}, "from 20 to 60"),
        ({"coeff_mod_bit_sizes": 109}, "'coeff_mod_bit_sizes' parameter"),
        ({"scale_bits": 52}, "scale_bits=52 is too large.*at most 51"),
        ({"scale_bits": 60}, r"sums would have to stay below 2 \*\* -7"),
        ({"scale_bits": 0}, "'scale_bits' parameter"),
        ({"audit": 0}, "'audit' parameter"),
        ({"audit": "some"}, "'audit' parameter"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        CKKS(**parameters).generate_keys()


# CoLR, Table 3, in KB.
PAPER = {1: 3073, 2: 3073, 4: 3073, 8: 3073, 16: 6147, 32: 12293, 64: 24587}


def test_at_most_half_the_papers_ciphertext():
    for rank, kilobytes in PAPER.items():
        assert CKKS().ciphertext_bytes(3706 * rank) <= kilobytes * 1000 / 2
