"""What local privacy costs: ``python -m benchmarks.private_local``.

RMSE of RFRec on MovieLens-100k, one user per client, for each local mechanism and total epsilon
(delta 1e-5, any other data of one client). Beside them are what needs no upload at all (the mean of
each user's own training ratings), and biases and RFRec without privacy.

The settings of RFRec come from `SETTINGS`, chosen for each mechanism and epsilon by the RMSE on
validation rows, none of which is tested; this choice is not charged to epsilon. RFRec has one
factor and a bias per item: more numbers would mean more noise.

Splits are 80/20 at random, as in ``benchmarks.rfrec``.

Data: MovieLens-100k, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import time

import numpy as np
from scipy.optimize import brentq
from sklearn.metrics import root_mean_squared_error

from benchmarks._command_line import command_line
from benchmarks._seeds import choosing, reported
from benchmarks._variants import variant
from benchmarks.rfrec import errors, split, validation
from fedrecsk import BiasOnly, Federation, RFRec
from fedrecsk.datasets import fetch_movielens
from fedrecsk.privacy import GaussianMechanism, LaplaceMechanism, SphereMechanism

DELTA = 1e-5
N_FACTORS = 1
# With a larger `EPSILON`, Adam's steps do not follow noise in the server's vectors.
SETTINGS = {
    "30 rounds": {"n_rounds": 30, "learning_rate": 0.1, "EPSILON": 0.01},
    "60 rounds": {"n_rounds": 60, "learning_rate": 0.1, "EPSILON": 0.01},
    "50 small steps": {"n_rounds": 50, "learning_rate": 0.03},
}


def laplace(epsilon, n_uploads, n_coordinates):
    """Laplace noise on each number, of this total epsilon."""

    def excess(log_scale):
        mechanism = LaplaceMechanism(0.2, float(np.exp(log_scale)), delta=DELTA)
        return np.log(mechanism.total_epsilon(n_uploads, n_coordinates) / epsilon)

    scale = float(np.exp(brentq(excess, -5, np.log(0.4 * n_coordinates / epsilon) + 1)))
    return LaplaceMechanism(0.2, scale, delta=DELTA)


def gaussian(epsilon, n_uploads, n_coordinates):
    """Gaussian noise on whole uploads."""
    return GaussianMechanism.for_epsilon(epsilon, n_uploads, clip=1.0, delta=DELTA)


def sphere(epsilon, n_uploads, n_coordinates):
    """Random directions of whole uploads."""
    return SphereMechanism.for_epsilon(epsilon, n_uploads, clip=1.0, delta=DELTA)


MECHANISMS = {"Laplace": laplace, "Gaussian": gaussian, "sphere": sphere}


def private(make, epsilon, setting, items):
    """RFRec under a mechanism with this total epsilon."""
    n_uploads = setting["n_rounds"]
    mechanism = make(epsilon, n_uploads, n_uploads * len(items) * (1 + N_FACTORS))
    return variant(
        RFRec,
        N_FACTORS,
        rating_scale=(1, 5),
        items=items,
        INIT_STD=0.05,
        federation=Federation(local_dp=mechanism),
        **setting,
    )


def own_means(X_train, y_train, X_test, y_test):
    """RMSE of the mean of each user's own training ratings, which no one else needs to know."""
    users = int(max(X_train[:, 0].max(), X_test[:, 0].max())) + 1
    counts = np.bincount(X_train[:, 0].astype(int), minlength=users)
    sums = np.bincount(X_train[:, 0].astype(int), y_train, minlength=users)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), 3.0)
    return root_mean_squared_error(y_test, means[X_test[:, 0].astype(int)])


def main(arguments=None):
    """Print the table."""
    parser = command_line("private_local", __doc__)
    parser.add_argument("--data-home")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=MECHANISMS, default=list(MECHANISMS))
    parser.add_argument(
        "--epsilons", type=float, nargs="+", default=[100, 1000, 10_000], help="total epsilons"
    )
    options = parser.parse_args(arguments)
    X, y = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)
    items, seeds = np.unique(X[:, 1]), reported(options.seeds)
    parts = [split(X, y, seed) for seed in seeds]
    own = np.mean([own_means(*part) for part in parts])
    biases = np.mean([errors(BiasOnly(), *part)[1] for part in parts])
    runs = zip(seeds, parts, strict=True)
    plain = np.mean([errors(RFRec(random_state=seed), *part)[1] for seed, part in runs])
    print("| mechanism | total epsilon | setting | RMSE | seconds a fit |\n|---|---|---|---|---|")
    print(f"| nothing is sent | 0 | each user's mean | {own:.3f} | |")
    print(f"| none | inf | biases | {biases:.3f} | |\n| none | inf | RFRec | {plain:.3f} | |")
    for name in options.only:
        for epsilon in options.epsilons:
            _row(name, epsilon, items, parts, seeds, X, y)


def _row(name, epsilon, items, parts, seeds, X, y):
    """Choose a setting on validation rows, and print its line."""

    def rmse(setting, seed, part):
        model = private(MECHANISMS[name], epsilon, setting, items).set_params(random_state=seed)
        return errors(model, *part)[1]

    (seed,) = choosing(1)
    held_out = validation(X, y, seed, seeds)
    chosen = min(SETTINGS, key=lambda label: rmse(SETTINGS[label], seed, held_out))
    begun = time.perf_counter()
    found = [rmse(SETTINGS[chosen], *one) for one in zip(seeds, parts, strict=True)]
    seconds = (time.perf_counter() - begun) / len(found)
    print(
        f"| {name} | {epsilon:,.0f} | {chosen} | {np.mean(found):.3f} | {seconds:.1f} |", flush=True
    )


if __name__ == "__main__":
    main()
