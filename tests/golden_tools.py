"""Golden values of what scores come from besides fits: data, splits, metrics, updates, leaks.

Each function returns numbers. Its models are simple, so that the numbers change with what the
function is named for, and not with a method.
"""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from sklearn.base import BaseEstimator, clone

from fedrecsk import BiasOnly, FedEASE, FedMF, LocALS, Popularity, PrivFedEB, RFRec
from fedrecsk.audit import audit_privacy, measure_leak, measure_membership
from fedrecsk.datasets import load_ratings, make_interactions, make_ratings
from fedrecsk.ensemble import RankingEnsemble, RatingEnsemble
from fedrecsk.metrics import evaluate_ranking, exposure, make_ranking_scorer
from fedrecsk.model_selection import (
    ColdItemHoldout,
    LeaveLastOut,
    RollingOrigin,
    TemporalHoldout,
    UserHoldout,
    compare,
)
from fedrecsk.preprocessing import split_users
from fedrecsk.privacy import CentralDP
from fedrecsk.protocol.federation import Federation
from fedrecsk.selection import FederatedSearch
from tests.conftest import make_toy
from tests.listed import THINGS, is_neural

X, y = make_toy(30, 20, density=0.4, seed=1)
PAIRS = np.stack([100 + 7 * np.arange(20), 1000 + 3 * np.arange(20)], axis=1)
# Times in another order than the rows, all different.
TIMED = np.column_stack([X, 7 * np.arange(len(X)) % 1009])
LISTS = ("ndcg", "hit_rate", "precision", "recall", "mrr", "map", "auc")
ALS = {"n_factors": 4, "n_rounds": 4, "random_state": 0}


class Formula(BaseEstimator):
    """Scores by a formula."""

    def fit(self, X, y=None):
        return self

    def predict(self, X):
        return np.sin(np.asarray(X, dtype=float) @ [0.7, 1.3])


def of_metrics():
    """Rank the catalogue, and among negatives; count how often items are recommended."""
    train, test = X[::2], X[1::2]
    model = Popularity().fit(train)
    found = evaluate_ranking(model, test, metrics=(*LISTS, "coverage", "novelty"), k=[3, 10])
    some = evaluate_ranking(Formula(), test, k=5, X_train=train, n_negatives=5, random_state=0)
    one = make_ranking_scorer("ndcg", k=10)(model, test)
    return [*found.values(), *some.values(), one, exposure(model, 1003, k=10)]


def of_splits():
    """Sum up the places of held-out rows."""
    splitters = [
        LeaveLastOut(2),
        TemporalHoldout(0.3),
        TemporalHoldout(0.3, per_user=True),
        RollingOrigin(3),
        UserHoldout(0.3, random_state=0),
        ColdItemHoldout(0.3, random_state=0),
    ]
    tests = [test for one in splitters for _, test in one.split(TIMED)]
    return [*map(len, tests), *(int(test.sum()) for test in tests)]


def of_silos():
    """Give users a separate id in each silo, and predict for each."""
    separate, origins = split_users(X, np.arange(len(X)) % 3)
    return [len(origins), *BiasOnly().fit(separate, y).predict(separate[:20]).tolist()]


def of_data():
    """Generate data, and read a file."""
    ratings, values = make_ratings(30, 20, 200, random_state=0)
    pairs = make_interactions(30, 20, 200, drift=1.0, random_state=0)
    lines = ("{}::{}::{}::{}".format(*row, row[1] % 5, row[0]) for row in X)
    with TemporaryDirectory() as folder:
        path = Path(folder, "ratings.dat")
        path.write_text("\n".join(lines))
        read = load_ratings(path)
    parts = [ratings, pairs, read.data.astype(float)]
    return [*(float(one) for part in parts for one in part.sum(axis=0)), *values[:20].tolist()]


def of_comparison():
    """Compare two models over periods of time."""
    models = {"popularity": Popularity(), "ease": FedEASE(10.0)}
    table = compare(models, TIMED, cv=RollingOrigin(2), scoring="ndcg@10").per_fold
    return table["ndcg@10"].tolist()


def of_search():
    """Search where the data are."""
    search = FederatedSearch(LocALS(**ALS), {"reg_user": [0.1, 1.0, 10.0]}, random_state=0).fit(X)
    return [search.best_params_["reg_user"], search.best_score_]


def of_lists():
    """Recommend, to known users and from rows that new ones bring."""
    model = Popularity().fit(X[X[:, 0] < 250])
    lists = [*model.recommend(PAIRS[:5, 0], 5)]
    model.fold_in(X[X[:, 0] >= 250])
    lists += model.recommend([261, 268], 5)
    return np.concatenate(lists, axis=None)


def of_ensembles():
    """Add up models."""
    ranking = RankingEnsemble([("a", Popularity()), ("b", FedEASE(10.0))], weights=[0.3, 0.7])
    rating = RatingEnsemble([("a", BiasOnly()), ("b", BiasOnly(reg_user=30.0))])
    return [*ranking.fit(X).predict(PAIRS).tolist(), *rating.fit(X, y).predict(PAIRS).tolist()]


def of_update(model):
    """Fit some rows, and the others by an update."""
    model, is_new = clone(model), np.arange(len(X)) >= 200
    target = y if isinstance(model, RFRec) else np.ones(len(y))
    model.set_params(warm_start=True).fit(X[~is_new], target[~is_new])
    model.partial_fit(X[is_new], target[is_new])
    return [*model.predict(PAIRS).tolist(), model.communication_.bytes_up]


def of_leaks():
    """Invert uploads and sums, guess at members, and audit a promise."""
    als = LocALS(items=np.unique(X[:, 1]), **ALS)
    reports = [
        measure_leak(als, X),
        measure_leak(als, X, cohort=5, n_rounds=2),
        measure_leak(RFRec(**ALS, items=np.unique(X[:, 1])), X, y),
    ]
    found = [getattr(one, name) for one in reports for name in one.chance]
    members = measure_membership(als, X, n_models=4, random_state=0)
    private = PrivFedEB(
        items=np.unique(X[:, 1]),
        rating_scale=(1, 5),
        federation=Federation(central_dp=CentralDP(epsilon=3.0)),
        random_state=0,
    )
    audit = audit_privacy(private, X, y, random_state=0)
    return [*map(float, found), members.auc, members.advantage, audit.lower_bound, audit.promised]


def of_silos_leaks():
    """Say what uploads of clients with many users reveal."""
    model = LocALS(items=np.unique(X[:, 1]), **ALS)
    report = measure_leak(model, X, clients=X[:, 0] % 4)
    return [float(getattr(report, name)) for name in report.chance]


def of_defaults(Estimator):
    """Fit with the default parameters, but in two steps, and predict."""
    model = Estimator()
    known = model.get_params(deep=False)
    quick = {"n_rounds": 2, "n_epochs": 2, "random_state": 0}
    model.set_params(**{name: value for name, value in quick.items() if name in known})
    return model.fit(X, y).predict(PAIRS)


# Name of the entry: what it covers, and where its numbers come from.
TOOLS = {
    "metrics": ("evaluate_ranking", of_metrics),
    "splits": ("LeaveLastOut", of_splits),
    "silos": ("split_users", of_silos),
    "data": ("load_ratings", of_data),
    "comparison": ("compare", of_comparison),
    "search": ("FederatedSearch", of_search),
    "lists": ("Recommender", of_lists),
    "ensembles": ("RankingEnsemble", of_ensembles),
    "leaks": ("measure_leak", of_leaks),
    "leaks of silos": ("silo_of", of_silos_leaks),
}
for model in (RFRec(**ALS), LocALS(reg_user=1.0, **ALS), FedMF(**ALS), FedEASE(10.0)):
    TOOLS[f"{type(model).__name__} update"] = type(model).__name__, partial(of_update, model)
# So that another default marks the records that show it.
for name, Estimator in THINGS.items():
    if isinstance(Estimator, type) and hasattr(Estimator, "predict") and not is_neural(Estimator):
        TOOLS[f"{name} defaults"] = name, partial(of_defaults, Estimator)
