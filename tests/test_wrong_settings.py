"""Ordinary mistakes in what surrounds a method: each error names the culprit and the cure."""

import re
import warnings

import numpy as np
import pytest

from fedrecsk import ExplicitFCF, Federation, FedMF, LocALS, RFRec
from fedrecsk.aggregation import Krum, NormClipping, TrimmedMean
from fedrecsk.attacks import ALIE, Adversary, Fang, PipAttack, Promotion, RandomUpload, SignFlip
from fedrecsk.audit import measure_leak
from fedrecsk.compression import Compressed, Compressor, LowRank, Quantization, TopK
from fedrecsk.privacy import CKKS, LaplaceMechanism, Paillier, secure_sum
from tests.conftest import make_toy

COMPRESSORS = [TopK(0.25), LowRank(1), Quantization("int8"), Quantization("float16")]
SCHEMES = [CKKS(), Paillier(512, allow_weak=True)]


def rng():
    return np.random.default_rng(0)


def fit(Estimator=RFRec, **setting):
    X, y = make_toy(20, 9, seed=1)
    model = Estimator(n_rounds=4, random_state=0, federation=Federation(**setting))
    if "local_dp" in setting:
        model.set_params(items=np.unique(X[:, 1]), rating_scale=(1, 5))
    return model.fit(X, y)


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
def test_compressors_name_numbers_that_are_not_finite(compressor):
    values, name = np.ones((6, 4)), type(compressor).__name__
    for bad in (np.nan, np.inf, -np.inf):
        values[1, 2] = bad
        message = rf"{name} compresses finite .* {bad} at position \(1, 2\)"
        with pytest.raises(ValueError, match=message):
            compressor.compress(values, rng())


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
def test_compressors_leave_out_a_client_that_sends_nan(compressor):
    class Broken(Adversary):
        def _forged(self, view, upload, generator):
            return {n: u._replace(change=np.nan * u.change) for n, u in upload.items()}

    model = fit(compression=compressor, adversary=Broken(0.1))
    rejected = sum(entry["rejected"] for entry in model.communication_.entries)
    assert rejected == 4 * len(model.compromised_clients_) == 8
    X, _ = make_toy(20, 9, seed=1)
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: Quantization().compress(np.ones(3), None), TypeError, "Generator.*but got NoneT"),
        (lambda: Quantization().compress(np.full(3, 1e300), rng()), ValueError, r"1e\+300 in size"),
        (lambda: TopK(2.0).compress(np.ones(3), rng()), ValueError, "'ratio' parameter of TopK"),
        (lambda: LaplaceMechanism().epsilon, ValueError, "'clip' parameter of LaplaceMechanism"),
        (lambda: LaplaceMechanism(1, 0).epsilon, ValueError, "'scale' parameter of Laplace"),
        (lambda: secure_sum(CKKS(), [[1.0]]), TypeError, "takes Keys, but got CKKS; .*generate_k"),
        (lambda: measure_leak(LocALS, [[0, 1]]), TypeError, r"got a class; pass LocALS\(\)"),
    ],
)
def test_wrong_calls_are_named(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("wrong", [{"n_rounds": 1.5}, {"max_clients": 2.5}])
def test_numbers_of_a_leak_measurement_are_named(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"'{name}' .* must be an int .*Got {value}"):
        measure_leak(LocALS(), make_toy()[0], **wrong)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: type(scheme).__name__)
def test_wrong_calls_of_a_secure_sum_are_named(scheme):
    for n_clients in (0, 1.5, "x", np.nan, 2**70):
        for call in (scheme.generate_keys, scheme.max_value, scheme.precision):
            with pytest.raises(ValueError, match=r"n_clients=.* must be a whole number from 1 to"):
                call(n_clients)
    keys = scheme.generate_keys()
    with pytest.raises(TypeError, match=r"Expected a Ciphertext.*keys\.clients\.encrypt"):
        keys.clients.decrypt([1.0])
    with pytest.raises(TypeError, match="Expected a Ciphertext, but got float"):
        keys.server.sum([1.0])
    with pytest.raises(ValueError, match="n_values=-1 must be a whole number"):
        scheme.ciphertext_bytes(-1)
    with pytest.raises(ValueError, match=r"size 1e\+300 may overflow.* Scale the values down") as e:
        keys.clients.encrypt([1e300])
    assert not re.search(r"at most (-|0\.$)", str(e.value))
    one = keys.clients.encrypt([1.0])
    assert keys.clients.decrypt(keys.server.sum(one)) == pytest.approx([1.0])


@pytest.mark.parametrize(
    ("part", "wrong", "cure"),
    [
        ("secure_aggregation", "ckks", "CKKS()"),
        ("secure_aggregation", True, "CKKS()"),
        ("compression", "int8", 'Quantization("int8")'),
        ("compression", TopK, "TopK()"),
        ("aggregator", "median", "NormClipping()"),
        ("adversary", 0.1, "SignFlip(fraction=0.1)"),
        ("local_dp", (0.2, 0.04), "LaplaceMechanism(clip=0.2, scale=0.04)"),
    ],
)
def test_names_and_classes_in_place_of_objects_are_told_what_to_pass(part, wrong, cure):
    with pytest.raises(ValueError, match=rf"Federation\({part}=") as error:
        fit(**{part: wrong})
    assert cure in str(error.value)
    assert "._" not in str(error.value)


class Misspelt(Adversary):
    def _forges(self, view, upload, generator):
        return upload


class NotANumber(Compressor):
    def _compress(self, values, generator):
        return Compressed(np.nan * values, values.size, values.size)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"adversary": Adversary()}, "Adversary attacks nothing.*Implement _forged"),
        ({"adversary": Misspelt()}, "Misspelt attacks nothing.*Implement _forged"),
        ({"compression": NotANumber()}, "NotANumber.compress returned NaN.*division by zero"),
    ],
)
def test_users_own_parts_that_do_not_work_are_named(setting, message):
    with pytest.raises(ValueError, match=message):
        fit(**setting)


def test_a_compressor_without_a_direction_compresses_both():
    class Halves(Compressor):
        def _compress(self, values, generator):
            return Compressed(values, values.size, values.size, itemsize=2)

    plain, halved = fit().communication_, fit(compression=Halves()).communication_
    assert halved.bytes_up < plain.bytes_up
    assert halved.bytes_down < plain.bytes_down


def test_top_k_that_makes_messages_longer_warns():
    with pytest.warns(UserWarning, match=r"TopK\(ratio=0.8\) makes messages longer"):
        longer = fit(compression=TopK(0.8)).communication_
    assert longer.bytes_up > fit().communication_.bytes_up


def test_numbers_that_do_not_fit_into_float16_are_named():
    X, y = make_toy(20, 9, seed=1)
    federation = Federation(compression=Quantization("float16", direction="up"))
    model = ExplicitFCF(n_rounds=4, random_state=0, federation=federation)
    with pytest.raises(ValueError, match=r"cause is Quantization\(.*end at 65504: use"):
        model.fit(X, 1e7 * y)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("strength", lambda v: {"adversary": RandomUpload(strength=v)}),
        ("strength", lambda v: {"adversary": SignFlip(strength=v)}),
        ("strength", lambda v: {"adversary": Promotion(item=1003, strength=v)}),
        ("strength", lambda v: {"adversary": PipAttack(item=1003, strength=v)}),
        ("boost", lambda v: {"adversary": PipAttack(item=1003, boost=v)}),
        ("z", lambda v: {"adversary": ALIE(z=v)}),
        ("farthest", lambda v: {"adversary": Fang(farthest=v)}),
        ("fraction", lambda v: {"adversary": SignFlip(v)}),
        ("trim", lambda v: {"aggregator": TrimmedMean(v)}),
        ("n_attackers", lambda v: {"aggregator": Krum(v)}),
        ("clip", lambda v: {"local_dp": LaplaceMechanism(v, 0.1)}),
        ("scale", lambda v: {"local_dp": LaplaceMechanism(0.5, v)}),
        ("ratio", lambda v: {"compression": TopK(v)}),
        ("rank", lambda v: {"compression": LowRank(v)}),
    ],
)
def test_parameters_out_of_range_are_named_before_anything_is_done(name, setting):
    # Huge ones would make fits overflow.
    for value in (-1, np.nan, "x", 1e300):
        with pytest.raises(ValueError, match=f"'{name}' parameter of "):
            fit(**setting(value))


@pytest.mark.parametrize(
    ("Estimator", "aggregator"), [(RFRec, None), (FedMF, None), (FedMF, NormClipping(1e30))]
)
def test_an_attack_that_makes_clients_diverge_is_named(Estimator, aggregator):
    federation = Federation(adversary=SignFlip(0.2, strength=1e15), aggregator=aggregator)
    model = Estimator(n_rounds=9, random_state=0, federation=federation)
    with (
        warnings.catch_warnings(action="error", category=RuntimeWarning),
        pytest.raises(
            ValueError, match=r"diverged.*cause is SignFlip\(.*lower its strength"
        ) as error,
    ):
        model.fit(*make_toy(20, 9, seed=1))
    assert ("set an aggregator such as NormClip" in str(error.value)) == (aggregator is None)
