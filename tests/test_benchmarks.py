"""The machinery of benchmarks.reproduce, and each of its protocols, on data that take no time."""

import importlib
import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

reproduce = pytest.importorskip("benchmarks.reproduce", reason="run pytest from the repository")

from benchmarks import _quality, lightfr  # noqa: E402
from benchmarks._records import parse_tables  # noqa: E402
from benchmarks._results import Results  # noqa: E402
from benchmarks.papers import _among, _codes, _content, _data, _protocols, _uploads  # noqa: E402
from benchmarks.papers.rfrec import printed  # noqa: E402
from fedrecsk import (  # noqa: E402
    DCF,
    DDL,
    PMF,
    BiasOnly,
    CoLR,
    ExplicitFCF,
    FedMF,
    LightFR,
    LocALS,
    Popularity,
    RFRecF,
)
from fedrecsk.datasets import make_ratings  # noqa: E402
from tests.federated.turns import key_of  # noqa: E402

pytestmark = pytest.mark.full


class Options:
    quick, seeds, data_home, only = False, 2, None, None


@pytest.fixture
def options(tmp_path):
    chosen = Options()
    chosen.results = tmp_path / "results"
    return chosen


def test_a_stopped_run_is_resumed(options, monkeypatch, capsys):
    calls = []

    def protocol(model, data, seed, options):
        calls.append(seed)
        if seed == 1 and len(calls) == 2:
            raise KeyboardInterrupt
        return {"RMSE": 0.5 + seed}

    row = reproduce.Row("a method", BiasOnly(), {"RMSE": 1.0}, "100k", protocol, "why")
    absent = reproduce.Row("another", None, {"RMSE": 2.0}, "100k", protocol)
    table = reproduce.Table("Table 1", "a protocol", [row, absent])
    monkeypatch.setitem(reproduce.PAPERS, "toy", lambda: [table])
    with pytest.raises(KeyboardInterrupt):
        reproduce.run("toy", options)
    reproduce.run("toy", options)
    assert calls == [0, 1, 1]
    printed, shown = capsys.readouterr()
    assert "| 100k | a method | RMSE | 1.0000 | 1.0000 | 0.5000 | +0.0000 |  |" in printed
    assert "| 100k | another | RMSE | 2.0000 | | | | not in fedrecsk yet |" in printed
    assert "[2/2] Table 1: a method, 100k, seed 1 RMSE 1.5000 (paper 1.0000) (" in shown
    assert [["table", "CPU minutes"], ["Table 1", "0.0"]] in parse_tables(printed)


@pytest.fixture
def toy(monkeypatch):
    """A paper with three rows in two tables."""
    first, second, third = (
        reproduce.Row(label, BiasOnly(), {"RMSE": 1.0}, data, _protocols.rating_errors)
        for label, data in (("a method, fast", "100k"), ("a method, slow", "1m"), ("other", "1m"))
    )
    tables = [
        reproduce.Table("Table 1", "a protocol", [first, second]),
        reproduce.Table("Table 2", "a protocol", [third]),
    ]
    monkeypatch.setattr(reproduce, "PAPERS", {"toy": lambda: tables})


@pytest.mark.parametrize(
    ("words", "labels"),
    [
        (None, ["a method, fast", "a method, slow", "other"]),
        (["1m"], ["a method, slow", "other"]),
        (["1m", "a method"], ["a method, slow"]),
        (["Table 2"], ["other"]),
        (["Table 2", "100k"], []),
    ],
)
def test_rows_are_chosen_that_contain_all_words(words, labels, toy):
    assert [row.label for table in reproduce.chosen("toy", words) for row in table.rows] == labels


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (
            ["toy", "--only", "1m", "2m"],
            ["'2m'", "Table 1; Table 2", "a method; other", "100k; 1m"],
        ),
        (["toy", "--only", "other", "100k"], ["no row contains all of 'other', '100k'"]),
        ([], ["name a paper (toy) or all"]),
    ],
)
def test_words_that_choose_nothing_are_errors(arguments, parts, toy, capsys):
    with pytest.raises(SystemExit, match="2"):
        reproduce.main(arguments)
    message = capsys.readouterr().err
    assert all(part in message for part in parts), message


def test_the_list_has_the_minutes_of_records(toy, monkeypatch, capsys):
    record = {
        "cpu_seconds": 150.0,
        "table 1": [["data", "method"], ["1m", "other"]],
        "table 2": [["table", "CPU minutes"], ["Table 2", "1.2"]],
    }
    monkeypatch.setattr(reproduce, "read_records", lambda: {"reproduce toy --seeds 1": record})
    with pytest.raises(SystemExit) as stopped:
        reproduce.main(["--list"])
    assert not stopped.value.code
    [[_, *rows]] = parse_tables(capsys.readouterr().out)
    assert rows == [
        ["toy", "Table 1", "2", ""],
        ["toy", "Table 2", "1", "1.2"],
        ["toy", "all", "", "2.5"],
    ]


PAPERS = ["rfrec", "lightfr", "colr", "fedals"]


def rows_of_papers():
    return [row for name in PAPERS for table in reproduce.PAPERS[name]() for row in table.rows]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_row_has_its_own_place_in_the_results_and_can_be_run(paper, options):
    tables = reproduce.PAPERS[paper]()
    cells = [(t.name, row.label, row.data) for t in tables for row in t.rows]
    assert len(set(cells)) == len(cells)
    options.quick = True
    for row in (row for t in tables for row in t.rows):
        assert row.paper
        assert callable(row.protocol)
        if hasattr(row.model, "_parameter_constraints"):
            row.model._validate_params()
        if row.model is not None and "n_rounds" in row.model.get_params():
            assert isinstance(reproduce._prepared(row.model, 0, options).n_rounds, int)


@pytest.fixture
def little(monkeypatch, options):
    """Every data set is a small one with times, and its files are made of it."""
    X, y = make_ratings(40, 300, 900, random_state=0)
    monkeypatch.setattr(_data, "_read", lambda *_: (X, y))
    train, ratings, test = _data.one_row_out(X[:, :2], y, 0)
    negatives = np.array([[user, *np.setdiff1d(range(300), X[X[:, 0] == user, 1])[:20]]
                          for user in test[:, 0]])  # fmt: skip
    split = train, ratings, test, negatives
    monkeypatch.setattr(_data, "_leave_one_out_files", lambda *_: split)
    monkeypatch.setattr(_codes, "CIAO", {"n_users": 40, "n_items": 300, "n_ratings": 600})
    options.quick = True
    return options


FEW = {"n_rounds": 3, "random_state": 0}
OF_PROTOCOLS = [
    (_protocols.rating_errors, BiasOnly(), "100k"),
    (_protocols.messages_to_converge, ExplicitFCF(2, **FEW), "100k"),
    (_protocols.messages_to_converge, RFRecF(2, **FEW | {"n_rounds": 30}), "100k"),
    (_protocols.leave_one_out, _codes.QuantizedFactors(PMF(8, n_epochs=2)), "1m"),
    (_protocols.leave_one_out, _content.Coded(DDL(8, n_epochs=1), "audience"), "1m"),
    (_protocols.leave_one_out, _content.Coded(DCF(8), negatives=True), "1m"),
    (_protocols.leave_one_out_by_round, FedMF(4, **FEW), "1m"),
    (_protocols.last_tenth_by_time, Popularity(), "100k"),
    (_protocols.last_tenth_at_random, LightFR(**FEW), "1m"),
    (_protocols.full_ranking, Popularity(), "100k"),
    (_protocols.full_ranking_by_round, LocALS(2, **FEW), "100k"),
    (_protocols.full_ranking_of_silos, LocALS(2, **FEW), "100k"),
    (_protocols.honest_ranking, LocALS(2, **FEW), "100k"),
    (_protocols.volume, LocALS(2, **FEW), "100k"),
    (_codes.on_a_device, LightFR(**FEW), "Ciao's shape"),
    (_codes.hamming_or_float, Popularity(), "1000"),
    (_uploads.spectra, FedMF(4, **FEW), "1m"),
    (_uploads.minutes, CoLR(2, n_factors=4, **FEW), "1m"),
]


@pytest.mark.parametrize(
    ("protocol", "model", "data"),
    OF_PROTOCOLS,
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_row_of_every_protocol_runs(protocol, model, data, little):
    scores = protocol(model, data, 0, little)
    assert scores
    assert np.isfinite(list(scores.values())).all()
    wanted = [row.paper for row in rows_of_papers() if row.protocol is protocol]
    assert wanted
    for metrics in wanted:
        shares = ("precision@10, round", "HR@10 after")
        assert all(name in scores or name.startswith(shares) for name in metrics)


def test_no_protocol_is_left_out_above():
    used = {row.protocol.__name__ for row in rows_of_papers()}
    tested = {protocol.__name__ for protocol, *_ in OF_PROTOCOLS}
    assert used - tested == {"encrypted"}  # which needs the extra fedrecsk[privacy]


def test_places_among_all_and_among_a_few_negatives_are_those_of_a_plain_count(monkeypatch):
    # Items 0 to 2 have rows, 3 is under test: 4 to 9 remain, of which two are ahead of 3.
    scores = np.array([9.0, 9, 9, 5, 7, 6, 1, 2, 3, 4])
    model = SimpleNamespace(item_ids_=np.arange(10), predict=lambda X: scores[X[:, 1]])
    X = np.array([[0, 0], [0, 1], [0, 2], [0, 3]])
    ahead, n_unseen = _among.places(model, X, X[3:], np.random.default_rng(0))
    assert (ahead.tolist(), n_unseen.tolist()) == ([2], [6])
    # An item without a training row is never found.
    assert set(_among.scores_by_negatives(model, X, np.array([[0, 77]]), 0).values()) == {0.0}
    monkeypatch.setattr(_among, "NEGATIVES", (2, "all"))
    monkeypatch.setattr(_among, "K", 1)
    found = [_among.scores_by_negatives(model, X, X[3:], seed) for seed in range(1000)]
    # Six of the 15 pairs of negatives are behind.
    assert np.mean([one["HR@10, 2 negatives"] for one in found]) == pytest.approx(6 / 15, abs=0.04)
    assert {one["HR@10, all negatives"] for one in found} == {0.0}


def test_the_printed_algorithm_on_raw_ratings_is_the_papers_loop():
    X, y = make_ratings(8, 6, 30, timestamps=False, random_state=0)
    model = printed("RFRec", 0.01, 10, raw=True).set_params(n_rounds=4, random_state=0).fit(X, y)
    (users, u), (items, i) = (np.unique(column, return_inverse=True) for column in X.T)
    key = key_of(model)
    mean = 0.01 * key.generator("item vectors").standard_normal((len(items), 20))
    p = 0.01 * key.normal("user vectors", np.arange(len(users) * 20)).reshape(-1, 20)
    own = np.repeat(mean[None], len(users), axis=0)
    for _ in range(4):
        d_p, d_own = 2 * 0.1 * p, 10 * (own - mean)
        errors = y - np.sum(p[u] * own[u, i], axis=1)
        np.add.at(d_p, u, -2 * errors[:, None] * own[u, i])
        np.add.at(d_own, (u, i), -2 * errors[:, None] * p[u])
        p, own = p - 0.01 * d_p, own - 0.01 * d_own
        mean = own.mean(axis=0)
    np.testing.assert_allclose(5**0.5 * model.item_factors_, mean, atol=1e-6)
    np.testing.assert_allclose(5**0.5 * model.user_factors_, p, atol=1e-6)


def test_of_rows_with_the_same_time_the_one_further_down_is_the_later(monkeypatch):
    # The last row of a user has neither the highest nor the lowest id.
    items = np.array([[10, 9, 8, 7, 6, 1, 2, 5, 4, 3], [1, 2, 3, 4, 5, 10, 9, 6, 7, 8]])
    times = np.tile([0.0, 1, 2, 3, 4, 9, 9, 9, 9, 9], 2)
    X = np.column_stack([np.repeat([1.0, 2.0], 10), items.ravel(), times])
    for module in (_quality, lightfr):
        monkeypatch.setattr(module, "fetch_movielens", lambda *_, **__: (X, X[:, 2]))
        monkeypatch.setattr(module, "drawn_negatives", lambda *_: None)
    last = [[1, 3], [2, 8]]
    _, latest, _ = _quality.split("100k", Options)
    *_, test = lightfr.chronological(Options)
    *_, test_of_paper = _data.split_per_user(X, X[:, 2], by_time=True, seed=0)
    assert [part.tolist() for part in (latest, test, test_of_paper)] == [last] * 3


def test_a_line_cut_off_by_a_crash_is_run_again(tmp_path):
    first = Results(tmp_path, "x")
    first.put(("a", 0), "settings", {"score": 1.0})
    first.put(("b", 0), "settings", {"score": 2.0})
    first.path.write_text(first.path.read_text()[:-5])
    again = Results(tmp_path, "x")
    assert again.get(("a", 0), "settings") == {"score": 1.0}
    assert again.get(("b", 0), "settings") is None
    again.put(("b", 0), "settings", {"score": 3.0})
    assert Results(tmp_path, "x").get(("b", 0), "settings") == {"score": 3.0}


MODULES = sorted(
    path.stem for path in Path(reproduce.__file__).parent.glob("*.py") if path.stem[0] != "_"
)


@pytest.mark.parametrize("name", MODULES)
def test_every_benchmark_says_what_it_does_and_on_which_data(name, capsys):
    if name in ("metamf", "ncf", "neural"):
        pytest.importorskip("torch", reason="needs the extra torch")
    module = importlib.import_module(f"benchmarks.{name}")
    with pytest.raises(SystemExit) as stopped:
        module.main(["--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert f"python -m benchmarks.{name}" in printed
    assert re.search(r"^Data: (MovieLens|none)", printed, re.MULTILINE)
    without_help = re.findall(r"^  (--[\w-]+)(?: \S+)*\n(?!    )", printed, re.MULTILINE)
    assert not without_help
