from dataclasses import replace

import numpy as np
import pytest

from fedrecsk.privacy import Paillier, secure_sum

pytestmark = pytest.mark.sampled

REASON = "needs the extra: pip install 'fedrecsk[privacy]'"
pytest.importorskip("phe", reason=REASON)
pytest.importorskip("gmpy2", reason=REASON)


def small(**parameters):
    """Keys of 512 bits, which are quick."""
    return Paillier(512, allow_weak=True, **parameters)


@pytest.fixture(scope="module")
def keys():
    return small().generate_keys(n_clients=60)


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("n_clients", [1, 60])
def test_sums_of_fixed_point_numbers_are_exact(packing, n_clients):
    scheme = small(packing=packing, fraction_bits=20)
    rng = np.random.default_rng(0)
    vectors = rng.integers(-(2**28), 2**28, (n_clients, 10)) / 2.0**20
    result = secure_sum(scheme.generate_keys(n_clients), vectors)
    assert result.error == 0


@pytest.mark.parametrize("packing", [True, False])
def test_what_was_made_with_other_keys_is_reported(packing):
    made = [small(packing=packing).generate_keys(2) for _ in range(2)]
    # Whatever the smaller modulus makes is a ciphertext under the larger one.
    others, keys = sorted(made, key=lambda one: one.clients._public.n)
    upload = others.clients.encrypt([1.0, 2.0])
    forged = replace(upload, key_id=keys.clients.key_id)
    with pytest.warns(UserWarning, match=f"keys '{keys.clients.key_id}' decrypt random numbers"):
        keys.clients.decrypt(keys.server.sum([forged, keys.clients.encrypt([1.0, 2.0])]))


@pytest.mark.parametrize("fraction_bits", [0, 40, 52])
def test_other_sums_are_as_precise_as_stated(fraction_bits):
    scheme = small(fraction_bits=fraction_bits)
    vectors = np.random.default_rng(0).normal(size=(60, 20))
    result = secure_sum(scheme.generate_keys(60), vectors)
    bound = scheme.precision(60, np.abs(vectors).max())
    assert 0 < result.error <= bound


@pytest.mark.parametrize("n_clients", [1, 7])
def test_the_bound_is_reached_where_every_value_lies_between_two_units(n_clients):
    scheme = small(fraction_bits=20)
    halves = np.array([0.5, -0.5, 2.5]) / 2**20
    result = secure_sum(scheme.generate_keys(n_clients), [halves] * n_clients)
    np.testing.assert_array_equal(result.values, n_clients * np.array([0, 0, 2]) / 2**20)
    assert result.error == pytest.approx(scheme.precision(n_clients, 2.5 / 2**20), rel=1e-9)


@pytest.mark.parametrize(("n_clients", "fraction_bits"), [(1, 40), (3, 60), (60, 40), (6040, 0)])
def test_the_largest_values_do_not_reach_their_neighbours(n_clients, fraction_bits):
    scheme = small(fraction_bits=fraction_bits)
    limit = scheme.max_value(n_clients)
    vector = np.array([limit, -limit, 0.0, limit, -limit, -limit, 0.0, limit])
    keys = scheme.generate_keys(n_clients)
    one = keys.clients.encrypt(vector)
    np.testing.assert_array_equal(keys.clients.decrypt(one), vector)
    total = keys.clients.decrypt(keys.server.sum([one] * n_clients))
    np.testing.assert_allclose(total, n_clients * vector, rtol=1e-12)


def test_only_the_size_of_the_ciphertext_is_visible(keys):
    sizes = {len(keys.clients.encrypt([v]).blocks[0]) for v in (0.0, 1e-9, 1.0, -1000.0)}
    assert sizes == {2 * 512 // 8}


def test_the_server_has_no_factors(keys):
    assert keys.server._private is None
    assert not hasattr(keys.server._public, "p")


def test_a_value_that_may_overflow_is_refused_with_its_cure(keys):
    limit = small().max_value(60)
    assert limit == pytest.approx(2**23 / 60)
    with pytest.raises(ValueError, match=r"size 1e\+06 may overflow.*fraction_bits to at most 37"):
        keys.clients.encrypt([-1e6])
    assert small(fraction_bits=37).max_value(60) > 1e6 > small(fraction_bits=38).max_value(60)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"key_bits": 2048}, "weaker than 128-bit security.*allow_weak=True"),
        ({"key_bits": 3000}, "multiple of 64"),
        ({"key_bits": 64, "allow_weak": True}, "'key_bits' parameter"),
        ({"fraction_bits": 61}, "'fraction_bits' parameter"),
        ({"packing": "yes"}, "'packing' parameter"),
        ({"audit": 0}, "'audit' parameter"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        Paillier(**parameters).generate_keys()


@pytest.mark.parametrize(("key_bits", "n_packed"), [(2048, 31), (3072, 47)])
def test_sizes_of_real_keys(key_bits, n_packed):
    scheme = Paillier(key_bits, allow_weak=True)
    assert scheme.values_per_block == n_packed
    assert scheme.ciphertext_bytes(3706) == -(-3706 // n_packed) * key_bits // 4


def test_real_keys_work():
    keys = Paillier().generate_keys(n_clients=2)
    total = keys.server.add(keys.clients.encrypt([1.5, -2.0]), keys.clients.encrypt([1.0, 4.0]))
    np.testing.assert_array_equal(keys.clients.decrypt(total), [2.5, 2.0])
    assert keys.server._public.n.bit_length() == 3072
