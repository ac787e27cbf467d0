"""`Tracker` hands the numbers of each round to a function."""

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

from fedrecsk import BiasedMF, FedEASE, LocALS, RFRec
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.tracking import Tracker
from tests.listed import needs_callbacks

pytestmark = needs_callbacks


class MLflow:
    """The signature of mlflow.log_metrics."""

    def __init__(self):
        self.rows = []

    def log_metrics(self, metrics, step=None, synchronous=None, run_id=None):
        assert all(type(one) is float for one in metrics.values())
        assert synchronous is run_id is None
        self.rows.append((step, metrics))


def test_it_hands_on_what_the_history_has(toy):
    mlflow = MLflow()
    model = RFRec(2, n_rounds=3, random_state=0, early_stopping=True)
    model.set_callbacks(Tracker(mlflow.log_metrics)).fit(*toy)
    assert [step for step, _ in mlflow.rows] == [0, 1, 2]
    for (_, metrics), row in zip(mlflow.rows, model.history_, strict=True):
        expected = {n: one for n, one in row.items() if n not in ("round", "validation_loss")}
        assert metrics == pytest.approx(expected)
    assert {"loss", "bytes_up", "bytes_down"} <= metrics.keys()
    alone = RFRec(2, n_rounds=3, random_state=0, early_stopping=True).fit(*toy)
    assert np.array_equal(alone.predict(toy[0]), model.predict(toy[0]))


def test_scores_are_those_of_the_model_at_the_time(toy):
    X, y = toy
    mlflow = MLflow()
    scores = ["r2", "neg_root_mean_squared_error"]
    validation = X[:20], y[:20]
    tracker = Tracker(mlflow.log_metrics, scoring=scores, validation=validation)
    model = RFRec(2, n_rounds=3, random_state=0).set_callbacks(tracker).fit(X, y)
    assert mlflow.rows[-1][1]["r2"] == pytest.approx(model.score(*validation))
    two = RFRec(2, n_rounds=2, random_state=0).fit(X, y)
    assert mlflow.rows[1][1]["r2"] == pytest.approx(two.score(*validation))
    mlflow.rows.clear()
    ranker = LocALS(2, n_rounds=2, random_state=0)
    ranker.set_callbacks(Tracker(mlflow.log_metrics, scoring=lambda one, X, y: one.score(X)))
    ranker.fit(X)
    assert mlflow.rows[-1][1]["score"] == pytest.approx(ranker.score(X))


def test_centralised_models_and_searches(toy):
    mlflow = MLflow()
    tracker = Tracker(mlflow.log_metrics, scoring="r2")
    BiasedMF(2, n_epochs=3, random_state=0).set_callbacks(tracker).fit(*toy)
    assert [step for step, _ in mlflow.rows] == [0, 1, 2]
    mlflow.rows.clear()
    model = FedEASE(items=np.unique(toy[0][:, 1])).set_callbacks(Tracker(mlflow.log_metrics))
    GridSearchCV(model, {"reg": [1.0, 9.0]}, cv=2, refit=False).fit(toy[0], np.ones(len(toy[0])))
    assert [step for step, _ in mlflow.rows] == [0] * 4


def test_mlflow_stores_all_rounds(toy, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        model = RFRec(2, n_rounds=3, random_state=0)
        model.set_callbacks(Tracker(mlflow.log_metrics, scoring="r2"))
        mlflow.log_params(model.get_params())
        model.fit(*toy)
    client = mlflow.MlflowClient()
    assert client.get_run(run.info.run_id).data.params["n_rounds"] == "3"
    for name in ("loss", "bytes_up"):
        logged = {m.step: m.value for m in client.get_metric_history(run.info.run_id, name)}
        assert logged == pytest.approx({row["round"]: row[name] for row in model.history_})
    assert client.get_metric_history(run.info.run_id, "r2")[-1].value == pytest.approx(
        model.score(*toy)
    )


def test_rankings_are_tracked_by_their_names(toy):
    rows = []
    tracker = Tracker(lambda metrics, step: rows.append(metrics), scoring=["ndcg@3", "hit_rate@3"])
    model = LocALS(2, n_rounds=2, random_state=0).set_callbacks(tracker).fit(toy[0])
    expected = evaluate_ranking(model, toy[0], metrics=["ndcg", "hit_rate"], k=3)
    assert {name: rows[-1][name] for name in expected} == pytest.approx(expected)
    held_out = Tracker(print, scoring="ndcg@3", validation=(toy[0], None))
    LocALS(2, n_rounds=2, random_state=0).set_callbacks(held_out).fit(toy[0])


def test_wrong_arguments_are_named():
    with pytest.raises(TypeError, match="sink should be a function"):
        Tracker("mlflow")
    with pytest.raises(ValueError, match="Unknown score 'ndgc'; give a ranking metric with"):
        Tracker(print, scoring="ndgc")
    with pytest.raises(ValueError, match=r"a tuple \(X, y\)"):
        Tracker(print, scoring="r2", validation=[1, 2, 3])
    with pytest.raises(ValueError, match="validation needs scoring"):
        Tracker(print, validation=(1, 2))
