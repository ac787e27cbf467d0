"""Measure FedEB: ``python -m benchmarks.fedeb COMMAND``.

Splits are 80/20 at random, one user per client, with seeds that were not used to choose anything
(300, 301, ...), though some rows of their test parts were (docs/choices.md). `cohorts`, `parts` and
`rule` take their test part from the training part of another split.

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import time

import numpy as np
from sklearn.base import clone
from sklearn.metrics import roc_auc_score, root_mean_squared_error

from benchmarks._command_line import command_line
from benchmarks._seeds import choosing, reported
from benchmarks._timing import Stopwatch
from benchmarks.rfrec import CUTS, split
from fedrecsk import BayesianSVDpp, BiasOnly, FedEB, Federation, SVDpp
from fedrecsk.compression import Quantization
from fedrecsk.datasets import fetch_movielens
from fedrecsk.ensemble import RatingEnsemble
from fedrecsk.federated import _fedeb_server, fedeb
from fedrecsk.model_selection import TemporalHoldout

FIRST_SEED = 300
INT8_UP = Quantization("int8", direction="up")
# Of `rule`: a standard split, and whose rows are held out.
PARTS = [(0, "uneven"), (2, "uneven"), (1, "even"), (3, "even")]
# Normal quantile of intervals that hold 90%.
NINETY = 1.6448536
MODELS = {
    "100k": {
        "all clients, d = 20": FedEB(),
        "10%, d = 20": FedEB(client_fraction=0.1),
        "1%, d = 20": FedEB(client_fraction=0.01),
    },
    "1m": {
        "10%, d = 20": FedEB(client_fraction=0.1),
        "1%, d = 20": FedEB(client_fraction=0.01),
        "1%, d = 40": FedEB(40, client_fraction=0.01),
    },
}
TENTHS = FedEB(client_fraction=0.1)


def quality(options):
    """Test RMSE, coverage of 90% intervals, what is sent, seconds."""
    print("| data | cohorts | rounds | RMSE | +- | within 90% | MB up per client | CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.data:
        for label, model in MODELS[name].items():
            rows = []
            for X, y, X_test, y_test, seed in _splits(name, options):
                fitted, seconds = _fitted(model, X, y, seed, options)
                mean, std = fitted.predict(X_test, return_std=True)
                covered = np.mean(np.abs(y_test - mean) <= NINETY * std)
                sent = fitted.communication_.client_bytes_up.mean() / 1e6
                rows.append([root_mean_squared_error(y_test, mean), covered, sent, seconds])
            rmse, covered, sent, seconds = np.mean(rows, axis=0)
            print(
                f"| {name} | {label} | {fitted.n_rounds_} | {rmse:.4f} | {np.std(rows, 0)[0]:.4f} "
                f"| {covered:.3f} | {sent:.2f} | {seconds:.1f} |",
                flush=True,
            )


def standard(options):
    """Test RMSE on the five standard splits of MovieLens-100k, u1 to u5: blocks of its rows."""
    X, y = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)
    models = {"FedEB": FedEB(), "FedEB, 10%": FedEB(client_fraction=0.1)}
    models["mean of 4, d = 12"] = RatingEnsemble([(f"run {k}", FedEB(12)) for k in range(4)])
    models["Bayesian SVD++"] = BayesianSVDpp()
    print("| | u1 | u2 | u3 | u4 | u5 | mean |\n|---|---|---|---|---|---|---|")
    for label, model in models.items():
        row = []
        for test in np.array_split(np.arange(len(X)), 5):
            train = np.delete(np.arange(len(X)), test)
            fitted = seeded(model, FIRST_SEED, options).fit(X[train], y[train])
            row.append(root_mean_squared_error(y[test], fitted.predict(X[test])))
        cells = " | ".join(f"{value:.4f}" for value in [*row, np.mean(row)])
        print(f"| {label} | {cells} |", flush=True)


def rule(options):
    """Validation RMSE of rules for the items' precision R, on parts of MovieLens-100k."""
    X, y = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)
    parts = dict(_validation_parts(X))
    rules = {"MacKay": 1.0, "EM": 0.0, "EM above .1, as it is": 0.1, "EM above .2": 0.2}
    print("| |" + "".join(f" {label} |" for label in parts))
    print("|---|" + "---|" * len(parts))
    for label, least in rules.items():
        # The share of the numbers above which the EM rule holds.
        _fedeb_server.WELL_DETERMINED = least
        _print_row(label, FedEB(), parts, X, y, options)
    _print_row("Bayesian SVD++", BayesianSVDpp(), parts, X, y, options)


def _validation_parts(X):
    """Training and validation rows, out of training parts of the standard splits."""
    users, u = np.unique(X[:, 0], return_inverse=True)
    blocks = np.array_split(np.arange(len(X)), 5)
    for seed, (block, kind) in zip(choosing(4), PARTS, strict=True):
        rng, rows = np.random.default_rng(seed), np.delete(np.arange(len(X)), blocks[block])
        shares = np.full(len(users), 0.2)
        if kind == "uneven":
            # Two fifths of the users lose 10 to 90% of their rows.
            losers = rng.random(len(users)) < 0.4
            shares = np.where(losers, rng.uniform(0.1, 0.9, len(users)), 0.0)
        held = rng.random(len(rows)) < shares[u[rows]]
        yield f"{kind}, u{block + 1}", (rows[~held], rows[held])
    for label, cut in CUTS.items():
        yield label, (rows[~held][cut(X[rows[~held]], rng)], rows[held])


def _print_row(label, model, parts, X, y, options):
    """Print the RMSE on each part."""
    cells = [
        _rmse(model, X[train], y[train], X[test], y[test], 0, options)
        for train, test in parts.values()
    ]
    print(f"| {label} | " + " | ".join(f"{value:.4f}" for value in cells) + " |", flush=True)


def cohorts(options):
    """Validation RMSE of cohorts from all clients to 1%, in turn and at random."""
    shares = (1.0, 0.3, 0.1, 0.03, 0.01)
    print("| data | cohorts |" + "".join(f" {share:g} |" for share in shares))
    print("|---|---|" + "---|" * len(shares))
    for name in options.data:
        X, y = fetch_movielens(name, data_home=options.data_home, return_X_y=True)
        part = split(*split(X, y, 0)[:2], 1)
        for sampling in ("rotating", "random"):
            federation = Federation(sampling=sampling)
            row = [
                _rmse(FedEB(client_fraction=f, federation=federation), *part, 0, options)
                for f in shares
            ]
            values = " | ".join(f"{value:.4f}" for value in row)
            print(f"| {name} | {sampling} | {values} |", flush=True)


def averaged(options):
    """The mean of some runs' predictions, compared with one run's."""
    rounds = {"all": "auto", "half": round(50 * TENTHS.client_fraction**-0.5)}
    print("| data | rounds | one run | mean of 2 | mean of 4 |\n|---|---|---|---|---|")
    for name in options.data:
        for label, n_rounds in rounds.items():
            model, rows = clone(TENTHS).set_params(n_rounds=n_rounds), []
            for X, y, X_test, y_test, seed in _splits(name, options):
                runs = np.array(
                    [
                        _fitted(model, X, y, 10 * seed + k, options)[0].predict(X_test)
                        for k in range(4)
                    ]
                )
                means = *runs, runs[:2].mean(axis=0), runs[2:].mean(axis=0), runs.mean(axis=0)
                errors = [root_mean_squared_error(y_test, one) for one in means]
                rows.append([np.mean(errors[:4]), np.mean(errors[4:6]), errors[6]])
            cells = " | ".join(f"{error:.4f}" for error in np.mean(rows, axis=0))
            print(f"| {name} | {label} | {cells} |", flush=True)


def sparse(options):
    """Few rows: RMSE compared with the bias-only model's and SVD++'s."""
    print("| data | bias-only | SVD++ | FedEB |\n|---|---|---|---|")
    for name in options.data:
        for label, cut in CUTS.items():
            rows = []
            for X, y, X_test, y_test, seed in _splits(name, options):
                kept = cut(X, np.random.default_rng(seed))
                part = X[kept], y[kept], X_test, y_test
                federated = FedEB(client_fraction=0.1)
                rows.append(
                    [
                        root_mean_squared_error(y_test, BiasOnly().fit(*part[:2]).predict(X_test)),
                        root_mean_squared_error(
                            y_test, SVDpp(random_state=seed).fit(*part[:2]).predict(X_test)
                        ),
                        _rmse(federated, *part, seed, options),
                    ]
                )
            row = " | ".join(f"{value:.4f}" for value in np.mean(rows, axis=0))
            print(f"| {name}, {label} | {row} |", flush=True)


def parts(options):
    """Validation RMSE without each part of the model."""
    without = {
        "all of it": {},
        "no implicit part": {"implicit": False},
        "no sketch": {"sketch_size": 0},
        "shared noise": {"user_noise": False},
        "half the rate": {"learning_rate": 0.5},
        "twice the rate": {"learning_rate": 2.0},
    }
    print("| data | FedEB with cohorts of 10% | RMSE |\n|---|---|---|")
    for name in options.data:
        X, y = fetch_movielens(name, data_home=options.data_home, return_X_y=True)
        part = split(*split(X, y, 0)[:2], 1)
        for label, changed in without.items():
            if "learning_rate" in changed:
                changed = {"learning_rate": changed["learning_rate"] * 0.05 * 0.1 ** (1 / 3)}
            model = FedEB(client_fraction=0.1, **changed)
            print(f"| {name} | {label} | {_rmse(model, *part, 0, options):.4f} |", flush=True)


def days(options):
    """RMSE without and with effects of days, on random rows and on each user's last tenth."""
    X, y = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)
    print("| MovieLens-100k | without | effects of days |\n|---|---|---|")
    latest = TemporalHoldout(0.1, per_user=True).train_test_split(X, y)
    parts = {
        "a fifth of the rows at random": [*_splits("100k", options)],
        "each user's last tenth": [(latest[0], latest[2], latest[1], latest[3], FIRST_SEED)],
    }
    for name, splits in parts.items():
        rows = [
            [_rmse(FedEB(timestamps=column), *one, options) for column in (None, 2)]
            for one in splits
        ]
        without, timed = np.mean(rows, axis=0)
        print(f"| {name} | {without:.4f} | {timed:.4f} |", flush=True)


def uploads(options):
    """Bytes of plain and of int8 uploads, and what that costs in accuracy."""
    print(
        "| data | uploads | RMSE | MB up per client | MB down per client |\n|---|---|---|---|---|"
    )
    settings = {
        "own rows": {},
        "own rows, int8": {"federation": Federation(compression=INT8_UP)},
        "all rows": {"upload": "all"},
    }
    for name in options.data:
        for label, changed in settings.items():
            rows = []
            for X, y, X_test, y_test, seed in _splits(name, options):
                model = clone(TENTHS).set_params(**changed)
                fitted, _ = _fitted(model, X, y, seed, options)
                ledger = fitted.communication_
                up, down = (
                    nbytes.mean() / 1e6
                    for nbytes in (ledger.client_bytes_up, ledger.client_bytes_down)
                )
                rows.append([root_mean_squared_error(y_test, fitted.predict(X_test)), up, down])
            rmse, up, down = np.mean(rows, axis=0)
            print(f"| {name} | {label} | {rmse:.4f} | {up:.3f} | {down:.3f} |", flush=True)


def leak(options):
    """Share of the ratings that stand alone in a cohort's sum."""
    print("| data | cohorts | clients | ratings that stand alone |\n|---|---|---|---|", flush=True)
    for name in options.data:
        X, _ = fetch_movielens(name, data_home=options.data_home, return_X_y=True)
        users, items = (np.unique(column, return_inverse=True)[1] for column in X[:, :2].T)
        order = np.random.default_rng(0).permutation(users.max() + 1)
        for share in (0.01, 0.1, 1.0):
            alone = 0
            for cohort in np.array_split(order, round(1 / share)):
                counts = np.bincount(items[np.isin(users, cohort)])
                alone += (counts == 1).sum()
            clients = f"{share * len(order):.0f}"
            print(f"| {name} | {share:.0%} | {clients} | {alone / len(items):.1%} |", flush=True)


def audiences(options):
    """How well what clients receive of an item tells what else its raters have rated (AUC)."""
    X, y = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)
    print("| items with an audience | raters | items | popularity | q | y | audiences |")
    print("|---|---|---|---|---|---|---|")
    floor, one, some = fedeb.FEWEST_RATERS, (1, 1), (10, 12)
    for fewest, raters in ((1, one), (1, (2, 2)), (1, some), (floor, one), (floor, some)):
        fedeb.FEWEST_RATERS = fewest
        model = FedEB(random_state=0).fit(X[:, :2], y)
        users = np.searchsorted(model.user_ids_, X[:, 0])
        items = np.searchsorted(model.item_ids_, X[:, 1])
        has_rated = np.zeros((users.max() + 1, items.max() + 1), dtype=bool)
        has_rated[users, items] = True
        n, q = has_rated.sum(axis=0), model.item_factors_
        columns = {
            "popularity": np.sqrt(n)[:, None],
            "q": q[:, : model.n_factors],
            "y": model.implicit_factors_,
            "audiences": q[:, model.n_factors + fedeb.TASTES :],
        }
        rare = np.flatnonzero((n >= raters[0]) & (n <= raters[1]))
        found = {name: [] for name in columns}
        for item in rare:
            others = np.delete(np.arange(len(n)), item)
            for user in np.flatnonzero(has_rated[:, item]):
                for name, rows in columns.items():
                    score = (rows[others] @ rows[item]) * np.sqrt(n[others])
                    found[name].append(roc_auc_score(has_rated[user, others], score))
        cells = " | ".join(f"{np.mean(auc):.2f}" for auc in found.values())
        label = f"{fewest} rater" if fewest == 1 else f"{fewest} raters"
        span = raters[0] if raters[0] == raters[1] else f"{raters[0]} to {raters[1]}"
        print(f"| of {label} or more | {span} | {len(rare)} | {cells} |", flush=True)


def speed(options):
    """Seconds of whole fits of ML-1M, 1,000 rounds of 1%, with one and two threads."""
    X, y = fetch_movielens("1m", data_home=options.data_home, return_X_y=True)
    X, y, *_ = split(X, y, FIRST_SEED)
    for d in (20, 40):
        FedEB(d, client_fraction=0.01, n_rounds=20).fit(X, y)
        for n_jobs in (1, 2):
            start, cpu = time.perf_counter(), time.process_time()
            FedEB(d, client_fraction=0.01, n_jobs=n_jobs, random_state=0).fit(X, y)
            print(
                f"d = {d}, {n_jobs} thread(s): {time.perf_counter() - start:.1f} s "
                f"({time.process_time() - cpu:.1f} s of CPU)",
                flush=True,
            )


def _splits(name, options):
    X, y = fetch_movielens(name, data_home=options.data_home, return_X_y=True)
    for seed in reported(options.seeds, FIRST_SEED):
        yield *split(X, y, seed), seed


def seeded(model, seed, options):
    """A copy with a seed and threads; the parts of an ensemble have consecutive seeds."""
    model = clone(model)
    for number, (name, _) in enumerate(model.get_params().get("estimators") or []):
        model.set_params(**{f"{name}__random_state": seed + number})
    chosen = {"random_state": seed, "n_jobs": options.n_jobs}
    return model.set_params(**{k: v for k, v in chosen.items() if k in model.get_params()})


def _fitted(model, X, y, seed, options):
    model = seeded(model, seed, options)
    watch = Stopwatch(time.process_time)
    return model.fit(X, y), watch.seconds()


def _rmse(model, X, y, X_test, y_test, seed, options):
    fitted, _ = _fitted(model, X, y, seed, options)
    return root_mean_squared_error(y_test, fitted.predict(X_test))


def main(argv=None):
    """Run one of the benchmarks."""
    functions = (quality, standard, rule, cohorts, averaged, sparse, parts, days)
    functions += (uploads, leak, audiences, speed)
    commands = {f.__name__: f for f in functions}
    parser = command_line("fedeb", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data", nargs="+", default=["100k", "1m"])
    parser.add_argument("--data-home")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--n-jobs", type=int, default=1)
    parsed = parser.parse_args(argv)
    commands[parsed.command](parsed)


if __name__ == "__main__":
    main()
