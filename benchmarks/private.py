"""User-level differential privacy of ratings: ``python -m benchmarks.private COMMAND``.

Every user is a client; delta is 1e-5, and neighbouring data sets differ by one user. All clients
take part in each round. The scale is public; the catalogue, which is made of the items that anybody
has rated, is taken to be. `ratings` uses the 80/20 split with seed 0, as ``benchmarks.rfrec`` does,
and several seeds of the noise.

`tune` chooses the constants of PrivFedEB on validation rows: a fifth of the training part of
MovieLens-1M. It looks at them without noise, so an epsilon on MovieLens-1M does not cover what the
constants say about its ratings. Nothing was chosen on MovieLens-100k.

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from unittest import mock

import numpy as np
from sklearn.base import clone
from sklearn.metrics import root_mean_squared_error

from benchmarks._command_line import Parser, command_line
from benchmarks._seeds import choosing, reported
from benchmarks._timing import Stopwatch
from benchmarks.rfrec import split
from fedrecsk import BiasOnly, FedEB, Federation, PrivFedEB
from fedrecsk.audit import _membership, audit_privacy, measure_membership
from fedrecsk.datasets import fetch_movielens
from fedrecsk.federated import _privfedeb_server, fedeb, privfedeb
from fedrecsk.privacy import CentralDP

EPSILONS = (10, 3, 1)
SPLIT, VALIDATION = 0, 1
# What `tune` tries instead of each constant. The class has INIT_STD, its modules the others.
GRID = {
    "BIAS_VARIANCE": (0.15, 0.4),
    "VECTOR_VARIANCE": (0.01, 0.04),
    "USER_SQUARE": (0.25, 0.5),
    "EMPHASIS": (1.0, 2.0),
    "POWER": (0.01, 0.125, 0.5),
    "TASTE": (0.0, 0.07, 0.28),
    "NEW": (0.3, 1.0),
    "FLOOR": (0.0625, 0.5),
    "LARGEST": (1.0, 1.5, 3.0),
    "SHRINKAGE": (1.0, 6.0),
    "ROUNDS": (7, 14),
    "FEW_ROUNDS": (3, 8),
    "INIT_STD": (0.0125, 0.05),
}


def ratings(options):
    """Test RMSE by epsilon; noise by the server and by the clients (--only server, clients)."""
    print("| data | model | noise by | epsilon | rounds | factors | RMSE | +- | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in options.data:
        items, part = _parts(name, options)[:2]
        features = _features(name, items, options)
        public = {
            "biases only": BiasOnly(),
            "FedEB": FedEB(client_fraction=0.1),
            "PrivFedEB": PrivFedEB(items=items, rating_scale=(1, 5)),
        }
        for label, model in public.items():
            if not options.only:
                _report(name, label, "-", "inf", [_run(model, part, 0, options)])
        for noise in options.only or ("server", "clients"):
            for epsilon in (20, *EPSILONS):
                model = _private(items, epsilon, noise, item_features=features)
                seeds = reported(options.seeds)
                runs = [_run(model, part, seed, options) for seed in seeds]
                _report(name, "PrivFedEB", noise, epsilon, runs)


def factors(options):
    """Validation RMSE by number of factors, for all users and for some of them."""
    numbers = (0, 1, 2, 3, 4, 6, "auto")
    print("| users | epsilon |" + "".join(f" {d} |" for d in numbers))
    print("|---|---|" + "---|" * len(numbers))
    items, _, part = _parts("1m", options)
    users = np.unique(part[0][:, 0])
    order = np.random.default_rng(0).permutation(len(users))
    for n in (len(users), 3000, 1500):
        some = _of_users(part, users[order[:n]])
        for epsilon in EPSILONS:
            row = [_mean(_private(items, epsilon, n_factors=d), some, options) for d in numbers]
            print(f"| {n} | {epsilon} | " + " | ".join(f"{x:.4f}" for x in row) + " |", flush=True)


def cohorts(options):
    """Validation RMSE of cohorts of 100, 30 and 10 %, drawn independently or in turn."""
    print("| clients per round | sampling | epsilon | rounds | factors | RMSE |")
    print("|---|---|---|---|---|---|")
    items, _, part = _parts("1m", options)
    settings = [(1.0, "auto"), (0.3, "poisson"), (0.1, "poisson"), (0.3, "rotating")]
    for share, sampling in settings:
        for epsilon in EPSILONS[:2]:
            model = _private(items, epsilon, client_fraction=share)
            model.set_params(federation__sampling=sampling)
            runs = [_run(model, part, seed, options) for seed in choosing(options.seeds)]
            fitted, error = runs[0][0], np.mean([run[1] for run in runs])
            print(
                f"| {share:.0%} | {sampling} | {epsilon} | {fitted.n_rounds_} "
                f"| {_n_factors(fitted)} | {error:.4f} |",
                flush=True,
            )


def membership(options):
    """What the final model shows about who was in its data: LiRA with 8 models, seed 0."""
    print("| data | epsilon | advantage | AUC | found at 1 % false alarms |")
    print("|---|---|---|---|---|")
    for name in options.data:
        X, y = fetch_movielens(name, data_home=options.data_home, return_X_y=True)
        items = np.unique(X[:, 1])
        for epsilon in (np.inf, *EPSILONS):
            model = _private(items, epsilon)
            if epsilon == np.inf:
                model.set_params(federation=None)
            found = measure_membership(model, X, y, n_models=8, random_state=0)
            print(
                f"| {name} | {epsilon:g} | {found.advantage:.3f} | {found.auc:.3f} "
                f"| {found.tpr_at_1_fpr:.3f} |",
                flush=True,
            )


def audit(options):
    """Audits of each promise: the epsilons that an attack on the sums proves to be the least.

    "provable" is what it would prove if it found every canary and raised no false alarm.
    """
    print("| data | noise by | promised | provable | proved, mean | largest | above the promise |")
    print("|---|---|---|---|---|---|---|")
    for name in options.data:
        items, (X, y, *_) = _parts(name, options)[:2]
        features = _features(name, items, options)
        for noise in options.only or ("server", "clients"):
            for epsilon in EPSILONS:
                model, seeds = (
                    _private(items, epsilon, noise, item_features=features),
                    reported(options.seeds),
                )
                audits = [
                    audit_privacy(
                        clone(model).set_params(random_state=seed),
                        X,
                        y,
                        n_canaries=options.canaries,
                        random_state=seed,
                    )
                    for seed in seeds
                ]
                proved = np.array([one.lower_bound for one in audits])
                print(
                    f"| {name} | {noise} | {epsilon} | {provable(options.canaries):.1f} "
                    f"| {proved.mean():.2f} | {proved.max():.2f} "
                    f"| {(proved > epsilon).sum()} of {len(proved)} |",
                    flush=True,
                )


def provable(n_canaries, delta=1e-5, confidence=0.95):
    """Return the largest epsilon that an audit with this many canaries can prove."""
    found, missed = np.ones(n_canaries), np.zeros(n_canaries)
    return _membership._lower_bound(found, missed, delta, 1 - confidence)[0]


def tune(options):
    """Validation RMSE with each constant changed alone, at equal numbers of factors."""
    print("| constant | value |" + "".join(f" epsilon {e} |" for e in EPSILONS) + " mean |")
    print("|---|---|" + "---|" * (len(EPSILONS) + 1))
    items, _, part = _parts("1m", options)
    widths = {
        epsilon: _n_factors(_run(_private(items, epsilon), part, 0, options)[0])
        for epsilon in EPSILONS
    }
    changes = [("-", "-", {})]
    changes += [(name, value, {name: value}) for name in GRID for value in GRID[name]]
    for name, value, changed in changes:
        if options.only and name not in options.only:
            continue
        row = []
        for epsilon in EPSILONS:
            with ExitStack() as stack:
                model = _private(items, epsilon, n_factors=widths[epsilon])
                for constant, number in changed.items():
                    _change(constant, number, model, stack)
                row.append(_mean(model, part, options))
        values = " | ".join(f"{x:.4f}" for x in [*row, np.mean(row)])
        print(f"| {name} | {value} | {values} |", flush=True)


def features(options):
    """`ratings` with the movies' genres and years as item_features."""
    options.features = Parser.options["features"] = True
    ratings(options)


def _change(name, value, model, stack):
    """Give a parameter or constant another value, the constant as long as the stack is open."""
    if name in model.get_params():
        model.set_params(**{name: value})
        return
    for module in (_privfedeb_server, privfedeb, PrivFedEB):
        if hasattr(module, name):
            stack.enter_context(mock.patch.object(module, name, value))


def _private(items, epsilon, noise="server", **parameters):
    federation = Federation(central_dp=CentralDP(epsilon=epsilon, noise=noise))
    return PrivFedEB(items=items, rating_scale=(1, 5), federation=federation, **parameters)


def _parts(name, options):
    """The catalogue, the split that is reported, and the split that constants are chosen on."""
    X, y = fetch_movielens(name, data_home=options.data_home, return_X_y=True)
    part = split(X, y, SPLIT)
    return np.unique(X[:, 1]), part, split(*part[:2], VALIDATION)


def _features(name, items, options):
    """The items' genres and years with --features, else None."""
    if not options.features:
        return None
    films = fetch_movielens(name, features=True, data_home=options.data_home)
    return films.item_features.reindex(items).fillna(0)


def _of_users(part, users):
    """The rows of some users, in both parts of a split."""
    X, y, X_test, y_test = part
    kept, kept_test = np.isin(X[:, 0], users), np.isin(X_test[:, 0], users)
    return X[kept], y[kept], X_test[kept_test], y_test[kept_test]


def _mean(model, part, options):
    """Mean RMSE over the seeds for choosing."""
    return np.mean([_run(model, part, seed, options)[1] for seed in choosing(options.seeds)])


def _run(model, part, seed, options):
    """The fitted model, its test RMSE and its seconds."""
    X, y, X_test, y_test = part
    model = clone(model)
    if "random_state" in model.get_params():
        model.set_params(random_state=seed, n_jobs=options.n_jobs)
    watch = Stopwatch(time.process_time)
    model.fit(X, y)
    seconds = watch.seconds()
    return model, root_mean_squared_error(y_test, model.predict(X_test)), seconds


def _n_factors(model):
    """How many factors a model has learned."""
    known = (privfedeb if isinstance(model, PrivFedEB) else fedeb).TASTES
    if getattr(model, "item_features", None) is not None:
        known += privfedeb.DIRECTIONS
    if isinstance(model, PrivFedEB) and hasattr(model, "implicit_factors_"):
        known += privfedeb.MOST + 1
    return model.item_factors_.shape[1] - known if hasattr(model, "item_factors_") else 0


def _report(name, label, noise, epsilon, runs):
    models, errors, seconds = zip(*runs, strict=True)
    n_rounds = getattr(models[0], "n_rounds_", "-")
    widths = ", ".join(map(str, sorted({_n_factors(model) for model in models})))
    print(
        f"| {name} | {label} | {noise} | {epsilon} | {n_rounds} | {widths} "
        f"| {np.mean(errors):.4f} | {np.std(errors):.4f} | {np.mean(seconds):.1f} |",
        flush=True,
    )


COMMANDS = (ratings, features, factors, cohorts, membership, audit, tune)


def main(argv=None):
    """Run one of the benchmarks."""
    commands = {function.__name__: function for function in COMMANDS}
    parser = command_line("private", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data", nargs="+", default=["100k", "1m"])
    parser.add_argument("--data-home")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--n-jobs", type=int, default=1)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--features", action="store_true", help="with genres and years")
    parser.add_argument("--canaries", type=int, default=2000, help="of an audit")
    parsed = parser.parse_args(argv)
    commands[parsed.command](parsed)


if __name__ == "__main__":
    main()
