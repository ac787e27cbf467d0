"""Federated methods in the settings that they accept equal the one-client reference.

Some methods, of every kind of upload, are tested in every second setting; each other one in a few,
so that every setting has several methods.

The reference cuts blocks of one client each. Noise is drawn client by client in both.
"""

import numpy as np
import pytest

from fedrecsk.aggregation import NormClipping
from fedrecsk.attacks import SignFlip
from fedrecsk.compression import Quantization
from fedrecsk.privacy import CentralDP
from fedrecsk.protocol import blocks
from tests import test_golden as golden
from tests.conftest import draw_each
from tests.listed import cases, is_neural, tolerance
from tests.test_contract import FEDERATED

SETTINGS = golden.SETTINGS | {
    "plain": {},
    "clipping, stale": {"aggregator": NormClipping(), **golden.STALE},
    "sign flip, clipping, lost": {
        "adversary": SignFlip(0.2),
        "aggregator": NormClipping(),
        "dropout": 0.3,
    },
    "int8, clipping": {"compression": Quantization("int8"), "aggregator": NormClipping()},
    "noise on sums, sign flip": {
        "central_dp": CentralDP(0.5, noise_multiplier=0.1, quantile=0.5),
        "adversary": SignFlip(0.2),
    },
}
OF_SILOS = {name: golden.SILOS[name] for name in ("median", "trimmed mean", "Krum, sign flip")}

# Why a method may refuse a setting; the reference must refuse it too.
REFUSALS = (
    "treats clients individually",
    "sends codes or exact integers",
    "sends only some rows",
    "has no local_dp",
    "has no central_dp",
    "it sends codes and integers",
    "nothing to gain",
    "has no rows of items",
    "has no such rows",
    "so the aggregator would have no effect",
)

# Codes and integers, and columns that clients choose.
ALSO = ("LightFR", "SCoLR")


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    """Real numbers in float64, and every client's own draws."""
    golden.compute_in_float64(monkeypatch)
    draw_each(monkeypatch)


def assert_equal_fits(Estimator, setting, monkeypatch, n_clients=None):
    known = Estimator().get_params(deep=False)
    # Adam divides by what may be rounding alone.
    plain = {"client_fraction": 0.7, "n_rounds": 2 if is_neural(Estimator) else 3}
    plain["optimizer"] = "sgd" if "local_epochs" in known else "gd"
    if "predict_with" in known and "local_dp" in setting:
        plain["aggregation"] = "clients"
    if "central_dp" in setting:
        plain["upload"] = "all"
    case = Estimator.__name__, plain, setting, n_clients
    found = golden.entry(*case)
    monkeypatch.setattr(blocks, "block_size", lambda *_: 1)
    reference = golden.entry(*case)
    if "refused" in found:
        assert any(reason in found["refused"] for reason in REFUSALS), found
        assert found == reference
        return
    close = tolerance(Estimator)
    np.testing.assert_allclose(found["predictions"], reference["predictions"], close, close)
    np.testing.assert_allclose(found["losses"], reference["losses"], max(close, 1e-6))
    assert found["bytes"] == reference["bytes"]


@pytest.mark.full
@pytest.mark.parametrize(("Estimator", "setting"), cases(FEDERATED, SETTINGS, 7, ALSO, 2))
def test_equals_the_one_client_reference(Estimator, setting, monkeypatch):
    assert_equal_fits(Estimator, SETTINGS[setting], monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize(("Estimator", "setting"), cases(FEDERATED, OF_SILOS, 3, ALSO))
def test_silos_equal_the_one_client_reference(Estimator, setting, monkeypatch):
    assert_equal_fits(Estimator, OF_SILOS[setting], monkeypatch, 7)
