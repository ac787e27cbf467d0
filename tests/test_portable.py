"""A file of `export`: read with NumPy alone, equal to the model, and harmless."""

import contextlib
import io
import json
import shutil
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

import fedrecsk
from fedrecsk import (
    EASE,
    BiasOnly,
    FedEB,
    FedItemKNN,
    FedSpectral,
    ImplicitALS,
    LocALS,
    RFRec,
    portable,
)
from tests.conftest import make_toy
from tests.test_contract import make
from tests.test_explain import NAMES, fitted, is_rater

ROOT = Path(fedrecsk.__file__).parents[1]
ALONE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        if root in ("scipy", "sklearn", "numba", "pandas", "joblib", "pooch", "implicit"):
            raise ImportError(f"{name} is not installed here")
sys.meta_path.insert(0, Refuse())
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """An exported EASE, its file and its rows."""
    path = tmp_path_factory.mktemp("portable") / "model.fedrecsk"
    model, X, _ = fitted("EASE")
    model.export(path)
    return model, path, X


def exported(model, folder):
    model.export(folder / "model.fedrecsk")
    return portable.load(folder / "model.fedrecsk")


@pytest.mark.parametrize("name", NAMES)
def test_it_recommends_what_the_model_recommends(name, tmp_path):
    model, *_ = fitted(name)
    public = exported(model, tmp_path)
    histories = [([1, 4, 6], [5.0, 2.0, 4.0]), ([0], [1.0]), ([2, 3, 2, 8], [1.0, 4.0, 5.0, 5.0])]
    for codes, ratings in histories:
        items = model.item_ids_[codes]
        rows = np.column_stack([np.full(len(items), 77), items])
        for exclude_seen in (True, False):
            theirs = model.recommend(
                [77], 5, interactions=(rows, np.array(ratings)), exclude_seen=exclude_seen
            )
            found = theirs[1][0] > -np.inf
            ours = public.recommend(items, ratings, 5, exclude_seen=exclude_seen)
            assert np.array_equal(ours[0], theirs[0][0][found])
            assert np.allclose(ours[1], theirs[1][0][found], rtol=1e-4, atol=1e-5)
    ours, theirs = public.recommend([], n=3), model.recommend([77], 3)
    assert np.array_equal(ours[0], theirs[0][0])
    assert np.allclose(ours[1], theirs[1][0], rtol=1e-5)
    assert public.rates == is_rater(model)


def test_a_tilde_is_the_home_folder_wherever_a_path_is_given(tmp_path, monkeypatch):
    from fedrecsk.cluster import _checkpoints, checkpoints
    from fedrecsk.datasets import load_ratings
    from fedrecsk.deployment import keys
    from fedrecsk.deployment.store import Store

    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.chdir(tmp_path)
    model, *_ = fitted("LocALS")
    model.export("~/public")
    assert portable.is_portable("~/public")
    assert portable.load("~/public").item_ids.tolist() == model.item_ids_.tolist()
    (home / "rows.csv").write_text("user,item\n1,2\n")
    assert load_ratings("~/rows.csv").data.tolist() == [[1, 2]]
    paths = keys.write_identities(["a", "b", "c"], "~/keys")
    assert paths["a"] == home / "keys" / "client-a.key"
    assert keys.read_identity("~/keys/client-a.key").certificate
    Store("~/store").save("state", 1)
    assert Store(home / "store").load("state") == 1
    with checkpoints("~/fit"):
        assert _checkpoints.Checkpoint().folder == home / "fit"
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize(
    "model",
    [
        EASE(1.0, history_half_life=1.5),
        FedItemKNN(history_half_life="auto"),
        FedSpectral(3, history_half_life=1.0),
        ImplicitALS(3, history_half_life="auto", random_state=0),
        LocALS(3, n_rounds=2, history_half_life=1.5, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_history_fades_by_its_order(model, tmp_path):
    X, y = make_toy()
    y = np.maximum(y - 2, 0)  # some are no likes
    X = np.column_stack([X, np.arange(len(X))])
    model = clone(model).fit(X, y)
    public = exported(model, tmp_path)
    items = model.item_ids_[[6, 1, 4, 1, 0]]
    rows = np.column_stack([np.full(5, 77), items, np.arange(5)])
    for ratings in ([1.0, 2.0, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 0.0, 3.0]):
        theirs = model.recommend([77], 5, interactions=(rows, np.array(ratings)))
        ours = public.recommend(items, ratings, 5)
        found = theirs[1][0] > -np.inf
        assert np.array_equal(ours[0], theirs[0][0][found])
        assert np.allclose(ours[1], theirs[1][0][found], rtol=1e-4, atol=1e-5)
    assert np.abs(public.predict(items) - public.predict(items[::-1])).max() > 1e-7
    # Without times nothing fades.
    plain = clone(model).set_params(timestamps=None).fit(X, y)._portable()
    assert np.array_equal(plain.predict(items), plain.predict(items[::-1]))


def test_days_are_left_out_of_the_file(tmp_path):
    X, y = make_toy()
    X = np.column_stack([X, 1_700_000_000 + 86_400 * (np.arange(len(X)) % 5)])
    model = FedEB(3, n_rounds=3, timestamps=2, random_state=0).fit(X, y)
    public, items = exported(model, tmp_path), model.item_ids_[[6, 1]]
    rows = np.column_stack([[77, 77], items, X[:2, 2]])
    theirs = model.recommend([77], 3, interactions=(rows, [5.0, 1.0]))[1][0]
    assert np.allclose(public.recommend(items, [5.0, 1.0], 3)[1], theirs)


def test_weights_count_as_in_fold_in(tmp_path):
    X, y = make_toy()
    model = BiasOnly(reg_user=2.0).fit(X, y)
    public, items = exported(model, tmp_path), model.item_ids_[:2]
    rows = [[77, items[0]], [77, items[1]]]
    model.fold_in(rows, [5.0, 1.0], sample_weight=[3.0, 0.5])
    theirs = model.predict([[77, item] for item in model.item_ids_])
    assert np.allclose(public.predict(items, [5.0, 1.0], weights=[3.0, 0.5]), theirs)
    # A row twice is a row of weight 2, and one of weight 0 is none.
    twice = public.predict([items[0]] * 2, [5.0, 3.0])
    assert np.allclose(twice, public.predict([items[0]], [4.0], weights=[2.0]))
    assert np.allclose(
        public.predict(items, [5, 1], weights=[1, 0]), public.predict(items[:1], [5])
    )


def test_recommendations_can_be_narrowed(written):
    model, path, _ = written
    public, items = portable.load(path), model.item_ids_
    everything, _ = public.recommend(items[:2], n=10**6)
    assert set(everything) == set(items[2:])
    assert public.recommend(items[:2], exclude=[everything[0], 10**9])[0][0] == everything[1]
    assert public.recommend(items[:2], n=99, exclude=items)[0].tolist() == []
    assert public.recommend([10**9], n=1)[0] == public.recommend([], n=1)[0]


@pytest.mark.parametrize("alone", [False, True])
def test_numpy_is_enough(written, tmp_path, alone):
    model, path, _ = written
    name, paths = "fedrecsk.portable", str(ROOT)
    if alone:
        shutil.copy(ROOT / "fedrecsk" / "portable.py", tmp_path)
        name, paths = "portable", str(tmp_path)
    code = f"""{ALONE}
sys.path.insert(0, {paths!r})
import {name} as portable
model = portable.load({str(path)!r})
print(model.recommend([{model.item_ids_[0]}], n=3)[0].tolist())
print(sorted({{"scipy", "sklearn", "numba", "pandas", "joblib"}} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    items, loaded = done.stdout.splitlines()
    expected = model.recommend([77], 3, interactions=[[77, model.item_ids_[0]]])
    assert json.loads(items) == expected[0][0].tolist()
    assert loaded == "[]"


def test_a_file_has_numbers_and_ids_of_items_only(tmp_path):
    X = np.array([["ann-secret", "tea"], ["ann-secret", "jam"], ["bob-secret", "tea"]])
    EASE(reg=1.0).fit(X).export(tmp_path / "model")
    assert b"secret" not in (tmp_path / "model").read_bytes()
    assert "secret".encode("utf-32-le") not in (tmp_path / "model").read_bytes()
    with zipfile.ZipFile(tmp_path / "model") as file:
        names = set(file.namelist())
        assert names == {"header.npy", "item_ids.npy", "unknown.npy", "rule_matrix.npy"}
        assert all(b"|O" not in file.read(name)[:128] for name in names)
    public = portable.load(tmp_path / "model")
    assert public.versions.keys() == {"python", "fedrecsk", "numpy", "scikit-learn"}
    assert public.versions["fedrecsk"] == fedrecsk.__version__
    assert public.recommend(["tea"])[0].tolist() == ["jam"]


class Bomb:
    def __reduce__(self):
        return print, ("this must not run",)


def test_a_file_with_objects_is_refused(written, tmp_path, capsys):
    _, path, _ = written
    with np.load(path) as content:
        arrays = dict(content)
    arrays["item_ids"] = np.array([Bomb()] * len(arrays["item_ids"]), dtype=object)
    with open(tmp_path / "bomb", "wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(ValueError, match="was not written by export"):
        portable.load(tmp_path / "bomb")
    assert "must not run" not in capsys.readouterr().out


def rewritten(path, target, **changes):
    with np.load(path) as content:
        arrays = dict(content)
    header = json.loads(bytes(arrays["header"]))
    for name, value in changes.items():
        if name in arrays:
            arrays[name] = value
        else:
            header[name] = value
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with open(target, "wb") as file:
        np.savez(file, **arrays)
    return target


@pytest.mark.parametrize(
    "changes",
    [
        {"item_ids": np.arange(3)},
        {"unknown": np.full(9, np.nan)},
        {"rule_matrix": np.zeros((9, 9), np.int64)},
        {"rule": "Path"},
        {"settings": {"rates": True}},
        {"format": "one"},
        {"half_life": "long"},
        {"rating_scale": [np.nan, 5.0]},
        {"item_ids": np.arange(9) // 2},
        {"item_ids": np.append(np.arange(8), np.nan)},
    ],
    ids=str,
)
def test_parts_that_do_not_agree_are_refused(written, tmp_path, changes):
    with pytest.raises(ValueError, match="is damaged, or was not written"):
        portable.load(rewritten(written[1], tmp_path / "wrong", **changes))
    path = rewritten(written[1], tmp_path / "new", format=4, versions={"fedrecsk": "9.9"})
    with pytest.raises(ValueError, match=r"format 4, written by fedrecsk 9\.9.*later version"):
        portable.load(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("confidence", np.nan),
        ("reg", np.inf),
        ("reg_exponent", np.nan),
        ("n_items", 0),
        ("rates", 1),
        ("rates", None),
    ],
)
def test_settings_that_would_predict_nan_are_refused(tmp_path, name, value):
    path = tmp_path / "model"
    fitted("LocALS")[0].export(path)
    with np.load(path) as content:
        settings = json.loads(bytes(content["header"]))["settings"]
    rewritten(path, path, settings=settings | {name: value})
    with pytest.raises(ValueError, match=f"is damaged.*{name} is"):
        portable.load(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_a_small_file_that_declares_much_is_refused_at_once(written, tmp_path, method):
    """Zeros that are compressed, and an array of which there is only the head."""
    member, path = io.BytesIO(), tmp_path / "large"
    np.save(member, np.zeros((1500, 1500)))
    content = member.getvalue()
    if method == zipfile.ZIP_STORED:
        content = content[:128]
    with zipfile.ZipFile(written[1]) as old, zipfile.ZipFile(path, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, content if name == "rule_matrix.npy" else old.read(name))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="is damaged"):
            portable.load(path)
        assert tracemalloc.get_traced_memory()[1] < 1500 * 1500
    finally:
        tracemalloc.stop()


def test_damaged_files_give_one_error(written, tmp_path):
    content, rng = written[1].read_bytes(), np.random.default_rng(0)
    path = tmp_path / "damaged"
    for trial in range(200):
        damaged = bytearray(content)
        if trial % 4 == 0:
            damaged = damaged[: rng.integers(len(damaged))]
        for place in rng.integers(len(damaged), size=8) if len(damaged) else ():
            damaged[place] = rng.integers(256)
        path.write_bytes(damaged)
        # Only ValueError, or a model whose parts agree.
        with contextlib.suppress(ValueError):
            assert len(portable.load(path).item_ids) == 9
    with pytest.raises(FileNotFoundError):
        portable.load(tmp_path / "none")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a"],), "Item ids are numbers; items has 'a'"),
        (([True],), "Item ids are numbers; items has 'True'"),
        (("1000",), "items should be a list"),
        ((1000,), "items should be a list"),
        (([1000], [1, 2]), "one number for each of the 1 items"),
        (([1000], [np.nan]), "ratings should be finite"),
        (([1000], None, 2.5), "n should be a whole number"),
    ],
)
def test_wrong_questions(written, arguments, message):
    with pytest.raises(ValueError, match=message):
        portable.load(written[1]).recommend(*arguments)
    with pytest.raises(ValueError, match="weights should not be negative"):
        portable.load(written[1]).recommend([1000], weights=[-1])


def test_large_ids_are_found_as_integers_and_refused_as_floats(tmp_path):
    X = np.array(
        [[user, 2**53 + item] for user in range(8) for item in range(4) if user % 4 - item]
    )
    public = exported(EASE(reg=1.0).fit(X), tmp_path)
    found, _ = public.recommend([2**53 + 1], exclude=[2**53 + 2])
    assert sorted(found.tolist()) == [2**53, 2**53 + 3]
    for items in ([float(2**53)], [-1e300], np.array([2.0**60]), np.array([2**24], np.float32)):
        for question in ({"items": items}, {"items": [1], "exclude": items}):
            with pytest.raises(ValueError, match="a float of this size stands for several ids"):
                public.recommend(**question)
    assert len(public.recommend([2.0, np.float32(3)])[0]) == 4


def test_what_cannot_be_asked_or_exported(tmp_path, toy):
    public = exported(fitted("FedEB")[0], tmp_path)
    with pytest.raises(ValueError, match="FedEB is a model of ratings; give ratings"):
        public.recommend([1000])
    with pytest.raises(ValueError, match="rating 9 is outside the scale, 1 to 5"):
        public.recommend([1000], [9])
    with pytest.raises(ValueError, match="Use one of EASE"):
        make(RFRec).fit(*toy).export(tmp_path / "none")
    with pytest.raises(ValueError, match="beyond 64 bits"):
        EASE(reg=1.0).fit([["ann", 2**70], ["bob", 3]]).export(tmp_path / "none")
    assert not (tmp_path / "none").exists()
