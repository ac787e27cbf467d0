"""Rankings under central privacy: ``python -m benchmarks.private_rankings COMMAND``.

All ratings are positives. Each client has one user and is protected as a whole: whether it takes
part changes what the server publishes by (epsilon, delta) at most, with delta 1e-5. Seeds are those
of the models and of the noise.

`lists`: precision@10 and NDCG@10 over the full catalogue, each user's rows split 80/20 at random
(seed 1); popularity is not private. `choices`: the same for other settings, on a fifth of the
training rows (seed 2000). `audit`: what an attack on FedEASE's sum proves about epsilon, on the
300 movies of MovieLens-100k with the most ratings, see `fedrecsk.audit.audit_privacy`. `privrec`:
a user's last row among 99 given items that it has not rated; HR@10 and NDCG@10. `settings`: server
steps of PrivRec, on a random training row of each user. `epsilon`: PrivRec's epsilon by sampling
and by accountant.

Data: MovieLens-1M, for `audit` MovieLens-100k, in the folder --data-home or FEDRECSK_DATA.
`privrec` and `settings` also need the leave-one-out files of MovieLens-1M of He et al. (2017) in
this folder.
"""

from __future__ import annotations

import time
from unittest import mock

import numpy as np
from sklearn.base import clone

from benchmarks import fedals
from benchmarks._command_line import command_line
from benchmarks._seeds import choosing, reported
from benchmarks.lightfr import drawn_negatives, hits, last_but_one, leave_one_out
from fedrecsk import FCF, FedEASE, Federation, FedSpectral, LocALS, Popularity, PrivRec
from fedrecsk.audit import audit_privacy
from fedrecsk.datasets import fetch_movielens
from fedrecsk.federated import _gram
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.privacy import CentralDP

# Settings that `choices` prefers: of a method, and of its clipping.
PRIVATE = {
    "FedSpectral": (FedSpectral(alpha=1.0, reg_user=100.0), {}),
    "FedSpectral, as it is": (FedSpectral(), {}),
    "FedEASE": (FedEASE(), {}),
    "FCF": (FCF(n_rounds=20), {}),
    # Fewer factors suit noise.
    "LocALS": (LocALS(n_factors=20, n_rounds=4, upload="all"), {"clip": 0.1}),
}
CHOICES = {
    "FedSpectral": [
        {},
        {"alpha": 4.0, "reg_user": 30.0},
        {"alpha": 4.0},
        {"reg_user": 30.0},
        {"reg_user": 200.0},
        {"n_factors": 32},
    ],
    "FedEASE": [
        {},
        {"LEAST_SHARE": 2 / 3},
        {"LEAST_SHARE": 2.0},
        {"setup_share": 0.05},
        {"setup_share": 0.2},
        {"reg": 10.0},
        {"reg": 40.0},
    ],
    "FCF": [{}, {"clip": 0.1}, {"clip": 10.0}, {"n_rounds": 10}, {"n_factors": 10}],
    "LocALS": [{}, {"clip": 0.03}, {"clip": 1.0}, {"n_rounds": 8}, {"n_factors": 10}],
}
# Of the paper: a cohort of 60 % by chance, 50 rounds, a clip of 50, as much noise.
PAPER = {"fraction": 0.6, "rounds": 50, "noise": 1.0, "delta": 1e-5}


def lists(options):
    """Precision@10 and NDCG@10 on test rows at several epsilons."""
    train, test = fedals.split(_rows(options), 1)
    chance = _quality(Popularity().fit(train), test)
    print("| epsilon | model | precision@10 | NDCG@10 | +- | of popularity's | CPU s |")
    print("|---|---|---|---|---|---|---|")
    print(f"| not private | popularity | {chance[0]:.4f} | {chance[1]:.4f} | | 1 | |", flush=True)
    for epsilon in options.epsilons:
        for label, (model, dp) in PRIVATE.items():
            if options.only and label not in options.only:
                continue
            runs, start = [], time.process_time()
            for seed in reported(options.seeds):
                one = _private(model, train, epsilon, seed, **dp)
                runs.append(_quality(one, test))
            seconds = (time.process_time() - start) / len(runs)
            mean, spread = np.mean(runs, axis=0), np.std(runs, axis=0).max()
            print(
                f"| {epsilon:g} | {label} | {mean[0]:.4f} | {mean[1]:.4f} | {spread:.4f} "
                f"| {mean[0] / chance[0]:.2f} | {seconds:.0f} |",
                flush=True,
            )


def choices(options):
    """Neighbours of the settings, on validation rows cut from the training rows."""
    train, _ = fedals.split(_rows(options), 1)
    inner, validation = fedals.split(train, choosing(1)[0])
    print("| epsilon | model | precision@10 | NDCG@10 |\n|---|---|---|---|", flush=True)
    for epsilon in options.epsilons:
        for label, grid in CHOICES.items():
            if options.only and label not in options.only:
                continue
            model, dp = PRIVATE[label]
            for changed in grid:
                of_noise = {"clip", "setup_share"} & changed.keys()
                own = {k: v for k, v in changed.items() if k.islower() and k not in of_noise}
                more = {k: changed[k] for k in of_noise}
                one = clone(model).set_params(**own)
                constants = {k: v for k, v in changed.items() if k.isupper()}
                with mock.patch.dict(vars(_gram), constants):
                    one = _private(one, inner, epsilon, choosing(1)[0], **dp | more)
                found = " | ".join(f"{value:.4f}" for value in _quality(one, validation))
                print(f"| {epsilon:g} | {label} {changed or ''} | {found} |", flush=True)


def audit(options):
    """The epsilon that an attack on the released sum proves to be the least, by fits' seeds."""
    X = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)[0][:, :2]
    items, counts = np.unique(X[:, 1], return_counts=True)
    items = np.sort(items[np.argsort(-counts, kind="stable")[:300]])
    X = X[np.isin(X[:, 1], items)]
    print("| promised | canaries | proved, mean | largest |\n|---|---|---|---|", flush=True)
    for epsilon in options.epsilons:
        private = Federation(central_dp=CentralDP(epsilon=epsilon))
        model = FedEASE(items=items, federation=private)
        audits = [
            audit_privacy(model.set_params(random_state=seed), X, random_state=seed)
            for seed in reported(options.seeds)
        ]
        proved = [one.lower_bound for one in audits]
        print(
            f"| {epsilon:g} | {audits[0].n_canaries} | {np.mean(proved):.2f} "
            f"| {np.max(proved):.2f} |",
            flush=True,
        )


def privrec(options):
    """PrivRec without noise, and with the paper's noise."""
    X, _, test, negatives = leave_one_out(options)
    print("| clip | epsilon | HR@10 | NDCG@10 | CPU s |\n|---|---|---|---|---|", flush=True)
    print(
        "| popularity | | {:.4f} | {:.4f} | |".format(*hits(Popularity().fit(X), test, negatives))
    )
    for clip in (None, 2.0, 50.0):
        scores, start = [], time.process_time()
        for seed in reported(options.seeds):
            model = PrivRec(random_state=seed, items=np.unique(X[:, 1]))
            if clip is not None:
                dp = CentralDP(clip=clip, noise_multiplier=PAPER["noise"], delta=PAPER["delta"])
                model.set_params(federation=Federation(central_dp=dp, sampling="poisson"))
            model.fit(X)
            scores.append(hits(model, test, negatives))
        hr, ndcg = np.mean(scores, axis=0)
        epsilon = model.privacy_.epsilon
        seconds = (time.process_time() - start) / len(scores)
        print(f"| {clip} | {epsilon:.1f} | {hr:.4f} | {ndcg:.4f} | {seconds:.0f} |", flush=True)


def settings(options):
    """Step sizes of PrivRec's server, on validation rows, without noise."""
    X, _, test, _ = leave_one_out(options)
    inner, _, validation = last_but_one(X, X[:, 0])
    negatives = drawn_negatives(np.concatenate([X, test]), validation, seed=1)
    print("| server_learning_rate | HR@10 | NDCG@10 |\n|---|---|---|", flush=True)
    for rate in (1.0, 5.0, 20.0):
        model = PrivRec(server_learning_rate=rate, random_state=choosing(1)[0]).fit(inner)
        hr, ndcg = hits(model, validation, negatives)
        print(f"| {rate:g} | {hr:.4f} | {ndcg:.4f} |", flush=True)


def epsilon(options):
    """The epsilon of the paper's setting, 35.6, by sampling and accountant."""
    print("| cohorts | neighbours | accountant | epsilon |\n|---|---|---|---|")
    for labels, value in epsilons().items():
        print(f"| {' | '.join(labels)} | {value:.2f} |", flush=True)


def epsilons():
    """Epsilon by cohorts, neighbouring relation and accountant, as dp-accounting computes it."""
    from dp_accounting import (
        GaussianDpEvent,
        NeighboringRelation,
        PoissonSampledDpEvent,
        SampledWithoutReplacementDpEvent,
        SelfComposedDpEvent,
    )
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    noise, share, n_clients = GaussianDpEvent(PAPER["noise"]), PAPER["fraction"], 6_040
    by_chance = PoissonSampledDpEvent(share, noise)
    fixed = SampledWithoutReplacementDpEvent(n_clients, int(share * n_clients), noise)
    one_more, replaced = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE

    def spent(accountant, event):
        return accountant.compose(SelfComposedDpEvent(event, PAPER["rounds"]))

    def by(accountant, event):
        return spent(accountant, event).get_epsilon(PAPER["delta"])

    orders = np.arange(2, 64)
    # Mironov, CSF 2017, proposition 3.
    renyi = np.asarray(spent(RdpAccountant(orders), by_chance)._rdp)
    of_2017 = np.min(renyi + np.log(1 / PAPER["delta"]) / (orders - 1))
    chance, everyone = ("by chance", "one client more"), ("all clients", "one client more")
    return {
        (*chance, "RDP of whole orders, conversion of 2017"): float(of_2017),
        (*chance, "RDP of whole orders"): by(RdpAccountant(orders), by_chance),
        (*chance, "PLD"): by(PLDAccountant(one_more), by_chance),
        ("of fixed size", "one client replaced", "RDP of whole orders"): by(
            RdpAccountant(orders, replaced), fixed
        ),
        (*everyone, "RDP"): by(RdpAccountant(), noise),
        (*everyone, "PLD"): by(PLDAccountant(one_more), noise),
    }


def _rows(options):
    return fetch_movielens("1m", data_home=options.data_home, return_X_y=True)[0][:, :2]


def _quality(model, X):
    """Precision@10 and NDCG@10 on held-out rows."""
    found = evaluate_ranking(model, X, metrics=("precision", "ndcg"), k=10)
    return found["precision@10"], found["ndcg@10"]


def _private(model, X, epsilon, seed, **dp):
    private = Federation(central_dp=CentralDP(epsilon=epsilon, **dp))
    items = np.unique(X[:, 1])
    return clone(model).set_params(items=items, random_state=seed, federation=private).fit(X)


def main(argv=None):
    """Run one of the benchmarks."""
    commands = {f.__name__: f for f in (lists, choices, audit, privrec, settings, epsilon)}
    parser = command_line("private_rankings", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data-home")
    parser.add_argument(
        "--epsilons", nargs="+", type=float, default=[10.0, 3.0, 1.0], help="epsilons to compare"
    )
    parser.add_argument("--only", nargs="+", default=[], choices=PRIVATE)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
