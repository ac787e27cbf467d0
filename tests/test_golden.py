"""Every estimator, and representatives in many settings, predicts what it predicted before.

`python -m tests.test_golden NAME...` writes the entries whose names begin so again where they
differ, if a change of results is intended. Scores in benchmarks/measured are marked where an entry
about what they measure has changed since; its "of" names classes and functions that it is about.
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
    PSMU,
    AHum,
    Fang,
    FedRecAttack,
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
from fedrecsk.protocol import Asynchronous
from tests.conftest import make_toy
from tests.golden_tools import TOOLS
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
    "central noise": {"central_dp": CentralDP(0.5, noise_multiplier=0.1, quantile=0.5)},
    "shares of noise": {
        "central_dp": CentralDP(0.5, noise_multiplier=0.1, noise="clients"),
        "dropout": 0.3,
    },
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
ITEMS = 1000 + 3 * np.arange(20)
FEATURES = {"items": ITEMS, "item_features": np.eye(20)[:, :5] + np.eye(20)[::-1, :5]}
FADING = {"history_half_life": 3.0, "timestamps": "row_order"}
AUTO = {"pair_half_life": "auto", "history_half_life": "auto", "timestamps": "row_order"}
BY_EPSILON = {"items": ITEMS, "rating_scale": (1, 5)}
# Other parameters: name of the entry, estimator, parameters, federation's parameters, number of
# clients.
VARIANTS = {
    "RFRec early stopping": ("RFRec", {"early_stopping": True, "n_rounds": 12}),
    "LocALS early stopping": ("LocALS", {"early_stopping": True, "n_rounds": 12}),
    "FedEB cohorts": ("FedEB", {"client_fraction": 0.3, "n_rounds": 12}),
    "FedItemKNN direction": (
        "FedItemKNN",
        {"backward_weight": 0.25, "pair_half_life": 2.0, **FADING},
    ),
    "FedItemKNN auto": ("FedItemKNN", AUTO),
    "ItemKNN auto": ("ItemKNN", AUTO),
    "FedMF cohorts, n_jobs=2": ("FedMF", {"client_fraction": 0.3, "n_jobs": 2}),
    "RFRec of holders": ("RFRec", {"aggregation": "holders"}),
    "RFRec cohorts in turn": ("RFRec", {"client_fraction": 0.3}, {"sampling": "rotating"}),
    "RFRec of silos": ("RFRec", {}, {}, 7),
    "LocALS of silos": ("LocALS", {}, {}, 7),
    "LocALS fading": ("LocALS", FADING),
    "LocALS scaled penalties": ("LocALS", {"reg_exponent": 1.0}),
    "LocALS, AHum": ("LocALS", {}, {"adversary": AHum(0.2, item=1003)}),
    "LocALS, PSMU": ("LocALS", {}, {"adversary": PSMU(0.2, item=1003)}),
    "LocALS, FedRecAttack": ("LocALS", {}, {"adversary": FedRecAttack(0.2, item=1003)}),
    "GlobSGD preconditioned": ("GlobSGD", {"preconditioner": True}),
    "FedEASE fading": ("FedEASE", {"pair_half_life": "auto", **FADING}),
    "FedItemKNN content": ("FedItemKNN", FEATURES | {"content_weight": 0.5}),
    "FedSpectral by epsilon": ("FedSpectral", {}, {"central_dp": CentralDP(epsilon=3.0)}),
    "FedEB in parts": ("FedEB", {"implicit": False, "sketch_size": 0, "user_noise": False}),
    "FedEB days": ("FedEB", {"timestamps": 2}),
    "FedMF asynchronous": ("FedMF", {}, {"devices": "phones", "schedule": Asynchronous()}),
    "PrivFedEB by epsilon": ("PrivFedEB", BY_EPSILON, {"central_dp": CentralDP(epsilon=3.0)}),
    "PrivFedEB, shares of noise": (
        "PrivFedEB",
        BY_EPSILON | FEATURES,
        {"central_dp": CentralDP(epsilon=3.0, noise="clients")},
    ),
    "PrivRec noise": (
        "PrivRec",
        {"client_fraction": 0.3},
        {"central_dp": CentralDP(2.0, noise_multiplier=1.0, delta=1e-5), "sampling": "poisson"},
    ),
    "CoLR, last uploads": ("CoLR", {"averaging": False}),
    "FedRec average": ("FedRec", {"filling": "average", "virtual_items": "redrawn"}),
    "LightFR of ratings": (
        "LightFR",
        {"aggregation": "gradient", "user_bits": 1, "targets": "ratings", "n_negatives": 0},
    ),
    "SemiDFEGL alone": ("SemiDFEGL", {"n_common": 0, "n_layers": 2}),
    "ExplicitFCF without biases": ("ExplicitFCF", {"biases": False}),
    "BiasedMF early stopping": ("BiasedMF", {"early_stopping": True, "n_epochs": 12}),
    "DDL content": ("DDL", FEATURES),
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
# Else the mean vector, made for larger data, is all that counts.
OWN = {"LightFR": {"alpha": 64.0}}
BY_NAME = {Estimator.__name__: Estimator for Estimator in ESTIMATORS}


def cases():
    """Entries: name, estimator's name, parameters, federation's parameters, number of clients."""
    for name in BY_NAME:
        yield name, name, {}, None, None
    for name, (estimator, parameters, *rest) in VARIANTS.items():
        yield name, estimator, parameters, *rest, *[None] * (2 - len(rest))
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
    wanted = SMALL | OWN.get(estimator, {}) | parameters
    if federation is not None:
        # What noise needs; without it, these are what the data say.
        wanted = {"items": ITEMS, "rating_scale": (1, 5)} | wanted
        wanted["federation"] = Federation(**federation)
    pairs = np.stack([100 + 7 * np.arange(20), ITEMS], axis=1)
    if wanted.get("timestamps") == 2:
        X, pairs = (np.column_stack([one, 20_000 * np.arange(len(one))]) for one in (X, pairs))
    model.set_params(**{name: value for name, value in wanted.items() if name in known})
    silos = None if n_clients is None else (X[:, 0] - 100) // 7 % n_clients
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.fit(X, y, clients=silos)
        except (ValueError, TypeError) as error:
            return {"refused": str(error)}
    found = {"predictions": model.predict(pairs).tolist()}
    if hasattr(model, "communication_"):
        ledger = model.communication_
        found["bytes"] = [int(ledger.bytes_up), int(ledger.bytes_down)]
        found["losses"] = [float(loss) for loss in model.loss_curve_]
    return found


def names_of(name):
    """Return the names of the classes and functions that an entry is about."""
    if name in TOOLS:
        return [TOOLS[name][0]]
    estimator, _, federation, _ = CASES[name]
    parts = {type(one) for one in (federation or {}).values()}
    return [estimator, *sorted(one.__name__ for one in parts if one.__module__.startswith("fed"))]


def found_now(name):
    """Return an entry as it is now."""
    if name not in TOOLS:
        return entry(*CASES[name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {"values": [float(one) for one in TOOLS[name][1]()]}


def compute_in_float64(monkeypatch):
    """Patch all methods, so that rounding does not hide a change."""
    for Estimator in ESTIMATORS:
        if hasattr(Estimator, "_dtype"):
            monkeypatch.setattr(Estimator, "_dtype", np.float64)


def assert_close(name, found, expected):
    """Compare an entry with what it was."""
    assert found.keys() == expected.keys(), found
    assert found.get("bytes") == expected.get("bytes")
    # torch adds up in another order on another processor.
    close = 1e-4 if name in CASES and is_neural(BY_NAME[CASES[name][0]]) else 1e-6
    for key in {"predictions", "losses", "values"} & expected.keys():
        np.testing.assert_allclose(found[key], expected[key], rtol=close, atol=close / 100)


@pytest.mark.parametrize("name", [*CASES, *TOOLS])
def test_predicts_what_it_predicted(name, monkeypatch):
    compute_in_float64(monkeypatch)
    expected = json.loads(PATH.read_text())[name]
    assert names_of(name) == expected.pop("of")
    assert_close(name, found_now(name), expected)


def differs(name, found, expected):
    """Return whether an entry is another one, by more than rounding, which differs by processor."""
    try:
        assert_close(name, found, expected)
    except AssertionError:
        return True
    return False


def main(prefixes):
    """Write the entries again whose names begin with one of `prefixes`, where they differ."""
    golden, names = json.loads(PATH.read_text()) if PATH.exists() else {}, [*CASES, *TOOLS]
    with pytest.MonkeyPatch.context() as patch:
        compute_in_float64(patch)
        for name in names:
            if any(name.startswith(prefix) for prefix in prefixes):
                found = found_now(name)
                expected = {key: one for key, one in golden.get(name, {}).items() if key != "of"}
                if differs(name, found, expected):
                    golden[name] = found
                    print(name, found.get("refused", ""), flush=True)
    golden = {name: golden[name] | {"of": names_of(name)} for name in names}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in golden.items())
    PATH.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
