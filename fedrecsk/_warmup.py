"""``python -m fedrecsk warmup``: compile ahead of time what fits will need."""

from __future__ import annotations

import argparse
import logging
import time
from itertools import chain

import fedrecsk
from fedrecsk import Federation, _kernels
from fedrecsk.aggregation import CoordinateMedian, Krum, NormClipping
from fedrecsk.attacks import SignFlip
from fedrecsk.compression import LowRank, Quantization, TopK
from fedrecsk.datasets import make_ratings
from fedrecsk.metrics import catalogue_ndcg
from fedrecsk.privacy import LaplaceMechanism

METHODS = [name for name in fedrecsk.__all__ if hasattr(getattr(fedrecsk, name), "fit")]
# Settings whose code is not that of the default.
FEDERATIONS = {
    "norm clipping": {"aggregator": NormClipping()},
    "median, sign flips": {"aggregator": CoordinateMedian(), "adversary": SignFlip(0.1)},
    "Krum": {"aggregator": Krum(n_attackers=1)},
    "Top-K": {"compression": TopK(0.3)},
    "low rank": {"compression": LowRank(1)},
    "int8": {"compression": Quantization("int8")},
    "float16": {"compression": Quantization("float16")},
    "local DP": {"local_dp": LaplaceMechanism(0.2, 0.04)},
}


def main(argv=None):
    """Compile the methods' numerical code and keep it for later processes."""
    parser = argparse.ArgumentParser(prog="python -m fedrecsk warmup", description=main.__doc__)
    parser.add_argument(
        "methods", nargs="*", metavar="METHOD", help=f"default: all of {', '.join(METHODS)}"
    )
    chosen = parser.parse_args(argv).methods or METHODS
    unknown = [name for name in chosen if name not in METHODS]
    if unknown:
        parser.error(f"{unknown[0]} is none of {', '.join(METHODS)}")
    # Who reads this need not be told that it takes some seconds.
    logging.getLogger("fedrecsk").setLevel(logging.ERROR)
    for name in chosen:
        start = time.perf_counter()
        for model in models(name):
            use(model)
        print(f"{name:>15} {time.perf_counter() - start:5.1f} s", flush=True)
    print(f"Compiled in {_kernels.seconds_compiling():.0f} s, and kept in {_kernels.cache_path()}.")


def models(name):
    """Fit a method to a few made-up ratings, in each setting that has code of its own.

    Parameters
    ----------
    name : str
        Of a class.

    Yields
    ------
    model : Recommender
    """
    X, y = _ratings()
    made = getattr(fedrecsk, name)()
    known = made.get_params()
    few = ("n_rounds", "n_epochs", "n_iterations", "n_samples", "n_burn_in", "random_state")
    made.set_params(**{parameter: 2 for parameter in few if parameter in known})
    yield made.fit(X, y)
    if "federation" not in known:
        return
    catalogue = list(range(40))
    settings = ({"federation": Federation(**one)} for one in FEDERATIONS.values())
    for setting in chain([{"early_stopping": True}], settings):
        model = getattr(fedrecsk, name)(items=catalogue, **setting)
        model.set_params(n_rounds=2, random_state=2)
        try:
            model.fit(X, y)
        except ValueError:
            # A setting that the method refuses.
            continue
        yield model


def use(model):
    """Call what a fitted model is there for.

    Parameters
    ----------
    model : Recommender
    """
    X, y = _ratings()
    model.predict(X[:9])
    model.recommend(X[:9, 0], 5)
    model.recommend(X[:9, 0], 5, candidates=model.item_ids_[::2])
    catalogue_ndcg(model, X[:99])
    if type(model).__module__.startswith("fedrecsk."):
        model.recommend([-1], 5, interactions=([[-1, item] for item in X[:5, 1]], y[:5]))


def _ratings():
    X, y = make_ratings(60, 40, 900, random_state=0)
    return X[:, :2], y
