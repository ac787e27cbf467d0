"""Downloads from a web server on this machine that behaves as badly as others do."""

import dataclasses
import errno
import hashlib
import io
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedrecsk.datasets import _catalogue, _download, fetch_movielens, get_data_home
from fedrecsk.datasets._download import download

pytestmark = pytest.mark.filterwarnings("ignore:Downloading")
ROWS = "userId,movieId,rating,timestamp\n" + "".join(
    f"{u},{i},3.5,9\n" for u, i in ((1, 2), (3, 4))
)


def archive(member="ml-latest-small/ratings.csv"):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(member, ROWS)
    return content.getvalue()


GOOD = archive()


class Server:
    """Answers each request by the next of `answers`, and by the last one from then on."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), 0

    def __enter__(self):
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                answer = server.answers[min(server.asked, len(server.answers) - 1)]
                server.asked += 1
                answer(self)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/ml-latest-small.zip"
        return self

    def __exit__(self, *args):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


def sends(content, *, claims=None, code=200):
    def answer(handler):
        handler.send_response(code)
        handler.send_header("Content-Length", str(len(content) if claims is None else claims))
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def hangs_up(handler):
    handler.connection.close()


def is_silent(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "99")
    handler.end_headers()
    time.sleep(1)


def drips(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "9000")
    handler.end_headers()
    for _ in range(20):
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(0.05)


BREAKS_OFF = sends(GOOD[:50], claims=len(GOOD))


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.mark.parametrize("bad", [BREAKS_OFF, sends(b"", code=503), is_silent, hangs_up, drips])
def test_a_failed_try_is_followed_by_another(bad, tmp_path):
    with Server(bad, bad, sends(GOOD)) as server:
        path = tmp_path / "file"
        with pytest.warns(UserWarning, match=r"failed \(.+\)\. Next try in 0.02 s; 2 left"):
            sha256 = download(server.url, path, delay=0.01, timeout=0.2)
    assert path.read_bytes() == GOOD
    assert sha256 == hashlib.sha256(GOOD).hexdigest()
    assert server.asked == 3


@pytest.mark.parametrize(
    ("bad", "message", "n_tries"),
    [
        (BREAKS_OFF, f"broke off after 50 of {len(GOOD)} bytes; 3 tries", 3),
        (sends(b"", code=500), "HTTP Error 500: Internal Server Error; 3 tries", 3),
        (is_silent, "timed out; 3 tries", 3),
        (drips, r"only \d+ bytes came in .* s; 3 tries", 3),
        (hangs_up, "3 tries", 3),
        (sends(b"", code=404), "HTTP Error 404", 1),
        (sends(b"", code=403), "HTTP Error 403", 1),
        (sends(GOOD, claims=10**12), "offers 1,000,000,000,000 bytes, more than 9,999", 1),
        (sends(b"x" * 20_000), "more than 9,999", 1),
    ],
)
def test_what_no_retry_mends_is_an_error(bad, message, n_tries, tmp_path):
    with Server(bad) as server, pytest.raises(OSError, match=message):
        download(server.url, tmp_path / "f", delay=0, n_retries=2, timeout=0.1, max_bytes=9_999)
    assert server.asked == n_tries


def test_the_wait_doubles_up_to_a_minute(monkeypatch, tmp_path):
    waits = []
    monkeypatch.setattr(_download.time, "sleep", waits.append)
    # Port 9 of this machine (discard) refuses connections.
    with pytest.raises(OSError, match="refused; 9 tries"):
        download("http://127.0.0.1:9/x", tmp_path / "f", n_retries=8, delay=1)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


@pytest.fixture
def latest(monkeypatch):
    """Let latest-small be what a server has."""

    def publish(url, **changes):
        spec = dataclasses.replace(
            _catalogue.PUBLISHED["movielens-latest-small"],
            url=url,
            n_rows_between=(2, 2),
            **changes,
        )
        monkeypatch.setitem(_catalogue.PUBLISHED, "movielens-latest-small", spec)

    return publish


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (BREAKS_OFF, OSError, "could not be downloaded.*broke off.*FEDRECSK_DATA.*by hand"),
        (sends(b"<html>Sign in"), ValueError, "not a zip archive but a web page, perhaps"),
        (sends(GOOD[:-9]), ValueError, "not a zip archive but damaged"),
    ],
)
def test_a_bad_archive_is_never_kept(bad, error, message, latest, tmp_path):
    with Server(bad) as server:
        latest(server.url)
        with pytest.raises(error, match="(?s)" + message):
            fetch_movielens("latest-small", data_home=tmp_path, n_retries=0)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing_behind(latest, tmp_path, monkeypatch):
    def interrupted(response, file, timeout, max_bytes):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(_download, "_copy", interrupted)
    with Server(sends(GOOD)) as server:
        latest(server.url)
        with pytest.raises(KeyboardInterrupt):
            fetch_movielens("latest-small", data_home=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named(latest, tmp_path, monkeypatch):
    def full(response, file, timeout, max_bytes):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_download, "_copy", full)
    with Server(sends(GOOD)) as server:
        latest(server.url)
        with pytest.raises(OSError, match="No space left"):
            fetch_movielens("latest-small", data_home=tmp_path)
    assert server.asked == 1
    assert list(tmp_path.iterdir()) == []


def test_the_first_download_is_recorded_and_holds_from_then_on(latest, tmp_path):
    with Server(sends(GOOD)) as server:
        latest(server.url)
        fetch_movielens("latest-small", data_home=tmp_path)
    pin = tmp_path / "ml-latest-small.zip.sha256"
    assert pin.read_text() == f"{hashlib.sha256(GOOD).hexdigest()}  ml-latest-small.zip\n"
    (tmp_path / "ml-latest-small.zip").write_bytes(archive("another"))
    with pytest.raises(ValueError, match=r"SHA256 checksum .* \(recorded in .*\.sha256"):
        fetch_movielens("latest-small", data_home=tmp_path)


def test_a_bomb_is_not_unpacked(latest, tmp_path):
    latest("http://127.0.0.1:9/ml-latest-small.zip", max_unpacked=10)
    (tmp_path / "ml-latest-small.zip").write_bytes(GOOD)
    with pytest.raises(
        ValueError, match=r"unpacks to .* bytes, but MovieLens Latest Small has less"
    ):
        fetch_movielens("latest-small", data_home=tmp_path)


def test_a_data_home_that_is_a_file(tmp_path):
    path = tmp_path / "ratings.csv"
    path.touch()
    for function in (get_data_home, lambda data_home: fetch_movielens("100k", data_home=data_home)):
        with pytest.raises(
            NotADirectoryError, match=r"ratings\.csv is a file, not a folder.*load_"
        ):
            function(path)
        with pytest.raises(OSError, match=r"cannot be created \(Not a directory\).*FEDRECSK_DATA"):
            function(path / "below")


def test_a_data_home_that_is_not_writable(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryDirectory", refuse)
    with pytest.raises(OSError, match=r"not writable \(Permission denied\).*where you may write"):
        fetch_movielens("100k", data_home=tmp_path)
