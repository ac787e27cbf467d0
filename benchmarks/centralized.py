"""Measure centralised rating models: ``python -m benchmarks.centralized COMMAND``.

Ratings are split 80/20 at random by seed. RMSE is that of predictions clipped to the scale.

`speed` also runs Surprise and cornac, if ``--peers-python`` (or the variable PEERS_PYTHON)
can import them. All models take turns in one run, on one thread.

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time

import numpy as np
from sklearn.base import clone

from benchmarks._command_line import command_line
from benchmarks._seeds import reported
from benchmarks._variants import variant
from fedrecsk import BiasOnly
from fedrecsk.centralized import PMF, BiasedMF, SVDpp
from fedrecsk.datasets import fetch_movielens

MODELS = {"PMF": PMF(), "BiasedMF": BiasedMF(), "SVDpp": SVDpp()}
TARGETS = {
    ("100k", "PMF"): 0.928,
    ("1m", "PMF"): 0.862,
    ("100k", "SVDpp"): 0.910,
    ("1m", "SVDpp"): 0.850,
    ("100k", "BiasedMF"): 0.920,
    ("1m", "BiasedMF"): 0.857,
}


def split(X, y, seed, share=0.2):
    """Training and test part."""
    order = np.random.default_rng(seed).permutation(len(y))
    test, train = np.split(order, [int(share * len(y))])
    return X[train], y[train], X[test], y[test]


def thinned(X, y, most, seed):
    """At most `most` random rows per user."""
    order = np.random.default_rng(seed).permutation(len(y))
    users = np.unique(X[:, 0], return_inverse=True)[1][order]
    by_user = np.argsort(users, kind="stable")
    sizes = np.bincount(users)
    rank = np.arange(len(y)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    kept = order[by_user[rank < most]]
    return X[kept], y[kept]


def load(name, options):
    """(user, item) pairs and ratings."""
    X, y = fetch_movielens(name, data_home=options.data_home, return_X_y=True)
    return X[:, :2], y


def rmse(model, X_train, y_train, X_test, y_test):
    """Error on the test part of a model fitted to the training part."""
    predicted = np.clip(model.fit(X_train, y_train).predict(X_test), y_train.min(), y_train.max())
    return float(np.sqrt(np.mean((predicted - y_test) ** 2)))


def mean_rmse(model, parts):
    """Mean error over splits, the split's number as seed."""
    seeded = "random_state" in model.get_params()
    return np.mean(
        [
            rmse(clone(model).set_params(**({"random_state": s} if seeded else {})), *part)
            for s, part in enumerate(parts)
        ]
    )


def quality(options):
    """RMSE over splits compared with bias-only, with fixed epochs and with early stopping."""
    print("| data | model | RMSE | early stopping | to reach |\n|---|---|---|---|---|")
    for name in options.data:
        parts = [split(*load(name, options), seed) for seed in reported(options.seeds)]
        print(f"| {name} | BiasOnly | {mean_rmse(BiasOnly(), parts):.4f} | | |", flush=True)
        for label, model in MODELS.items():
            fixed = mean_rmse(model, parts)
            early = mean_rmse(clone(model).set_params(early_stopping=True), parts)
            target = TARGETS.get((name, label), "")
            print(f"| {name} | {label} | {fixed:.4f} | {early:.4f} | {target} |", flush=True)
        plain = variant(PMF, prior_mean=0, shrinkage=0, reg=0.09, INIT_STD=0.1)
        for label, model in {
            "PMF, plain prior": plain,
            "PMF, plain prior, not centred": clone(plain).set_params(center=False),
            "SVDpp, reg_implicit=reg": SVDpp(reg_implicit=SVDpp().reg),
        }.items():
            print(f"| {name} | {label} | {mean_rmse(model, parts):.4f} | | |", flush=True)


def sparse_sets(options):
    """Label and splits of thinned MovieLens-100k: training rows only are thinned per user."""
    X, y = load("100k", options)
    seeds = reported(options.seeds)
    for most in (5, 10, 20):
        parts = []
        for seed in seeds:
            X_train, y_train, *test = split(X, y, seed)
            parts.append((*thinned(X_train, y_train, most, seed), *test))
        yield f"at most {most} per user", parts
    parts = []
    for seed in seeds:
        kept = np.random.default_rng(seed).random(len(y)) < 0.2
        parts.append(split(X[kept], y[kept], seed))
    yield "20 % of the rows", parts


def sparse(options):
    """RMSE compared with bias-only on sparse parts of MovieLens-100k."""
    print("| data | model | RMSE | early stopping | over bias-only |\n|---|---|---|---|---|")
    for label, parts in sparse_sets(options):
        biases = mean_rmse(BiasOnly(), parts)
        print(f"| {label} | BiasOnly | {biases:.4f} | | |", flush=True)
        for name, model in MODELS.items():
            fixed = mean_rmse(model, parts)
            early = mean_rmse(clone(model).set_params(early_stopping=True), parts)
            print(f"| {label} | {name} | {fixed:.4f} | {early:.4f} | {fixed - biases:+.4f} |")


# ---------------------------------------------------------------------------------- speed

# Runs in the peers' Python: fits on request and answers with seconds.
PEERS = r"""
import json, sys, time
import numpy as np

def surprise_trainset(path):
    from surprise import Trainset
    table = np.load(path)
    users, items = (np.unique(c, return_inverse=True)[1].tolist() for c in table[:, :2].T)
    n, m = max(users) + 1, max(items) + 1
    ur, ir = {u: [] for u in range(n)}, {i: [] for i in range(m)}
    for u, i, r in zip(users, items, table[:, 2].tolist()):
        ur[u].append((i, r)); ir[i].append((u, r))
    ids = dict(zip(range(n), range(n))), dict(zip(range(m), range(m)))
    return Trainset(ur, ir, n, m, len(users), (1, 5), *ids)

def cornac_dataset(path):
    from cornac.data import Dataset
    return Dataset.from_uir([(int(u), int(i), r) for u, i, r in np.load(path)])

def surprise_svd(n, d, biased):
    from surprise import SVD
    return SVD(n_factors=d, n_epochs=n, biased=biased, random_state=0)

def surprise_svdpp(n, d):
    from surprise import SVDpp
    return SVDpp(n_factors=d, n_epochs=n, random_state=0, cache_ratings=True)

def cornac_mf(n, d, use_bias):
    from cornac.models import MF
    return MF(k=d, max_iter=n, use_bias=use_bias, num_threads=1, seed=0)

def cornac_pmf(n, d):
    from cornac.models import PMF
    return PMF(k=d, max_iter=n, variant="linear", seed=0)

MAKERS = {
    "Surprise SVD, biased": (surprise_trainset, lambda n, d: surprise_svd(n, d, True)),
    "Surprise SVD, no biases": (surprise_trainset, lambda n, d: surprise_svd(n, d, False)),
    "Surprise SVDpp": (surprise_trainset, surprise_svdpp),
    "cornac MF, biased": (cornac_dataset, lambda n, d: cornac_mf(n, d, True)),
    "cornac MF, no biases": (cornac_dataset, lambda n, d: cornac_mf(n, d, False)),
    "cornac PMF": (cornac_dataset, cornac_pmf),
}
data = {}
answers = sys.stdout
sys.stdout = sys.stderr
for line in sys.stdin:
    label, path, n, d = json.loads(line)
    try:
        load, make = MAKERS[label]
        if (load, path) not in data:
            start = time.perf_counter()
            loaded = load(path)
            data[load, path] = loaded, time.perf_counter() - start
        model = make(n, d)
    except ImportError as error:
        print(json.dumps(str(error)), file=answers, flush=True)
        continue
    start = time.perf_counter()
    model.fit(data[load, path][0])
    print(json.dumps([time.perf_counter() - start, data[load, path][1]]), file=answers, flush=True)
"""
RIVALS = {
    "PMF": ("Surprise SVD, no biases", "cornac MF, no biases", "cornac PMF"),
    "BiasedMF": ("Surprise SVD, biased", "cornac MF, biased"),
    "SVDpp": ("Surprise SVDpp",),
}


def speed(options):
    """Seconds an epoch, of a fit, and from rows to model; same factors and epochs, one thread."""
    n_factors = 20
    with Peers(options.peers_python) as peers:
        print(
            "| data | model | epochs | seconds an epoch | fit | and its data | over the best peer |"
        )
        print("|---|---|---|---|---|---|---|")
        for name in options.data:
            X, y = load(name, options)
            peers.give(np.column_stack([X, y]))
            for label, rivals in RIVALS.items():
                # Surprise's SVD++ takes a while.
                counts = (1, 3) if label == "SVDpp" else (1, options.epochs)
                model = clone(MODELS[label]).set_params(n_factors=n_factors, random_state=0)
                fits = {label: lambda n, model=model, X=X, y=y: _seconds_of(model, X, y, n)}
                fits |= {r: lambda n, r=r: peers.seconds(r, n, n_factors) for r in rivals}
                _report(name, label, counts, _best(fits, counts, options.repeats))


def _report(name, label, counts, best):
    """A row for each model, the peers that are not installed too."""
    short, long = counts
    seconds = {}
    for one, (few, many) in best.items():
        if isinstance(many, str):
            continue
        fit, building = many
        seconds[one] = ((fit - few[0]) / (long - short), fit, fit + building)
    rivals = [row for one, row in seconds.items() if one != label]
    for one in best:
        if one not in seconds:
            print(f"| {name} | {one} | {long} | not installed: {best[one][1]} | | | |", flush=True)
            continue
        ratios = ""
        if one == label and rivals:
            quickest = np.min(rivals, axis=0)
            ratios = ", ".join(f"{r:.2f}" for r in np.array(seconds[one]) / quickest)
        row = " | ".join(f"{value:.4f}" for value in seconds[one])
        print(f"| {name} | {one} | {long} | {row} | {ratios} |", flush=True)


def _best(fits, counts, repeats, slow=1.5):
    # Best of several, alternated, so that all run under the same load; slow ones run once.
    best = {}
    for _ in range(repeats):
        for label, fit in fits.items():
            if label in best and (isinstance(best[label][1], str) or best[label][1][0] > slow):
                continue
            taken = [fit(n) for n in counts]
            if label in best:
                taken = [min(pair) for pair in zip(taken, best[label], strict=True)]
            best[label] = taken
    return best


def _seconds_of(model, X, y, n_epochs):
    # Our fits start from the rows: there is no data to build before.
    model = clone(model).set_params(n_epochs=n_epochs)
    start = time.perf_counter()
    model.fit(X, y)
    return time.perf_counter() - start, 0.0


class Peers:
    """Other libraries, run in another Python."""

    def __init__(self, python):
        self._python = python

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [self._python, "-c", PEERS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()

    def give(self, table):
        """Set the ratings, rows (user, item, rating), that models are fitted to."""
        self._path = os.path.join(self._folder.name, f"{len(table)}.npy")
        np.save(self._path, table)

    def seconds(self, label, n_epochs, n_factors):
        """Seconds of a fit and of building its data, or why there is none."""
        request = [label, self._path, n_epochs, n_factors]
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        return answer if isinstance(answer, str) else tuple(answer)


def main(argv=None):
    """Run one of the benchmarks."""
    commands = {f.__name__: f for f in (quality, sparse, speed)}
    parser = command_line("centralized", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data", nargs="+", default=["100k", "1m"])
    parser.add_argument("--data-home")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--peers-python")
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
