"""`python -m fedrecsk serve`: a real process of uvicorn on loopback, asked by a real client."""

import http.client
import json
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from importlib.util import find_spec

import joblib
import numpy as np
import pytest

import fedrecsk
from fedrecsk import EASE, RFRec, portable
from fedrecsk.deployment import serving
from tests.conftest import make_toy
from tests.test_contract import make
from tests.test_explain import fitted

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        not (find_spec("starlette") and find_spec("uvicorn")), reason="needs the extra serve"
    ),
]


# Seconds in which a busy machine answers, too.
WINDOW = 120


class Server:
    """A process that serves a file; `ask` sends it a request."""

    def __init__(self, path, *options, **others):
        self.log = path.with_suffix(".log")
        command = [sys.executable, "-m", "fedrecsk", "serve", str(path), "--port", "0", *options]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, stderr=log, **others)
        self.port = None
        while self.port is None and self.process.poll() is None:
            found = re.search(r"running on http://127.0.0.1:(\d+)", self.log.read_text())
            self.port = int(found[1]) if found else time.sleep(0.05)
        assert self.port, self.log.read_text()

    def connection(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=WINDOW)

    def ask(self, method, path, content=None, connection=None, headers=None):
        connection = connection or self.connection()
        body = json.dumps(content) if isinstance(content, dict | list) else content
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    def post(self, content, **options):
        return self.ask("POST", "/recommend", content, **options)


def served(tmp_path_factory, name, trust):
    model, X, _ = fitted(name)
    path = tmp_path_factory.mktemp(name) / "model.fedrecsk"
    if trust:
        joblib.dump(model, path)
    else:
        model.export(path)
    server = Server(path, *["--trust"][: int(trust)])
    yield server, model, X
    server.process.kill()
    server.process.wait()


@pytest.fixture(scope="module")
def likes(tmp_path_factory):
    """An exported model of likes."""
    yield from served(tmp_path_factory, "LocALS", trust=False)


@pytest.fixture(scope="module")
def ratings(tmp_path_factory):
    """A fitted model of ratings with users."""
    yield from served(tmp_path_factory, "FedEB", trust=True)


def of_newcomer(model, items, ratings, n):
    rows = np.column_stack([np.full(len(items), 77), items])
    found, scores = model.recommend([77], n, interactions=(rows, ratings))
    return found[0].tolist(), scores[0]


def test_newcomers_of_a_model_of_likes(likes):
    server, model, X = likes
    items = model.item_ids_[[1, 4]].tolist()
    status, content = server.post({"items": items, "n": 3})
    expected, scores = of_newcomer(model, items, None, 3)
    assert (status, content["items"]) == (200, expected)
    assert np.allclose(content["scores"], scores, rtol=1e-4)
    excluded = {"items": items, "n": 3, "exclude": expected[:1]}
    assert server.post(excluded)[1]["items"][:2] == expected[1:]
    status, content = server.post({"user": int(X[0, 0])})
    assert status == 404
    assert "contains no users" in content["error"]


def test_users_and_newcomers_of_a_model_of_ratings(ratings):
    server, model, X = ratings
    user = int(X[0, 0])
    status, content = server.post({"user": user, "n": 2})
    items, scores = model.recommend([user], 2)
    assert (status, content["items"]) == (200, items[0].tolist())
    assert np.allclose(content["scores"], scores[0])
    others = server.post({"user": user, "n": 2, "exclude": content["items"]})[1]["items"]
    assert not set(others) & set(content["items"])
    history = {"items": model.item_ids_[[1, 4]].tolist(), "ratings": [5, 1.5]}
    status, content = server.post(history | {"n": 3})
    expected, scores = of_newcomer(model, history["items"], [5, 1.5], 3)
    assert (status, content["items"]) == (200, expected)
    assert np.allclose(content["scores"], scores, rtol=1e-4)


def test_batches_are_answered_in_order(ratings):
    server, model, _ = ratings
    questions = [{"user": int(user), "n": 1} for user in model.user_ids_]
    questions += [{"items": [int(model.item_ids_[0])], "ratings": [3]}]
    status, content = server.ask("POST", "/recommend/batch", {"requests": questions})
    assert status == 200
    assert content["results"] == [server.post(question)[1] for question in questions]
    assert server.ask("POST", "/recommend/batch", {"requests": []})[1] == {"results": []}
    questions[3] = {"user": 10**6}
    status, content = server.ask("POST", "/recommend/batch", {"requests": questions})
    assert (status, content["error"][:23]) == (404, "request 3 of the batch:")
    too_many = {"requests": [{}] * (serving.MOST_REQUESTS + 1)}
    assert server.ask("POST", "/recommend/batch", too_many)[0] == 413
    for wrong in ({}, [], {"requests": {}}, {"requests": [3]}):
        assert server.ask("POST", "/recommend/batch", wrong)[0] == 400


def test_health_and_the_openapi_document(likes, ratings):
    status, health = likes[0].ask("GET", "/health")
    assert (status, health["status"], health["feedback"]) == (200, "ok", "implicit")
    assert (health["method"], health["n_items"], health["n_users"]) == ("LocALS", 9, 0)
    assert ratings[0].ask("GET", "/health")[1]["n_users"] == 12
    for server, *_ in (likes, ratings):
        status, document = server.ask("GET", "/openapi.json")
        assert (status, document["openapi"]) == (200, "3.1.0")
        assert set(document["paths"]) == {"/recommend", "/recommend/batch", "/health"}
        for path in ("/recommend", "/recommend/batch"):
            body = document["paths"][path]["post"]["requestBody"]["content"]
            assert server.ask("POST", path, body["application/json"]["schema"]["example"])[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe\x00",
        b"[1, 2]",
        b"{}",
        b'{"items": 3}',
        b'{"items": [1000], "user": 100}',
        b'{"items": [1000], "n": 1001}',
        b'{"items": [1000], "n": true}',
        b'{"items": [1000], "n": 1e999}',
        b'{"items": [1000], "n": ' + b"9" * 5000 + b"}",
        b'{"items": [1000], "number": 3}',
        b'{"items": [{}], "ratings": [1]}',
        b'{"items": [NaN], "ratings": [1]}',
        b'{"items": ["1000"], "ratings": [1]}',
        b'{"items": [1000], "ratings": [1, 2]}',
        b'{"items": [1000], "ratings": ["good"]}',
        b'{"items": [1000], "ratings": [99999]}',
        b'{"items": [1000], "exclude": [[]], "ratings": [1]}',
        b'{"user": "ann"}',
        b'{"user": [1]}',
        b'{"user": 1.5}',
        b'{"user": true}',
        b'{"items": [true], "ratings": [3]}',
        b'{"items": [1000], "ratings": [true]}',
        b'{"items": [1000], "ratings": [3], "exclude": [true]}',
        b'{"items": [1e999], "ratings": [3]}',
        b"[" * 100_000 + b"]" * 100_000,
    ],
    ids=lambda body: body[:40].decode(errors="replace"),
)
def test_wrong_requests_are_named(ratings, body):
    status, content = ratings[0].post(body)
    assert status in (400, 404)
    assert content["error"]


def test_other_paths_and_methods(likes):
    server = likes[0]
    for path in ("/", "/recommend/", "/recommend/batches"):
        assert server.ask("POST", path, {})[0] == 404
    assert server.ask("GET", "/recommend") == (405, {"error": "Method Not Allowed"})
    assert server.ask("POST", "/health", {})[0] == 405


def test_large_requests_are_refused(likes):
    server = likes[0]
    many = {"items": [1000] * (serving.MOST_ROWS + 1)}
    assert server.post(many)[0] == 413
    assert server.post({"items": [1], "exclude": many["items"]})[0] == 413
    # Before it is read: it says how long it is, and sends nothing.
    headers = {"Content-Length": str(serving.MOST_BYTES + 1)}
    status, content = server.post(None, headers=headers)
    assert (status, "larger than" in content["error"]) == (413, True)
    # And while it is read, where it does not say so.
    connection = server.connection()
    parts = iter([b" " * 2**18] * 5)
    try:
        connection.request("POST", "/recommend", parts, encode_chunked=True)
        assert connection.getresponse().status == 413
    except (BrokenPipeError, ConnectionResetError):
        pass
    assert server.ask("GET", "/health")[0] == 200


def test_slow_and_vanishing_clients_hold_nobody_up(likes):
    server = likes[0]
    for reset in (False, True):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(
                b"POST /recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n{"
            )
            time.sleep(0.1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", reset, 0))
    status, content = server.post(b"{}", headers={"Content-Length": "999"})
    assert (status, "did not arrive" in content["error"]) == (408, True)
    assert "Traceback" not in server.log.read_text()


def test_clients_that_hang_up_leave_no_traceback(likes):
    """Even between their first request and the answers to those behind it."""
    server, model, _ = likes
    body = json.dumps({"requests": 100 * [{"items": model.item_ids_[:1].tolist()}]}).encode()
    request = b"POST /recommend/batch HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
    request %= len(body), body
    for content in (request, 3 * request, 20 * request):
        for seconds in (0, 0.005, 0.02, 0.1):
            for reset in (False, True):
                with socket.create_connection(("127.0.0.1", server.port)) as connection:
                    connection.sendall(content)
                    time.sleep(seconds)
                    linger = struct.pack("ii", reset, 0)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    assert server.ask("GET", "/health")[0] == 200
    assert "Traceback" not in server.log.read_text()


def few_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))


def test_half_sent_headers_hold_nobody_up(tmp_path):
    """More of them than the server may open files."""
    fitted("EASE")[0].export(tmp_path / "model.fedrecsk")
    server = Server(tmp_path / "model.fedrecsk", preexec_fn=few_files)
    with ExitStack() as stack:
        for _ in range(240):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            one.sendall(b"POST /recommend HTTP/1.1\r\nHost:")
        connection = server.connection()
        for _ in range(3):
            assert server.post({"items": [1000]}, connection=connection)[0] == 200
        # None of them is kept for long.
        one.settimeout(WINDOW)
        with suppress(ConnectionResetError):
            assert one.recv(100) == b""
    assert "Traceback" not in server.log.read_text()
    server.process.kill()
    server.process.wait()


def send_on(connection, content):
    for _ in range(WINDOW):
        connection.sendall(content)
        time.sleep(1)


def test_a_client_who_reads_no_answer_is_cut_off(likes):
    unknown = json.dumps({"items": [10**90 + k for k in range(8000)]}).encode()
    head = b"POST /recommend HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(unknown)
    with socket.create_connection(("127.0.0.1", likes[0].port)) as connection:
        connection.settimeout(WINDOW)
        with pytest.raises(ConnectionError):
            send_on(connection, 10 * (head + unknown))


def test_requests_of_many_threads(ratings):
    server, model, _ = ratings
    questions = [
        {"user": int(model.user_ids_[k % 12]), "n": 3}
        if k % 2
        else {"items": [int(model.item_ids_[k % 9])], "ratings": [1 + k % 5], "n": 3}
        for k in range(360)
    ]

    def answers(mine):
        connection = server.connection()
        return [server.post(question, connection=connection) for question in mine]

    with ThreadPoolExecutor(8) as pool:
        found = [one for part in pool.map(answers, np.array_split(questions, 8)) for one in part]
    assert [status for status, _ in found] == [200] * 360
    expected = {json.dumps(question): server.post(question)[1] for question in questions[:180]}
    for question, (_, content) in zip(questions, found, strict=True):
        assert content == expected[json.dumps(question)]


def test_it_stops_when_told_and_answers_first(tmp_path):
    fitted("EASE")[0].export(tmp_path / "model.fedrecsk")
    server = Server(tmp_path / "model.fedrecsk")
    connection = server.connection()
    assert server.post({"items": [1000]}, connection=connection)[0] == 200
    # A request under way, of which the end comes after the signal.
    with socket.create_connection(("127.0.0.1", server.port)) as late:
        body = b'{"items": [1000]}'
        head = f"POST /recommend HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        late.sendall(head.encode() + body[:5])
        # Whoever came later has an answer, so that this request is under way.
        assert server.post({"items": [1000]})[0] == 200
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        late.sendall(body[5:])
        assert late.recv(100).startswith(b"HTTP/1.1 200")
    assert server.process.wait(timeout=WINDOW) in (0, -signal.SIGTERM)
    assert "Traceback" not in server.log.read_text()
    with pytest.raises(ConnectionError):
        server.ask("GET", "/health")


def test_models_without_a_public_half_fold_newcomers_in(toy):
    X, y = toy
    for user, newcomer in ((lambda one: one, 7), ("user {}".format, "x")):
        names = [[user(one), item] for one, item in X.tolist()]
        model = make(RFRec).fit(names, y)
        service, items = serving.Service(model), X[:2, 1].tolist()
        content = service.one({"items": items, "ratings": [5, 1], "n": 3})
        rows = [[newcomer, item] for item in items]
        theirs = model.recommend([newcomer], 3, interactions=(rows, [5, 1]))
        assert content["items"] == theirs[0][0].tolist()
        assert model.n_users_ == 12
        for wrong in ({"items": items}, {"items": items, "ratings": [1]}, {"items": []}):
            with pytest.raises(serving.Refused):
                service.one(wrong)


@pytest.mark.parametrize("name", ["EASE", "RFRec"])
def test_unknown_items_are_told(name, toy):
    """With a public half and without one."""
    X, y = toy
    model = make(getattr(fedrecsk, name)).fit(X, y)
    service, known = serving.Service(model), model.item_ids_[:2].tolist()
    ratings = {"ratings": [5, 4, 3]} if service.rates else {}
    for items, unknown in (([*known, 777], [777]), ([777, 888, 777], [777, 888])):
        answer = service.one({"items": items, "exclude": [999], "n": 2} | ratings)
        assert answer["unknown_items"] == [*unknown, 999]
    everybodys, _ = model.recommend([10**6], 2)
    assert answer["items"] == everybodys[0].tolist()


@pytest.mark.parametrize("name", ["EASE", "RFRec"])
def test_large_ids_are_taken_as_integers_and_refused_as_floats(name, toy):
    """With a public half and without one."""
    X, y = toy
    X = X * [1, 2**44] + [0, 1]
    service = serving.Service(make(getattr(fedrecsk, name)).fit(X, y))
    known = service.item_ids[:2].tolist()
    ratings = {"ratings": [5, 4]} if service.rates else {}
    answer = service.one(json.loads(json.dumps({"items": known, "n": 2} | ratings)))
    assert not answer["unknown_items"]
    assert set(answer["items"]) <= set(service.item_ids.tolist()) - set(known)
    for wrong in ([float(known[0])], [1e300]):
        for question in ({"items": wrong} | ratings, {"items": known, "exclude": wrong} | ratings):
            with pytest.raises(serving.Refused, match=r"from 2\*\*53 an integer"):
                service.one(question)


def test_errors_name_no_user(toy):
    X, y = toy
    # No score has these digits by chance.
    X = X + np.array([10**15, 0])
    for user in (lambda one: one, "user {}".format):
        model = make(RFRec).fit([[user(one), item] for one, item in X.tolist()], y)
        service, largest = serving.Service(model), str(max(model.user_ids_.tolist()))
        for items, ratings in (([1000], [99999]), ([777], [3]), (["x"], [3]), ([1000], ["x"])):
            try:
                text = str(service.one({"items": items, "ratings": ratings}))
            except serving.Refused as error:
                text = str(error)
            assert largest not in text
            assert str(X[:, 0].max() + 1) not in text


class Other:
    pass


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (None, [], "No such file"),
        (None, ["--port", "99999"], "'99999' is not a port; give a number from 0 to 65535"),
        (None, ["--port", "-1"], "'-1' is not a port"),
        (EASE(), [], "add --trust"),
        (EASE(), ["--trust"], "not fitted"),
        (Other(), ["--trust"], "no estimator of fedrecsk"),
        (b"abc", ["--trust"], "cannot be loaded"),
    ],
)
def test_wrong_files_end_it_with_a_message(tmp_path, capsys, content, options, message):
    path = tmp_path / "model"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        joblib.dump(content, path)
    with pytest.raises(SystemExit) as ended:
        serving.main([str(path), *options])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_model_in_the_home_folder_is_found(tmp_path, monkeypatch):
    model, *_ = fitted("EASE")
    joblib.dump(model, tmp_path / "dumped")
    model.export(tmp_path / "exported")
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    assert isinstance(serving.loaded("~/dumped", trust=True), EASE)
    assert isinstance(serving.loaded("~/exported", trust=False), portable.PortableModel)


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_a_missing_extra_is_named(tmp_path, capsys, monkeypatch, package):
    fitted("EASE")[0].export(tmp_path / "model")
    monkeypatch.setitem(sys.modules, package, None)
    for name in [one for one in sys.modules if one.startswith(f"{package}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit):
        serving.main([str(tmp_path / "model")])
    assert f"serve needs {package}: pip install '.[serve]'" in capsys.readouterr().err


@pytest.mark.parametrize("timestamps", [2, "row_order"])
def test_the_order_of_a_newcomers_items_is_that_of_time(timestamps):
    X, _ = make_toy()
    X = np.column_stack([X, np.arange(len(X))])
    model = EASE(reg=1.0, history_half_life=0.5, timestamps=timestamps).fit(X)
    service, items = serving.Service(model), model.item_ids_[:4].tolist()
    newcomers = [[999, item, 10**6 + k] for k, item in enumerate(items)]
    expected = model.recommend([999], 3, interactions=newcomers)
    found = service.one({"items": items, "n": 3})
    assert found["items"] == expected[0][0].tolist()
    assert found["scores"] == pytest.approx(expected[1][0].tolist())
    assert service.one({"items": items[::-1], "n": 3})["scores"] != found["scores"]
