"""Shared by all tests."""

import os
import signal
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from packaging.version import Version

# Without it scikit-learn skips its array API check. It must be set before scipy is imported, and
# scikit-learn fails with an older scipy.
if Version(version("scipy")) >= Version("1.14"):
    os.environ.setdefault("SCIPY_ARRAY_API", "1")
# Examples show their plots, which would wait for somebody to close them.
os.environ.setdefault("MPLBACKEND", "Agg")

import numpy as np
import pytest

from fedrecsk.datasets import fetch_movielens
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.protocol import blocks

# Background jobs of a shell ignore Ctrl-C, and so would processes that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def movielens(variant):
    """MovieLens from FEDRECSK_DATA or from shared/data beside the repository, or skip."""
    home = os.environ.get("FEDRECSK_DATA") or (SHARED_DATA if SHARED_DATA.is_dir() else None)
    if home is None:
        pytest.skip("needs MovieLens: set FEDRECSK_DATA to a folder that holds it")
    return fetch_movielens(variant, data_home=home, download_if_missing=False, return_X_y=True)


@pytest.fixture(scope="session")
def ml100k():
    """(X, y) of MovieLens-100k."""
    return movielens("100k")


@pytest.fixture(scope="session")
def ml1m():
    """(X, y) of MovieLens-1M."""
    return movielens("1m")


@pytest.fixture
def toy():
    """(X, y) of 12 users and 9 items with ids that are not codes, rows shuffled."""
    return make_toy()


def draw_each(monkeypatch, wanted=True):
    """Let every client draw its own noise, even if only the sum matters; without `wanted`, not."""
    plan = FederatedRecommender._plan
    monkeypatch.setattr(
        FederatedRecommender, "_plan", lambda self: replace(plan(self), draws_each=wanted)
    )


def make_toy(n_users=12, n_items=9, density=0.6, seed=0):
    """Random ratings 1..5; every user and item has at least one."""
    rng = np.random.default_rng(seed)
    mask = rng.random((n_users, n_items)) < density
    mask[np.arange(n_users), np.arange(n_users) % n_items] = True
    mask[np.arange(n_items) % n_users, np.arange(n_items)] = True
    users, items = np.nonzero(mask)
    order = rng.permutation(len(users))
    X = np.stack([100 + 7 * users, 1000 + 3 * items], axis=1)[order]
    return X, rng.integers(1, 6, len(X)).astype(float)


# Ratings in a block of clients: all in one, in several, and each client in one of its own.
BLOCK_SIZES = (10**6, 12, 1)


def fits_in_blocks(model, X, y=None, *, block_sizes=BLOCK_SIZES, **fit_params):
    """Fit `model` with blocks of each size in turn, so that all can be compared with one result."""
    for size in block_sizes:
        # pytest shows this if a test fails.
        print(f"{size} ratings in a block")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blocks, "block_size", lambda *_, size=size: size)
            yield model.fit(X, y, **fit_params)


def rmse(model, X, y):
    """Root mean squared error of `model` on (X, y)."""
    return float(np.sqrt(np.mean((model.predict(X) - y) ** 2)))


def split(X, y, seed, test_share=0.2):
    """Random split: X_train, y_train, X_test, y_test."""
    order = np.random.default_rng(seed).permutation(len(y))
    n_test = int(test_share * len(y))
    test, train = order[:n_test], order[n_test:]
    return X[train], y[train], X[test], y[test]
