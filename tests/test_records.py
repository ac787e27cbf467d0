"""Records: what a run writes, and that pages show no measured number without one."""

import html
import json
import re
from types import SimpleNamespace

import pytest

from benchmarks import __main__ as command
from benchmarks import _methods, methods
from benchmarks import _pages as pages
from benchmarks import _records as records
from benchmarks._code import digest_of_command

pytestmark = pytest.mark.full

SHOWN = [page for page in pages.PAGES if page.is_relative_to(pages.DOCS)]
HIDDEN = re.compile(r"<!--.*?-->|```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$", re.DOTALL)
MARK = re.compile(r"( ·)? [†‡]( (seconds )?measured [^·*]*?(?= ·|\*))?")
NUMBER = re.compile(r"(?<![\w.])\d\.(\d{3,})(?!\w)")
# Tables of published numbers, of words and of presets.
GIVEN = ("| published", "| default | chosen on", "| profile")
# Numbers with three decimals or more in the text of a page that were not measured here: published
# ones, and definitions.
NOT_MEASURED = {
    "methods/ddl.md": ["0.5101", "0.2743"],
    "methods/ease.md": ["0.7310", "0.4521", "0.7294", "0.4523"],
    "methods/fedals.md": ["0.7310", "0.4521", "0.7294"],
    "methods/metamf.md": ["0.872"],
    "methods/ncf.md": ["0.709", "0.435", "0.648"],
    "methods/neural.md": ["0.961"],
    "numbers/rankings.md": ["0.0605", "0.0318"],
    # These were measured before there were records.
    "user_guide/content.md": [
        "1.059",
        "0.500",
        "0.8650",
        "0.961",
        "0.685",
        "0.8629",
        "0.3527",
        "0.3024",
    ],
    "user_guide/hours.md": ["0.002", "0.005"],
}
# How many tables of a page are from before there were records. Each count may only fall.
OLD_TABLES = {
    "encryption.md": 4,
    "user_guide/cluster.md": 1,
    "user_guide/content.md": 6,
    "user_guide/time.md": 2,
}


def unrecorded(text):
    """Return the numbers in a page's text that are in no record it shows, and its own tables."""
    made = [found[0] for one in (pages.TABLE, pages.NUMBER) for found in one.finditer(text)]
    known = [float(found[0]) for found in NUMBER.finditer(" ".join(made))]
    text = HIDDEN.sub("", pages.TABLE.sub("", pages.NUMBER.sub("", text)))
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    own = [one for one in tables if NUMBER.search(one) and not one.startswith(GIVEN)]
    prose = re.sub(r"^\|.*", "", text, flags=re.MULTILINE)
    numbers = [
        found[0]
        for found in NUMBER.finditer(prose)
        if not any(f"{one:.{len(found[1])}f}" == found[0] for one in known)
    ]
    return numbers, own


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: str(page.relative_to(pages.DOCS)))
def test_a_page_has_no_measured_number_that_no_record_has(page):
    numbers, own = unrecorded(page.read_text())
    name = str(page.relative_to(pages.DOCS))
    assert len(own) == OLD_TABLES.get(name, 0), own
    assert numbers == NOT_MEASURED.get(name, [])


def test_a_number_without_a_record_is_found():
    name, table = "methods ratings --train 80", "| |\n|---|\n| 0.555 |\n"
    known = records.number(name, "RFRec", "test RMSE", 3)
    text = pages.filled(f"<!-- table('{name}') -->\n\n{known}, 0.987, `0.123`\n\n{table}")
    assert unrecorded(text) == (["0.987"], [table])


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.stem)
def test_a_page_shows_the_records(page):
    text = page.read_text()
    # Marks of changed files come and go with the code.
    now, then = (MARK.sub("", one) for one in (pages.filled(text), text))
    assert now == then, "run python -m benchmarks pages"


def test_a_page_is_filled(folder):
    write(folder, "x y", [["model", "RMSE"], ["a", "0.1 ± 0.02"]])
    end = "<!-- numbers\na = number('x y', 'a', 'RMSE')\n-->\n"
    comment = "  <!-- table(\n    'x y'\n  ) -->\n"
    empty = f"- One:\n\n{comment}\n| b |\n|---|\n| 0<!-- a -->. |\n\n{end}"
    full = empty.replace("0<", "0.1 ± 0.02<").replace(
        comment,
        f"{comment}\n  | model | RMSE |\n  | --- | --- |\n  | a | 0.1 ± 0.02 |\n\n"
        "  *`python -m benchmarks x y` · 2026-01-02, commit abc, A chip*\n",
    )
    assert pages.filled(empty) == full
    assert pages.filled(full) == full
    assert pages.filled(full.replace("0.1", "7.7")) == full
    for wrong in (empty.replace("0<!-- a -->", ""), empty.replace("a = ", "b = ")):
        with pytest.raises(ValueError, match="Each number needs"):
            pages.filled(wrong)


@pytest.mark.parametrize("task", pages.TITLES)
def test_pictures_show_the_records(task, tmp_path):
    labels = {entry.label for entry in (*methods.RATINGS, *methods.RANKINGS)}
    assert pages.POINTS[task].keys() <= labels
    shown = re.search(r"<dc:description>(.*?)<", (pages.FOLDER / f"{task}.svg").read_text())[1]
    now = json.loads(json.dumps(pages.points(task)))
    assert json.loads(html.unescape(shown)) == now, "run python -m benchmarks pages"
    pages.draw(task, tmp_path / "picture.svg")
    assert shown in (tmp_path / "picture.svg").read_text()


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("hours", pages.draw_hours),
        ("search", pages.draw_searches),
        ("leaderboard", pages.draw_leaderboard),
    ],
)
def test_other_pictures_show_the_records(name, draw, tmp_path):
    draw(tmp_path / "picture.svg")
    shown = (pages.FOLDER / f"{name}.svg").read_text()
    drawn = [
        one[one.index("<dc:description>") :][:2000]
        for one in (shown, (tmp_path / "picture.svg").read_text())
    ]
    assert drawn[0] == drawn[1], "run python -m benchmarks pages"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for records."""
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    monkeypatch.setattr(_methods, "modules", set())
    records.read_records.cache_clear()
    yield tmp_path
    records.read_records.cache_clear()


GENERATE = "data generate --rows 2000"


@pytest.fixture
def generated(folder):
    """The record of a run that prints seconds."""
    records.run(GENERATE)
    return records.read_records()[GENERATE]


def test_a_record_has_what_was_measured(generated):
    assert generated["table 1"][0] == ["", "CPU s"]
    assert [row[0] for row in generated["table 1"][1:]] == ["make_ratings", "make_interactions"]
    assert generated["options"] == {"command": "generate", "rows": 2000}
    assert {"benchmarks/data.py", "fedrecsk/datasets/generate.py"} <= generated["files"].keys()
    assert {"commit", "date", "processor", "seeds", "versions", "data"} <= generated.keys()
    assert "load_ratings" in generated["golden"]
    assert records.changes_of(generated) == ("", "seconds measured", [])
    assert not set(records.table("data generate")) & {records.CHANGED, records.SLOWER}


def test_seconds_are_marked_after_a_change_of_code_that_leaves_scores(generated, monkeypatch):
    file = "fedrecsk/datasets/generate.py"
    others = records.current_digests() - {generated["files"][file]}
    monkeypatch.setattr(records, "current_digests", lambda: others)
    assert records.table("data generate").endswith(
        f" · ‡ seconds measured before a change of `{file}`*"
    )
    assert "‡" not in records.table("data generate", [""])
    monkeypatch.setattr(records, "TIMED", ("data",))
    assert "‡" in records.table("data generate", [""])
    # A record from before there were golden digests.
    del generated["golden"]
    assert records.changes_of(generated, [""])[0] == "†"


def change_golden(monkeypatch, _):
    others = {one: of for one, of in records.golden_digests().items() if "load_ratings" not in of}
    monkeypatch.setattr(records, "golden_digests", lambda: others)
    return "the golden predictions of load_ratings"


def change_code(monkeypatch, _):
    monkeypatch.setattr(records, "digest_of_command", lambda *_: "another")
    return "its benchmark"


def change_data(monkeypatch, record):
    home = records.FOLDER / "data"
    home.mkdir()
    (home / "ratings.csv").write_text("1,2,3")
    monkeypatch.setenv("FEDRECSK_DATA", str(home))
    record["data"] = {"ratings.csv": "11112222", "not-there.csv": "33334444"}
    return "`ratings.csv`"


def change_version(_, record):
    record["versions"] = {"numpy": "1.0.0", "pip-of-another-planet": "2.0"}
    return "numpy 1.0.0"


@pytest.mark.parametrize("change", [change_golden, change_code, change_data, change_version])
def test_scores_are_marked_after_a_change_of_what_they_depend_on(change, generated, monkeypatch):
    what = change(monkeypatch, generated)
    assert records.changes_of(generated, [""]) == ("†", "measured", [what])
    assert records.table("data generate").endswith(f" · † measured before a change of {what}*")


def test_golden_predictions_are_of_the_measured_names_alone():
    found = records.golden_of({"RFRec", "NormClipping", "FedEB"})
    assert found.keys() == {"RFRec", "FedEB"}
    of = [records.golden_digests()[one] for one in found["RFRec"].split()]
    assert ["RFRec"] in of
    assert ["RFRec", "NormClipping"] in of
    assert ["RFRec", "NormClipping", "SignFlip"] not in of


def test_a_mixed_table_marks_each_row(folder, monkeypatch):
    for name in ("x a", "x b", "x c"):
        write(folder, name, [["model", "CPU s"], [name, "1"]])
        (folder / "record.json").rename(folder / f"{name}.json")
    marks = {"x a": ("†", "measured", ["A"]), "x b": ("‡", "seconds measured", ["`b.py`", "`c`"])}
    monkeypatch.setattr(
        records,
        "changes_of",
        lambda record, titles=None: marks.get(record["command"], ("", "seconds measured", [])),
    )
    shown = records.table("x")
    assert "| x a † | 1 |" in shown
    assert "| x b ‡ | 1 |" in shown
    assert "| x c | 1 |" in shown
    assert shown.endswith(
        " · † measured before a change of A · ‡ seconds measured before a change of `b.py` "
        "and others*"
    )
    assert MARK.sub("", shown).endswith("A chip*")


BENCHMARK = """
from benchmarks import helpers{alias}
from benchmarks._methods import add_method
RATES = [{rate}]

def quality(options):
    "Print scores."
    speed = 1
    for rate in RATES:
        print({helper}(rate, options.rows), speed)

def speed(options):
    {speed}

def main(argv=None):
    commands = {{f.__name__: f for f in (quality, speed)}}
    parser.add_argument("--rows", type=int, default={rows})
    parser.add_argument("--new", default={new})
"""


def test_the_code_of_a_command_is_what_it_leads_to(tmp_path):
    def code(helped="x + 1", **parts):
        parts = {"alias": "", "rate": 1, "helper": "helpers.error", "rows": 10, "new": 1} | parts
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        (root / "benchmarks").mkdir(parents=True)
        text = BENCHMARK.format(**{"speed": "return 1"} | parts)
        (root / "benchmarks" / "own.py").write_text(text)
        helpers = f"def error(x, n):\n    return more(x)\ndef more(x):\n    return {helped}\n"
        (root / "benchmarks" / "helpers.py").write_text(helpers)
        return digest_of_command(root, "benchmarks.own", "quality", frozenset(["rows"]))

    first = code()
    assert code(speed="return 2", new=2) == first
    assert code(alias=" as h", helper="h.error") == first
    assert code(alias="\nfrom benchmarks.helpers import error", helper="error") == first
    assert code(rate=2) != first
    assert code(rows=20) != first
    assert code(helped="x + 2") != first


def write(folder, command, table):
    """Write a record of a table."""
    record = {"command": command, "commit": "abc", "date": "2026-01-02", "processor": "A chip"}
    record |= {"files": {}, "table 1": table}
    (folder / "record.json").write_text(json.dumps(record))


def test_columns_with_the_same_title_are_kept(folder):
    write(folder, "data load", [["a", "a"], ["1", "2"]])
    assert records.table("data load") == (
        "| a | a |\n| --- | --- |\n| 1 | 2 |\n\n"
        "*`python -m benchmarks data load` · 2026-01-02, commit abc, A chip*"
    )


def test_rows_stand_side_by_side(folder):
    rows = [["data", "model", "RMSE"], ["1", "a", "0.1"], ["2", "a", "0.2"], ["2", "b", "0.3"]]
    write(folder, "x y", rows)
    assert records.table("x", ["model"], across=("data", "RMSE")).startswith(
        "| model | 1 | 2 |\n| --- | --- | --- |\n| a | 0.1 | 0.2 |\n| b |  | 0.3 |\n"
    )
    shown = records.table("x", ["data", "RMSE"], where={"model": "b"})
    assert shown.startswith("| data | RMSE |\n| --- | --- |\n| 2 | 0.3 |\n\n")
    with pytest.raises(ValueError, match="does not have all of"):
        records.table("x", where={"model": ["b", "c"]})
    assert records.number("x y", ("2", "b"), "RMSE", 2) == "0.30"
    with pytest.raises(ValueError, match="2 rows of 'x y'"):
        records.number("x y", "2", "RMSE")


def test_code_counts_and_text_and_imports_do_not(tmp_path):
    def digest(text):
        (tmp_path / "one.py").write_text(text)
        return records.digest(tmp_path / "one.py")

    first = digest(
        "import a\n\n# b\ndef f(x: int):\n    'Return 1.'\n    return g(1, 'no g', f'{x}')"
    )
    assert digest("def f(x):\n\n    return g(1, 'no g.', f'{x}!')\n") == first
    assert digest("def f(x):\n    return g(1, 'no g', f'{2 * x}')") != first
    assert digest("def f(x):\n    return g(1, 'no g', f'{x:.1f}')") != first
    assert digest("def f(x):\n    return g(2, 'no g')\n") != first
    assert digest("def f(x):\n    return g(1, 'g')\n") != first


def test_all_runs_what_is_missing_and_says_what_failed(folder, monkeypatch, capsys):
    commands = [GENERATE, "data nothing"]
    monkeypatch.setattr(command, "COMMANDS", commands)
    records.run(commands[0])
    (folder / "data-generate-rows-2000.json").rename(folder / "a.json")
    runs = []

    def call(arguments, **_):
        runs.append(arguments[3:])
        return SimpleNamespace(returncode="nothing" in arguments)

    monkeypatch.setattr(command.subprocess, "run", call)
    with pytest.raises(SystemExit, match="Failed: data nothing"):
        command.main(["all"])
    assert runs == [["data", "nothing"]]
    command.main(["list"])
    assert "data nothing: no record (0 CPU minutes and 1 unknown)" in capsys.readouterr().out
    old_seconds = records.SLOWER, "seconds measured", ["`a.py`"]
    monkeypatch.setattr(records, "changes_of", lambda record: old_seconds)
    runs.clear()
    command.main(["all", "generate"])
    assert runs == []
    command.main(["all", "generate", "--seconds"])
    assert runs == [records.shlex.split(GENERATE)]
    command.main(["list", "generate"])
    assert f"{GENERATE}: seconds measured before a change of `a.py`" in capsys.readouterr().out
