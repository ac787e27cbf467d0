"""Measure all methods on a data set: ``python -m benchmarks leaderboard [SET ...]``.

Each data set is a record of its own. Rankings: the last row of each user (`LeaveLastOut`; the given
test row in MovieLens-1M, whose rows have no times), ranked among all items that the user does not
have, after a fit to the other rows; HR@10 and NDCG@10 are means over `N_USERS` random users at
most, ties in expectation. Ratings: RMSE on a random fifth of the rows. "±" is half of a 95%
interval over users. Seeds: of the split and of every fit, the first one for reported numbers.

Methods are fitted as they are, and once more after a `FederatedSearch` over `GRID` on training
rows alone, which hold out a tenth at random, or the latest tenth where the method reads times: two
parameters, most at a quarter, once and four times their defaults, are 9 candidates. "10" and "1"
are the scores with `CentralDP` at these epsilons, a public catalogue and scale, and the settings of
`PRIVATE` and of ``benchmarks.private_rankings``. "placebo" is HR@10 of a random item that the user
has not touched, with the method as it is: it tests the evaluation, as methods see training rows
alone. Where rows have times, "in time" is a method with half-lives "auto".

A method has `BUDGET` CPU seconds for all its fits to a data set: as it is, at each epsilon, and in
the search. A fit that spends more is stopped. One that would probably spend more, because the first
one took longer than what is left, does not begin. The cell of both is `STOPPED`. Neural methods,
whose searches would take more than that, are fitted as they are only, to at most `MOST` users;
those of `SLOW` are not, because the seconds of a round that ``benchmarks.neural`` measured already
say so. Above `MOST` items nothing is solved for a matrix of all pairs of items, and no noise is
added to one, or to FCF's gradients of all items.

The generated sets are `make_ratings` and `make_interactions` as they are. "truth" is the best
possible score there: of the ranking by the weights that items were drawn by, and of the expected
stars.

Data: MovieLens-100k and 1M with its leave-one-out files, the files of Zhou et al. (S3-Rec, CIKM
2020), and Amazon Beauty as a larger file, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
import pandas as pd
from scipy.stats import norm
from sklearn.base import BaseEstimator, clone

import fedrecsk
from benchmarks import next_item, rfrec
from benchmarks._command_line import command_line
from benchmarks._methods import add_method
from benchmarks._seeds import reported
from benchmarks._timing import Stopwatch
from benchmarks.lightfr import leave_one_out
from benchmarks.private_rankings import PRIVATE as PRIVATE_RANKINGS
from fedrecsk import Federation, neural
from fedrecsk.audit import placebo
from fedrecsk.base import RatingMixin, Recommender
from fedrecsk.datasets import fetch_movielens, generate, make_interactions, make_ratings
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.metrics._evaluate import Protocol
from fedrecsk.metrics._ranking import METRICS
from fedrecsk.model_selection import LeaveLastOut
from fedrecsk.privacy import CentralDP
from fedrecsk.selection import FederatedSearch

FILES = next_item.FILES | {"Beauty-large": "amazon-beauty/interactions.csv.gz"}
SETS = ["generated", "100k", "LastFM", "Beauty", "Sports", "Yelp", "1m", "Beauty-large"]
RATED = {"100k", "1m", "generated"}
# CPU seconds of all fits of a method.
BUDGET = 120
STOPPED = f"more than {BUDGET} s"
N_USERS, N_CANDIDATES, MOST = 10_000, 9, 10_000
EPSILONS = 10.0, 1.0
SLOW, NEURAL = {"FedNCF", "FedRAP"}, {"PFedRec", "GPFedRec"}
# Methods with half-lives, where rows are in order of time; this one is also searched.
TIMED = ", in time"
IN_TIME = f"FedItemKNN{TIMED}"
SOLVED = {"EASE", "FedEASE"}
# With noise: sums of all pairs, and of FCF each client's gradient of all items.
NOISY = {"FedEASE", "FedItemKNN", "FedSpectral", "FCF"}
# FedItemKNN numbers pairs with a direction in 32 bits.
MOST_DIRECTED = 37_836
# They need a module, or features of items.
LEFT_OUT = {"FederatedModule", "DDL"}
COSTS = ["MB up / down", "rounds", "CPU s"]
FACTORS = 0.25, 1.0, 4.0
GRID = {
    "ExplicitFCF": ("reg_user", "learning_rate"),
    "FedRec": ("learning_rate", "n_virtual"),
    "RFRec": ("reg_user", "reg_item"),
    "RFRecF": ("reg_user", "reg_item"),
    "SemiDFEGL": ("reg_user", "learning_rate"),
    "FedEB": {"n_factors": [5, 20, 80], "learning_rate": [0.025, "auto", 0.1]},
    "PrivFedEB": {"center": [0.0, 0.25, 0.5, 0.625, 0.75, 1.0]},
    "LocALS": ("reg_user", "reg_item"),
    "GlobSGD": ("reg_user", "reg_item"),
    "FCF": ("reg_user", "reg_item"),
    "LocSGD": {"reg_user": [2.5, 10.0, 40.0], "learning_rate": [1.0, "auto", 16.0]},
    "FedMF": ("learning_rate", "reg"),
    "FedFast": ("learning_rate", "reg"),
    "CoLR": ("learning_rate", "reg"),
    "SCoLR": ("learning_rate", "reg"),
    "PrivRec": ("learning_rate", "reg"),
    "LightFR": {"reg_user": [250.0, 1000.0, 4000.0], "alpha": [1.0, "auto", 16.0]},
    "FedEASE": {"reg": ["auto", 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0]},
    "FedSpectral": ("reg_user", "alpha"),
    "FedItemKNN": {"power": [0.0625, "auto", 1.0], "shrinkage": [1.25, 5.0, 20.0]},
    IN_TIME: next_item.TRIED,
}
# Parameters without which a method refuses central privacy.
PRIVATE = {key: {"upload": "all"} for key in ("ExplicitFCF", "FedRec", "GlobSGD", "LocSGD")}
PRIVATE |= {"RFRecF": {"aggregation": "clients"}}
REFUSE = {"FedEB", "FedFast", "LightFR", "SemiDFEGL"}


class Task(NamedTuple):
    """Rows to fit to and to test, each with ratings or None, and the best model, if known."""

    train: tuple
    test: tuple
    truth: BaseEstimator | None = None


class TooSlow(Exception):
    """A fit has spent its CPU seconds."""


# ---------------------------------------------------------------------------------- data


class Truth(BaseEstimator):
    """Predict what data were drawn from."""

    def __init__(self, values):
        self.values = values

    def fit(self, X, y=None):
        """Learn nothing."""
        return self

    def predict(self, X):
        """Return the true values."""
        return self.values[tuple(np.asarray(X)[:, :2].T)]


def read(name, home):
    """Return rows (user, item, position in time), each pair once."""
    path = Path(home or os.environ["FEDRECSK_DATA"]) / FILES[name]
    frame = pd.read_csv(path).iloc[:, [0, 1, -1]].drop_duplicates(["user", "item"], keep="last")
    return frame.to_numpy(dtype=np.int64)


def rankings(name, options):
    """Return the rows before the last of each user, and the last."""
    (seed,), truth = reported(1), None
    if name == "1m":
        train, _, test, _ = leave_one_out(options)
        train = train.astype(np.int64)
    else:
        X = read(name, options.data_home) if name in FILES else None
        if X is None:
            X, truth = generated_rows(seed)
        train, test = LeaveLastOut(ties="row_order").train_test_split(X)
    if len(test) > N_USERS:
        test = test[np.sort(np.random.default_rng(seed).choice(len(test), N_USERS, replace=False))]
    return Task((train, None), (test, None), truth)


def ratings(name, options):
    """Return a random split of ratings."""
    (seed,), truth = reported(1), None
    if name == "generated":
        X, y, truth = generated_ratings(seed)
    else:
        X, y = fetch_movielens(name, data_home=options.data_home, return_X_y=True)
    X_train, y_train, *test = rfrec.split(X[:, :2].astype(np.int64), y, seed)
    return Task((X_train, y_train), tuple(test), truth)


def generated_rows(seed):
    """Return generated rows, and a model with the log-weights that items were drawn by."""
    with mock.patch.object(generate, "_draw_pairs", wraps=generate._draw_pairs) as draw:
        X = make_interactions(random_state=seed)
    *_, popularity, users, items = draw.call_args.args
    return X, Truth(popularity + users @ items.T)


def generated_ratings(seed):
    """Return generated ratings, and a model with the stars that are expected."""
    stars = mock.patch.object(generate, "_to_stars", wraps=generate._to_stars)
    with stars as cut:
        X, y = make_ratings(random_state=seed)
        # The same, without noise.
        make_ratings(random_state=seed, noise=0.0)
    opinion, expected = (call.args[0] for call in cut.call_args_list)
    noise = inspect.signature(make_ratings).parameters["noise"].default
    cuts = [opinion[y > star].min() for star in np.unique(y)[:-1]]
    values = np.full(np.max(X[:, :2], axis=0) + 1, np.nan)
    values[tuple(X[:, :2].T)] = y.min() + sum(norm.cdf((expected - one) / noise) for one in cuts)
    return X, y, Truth(values)


# ------------------------------------------------------------------------------- measuring


@contextmanager
def budget(seconds):
    """Give a stopwatch of CPU seconds, and raise TooSlow when `seconds` of them are spent."""
    watch = Stopwatch(time.process_time)

    def check(*_):
        left = seconds - watch.seconds()
        # Again, should an error be lost in a callback.
        signal.setitimer(signal.ITIMER_PROF, max(left, 1.0))
        if left <= 0:
            raise TooSlow

    before = signal.signal(signal.SIGPROF, check)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield watch
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def interval(values, weights):
    """Return a mean and half of its 95% interval over users, from sums and weights by user."""
    mean = values.sum() / weights.sum()
    return mean, 1.96 * np.sqrt(((values - mean * weights) ** 2).sum()) / weights.sum()


def score(model, task):
    """Return scores with their intervals: NDCG@10 and HR@10, or RMSE."""
    X, y = task.test
    if y is not None:
        users = np.unique(X[:, 0], return_inverse=True)[1]
        squares = np.bincount(users, (model.predict(X) - y) ** 2)
        mean, half = interval(squares, np.bincount(users))
        return [(np.sqrt(mean), half / (2 * np.sqrt(mean)))]
    protocol = Protocol(X_train=task.train[0])
    *_, spec = protocol.plan(("ndcg", "hit_rate"), 10)
    ranking = protocol.rank(model, X, spec=spec)
    by_user = [METRICS[name](ranking, 10) for name in ("ndcg", "hit_rate")]
    return [interval(values, np.ones(len(values))) for values in by_user]


def fit(model, task, seconds):
    """Return a model, fitted with a seed on one thread, and its CPU seconds."""
    add_method(model)
    settings = {"random_state": reported(1)[0], "n_jobs": 1}
    own = model.get_params()
    model = clone(model).set_params(**{k: v for k, v in settings.items() if k in own})
    with budget(seconds) as watch:
        model.fit(*task.train)
        return model, watch.seconds()


def search_of(name, model):
    """Return a search of a method."""
    grid = GRID[name]
    if not isinstance(grid, dict):
        now = {key: getattr(model, key) for key in grid}
        grid = {key: [type(one)(one * factor) for factor in FACTORS] for key, one in now.items()}
    model = clone(model).set_params(random_state=reported(1)[0])
    rows = "latest" if name == IN_TIME else "random"
    # Anew, so that the search shows its choice alone.
    settings = {"validation_rows": rows, "refit": "anew"}
    return FederatedSearch(model, grid, n_candidates=N_CANDIDATES, **settings)


def private(name, model, task, epsilon):
    """Return a method with central privacy."""
    model, dp = PRIVATE_RANKINGS.get(name, (model, {}))
    X, y = task.train
    known = {"items": np.unique(np.concatenate([X[:, 1], task.test[0][:, 1]]))}
    if "rating_scale" in model.get_params():
        known["rating_scale"] = float(np.min(y)), float(np.max(y))
    federation = Federation(central_dp=CentralDP(epsilon=epsilon, **dp))
    return clone(model).set_params(**known, **PRIVATE.get(name, {}), federation=federation)


def costs(model, seconds):
    """Return megabytes per client, up and down, rounds and CPU seconds as cells."""
    ledger = getattr(model, "communication_", None)
    if ledger is None:
        return ["-", "-", f"{seconds:.1f}"]
    up, down = (n.mean() / 1e6 for n in (ledger.client_bytes_up, ledger.client_bytes_down))
    return [f"{up:.3g} / {down:.3g}", f"{model.n_rounds_}", f"{seconds:.1f}"]


def obstacle(label, model, task):
    """Return why a method is not tried, as a cell, or ""."""
    n_users, n_items = (len(np.unique(column)) for column in task.train[0][:, :2].T)
    is_private = getattr(getattr(model, "federation", None), "central_dp", None) is not None
    if label == IN_TIME and n_items > MOST_DIRECTED:
        return f"more than {MOST_DIRECTED:,} items"
    name = label.removesuffix(TIMED)
    if name in (NOISY if is_private else SOLVED) and n_items > MOST:
        return f"more than {MOST:,} items"
    if label in NEURAL and n_users > MOST:
        return f"more than {MOST:,} users"
    return STOPPED if label in SLOW else ""


def attempt(label, model, task, left, least=0.0):
    """Return a model, or None if it is not fitted; its cells; and the CPU seconds left."""
    if reason := obstacle(label, model, task):
        return None, [reason], left
    if left <= least:
        return None, [STOPPED], 0.0
    try:
        model, spent = fit(model, task, left)
    except TooSlow:
        return None, [STOPPED], 0.0
    return model, [*cells_of(score(model, task)), *costs(model, spent)], left - spent


def cells_of(scores):
    """Return scores with intervals as cells."""
    return [f"{mean:.4f} ± {half:.4f}" for mean, half in scores]


def placebo_of(model, task, n_methods):
    """Return HR@10 of placebo items among 100, by the function that ranks test rows."""

    def rank(train, test, candidates):
        # A second fit to the same rows would be equal.
        others = np.column_stack([test[:, 0], candidates[:, 1:]])
        return evaluate_ranking(model, test, metrics="hit_rate", negatives=others)["hit_rate@10"]

    some = {"n_users": min(N_USERS, len(np.unique(task.train[0][:, 0]))), "random_state": 0}
    found = placebo(rank, task.train[0][:, :2], confidence=1 - 0.01 / n_methods, **some)
    return f"{found.hit_rate:.3f}{' leak' if found.has_leak else ''}"


def methods(task, name):
    """Return all methods of a task by label, centralised ones first."""
    rates = task.test[1] is not None
    known = [getattr(room, one) for room in (fedrecsk, neural) for one in room.__all__]
    known = [one for one in known if inspect.isclass(one) and issubclass(one, Recommender)]
    known = [one for one in known if issubclass(one, RatingMixin) == rates]
    found = {one.__name__: one() for one in known if one.__name__ not in LEFT_OUT}
    if not rates and name in FILES:
        found |= {f"{one}{TIMED}": timed for one in found if (timed := in_time(found[one]))}
    return dict(sorted(found.items(), key=lambda pair: "federation" in pair[1].get_params()))


def in_time(model):
    """Return a method with half-lives "auto", or None if it has none."""
    lives = {name: "auto" for name in next_item.AUTO if name in model.get_params()}
    return clone(model).set_params(**lives) if lives else None


def measure(label, model, task, n_methods):
    """Return the row of a method, and that of its search or None."""
    n_scores = 1 if task.test[1] is not None else 2
    fitted, cells, left = attempt(label, model, task, BUDGET)
    cells += ["-"] * (n_scores + len(COSTS) - len(cells))
    spent, private_cells, searched, found = BUDGET - left, ["-"] * len(EPSILONS), "-", None
    if fitted is not None and label in GRID:
        for place, epsilon in enumerate(EPSILONS if label not in REFUSE else ()):
            one = private(label, model, task, epsilon)
            _, (private_cells[place], *_), left = attempt(label, one, task, left, spent)
        search, (searched, *rest), _ = attempt(label, search_of(label, model), task, left, spent)
        if search is not None:
            best = ", ".join(f"{key}={value}" for key, value in search.best_params_.items())
            found = [label, best, f"{search.gain_:.4f}", *rest[n_scores - 1 :]]
    row = [label, *cells[:n_scores], searched, *cells[n_scores:], *private_cells]
    if n_scores == 2:
        row.append("-" if fitted is None else placebo_of(fitted, task, n_methods))
    return row, found


def place_of(cell, sign):
    """Return the key that sorts a cell with a score, and after them those without."""
    mean, is_score, _ = cell.partition(" ± ")
    return (0, sign * float(mean)) if is_score else (1, 0.0)


def show(head, rows):
    """Print a table."""
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def run(name, options):
    """Print the tables of a data set: rankings, their searches, and the same of ratings."""
    for read_task, scores in ((rankings, ["NDCG@10", "HR@10"]), (ratings, ["RMSE"])):
        if read_task is ratings and name not in RATED:
            continue
        task = read_task(name, options)
        head = ["method", *scores, "searched", *COSTS, *(f"epsilon {one:g}" for one in EPSILONS)]
        head += ["placebo"] * (len(scores) - 1)
        rows, searches = [], []
        if task.truth is not None:
            cells = ["truth", *cells_of(score(task.truth, task))]
            rows.append(cells + ["-"] * (len(head) - len(cells)))
        chosen = methods(task, name)
        for label, model in chosen.items():
            if not options.only or label in options.only:
                row, found = measure(label, model, task, len(chosen))
                print(" | ".join(row), file=sys.stderr, flush=True)
                rows.append(row)
                searches += [found] * (found is not None)
        # The best first, and those without a score last.
        sign = -1 if read_task is rankings else 1
        show(head, sorted(rows, key=lambda row: place_of(row[1], sign)))
        show(["method", "found", "gain", *COSTS], searches)


def main(argv=None):
    """Measure a data set."""
    parser = command_line("leaderboard", __doc__)
    parser.add_argument("data", choices=SETS, metavar="SET", help="one of: " + ", ".join(SETS))
    parser.add_argument("--data-home")
    parser.add_argument("--only", nargs="+", help="methods to measure (default: all)")
    options = parser.parse_args(argv)
    run(options.data, options)


if __name__ == "__main__":
    main()
