"""Measure one-round rankers and their sums: ``python -m benchmarks.ranking COMMAND``.

All ratings are positives. The protocols are those of :mod:`benchmarks.lightfr`: a test row is
ranked among 99 items that its user has not rated; HR@10 and NDCG@10 are means over test rows.
`choices`, `scaled`, `solvers` and `weights` rank one random training row of each user and never
read a test row; weights of sums are searched on such rows, too.

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA. MovieLens-1M
also needs the leave-one-out files of MovieLens-1M of He et al. (2017) in this folder.
"""

from __future__ import annotations

import time

import numpy as np
from sklearn.base import clone

from benchmarks._command_line import command_line
from benchmarks._quality import list_choices
from benchmarks._seeds import reported
from benchmarks._variants import with_constants
from benchmarks.lightfr import (
    N_NEGATIVES,
    chronological,
    drawn_negatives,
    hits,
    last_but_one,
    leave_one_out,
)
from fedrecsk import EASE, FedEASE, FedSpectral, ImplicitALS, LocALS, Popularity
from fedrecsk.ensemble import RankingEnsemble

LOCALS = LocALS(128, n_rounds=12, alpha=8.0, reg_user=100.0, reg_item=30.0)
# As accurate as the best published; choices on validation rows below.
SCALED = LocALS(
    192,
    n_rounds=20,
    alpha=6.0,
    reg_user=26.0,
    reg_item=42.0,
    reg_exponent=1.0,
)
ONE_ROUND = [("ease", FedEASE()), ("spectral", FedSpectral())]
# Twenty rounds in all. The weights of their sum were chosen on validation rows; `weights` ranks
# candidates on two more sets of such rows.
THREE = [*ONE_ROUND, ("als", clone(SCALED).set_params(n_rounds=18))]
IALS = ImplicitALS(128, reg=100.0, alpha=9.0, n_epochs=12, solver="cholesky", item_bias=False)


def searched(parts):
    """Their sum, with weights chosen on validation rows of the benchmark's protocol."""
    return RankingEnsemble(parts, weights="search", n_negatives=N_NEGATIVES)


MODELS = {
    "popularity": Popularity(),
    "EASE": EASE(),
    "FedEASE": FedEASE(),
    "FedSpectral": FedSpectral(),
    "FedEASE + FedSpectral": RankingEnsemble(ONE_ROUND),
    "FedEASE + FedSpectral, weights searched": searched(ONE_ROUND),
    "LocALS": LOCALS,
    "LocALS, 192 factors": SCALED,
    "implicit ALS": IALS,
    "FedEASE + FedSpectral + LocALS, d = 192": RankingEnsemble(THREE, weights=[0.3, 0.1, 0.6]),
}
CHOICES = {
    EASE(): [{"reg": reg} for reg in (100.0, 300.0, 1000.0, 3000.0)],
    FedSpectral(): [
        {},
        {"n_factors": 64},
        {"n_factors": 256},
        {"alpha": 2.0},
        {"alpha": 8.0},
        {"reg_user": 10.0},
        {"reg_user": 100.0},
    ],
    LOCALS: [
        {},
        {"reg_item": 100.0},
        {"reg_item": 10.0},
        {"reg_user": 200.0},
        {"reg_user": 50.0, "reg_item": 50.0},
        {"alpha": 4.0},
        {"n_rounds": 20},
    ],
}
# Of SCALED, with fewer rounds.
SCALED_CHOICES = [
    {},
    *(
        {"n_rounds": 16} | changed
        for changed in (
            {},
            {"alpha": 2.0},
            {"alpha": 4.5},
            {"alpha": 10.0},
            {"reg_user": 36.0, "reg_item": 60.0},
            {"reg_user": 22.0, "reg_item": 36.0},
            {"alpha": 3.33, "reg_user": 40.0, "reg_item": 60.0, "reg_exponent": 0.5},
            {"alpha": 8.0, "reg_user": 100.0, "reg_item": 30.0, "reg_exponent": 0.0},
            {"alpha": 3.33, "prox": 3.0},
            {"alpha": 3.33, "prox": 30.0},
        )
    ),
]


def split(name, options):
    """Training rows, test rows and their negatives."""
    if name == "1m":
        X, _, test, negatives = leave_one_out(options)
        return X, test, negatives
    X, _, validation, test = chronological(options)
    return X, test, drawn_negatives(np.concatenate([X, validation, test]), test)


def fitted(model, X, seed):
    """The model fitted to positives, with all its seeds set."""
    model = clone(model)
    seeded = [name for name in model.get_params() if name.split("__")[-1] == "random_state"]
    return model.set_params(**dict.fromkeys(seeded, seed)).fit(X)


def quality(options):
    """HR@10 and NDCG@10 on test rows."""
    print("| data | model | HR@10 | NDCG@10 | weights |\n|---|---|---|---|---|", flush=True)
    for name in options.data:
        X, test, negatives = split(name, options)
        for label, model in MODELS.items():
            if options.only and label not in options.only:
                continue
            fits = [fitted(model, X, seed) for seed in reported(options.seeds, 10)]
            scores = np.mean([hits(one, test, negatives) for one in fits], axis=0)
            weights = " and ".join(
                ", ".join(f"{weight:.1f}" for weight in one.weights_)
                for one in fits
                if hasattr(one, "weights_")
            )
            cells = f"{scores[0]:.4f} | {scores[1]:.4f} | {weights}"
            print(f"| {name} | {label} | {cells} |", flush=True)


def choices(options):
    """Neighbours of the defaults, on a row of each user cut from the training rows."""
    print("| validation rows of | model | HR@10 | NDCG@10 |\n|---|---|---|---|", flush=True)
    for name in options.data:
        X, _, _ = split(name, options)
        inner, _, validation = last_but_one(X, X[:, 0])
        negatives = drawn_negatives(X, validation, seed=1)
        for model, grid in CHOICES.items():
            for changed in grid:
                one = fitted(clone(model).set_params(**changed), inner, 0)
                hr, ndcg = hits(one, validation, negatives)
                label = f"{type(model).__name__} {changed or 'as it is'}"
                print(f"| {name} | {label} | {hr:.4f} | {ndcg:.4f} |", flush=True)


def scaled(options):
    """Neighbours of LocALS with scaled penalties, on a row of each user cut from training rows."""

    def fresh(model, seed, options):
        return clone(model).set_params(random_state=0)

    list_choices({"LocALS": SCALED}, {"LocALS": SCALED_CHOICES}, options, fresh)


def weights(options):
    """The best weights of the three parts' sum, on rows that no part was fitted to."""
    X, _, _ = split("1m", options)
    searches = [fitted(searched(THREE), X, seed).search_results_ for seed in range(options.seeds)]
    scores = np.array([one["score"] for one in searches])
    mean = scores.mean(axis=0)
    print("| FedEASE, FedSpectral, LocALS | NDCG@10, mean |" + options.seeds * " one search |")
    print("|---|---|" + options.seeds * "---|")
    alone = np.flatnonzero(searches[0]["weights"].max(axis=1) == 1)
    for candidate in (*np.argsort(-mean)[:8], *alone):
        label = ", ".join(f"{weight:.1f}" for weight in searches[0]["weights"][candidate])
        cells = " | ".join(f"{score:.4f}" for score in (mean[candidate], *scores[:, candidate]))
        print(f"| {label} | {cells} |")


def solvers(options):
    """LocALS whose clients find their users' vectors exactly, and by conjugate gradients."""

    def fresh(model, seed, options):
        return clone(model).set_params(random_state=0)

    models = {
        f"LocALS, {model.n_factors} factors, {how}": with_constants(LocALS, EXACT_UP_TO=limit)(
            **model.get_params(deep=False)
        )
        for model in (LOCALS, SCALED)
        for how, limit in {"exactly": 192, "conjugate gradients": 0}.items()
    }
    few_rounds = [{}, {"n_rounds": 5}]
    list_choices(models, dict.fromkeys(models, few_rounds), options, fresh)


def cost(options):
    """CPU seconds of a fit, and bytes per client."""
    print("| data | model | CPU s | kB up | kB down |\n|---|---|---|---|---|", flush=True)
    for name in options.data:
        X, _, _ = split(name, options)
        models = {
            "FedEASE": FedEASE(),
            'FedEASE, upload="all", download="all"': FedEASE(upload="all", download="all"),
            "FedSpectral": FedSpectral(),
            "LocALS": LOCALS,
        }
        for label, model in models.items():
            fitted(model, X[:2000], 10)
            start = time.process_time()
            ledger = fitted(model, X, 10).communication_
            taken = time.process_time() - start
            up, down = (
                total / len(ledger.client_ids) / 1000
                for total in (ledger.bytes_up, ledger.bytes_down)
            )
            print(f"| {name} | {label} | {taken:.1f} | {up:,.0f} | {down:,.0f} |", flush=True)


def main(argv=None):
    """Run one of the benchmarks."""
    commands = {f.__name__: f for f in (quality, choices, scaled, weights, solvers, cost)}
    parser = command_line("ranking", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data", nargs="+", default=["100k", "1m"], choices=["100k", "1m"])
    parser.add_argument("--data-home")
    parser.add_argument("--only", nargs="+", default=[], choices=MODELS)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
