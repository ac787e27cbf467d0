"""A carrier without an engine: nodes in this process, to which bytes go and from which they come.

Nodes forget everything between requests but the files in their folders.
"""

import itertools

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from fedrecsk.data.interactions import encode
from fedrecsk.deployment.coordinator import Coordinator
from fedrecsk.deployment.exchanges import Carrier, Reply
from fedrecsk.deployment.keys import read_identity
from fedrecsk.deployment.node import Node
from fedrecsk.deployment.records import unpack
from fedrecsk.deployment.search import SearchCoordinator
from fedrecsk.deployment.store import Store
from fedrecsk.protocol.keys import Key
from fedrecsk.selection import FederatedSearch


class InProcess(Carrier):
    """Nodes that answer at once.

    Parameters
    ----------
    nodes : dict of {int: Node}
    """

    def __init__(self, nodes):
        self.connected = dict(nodes)
        self._numbers = itertools.count()
        self._waiting = {}
        # Kind and size of each request and its reply.
        self.crossed = []
        # Bytes of the arrays in the replies.
        self.n_bytes_of_numbers_up = 0
        # Called with each request before it is answered.
        self.watch = lambda request: None
        # Called with a request and its reply, whose content it may change; None: it is lost.
        self.tamper = lambda request, reply: reply

        # Whether the reply to a request comes only when the node is sent the next one.
        self.is_slow = lambda request: False
        self._slow = {}

    def nodes(self):
        return set(self.connected)

    def send(self, requests):
        tickets = []
        for one in requests:
            assert type(one.content) is bytes
            ticket = next(self._numbers)
            tickets.append(ticket)
            if one.node not in self.connected:
                continue
            self.watch(one)
            answer = self.connected[one.node].answer(one.content)
            content = self.tamper(one, answer)
            if content is None:
                continue
            self.crossed.append((one.kind, len(one.content), len(content)))
            if one.kind in ("setup", "round"):
                arrays = unpack(answer)[1].values()
                self.n_bytes_of_numbers_up += sum(array.nbytes for array in arrays)
            if self.is_slow(one):
                self._slow[one.node] = ticket, content
                continue
            if one.node in self._slow:
                earlier, reply = self._slow.pop(one.node)
                self._waiting[earlier] = reply
            self._waiting[ticket] = content
        return tickets

    def receive(self, tickets):
        return [Reply(t, self._waiting.pop(t)) for t in list(tickets) if t in self._waiting]

    def pause(self):
        pass


def spoil(coordinator, change, *, kind="round", node=None, number=None):
    """Let `change` make others of the replies of a kind, of one node or round if they are named.

    It is given a reply's bytes; None in their place: the reply is lost.
    """

    def tamper(request, reply):
        is_meant = node in (None, request.node) and number in (None, step_of(request)[1])
        return change(reply) if is_meant and request.kind == kind else reply

    coordinator.exchanges.carrier.tamper = tamper


def lose(reply):
    """The reply does not arrive."""


class Killed(BaseException):
    """As by kill -9: nothing is done about it."""


def kill(coordinator, kind, number, node):
    """Let the server be killed when it has received this reply."""

    def tamper(request, reply):
        if (*step_of(request), request.node) == (kind, number, node):
            raise Killed
        return reply

    coordinator.exchanges.carrier.tamper = tamper


def step_of(request):
    """The kind and the number of a request."""
    return request.kind, unpack(request.content)[0].get("number")


def counts(result, name="messages_up"):
    """One of the ledger's counts, round by round."""
    return [one[name] for one in result.communication_.entries if one["phase"] == "round"]


def simulated_key(estimator):
    """The key that a simulated fit, or each one of a search, draws from `random_state`."""
    estimator = getattr(estimator, "estimator", estimator)
    return Key(int(check_random_state(estimator.random_state).randint(2**31 - 1)))


def make_nodes(estimator, X, y, clients, folder, *, identities=None, **others):
    """A node for each client, in an order of its own; `load_data` returns `others` too."""
    names = np.unique(clients)
    order = np.random.default_rng(0).permutation(len(names))
    nodes = {}
    for number in order:
        mine = clients == names[number]
        name = names[number].item()
        data = {"client_id": name, "X": X[mine], "y": y[mine]} | others
        identity = None if identities is None else read_identity(identities[name])
        store = Store(folder / f"node {number}")
        nodes[1000 + int(number)] = Node(
            estimator, lambda data=data: data, store, identity=identity
        )
    return nodes


def prepared(estimator, X, y, clients=None):
    """The estimator with what a deployment must be given."""
    data = encode(X, y, clients=clients)
    estimator = clone(estimator).set_params(items=data.item_ids.values)
    if "rating_scale" in estimator.get_params(deep=False):
        estimator.set_params(rating_scale=(float(y.min()), float(y.max())))
    return estimator


def coordinator(estimator, nodes, folder, **parameters):
    """A coordinator over these nodes, with the simulation's shared key."""
    n_clients = len(nodes)
    settings = {"n_clients": n_clients, "patience": 0.2, "gathering": 1.0, "quorum": 1.0}
    settings |= {"key": simulated_key(estimator)} | parameters
    carrier = InProcess(nodes)
    store = Store(folder / "server")
    make = SearchCoordinator if isinstance(estimator, FederatedSearch) else Coordinator.of
    return make(estimator, carrier, store, **settings)
