"""Compare recommenders that know what came last: ``python -m benchmarks.time COMMAND``.

The last row of each user is the test row, and every parameter is chosen on the row before it, by
NDCG@10 of the full ranking. HR@10 and NDCG@10 of `scores` are means over the test rows: among all
items that the user does not have, and among 99 of these at random. On Amazon Beauty 6,000 users are
tested. SASRec is RecTools', if ``--peers-python`` (or the variable PEERS_PYTHON) can
import rectools with torch (``pip install "rectools[torch]"``). `defaults` prints what half-lives
give on the rows before the last ones, and never reads a test row; `days` compares half-lives in
days there, on MovieLens-100k. `generated` prints what half-lives give on generated data, with and
without tastes that drift. `later` compares the next item with all rows after a date, by which 80%
of the rows of MovieLens-100k come, of users who have rows before it.

Data: MovieLens-100k and Amazon Beauty (5-core; users, items and positions in time, without dates),
in the folder --data-home or FEDRECSK_DATA. If one of them is not there, it is left out.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from sklearn.base import clone

from benchmarks._command_line import command_line
from fedrecsk import EASE, FedEASE, FedItemKNN, FedSpectral, ImplicitALS, ItemKNN, LocALS
from fedrecsk.base._item_weights import weights_of
from fedrecsk.datasets import make_interactions
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.model_selection import LeaveLastOut, TemporalHoldout

N_BEST, N_NEGATIVES, N_USERS = 10, 99, 6000
WEEK = 7 * 24 * 3600
FILES = {"100k": "ml-100k/ratings.csv.gz", "beauty": "amazon-beauty/interactions.csv.gz"}
LIVES = {
    "100k": {"pair_half_life": [5.0, 7.0, 10.0], "history_half_life": [4.0, 5.0, 7.0, 10.0]},
    "beauty": {"pair_half_life": [2.0, 4.0], "history_half_life": [2.0]},
}
# Runs in the peers' Python: embeddings of users and items after each number of epochs.
SASREC = """
import json, sys, warnings, logging
warnings.simplefilter("ignore"); logging.disable(logging.WARNING)
import numpy as np, pandas as pd, torch
from rectools import Columns
from rectools.dataset import Dataset
from rectools.models import SASRecModel
source, target, users, epochs, options = json.loads(sys.argv[1])
torch.manual_seed(0); torch.set_num_threads(options.pop("threads"))
frame = pd.DataFrame(np.load(source), columns=[Columns.User, Columns.Item, "order"])
frame[Columns.Datetime] = pd.to_datetime(frame.pop("order"), unit="s"); frame[Columns.Weight] = 1.0
data = Dataset.construct(frame)
model = SASRecModel(dropout_rate=0.2, deterministic=True, **options)
done = 0
for number in epochs:
    model.fit_partial(data, min_epochs=number - done, max_epochs=number - done); done = number
    asked = pd.DataFrame({Columns.User: users})
    asked = model.data_preparator.transform_dataset_u2i(data, asked[Columns.User].values)
    loader = model.data_preparator.get_dataloader_recommend(asked, 256)
    theirs, items = model.lightning_model._get_user_item_embeddings(loader, "cpu")
    known = asked.user_id_map.external_ids[: len(theirs)]
    ids = model.data_preparator.item_id_map.external_ids
    extra = model.data_preparator.n_item_extra_tokens  # padding
    np.savez(f"{target}{number}.npz", users=known, u=theirs.numpy(),
        items=np.array(ids[extra:], dtype=np.int64), v=items.numpy()[extra:])
"""


class Data(NamedTuple):
    """Rows (user, item, time) in three parts, and the users that are tested."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    users: np.ndarray


def load(name, home):
    """Return a Data set, None without a copy."""
    home = home or os.environ.get("FEDRECSK_DATA", "")
    path = Path(home) / FILES[name]
    if not path.is_file():
        print(f"{path} is not there; leaving {name} out.")
        return None
    X = pd.read_csv(path).iloc[:, [0, 1, -1]].to_numpy(dtype=np.int64)
    rest, test = LeaveLastOut(ties="row_order").train_test_split(X)
    train, validation = LeaveLastOut(ties="row_order").train_test_split(rest)
    users = np.unique(test[:, 0])
    if len(users) > N_USERS:
        users = np.sort(np.random.default_rng(0).choice(users, N_USERS, replace=False))
    return Data(train, validation, test, users)


# ------------------------------------------------------------------------------ evaluation


def evaluate(scores_of, train, test, users):
    """HR@10 and NDCG@10 of the users' test rows in the full ranking, and among negatives.

    `scores_of` takes users (ids), and returns items (ids, ascending) and their scores.
    """
    target = pd.Series(test[:, 1], index=test[:, 0])
    own = pd.Series(train[:, 1], index=train[:, 0]).groupby(level=0).apply(np.array)
    rng, numbers = np.random.default_rng(0), []
    for batch in np.array_split(users, max(1, len(users) // 100)):
        items, board = scores_of(batch)
        for user, scores in zip(batch, np.asarray(board, dtype=float), strict=True):
            place = np.searchsorted(items, target[user])
            if place == len(items) or items[place] != target[user]:
                numbers.append(np.zeros(4))  # nobody has it in training
                continue
            others = np.ones(len(items), dtype=bool)
            others[np.searchsorted(items, own[user])] = False
            others[place] = False
            others = np.flatnonzero(others)
            few = rng.choice(others, min(N_NEGATIVES, len(others)), replace=False)
            numbers.append(
                np.concatenate([_gain(scores[place], scores[kept]) for kept in (others, few)])
            )
    return np.mean(numbers, axis=0)


def _gain(score, others):
    """HR@10 and NDCG@10, in expectation over a random order of ties."""
    above, ties = (others > score).sum(), (others == score).sum()
    ranks = above + np.arange(min(ties + 1, N_BEST))
    found = ranks[ranks < N_BEST]
    return np.array([len(found), (1 / np.log2(found + 2)).sum()]) / (ties + 1)


def scores_of(model):
    """What `evaluate` takes, of a fitted recommender."""
    return lambda users: (model.item_ids_, model._model().score_all(model._users.codes(users)))


def fitted(model):
    """What `chosen` takes, of a recommender: a function of training rows."""
    return lambda train: scores_of(clone(model).fit(train))


def popularity(n_weeks=None):
    """Counts of rows: all of them, or of the last weeks before each user's last row."""

    def fit(train):
        items, codes = np.unique(train[:, 1], return_inverse=True)
        order = np.argsort(train[:, 2], kind="stable")
        times, codes = train[order, 2], codes[order]
        last = pd.Series(train[:, 2], index=train[:, 0]).groupby(level=0).max()

        def scores(users):
            board = np.zeros((len(users), len(items)))
            for row, user in zip(board, users, strict=True):
                span = slice(None)
                if n_weeks is not None:
                    now = last[user]
                    span = slice(*np.searchsorted(times, [now - n_weeks * WEEK, now + 1]))
                row += np.bincount(codes[span], minlength=len(items))
            return items, board

        return scores

    return fit


class Sasrec:
    """RecTools' SASRec in the peers' Python, for several numbers of epochs at once."""

    def __init__(self, python, name, epochs=None):
        self._python, self._kept = python, {}
        self.epochs = epochs or {"100k": [10, 20, 40], "beauty": [2, 4, 8]}[name]
        self._options = {"n_factors": 64, "n_heads": 2, "n_blocks": 2, "threads": 1}
        if name == "100k":
            self._options |= {"session_max_len": 100, "loss": "softmax"}
        else:
            self._options |= {"session_max_len": 20, "loss": "gBCE", "n_negatives": 64}

    def is_there(self):
        """Return whether the peers' Python has RecTools with torch."""
        test = [self._python, "-c", "from rectools.models import SASRecModel"]
        return subprocess.run(test, capture_output=True, check=False).returncode == 0

    def after(self, n_epochs, users):
        """What `chosen` takes, for one number of epochs."""

        def fit(train):
            if len(train) not in self._kept:
                self._kept[len(train)] = self._trained(train, users)
            known, u, items, v = self._kept[len(train)][n_epochs]
            return lambda batch: (items, u[np.searchsorted(known, batch)] @ v.T)

        return fit

    def _trained(self, train, users):
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "rows.npy")
            np.save(source, train)
            asked = [source, f"{folder}/", users.tolist(), self.epochs, self._options]
            subprocess.run([self._python, "-c", SASREC, json.dumps(asked)], check=True)
            kept = {}
            for number in self.epochs:
                with np.load(f"{folder}/{number}.npz") as file:
                    items = file["items"].astype(np.int64)
                    by_user, by_item = np.argsort(file["users"]), np.argsort(items)
                    kept[number] = (
                        file["users"][by_user],
                        file["u"][by_user],
                        items[by_item],
                        file["v"][by_item],
                    )
        return kept


# -------------------------------------------------------------------------------- choices


def grid(model, **values):
    """List (description, function of training rows) for all combinations of parameters."""
    rows = []
    for combination in itertools.product(*values.values()):
        given = dict(zip(values, combination, strict=True))
        text = ", ".join(f"{name}={value!r}" for name, value in given.items())
        rows.append((text, fitted(clone(model).set_params(**given))))
    return rows


def candidates(name, data, python, epochs=None):
    """Models by name: what of each is tried on validation rows."""
    als = ImplicitALS(64, random_state=0)
    als_values = {"reg": [10.0, 100.0], "alpha": [1.0, 4.0, 10.0]}
    models = {"popularity": [("", popularity())]}
    if name == "100k":
        models["popularity of the last weeks"] = [(f"{n} weeks", popularity(n)) for n in (1, 2, 4)]
        models["EASE"] = grid(EASE(), reg=[100.0, 300.0, 1000.0])
    models["ItemKNN"] = grid(ItemKNN(), power=[0.15, 0.25, 0.35], shrinkage=[2.0, 5.0])
    models["ALS"] = grid(als, **als_values)
    if name == "100k":
        models["ALS, fading history"] = grid(als, **als_values, history_half_life=[5.0, 10.0])
        models["LocALS, fading history"] = grid(
            LocALS(32, alpha=4.0, random_state=0), history_half_life=[5.0, 10.0]
        )
        models["FedEASE, fading history"] = grid(
            FedEASE(), reg=[100.0, 300.0, 1000.0], history_half_life=[5.0, 10.0, 20.0]
        )
        models["FedEASE, fading"] = grid(FedEASE(), reg=[60.0, 150.0], **LIVES[name])
        auto = {"pair_half_life": ["auto"], "history_half_life": ["auto"]}
        models['FedEASE(100), "auto"'] = grid(FedEASE(100.0), **auto)
    else:
        models["FedSpectral, fading history"] = grid(FedSpectral(), history_half_life=[2.0])
        auto = {"pair_half_life": ["auto"], "history_half_life": ["auto"]}
    models["FedItemKNN, fading"] = grid(FedItemKNN(), power=[0.15, 0.25], **LIVES[name])
    models['FedItemKNN, "auto"'] = grid(FedItemKNN(backward_weight=1), **auto)
    sasrec = Sasrec(python, name, epochs)
    if sasrec.is_there():
        models["SASRec (RecTools)"] = [
            (f"{n} epochs", sasrec.after(n, data.users)) for n in sasrec.epochs
        ]
    else:
        print(f'{python} has no RecTools; pip install "rectools[torch]", or see --peers-python.')
    return models


def scores(options):
    """Test rows of both data sets, by models whose parameters are chosen on validation rows."""
    for name in options.data:
        data = load(name, options.data_home)
        if data is None:
            continue
        rest = np.concatenate([data.train, data.validation])
        print(f"\n{name}: HR@10 / NDCG@10 of {len(data.users)} users' last rows\n")
        print("| | full ranking | 99 negatives | validation | chosen | CPU s |")
        print("|---|---|---|---|---|---|")
        models = candidates(name, data, options.peers_python, options.epochs)
        unknown = set(options.only or ()) - models.keys()
        if unknown:
            raise SystemExit(f"--only {min(unknown)!r} is none of {list(models)}.")
        for model, tried in models.items():
            if options.only and model not in options.only:
                continue
            found = [
                evaluate(fit(data.train), data.train, data.validation, data.users)
                for _, fit in tried
            ]
            best = int(np.argmax([one[1] for one in found]))
            start = time.process_time()
            scorer = tried[best][1](rest)
            seconds = time.process_time() - start
            ours = [_shown(evaluate(scorer, rest, data.test, data.users)), _shown(found[best])]
            spent = "" if model.startswith("SASRec") else f"{seconds:.1f}"
            print(
                f"| {model} | {ours[0][0]} | {ours[0][1]} | {ours[1][0]} | {tried[best][0]} | "
                f"{spent} |",
                flush=True,
            )


def _shown(numbers):
    """Return the full ranking's two numbers and the sampled ones'."""
    texts = [f"{number:.3f}".lstrip("0") for number in numbers]
    return " / ".join(texts[:2]), " / ".join(texts[2:])


def defaults(options):
    """Half-lives on validation rows of both data sets: none, fixed ones and those of "auto"."""
    knn = FedItemKNN(backward_weight=1)
    models = {"100k": [FedEASE(100.0), knn], "beauty": [knn]}
    for name in options.data:
        data = load(name, options.data_home)
        for model in models[name] if data is not None else ():
            print(f"\n{name}, {model}: HR@10 / NDCG@10 in the full ranking, validation rows\n")
            print("| pair_half_life | history_half_life | |\n|---|---|---|")
            for lives in [(None, None), (None, "auto"), ("auto", None), ("auto", "auto")] + [
                (h, h) for h in (1.0, 2.0, 4.0, 7.0, 14.0, 28.0)
            ]:
                one = clone(model).set_params(pair_half_life=lives[0], history_half_life=lives[1])
                found = evaluate(fitted(one)(data.train), data.train, data.validation, data.users)
                print(f"| {lives[0]} | {lives[1]} | {_shown(found)[0]} |", flush=True)


def days(options):
    """Half-lives in positions and in days, on validation rows of MovieLens-100k; EASE(60)."""
    data = load("100k", options.data_home)
    if data is None:
        return
    users, u = np.unique(data.train[:, 0], return_inverse=True)
    items, i = np.unique(data.train[:, 1], return_inverse=True)
    position = pd.Series(data.train[:, 2]).groupby(u).rank().to_numpy()
    day = data.train[:, 2] / (24 * 3600)
    own = [np.flatnonzero(u == user) for user in range(len(users))]

    def ndcg(half_positions, half_days, join):
        gram, histories = np.zeros((len(items),) * 2), np.zeros((len(users), len(items)))
        for user, rows in enumerate(own):
            late = max(rows, key=lambda row: position[row])
            ages = join(
                (position[late] - position[rows]) / half_positions,
                (day[late] - day[rows]) / half_days,
            )
            histories[user, i[rows]] = 2.0**-ages
            apart = join(
                np.abs(np.subtract.outer(position[rows], position[rows])) / half_positions,
                np.abs(np.subtract.outer(day[rows], day[rows])) / half_days,
            )
            gram[np.ix_(i[rows], i[rows])] += 2.0**-apart
        scores = histories @ weights_of(np.linalg.inv(gram + 60 * np.eye(len(items))))
        found = evaluate(
            lambda batch: (items, scores[np.searchsorted(users, batch)]),
            *(data.train, data.validation, data.users),
        )
        return _shown(found)[0]

    print("| positions | days | joined by | HR@10 / NDCG@10 |\n|---|---|---|---|", flush=True)
    print(f"| 7 | none | | {ndcg(7, np.inf, np.add)} |", flush=True)
    for n in (0.01, 0.1, 1, 10, 30, 100):
        print(f"| none | {n} | | {ndcg(np.inf, n, np.add)} |", flush=True)
    for join in (np.add, np.maximum):
        for n in (1, 7, 30, 100):
            print(f"| 7 | {n} | {join.__name__} | {ndcg(7, n, join)} |", flush=True)


def generated(options):
    """NDCG@10 of each user's last row in generated data, by half-lives."""
    lives = (None, "auto", 4, 8, 16, 32, 64)
    print("| tastes | |" + "".join(f" {life} |" for life in lives))
    print("|---|---|" + "---|" * len(lives), flush=True)
    models = {
        "FedEASE(100)": (FedEASE(100.0), ("pair_half_life", "history_half_life")),
        "FedItemKNN()": (FedItemKNN(), ("pair_half_life", "history_half_life")),
        "FedSpectral(), history": (FedSpectral(), ("history_half_life",)),
        "LocALS(32), history": (LocALS(32, random_state=0), ("history_half_life",)),
    }
    for drift in (0.0, 1.0):
        X = make_interactions(600, 300, 30_000, drift=drift, random_state=1)
        train, test = LeaveLastOut(ties="row_order").train_test_split(X)
        for name, (model, names) in models.items():
            numbers = []
            for life in lives:
                timed = clone(model).set_params(**dict.fromkeys(names, life)).fit(train)
                numbers.append(evaluate_ranking(timed, test, metrics="ndcg", k=10)["ndcg@10"])
            shown = " | ".join(f"{number:.3f}".lstrip("0") for number in numbers)
            print(f"| {'drift' if drift else 'stay'} | {name} | {shown} |", flush=True)


def later(options):
    """NDCG@10 of each user's last row, and of known users' rows after a date, by half-lives."""
    data = load("100k", options.data_home)
    if data is None:
        return
    rows = np.vstack([data.train, data.validation, data.test])
    splits = LeaveLastOut(ties="row_order"), TemporalHoldout(0.8)
    parts = [split.train_test_split(rows) for split in splits]
    both = {"pair_half_life": "auto", "history_half_life": "auto"}
    models = {
        "FedEASE": (FedEASE(), both),
        "FedItemKNN": (FedItemKNN(), both),
        "LocALS": (LocALS(random_state=0), {"history_half_life": "auto"}),
    }
    print("| model | half-lives | next item | known users after the date |\n|---|---|---|---|")
    for name, (model, lives) in models.items():
        for shown, values in (("none", {}), ('"auto"', lives)):
            numbers = []
            for train, test in parts:
                known = test[np.isin(test[:, 0], train[:, 0])]
                fitted = clone(model).set_params(**values).fit(train)
                numbers.append(evaluate_ranking(fitted, known, metrics="ndcg", k=10)["ndcg@10"])
            print(f"| {name} | {shown} | {numbers[0]:.3f} | {numbers[1]:.3f} |", flush=True)


def main(argv=None):
    """Run one of the benchmarks."""
    commands = {f.__name__: f for f in (scores, defaults, days, generated, later)}
    parser = command_line("time", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data", nargs="+", choices=list(FILES), default=list(FILES))
    parser.add_argument("--data-home")
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--peers-python")
    parser.add_argument("--epochs", nargs="+", type=int, help="of SASRec, ascending")
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
