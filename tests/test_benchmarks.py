"""The machinery of benchmarks.reproduce, on rows that take no time."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

reproduce = pytest.importorskip("benchmarks.reproduce", reason="run pytest from the repository")

from benchmarks._results import Results  # noqa: E402
from fedrecsk import BiasOnly, Popularity  # noqa: E402


class Options:
    quick, seeds, data_home, only = False, 2, None, None


@pytest.fixture
def options(tmp_path):
    chosen = Options()
    chosen.results = tmp_path / "results"
    return chosen


def table(protocol, model=None, paper=1.0):
    row = reproduce.Row("a method", model or BiasOnly(), {"RMSE": paper}, "100k", protocol, "why")
    absent = reproduce.Row("another", None, {"RMSE": 2.0}, "100k", protocol)
    return [reproduce.Table("Table 1", "a protocol", [row, absent])]


def test_a_stopped_run_is_resumed(options, monkeypatch, capsys):
    calls = []

    def protocol(model, data, seed, options):
        calls.append(seed)
        if seed == 1 and len(calls) == 2:
            raise KeyboardInterrupt
        return {"RMSE": 0.5 + seed}

    monkeypatch.setitem(reproduce.PAPERS, "toy", lambda: table(protocol))
    with pytest.raises(KeyboardInterrupt):
        reproduce.run("toy", options)
    reproduce.run("toy", options)
    assert calls == [0, 1, 1]
    printed = capsys.readouterr().out
    assert "| 100k | a method | RMSE | 1.0000 | 1.0000 | 0.5000 | +0.0000 |  |" in printed
    assert "| 100k | another | RMSE | 2.0000 | | | | not in fedrecsk yet |" in printed


def test_a_run_whose_parameters_changed_is_not_mixed_with_the_old_one(options, monkeypatch):
    def protocol(model, data, seed, options):
        return {"RMSE": 1.0}

    monkeypatch.setitem(reproduce.PAPERS, "toy", lambda: table(protocol))
    reproduce.run("toy", options)
    monkeypatch.setitem(reproduce.PAPERS, "toy", lambda: table(protocol, BiasOnly(reg_user=77.0)))
    with pytest.raises(SystemExit, match=r"with other settings(.|\n)*reg_user=77"):
        reproduce.run("toy", options)


def test_what_does_not_reproduce_says_why(options, monkeypatch, capsys):
    monkeypatch.setitem(
        reproduce.PAPERS, "toy", lambda: table(lambda *_: {"RMSE": 1.5}, Popularity())
    )
    reproduce.run("toy", options)
    assert "| +0.5000 | why |" in capsys.readouterr().out


def test_absent_data_and_divergence_are_rows(options, monkeypatch, capsys):
    def absent(*_):
        raise FileNotFoundError("no such data")

    monkeypatch.setitem(reproduce.PAPERS, "toy", lambda: table(absent))
    reproduce.run("toy", options)
    assert "| | | data absent |" in capsys.readouterr().out

    def diverges(*_):
        raise ValueError("The clients diverged: all of them")

    monkeypatch.setitem(reproduce.PAPERS, "toy", lambda: table(diverges))
    reproduce.run("toy", options)
    assert "diverges" in capsys.readouterr().out


@pytest.mark.parametrize("paper", ["rfrec", "lightfr", "colr", "fedals"])
def test_every_row_has_its_own_place_in_the_results(paper):
    cells = [(t.name, row.label, row.data) for t in reproduce.PAPERS[paper]() for row in t.rows]
    assert len(set(cells)) == len(cells)


def test_results_outlive_the_process(tmp_path):
    Results(tmp_path, "x").put(("a", 0), "settings", {"score": np.pi})
    assert Results(tmp_path, "x").get(("a", 0), "settings") == {"score": np.pi}
    assert Results(tmp_path, "x").get(("b", 0), "settings") is None


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


def test_settings_are_compared_before_anything_runs(options, monkeypatch):
    calls = []

    def protocol(model, data, seed, options):
        calls.append(seed)
        return {"RMSE": 1.0}

    changed = BiasOnly(reg_user=77.0)
    Results(options.results, "toy").put(("Table 1", "a method", "100k", 1), "old", {"RMSE": 1.0})
    monkeypatch.setitem(reproduce.PAPERS, "toy", lambda: table(protocol, changed))
    with pytest.raises(SystemExit, match="with other settings"):
        reproduce.run("toy", options)
    assert calls == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0"], "--seeds 0: at least one run"),
        (["--results", "{file}"], "--results .*: .*exists"),
        (
            ["--data-home", "{file}", "--results", "{folder}"],
            "--data-home: .*is a file",
        ),
    ],
)
def test_bad_arguments_are_named_before_anything_runs(arguments, message, tmp_path, capsys):
    (tmp_path / "file").touch()
    names = {"file": str(tmp_path / "file"), "folder": str(tmp_path / "new")}
    with pytest.raises(SystemExit):
        reproduce.main(["fedals", *(a.format(**names) for a in arguments)])
    assert re.search(message, capsys.readouterr().err)


MODULES = sorted(
    path.stem for path in Path(reproduce.__file__).parent.glob("*.py") if path.stem[0] != "_"
)


@pytest.mark.parametrize("name", MODULES)
def test_every_benchmark_says_what_it_does_and_on_which_data(name, capsys):
    module = importlib.import_module(f"benchmarks.{name}")
    with pytest.raises(SystemExit) as stopped:
        module.main(["--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert f"python -m benchmarks.{name}" in printed
    assert re.search(r"^Data: (MovieLens|none)", printed, re.MULTILINE)
    without_help = re.findall(r"^  (--[\w-]+)(?: \S+)*\n(?!    )", printed, re.MULTILINE)
    assert not without_help
