"""Federated evaluation: equal to what one machine with all rows finds, and what it costs."""

import warnings

import numpy as np
import pytest
from sklearn.metrics import mean_absolute_error, root_mean_squared_error
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from fedrecsk import (
    FCF,
    BiasOnly,
    FedEASE,
    FedEB,
    Federation,
    FedItemKNN,
    FedMF,
    LightFR,
    LocALS,
    RFRec,
)
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.privacy import CKKS, CentralDP, LaplaceMechanism, PrivacyBudget, SecAggPlus
from fedrecsk.privacy.accounting import Event, epsilon_of
from fedrecsk.protocol.keys import Key
from fedrecsk.selection import federated_evaluate
from tests.conftest import make_toy
from tests.reference import evaluation

RANKINGS = ["ndcg@5", "hr@3", "precision@2", "recall@5", "map@5", "mrr@4"]
ITEMS = np.arange(1000, 1045, 3)
NAMES = {"hr": "hit_rate"}
MODELS = {
    "RFRec": RFRec(3, n_rounds=3, random_state=0),
    "FedEB": FedEB(3, n_rounds=3, random_state=0),
    "LightFR, tied": LightFR(4, n_rounds=2, random_state=0),
    "FedItemKNN, tied": FedItemKNN(2),
    "LocALS": LocALS(3, n_rounds=3, random_state=0),
    "FedEASE": FedEASE(),
    "FedMF": FedMF(3, n_rounds=3, random_state=0),
    "FCF": FCF(3, n_rounds=3, random_state=0),
}


def split(n_users=24, n_items=15):
    """Rows for training and testing, some test rows of an unknown item and an unknown user."""
    X, y = make_toy(n_users, n_items, 0.5)
    is_test = np.random.default_rng(1).random(len(X)) < 0.3
    more = [[X[0, 0], 999], [888, X[0, 1]], [888, X[1, 1]]]
    return X[~is_test], y[~is_test], np.vstack([X[is_test], more]), np.append(y[is_test], [4, 5, 2])


def fitted(model, **parameters):
    X, y, *_ = split()
    return model.set_params(**parameters).fit(X, y)


def pooled(model, X, y, names, **options):
    """The same metrics by evaluate_ranking and scikit-learn, on all rows in one place."""
    found = {}
    for name in names:
        if name in ("rmse", "mae"):
            error = root_mean_squared_error if name == "rmse" else mean_absolute_error
            found[name] = error(y, model.predict(X))
            continue
        metric, k = name.split("@")
        metric = NAMES.get(metric, metric)
        scores = evaluate_ranking(model, X, y, metrics=metric, k=int(k), **options)
        found[name] = scores[f"{metric}@{k}"]
    return found


def metrics_of(model):
    return [*RANKINGS, *(["rmse", "mae"] if model._sees_ratings else [])]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("silos", [False, True], ids=["users", "silos"])
@pytest.mark.parametrize("name", MODELS)
def test_values_are_those_of_all_rows_in_one_place(name, silos):
    model, (*_, X, y) = fitted(MODELS[name]), split()
    clients = X[:, 0] % 4 if silos else None
    report = federated_evaluate(
        model, X, y, metrics=metrics_of(model), clients=clients, largest_error=4
    )
    expected = pooled(model, X, y, report.values)
    assert report.values == pytest.approx(expected, abs=1e-9)
    ids = np.unique(X[:, 0] if clients is None else clients)
    assert report.communication.client_ids.tolist() == ids.tolist()


@pytest.mark.parametrize("metrics", ["rmse", "ndcg@5"])
@pytest.mark.parametrize(
    ("share", "message"),
    [(0, None), (0.4, "40% of the test pairs are training"), (1, "was fitted")],
)
def test_training_rows_among_test_rows_are_reported(share, message, metrics):
    model, (train, ratings, X, y) = fitted(MODELS["RFRec"]), split()
    # Not the last three, whose users or items are new.
    n_seen, X, y = round(share * 30), X[:-3], y[:-3]
    rows = np.concatenate([train[:n_seen], X[: 30 - n_seen]])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        targets = np.append(ratings[:n_seen], y[: 30 - n_seen])
        federated_evaluate(model, rows, targets, metrics=metrics)
    texts = [str(one.message) for one in said]
    assert len(texts) == (message is not None), texts
    assert message is None or message in texts[0]


@pytest.mark.filterwarnings("ignore:y looks like ratings")
@pytest.mark.parametrize("name", ["RFRec", "LocALS", "FedItemKNN, tied"])
def test_negatives_are_drawn_by_address(name):
    model, (train, _, X, y) = fitted(MODELS[name]), split()
    X, y = X[:-3], y[:-3]
    report = federated_evaluate(model, X, y, metrics=RANKINGS, n_negatives=4, random_state=7)
    key = Key(int(np.random.RandomState(7).randint(2**31 - 1)))
    own = {
        user: {i for u, i in np.vstack([train, X]).tolist() if u == user}
        for user in set(X[:, 0].tolist())
    }
    codes = {user: code for code, user in enumerate(model.user_ids_.tolist())}
    drawn = {
        user: evaluation.negatives(key, codes[user], model.item_ids_.tolist(), own[user], 4)
        for user in own
    }
    expected = pooled(model, X, y, RANKINGS, negatives=drawn)
    assert report.values == pytest.approx(expected, abs=1e-9)
    again = federated_evaluate(
        model, X, y, metrics=RANKINGS, n_negatives=4, random_state=7, clients=X[:, 0] % 3
    )
    assert again.values == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("silos", [False, True], ids=["users", "silos"])
@pytest.mark.filterwarnings("ignore:y looks like ratings")
@pytest.mark.parametrize("name", ["RFRec", "LocALS", "FedItemKNN, tied"])
def test_a_loop_over_clients_finds_the_same(name, silos):
    train, ratings, X, y = split(16, 7)
    model = MODELS[name].fit(train, ratings)
    clients = X[:, 0] % 3 if silos else X[:, 0]
    report = federated_evaluate(
        model, X, y, metrics=metrics_of(model), clients=clients, largest_error=3
    )
    rows = [
        [(*pair, r) for pair, r, c in zip(X.tolist(), y.tolist(), clients, strict=True) if c == one]
        for one in np.unique(clients)
    ]
    seen = set(map(tuple, train.tolist()))
    for metric, value in report.values.items():
        most = 3 if metric in ("rmse", "mae") else 1
        one, error, counts = evaluation.evaluate(metric, most, model, rows, seen)
        assert value == pytest.approx(one, abs=1e-9)
        assert report.standard_errors[metric] == pytest.approx(error, abs=1e-9)
        assert report.histograms[metric].tolist() == counts
        assert report.edges[metric][[0, -1]].tolist() == [0, most]


def test_a_pipeline_transforms_the_rows_first():
    X, y, test, ratings = split()
    piped = make_pipeline(
        FunctionTransformer(lambda X: X + 1), RFRec(3, n_rounds=3, random_state=0)
    ).fit(X, y)
    report = federated_evaluate(piped, test, ratings, metrics=["rmse", "ndcg@5"])
    assert report.values == pytest.approx(pooled(piped, test, ratings, report.values), abs=1e-9)


# ------------------------------------------------------------- what protects the sums


SECURE = {"masks": SecAggPlus(), "CKKS": CKKS()}


@pytest.mark.parametrize("name", SECURE)
@pytest.mark.parametrize("silos", [False, True], ids=["users", "silos"])
def test_secure_sums_are_as_precise_as_their_scheme(name, silos):
    *_, X, y = split()
    public = {"items": ITEMS, "rating_scale": (1, 5)}
    model = fitted(RFRec(3, n_rounds=2, random_state=0, **public))
    clients = X[:, 0] % 5 if silos else None
    options = {"metrics": ["rmse", "mae", *RANKINGS], "clients": clients, "random_state": 0}
    plain = federated_evaluate(model, X, y, **options)
    model.federation = Federation(secure_aggregation=SECURE[name])
    secure = federated_evaluate(model, X, y, **options)
    assert secure.values == pytest.approx(plain.values, abs=2e-5)
    assert secure.standard_errors == pytest.approx(plain.standard_errors, abs=2e-4)
    for metric, counts in plain.histograms.items():
        np.testing.assert_allclose(secure.histograms[metric], counts, atol=1e-4)
    assert secure.communication.bytes_up > plain.communication.bytes_up
    assert secure.encryption is not None
    assert (secure.privacy.server_sees == "encrypted sums") == (name == "CKKS")


def private(noise="server", **parameters):
    federation = Federation(central_dp=CentralDP(clip=0.5, epsilon=5, delta=1e-3, noise=noise))
    public = {"items": ITEMS, "rating_scale": (1, 5), "aggregation": "clients"}
    federation.set_params(**parameters)
    return fitted(RFRec(3, n_rounds=2, random_state=0, federation=federation, **public))


@pytest.mark.parametrize("noise", ["server", "clients"])
def test_central_noise_is_charged_like_that_of_a_round(noise):
    masks = {"secure_aggregation": SecAggPlus()} if noise == "clients" else {}
    model, (*_, X, y) = private(noise, **masks), split()
    report = federated_evaluate(model, X, y, metrics=["ndcg@5", "mae"], epsilon=1.5)
    assert report.privacy.epsilon == pytest.approx(1.5, rel=0.02)
    assert report.privacy.epsilon <= 1.5
    (event,) = report.privacy.events
    both = epsilon_of([*model.privacy_.events, event], 1e-3)
    assert report.total_privacy.epsilon == pytest.approx(both)
    assert model.privacy_.epsilon < both < model.privacy_.epsilon + 1.5
    again = federated_evaluate(model, X, y, metrics="mae", epsilon=1.5)
    budget = PrivacyBudget(20, delta=1e-3).charge(model).charge(report).charge(again)
    three = epsilon_of([*model.privacy_.events, event, *again.privacy.events], 1e-3)
    assert budget.spent == pytest.approx(three)
    assert again.total_privacy.epsilon < three


def test_the_noise_is_as_large_as_the_bound_of_a_client_asks_for():
    model, (*_, X, y) = private(), split()
    counts = []
    for seed in range(100):
        report = federated_evaluate(
            model, X, y, metrics=["ndcg@5", "mae"], epsilon=1.5, random_state=seed
        )
        counts.append([*report.histograms["ndcg@5"], *report.histograms["mae"]])
    (event,) = report.privacy.events
    assert epsilon_of([Event("gaussian", event.noise_multiplier, 1)], 1e-3) <= 1.5 * 1.0001
    # Three numbers a metric are at most 1.
    expected = event.noise_multiplier * np.sqrt(6)
    assert np.std(counts, axis=0).mean() == pytest.approx(expected, rel=0.05)


def test_with_little_noise_each_client_counts_once():
    model, (*_, X, y) = private(), split()
    report = federated_evaluate(model, X, y, metrics=["mae", "ndcg@5"], epsilon=1e5)
    model.federation = None
    plain = federated_evaluate(model, X, y, metrics=["mae", "ndcg@5"])
    errors = np.abs(y - model.predict(X))
    means = [errors[X[:, 0] == user].mean() for user in np.unique(X[:, 0])]
    assert report.values["mae"] == pytest.approx(np.mean(means), abs=0.05)
    assert report.values["ndcg@5"] == pytest.approx(plain.values["ndcg@5"], abs=0.05)


def test_the_same_seed_draws_other_noise_for_other_rows():
    model, (*_, X, y) = private(), split()

    def counts(rows):
        report = federated_evaluate(model, X[rows], y[rows], epsilon=1, random_state=0)
        return report.histograms["rmse"]

    everything = counts(slice(None))
    np.testing.assert_array_equal(everything, counts(slice(None)))
    change = everything - counts(slice(1, None))
    assert (change != np.rint(change)).any()


# ------------------------------------------------------------------------- bytes and loss


def test_an_evaluation_costs_less_than_sending_the_model_once():
    model, (*_, X, y) = fitted(MODELS["RFRec"]), split()
    phases = {entry["phase"]: entry for entry in model.communication_.entries}
    known = np.isin(X[:, 0], model.user_ids_)
    ledger = federated_evaluate(model, X[known], y[known], metrics=["rmse", "ndcg@5"]).communication
    # Two metrics: whole parts and rests of two sums, and twelve numbers of each client.
    n_clients = len(np.unique(X[known, 0]))
    assert (ledger.bytes_up, ledger.bytes_down) == (n_clients * 2 * (4 + 12) * 4, 0)
    assert ledger.bytes_up <= 1.05 * phases["final"]["bytes_down"]
    # A new user's client needs the model, and what was announced in the set-up.
    new = federated_evaluate(model, X, y).communication
    sent = phases["final"]["bytes_down"] + phases["setup"]["bytes_down"]
    assert new.bytes_down == sent // model.n_users_
    assert new.entries[0]["phase"] == "evaluation"


def test_lost_answers_are_not_in_the_sums():
    model, (*_, X, y) = fitted(MODELS["RFRec"]), split()
    model.federation = Federation(dropout=0.5)
    report = federated_evaluate(model, X, y, metrics="mae", random_state=3)
    (entry,) = report.communication.entries
    assert 0 < entry["dropped"] < entry["participants"]
    n_counted = report.histograms["mae"].sum()
    assert n_counted == entry["participants"] - entry["dropped"] == entry["messages_up"]
    model.federation = None


# ------------------------------------------------------------- rows that clients hold out


@pytest.mark.parametrize("scoring", ["ndcg@5", "rmse", "hr@3"])
def test_the_best_score_is_that_of_the_kept_rows(scoring):
    X, y, *_ = split()
    model = RFRec(3, n_rounds=6, early_stopping=True, scoring=scoring, validation_fraction=0.3)
    model.set_params(warm_start=True, random_state=0, predict_with="global").fit(X, y)
    scores = [row["validation_score"] for row in model.history_]
    best = np.argmin(scores) if scoring == "rmse" else np.argmax(scores)
    assert model.best_round_ == best
    report = federated_evaluate(model, metrics=scoring)
    assert report.values[scoring] == pytest.approx(scores[best], rel=1e-6)


# ------------------------------------------------------------------------------ reports


def test_a_report_can_be_read_and_written():
    import json

    model, (*_, X, y) = fitted(MODELS["RFRec"]), split()
    report = federated_evaluate(model, X, y)
    assert json.loads(json.dumps(report.to_dict()))["metrics"].keys() == {"rmse", "ndcg@10"}
    assert report.to_frame().index.tolist() == ["rmse", "ndcg@10"]
    for text in (str(report), report._repr_html_()):
        assert all(part in text for part in ("rmse", "ndcg@10", f"{report.values['rmse']:.4f}"))
    assert repr(report).startswith("EvaluationReport(rmse ")


# ------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": "nonsense"}, "Unknown metric 'nonsense'"),
        ({"metrics": "ndcg"}, "for example ndcg@10"),
        ({"metrics": "ndcg@0"}, "Unknown metric"),
        ({"metrics": "ndcg@16"}, "the catalogue has 15 items"),
        ({"metrics": "loss"}, "at least one metric"),
        ({"metrics": []}, "at least one metric"),
        ({"n_negatives": 99}, "n_negatives=99, but user .* has only"),
        ({"epsilon": 1.0}, "has no central_dp"),
        ({"y": None}, "pass y, or other metrics"),
        ({"X": None}, "no client holds rows out"),
    ],
    ids=str,
)
def test_bad_input_is_named(options, message):
    *_, X, y = split()
    with pytest.raises(ValueError, match=message):
        federated_evaluate(fitted(MODELS["RFRec"]), **{"X": X, "y": y} | options)


def test_ratings_do_not_suit_implicit_feedback_and_some_federations_no_evaluation():
    *_, X, y = split()
    model = fitted(MODELS["LocALS"])
    with pytest.raises(ValueError, match="learns from implicit feedback"):
        federated_evaluate(model, X, y, metrics="rmse")
    model = fitted(MODELS["RFRec"])
    for federation, message in (
        (Federation(local_dp=LaplaceMechanism(clip=1, scale=1)), "local_dp"),
        (Federation(central_dp=CentralDP(epsilon=1)), "pass epsilon="),
        (Federation(secure_aggregation=SecAggPlus()), "at least 3 clients"),
    ):
        model.federation = federation
        with pytest.raises(ValueError, match=message):
            federated_evaluate(model, X, y, clients=X[:, 0] % 2)
    model.federation = None
    with pytest.raises(TypeError, match="use evaluate_ranking"):
        federated_evaluate(BiasOnly().fit(X, y), X, y)


@pytest.mark.parametrize(
    ("scoring", "message"),
    [("nonsense", "Unknown metric"), ("rmse", "implicit feedback"), ("ndcg@16", "15 items")],
)
def test_a_fit_refuses_a_scoring_that_does_not_suit(scoring, message):
    X, *_ = split()
    with pytest.raises(ValueError, match=message):
        LocALS(3, n_rounds=2, early_stopping=True, scoring=scoring).fit(X)
