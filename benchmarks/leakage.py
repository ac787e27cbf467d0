"""Measure what single uploads reveal on MovieLens-100k: ``python -m benchmarks.leakage``.

An honest but curious server inverts one upload, or two consecutive ones, of each of 200 clients
with one user each; see `fedrecsk.attacks.measure_leak`. The columns are the shares of user vectors
recovered, of their directions, of (client, item) pairs and of ratings; 1 means all of them and
none wrong. In brackets: the best guess that reads no upload and is the same for all clients. Under
secure aggregation the server only has the sum. "refused": the method raises an error in this
setting.

Data: MovieLens-100k, in the folder --data-home or FEDRECSK_DATA. Needs the extra
fedrecsk[privacy].
"""

from __future__ import annotations

import numpy as np
from sklearn.base import clone

from benchmarks._command_line import command_line
from fedrecsk import (
    FCF,
    CoLR,
    ExplicitFCF,
    Federation,
    FedFast,
    FedMF,
    FedRec,
    GlobSGD,
    LightFR,
    LocALS,
    LocSGD,
    RFRec,
    SCoLR,
)
from fedrecsk.attacks import measure_leak
from fedrecsk.datasets import fetch_movielens
from fedrecsk.privacy import CKKS, LaplaceMechanism

METHODS = {
    "RFRec": RFRec(rating_scale=(1, 5)),
    "FedRec": FedRec(rating_scale=(1, 5), upload="all"),
    "LocALS": LocALS(),
    'LocALS, "all"': LocALS(aggregation="all"),
    "LocSGD": LocSGD(),
    "GlobSGD": GlobSGD(),
    "FCF": FCF(),
    "ExplicitFCF": ExplicitFCF(rating_scale=(1, 5)),
    "LightFR": LightFR(),
    "LightFR, the paper's gradients": LightFR(aggregation="gradient", user_bits=1),
    "LightFR, the paper's gradients of ratings": LightFR(
        aggregation="gradient", user_bits=1, targets="ratings", n_negatives=0
    ),
    "LightFR, votes": LightFR(aggregation="parameter", user_bits=1),
    "FedFast": FedFast(),
    "FedMF": FedMF(),
    "CoLR": CoLR(),
    "SCoLR": SCoLR(),
}
SETTINGS = {
    "plaintext": Federation(),
    "local DP, clip .2, scale .04": Federation(local_dp=LaplaceMechanism(0.2, 0.04)),
    # Integers and LocSGD's second uploads are too large for the smaller modulus.
    "secure aggregation": Federation(secure_aggregation=CKKS(8192, (60, 60, 60))),
}


def main(argv=None):
    """Print the table."""
    parser = command_line("leakage", __doc__)
    parser.add_argument("--data-home")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    options = parser.parse_args(argv)
    X, y = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)
    items = np.unique(X[:, 1])
    print("| method | setting | uploads | vectors | directions | interactions | ratings |")
    print("|---|---|---|---|---|---|---|")
    for method in options.methods:
        estimator = METHODS[method]
        for setting, federation in SETTINGS.items():
            for n_rounds in (1, 2):
                row = f"| {method} | {setting} | {n_rounds} |"
                model = clone(estimator).set_params(
                    federation=federation, items=items, random_state=0
                )
                whole_matrices(model)
                try:
                    report = measure_leak(
                        model, X[:, :2], y, n_rounds=n_rounds, max_clients=options.clients
                    )
                except ValueError as error:
                    known = ("local_dp", "secure_aggregation", 'upload="all"')
                    if not any(reason in str(error) for reason in known):
                        raise
                    print(f"{row} refused | | | |", flush=True)
                    continue
                shares = (
                    f"{getattr(report, name):.3f} ({chance:.3f})"
                    for name, chance in report.chance.items()
                )
                print(row, " | ".join(shares), "|", flush=True)


def whole_matrices(model):
    """Secure sums need every client to send the same rows."""
    if model.federation.secure_aggregation is None:
        return
    if "upload" in model.get_params():
        model.set_params(upload="all")


if __name__ == "__main__":
    main()
