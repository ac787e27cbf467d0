"""How `FederatedSearch` decides: ``python -m benchmarks.search_rules private|cuts``.

`private`: what the noise of the scores costs at epsilon 1 for all scores together. All 27
candidates of `benchmarks.search` are trained until the last cut, without noise. 200 times, noise
is added to the scores that clients send, and the candidates are cut by them. The table has the
standard deviation of the noise on a score in units of the metric; what the winner loses in the test
score of its whole fit to the best of the 27, and to the defaults; how often this is at most 0.005;
and what it loses without noise.

`cuts`: rules for cutting candidates, compared on validation rows, which no reported split tests:
--candidates random settings of RFRec, each fitted for all rounds with a curve of its losses on rows
that clients hold out. 300 times, 26 of them and the defaults are cut by each rule. The table has
what the winner's whole fit loses in RMSE to that of the best of the 27, and to that of the
defaults, and the share of the bytes of 27 fits.

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import numpy as np
from sklearn.base import clone

import fedrecsk
from benchmarks import rfrec
from benchmarks._command_line import command_line
from benchmarks._seeds import choosing, reported
from benchmarks.search import GRID, RATINGS, megabytes, parts, score, searched
from fedrecsk._utils.threads import Threads
from fedrecsk.datasets import fetch_movielens
from fedrecsk.privacy.accounting import Event, noise_for
from fedrecsk.protocol.evaluation import Metric
from fedrecsk.selection._evaluate import _rows_held_out
from fedrecsk.selection._search import _Simulated

N_DRAWS, WITHIN, DELTA = 200, 0.005, 1e-5


def curves(search, train):
    """Return candidates' sums of the clients' bounded scores after each rung, and what they are."""
    X, y = train
    given = {"X": X, "y": y, "clients": None, "sample_weight": None}
    candidates = [_Simulated(*one) for one in search._draw()[1]]
    rungs, name = search._prepare(candidates, given)
    metric, most, sums = Metric.of(name), 1.0, np.zeros((len(candidates), len(rungs)))
    if not metric.greater_is_better:
        low, high = candidates[0].data.rating_range
        most = (high - low) / 2
    with Threads(search.n_jobs) as parallel:
        for place, one in enumerate(candidates):
            one.loop.parallel = parallel
            one.loop.set_up()
            for number, rung in enumerate(rungs):
                while one.loop.server.round < rung:
                    one.loop.round()
                model = one.model_now()
                model._run = one.loop
                sums[place, number] = total(metric, most, *_rows_held_out(model), one.loop.server)
            one.loop = None
    n_clients = candidates[0].data.n_clients
    return [one.params for one in candidates], sums, n_clients, metric, most


def total(metric, most, rows, model, server):
    """Return the sum of the clients' own scores, in [0, 1]."""
    given = rows.held_out, rows.clients, rows.codes, server.key
    (found,) = server.scoring.measure(model, *given).values()
    sums, weights = found[found[:, 1] > 0].T
    return np.minimum(sums / weights / metric.unit(most), 1).sum()


def cut(scores, rng, noise):
    """Return the candidate that is left if scores have noise; greater is better."""
    alive = np.arange(len(scores))
    for rung in range(scores.shape[1]):
        now = scores[alive, rung] + noise * rng.standard_normal(len(alive))
        kept = alive[np.argsort(-now, kind="stable")]
        kept = kept[: 1 if rung == scores.shape[1] - 1 else -(-len(alive) // 3)]
        if len(kept) > 1 and 0 not in kept:
            kept[-1] = 0
        alive = kept
    return alive[0]


def private(options):
    """What noise on the scores costs, at epsilon 1 for all of them."""
    head = ["data, method", "clients", "noise", "lost", "95% lose less than", "to the default"]
    head += ["within 0.005", "lost without noise"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    for name in options.only:
        train, test = parts(name, options)
        search = searched(name, options)
        params, sums, n_clients, metric, most = curves(search, train)
        fits = [clone(search.estimator).set_params(**one).fit(*train) for one in params]
        sign = -1 if name in RATINGS else 1
        found = sign * np.array([score(name, fit, *test) for fit in fits])
        # 27, 9 and 3 scores.
        n_scores = sum(-(-len(params) // 3**number) for number in range(sums.shape[1]))
        noise = np.sqrt(n_scores) * noise_for([Event("gaussian", 1.0)], options.epsilon, DELTA)
        rng = np.random.default_rng(0)
        winners = [cut(sign * sums, rng, noise) for _ in range(N_DRAWS)]
        lost = found.max() - found[winners]
        share = noise / n_clients
        if not metric.greater_is_better:
            share *= most / 2 / np.sqrt(sums[0, -1] / n_clients)
        cells = [f"MovieLens-{options.data}, {name}", str(n_clients), f"{share:.4f}"]
        cells += [f"{lost.mean():.4f}", f"{np.quantile(lost, 0.95):.4f}"]
        cells += [f"{found[0] - found[winners].mean():.4f}", f"{np.mean(lost <= WITHIN):.0%}"]
        cells += [f"{found.max() - found[cut(sign * sums, rng, 0.0)]:.4f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def drawn(n):
    """Return n settings of RFRec, the first one with the defaults."""
    rng, settings = np.random.default_rng(5), [{}]

    def between(low, high):
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    ranges = {
        "reg_user": (0.01, 0.16),
        "reg_item": (0.01, 0.16),
        "reg_bias": (0.02, 0.28),
        "learning_rate": (0.02, 0.5),
    }
    for _ in range(n):
        setting = {name: between(*ends) for name, ends in ranges.items()}
        settings.append(setting | {"n_factors": int(rng.integers(5, 31))})
    # The draw that the defaults replace.
    return [settings[0], *settings[2:]]


def curve(setting, X, y, rows, target, n_jobs):
    """Return the losses on held-out rows by round, and RMSE and megabytes of a whole fit."""
    model = fedrecsk.RFRec(random_state=0, n_jobs=n_jobs, **setting)
    watched = clone(model).set_params(early_stopping=True, n_iter_no_change=10**6).fit(X, y)
    losses = [row["validation_loss"] for row in watched.history_]
    error = score("RFRec", model.fit(X, y), rows, target)
    return np.nan_to_num(losses, nan=np.inf), error, megabytes(model)


def winner(losses, sizes, rungs, *, keeps_default=True, decay=0.0):
    """Return the candidate that is left, and the megabytes of all until then.

    With a `decay`, the curve is continued: of each third of the logarithm of the rounds, the loss
    falls by this share of what it fell in the one before.
    """
    n_rounds, alive, cost, last = losses.shape[1], np.arange(len(losses)), 0.0, 0
    for rung in rungs:
        cost += (sizes[alive] * (rung - last) / n_rounds).sum()
        last, now = rung, losses[alive, rung - 1]
        if decay and rung < rungs[-1]:
            fall = losses[alive, max(1, round(rung / 3)) - 1] - now
            steps = np.log(rungs[-1] / rung) / np.log(3)
            now = now - fall * decay * (1 - decay**steps) / (1 - decay)
        order = alive[np.argsort(now, kind="stable")]
        kept = order[: 1 if rung == rungs[-1] else -(-len(alive) // 3)]
        if keeps_default and rung != rungs[-1] and 0 not in kept:
            kept[-1] = 0
        alive = kept
    return alive[0], cost + sizes[alive[0]] * (n_rounds - last) / n_rounds


def cuts(options):
    """What rules for cuts lose, and their bytes."""
    print("| cuts after % of the rounds | lost | at most | to the defaults, at most | bytes |")
    print("|---|---|---|---|---|", flush=True)
    X, y = fetch_movielens(options.data, data_home=options.data_home, return_X_y=True)
    X, y = np.asarray(X)[:, :2].astype(np.int64), np.asarray(y)
    (seed,) = choosing(1)
    rows = rfrec.validation(X, y, seed, reported(4))
    found = [curve(one, *rows, options.n_jobs) for one in drawn(options.candidates)]
    losses, errors, sizes = map(np.array, zip(*found, strict=True))
    rules = {
        "10, 30, 75": {"rungs": (10, 30, 75)},
        "without the defaults": {"rungs": (10, 30, 75), "keeps_default": False},
        "curve continued, decay .33": {"rungs": (10, 30, 75), "decay": 0.33},
        "curve continued, decay .5": {"rungs": (10, 30, 75), "decay": 0.5},
        "4, 12, 36": {"rungs": (4, 12, 36)},
        "10, 30": {"rungs": (10, 30)},
        "10, 30, 50": {"rungs": (10, 30, 50)},
        "10, 30, 90": {"rungs": (10, 30, 90)},
    }
    for name, rule in rules.items():
        rng, lost = np.random.default_rng(0), []
        for _ in range(300):
            own = np.r_[0, 1 + rng.choice(len(errors) - 1, 26, replace=False)]
            best, cost = winner(losses[own], sizes[own], **rule)
            error = errors[own][best]
            both = error - errors[own].min(), error - errors[0]
            lost.append([*both, cost / sizes[own].sum()])
        regret, to_default, cost = np.transpose(lost)
        shown = f"{regret.mean():.4f} | {regret.max():.4f} | {to_default.max():.4f}"
        print(f"| {name} | {shown} | {cost.mean():.3f} |", flush=True)


def main(argv=None):
    """Run the benchmark."""
    commands = {f.__name__: f for f in (private, cuts)}
    parser = command_line("search_rules", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data", choices=["100k", "1m"], default="100k")
    parser.add_argument("--data-home")
    parser.add_argument("--only", nargs="+", choices=list(GRID), default=["RFRec", "LocALS"])
    parser.add_argument("--epsilon", type=float, default=1.0, help="of all scores together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n-jobs", type=int, default=1)
    parser.add_argument("--candidates", type=int, default=81, help="settings drawn for cuts")
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
