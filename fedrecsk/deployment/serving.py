"""Answer HTTP requests for recommendations: ``python -m fedrecsk serve FILE``.

A file of `export` serves any user with a history. A file of `joblib.dump` contains users, too, and
serves these by their ids.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
import threading
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import joblib
import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from fedrecsk import portable
from fedrecsk._utils.extras import require
from fedrecsk._version import __version__
from fedrecsk.base import Recommender
from fedrecsk.data.ids import id_array

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol
else:
    Protocol = object

__all__ = ["app", "main"]

MOST_BYTES = 2**20
MOST_RECOMMENDATIONS = 1000
MOST_ROWS = 10_000
MOST_REQUESTS = 100
# For the headers of a request to arrive and for its body, for a client to read on, and for requests
# under way to end when the server stops.
SECONDS = 10
# Where a process may open more than twice as many files.
MOST_CONNECTIONS = 1000

LISTS = "items", "ratings", "exclude"
WRONG = {"400": "Wrong request", "404": "Unknown user", "408": "Too slow", "413": "Too large"}


class Refused(Exception):
    """A request that cannot be answered: a status and what is wrong."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Service:
    """Answers requests, whatever carries them.

    Parameters
    ----------
    model : PortableModel or Recommender
    """

    method: str
    rates: bool
    item_ids: np.ndarray

    def __init__(self, model: portable.PortableModel | Recommender) -> None:
        self.fitted: Recommender | None = None
        self.public: portable.PortableModel | None = None
        # A model may compute vectors of its users when they are first asked for.
        self.lock: threading.Lock = threading.Lock()
        ids = model.item_ids_ if isinstance(model, Recommender) else model.item_ids
        self.item_ids = ids
        self.known: frozenset[float | str] = frozenset(ids.tolist())
        if not isinstance(model, Recommender):
            self.public, self.rates, self.method = model, model.rates, model.method
            return
        self.fitted, self.rates = model, model.__sklearn_tags__().target_tags.required
        self.method = type(model).__name__
        # Where there is no public half, the model itself trains newcomers, which takes longer.
        with contextlib.suppress(ValueError):
            self.public = model._portable()

    def health(self) -> dict[str, object]:
        """Return what is served."""
        return {
            "status": "ok",
            "method": self.method,
            "feedback": "ratings" if self.rates else "implicit",
            "n_items": len(self.item_ids),
            "n_users": 0 if self.fitted is None else self.fitted.n_users_,
            "version": __version__,
        }

    def one(self, question: object) -> dict[str, list]:
        """Return the list for a request of one user."""
        if not isinstance(question, dict):
            raise Refused(400, 'a request should be an object, such as {"items": [1, 2]}')
        odd = question.keys() - {"user", "n", *LISTS}
        if odd:
            raise Refused(400, f"{min(odd)[:40]!r} is none of user, items, ratings, exclude and n")
        for name in LISTS:
            rows = question.get(name)
            if rows is not None and not isinstance(rows, list):
                raise Refused(400, f"{name} should be a list")
            if len(rows or ()) > MOST_ROWS:
                raise Refused(413, f"{name} has {len(rows)} entries, more than {MOST_ROWS}")
        n = question.get("n", 10)
        if type(n) is not int or not 1 <= n <= MOST_RECOMMENDATIONS:
            raise Refused(400, f"n should be a whole number from 1 to {MOST_RECOMMENDATIONS}")
        user, items, exclude = (question.get(name) for name in ("user", "items", "exclude"))
        for name, ids in (("items", items), ("exclude", exclude)):
            self._check_ids(ids or [], name)
        # In Python, true is the number 1.
        if any(isinstance(one, bool) for one in (user, *(question.get("ratings") or ()))):
            raise Refused(400, "true and false are neither users nor ratings")
        if (user is None) == (items is None):
            raise Refused(400, "give either user, an id, or items, the history of a new user")
        try:
            if user is not None:
                if question.get("ratings") is not None:
                    raise ValueError("ratings belong to items; a known user has its own")
                found = self._known(user, n, exclude or [])
            else:
                found = self._newcomer(items, question.get("ratings"), n, exclude or [])
        except (ValueError, TypeError, OverflowError) as error:
            raise Refused(400, str(error)) from error
        answer = dict(zip(("items", "scores"), (array.tolist() for array in found), strict=True))
        unknown = [one for one in (*(items or ()), *(exclude or ())) if one not in self.known]
        return answer | {"unknown_items": list(dict.fromkeys(unknown))}

    def _check_ids(self, ids, name):
        """Refuse what can be no id of an item."""
        kind = "string" if self.item_ids.dtype.kind == "U" else "number, from 2**53 an integer"
        for one in ids:
            # Larger floats stand for several integers.
            is_number = type(one) is int or (type(one) is float and abs(one) < 2**53)
            if not (isinstance(one, str) if self.item_ids.dtype.kind == "U" else is_number):
                raise Refused(400, f"an item's id is a {kind}; {name} has {str(one)[:40]!r}")

    def many(self, question: object) -> dict[str, list]:
        """Return the lists for a batch of requests, in their order."""
        if not isinstance(question, dict) or not isinstance(question.get("requests"), list):
            raise Refused(400, 'a batch should be an object, {"requests": [...]}')
        if len(question["requests"]) > MOST_REQUESTS:
            n = len(question["requests"])
            raise Refused(413, f"a batch of {n} requests is more than {MOST_REQUESTS}")
        results = []
        for number, one in enumerate(question["requests"]):
            try:
                results.append(self.one(one))
            except Refused as error:
                raise Refused(error.status, f"request {number} of the batch: {error}") from error
        return {"results": results}

    def _known(self, user, n, exclude):
        """Return ids and scores for a user of the fitted model."""
        if self.fitted is None:
            raise Refused(404, "this file contains no users; give items, the user's history")
        if self.fitted._users.codes(id_array([user], "user"))[0] < 0:
            raise Refused(404, f"there is no user {str(user)[:40]!r}; give items instead")
        return self._listed([user], n, exclude)

    def _newcomer(self, items, ratings, n, exclude):
        """Return ids and scores for a history."""
        if self.public is not None:
            return self.public.recommend(items, ratings, n, exclude=exclude)
        assert self.fitted is not None
        if ratings is None and self.rates:
            raise ValueError(
                f"{self.method} is a model of ratings; give ratings, one for each item"
            )
        if ratings is not None and len(ratings) != len(items):
            raise ValueError(f"ratings should be one number for each of the {len(items)} items")
        if not items:
            raise ValueError("items is empty; the history has at least one item")
        user = self._nobody()
        if self.known.isdisjoint(items):
            return self._listed([user], n, exclude)
        # The order of items stands in for times; other columns are not read.
        n_more = self.fitted.n_features_in_ - 2
        rows = [[user, item, *[place] * n_more] for place, item in enumerate(items)]
        return self._listed([user], n, exclude, interactions=(rows, ratings))

    def _nobody(self):
        """Return an id that no user has, and that says nothing about theirs."""
        assert self.fitted is not None
        strings = self.fitted.user_ids_.dtype.kind == "U"
        while True:
            user = secrets.token_hex(16) if strings else secrets.randbelow(2**53)
            if self.fitted._users.codes(id_array([user], "user"))[0] < 0:
                return user

    def _listed(self, users, n, exclude, **others):
        """Return ids and scores of the fitted model's list, without empty places."""
        assert self.fitted is not None
        pairs = [[users[0], item] for item in exclude] or None
        with self.lock:
            items, scores = self.fitted.recommend(users, n, exclude_interactions=pairs, **others)
        found = scores[0] > -np.inf
        return items[0][found], scores[0][found]

    def document(self) -> dict[str, object]:
        """Return the OpenAPI document."""
        ids = {"type": "string" if self.item_ids.dtype.kind == "U" else "number"}
        example: dict[str, object] = {"items": self.item_ids[:2].tolist(), "n": 3}
        if self.rates:
            scale = getattr(self.fitted, "rating_scale_", None) or getattr(self.public, "_scale", 0)
            example["ratings"] = [scale[1] if scale else 1] * len(example["items"])
        lists = {"type": "array", "items": ids, "maxItems": MOST_ROWS}
        numbers = {"type": "array", "items": {"type": "number"}}
        request = _object(
            user={"type": ["string", "number"], "description": "Id of a known user."},
            items=lists | {"description": "Ids of a new user's items, oldest first."},
            ratings=numbers | {"description": "A rating of each of the items."},
            exclude=lists | {"description": "Ids that must not be recommended."},
            n={"type": "integer", "minimum": 1, "maximum": MOST_RECOMMENDATIONS, "default": 10},
        )
        request |= {
            "additionalProperties": False,
            "description": "Either user, or items (and ratings, for a model of ratings).",
            "example": example,
        }
        unknown = {"description": "Those of items and exclude that the model does not know."}
        found = _object(items=lists, scores=numbers, unknown_items=lists | unknown)
        batch = _object(requests={"type": "array", "items": request, "maxItems": MOST_REQUESTS})
        batch |= {"required": ["requests"], "example": {"requests": [example]}}
        health = {"summary": "What is served", "responses": _answer("OK", {"type": "object"})}
        return {
            "openapi": "3.1.0",
            "info": {"title": f"Recommendations of {self.method}", "version": __version__},
            "paths": {
                "/recommend": _post("One user's list", request, found),
                "/recommend/batch": _post(
                    "Lists of several users",
                    batch,
                    _object(results={"type": "array", "items": found}),
                ),
                "/health": {"get": health},
            },
        }


def _object(**properties):
    return {"type": "object", "properties": properties}


def _json(schema):
    return {"content": {"application/json": {"schema": schema}}}


def _answer(description, schema, code="200"):
    return {code: {"description": description} | _json(schema)}


def _post(summary, body, answer):
    """Return the document of a path to which requests are posted."""
    responses, error = _answer("OK", answer), _object(error={"type": "string"})
    for code, why in WRONG.items():
        responses |= _answer(why, error, code)
    body = {"required": True} | _json(body)
    return {"post": {"summary": summary, "requestBody": body, "responses": responses}}


def app(model: portable.PortableModel | Recommender) -> Starlette:
    """Return a web application that recommends by a model; needs the extra `serve`.

    Parameters
    ----------
    model : PortableModel or fitted estimator

    Returns
    -------
    app : starlette.applications.Starlette
        ``POST /recommend``, ``POST /recommend/batch``, ``GET /health`` and ``GET /openapi.json``.

    Raises
    ------
    ImportError
        If starlette is missing.
    """
    caller = "python -m fedrecsk serve"
    applications = require("starlette.applications", caller)
    concurrency, exceptions, requests, responses, routing = (
        require(f"starlette.{name}", caller)
        for name in ("concurrency", "exceptions", "requests", "responses", "routing")
    )
    service = Service(model)

    def endpoint(answer):
        async def respond(request):
            try:
                question = await _question(request)
                # In a thread, so that others are answered meanwhile.
                return responses.JSONResponse(await concurrency.run_in_threadpool(answer, question))
            except Refused as error:
                return responses.JSONResponse({"error": str(error)}, error.status)
            except requests.ClientDisconnect:
                # Nobody is there to read it.
                return responses.Response(status_code=400)

        return respond

    async def health(request):
        return responses.JSONResponse(service.health())

    async def document(request):
        return responses.JSONResponse(service.document())

    async def wrong(request, error):
        headers = getattr(error, "headers", None)
        return responses.JSONResponse({"error": error.detail}, error.status_code, headers)

    routes = [
        routing.Route("/recommend", endpoint(service.one), methods=["POST"]),
        routing.Route("/recommend/batch", endpoint(service.many), methods=["POST"]),
        routing.Route("/health", health),
        routing.Route("/openapi.json", document),
    ]
    handlers = {exceptions.HTTPException: wrong}
    application = applications.Starlette(routes=routes, exception_handlers=handlers)
    application.router.redirect_slashes = False
    return application


async def _question(request):
    """Return a request's JSON, or refuse it before it is read whole."""
    size = request.headers.get("content-length", "0")
    body = bytearray()
    try:
        async with asyncio.timeout(SECONDS):
            if int(size) <= MOST_BYTES:
                async for part in request.stream():
                    body += part
                    if len(body) > MOST_BYTES:
                        break
    except TimeoutError as error:
        raise Refused(408, f"the request did not arrive within {SECONDS} s") from error
    if int(size) > MOST_BYTES or len(body) > MOST_BYTES:
        raise Refused(413, f"the request is larger than {MOST_BYTES} bytes")
    try:
        return json.loads(bytes(body), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the request is not JSON: {error}") from error


def _no_constant(name):
    raise ValueError(f"{name} is no number")


class _Impatient(Protocol):
    """A protocol of uvicorn that closes connections of clients who keep it waiting.

    Where there are too many connections, it closes the oldest that has no request under way.
    """

    most: int

    def connection_made(self, transport):
        """Begin to wait for headers."""
        super().connection_made(transport)
        self.limits = {}
        self.since = self.loop.time()
        self._limit("headers", True)
        ours = [one for one in self.connections if isinstance(one, _Impatient)]
        there = [one for one in ours if not one.transport.is_closing()]
        if len(there) > self.most:
            waiting = [one for one in there if one.waits_for_request()]
            min(waiting, key=lambda one: one.since).transport.abort()

    def data_received(self, data):
        """Go on waiting if the headers are not complete."""
        super().data_received(data)
        self._limit("headers", self.waits_for_request())

    def pause_writing(self):
        """Begin to wait for the client to read."""
        super().pause_writing()
        self._limit("reading", True)

    def resume_writing(self):
        """Wait no more."""
        super().resume_writing()
        self._limit("reading", False)

    def connection_lost(self, reason):
        """Wait no more for anything."""
        for what in list(self.limits):
            self._limit(what, False)
        super().connection_lost(reason)

    def waits_for_request(self):
        """Return whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    def _limit(self, what, waits):
        if waits and what not in self.limits:
            self.limits[what] = self.loop.call_later(SECONDS, self.transport.abort)
        elif not waits and what in self.limits:
            self.limits.pop(what).cancel()


def _most_connections():
    """Return how many connections leave enough files for those that are being accepted."""
    try:
        resource = import_module("resource")
    # Windows has none.
    except ImportError:
        return MOST_CONNECTIONS
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_unlimited = most == resource.RLIM_INFINITY
    return MOST_CONNECTIONS if is_unlimited else max(1, min(MOST_CONNECTIONS, most // 2))


def loaded(path: str, trust: bool) -> portable.PortableModel | Recommender:
    """Return the model of a file; ValueError if it has none, or could run code and is not trusted.

    Parameters
    ----------
    path : str
    trust : bool
        Whether the file may run code.
    """
    if portable.is_portable(path):
        return portable.load(path)
    if not trust:
        raise ValueError(
            f"{path} was not written by export. If joblib.dump wrote it, loading it can run any "
            "code; add --trust if it is yours."
        )
    try:
        model = joblib.load(Path(path).expanduser())
        if isinstance(model, Recommender):
            check_is_fitted(model)
            return model
    except NotFittedError as error:
        raise ValueError(f"the {type(model).__name__} of {path} is not fitted") from error
    # Pickles of other things raise nearly anything.
    except Exception as error:
        raise ValueError(f"{path} cannot be loaded ({type(error).__name__}: {error})") from error
    raise ValueError(f"{path} has a {type(model).__name__} and no estimator of fedrecsk")


def _port(text):
    if not text.isdecimal() or int(text) >= 2**16:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; give a number from 0 to 65535")
    return int(text)


def main(argv: Sequence[str]) -> None:
    """Serve a model until a signal ends it.

    Parameters
    ----------
    argv : sequence of str
        Arguments of ``python -m fedrecsk serve``. Wrong ones raise SystemExit(2) after a message.
    """
    parser = argparse.ArgumentParser(
        "fedrecsk serve", description="Answer HTTP requests for recommendations."
    )
    parser.add_argument("file", help="of model.export(...), or, with --trust, of joblib.dump")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=_port, default=8000, help="(%(default)s; 0: any free one)")
    parser.add_argument("--trust", action="store_true", help="load a file that can run code")
    options = parser.parse_args(argv)
    try:
        uvicorn = require("uvicorn", "python -m fedrecsk serve")
        http = require("uvicorn.protocols.http.auto", "python -m fedrecsk serve")
        application = app(loaded(options.file, options.trust))
    except (OSError, ValueError, ImportError) as error:
        parser.error(str(error))
    most = _most_connections()
    uvicorn.run(
        application,
        http=type("Protocol", (_Impatient, http.AutoHTTPProtocol), {"most": most}),
        ws="none",
        # uvloop raises an error for each answer to a client that has hung up.
        loop="asyncio",
        # asyncio accepts as many at once, before it tells the protocol about any.
        backlog=max(1, min(100, most // 8)),
        host=options.host,
        port=options.port,
        access_log=False,
        timeout_graceful_shutdown=SECONDS,
    )
