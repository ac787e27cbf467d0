import dataclasses
import errno
import functools
import gzip
import hashlib
import io
import threading
import zipfile
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pooch
import pytest
from numpy.testing import assert_array_equal

from fedrecsk.datasets import (
    clear_data_home,
    fetch_amazon,
    fetch_filmtrust,
    fetch_kuairec,
    fetch_lastfm,
    fetch_movielens,
    get_data_home,
)
from fedrecsk.datasets.published import PUBLISHED


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


def amazon(file):
    variant = file.partition("_")[0]
    return Case(
        functools.partial(fetch_amazon, variant.lower()),
        f"{file}.txt",
        f"{file}.txt",
        f"amazon-{variant.lower()}-5core/{file}.txt",
        "1 10 20\n2 10\n3 20\n",
        [(1, 10, 1), (1, 20, 2), (2, 10, 1), (3, 20, 1)],
        [1, 1, 1, 1],
        ("4 purchases of 2 products by 3 users, with", "states no licence", "Zhou"),
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
    "amazon-beauty": amazon("Beauty"),
    "amazon-sports": amazon("Sports_and_Outdoors"),
    "amazon-toys": amazon("Toys_and_Games"),
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
        ("4 ratings of 2 films by 3 users, without timestamps", "states no licence", "Guo"),
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


@functools.cache  # A zip file holds the time of its writing, and the checksum must stay the same.
def archive(*names):
    if PUBLISHED[names[0]].histories:
        return CASES[names[0]].text.encode()
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
    for name, spec in PUBLISHED.items():
        changes = {}
        if spec.checksum:
            kind = spec.checksum.split(":")[0]
            changes["checksum"] = f"{kind}:{hashlib.new(kind, archive(name)).hexdigest()}"
        if spec.counts:
            changes["counts"] = (3, None if spec.counts[1] is None else 2, 4)
        if spec.n_rows_between:
            changes["n_rows_between"] = (4, 4)
        monkeypatch.setitem(PUBLISHED, name, dataclasses.replace(spec, **changes))


def publish_at(url, monkeypatch):
    """Let all publishers be at `url`."""
    # Loopback must not go through a proxy that the environment names.
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for name, spec in list(PUBLISHED.items()):
        moved = dataclasses.replace(spec, url=f"{url}/{spec.archive}")
        monkeypatch.setitem(PUBLISHED, name, moved)


class Server:
    """Answers each request by the next of `answers`, and by the last one from then on."""

    def __init__(self, *answers):
        self.answers, self.asked, self.ended = list(answers), [], threading.Event()

    def __enter__(self):
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                place = min(len(server.asked), len(server.answers) - 1)
                code, content, claimed = server.answers[place]
                server.asked.append(self.path)
                if code is None:
                    server.ended.wait()
                    return
                self.send_response(code)
                self.send_header("Content-Length", str(claimed))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def publish(self, monkeypatch):
        """Take the place of all publishers."""
        publish_at(f"http://127.0.0.1:{self.http.server_address[1]}", monkeypatch)

    def __exit__(self, *args):
        self.ended.set()
        self.http.shutdown()
        self.http.server_close()


def sending(content):
    """A server that answers every request with this content."""
    content = content.encode() if isinstance(content, str) else content
    return Server((200, content, len(content)))


@pytest.fixture
def no_download(monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("tried to download")

    monkeypatch.setattr(pooch, "retrieve", fail)


def snapshot(folder):
    return {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


def check(case, X, y):
    assert X.dtype == np.int64
    assert y.dtype == np.float64
    assert_array_equal(X, case.X)
    assert_array_equal(y, case.y)


# One with a published checksum, and one without.
TWO = pytest.mark.parametrize("name", ["movielens-100k", "movielens-latest-small"])


@pytest.mark.parametrize("name", PUBLISHED)
def test_download_is_kept_and_used_again(name, small, tmp_path, monkeypatch):
    case, home = CASES[name], tmp_path / "new" / "home"
    with sending(archive(name)) as server:
        server.publish(monkeypatch)
        check(case, *case.fetcher(data_home=home, return_X_y=True))
        checksum = PUBLISHED[name].checksum or ""
        pins = set() if checksum.startswith("sha256:") else {f"{case.archive}.sha256"}
        assert {path.name for path in home.iterdir()} == {case.archive} | pins
        before = snapshot(home)
        check(case, *case.fetcher(data_home=home, return_X_y=True, download_if_missing=False))
    assert snapshot(home) == before
    assert server.asked == [f"/{case.archive}"]
    keep = put(home, "ml-100k/ratings.csv.gz", "")
    clear_data_home(home)
    assert [path for path in home.rglob("*") if path.is_file()] == [keep]


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
    bunch = case.fetcher(data_home=tmp_path, as_frame=True)
    assert list(bunch.frame.columns) == [*bunch.feature_names, "rating"]
    check(case, bunch.data.to_numpy(), bunch.target.to_numpy())


@pytest.mark.parametrize("name", ["ratings.csv", "ratings.csv.gz"])
def test_a_table_gets_no_timestamps_invented(name, small, no_download, tmp_path, monkeypatch):
    case = CASES["movielens-1m"]
    rows = [(u, i, y) for (u, i, _), y in zip(case.X, case.y, strict=True)]
    table = "user,item,rating\n" + "".join(f"{u},{i},{y}\n" for u, i, y in rows)
    content = gzip.compress(table.encode()) if name.endswith("gz") else table
    put(tmp_path, f"ml-1m/{name}", content)
    bunch = fetch_movielens("1m", data_home=tmp_path)
    assert_array_equal(bunch.data, [row[:2] for row in rows])
    assert bunch.feature_names == ["user", "item"]
    assert "without timestamps" in bunch.DESCR
    # The original is better, and may be where the environment says.
    put(tmp_path, "ml-1m.zip", archive("movielens-1m"))
    monkeypatch.setenv("FEDRECSK_DATA", str(tmp_path))
    check(case, *fetch_movielens("1m", return_X_y=True))


@TWO
def test_missing_and_not_to_be_downloaded(name, no_download, tmp_path):
    home = tmp_path / "home"
    with pytest.raises(FileNotFoundError, match="download_if_missing is False") as error:
        CASES[name].fetcher(data_home=home, download_if_missing=False)
    copies = map(str, PUBLISHED[name].local_copies(home))
    for words in (*copies, "FEDRECSK_DATA", "data_home", "by hand", "https://"):
        assert words in str(error.value)
    assert not home.exists()


@TWO
def test_a_wrong_download_is_refused_and_not_kept(name, small, tmp_path, monkeypatch):
    home = tmp_path / "home"
    with sending("<html>") as server:
        server.publish(monkeypatch)
        with pytest.raises(ValueError, match=r"(?s)or a web page of a proxy.*by hand"):
            CASES[name].fetcher(data_home=home)
    assert list(home.iterdir()) == []


def test_wrong_archives_in_data_home_are_named(no_download, tmp_path):
    path = put(tmp_path, "ml-1m.zip", archive("movielens-1m"))
    kind, digest = PUBLISHED["movielens-1m"].checksum.split(":")
    with pytest.raises(ValueError, match=f"{kind.upper()} checksum .* {digest}") as error:
        fetch_movielens("1m", data_home=tmp_path)
    assert str(path) in str(error.value)
    assert path.exists()
    put(tmp_path, "ml-latest-small.zip", archive("movielens-100k"))
    with pytest.raises(ValueError, match=r"has no file ml-latest-small/ratings\.csv"):
        fetch_movielens("latest-small", data_home=tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("movielens-32m", r"ratings\) = \(3, 2, 4\) instead of \(200948, None, 32000204\)"),
        ("movielens-latest-small", "4 ratings, not 50000 to 200000"),
        ("kuairec-small", r"watch ratios\) = \(3, 2, 4\) instead of \(1411, 3327, 4676570\)"),
    ],
)
def test_other_data_under_that_name_are_refused(name, message, tmp_path):
    path = put(tmp_path, CASES[name].unpacked, CASES[name].text)
    with pytest.raises(ValueError, match=message) as error:
        CASES[name].fetcher(data_home=tmp_path)
    assert str(path) in str(error.value)
    put(tmp_path, "ml-100k/ratings.csv", "user,item,rating\na,2,3\n")
    with pytest.raises(ValueError, match="whole-numbered"):
        fetch_movielens("100k", data_home=tmp_path)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("movielens-latest-small", ",4,", ",0.7,", "half stars from 0.5 to 5"),
        ("filmtrust", " 3.5", " 4.5", "half stars from 0.5 to 4"),
        ("kuairec-big", "1593878904.0", "", "line 3: the timestamp is missing"),
        ("lastfm", "2\t52", "2\tx", "is not Last.fm 2K.*'x'"),
        ("movielens-1m", "2::10", "::10", "is not MovieLens 1M"),
    ],
)
def test_impossible_values_are_refused(name, old, new, message, small, tmp_path):
    assert old in CASES[name].text
    put(tmp_path, CASES[name].unpacked, CASES[name].text.replace(old, new))
    with pytest.raises(ValueError, match=message):
        CASES[name].fetcher(data_home=tmp_path)


@pytest.mark.parametrize("fetcher", [fetch_movielens, fetch_filmtrust, fetch_kuairec, fetch_lastfm])
def test_bad_parameters(fetcher, no_download):
    for bad in ({"n_retries": -1}, {"delay": -1.0}, {"timeout": 0.0}, {"data_home": 1}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            fetcher(**bad)
    if fetcher in (fetch_movielens, fetch_kuairec):
        with pytest.raises(ValueError, match="variant"):
            fetcher("2m")


@pytest.fixture
def fetch_from(small, monkeypatch, tmp_path):
    """Fetch MovieLens 100K or Latest Small from a server."""

    def fetch_from(server, name="movielens-100k", **options):
        server.publish(monkeypatch)
        # A busy machine answers late, but a silent server is soon known to be one.
        options |= {"data_home": tmp_path, "timeout": 1.0 if IS_SILENT in server.answers else 30.0}
        return CASES[name].fetcher(delay=0.01, **options)

    return fetch_from


GOOD = archive("movielens-100k")
BREAKS_OFF = (200, GOOD[:50], len(GOOD))
IS_SILENT = (None, b"", 0)


@pytest.mark.parametrize(
    "bad", [BREAKS_OFF, (503, b"", 0), pytest.param(IS_SILENT, marks=pytest.mark.full)]
)
def test_a_failed_try_is_followed_by_another(bad, fetch_from):
    with (
        Server(bad, bad, (200, GOOD, len(GOOD))) as server,
        pytest.warns(UserWarning, match=r"failed \(.+\)\. Next try in 0.0[12] s; [23] left"),
    ):
        bunch = fetch_from(server)
    assert len(bunch.data) == 4
    assert len(server.asked) == 3


@pytest.mark.filterwarnings("ignore:Downloading")
@pytest.mark.parametrize(
    ("bad", "error", "message", "n_tries"),
    [
        (BREAKS_OFF, OSError, "tries: 3.*FEDRECSK_DATA.*by hand", 3),
        pytest.param(IS_SILENT, OSError, "timed out.*tries: 3", 3, marks=pytest.mark.full),
        ((404, b"", 0), OSError, "404.*tries: 1", 1),
        ((200, GOOD[:-9], len(GOOD) - 9), ValueError, "damaged", 1),
    ],
)
def test_what_no_retry_mends_is_an_error(bad, error, message, n_tries, fetch_from, tmp_path):
    with Server(bad) as server, pytest.raises(error, match="(?s)" + message):
        fetch_from(server, n_retries=2)
    assert len(server.asked) == n_tries
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "problem", [KeyboardInterrupt("left"), OSError(errno.ENOSPC, "No space left")]
)
def test_an_interrupted_download_leaves_nothing_behind(problem, fetch_from, tmp_path, monkeypatch):
    def fail(self, url, output_file, *args):
        Path(output_file).write_bytes(b"half")
        raise problem

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", fail)
    with sending(GOOD) as server, pytest.raises(type(problem), match="left"):
        fetch_from(server)
    assert list(tmp_path.iterdir()) == []


def test_the_first_download_is_recorded_and_holds_from_then_on(fetch_from, tmp_path):
    content = archive("movielens-latest-small")
    with sending(content) as server:
        fetch_from(server, "movielens-latest-small")
    pin = tmp_path / "ml-latest-small.zip.sha256"
    assert pin.read_text() == f"{hashlib.sha256(content).hexdigest()}  ml-latest-small.zip\n"
    put(tmp_path, "ml-latest-small.zip", GOOD)
    with pytest.raises(ValueError, match=r"SHA256 checksum .* \(recorded in .*\.sha256"):
        fetch_movielens("latest-small", data_home=tmp_path)


def test_a_data_home_that_is_a_file(tmp_path):
    path = put(tmp_path, "ratings.csv", "")
    for function in (get_data_home, lambda data_home: fetch_movielens("100k", data_home=data_home)):
        with pytest.raises(
            NotADirectoryError, match=r"ratings\.csv is a file, not a folder.*load_"
        ):
            function(path)
        with pytest.raises(OSError, match=r"cannot be created \(Not a directory\).*FEDRECSK_DATA"):
            function(path / "below")


def test_argument_beats_variable_beats_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.delenv("FEDRECSK_DATA", raising=False)
    assert get_data_home() == str(tmp_path / "me" / "fedrecsk_data")
    monkeypatch.setenv("FEDRECSK_DATA", "")
    assert get_data_home() == str(tmp_path / "me" / "fedrecsk_data")
    monkeypatch.setenv("FEDRECSK_DATA", str(tmp_path / "variable"))
    assert get_data_home() == str(tmp_path / "variable")
    assert get_data_home(tmp_path / "argument") == str(tmp_path / "argument")
    assert get_data_home("~/tilde") == str(tmp_path / "me" / "tilde")
    for name in ("me/fedrecsk_data", "variable", "argument", "me/tilde"):
        assert (tmp_path / name).is_dir()


@pytest.mark.parametrize(
    ("name", "mean"), [("movielens-100k", 3.52986), ("movielens-1m", 3.581564)]
)
def test_the_real_thing(name, mean, real_data, no_download):
    before = snapshot(real_data)
    bunch = CASES[name].fetcher(data_home=real_data)
    users, items = np.transpose(bunch.data)[:2]
    assert (len(np.unique(users)), len(np.unique(items)), len(users)) == PUBLISHED[name].counts
    assert bunch.target.mean() == pytest.approx(mean, abs=1e-5)
    if name == "movielens-100k":
        assert (bunch.data[:, 2].min(), bunch.data[:, 2].max()) == (874724710, 893286638)
    assert snapshot(real_data) == before


def test_a_table_of_positions_is_in_their_order(tmp_path, small, no_download):
    case = CASES["amazon-beauty"]
    table = "user,item,position\n" + "".join(f"{u},{i},{t}\n" for u, i, t in case.X)
    content = gzip.compress(table.encode())
    put(tmp_path, "amazon-beauty-5core/interactions.csv.gz", content)
    check(case, *fetch_amazon("beauty", data_home=tmp_path, return_X_y=True))
    put(tmp_path, "Beauty.txt", "1 10 20\n")
    with pytest.raises(ValueError, match="has the SHA256 checksum"):
        fetch_amazon("beauty", data_home=tmp_path)
