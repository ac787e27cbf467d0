"""Federated methods in the settings that they accept equal the one-client reference.

Some methods, of every kind of upload, are tested in every second setting; each other one in a few,
so that every setting has several methods.

The reference cuts blocks of one client each. Noise is drawn client by client in both.
"""

import warnings

import numpy as np
import pytest
from scipy.sparse import issparse
from sklearn.exceptions import ConvergenceWarning

from fedrecsk import Federation
from fedrecsk.aggregation import NormClipping
from fedrecsk.attacks import SignFlip
from fedrecsk.compression import Quantization
from fedrecsk.privacy import CentralDP
from fedrecsk.protocol import blocks
from tests import test_golden as golden
from tests.conftest import make_toy
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
        "central_dp": CentralDP(0.5, 0.1, quantile=0.5),
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
    "but LightFR sends codes and integers",
    "has nothing to compress",
    "has no rows of items",
    "has no such rows",
    "so the aggregator would have no effect",
)

# Codes and integers, and columns that clients choose.
ALSO = ("LightFR", "SCoLR")

# What must be equal, where a method has it.
LEARNED = ("item_factors_", "user_factors_", "item_weights_")


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    """Real numbers in float64, and every client's own draws."""
    for Estimator in FEDERATED:
        if hasattr(Estimator, "_dtype"):
            monkeypatch.setattr(Estimator, "_dtype", np.float64)
    monkeypatch.setattr(Federation, "draws_each", True)


def make(Estimator, setting):
    """A small instance; its updates are large enough to be told apart."""
    estimator = Estimator()
    known = estimator.get_params(deep=False)
    small = {
        "n_factors": 4,
        "n_bits": 8,
        "n_rounds": 2 if is_neural(Estimator) else 3,
        "rank": 2,
        "reg_user": 0.5,
        "client_fraction": 0.7,
        "random_state": 0,
        # Adam divides by what may be rounding alone.
        "optimizer": "sgd" if "local_epochs" in known else "gd",
        "rating_scale": (1, 5),
    }
    if "n_bits" in known:
        del small["reg_user"], small["rating_scale"]
    if setting.get("local_dp", setting.get("central_dp")) is not None:
        small["items"] = 1000 + 3 * np.arange(9)
        if "predict_with" in known:
            small["aggregation"] = "clients"
        if setting.get("central_dp") is not None:
            small["rating_scale"] = (1, 5)
            small["upload"] = "all"
    estimator.set_params(**{k: v for k, v in small.items() if k in known})
    return estimator.set_params(federation=Federation(**setting))


def fitted(Estimator, setting, clients=None):
    X, y = make_toy(16, 9, seed=1)
    model = make(Estimator, setting)
    silos = None if clients is None else X[:, 0] // 7 % clients
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, y, clients=silos)


def assert_equal_fits(Estimator, setting, monkeypatch, clients=None):
    try:
        model = fitted(Estimator, setting, clients)
    except ValueError as error:
        refusal = str(error)
    else:
        refusal = None
    if refusal is not None:
        assert any(reason in refusal for reason in REFUSALS), refusal
        with pytest.raises(ValueError, match=refusal[:20]):
            fitted(Estimator, setting, clients)
        return
    monkeypatch.setattr(blocks, "block_size", lambda data: 1)
    reference = fitted(Estimator, setting, clients)
    close = tolerance(Estimator)
    for name in LEARNED:
        if hasattr(model, name):
            one, other = (getattr(m, name) for m in (model, reference))
            if issparse(one):
                one, other = one.toarray(), other.toarray()
            one, other = np.asarray(one, dtype=float), np.asarray(other, dtype=float)
            np.testing.assert_allclose(one, other, rtol=close, atol=close, err_msg=name)
    assert model.communication_ == reference.communication_
    expected = pytest.approx(reference.loss_curve_, rel=max(close, 1e-6), nan_ok=True)
    assert model.loss_curve_ == expected


@pytest.mark.full
@pytest.mark.parametrize(("Estimator", "setting"), cases(FEDERATED, SETTINGS, 7, ALSO, 2))
def test_equals_the_one_client_reference(Estimator, setting, monkeypatch):
    assert_equal_fits(Estimator, SETTINGS[setting], monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize(("Estimator", "setting"), cases(FEDERATED, OF_SILOS, 3, ALSO))
def test_silos_equal_the_one_client_reference(Estimator, setting, monkeypatch):
    assert_equal_fits(Estimator, OF_SILOS[setting], monkeypatch, clients=7)
