"""Measure NCF: ``python -m benchmarks.ncf COMMAND``.

The protocols are those of `benchmarks._quality`. `choices` ranks one random training row of each
user and never reads a test row.

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA. MovieLens-1M
also needs the leave-one-out files of MovieLens-1M of He et al. (2017) in this folder.
"""

from __future__ import annotations

import time

import numpy as np
from sklearn.base import clone

from benchmarks import _quality
from benchmarks._command_line import command_line
from benchmarks._quality import split, validation
from benchmarks._seeds import choosing
from benchmarks._variants import variant
from benchmarks.lightfr import hits
from fedrecsk import BiasOnly, Popularity
from fedrecsk.neural import NCF

MODELS = {
    "NeuMF": NCF(),
    "NeuMF, the paper's sizes": NCF(n_factors=8, reg=3e-4, batch_size=256, n_negatives=4),
    "GMF": NCF("gmf"),
    "MLP": NCF("mlp"),
}
CHOICES = {
    "NeuMF": [
        {},
        {"n_factors": 8, "reg": 3e-4, "batch_size": 256, "n_negatives": 4},
        {"reg": 3e-3, "n_negatives": 4},
        {"reg": 3e-3, "n_negatives": 4, "batch_size": 256},
        {"n_factors": 32},
        {"reg": 1.6e-2},
        {"n_negatives": 16},
    ],
    "NeuMF, the paper's sizes": [{}, {"learning_rate": 1e-3}, {"learning_rate": 1e-2}],
    "GMF": [{}, {"reg": 3e-3}, {"reg": 1.2e-2}, {"n_factors": 128}],
    "MLP": [{}, {"reg": 3e-4}, {"reg": 1e-3}, {"layers": (128, 64, 32, 16)}],
}
SMALL = {
    "loss": "squared",
    "n_factors": 8,
    "layers": (16, 8),
    "reg": 0.1,
    "INIT_STD": 0.01,
    "batch_size": 512,
}
RATINGS = {
    "NeuMF": variant(NCF, **SMALL),
    "GMF": variant(NCF, **SMALL | {"architecture": "gmf", "n_factors": 16}),
    "MLP": variant(NCF, **SMALL, architecture="mlp"),
}
RATING_CHOICES = [
    {},
    {"reg": 0.03},
    {"reg": 0.3},
    {"layers": (64, 32, 16, 8)},
    {"INIT_STD": 0.1},
    {"learning_rate": 1e-3},
]


def quality(options):
    """HR@10 and NDCG@10 on test rows."""
    _quality.lists(chosen(MODELS, options), options, seeded)


def choices(options):
    """Neighbours of the defaults, on a row of each user cut from the training rows."""
    _quality.list_choices(chosen(MODELS, options), CHOICES, options, seeded)


def rmse(options):
    """RMSE on random fifths of the ratings."""
    models = {"biases alone": BiasOnly(), **chosen(RATINGS, options)}
    _quality.ratings(models, options, seeded)


def rating_choices(options):
    """RMSE of neighbours of the settings for ratings, on rows that `rmse` tests nowhere."""
    _quality.rating_choices(chosen(RATINGS, options), RATING_CHOICES, options, seeded)


def speed(options):
    """CPU seconds of an epoch."""
    for name in options.data:
        X, _, _ = split(name, options)
        print(f"\n| {name} | CPU s per epoch |\n|---|---|", flush=True)
        for label, model in chosen(MODELS, options).items():
            clone(model).set_params(n_epochs=1).fit(X[:2000])
            taken = []
            for n_epochs in (1, 3):
                start = time.process_time()
                seeded(model, 0, options).set_params(n_epochs=n_epochs).fit(X)
                taken.append(time.process_time() - start)
            print(f"| {label} | {(taken[1] - taken[0]) / 2:.1f} |", flush=True)


def newcomers(options):
    """HR@10 of a fifth of the users, folded in after a fit to the others or in the fit."""
    for name in options.data:
        inner, held_out, negatives = validation(name, options)
        users = np.random.default_rng(choosing(1)[0]).permutation(np.unique(inner[:, 0]))
        new = users[: len(users) // 5]
        rows, test = np.isin(inner[:, 0], new), np.isin(held_out[:, 0], new)
        print(f"\n| {name}, new users | folded in | in the fit | popularity | ms a user |")
        print("|---|---|---|---|---|", flush=True)
        popular = Popularity().fit(inner)
        for label, model in chosen(MODELS, options).items():
            late, full = (seeded(model, 0, options).fit(part) for part in (inner[~rows], inner))
            start = time.process_time()
            late.fold_in(inner[rows])
            each = 1000 * (time.process_time() - start) / len(new)
            scores = " | ".join(
                f"{hits(one, held_out[test], negatives[test])[0]:.4f}"
                for one in (late, full, popular)
            )
            print(f"| {label} | {scores} | {each:.0f} |", flush=True)


def chosen(models, options):
    """The models that --only names, or all."""
    return {k: model for k, model in models.items() if not options.only or k in options.only}


def seeded(model, seed, options):
    """A copy of the model with this seed, if it has one."""
    known = "random_state" in model.get_params()
    return clone(model).set_params(**({"random_state": seed} if known else {}))


def main(argv=None):
    """Run one of the benchmarks."""
    commands = (quality, choices, rmse, rating_choices, speed, newcomers)
    commands = {command.__name__: command for command in commands}
    parser = command_line("ncf", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data", nargs="+", default=["100k", "1m"], choices=["100k", "1m"])
    parser.add_argument("--data-home")
    parser.add_argument("--only", nargs="+", default=[], choices=[*MODELS, *RATINGS])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
