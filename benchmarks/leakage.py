"""Measure what uploads, sums and models reveal: ``python -m benchmarks.leakage COMMAND``.

`uploads`: an honest but curious server inverts uploads of clients with one user each, or secure
sums of them; see `fedrecsk.audit.measure_leak`. The columns are the shares of user vectors
recovered, of their directions, the median |cosine|, the shares of (client, item) pairs and of
ratings; 1 means all of them and none wrong. In brackets: the best guess that reads no upload
and is the same for all clients. The last column says how many clients were isolated from sums.
"refused": the method raises an error in this setting. FedNCF, PFedRec, FedRAP and GPFedRec need
the extra torch.

`silos`: the same of clients with many users, from one upload of each silo or one masked sum of all:
the shares of pairs of silo and item, of users isolated in part, of their vectors, of pairs of user
and item, and the AUC of the decision whether a person is a user of the silo.

`membership`: whether the final model alone shows which users, or which rows, it was trained on;
see `fedrecsk.audit.measure_membership`.

Data: MovieLens-100k, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import time
import warnings
from importlib.util import find_spec

import numpy as np
from sklearn.base import clone

from benchmarks._command_line import command_line
from fedrecsk import (
    FCF,
    CoLR,
    ExplicitFCF,
    FedEASE,
    FedEB,
    Federation,
    FedFast,
    FedMF,
    FedRec,
    GlobSGD,
    LightFR,
    LocALS,
    LocSGD,
    Popularity,
    RFRec,
    RFRecF,
    SCoLR,
    SemiDFEGL,
)
from fedrecsk.audit import measure_leak, measure_membership
from fedrecsk.datasets import fetch_movielens
from fedrecsk.privacy import LaplaceMechanism

METHODS = {
    "RFRec": RFRec(rating_scale=(1, 5)),
    "RFRecF": RFRecF(rating_scale=(1, 5)),
    "FedRec": FedRec(rating_scale=(1, 5), upload="all"),
    "FedEB": FedEB(rating_scale=(1, 5), upload="all"),
    "LocALS": LocALS(upload="all"),
    'LocALS, "all"': LocALS(aggregation="clients", upload="all"),
    "LocSGD": LocSGD(upload="all"),
    "GlobSGD": GlobSGD(upload="all"),
    "FCF": FCF(upload="all"),
    "ExplicitFCF": ExplicitFCF(rating_scale=(1, 5), upload="all"),
    "LightFR": LightFR(),
    "LightFR, the paper's gradients": LightFR(aggregation="gradient", user_bits=1),
    "LightFR, the paper's gradients of ratings": LightFR(
        aggregation="gradient", user_bits=1, targets="ratings", n_negatives=0
    ),
    "LightFR, votes": LightFR(aggregation="parameter", user_bits=1),
    "FedFast": FedFast(),
    "SemiDFEGL": SemiDFEGL(rating_scale=(1, 5)),
    "FedMF": FedMF(),
    "CoLR": CoLR(),
    "SCoLR": SCoLR(),
    "FedEASE": FedEASE(upload="all"),
}
if find_spec("torch"):
    from fedrecsk.neural import FedNCF, FedRAP, GPFedRec, PFedRec

    METHODS |= {
        "FedNCF": FedNCF(),
        "FedNCF, squared loss": FedNCF(loss="squared"),
        "PFedRec": PFedRec(),
        "FedRAP": FedRAP(),
        "GPFedRec": GPFedRec(),
    }
# One upload a fit.
ONCE = {"FedEASE"}
# Until then their bases have shown all directions.
MANY = {"CoLR": 30, "SCoLR": 30}
SETTINGS = {
    "one upload": {"n_rounds": 1},
    "many uploads": {"n_rounds": 10},
    "sums of 5": {"n_rounds": 2, "cohort": 5},
    "sums of 60": {"n_rounds": 2, "cohort": 60},
    "sum of all": {"n_rounds": 2, "cohort": "all"},
    "two sums of a round": {"n_rounds": 1, "cohort": "all", "differences": "same round"},
    "sums of two rounds": {"n_rounds": 10, "cohort": 60, "differences": "next round"},
}
# Errors of settings that a method does not have: FedEASE has no second round.
REFUSED = ("uploaded nothing", "subtracts the sums of two rounds")
SILOS = ("LocALS", "FedEASE", "RFRec", "FedMF")
# Scale of the noise for clip 0.2, by epsilon per number.
NOISE = {10: 0.04, 1: 0.4}
JUDGED = {
    "popularity": Popularity(),
    "RFRec": RFRec(),
    "FedEB": FedEB(),
    "LocALS": LocALS(),
    "LocALS, weak penalty": LocALS(reg_user=0.1),
    "FedMF": FedMF(),
    "FedEASE": FedEASE(),
}


def uploads(options):
    """Print the table of what uploads and sums reveal."""
    X, y = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)
    X, items = X[:, :2], np.unique(X[:, 1])
    # Whether clients of a ranking method like what they rate badly makes no difference here.
    warnings.filterwarnings("ignore", "y looks like ratings")
    print(
        "| method | setting | uploads | vectors | directions | cosine | interactions | ratings | "
        "isolated |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for method in options.methods:
        model = clone(METHODS[method]).set_params(items=items, random_state=0)
        for setting in options.settings:
            parameters = dict(SETTINGS[setting])
            if setting == "many uploads":
                parameters["n_rounds"] = MANY.get(method, parameters["n_rounds"])
            if method in ONCE:
                parameters["n_rounds"] = 1
            if method == "RFRecF":
                # Its first uploads are those of rounds 1, 6 and 17.
                parameters["n_rounds"] = 18 if parameters["n_rounds"] > 1 else 2
            measured(f"{method} | {setting}", model, X, y, options, parameters)
        if method == "RFRec" and options.noise:
            for epsilon, scale in NOISE.items():
                noise = Federation(local_dp=LaplaceMechanism(0.2, scale))
                noisy = clone(model).set_params(federation=noise)
                for n_rounds in (1, 10):
                    label = f"{method} | noise, epsilon {epsilon} per number"
                    measured(label, noisy, X, y, options, {"n_rounds": n_rounds})


def measured(label, model, X, y, options, parameters):
    """Print one row."""
    row = f"| {label} | {parameters['n_rounds']} |"
    try:
        report = measure_leak(model, X, y, max_clients=options.clients, **parameters)
    except ValueError as error:
        if not any(reason in str(error) for reason in REFUSED):
            raise
        print(f"{row} refused | | | | | |", flush=True)
        return
    shares = (
        f"{getattr(report, name):.3f} ({chance:.3f})" for name, chance in report.chance.items()
    )
    isolated = f"{report.n_profiles}" if report.cohort and not report.differences else ""
    print(row, " | ".join(shares), f"| {isolated} |", flush=True)


def silos(options):
    """Print the table of what uploads of silos reveal."""
    X, y = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)
    X, names = np.asarray(X)[:, :2].astype(int), ("items", "vectors", "interactions", "membership")
    warnings.filterwarnings("ignore", "y looks like ratings")
    print("| method | silos | server sees | items | isolated | vectors | lists | membership |")
    print("|---|---|---|---|---|---|---|---|")
    for method in SILOS:
        model = clone(METHODS[method])
        if "random_state" in model.get_params():
            model.set_params(random_state=0)
        for n in (20, 3):
            for cohort, seen in ((None, "uploads"), ("all", "masked sum")):
                report = measure_leak(model, X, y, clients=X[:, 0] % n, cohort=cohort)
                items, *others = (
                    f"{getattr(report, name):.3f} ({report.chance[name]:.3f})" for name in names
                )
                isolated = f"{report.n_profiles / report.n_users:.3f}"
                cells = " | ".join([items, isolated, *others])
                print(f"| {method} | {n} | {seen} | {cells} |", flush=True)


def membership(options):
    """Print the table of what final models reveal about who was in their training data."""
    X, y = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)
    print("| method | target | targets | advantage | AUC | TPR at 1 % FPR | seconds |")
    print("|---|---|---|---|---|---|---|")
    for name in options.judged:
        for level in ("user", "pair"):
            begin = time.perf_counter()
            report = measure_membership(
                JUDGED[name],
                X[:, :2],
                y,
                level=level,
                n_models=options.models,
                random_state=0,
            )
            print(
                f"| {name} | {level} | {report.n_targets} | {report.advantage:.3f} | "
                f"{report.auc:.3f} | {report.tpr_at_1_fpr:.3f} | "
                f"{time.perf_counter() - begin:.0f} |",
                flush=True,
            )


def main(argv=None):
    """Run a command."""
    commands = {"uploads": uploads, "silos": silos, "membership": membership}
    parser = command_line("leakage", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data-home")
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--noise", action="store_true", help="RFRec with local noise, too")
    parser.add_argument("--judged", nargs="+", default=list(JUDGED), choices=JUDGED)
    parser.add_argument("--models", type=int, default=16, help="number of models to fit")
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
