"""A deployed fit whose nodes evaluate the final model on test rows of their own."""

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import FedEASE, Federation, LocALS, RFRec
from fedrecsk.deployment.exchanges import NotEnough
from fedrecsk.deployment.keys import write_identities
from fedrecsk.deployment.store import MODEL, Store
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.privacy import CentralDP, SecAggPlus
from fedrecsk.selection import federated_evaluate
from tests.conftest import make_toy
from tests.deployment.in_process import (
    Killed,
    coordinator,
    kill,
    lose,
    make_nodes,
    prepared,
    simulated_key,
    spoil,
)

X, Y = make_toy(24, 15, 0.6)
IS_TEST = np.random.default_rng(2).random(len(X)) < 0.3
SILOS = X[:, 0] % 5
# Of one client none.
TEST = IS_TEST & (SILOS != 3)
DIGITS = Federation(wire_dtype="float64")
MODELS = {
    "RFRec": (RFRec(3, n_rounds=4, random_state=0), ["rmse", "ndcg@5", "hr@3"]),
    "LocALS": (LocALS(3, n_rounds=4, random_state=0), ["ndcg@5", "map@4"]),
    "FedEASE": (FedEASE(random_state=0), ["ndcg@5", "recall@3"]),
}


def deployed(estimator, folder, metrics, **settings):
    """A coordinator of the training rows, whose nodes have test rows."""
    training = X[~IS_TEST], Y[~IS_TEST], SILOS[~IS_TEST]
    identities = None
    if estimator._setting().masks:
        identities = write_identities(range(5), folder / "identities")
    key = simulated_key(estimator)
    nodes = make_nodes(estimator, *training, folder, private=key, identities=identities)
    for node in nodes.values():

        def load_data(load=node.load_data):
            data = load()
            mine = TEST & (data["client_id"] == SILOS)
            return data | ({"X_test": X[mine], "y_test": Y[mine]} if mine.any() else {})

        node.load_data = load_data
    return coordinator(estimator, nodes, folder, evaluate=metrics, **settings)


def simulated(estimator, metrics):
    model = clone(estimator).fit(X[~IS_TEST], Y[~IS_TEST], clients=SILOS[~IS_TEST])
    rows = X[TEST], Y[TEST]
    return federated_evaluate(model, *rows, metrics=metrics, clients=SILOS[TEST], random_state=0)


@pytest.mark.filterwarnings("ignore:y looks like ratings")
@pytest.mark.parametrize("name", MODELS)
def test_a_deployed_evaluation_is_the_simulated_one(name, tmp_path):
    estimator, metrics = MODELS[name]
    estimator = prepared(estimator, X, Y).set_params(federation=DIGITS)
    expected = simulated(estimator, metrics)
    report = deployed(estimator, tmp_path, metrics).run().evaluation_
    # The simulation adds up blocks, and the server clients.
    assert report.values == pytest.approx(expected.values, rel=1e-9)
    assert report.standard_errors == pytest.approx(expected.standard_errors, rel=1e-9)
    for metric, counts in expected.histograms.items():
        assert report.histograms[metric].tolist() == counts.tolist()
    assert (tmp_path / "server" / "evaluation.txt").read_text() == f"{report}\n"
    (entry,) = report.communication.entries
    assert entry["phase"] == "evaluation"
    # The client without test rows sends as many numbers.
    assert entry["bytes_up"] == 5 * expected.communication.bytes_up // 4


def test_negatives_are_drawn_by_the_clients(tmp_path):
    """By its own key each, which is here that of the simulation, with one client."""
    estimator = prepared(MODELS["RFRec"][0], X, Y).set_params(federation=DIGITS)
    one, metrics = np.zeros(len(X), dtype=int), ["ndcg@3", "hr@1"]
    model = clone(estimator).fit(X[~IS_TEST], Y[~IS_TEST], clients=one[~IS_TEST])
    options = {"clients": one[TEST], "n_negatives": 2, "random_state": 0}
    expected = federated_evaluate(model, X[TEST], Y[TEST], metrics=metrics, **options)
    rows = {"X_test": X[TEST], "y_test": Y[TEST], "private": simulated_key(estimator)}
    nodes = make_nodes(estimator, X[~IS_TEST], Y[~IS_TEST], one[~IS_TEST], tmp_path, **rows)
    report = coordinator(estimator, nodes, tmp_path, evaluate=metrics, n_negatives=2).run()
    assert report.evaluation_.values == pytest.approx(expected.values, rel=1e-9)
    for wrong, message in (
        ({"n_negatives": 2}, "name the metrics of the evaluation"),
        ({"n_negatives": 0, "evaluate": metrics}, "'n_negatives' parameter of server_app"),
    ):
        with pytest.raises(ValueError, match=message):
            coordinator(estimator, nodes, tmp_path / "wrong", **wrong)


def test_after_early_stopping_the_best_model_is_evaluated(tmp_path):
    """Each node evaluates the model that it keeps."""
    estimator = RFRec(3, n_rounds=30, early_stopping=True, scoring="ndcg@5", random_state=0)
    estimator = prepared(estimator, X, Y).set_params(n_iter_no_change=2, federation=DIGITS)
    server = deployed(estimator, tmp_path, ["ndcg@5"]).run()
    assert server.best_round_ < server.n_rounds_ - 1
    total, n_users = 0.0, 0
    for folder in tmp_path.glob("node *"):
        model = Store(folder).load(MODEL)
        mine = TEST & np.isin(X[:, 0], model.user_ids_)
        if mine.any():
            users = len(np.unique(X[mine, 0]))
            total += (
                users * evaluate_ranking(model, X[mine], Y[mine], metrics="ndcg", k=5)["ndcg@5"]
            )
            n_users += users
    assert server.evaluation_.values["ndcg@5"] == pytest.approx(total / n_users, abs=1e-9)


def test_the_model_is_not_sent_twice(tmp_path):
    estimator, metrics = MODELS["LocALS"]
    estimator = prepared(estimator, X, Y)
    sizes = []
    for evaluate in (None, metrics):
        one = deployed(estimator, tmp_path / str(evaluate), evaluate)
        one.run()
        crossed = one.exchanges.carrier.crossed
        sizes.append(sum(down for kind, down, _ in crossed if kind in ("evaluate", "finish")))
    heads = 5 * 600
    assert sizes[1] <= sizes[0] + heads


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_masks_hide_what_each_client_reports(tmp_path):
    estimator = prepared(RFRec(3, n_rounds=4, random_state=0), X, Y)
    estimator.set_params(federation=Federation(secure_aggregation=SecAggPlus()))
    metrics = ["rmse", "ndcg@5", "hr@3"]
    one = deployed(estimator, tmp_path, metrics)
    report, expected = one.run().evaluation_, simulated(estimator, metrics)
    assert report.values == pytest.approx(expected.values, abs=1e-3)
    assert report.privacy.server_sees == "exact sums"
    kinds = {kind for kind, *_ in one.exchanges.carrier.crossed}
    assert {"evaluate keys", "evaluate shares", "evaluate", "evaluate unmask"} <= kinds


def test_a_late_answer_is_left_out_and_a_killed_server_goes_on(tmp_path):
    estimator, metrics = MODELS["RFRec"]
    estimator = prepared(estimator, X, Y).set_params(federation=DIGITS)
    one = deployed(estimator, tmp_path / "lost", metrics, quorum=0.5)
    spoil(one, lose, kind="evaluate", node=1000)
    report = one.run().evaluation_
    assert report.histograms["rmse"].sum() == 3
    killed = deployed(estimator, tmp_path / "killed", metrics)
    kill(killed, "evaluate", 4, 1001)
    with pytest.raises(Killed):
        killed.run()
    report = deployed(estimator, tmp_path / "killed", metrics).run().evaluation_
    assert report.values == pytest.approx(simulated(estimator, metrics).values, rel=1e-9)


def test_a_node_evaluates_once(tmp_path):
    estimator, metrics = MODELS["RFRec"]
    one = deployed(prepared(estimator, X, Y), tmp_path, metrics)
    ask = one._ask

    def ask_twice(kind, number, *rest):
        first = ask(kind, number, *rest)
        if kind == "evaluate":
            with pytest.raises(NotEnough):
                ask(kind, number + 1, *rest)
        return first

    one._ask = ask_twice
    assert one.run().evaluation_.values.keys() == set(metrics)


@pytest.mark.parametrize(
    ("metrics", "federation", "message"),
    [
        (["nonsense"], None, "Unknown metric"),
        (["ndcg@99"], None, "the catalogue has 15 items"),
        ([], None, "at least one metric"),
        (["rmse"], Federation(central_dp=CentralDP(epsilon=1)), "central_dp asks for"),
    ],
)
def test_what_does_not_suit_is_refused_before_any_work(metrics, federation, message, tmp_path):
    estimator = prepared(MODELS["RFRec"][0], X, Y).set_params(federation=federation)
    with pytest.raises(ValueError, match=message):
        coordinator(estimator, {}, tmp_path, n_clients=3, evaluate=metrics)
