import dataclasses
import functools
import gzip
import hashlib
import io
import threading
import zipfile
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from fedrecsk.datasets import (
    _catalogue,
    _fetch,
    clear_data_home,
    fetch_filmtrust,
    fetch_kuairec,
    fetch_lastfm,
    fetch_movielens,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A made-up data set of three users, two items and four rows, as one publisher writes it."""

    fetcher: Callable
    archive: str
    member: str
    unpacked: str
    text: str
    X: list
    y: list
    words: tuple[str, ...]  # in the description


def movielens(variant, archive, member, sep, header=""):
    rows = [(1, 10, 5, 881), (1, 20, 3, 882), (2, 10, 4, 883), (3, 20, 1, 884)]
    return Case(
        functools.partial(fetch_movielens, variant),
        f"{archive}.zip",
        member,
        member,
        header + "".join(sep.join(map(str, row)) + "\n" for row in rows),
        [(u, i, t) for u, i, _, t in rows],
        [5, 3, 4, 1],
        ("4 ratings of 2 films by 3 users, with", "redistribution", "Harper", "Konstan"),
    )


def kuairec(variant, times, X, words):
    rows = [(0, 7, "0.5"), (0, 8, "1.25"), (5, 7, "0.0"), (6, 8, "573.4571")]
    head = "user_id,video_id,play_duration,video_duration,time,date,timestamp,watch_ratio\n"
    body = "".join(
        f"{u},{i},13838,10867,2020-07-05 00:08:23.438,20200705,{t},{y}\n"
        for (u, i, y), t in zip(rows, times, strict=True)
    )
    member = f"KuaiRec 2.0/data/{variant}_matrix.csv"
    return Case(
        functools.partial(fetch_kuairec, variant),
        "KuaiRec.zip",
        member,
        member,
        head + body,
        X,
        [0.5, 1.25, 0, 573.4571],
        (f"4 watch ratios of 2 videos by 3 users, {words} timestamps", "CC BY-SA 4.0", "CIKM"),
    )


CASES = {
    "movielens-100k": movielens("100k", "ml-100k", "ml-100k/u.data", "\t"),
    "movielens-1m": movielens("1m", "ml-1m", "ml-1m/ratings.dat", "::"),
    "movielens-10m": movielens("10m", "ml-10m", "ml-10M100K/ratings.dat", "::"),
    **{
        f"movielens-{variant}": movielens(
            variant,
            f"ml-{variant}",
            f"ml-{variant}/ratings.csv",
            ",",
            "userId,movieId,rating,timestamp\n",
        )
        for variant in ("20m", "25m", "32m", "latest-small")
    },
    "lastfm": Case(
        fetch_lastfm,
        "hetrec2011-lastfm-2k.zip",
        "user_artists.dat",
        "hetrec2011-lastfm-2k/user_artists.dat",
        "userID\tartistID\tweight\r\n2\t51\t13883\r\n2\t52\t11690\r\n3\t51\t1\r\n4\t52\t7\r\n",
        [(2, 51), (2, 52), (3, 51), (4, 52)],
        [13883, 11690, 1, 7],
        ("4 play counts of 2 artists by 3 users, without timestamps", "non-commercial", "Cantador"),
    ),
    "filmtrust": Case(
        fetch_filmtrust,
        "filmtrust.zip",
        "ratings.txt",
        "filmtrust/ratings.txt",
        "1 1 2\n1 2 4\n2 1 3.5\n7 2 0.5\n",
        [(1, 1), (1, 2), (2, 1), (7, 2)],
        [2, 4, 3.5, 0.5],
        ("4 ratings of 2 films by 3 users, without timestamps", "none is stated", "Guo"),
    ),
    "kuairec-big": kuairec(
        "big",
        ["1593878903.438", "1593878904.0", "1593878905", "1593878906.999"],
        [
            (0, 7, 1593878903438),
            (0, 8, 1593878904000),
            (5, 7, 1593878905000),
            (6, 8, 1593878906999),
        ],
        "with",
    ),
    "kuairec-small": kuairec(
        "small", ["1.5", "", "", "2.5"], [(0, 7), (0, 8), (5, 7), (6, 8)], "without"
    ),
}
WITH_CHECKSUM = [name for name in CASES if name != "movielens-latest-small"]


@functools.cache  # A zip file holds the time of its writing, and the checksum must stay the same.
def archive(*names):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("README", "made up")
        for name in names:
            file.writestr(CASES[name].member, CASES[name].text)
    return content.getvalue()


def put(home, name, content):
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.fixture
def small(monkeypatch):
    """Let the made-up data pass for the published."""
    for name, spec in _catalogue.PUBLISHED.items():
        changes = {}
        if spec.checksum:
            kind = spec.checksum.split(":")[0]
            changes["checksum"] = f"{kind}:{hashlib.new(kind, archive(name)).hexdigest()}"
        if spec.counts:
            changes["counts"] = (3, None if spec.counts[1] is None else 2, 4)
        if spec.n_rows_between:
            changes["n_rows_between"] = (4, 4)
        monkeypatch.setitem(_catalogue.PUBLISHED, name, dataclasses.replace(spec, **changes))


class Handler(SimpleHTTPRequestHandler):
    asked = None

    def do_GET(self):
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, *args):
        pass


def publish_at(url, monkeypatch):
    """Let all publishers be at `url`."""
    # Loopback must not go through a proxy that the environment names.
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for name, spec in list(_catalogue.PUBLISHED.items()):
        moved = dataclasses.replace(spec, url=f"{url}/{spec.archive}")
        monkeypatch.setitem(_catalogue.PUBLISHED, name, moved)


@pytest.fixture
def publisher(small, tmp_path, monkeypatch):
    """A web server on this machine in all publishers' place: its folder, what it was asked for."""
    folder = tmp_path / "publisher"
    folder.mkdir()
    asked = []
    handler = functools.partial(type("H", (Handler,), {"asked": asked}), directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        publish_at(f"http://127.0.0.1:{server.server_address[1]}", monkeypatch)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield folder, asked
        server.shutdown()
        thread.join()


@pytest.fixture
def no_download(monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("tried to download")

    monkeypatch.setattr(_fetch, "download", fail)


def snapshot(folder):
    return {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


def check(case, X, y):
    assert X.dtype == np.int64
    assert y.dtype == np.float64
    assert_array_equal(X, case.X)
    assert_array_equal(y, case.y)


def test_every_published_set_has_a_case():
    assert set(CASES) == set(_catalogue.PUBLISHED)


@pytest.mark.parametrize("name", CASES)
def test_download_is_kept_and_used_again(name, publisher, tmp_path):
    folder, asked = publisher
    case = CASES[name]
    put(folder, case.archive, archive(name))
    home = tmp_path / "new" / "home"
    check(case, *case.fetcher(data_home=home, return_X_y=True))
    checksum = _catalogue.PUBLISHED[name].checksum or ""
    pins = set() if checksum.startswith("sha256:") else {f"{case.archive}.sha256"}
    assert {path.name for path in home.iterdir()} == {case.archive} | pins

    before = snapshot(home)
    check(case, *case.fetcher(data_home=home, return_X_y=True, download_if_missing=False))
    assert snapshot(home) == before
    assert asked == [f"/{case.archive}"]
    clear_data_home(home)
    assert not home.exists()


@pytest.mark.parametrize("name", CASES)
def test_unpacked_original(name, small, no_download, tmp_path):
    case = CASES[name]
    path = put(tmp_path, case.unpacked, case.text)
    before = snapshot(tmp_path)
    bunch = case.fetcher(data_home=tmp_path)
    check(case, bunch.data, bunch.target)
    assert bunch.feature_names == ["user", "item", "timestamp"][: len(case.X[0])]
    assert bunch.filename == str(path)
    for words in case.words:
        assert words in bunch.DESCR
    assert snapshot(tmp_path) == before


def test_one_archive_serves_both_matrices(publisher, monkeypatch, tmp_path):
    folder, asked = publisher
    names = ["kuairec-big", "kuairec-small"]
    put(folder, "KuaiRec.zip", archive(*names))
    checksum = "md5:" + hashlib.md5(archive(*names), usedforsecurity=False).hexdigest()
    for name in names:
        spec = dataclasses.replace(_catalogue.PUBLISHED[name], checksum=checksum)
        monkeypatch.setitem(_catalogue.PUBLISHED, name, spec)
        check(CASES[name], *CASES[name].fetcher(data_home=tmp_path / "home", return_X_y=True))
    assert asked == ["/KuaiRec.zip"]


@pytest.mark.parametrize("name", ["ratings.csv", "ratings.csv.gz"])
def test_table_without_timestamps_gets_none_invented(name, small, no_download, tmp_path):
    case = CASES["movielens-1m"]
    rows = [(u, i, y) for (u, i, _), y in zip(case.X, case.y, strict=True)]
    table = "user,item,rating\n" + "".join(f"{u},{i},{y}\n" for u, i, y in rows)
    content = gzip.compress(table.encode()) if name.endswith("gz") else table
    put(tmp_path, f"ml-1m/{name}", content)
    bunch = fetch_movielens("1m", data_home=tmp_path)
    assert_array_equal(bunch.data, [row[:2] for row in rows])
    assert bunch.feature_names == ["user", "item"]
    assert "without timestamps" in bunch.DESCR


def test_original_beats_table(small, no_download, tmp_path):
    put(tmp_path, "ml-1m/ratings.csv", "user,item,rating\n")
    put(tmp_path, "ml-1m.zip", archive("movielens-1m"))
    check(CASES["movielens-1m"], *fetch_movielens("1m", data_home=tmp_path, return_X_y=True))


def test_data_home_from_the_environment(small, no_download, tmp_path, monkeypatch):
    put(tmp_path, "ml-100k.zip", archive("movielens-100k"))
    monkeypatch.setenv("FEDRECSK_DATA", str(tmp_path))
    check(CASES["movielens-100k"], *fetch_movielens(return_X_y=True))


@pytest.mark.parametrize("name", CASES)
def test_as_frame(name, small, no_download, tmp_path):
    pytest.importorskip("pandas")
    case = CASES[name]
    put(tmp_path, case.archive, archive(name))
    bunch = case.fetcher(data_home=tmp_path, as_frame=True)
    assert list(bunch.frame.columns) == [*bunch.feature_names, "rating"]
    check(case, bunch.data.to_numpy(), bunch.target.to_numpy())


@pytest.mark.parametrize("name", CASES)
def test_missing_pandas_is_named_before_any_download(name, without_pandas, no_download, tmp_path):
    with pytest.raises(ImportError, match=r"fetch_\w+ with .* pandas.*fedrecsk\[plot\]"):
        CASES[name].fetcher(data_home=tmp_path, as_frame=True)


@pytest.mark.parametrize("name", CASES)
def test_missing_and_not_to_be_downloaded(name, no_download, tmp_path):
    home = tmp_path / "home"
    with pytest.raises(FileNotFoundError, match="download_if_missing is False") as error:
        CASES[name].fetcher(data_home=home, download_if_missing=False)
    copies = map(str, _catalogue.PUBLISHED[name].local_copies(home))
    for words in (*copies, "FEDRECSK_DATA", "data_home", "by hand", "https://"):
        assert words in str(error.value)
    assert not home.exists()


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_download_is_refused_and_not_kept(name, publisher, tmp_path):
    folder, _ = publisher
    put(folder, CASES[name].archive, "<html>")
    home = tmp_path / "home"
    message = "a web page, perhaps of a proxy" if name in WITH_CHECKSUM else "not a zip archive"
    with pytest.raises(ValueError, match=message):
        CASES[name].fetcher(data_home=home)
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("name", WITH_CHECKSUM)
def test_a_wrong_archive_in_data_home_is_named(name, no_download, tmp_path):
    path = put(tmp_path, CASES[name].archive, archive(name))
    kind, digest = _catalogue.PUBLISHED[name].checksum.split(":")
    with pytest.raises(ValueError, match=f"{kind.upper()} checksum .* {digest}") as error:
        CASES[name].fetcher(data_home=tmp_path)
    assert str(path) in str(error.value)
    assert path.exists()


def test_an_archive_without_the_ratings(no_download, tmp_path):
    put(tmp_path, "ml-latest-small.zip", archive("movielens-100k"))
    with pytest.raises(ValueError, match=r"has no file ml-latest-small/ratings\.csv"):
        fetch_movielens("latest-small", data_home=tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("movielens-100k", r"ratings\) = \(3, 2, 4\) instead of \(943, 1682, 100000\)"),
        ("movielens-1m", r"ratings\) = \(3, 2, 4\) instead of \(6040, 3706, 1000209\)"),
        ("movielens-32m", r"ratings\) = \(3, 2, 4\) instead of \(200948, None, 32000204\)"),
        ("movielens-latest-small", "4 ratings, not 50000 to 200000"),
        ("filmtrust", r"ratings\) = \(3, 2, 4\) instead of \(1508, 2071, 35497\)"),
        ("kuairec-big", r"watch ratios\) = \(3, 2, 4\) instead of \(7176, 10728, 12530806\)"),
        ("kuairec-small", r"watch ratios\) = \(3, 2, 4\) instead of \(1411, 3327, 4676570\)"),
    ],
)
def test_other_data_under_that_name_are_refused(name, message, tmp_path):
    path = put(tmp_path, CASES[name].unpacked, CASES[name].text)
    with pytest.raises(ValueError, match=message) as error:
        CASES[name].fetcher(data_home=tmp_path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("user,item\n1,2\n", "and ratings"),
        ("user,item,rating\na,2,3\n", "whole-numbered"),
        ("user,item,rating\n1,b,3\n", "whole-numbered"),
    ],
)
def test_tables_of_another_kind_are_refused(content, message, tmp_path):
    put(tmp_path, "ml-100k/ratings.csv", content)
    with pytest.raises(ValueError, match=message):
        fetch_movielens("100k", data_home=tmp_path)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("movielens-latest-small", ",4,", ",0.7,", "half stars from 0.5 to 5"),
        ("filmtrust", " 3.5", " 4.5", "half stars from 0.5 to 4"),
        ("filmtrust", " 3.5", " 0", "half stars from 0.5 to 4"),
        ("kuairec-big", "1593878904.0", "", "line 3: the timestamp '' must be a finite number"),
    ],
)
def test_impossible_values_are_refused(name, old, new, message, small, tmp_path):
    assert old in CASES[name].text
    put(tmp_path, CASES[name].unpacked, CASES[name].text.replace(old, new))
    with pytest.raises(ValueError, match=message):
        CASES[name].fetcher(data_home=tmp_path)


@pytest.mark.parametrize("fetcher", [fetch_movielens, fetch_filmtrust, fetch_kuairec, fetch_lastfm])
@pytest.mark.parametrize(
    "bad", [{"n_retries": -1}, {"delay": -1.0}, {"timeout": 0.0}, {"data_home": 1}]
)
def test_bad_parameters(fetcher, bad, no_download):
    with pytest.raises(ValueError, match=next(iter(bad))):
        fetcher(**bad)


@pytest.mark.parametrize("fetcher", [fetch_movielens, fetch_kuairec])
def test_unknown_variant(fetcher, no_download):
    with pytest.raises(ValueError, match="variant"):
        fetcher("2m")


@pytest.mark.parametrize(
    ("name", "mean"),
    [
        ("movielens-100k", 3.52986),
        ("movielens-1m", 3.581564),
        ("filmtrust", None),
        ("kuairec-small", None),
        ("kuairec-big", None),
    ],
)
def test_the_real_thing(name, mean, real_data, no_download):
    spec = _catalogue.PUBLISHED[name]
    if not any(path.is_file() for path in spec.local_copies(real_data)):
        pytest.skip(f"{real_data} has no copy of {spec.title}")
    before = snapshot(real_data)
    bunch = CASES[name].fetcher(data_home=real_data)
    n_users, n_items, n_rows = spec.counts
    assert len(bunch.data) == len(bunch.target) == n_rows
    assert len(np.unique(bunch.data[:, 0])) == n_users
    assert len(np.unique(bunch.data[:, 1])) == n_items
    assert bunch.data.shape[1] == len(bunch.feature_names)
    if mean is not None:
        assert bunch.target.mean() == pytest.approx(mean, abs=1e-5)
    if name == "movielens-100k":
        assert (bunch.data[:, 2].min(), bunch.data[:, 2].max()) == (874724710, 893286638)
    assert snapshot(real_data) == before
