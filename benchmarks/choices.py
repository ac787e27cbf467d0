"""Choose defaults on validation rows alone: ``python -m benchmarks.choices METHOD``.

METHOD is a class, such as RFRec. Each parameter is changed alone, to the values in `GRID`. The rule
was written before any of these runs:

1. A value is kept if its mean gain on the validation rows of three splits is more than two standard
   errors, and positive in each split. Of several values of a parameter the best one is kept. The
   gain is in NDCG@10 or precision@10, or in squared error for ratings; its standard error is over
   users.
2. What is kept is tried together. If that does not gain more than the best single change, only this
   change is kept.
3. The first data set tries all values, each further one only the values kept so far. A
   default changes only if MovieLens-100k and MovieLens-1M both keep the value, and the gain on
   "few" (MovieLens-100k with at most ten training rows per user) is not below minus two standard
   errors.
4. What buys accuracy with bytes or time is left alone: numbers of rounds and of factors, cohorts,
   bits of a code.

Validation rows have seeds of their own (``benchmarks/_seeds.py``), and none of them is in a test
part of a reported number. Afterwards the default and the choice are measured once on the reported
test rows.

Ratings: a fifth of the rows at random, less those that are tested elsewhere; for LocALS, GlobSGD,
LocSGD and FCF a fifth of each user's rows, full catalogue. The other rankings are among 99
negatives: on MovieLens-100k each user's rows after the first 80 % in order of time and before the
last 10 %; on MovieLens-1M, whose rows here have no times, one random training row of each user.

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA. MovieLens-1M
also needs the leave-one-out files of MovieLens-1M of He et al. (2017) in this folder, for rankings.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from sklearn.metrics import mean_absolute_error

import fedrecsk
from benchmarks import fedals, lightfr, rfrec
from benchmarks._command_line import command_line
from benchmarks._seeds import choosing, reported, untested
from benchmarks._variants import variant
from benchmarks.sparse_defaults import ranks
from fedrecsk.datasets import fetch_movielens

FEW = 10
# Validation rows are outside the test parts of the seeds 0 to 3, and of that of benchmarks.methods.
N_TESTED, OF_METHODS = 4, 300
RFREC = {
    "reg_user": (0.02, 0.08),
    "reg_item": (0.02, 0.08),
    "reg_bias": (0.035, 0.14),
    "REG_POWER": (0.25, 0.75),
    "FEW_RATINGS": (0.0, 7.5, 30.0),
    "INIT_STD": (0.05, 0.2),
}
STEADY = {
    "shrinkage": (0.0, 0.25, 1.0),
    "averaging": (False,),
    "EMPHASIS": (3, 27),
    "batch_size": (32, 128),
    "learning_rate": (0.25, 1.0),
    "reg": (1e-3, 4e-3),
    "INIT_STD": (0.01, 0.1),
}
WMF = {
    "reg_user": (15.0, 60.0),
    "reg_item": (5.0, 20.0),
    "alpha": (0.5, 2.0),
    "INIT_STD": (0.015, 0.06),
}
EXPLICIT = {
    "reg_user": (0.65, 2.6),
    "reg_item": (0.65, 2.6),
    "reg_bias": (1.5, 6.0),
    "learning_rate": (0.015, 0.06),
    "INIT_STD": (0.05, 0.2),
}
SGD = {"learning_rate": (0.01, 0.04), "INIT_STD": (0.015, 0.06)}
BIASES = {"reg_bias": (0.005, 0.02), "shrinkage_bias": (2.5, 10.0)}
EXPONENT = {"RANK_EXPONENT": (0.5, 0.625, 0.875, 1.0)}
GRID = {
    "LightFR": {
        "reg_user": (0.0, 250.0, 500.0, 2000.0, 4000.0),
        "MEAN_PRIOR": (False,),
        "SPARSE_REG": (0.0, 6000.0, 24000.0),
        "alpha": (2.0, 8.0),
        "POSITIVE_TARGET": (0.6, 0.7),
        "NEGATIVE_TARGET": (0.45, 0.55),
        "balance_user": (0.001,),
        "balance_item": (0.001,),
        "N_SWEEPS": (1, 6),
    },
    "CoLR": EXPONENT | STEADY,
    "SCoLR": EXPONENT | STEADY,
    "FedMF": STEADY,
    "RFRec": RFREC
    | {
        "prox": (0.05, 0.2),
        "learning_rate": (0.05, 0.2),
        "BETA_1": (0.5, 0.95),
        "BETA_2": (0.8, 0.99),
    },
    "RFRecF": RFREC
    | {
        "prox": (2.5, 10.0),
        "learning_rate": (0.042, 0.168),
        "BETA_1": (0.25, 0.75),
        "BETA_2": (0.99,),
        "EPSILON": (0.01, 0.04),
    },
    "ExplicitFCF": EXPLICIT,
    "LocALS": WMF | {"prox": (3.0, 30.0)},
    "GlobSGD": WMF,
    "LocSGD": {
        "reg_user": (5.0, 20.0),
        "learning_rate": (0.15, 0.6),
        "alpha": (0.5, 2.0),
        "INIT_STD": (0.015, 0.06),
    },
    "FCF": WMF | {"learning_rate": (0.025, 0.1), "BETA_1": (0.5,), "BETA_2": (0.9, 0.999)},
    "PMF": SGD
    | {
        "reg": (0.025, 0.1),
        "shrinkage": (1.5, 6.0),
        "prior_mean": (0.0, 0.5),
        "few_ratings": (0.0, 7.5, 30.0),
    },
    "BiasedMF": SGD | {"reg": (0.025, 0.1), "shrinkage": (1.5, 6.0)} | BIASES,
    "SVDpp": SGD
    | {"reg": (0.02, 0.08), "shrinkage": (2.5, 10.0), "reg_implicit": (0.0015, 0.006)}
    | BIASES,
}


class Part(NamedTuple):
    """Training rows, held-out rows, and their ratings or negatives."""

    X: np.ndarray
    y: np.ndarray | None
    rows: np.ndarray
    target: np.ndarray | None = None


class Measured(NamedTuple):
    """User and gain of each held-out row, the more the better, and what is printed."""

    users: np.ndarray
    values: np.ndarray
    printed: np.ndarray


# --------------------------------------------------------------------------------- protocols


class Ratings:
    """MAE and RMSE on random rows."""

    names = "MAE", "RMSE"

    def choosing(self, name, seeds, options):
        """A part for each seed, without a row that is tested under a reported seed."""
        X, y = _ratings(name, options)
        tested = *reported(N_TESTED), *reported(1, OF_METHODS)
        for seed in seeds:
            X_train, y_train, *held_out = rfrec.validation(X, y, seed, tested)
            few = _few(name, X_train, seed)
            yield Part(X_train[few], y_train[few], *held_out)

    def reported(self, name, seeds, options):
        """The part of each seed, as in ``benchmarks.rfrec quality``."""
        X, y = _ratings(name, options)
        for seed in seeds:
            yield Part(*rfrec.split(X, y, seed))

    def measure(self, model, part):
        """Squared errors, with their sign turned."""
        predicted = model.fit(part.X, part.y).predict(part.rows)
        losses = (predicted - part.target) ** 2
        mae = mean_absolute_error(part.target, predicted)
        return Measured(part.rows[:, 0], -losses, np.array([mae, np.sqrt(losses.mean())]))


class Catalogue:
    """Recommendations from the full catalogue, and random rows of each user."""

    names = "HR@10", "precision@10"

    def choosing(self, name, seeds, options):
        """A part for each seed, without a row that is tested under a reported seed."""
        X, _ = _ratings(name, options)
        tests = [fedals.split(X, seed)[1] for seed in reported(N_TESTED)]
        for seed in seeds:
            train, rows = fedals.split(X, seed)
            yield Part(train[_few(name, train, seed)], None, rows[untested(rows, tests)])

    def reported(self, name, seeds, options):
        """The part of each seed, as in ``benchmarks.fedals quality``."""
        X, _ = _ratings(name, options)
        for seed in seeds:
            train, test = fedals.split(X, seed)
            yield Part(train, None, test)

    def measure(self, model, part):
        """Precision@10 of each user."""
        users, values = fedals.precisions(model.fit(part.X), part.X, part.rows)
        return Measured(users, values, np.array([np.mean(values > 0), values.mean()]))


class Rankings:
    """HR@10 and NDCG@10 of rows among 99 items that the user has not rated.

    The test rows are the last of each user, and validation rows come from the others.
    """

    names = "HR@10", "NDCG@10"

    def choosing(self, name, seeds, options):
        """A part for each seed, with negatives of its own."""
        if name == "1m":
            train, _, test, _ = lightfr.leave_one_out(options)
        else:
            train, _, validation, test = lightfr.chronological(options)
        rated = np.concatenate([train, test])
        if options.users:
            train = _of_users(train, options.users, seeds[0])
        for seed in seeds:
            if name == "1m":
                X, _, rows = lightfr.last_but_one(train, train[:, 0], seed)
            else:
                X, rows = train, validation[np.isin(validation[:, 0], train[:, 0])]
            negatives = lightfr.drawn_negatives(np.concatenate([rated, rows]), rows, seed)
            yield Part(X[_few(name, X, seed)], None, rows, negatives)

    def reported(self, name, seeds, options):
        """The same rows for each seed, as in ``benchmarks.lightfr quality``."""
        if name == "1m":
            X, _, test, negatives = lightfr.leave_one_out(options)
        else:
            X, _, validation, test = lightfr.chronological(options)
            negatives = lightfr.drawn_negatives(np.concatenate([X, validation, test]), test)
        for _ in seeds:
            yield Part(X, None, test, negatives)

    def measure(self, model, part):
        """NDCG@10 of each row."""
        hit, ndcg = lightfr.gains(model.fit(part.X), part.rows, part.target)
        return Measured(part.rows[:, 0], ndcg, np.array([hit.mean(), ndcg.mean()]))


def _ratings(name, options):
    X, y = fetch_movielens(_set(name), data_home=options.data_home, return_X_y=True)
    return X[:, :2].astype(np.int64), y


def _of_users(X, n, seed):
    """Rows of n random users."""
    users = np.random.default_rng(seed).permutation(np.unique(X[:, 0]))[:n]
    return X[np.isin(X[:, 0], users)]


def _set(name):
    return "100k" if name == "few" else name


def _few(name, X, seed):
    """Mask of the training rows that are used."""
    return ranks(X, seed) < FEW if name == "few" else np.ones(len(X), dtype=bool)


# ----------------------------------------------------------------------------------- choosing


def measured(method, changed, parts, seeds, options):
    """A :class:`Measured` for each part, of the method with these parameters."""
    model = variant(getattr(fedrecsk, method), **changed)
    if "n_jobs" in model.get_params():
        model.set_params(n_jobs=options.n_jobs)
    return [
        PROTOCOLS[method].measure(model.set_params(random_state=seed), part)
        for seed, part in zip(seeds, parts, strict=True)
    ]


def gain(ours, default):
    """Mean gain per row over the default, its standard error over users, and that of each split."""
    differences = [a.values - b.values for a, b in zip(ours, default, strict=True)]
    users = np.concatenate([one.users for one in ours])
    every = np.concatenate(differences)
    mean, codes = every.mean(), np.unique(users, return_inverse=True)[1]
    by_user = np.bincount(codes, weights=every - mean)
    return mean, np.sqrt((by_user**2).sum()) / len(every), [d.mean() for d in differences]


def is_kept(mean, error, by_split):
    """Rule 1."""
    return mean > 2 * error and min(by_split) > 0


def choose(method, name, grid, options):
    """What this data set keeps of a grid; prints every value tried."""
    seeds = choosing(options.seeds)
    parts = list(PROTOCOLS[method].choosing(name, seeds, options))
    default = measured(method, {}, parts, seeds, options)
    _print(method, name, "validation", {}, default)
    best = {}
    for changed in grid:
        result = _tried(method, name, changed, parts, seeds, default, options)
        key = tuple(changed)
        if result > best.get(key, (0.0, None))[0]:
            best[key] = result, changed
    kept = [changed for _, changed in best.values()]
    if len(kept) < 2:
        return kept
    together = {k: v for changed in kept for k, v in changed.items()}
    alone, single = max(best.values(), key=lambda pair: pair[0])
    result = _tried(method, name, together, parts, seeds, default, options)
    return kept if result > alone else [single]


def _tried(method, name, changed, parts, seeds, default, options):
    """Gain of a change, or 0 if it is not kept."""
    ours = measured(method, changed, parts, seeds, options)
    found = gain(ours, default)
    difference = f"{found[0]:+.5f} ± {found[1]:.5f}"
    _print(method, name, "validation", changed, ours, difference, is_kept(*found))
    return found[0] if is_kept(*found) else 0.0


def _print(method, name, rows, changed, runs, difference="", kept=False):
    label = ", ".join(f"{k}={v}" for k, v in changed.items()) or "defaults"
    score = " / ".join(f"{one:.4f}" for one in np.mean([one.printed for one in runs], axis=0))
    metrics = " / ".join(PROTOCOLS[method].names)
    print(
        f"| {method} | {name} | {rows} | {label} | {metrics} | {score} | {difference} | "
        f"{'yes' if kept else ''} |",
        flush=True,
    )


def main(argv=None):
    """Choose on each data set in turn, then report."""
    parser = command_line("choices", __doc__)
    parser.add_argument("method", choices=list(GRID), help="class whose defaults are chosen")
    parser.add_argument(
        "--data", nargs="+", default=["100k", "1m", "few"], choices=["100k", "1m", "few"]
    )
    parser.add_argument("--data-home")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--reported-seeds", type=int, default=3, help="seeds of reported numbers")
    parser.add_argument("--only", nargs="+", default=[], help="parameters to try (default: all)")
    parser.add_argument("--users", type=int, help="random users of rankings, for shorter runs")
    parser.add_argument("--n-jobs", type=int, default=1)
    options = parser.parse_args(argv)
    unknown = set(options.only) - set(GRID[options.method])
    if unknown:
        known = ", ".join(GRID[options.method])
        parser.error(f"--only {', '.join(sorted(unknown))}: {options.method} tries {known}")
    if options.reported_seeds > N_TESTED:
        parser.error(
            f"--reported-seeds {options.reported_seeds}: validation rows leave out the test rows "
            f"of the seeds 0 to {N_TESTED - 1} only; ask for at most {N_TESTED}"
        )
    candidates = [
        {name: value}
        for name, values in GRID[options.method].items()
        for value in values
        if not options.only or name in options.only
    ]
    print("| method | data | rows | changed | metrics | score | gain | kept |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    choices = {}
    for name in options.data:
        if not candidates:
            break
        candidates = choices[name] = choose(options.method, name, candidates, options)
    if options.reported_seeds:
        report(options.method, choices, options)


def report(method, choices, options):
    """The default and each data set's choice on its test rows."""
    protocol, seeds = PROTOCOLS[method], reported(options.reported_seeds)
    for name, kept in choices.items():
        if name == "few":
            continue
        changed = {k: v for one in kept for k, v in one.items()}
        parts = list(protocol.reported(name, seeds, options))
        for one in [{}, changed] if changed else [{}]:
            _print(method, name, "test", one, measured(method, one, parts, seeds, options))


PROTOCOLS = (
    dict.fromkeys(GRID, Ratings())
    | dict.fromkeys(("LightFR", "CoLR", "SCoLR", "FedMF"), Rankings())
    | dict.fromkeys(("LocALS", "GlobSGD", "LocSGD", "FCF"), Catalogue())
)

if __name__ == "__main__":
    main()
