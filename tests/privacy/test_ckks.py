import pickle
import sys

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk.privacy import CKKS, Ciphertext, secure_sum

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
@pytest.mark.parametrize("n_clients", [1, 5, 60])
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
@pytest.mark.parametrize("n_clients", [1, 5])
def test_the_noise_bound_is_eight_standard_deviations_of_the_noise(scheme, n_clients):
    zeros, keys = np.zeros(4 * scheme.values_per_block), scheme.generate_keys(n_clients)
    noise = secure_sum(keys, [zeros] * n_clients).values
    # So many values determine their standard deviation to about one percent.
    assert scheme.precision(n_clients, 0.0) == pytest.approx(8 * noise.std(), rel=0.06)
    assert noise.mean() == pytest.approx(0, abs=0.1 * noise.std())


@pytest.mark.parametrize("scheme", SETTINGS, ids=str)
@pytest.mark.parametrize("n_clients", [1, 2, 7])
@pytest.mark.parametrize("signs", ["same", "random"])
def test_the_largest_values_do_not_overflow(scheme, n_clients, signs):
    rng = np.random.default_rng(0)
    limit = scheme.max_value(n_clients)
    vector = limit * (np.ones(100) if signs == "same" else rng.choice([-1.0, 1.0], 100))
    result = secure_sum(scheme.generate_keys(n_clients), [vector] * n_clients)
    assert result.error <= scheme.precision(n_clients, limit)


def test_rounded_counts_are_exact(keys):
    counts = np.random.default_rng(0).integers(0, 2, (60, 500))
    total = keys.server.sum(keys.clients.encrypt(row) for row in counts)
    np.testing.assert_array_equal(np.rint(keys.clients.decrypt(total)), counts.sum(axis=0))


@pytest.mark.parametrize("n_values", [0, 1, 2047, 2048, 2049, 5000])
def test_any_length_comes_back(keys, n_values):
    values = np.random.default_rng(0).normal(size=n_values)
    ciphertext = keys.clients.encrypt(values)
    assert len(ciphertext.blocks) == -(-n_values // 2048)
    np.testing.assert_allclose(keys.clients.decrypt(ciphertext), values, atol=1e-8, rtol=0)


def test_adding_by_two_is_adding_all(keys):
    a, b, c = (keys.clients.encrypt([float(k), -1.0]) for k in range(3))
    total = keys.server.add(keys.server.add(a, b), c)
    assert total.n_clients == 3
    np.testing.assert_allclose(keys.clients.decrypt(total), [3, -3], atol=1e-8)


def test_the_server_cannot_decrypt_or_encrypt(keys):
    ciphertext = keys.clients.encrypt([1.0])
    with pytest.raises(ValueError, match="has no secret key and cannot decrypt"):
        keys.server.decrypt(ciphertext)
    with pytest.raises(ValueError, match="has no secret key and cannot encrypt"):
        keys.server.encrypt([1.0])


def test_tenseal_itself_finds_no_key_on_the_server(keys):
    context = keys.server._context
    assert not context.has_secret_key()
    loaded = tenseal.ckks_vector_from(context, keys.clients.encrypt([1.0]).blocks[0])
    with pytest.raises(ValueError, match="doesn't hold a secret_key"):
        loaded.decrypt()
    with pytest.raises(ValueError, match="doesn't hold a Secret key"):
        context.serialize(save_secret_key=True)


def test_other_keys_are_refused_on_both_sides(keys):
    others = CKKS().generate_keys(n_clients=60)
    ciphertext = others.clients.encrypt([1.0])
    with pytest.raises(ValueError, match="belongs to the keys"):
        keys.clients.decrypt(ciphertext)
    with pytest.raises(ValueError, match="belongs to the keys"):
        keys.server.sum([keys.clients.encrypt([1.0]), ciphertext])


def test_the_wrong_secret_key_decrypts_nothing_useful(keys):
    values = np.linspace(-1, 1, 2048)
    stolen = Ciphertext(
        CKKS().generate_keys(2).clients.encrypt(values).blocks, 2048, 1, keys.clients.key_id
    )
    garbage = keys.clients.decrypt(stolen)
    assert np.median(np.abs(garbage)) > 1000
    assert abs(np.corrcoef(garbage, values)[0, 1]) < 0.2


def test_equal_vectors_have_different_ciphertexts(keys):
    first, second = (keys.clients.encrypt(np.zeros(10)) for _ in range(2))
    assert first.blocks != second.blocks


def test_fresh_keys_each_time():
    assert CKKS().generate_keys().clients.key_id != CKKS().generate_keys().clients.key_id


def test_a_value_that_may_overflow_is_refused_with_its_cure(keys):
    limit = CKKS().max_value(60)
    assert limit == pytest.approx(8192 / 60, rel=1e-4)
    keys.clients.encrypt([limit, -limit])
    with pytest.raises(ValueError, match=r"size 400 may overflow.*scale_bits to at most 38"):
        keys.clients.encrypt([0.0, -400.0])
    assert CKKS(scale_bits=38).max_value(60) > 400 > CKKS(scale_bits=39).max_value(60)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(keys, bad):
    with pytest.raises(ValueError, match=r"Value 1 of the vector is .*; only finite"):
        keys.clients.encrypt([0.0, bad])


def test_a_matrix_is_refused(keys):
    with pytest.raises(ValueError, match="takes a vector"):
        keys.clients.encrypt(np.ones((2, 2)))


def test_more_clients_than_the_keys_have_room_for_are_refused():
    keys = CKKS().generate_keys(n_clients=2)
    with pytest.raises(ValueError, match=r"made for at most 2.*generate_keys\(n_clients=3\)"):
        keys.server.sum(keys.clients.encrypt([1.0]) for _ in range(3))


def test_sums_of_nothing_and_of_different_lengths_are_refused(keys):
    with pytest.raises(ValueError, match="nothing to add"):
        keys.server.sum([])
    with pytest.raises(ValueError, match="of 1 and 2 values"):
        keys.server.add(keys.clients.encrypt([1.0]), keys.clients.encrypt([1.0, 2.0]))


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


def test_tenseal_refuses_what_is_weaker_too():
    with pytest.raises(ValueError, match="not set correctly"):
        tenseal.context(tenseal.SCHEME_TYPE.CKKS, 4096, coeff_mod_bit_sizes=[55, 55])


@pytest.mark.parametrize("scheme", SETTINGS[:4], ids=str)
def test_ledger_bytes_are_those_of_ciphertexts_and_reproducible(scheme):
    n_values = 3 * scheme.values_per_block
    real = scheme.generate_keys().clients.encrypt(np.random.default_rng(0).normal(size=n_values))
    counted = scheme.ciphertext_bytes(n_values)
    assert real.nbytes <= counted <= 1.03 * real.nbytes
    assert counted == 3 * scheme.ciphertext_bytes(1)
    assert scheme.ciphertext_bytes(0) == 0


def test_a_sum_is_no_longer_than_its_parts(keys):
    first, second = (keys.clients.encrypt(np.ones(100)) for _ in range(2))
    assert keys.server.add(first, second).nbytes == pytest.approx(first.nbytes, rel=0.01)


# CoLR, Table 3, in KB.
PAPER = {1: 3073, 2: 3073, 4: 3073, 8: 3073, 16: 6147, 32: 12293, 64: 24587}


@pytest.mark.parametrize("rank", PAPER)
def test_at_most_half_the_papers_ciphertext(rank):
    assert CKKS().ciphertext_bytes(3706 * rank) <= PAPER[rank] * 1000 / 2


def test_it_is_an_estimator():
    scheme = clone(CKKS(scale_bits=30, audit="all"))
    assert scheme.get_params()["scale_bits"] == 30
    assert repr(pickle.loads(pickle.dumps(scheme))) == "CKKS(audit='all', scale_bits=30)"


def test_a_missing_extra_names_itself(monkeypatch):
    monkeypatch.setitem(sys.modules, "tenseal", None)
    with pytest.raises(ImportError, match=r"CKKS needs tenseal.*fedrecsk\[privacy\]"):
        CKKS().generate_keys()
