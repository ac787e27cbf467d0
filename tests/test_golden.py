"""Every estimator, and representatives in many settings, predicts what it predicted before.

`python -m tests.test_golden NAME...` writes the entries whose names begin so again, if a change
of results is intended.
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from fedrecsk import Federation
from fedrecsk.aggregation import (
    CoordinateMedian,
    FLTrust,
    GeometricMedian,
    HierarchicalClipping,
    Krum,
    NormClipping,
    PopularityFilter,
    RowClipping,
    TrimmedMean,
)
from fedrecsk.attacks import (
    ALIE,
    PIECK,
    Fang,
    LabelFlip,
    MinMax,
    PipAttack,
    Promotion,
    RandomDirection,
    RandomUpload,
    SignFlip,
)
from fedrecsk.compression import LowRank, Quantization, TopK
from fedrecsk.privacy import CentralDP, GaussianMechanism, LaplaceMechanism, SphereMechanism
from tests.conftest import make_toy
from tests.listed import is_neural
from tests.test_contract import ESTIMATORS

PATH = Path(__file__).with_name("golden.json")
REPRESENTATIVES = ["RFRec", "RFRecF", "LocALS", "FCF", "FedMF", "FedEB", "FedEASE", "LightFR"]
STALE = {"dropout": 0.4, "dropout_mode": "stale"}
SETTINGS = {
    "stale": STALE,
    "offline": {"dropout": 0.4, "dropout_mode": "offline"},
    "norm clipping": {"aggregator": NormClipping()},
    "row clipping, sign flip": {"aggregator": RowClipping(), "adversary": SignFlip(0.2)},
    "hierarchical clipping": {"aggregator": HierarchicalClipping()},
    "geometric median, stale": {"aggregator": GeometricMedian(3), **STALE},
    "popularity filter, noise uploads": {
        "aggregator": PopularityFilter(1.0, popular=0.3),
        "adversary": RandomUpload(0.2),
    },
    "random direction": {"adversary": RandomDirection(0.2)},
    "label flip": {"adversary": LabelFlip(0.2)},
    "promotion": {"adversary": Promotion(0.2, item=1003)},
    "ALIE": {"adversary": ALIE(0.2)},
    "Fang": {"adversary": Fang(0.2)},
    "MinMax": {"adversary": MinMax(0.2)},
    "PipAttack": {"adversary": PipAttack(0.2, item=1003)},
    "PIECK": {"adversary": PIECK(0.2, item=1003)},
    "TopK": {"compression": TopK(0.3)},
    "TopK up, sign flip, clipping": {
        "compression": TopK(0.3, direction="up"),
        "adversary": SignFlip(0.2),
        "aggregator": NormClipping(),
    },
    "low rank": {"compression": LowRank(1)},
    "int8": {"compression": Quantization("int8")},
    "float16": {"compression": Quantization("float16")},
    "central noise": {"central_dp": CentralDP(0.5, 0.1, quantile=0.5)},
    "shares of noise": {"central_dp": CentralDP(0.5, 0.1, noise="clients"), "dropout": 0.3},
    "Laplace, clipping": {"local_dp": LaplaceMechanism(0.5, 0.1), "aggregator": NormClipping()},
    "Gaussian": {"local_dp": GaussianMechanism(0.5, 0.1)},
    "sphere": {"local_dp": SphereMechanism(0.5, 20.0)},
}
# With seven clients of several users each.
SILOS = {
    "median": {"aggregator": CoordinateMedian()},
    "trimmed mean": {"aggregator": TrimmedMean(0.3)},
    "Krum, sign flip": {"aggregator": Krum(1), "adversary": SignFlip(0.2)},
    "FLTrust": {"aggregator": FLTrust(0)},
}
# Other parameters: name of the entry, estimator, parameters.
VARIANTS = {
    "RFRec early stopping": ("RFRec", {"early_stopping": True, "n_rounds": 12}),
    "LocALS early stopping": ("LocALS", {"early_stopping": True, "n_rounds": 12}),
    "FedEB cohorts": ("FedEB", {"client_fraction": 0.3, "n_rounds": 12}),
    "FedItemKNN direction": (
        "FedItemKNN",
        {
            "backward_weight": 0.25,
            "pair_half_life": 2.0,
            "history_half_life": 3.0,
            "timestamps": "row_order",
        },
    ),
    "FedMF cohorts, n_jobs=2": ("FedMF", {"client_fraction": 0.3, "n_jobs": 2}),
}
SMALL = {
    "n_factors": 4,
    "n_bits": 8,
    "n_rounds": 4,
    "rank": 2,
    "n_burn_in": 2,
    "n_samples": 4,
    "random_state": 0,
}
BY_NAME = {Estimator.__name__: Estimator for Estimator in ESTIMATORS}


def cases():
    """Entries: name, estimator's name, parameters, federation's parameters, number of clients."""
    for name in BY_NAME:
        yield name, name, {}, None, None
    for name, (estimator, parameters) in VARIANTS.items():
        yield name, estimator, parameters, None, None
    for name in REPRESENTATIVES:
        for setting, parameters in SETTINGS.items():
            yield f"{name}, {setting}", name, {}, parameters, None
        for setting, parameters in SILOS.items():
            yield f"{name}, {setting} of silos", name, {}, parameters, 7


CASES = {name: rest for name, *rest in cases()}


def entry(estimator, parameters, federation, n_clients):
    """Fit, and return predictions, learned item vectors' sums, losses and bytes, or the refusal."""
    X, y = make_toy(30, 20, density=0.4, seed=1)
    model = BY_NAME[estimator]()
    known = model.get_params(deep=False)
    wanted = SMALL | parameters
    if federation is not None:
        # What noise needs; without it, these are what the data say.
        wanted = {"items": 1000 + 3 * np.arange(20), "rating_scale": (1, 5)} | wanted
        wanted["federation"] = Federation(**federation)
    model.set_params(**{name: value for name, value in wanted.items() if name in known})
    silos = None if n_clients is None else (X[:, 0] - 100) // 7 % n_clients
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.fit(X, y, clients=silos)
        except (ValueError, TypeError) as error:
            return {"refused": str(error)}
    pairs = np.stack([100 + 7 * np.arange(20), 1000 + 3 * np.arange(20)], axis=1)
    found = {"predictions": model.predict(pairs).tolist()}
    if hasattr(model, "communication_"):
        ledger = model.communication_
        found["bytes"] = [int(ledger.bytes_up), int(ledger.bytes_down)]
        found["losses"] = [float(loss) for loss in model.loss_curve_]
    return found


def compute_in_float64(monkeypatch):
    """Patch all methods, so that rounding does not hide a change."""
    for Estimator in ESTIMATORS:
        if hasattr(Estimator, "_dtype"):
            monkeypatch.setattr(Estimator, "_dtype", np.float64)


@pytest.mark.parametrize("name", CASES)
def test_predicts_what_it_predicted(name, monkeypatch):
    compute_in_float64(monkeypatch)
    expected = json.loads(PATH.read_text())[name]
    found = entry(*CASES[name])
    assert found.keys() == expected.keys(), found
    assert found.get("bytes") == expected.get("bytes")
    # torch adds up in another order on another processor.
    close = 1e-4 if is_neural(BY_NAME[CASES[name][0]]) else 1e-6
    for key in ("predictions", "losses"):
        if key in expected:
            np.testing.assert_allclose(found[key], expected[key], rtol=close, atol=close / 100)


def main(prefixes):
    """Write the entries again whose names begin with one of `prefixes`."""
    golden = json.loads(PATH.read_text()) if PATH.exists() else {}
    golden = {name: golden[name] for name in CASES if name in golden}
    with pytest.MonkeyPatch.context() as patch:
        compute_in_float64(patch)
        for name in CASES:
            if any(name.startswith(prefix) for prefix in prefixes):
                golden[name] = entry(*CASES[name])
                print(name, golden[name].get("refused", ""), flush=True)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(golden[name])}" for name in CASES)
    PATH.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
