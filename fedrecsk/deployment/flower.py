"""Run a federated estimator on Flower: the two apps of a Flower project; needs flwr."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from fedrecsk._utils.extras import require

require("flwr", "fedrecsk.deployment.flower")

from flwr.app import ConfigRecord, Context, Message, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402

from fedrecsk.deployment.checks import check, check_deployable, fits_of  # noqa: E402
from fedrecsk.deployment.coordinator import Coordinator  # noqa: E402
from fedrecsk.deployment.exchanges import Carrier, Reply, Request  # noqa: E402
from fedrecsk.deployment.keys import read_identity  # noqa: E402
from fedrecsk.deployment.node import Node  # noqa: E402
from fedrecsk.deployment.records import TOGETHER  # noqa: E402
from fedrecsk.deployment.search import SearchCoordinator  # noqa: E402
from fedrecsk.deployment.server_model import send_new_items  # noqa: E402
from fedrecsk.deployment.store import Store  # noqa: E402
from fedrecsk.selection import FederatedSearch  # noqa: E402

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from pandas import DataFrame

    from fedrecsk.deployment.node import Loaded
    from fedrecsk.federated.base import FederatedRecommender
    from fedrecsk.protocol.keys import Key

    Estimator = (
        FederatedRecommender
        | FederatedSearch
        | Callable[[Context], FederatedRecommender | FederatedSearch]
    )

__all__ = ["client_app", "server_app"]

# Flower's type of each request.
TYPES = {"setup": "train", "round": "train", "validate": "evaluate", "evaluate": "evaluate"}
TYPES |= {TOGETHER: "train"}
RECORD, CONTENT = "fedrecsk", "content"


def server_app(
    estimator: Estimator,
    *,
    n_clients: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    quorum: float = 0.5,
    patience: float = 60.0,
    gathering: float = 600.0,
    poll: float = 0.1,
    update: bool = False,
    add_items: DataFrame | None = None,
    key: Key | None = None,
    evaluate: Sequence[str] | None = None,
    n_negatives: int | None = None,
) -> ServerApp:
    """Make the ServerApp of a Flower project, which runs the server of a fit.

    It waits for `n_clients` clients, runs the set-up and the rounds, and sends all clients the
    final model. After every round it writes a checkpoint into `folder`. If it is interrupted, the
    next run with the same folder continues from there. At the end it saves ``model.joblib`` there:
    a fitted estimator without users, for new users by `fold_in`.

    With a :class:`~fedrecsk.selection.FederatedSearch`, nodes train all candidates side by side: a
    message to a node contains one for each candidate. The winner then learns from all rows. The
    server also saves ``search.joblib``, the fitted search, and ``search.txt``, its report.

    Parameters
    ----------
    estimator : federated estimator, FederatedSearch, or callable
        With the same parameters as the clients'. `items` must be the catalogue, and rating methods
        need `rating_scale`. A search needs an int as `random_state`. Or a function that takes
        Flower's Context and returns the estimator.
    n_clients : int
        Number of clients with which the fit begins.
    folder : str or Path
        Folder for the checkpoint and the model, seen from where ``flower-superlink`` was started.
    quorum : float in (0, 1], default=0.5
        Share of a round's clients whose uploads suffice after `patience` seconds. A client that
        does not answer in time is asked again in later rounds, but not waited for.
    patience : float, default=60
        Seconds to wait for the answers of a round. With fewer answers than the quorum the clients
        are asked again, three times in all.
    gathering : float, default=600
        Seconds to wait for the clients to register.
    poll : float, default=0.1
        Seconds between two looks at what has arrived.
    update : bool, default=False
        Whether to continue from the last fit in `folder`, as `partial_fit` does; both with
        ``warm_start=True`` on all machines. Nodes compare their rows, old and new ones, with those
        of the last fit and continue with their users' state. `items` may include new items.
    add_items : DataFrame or None, default=None
        Features of new items. Nothing is trained: the items are added to the model of the last fit
        (with ``warm_start=True``) in `folder`, as by `add_items`, and its nodes are sent their rows
        alone. If None, a fit.
    key : Key or None, default=None
        Seed of the draws that server and clients share. If None, drawn by the operating system.
    evaluate : sequence of str or None, default=None
        Metrics of the final model on test rows of the clients, as in
        :func:`fedrecsk.selection.federated_evaluate`. The report is saved as ``evaluation.txt``,
        and is ``evaluation_`` of the saved model. If None, the model is
        not evaluated.
    n_negatives : int or None, default=None
        With `evaluate`: number of items among which test rows are ranked, drawn by each client. If
        None, the whole catalogue.

    Returns
    -------
    app : flwr.serverapp.ServerApp

    Raises
    ------
    ValueError
        If the estimator cannot be deployed. The message names the parameter.
        A search is refused with ``refit=False``, in a Pipeline, with ``random_state=None``, and
        under `central_dp` or `local_dp`.

    Notes
    -----
    Entries of the run configuration with the same name, but hyphens (``n-clients``, ``folder``,
    ``quorum``, ``patience``, ``gathering``, ``poll``, ``update``), take precedence.

    Examples
    --------
    >>> from fedrecsk import LocALS
    >>> from fedrecsk.deployment.flower import server_app
    >>> app = server_app(LocALS(8, items=range(100)), n_clients=3, folder="server")
    """
    _check(estimator)
    settings = {
        "n_clients": n_clients,
        "folder": folder,
        "quorum": quorum,
        "patience": patience,
        "gathering": gathering,
        "poll": poll,
        "update": update,
    }
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        _log_as_flower_does()
        given = {
            name: context.run_config.get(name.replace("_", "-"), value)
            for name, value in settings.items()
        }
        _check_settings(given)
        carrier = FlowerCarrier(grid, float(given.pop("poll")), float(given["patience"]))
        store = Store(given.pop("folder"))
        method = _chosen(estimator, context)
        if add_items is not None:
            check_deployable(method)
            del given["update"]
            send_new_items(method, add_items, carrier, store, **given)
            return
        given |= {"key": key, "evaluate": evaluate, "n_negatives": n_negatives}
        make = SearchCoordinator if isinstance(method, FederatedSearch) else Coordinator.of
        make(method, carrier, store, **given).run()

    return app


def client_app(
    estimator: Estimator,
    load_data: Callable[[Context], Loaded],
    *,
    folder: Callable[[Context], str | os.PathLike[str]] | None = None,
    keys: Callable[[Context], str | os.PathLike[str]] | None = None,
) -> ClientApp:
    """Make the ClientApp of a Flower project, which runs a client of a fit.

    A node is one client, with one user or many. Its rows and user vectors stay on it. At the end
    its folder contains ``model.joblib``, a fitted estimator of its own users.

    Parameters
    ----------
    estimator : federated estimator, FederatedSearch, or callable
        With the same parameters as the server's, which are compared when a node registers. Or a
        function that takes Flower's Context and returns the estimator.
    load_data : callable
        Takes Flower's Context and returns a dict: ``client_id`` (different from all other
        clients'), ``X``, and as the method needs them ``y`` and ``sample_weight``, as in `fit`.
        For ``server_app(evaluate=...)`` also ``X_test`` and, for ratings, ``y_test``.
    folder : callable or None, default=None
        Takes Flower's Context and returns this node's folder for its state and model. If None, the
        entry ``folder`` of the node's configuration, as in ``flower-supernode --node-config
        'folder="node-1"'``.
    keys : callable or None, default=None
        Takes Flower's Context and returns the file of the node's own identity, which is needed
        under `SecAggPlus`; see :mod:`fedrecsk.deployment.keys`. If None, the entry ``keys`` of the
        node's configuration.

    Returns
    -------
    app : flwr.clientapp.ClientApp

    Raises
    ------
    ValueError
        If the estimator cannot be deployed. The message names the parameter.

    Examples
    --------
    >>> from fedrecsk import LocALS
    >>> from fedrecsk.deployment.flower import client_app
    >>> def load_data(context):
    ...     name = context.node_config["shop"]
    ...     return {"client_id": name, "X": [[1, 4], [1, 7], [2, 4]]}
    >>> app = client_app(LocALS(8, items=range(100)), load_data)
    """
    _check(estimator)
    app = ClientApp()

    @app.train()
    @app.evaluate()
    @app.query()
    def answer(message: Message, context: Context) -> Message:
        _log_as_flower_does()
        method = _chosen(estimator, context)
        path = context.node_config.get("keys") if keys is None else keys(context)
        is_masked = any(one.method._setting().masks for one in fits_of(method))
        identity = read_identity(path) if is_masked else None
        store = Store(_folder(folder, context))
        node = Node(method, lambda: load_data(context), store, identity)
        content = node.answer(_content(message))
        return Message(_record(content), reply_to=message)

    return app


def _check(estimator):
    if not callable(estimator):
        check(estimator)


def _chosen(estimator: Estimator, context: Context) -> FederatedRecommender | FederatedSearch:
    return estimator(context) if callable(estimator) else estimator


def _folder(folder, context):
    path = context.node_config.get("folder") if folder is None else folder(context)
    if not path:
        raise ValueError(
            "This node has no folder for its state; start it with flower-supernode --node-config "
            "'folder=\"node-1\"', or pass folder= to client_app."
        )
    return path


def _check_settings(given):
    for name, hint in (("n_clients", "3"), ("folder", '"server"')):
        if not given[name]:
            raise ValueError(
                f"{name} is missing; pass {name}={hint} to server_app, or set "
                f"{name.replace('_', '-')} = {hint} in the run configuration."
            )
    number, seconds = (int, float), "must be a number of seconds above 0"
    for name, types, is_valid, what in (
        ("n_clients", (int,), lambda n: n >= 1, "must be an int of at least 1"),
        ("update", (bool,), lambda _: True, "must be true or false"),
        ("quorum", number, lambda share: 0 < share <= 1, "must be in (0, 1]"),
        *((name, number, lambda n: n > 0, seconds) for name in ("patience", "gathering", "poll")),
    ):
        if type(given[name]) not in types or not is_valid(given[name]):
            raise ValueError(f"{name} {what}, got {given[name]!r}.")


def _log_as_flower_does():
    """Show what happens in Flower's log, at its level."""
    log, flowers = logging.getLogger("fedrecsk.deployment"), logging.getLogger("flwr")
    if not log.handlers:
        log.handlers, log.propagate = flowers.handlers, False
        log.setLevel(logging.INFO)


# ------------------------------------------------------------------------------- carrier


def _record(content):
    """Put all into one record: Flower stores and sends each record by itself."""
    return RecordDict({RECORD: ConfigRecord({CONTENT: content})})


def _content(message):
    record = message.content.get(RECORD, {})
    content = record.get(CONTENT)
    return content if isinstance(content, bytes) else b""


class FlowerCarrier(Carrier):
    """Carries requests by Flower's Grid; looks for replies every `poll` seconds."""

    def __init__(self, grid: Grid, poll: float, patience: float) -> None:
        self.grid = grid
        self.poll = poll
        # Flower drops what is older.
        self._ttl = max(60.0, 4 * patience)
        self._nodes, self._seen_at = set(), float("-inf")

    def nodes(self) -> set[int]:
        if time.monotonic() - self._seen_at > 1:
            self._nodes, self._seen_at = set(self.grid.get_node_ids()), time.monotonic()
        return self._nodes

    def send(self, requests: list[Request]) -> list[Hashable]:
        # One by one, because the Grid returns no place for a message that it cannot send.
        return [self._sent(one) for one in requests]

    def _sent(self, request):
        message = Message(
            _record(request.content),
            request.node,
            TYPES.get(request.kind, "query"),
            ttl=self._ttl,
            group_id=request.kind,
        )
        tickets = [one for one in self.grid.push_messages([message]) if one]
        # A ticket to which no reply will come.
        return tickets[0] if tickets else f"not sent to {request.node} at {time.monotonic()}"

    def receive(self, tickets: Iterable[Hashable]) -> list[Reply]:
        sent = [one for one in tickets if not str(one).startswith("not sent")]
        return [_reply(one) for one in self.grid.pull_messages(sent)] if sent else []

    def pause(self) -> None:
        time.sleep(self.poll)


def _reply(message):
    ticket = message.metadata.reply_to_message_id
    if message.has_error():
        reason = (message.error.reason or "").strip()[:300]
        return Reply(ticket, None, f"Flower reports error {message.error.code}: {reason}")
    return Reply(ticket, _content(message))
