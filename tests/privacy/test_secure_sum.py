"""What both schemes of encryption share; CKKS's and Paillier's own are in their files."""

import sys

import numpy as np
import pytest

from fedrecsk.privacy import CKKS, Paillier

pytestmark = pytest.mark.sampled

SCHEMES = {"tenseal": CKKS(), "phe": Paillier(512, allow_weak=True)}


@pytest.fixture(scope="module", params=SCHEMES)
def scheme(request):
    pytest.importorskip(request.param, reason="needs fedrecsk[privacy]")
    return SCHEMES[request.param]


@pytest.fixture(scope="module")
def keys(scheme):
    return scheme.generate_keys(n_clients=60)


@pytest.mark.parametrize("blocks", [0, 0.5, 1, 2.5])
def test_any_length_comes_back(scheme, keys, blocks):
    values = np.random.default_rng(0).normal(size=int(blocks * scheme.values_per_block))
    ciphertext = keys.clients.encrypt(values)
    assert len(ciphertext.blocks) == np.ceil(blocks)
    np.testing.assert_allclose(keys.clients.decrypt(ciphertext), values, atol=1e-8, rtol=0)
    counted = scheme.ciphertext_bytes(len(values))
    assert ciphertext.nbytes <= counted <= 1.03 * ciphertext.nbytes


def test_rounded_counts_are_exact_whether_added_one_by_one_or_at_once(keys):
    counts = np.random.default_rng(0).integers(0, 2, (60, 50))
    uploads = [keys.clients.encrypt(row) for row in counts]
    at_once, total = keys.server.sum(uploads), uploads[0]
    for one in uploads[1:]:
        total = keys.server.add(total, one)
    assert total.n_clients == 60
    assert total.nbytes == pytest.approx(uploads[0].nbytes, rel=0.01)
    for one in (at_once, total):
        np.testing.assert_array_equal(np.rint(keys.clients.decrypt(one)), counts.sum(axis=0))


def test_the_server_cannot_decrypt(keys):
    with pytest.raises(ValueError, match="has no secret key and cannot decrypt"):
        keys.server.decrypt(keys.clients.encrypt([1.0]))


def test_other_keys_are_refused_on_both_sides(scheme, keys):
    others = scheme.generate_keys(n_clients=60)
    assert others.clients.key_id != keys.clients.key_id
    ciphertext = others.clients.encrypt([1.0])
    with pytest.raises(ValueError, match=r"belongs to the keys .* but this side has"):
        keys.clients.decrypt(ciphertext)
    with pytest.raises(ValueError, match="belongs to the keys"):
        keys.server.sum([keys.clients.encrypt([1.0]), ciphertext])


def test_equal_vectors_have_different_ciphertexts(keys):
    first, second = (keys.clients.encrypt(np.zeros(10)) for _ in range(2))
    assert first.blocks != second.blocks


def test_wrong_vectors_and_sums_are_refused(scheme, keys):
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match=r"Value 1 of the vector is .*; only finite"):
            keys.clients.encrypt([0.0, bad])
    with pytest.raises(ValueError, match="takes a vector"):
        keys.clients.encrypt(np.ones((2, 2)))
    with pytest.raises(ValueError, match="nothing to add"):
        keys.server.sum([])
    with pytest.raises(ValueError, match="of 1 and 2 values"):
        keys.server.add(keys.clients.encrypt([1.0]), keys.clients.encrypt([1.0, 2.0]))
    few = scheme.generate_keys(n_clients=2)
    with pytest.raises(ValueError, match=r"made for at most 2.*generate_keys\(n_clients=3\)"):
        few.server.sum(few.clients.encrypt([1.0]) for _ in range(3))


@pytest.mark.parametrize("module", ["tenseal", "phe", "gmpy2"])
def test_a_missing_extra_names_itself(monkeypatch, module):
    scheme = SCHEMES.get(module, SCHEMES["phe"])
    monkeypatch.setitem(sys.modules, module, None)
    message = rf"{type(scheme).__name__} needs {module}.*'\.\[privacy\]'"
    with pytest.raises(ImportError, match=message):
        scheme.generate_keys()
