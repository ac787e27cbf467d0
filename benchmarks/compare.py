"""Compare many methods on MovieLens-100k: ``python -m benchmarks.compare``.

RFRec, LocALS, LightFR, CoLR, PMF, SVDpp, implicit ALS and popularity with their defaults, on five
folds of each user's rows.

Data: MovieLens-100k, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import time

from benchmarks._command_line import command_line
from fedrecsk import PMF, CoLR, ImplicitALS, LightFR, LocALS, Popularity, RFRec, SVDpp
from fedrecsk.datasets import fetch_movielens
from fedrecsk.model_selection import compare

MODELS = (RFRec, LocALS, LightFR, CoLR, PMF, SVDpp, ImplicitALS, Popularity)


def main(argv=None):
    """Print the table, and how long it took."""
    parser = command_line("compare", __doc__)
    parser.add_argument("--data-home")
    parser.add_argument("--n-jobs", type=int, default=2)
    options = parser.parse_args(argv)
    X, y = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)
    estimators = [
        Estimator(random_state=0) if "random_state" in Estimator().get_params() else Estimator()
        for Estimator in MODELS
    ]
    start = time.perf_counter()
    print(compare(estimators, X[:, :2], y, n_jobs=options.n_jobs))
    print(f"{time.perf_counter() - start:.0f} s with n_jobs={options.n_jobs}")


if __name__ == "__main__":
    main()
