"""serve.py of the user guide answers requests of all kinds, good and bad."""

import http.client
import json
import re
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import joblib
import pytest

from fedrecsk import LocALS
from tests.conftest import make_toy

pytestmark = pytest.mark.full

PAGE = Path(__file__).resolve().parents[1] / "docs/user_guide/save_and_serve.md"
PATIENCE = 1


def started(folder, model):
    """Return a process that serves a model, and its port."""
    joblib.dump(model, folder / "model.joblib")
    (code,) = re.findall(r"server = r'''(.*?)'''", PAGE.read_text(), re.DOTALL)
    code = re.sub(r"timeout = \d+", f"timeout = {PATIENCE}", code)
    (folder / "serve.py").write_text(code)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "serve.py", "model.joblib", str(port)], cwd=folder, stderr=log
        )
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return process, port
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise RuntimeError((folder / "log").read_text())


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Serve a model whose ids are numbers; yield the port and the log."""
    folder = tmp_path_factory.mktemp("served")
    X, _ = make_toy()
    process, port = started(folder, LocALS(n_factors=2, n_rounds=2, random_state=0).fit(X))
    yield port, folder / "log"
    process.kill()
    process.wait()


def ask(port, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {} if headers is None else headers
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def post(port, content):
    return ask(port, "POST", "/recommend", json.dumps(content))


def test_lists_for_known_users_and_newcomers(server):
    port, _ = server
    status, content = ask(port, "GET", "/recommend?user=100&n=2")
    assert status == 200
    assert len(content["items"]) == len(content["scores"]) == 2
    status, content = post(port, {"items": [1000], "n": 3})
    assert status == 200
    assert len(content["items"]) == 3
    assert 1000 not in content["items"]
    assert ask(port, "GET", "/recommend?user=3")[0] == 404


@pytest.mark.parametrize("path", ["/", "/recommend/", "/other?user=100", "/recommendations", "*"])
def test_other_paths_are_not_found(server, path):
    port, _ = server
    assert ask(port, "GET", path)[0] == ask(port, "POST", path, "{}")[0] == 404


@pytest.mark.parametrize(
    "query",
    ["", "?user", "?n=3", "?user=100&n=x", "?user=100&n=-1", "?user=100&n=1e9", "?user=100&n=0"],
)
def test_wrong_queries_are_bad_requests(server, query):
    port, _ = server
    status, content = ask(port, "GET", f"/recommend{query}")
    assert status == 400
    assert "Error: " in content["error"]


def test_a_user_beyond_all_integers(server):
    port, _ = server
    assert ask(port, "GET", f"/recommend?user={10**30}")[0] == 400


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"null",
        b"[1, 2]",
        b'{"items": 3}',
        b'{"items": null}',
        b'{"items": [], "n": "x"}',
        b'{"items": [[1, 2]]}',
        b'{"items": [{}]}',
        b'{"items": [NaN]}',
        b'{"items": [1e999]}',
        b'{"items": [1000], "n": 1e999}',
        b'{"items": [1000], "n": ' + b"9" * 5000 + b"}",
        b"[" * 100_000 + b"]" * 100_000,
        b'{"items": ' + b"[" * 300 + b"]" * 300 + b"}",
    ],
    ids=lambda body: body[:30].decode(errors="replace"),
)
def test_wrong_bodies_are_bad_requests(server, body):
    port, _ = server
    status, content = ask(port, "POST", "/recommend", body)
    assert status == 400
    assert "Error: " in content["error"]


@pytest.mark.parametrize("size", ["-1", "1e3", "x", "", "9" * 30, "1000000", "١٢".encode()])
def test_wrong_lengths_are_refused_before_anything_is_read(server, size):
    port, _ = server
    status, content = ask(port, "POST", "/recommend", None, {"Content-Length": size})
    assert (status, "Content-Length" in content["error"]) == (400, True)


def test_a_body_without_a_length_is_refused(server):
    port, _ = server
    headers = {"Transfer-Encoding": "chunked"}
    status, content = ask(port, "POST", "/recommend", None, headers)
    assert (status, "Content-Length" in content["error"]) == (400, True)


def test_a_body_shorter_than_its_length_holds_no_thread(server):
    port, _ = server
    status, content = ask(port, "POST", "/recommend", b"{}", {"Content-Length": "999"})
    assert (status, "shorter" in content["error"]) == (408, True)


def test_a_client_that_hangs_up_leaves_no_traceback(server):
    port, log = server
    for reset in (False, True):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"POST /recommend HTTP/1.0\r\nContent-Length: 999\r\n\r\n{")
            # Closed with zero seconds to linger, a connection is reset.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", reset, 0))
    post(port, {"items": []})
    assert "Traceback" not in log.read_text()
