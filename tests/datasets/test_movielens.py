import dataclasses
import functools
import gzip
import hashlib
import io
import threading
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from fedrecsk.datasets import _movielens, fetch_movielens

# A made-up data set of three users, two items and four ratings.
ROWS = [(1, 10, 5, 881), (1, 20, 3, 882), (2, 10, 4, 883), (3, 20, 1, 884)]
COUNTS = (3, 2, 4)
NAMES = {
    "100k": ("ml-100k", "u.data", "\t"),
    "1m": ("ml-1m", "ratings.dat", "::"),
    "latest-small": ("ml-latest-small", "ratings.csv", ","),
}
HEADER = "userId,movieId,rating,timestamp\n"


def original(variant):
    text = "".join(NAMES[variant][2].join(map(str, row)) + "\n" for row in ROWS)
    return (HEADER + text if variant == "latest-small" else text).encode()


def archive(variant):
    folder, member, _ = NAMES[variant]
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr(f"{folder}/README", "made up")
        file.writestr(f"{folder}/{member}", original(variant))
    return content.getvalue()


@pytest.fixture
def small(monkeypatch):
    """Let the made-up data pass for the published."""
    monkeypatch.setattr(_movielens, "_LATEST_SMALL_ROWS", (4, 4))
    for variant in ("100k", "1m"):
        md5 = hashlib.md5(archive(variant), usedforsecurity=False).hexdigest()
        spec = dataclasses.replace(_movielens._VARIANTS[variant], md5=md5, counts=COUNTS)
        monkeypatch.setitem(_movielens._VARIANTS, variant, spec)


class Handler(SimpleHTTPRequestHandler):
    asked = None

    def do_GET(self):
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, *args):
        pass


@pytest.fixture
def grouplens(tmp_path, monkeypatch):
    """A web server on this machine in GroupLens' place: its folder and what it was asked for."""
    folder = tmp_path / "grouplens"
    folder.mkdir()
    asked = []
    handler = functools.partial(type("H", (Handler,), {"asked": asked}), directory=folder)
    # Loopback must not go through a proxy that the environment names.
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        monkeypatch.setattr(
            _movielens, "_BASE_URL", f"http://127.0.0.1:{server.server_address[1]}/"
        )
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield folder, asked
        server.shutdown()
        thread.join()


@pytest.fixture
def no_download(monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("tried to download")

    monkeypatch.setattr(_movielens, "fetch_file", fail)


def snapshot(folder):
    return {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


def check(X, y):
    assert X.dtype == np.int64
    assert y.dtype == np.float64
    assert_array_equal(X, [(u, i, t) for u, i, _, t in ROWS])
    assert_array_equal(y, [r for _, _, r, _ in ROWS])


@pytest.mark.parametrize("variant", list(NAMES))
def test_download_is_kept_and_used_again(variant, small, grouplens, tmp_path):
    folder, asked = grouplens
    (folder / f"{NAMES[variant][0]}.zip").write_bytes(archive(variant))
    home = tmp_path / "new" / "home"
    check(*fetch_movielens(variant, data_home=home, return_X_y=True))
    assert [path.name for path in home.iterdir()] == [f"{NAMES[variant][0]}.zip"]

    before = snapshot(home)
    check(*fetch_movielens(variant, data_home=home, return_X_y=True, download_if_missing=False))
    assert snapshot(home) == before
    assert asked == [f"/{NAMES[variant][0]}.zip"]


@pytest.mark.parametrize("variant", list(NAMES))
def test_unpacked_original(variant, small, no_download, tmp_path):
    folder, member, _ = NAMES[variant]
    (tmp_path / folder).mkdir()
    (tmp_path / folder / member).write_bytes(original(variant))
    before = snapshot(tmp_path)
    bunch = fetch_movielens(variant, data_home=tmp_path)
    check(bunch.data, bunch.target)
    assert bunch.feature_names == ["user", "item", "timestamp"]
    assert bunch.filename == str(tmp_path / folder / member)
    for words in ("4 ratings of 2 films by 3 users", "redistribution", "Harper", "Konstan"):
        assert words in bunch.DESCR
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", ["ratings.csv", "ratings.csv.gz"])
def test_table_without_timestamps_gets_none_invented(name, small, no_download, tmp_path):
    table = "user,item,rating\n" + "".join(f"{u},{i},{r}\n" for u, i, r, _ in ROWS)
    content = gzip.compress(table.encode()) if name.endswith("gz") else table.encode()
    (tmp_path / "ml-1m").mkdir()
    (tmp_path / "ml-1m" / name).write_bytes(content)
    bunch = fetch_movielens("1m", data_home=tmp_path)
    assert_array_equal(bunch.data, [row[:2] for row in ROWS])
    assert bunch.feature_names == ["user", "item"]
    assert "without timestamps" in bunch.DESCR


def test_original_beats_table(small, no_download, tmp_path):
    (tmp_path / "ml-1m").mkdir()
    (tmp_path / "ml-1m" / "ratings.csv").write_text("user,item,rating\n")
    (tmp_path / "ml-1m.zip").write_bytes(archive("1m"))
    check(*fetch_movielens("1m", data_home=tmp_path, return_X_y=True))


def test_data_home_from_the_environment(small, no_download, tmp_path, monkeypatch):
    (tmp_path / "ml-100k.zip").write_bytes(archive("100k"))
    monkeypatch.setenv("FEDRECSK_DATA", str(tmp_path))
    check(*fetch_movielens(return_X_y=True))


def test_as_frame(small, no_download, tmp_path):
    pytest.importorskip("pandas")
    (tmp_path / "ml-100k.zip").write_bytes(archive("100k"))
    bunch = fetch_movielens(data_home=tmp_path, as_frame=True)
    assert list(bunch.frame.columns) == ["user", "item", "timestamp", "rating"]
    check(bunch.data.to_numpy(), bunch.target.to_numpy())


def test_missing_pandas_is_named_before_any_download(without_pandas, no_download, tmp_path):
    with pytest.raises(ImportError, match=r"pandas.*fedrecsk\[plot\]"):
        fetch_movielens(data_home=tmp_path, as_frame=True)


def test_missing_and_not_to_be_downloaded(no_download, tmp_path):
    home = tmp_path / "home"
    with pytest.raises(FileNotFoundError, match="download_if_missing is False") as error:
        fetch_movielens("1m", data_home=home, download_if_missing=False)
    for words in (
        "ml-1m/ratings.dat",
        "ml-1m.zip",
        "ml-1m/ratings.csv.gz",
        "FEDRECSK_DATA",
        "data_home",
        "by hand",
        str(home),
    ):
        assert words in str(error.value)
    assert not home.exists()


@pytest.mark.filterwarnings("ignore:Retry downloading")
def test_offline_says_where_it_looked_and_what_to_do(tmp_path, monkeypatch):
    # Port 9 of this machine (discard) refuses connections.
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(_movielens, "_BASE_URL", "http://127.0.0.1:9/")
    with pytest.raises(OSError, match="could not be downloaded") as error:
        fetch_movielens("100k", data_home=tmp_path, n_retries=1, delay=0)
    for words in ("refused", "ml-100k/u.data", "FEDRECSK_DATA", "by hand", str(tmp_path)):
        assert words in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_retries(grouplens, tmp_path):
    _, asked = grouplens
    with (
        pytest.warns(UserWarning, match="Retry downloading"),
        pytest.raises(OSError, match="404"),
    ):
        fetch_movielens("100k", data_home=tmp_path / "home", n_retries=2, delay=0)
    assert asked == ["/ml-100k.zip"] * 3


@pytest.mark.parametrize(
    "variant, content, message",
    [
        ("100k", b"not it", "MD5 checksum .* instead of 0e33842e24a9c977be4e0107933c0723"),
        ("1m", b"not it", "MD5 checksum .* instead of c4d9eecfca2ab87c1945afe126590906"),
        ("latest-small", b"<html>", "not a zip archive"),
    ],
)
def test_a_wrong_download_is_refused_and_not_kept(variant, content, message, grouplens, tmp_path):
    folder, _ = grouplens
    (folder / f"{NAMES[variant][0]}.zip").write_bytes(content)
    home = tmp_path / "home"
    with pytest.raises(ValueError, match=message):
        fetch_movielens(variant, data_home=home)
    assert list(home.iterdir()) == []


def test_a_wrong_archive_in_data_home_is_named(no_download, tmp_path):
    path = tmp_path / "ml-100k.zip"
    path.write_bytes(archive("100k"))
    with pytest.raises(ValueError, match="MD5 checksum") as error:
        fetch_movielens("100k", data_home=tmp_path)
    assert str(path) in str(error.value)
    assert path.exists()


def test_an_archive_without_the_ratings(no_download, tmp_path):
    (tmp_path / "ml-latest-small.zip").write_bytes(archive("100k"))
    with pytest.raises(ValueError, match=r"has no file ml-latest-small/ratings\.csv"):
        fetch_movielens("latest-small", data_home=tmp_path)


@pytest.mark.parametrize(
    "variant, name, content, message",
    [
        ("100k", "u.data", original("100k"), r"\(3, 2, 4\) instead of \(943, 1682, 100000\)"),
        ("1m", "ratings.dat", original("1m"), r"\(3, 2, 4\) instead of \(6040, 3706, 1000209\)"),
        ("latest-small", "ratings.csv", original("latest-small"), "4 ratings, not 50000 to"),
        ("100k", "ratings.csv", b"user,item\n1,2\n", "and ratings"),
        ("100k", "ratings.csv", b"user,item,rating\na,2,3\n", "whole-numbered"),
        ("100k", "ratings.csv", b"user,item,rating\n1,b,3\n", "whole-numbered"),
    ],
)
def test_other_data_under_that_name_is_refused(variant, name, content, message, tmp_path):
    path = tmp_path / NAMES[variant][0] / name
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        fetch_movielens(variant, data_home=tmp_path)
    assert str(path) in str(error.value)


def test_latest_small_has_half_stars(monkeypatch, tmp_path):
    monkeypatch.setattr(_movielens, "_LATEST_SMALL_ROWS", (1, 9))
    path = tmp_path / "ml-latest-small" / "ratings.csv"
    path.parent.mkdir()
    path.write_text(HEADER + "1,2,0.5,3\n1,3,4.5,3\n")
    y = fetch_movielens("latest-small", data_home=tmp_path, return_X_y=True)[1]
    assert_array_equal(y, [0.5, 4.5])
    path.write_text(HEADER + "1,2,0.7,3\n")
    with pytest.raises(ValueError, match="half stars"):
        fetch_movielens("latest-small", data_home=tmp_path)


@pytest.mark.parametrize(
    "bad", [{"variant": "20m"}, {"n_retries": -1}, {"delay": -1.0}, {"data_home": 1}]
)
def test_bad_parameters(bad, no_download):
    with pytest.raises(ValueError, match=next(iter(bad))):
        fetch_movielens(**bad)


@pytest.mark.parametrize(
    "variant, n_users, n_items, n_ratings, mean",
    [("100k", 943, 1682, 100_000, 3.52986), ("1m", 6040, 3706, 1_000_209, 3.581564)],
)
def test_the_real_thing(variant, n_users, n_items, n_ratings, mean, real_data, no_download):
    spec = _movielens._VARIANTS[variant]
    if not any(path.is_file() for path in spec.local_copies(real_data)):
        pytest.skip(f"{real_data} has no copy of {spec.title}")
    before = snapshot(real_data)
    bunch = fetch_movielens(variant, data_home=real_data)
    assert len(bunch.data) == len(bunch.target) == n_ratings
    assert len(np.unique(bunch.data[:, 0])) == n_users
    assert len(np.unique(bunch.data[:, 1])) == n_items
    assert bunch.target.mean() == pytest.approx(mean, abs=1e-5)
    assert bunch.data.shape[1] == len(bunch.feature_names)
    if variant == "100k":
        assert (bunch.data[:, 2].min(), bunch.data[:, 2].max()) == (874724710, 893286638)
    assert snapshot(real_data) == before
