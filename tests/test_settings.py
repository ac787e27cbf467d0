"""Every federated method, in every setting that it accepts, equals the one-client reference.

The reference cuts blocks of one client each and lets adversaries, compressors and aggregators work
on one whole upload at a time, through the same public methods that a user's own classes have. Noise
is drawn client by client in both.
"""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from fedrecsk import FedEASE, Federation, FedSpectral
from fedrecsk.aggregation import (
    Aggregator,
    CoordinateMedian,
    GeometricMedian,
    Krum,
    NormClipping,
    PopularityFilter,
    TrimmedMean,
)
from fedrecsk.attacks import (
    Adversary,
    LabelFlip,
    Promotion,
    RandomDirection,
    RandomUpload,
    SignFlip,
)
from fedrecsk.compression import Compressor, LowRank, Quantization, TopK
from fedrecsk.federated import _fit
from fedrecsk.privacy import (
    CentralDP,
    GaussianMechanism,
    LaplaceMechanism,
    SphereMechanism,
)
from fedrecsk.simulation import blocks
from fedrecsk.simulation.keys import Key
from tests.conftest import make_toy
from tests.listed import is_neural, tolerance
from tests.test_contract import FEDERATED

every_federated = pytest.mark.parametrize("Estimator", FEDERATED)


class SlowTopK(TopK):
    _compress_uploads = Compressor._compress_uploads


class SlowLowRank(LowRank):
    _compress_uploads = Compressor._compress_uploads


class SlowSignFlip(SignFlip):
    _forged_batch = Adversary._forged_batch


class SlowPromotion(Promotion):
    _forged_batch = Adversary._forged_batch


def one_by_one(cls):
    """The aggregator as a user would have written it: `combine` alone."""

    class OneByOne(cls):
        def combine(self, uploads, shapes):
            return super().combine(uploads, shapes)

        _combine_batches = Aggregator._combine_batches

    return OneByOne


SlowClipping, SlowMedian, SlowTrimmed, SlowKrum = map(
    one_by_one, (NormClipping, CoordinateMedian, TrimmedMean, Krum)
)

SlowGeometric, SlowFilter = map(one_by_one, (GeometricMedian, PopularityFilter))

# Fast and slow parts of each setting.
SETTINGS = {
    "plain": ({}, {}),
    "stale": ({"dropout": 0.4, "dropout_mode": "stale"},) * 2,
    "offline": ({"dropout": 0.4, "dropout_mode": "offline"},) * 2,
    "clipping": ({"aggregator": NormClipping()}, {"aggregator": SlowClipping()}),
    "clipping, stale": (
        {"aggregator": NormClipping(), "dropout": 0.4, "dropout_mode": "stale"},
        {"aggregator": SlowClipping(), "dropout": 0.4, "dropout_mode": "stale"},
    ),
    "sign flip": ({"adversary": SignFlip(0.2)}, {"adversary": SlowSignFlip(0.2)}),
    "sign flip, clipping, lost": (
        {"adversary": SignFlip(0.2), "aggregator": NormClipping(), "dropout": 0.3},
        {"adversary": SlowSignFlip(0.2), "aggregator": SlowClipping(), "dropout": 0.3},
    ),
    "noise uploads": ({"adversary": RandomUpload(0.2)},) * 2,
    "noise uploads, clipping": (
        {"adversary": RandomUpload(0.2), "aggregator": NormClipping()},
        {"adversary": RandomUpload(0.2), "aggregator": SlowClipping()},
    ),
    "random direction": ({"adversary": RandomDirection(0.2)},) * 2,
    "label flip, clipping": (
        {"adversary": LabelFlip(0.2), "aggregator": NormClipping()},
        {"adversary": LabelFlip(0.2), "aggregator": SlowClipping()},
    ),
    "promotion": (
        {"adversary": Promotion(0.2, item=1003)},
        {"adversary": SlowPromotion(0.2, item=1003)},
    ),
    "TopK": ({"compression": TopK(0.3)}, {"compression": SlowTopK(0.3)}),
    "TopK up, sign flip, clipping": (
        {
            "compression": TopK(0.3, direction="up"),
            "adversary": SignFlip(0.2),
            "aggregator": NormClipping(),
        },
        {
            "compression": SlowTopK(0.3, direction="up"),
            "adversary": SlowSignFlip(0.2),
            "aggregator": SlowClipping(),
        },
    ),
    "low rank": ({"compression": LowRank(1)}, {"compression": SlowLowRank(1)}),
    "low rank, clipping": (
        {"compression": LowRank(1), "aggregator": NormClipping()},
        {"compression": SlowLowRank(1), "aggregator": SlowClipping()},
    ),
    "int8": ({"compression": Quantization("int8")},) * 2,
    "int8, clipping": (
        {"compression": Quantization("int8"), "aggregator": NormClipping()},
        {"compression": Quantization("int8"), "aggregator": SlowClipping()},
    ),
    "float16, stale": (
        {"compression": Quantization("float16"), "dropout": 0.4, "dropout_mode": "stale"},
    )
    * 2,
    "geometric median, stale": (
        {"aggregator": GeometricMedian(3), "dropout": 0.4, "dropout_mode": "stale"},
        {"aggregator": SlowGeometric(3), "dropout": 0.4, "dropout_mode": "stale"},
    ),
    "popularity filter, TopK up, sign flip": (
        {
            "aggregator": PopularityFilter(1.0, popular=0.3),
            "compression": TopK(0.3, direction="up"),
            "adversary": SignFlip(0.2),
        },
        {
            "aggregator": SlowFilter(1.0, popular=0.3),
            "compression": SlowTopK(0.3, direction="up"),
            "adversary": SlowSignFlip(0.2),
        },
    ),
    "noise on sums": ({"central_dp": CentralDP(0.5, 0.1)},) * 2,
    "noise on sums, adaptive clip, sign flip": (
        {"central_dp": CentralDP(0.5, 0.1, quantile=0.5), "adversary": SignFlip(0.2)},
        {"central_dp": CentralDP(0.5, 0.1, quantile=0.5), "adversary": SlowSignFlip(0.2)},
    ),
    "shares of noise": (
        {"central_dp": CentralDP(0.5, 0.1, noise="clients"), "dropout": 0.3},
        {"central_dp": CentralDP(0.5, 0.1, noise="clients"), "dropout": 0.3},
    ),
    "local noise, clipping": (
        {"local_dp": LaplaceMechanism(0.5, 0.1), "aggregator": NormClipping()},
        {"local_dp": LaplaceMechanism(0.5, 0.1), "aggregator": SlowClipping()},
    ),
    "Gaussian noise, clipping": (
        {"local_dp": GaussianMechanism(0.5, 0.1), "aggregator": NormClipping()},
        {"local_dp": GaussianMechanism(0.5, 0.1), "aggregator": SlowClipping()},
    ),
    "sphere, clipping": (
        {"local_dp": SphereMechanism(0.5, 20.0), "aggregator": NormClipping()},
        {"local_dp": SphereMechanism(0.5, 20.0), "aggregator": SlowClipping()},
    ),
}
OF_SILOS = {
    "median": ({"aggregator": CoordinateMedian()}, {"aggregator": SlowMedian()}),
    "trimmed mean": ({"aggregator": TrimmedMean(0.3)}, {"aggregator": SlowTrimmed(0.3)}),
    "Krum": ({"aggregator": Krum(1)}, {"aggregator": SlowKrum(1)}),
    "Krum, sign flip, TopK": (
        {"aggregator": Krum(1), "adversary": SignFlip(0.2), "compression": TopK(0.5)},
        {"aggregator": SlowKrum(1), "adversary": SlowSignFlip(0.2), "compression": SlowTopK(0.5)},
    ),
}

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
    "so the aggregator would have no effect",
)

# What must be equal, where a method has it.
LEARNED = ("item_factors_", "user_factors_", "item_weights_")


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    """Real numbers in float64, and every client's own draws."""
    for Estimator in FEDERATED:
        if hasattr(Estimator, "_dtype"):
            monkeypatch.setattr(Estimator, "_dtype", np.float64)
    monkeypatch.setattr(Federation, "draws_each", True)
    # A fit's noise depends on the names of its parts, and the slow ones have other names.
    monkeypatch.setattr(_fit, "_secret", lambda estimator, data, seed: Key(seed))


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
        if "coupling" in known:
            small["aggregation"] = "all"
        if setting.get("central_dp") is not None:
            small["rating_scale"] = (1, 5)
            small["upload"] = "dense" if Estimator in (FedEASE, FedSpectral) else "all"
    estimator.set_params(**{k: v for k, v in small.items() if k in known})
    return estimator.set_params(federation=Federation(**setting))


def fitted(Estimator, setting, clients=None):
    X, y = make_toy(16, 9, seed=1)
    model = make(Estimator, setting)
    silos = None if clients is None else X[:, 0] // 7 % clients
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, y, clients=silos)


def assert_equal_fits(Estimator, pair, monkeypatch, clients=None):
    fast, slow = pair
    try:
        model = fitted(Estimator, fast, clients)
    except ValueError as error:
        refusal = str(error)
    else:
        refusal = None
    if refusal is not None:
        assert any(reason in refusal for reason in REFUSALS), refusal
        with pytest.raises(ValueError, match=refusal[:20]):
            fitted(Estimator, slow, clients)
        return
    monkeypatch.setattr(blocks, "block_size", lambda data: 1)
    reference = fitted(Estimator, slow, clients)
    close = tolerance(Estimator)
    for name in LEARNED:
        if hasattr(model, name):
            one, other = (np.asarray(getattr(m, name), dtype=float) for m in (model, reference))
            np.testing.assert_allclose(one, other, rtol=close, atol=close, err_msg=name)
    assert model.communication_ == reference.communication_
    expected = pytest.approx(reference.loss_curve_, rel=max(close, 1e-6), nan_ok=True)
    assert model.loss_curve_ == expected


@every_federated
@pytest.mark.parametrize("setting", SETTINGS)
def test_equals_the_one_client_reference(Estimator, setting, monkeypatch):
    assert_equal_fits(Estimator, SETTINGS[setting], monkeypatch)


@every_federated
@pytest.mark.parametrize("setting", OF_SILOS)
def test_silos_equal_the_one_client_reference(Estimator, setting, monkeypatch):
    assert_equal_fits(Estimator, OF_SILOS[setting], monkeypatch, clients=7)
