"""``fedrecsk warmup``: compile the methods' numerical code ahead of time."""

from __future__ import annotations

import argparse
import logging
import time
from contextlib import suppress

import fedrecsk
from fedrecsk import Federation, _kernels
from fedrecsk.aggregation import CoordinateMedian, GeometricMedian, Krum, NormClipping
from fedrecsk.attacks import SignFlip
from fedrecsk.compression import LowRank, Quantization, TopK
from fedrecsk.datasets import make_ratings
from fedrecsk.metrics import catalogue_ndcg
from fedrecsk.privacy import LaplaceMechanism

METHODS = [name for name in fedrecsk.__all__ if hasattr(getattr(fedrecsk, name), "fit")]
# Federations that need other compiled code than the default one.
SETTINGS = [
    {"early_stopping": True},
    {"federation": Federation(aggregator=NormClipping())},
    {"federation": Federation(aggregator=CoordinateMedian(), adversary=SignFlip(0.1))},
    {"federation": Federation(aggregator=Krum(n_attackers=1))},
    {"federation": Federation(aggregator=GeometricMedian())},
    {"federation": Federation(compression=TopK(0.3))},
    {"federation": Federation(compression=LowRank(1))},
    {"federation": Federation(compression=Quantization("int8"))},
    {"federation": Federation(compression=Quantization("float16"))},
    {
        "federation": Federation(local_dp=LaplaceMechanism(0.2, 0.04)),
        "aggregation": "all",
        "rating_scale": (1.0, 5.0),
    },
]


def main(argv=None, prog="fedrecsk warmup"):
    """Compile the methods' numerical code and keep it for later processes."""
    parser = argparse.ArgumentParser(prog=prog, description=main.__doc__)
    parser.add_argument(
        "methods", nargs="*", metavar="METHOD", help=f"default: all of {', '.join(METHODS)}"
    )
    chosen = parser.parse_args(argv).methods or METHODS
    unknown = [name for name in chosen if name not in METHODS]
    if unknown:
        parser.error(f"{unknown[0]}: no such method; there are {', '.join(METHODS)}")
    # No notices that compiling takes some seconds: this command is for compiling.
    logging.getLogger("fedrecsk").setLevel(logging.ERROR)
    for name in chosen:
        start = time.perf_counter()
        for model in models(name):
            use(model)
        print(f"{name:>15} {time.perf_counter() - start:5.1f} s", flush=True)
    seconds, place = _kernels.seconds_compiling(), _kernels.cache_path()
    if place is None:
        parser.exit(1, f"Compiled in {seconds:.0f} s, but not kept: set NUMBA_CACHE_DIR.\n")
    print(f"Compiled in {seconds:.0f} s and kept in {place}.")


def models(name):
    """Fit a method to a few made-up ratings, in each setting that has its own code.

    Parameters
    ----------
    name : str
        Name of a class.

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
    for setting in SETTINGS:
        if not setting.keys() <= known.keys():
            continue
        model = getattr(fedrecsk, name)(items=list(range(40)), **setting)
        model.set_params(n_rounds=2, random_state=2, client_fraction=1.0)
        # Clients with many users, because coordinate-wise aggregators need clients that share
        # items.
        with suppress(Refused):
            yield _fitted(model, X, y, clients=X[:, 0] % 6)


class Refused(Exception):
    """A method does not support a setting."""


def _fitted(model, X, y, clients):
    try:
        return model.fit(X, y, clients=clients)
    except ValueError as error:
        raise Refused(f"{type(model).__name__}: {error}") from error


def use(model):
    """Call the public methods of a fitted model.

    Parameters
    ----------
    model : Recommender
    """
    X, y = _ratings()
    model.predict(X[:9])
    model.recommend(X[:9, 0], 5)
    model.recommend(X[:9, 0], 5, candidates=model.item_ids_[::2])
    catalogue_ndcg(model, X[:99])
    model.recommend([-1], 5, interactions=([[-1, item] for item in X[:5, 1]], y[:5]))


def _ratings():
    X, y = make_ratings(60, 40, 900, random_state=0)
    return X[:, :2], y
