"""Requests whose heads anybody may have made: a node refuses them by name, and never fails."""

import copy
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from fedrecsk import FedEASE, Federation, LocALS, RFRec
from fedrecsk.deployment.keys import write_identities
from fedrecsk.deployment.node import Node
from fedrecsk.deployment.records import pack, unpack
from fedrecsk.deployment.server_model import send_new_items
from fedrecsk.deployment.store import Store
from fedrecsk.privacy import SecAggPlus
from tests.conftest import make_toy
from tests.deployment.in_process import InProcess, coordinator, make_nodes, prepared

X, Y = make_toy(12, n_items=9, density=0.7)
SILOS = X[:, 0] % 5
MISSING = object()
VALUES = MISSING, None, True, -1, 2**63, 10**40, 0.5, "no", [], [["no"]], {}, {"no": [1]}
# Without these, a request may be right, or its fields are wrong and not its head.
OPTIONAL = {"place", "announcement", "best", "after", "search", "n_clients", "n_bits", "message"}
OPTIONAL |= {"kept", "rows", "computed", "n_negatives"}


class Unchanging(Store):
    """Keeps what it has."""

    def save(self, name, thing):
        pass

    save_result = save

    def remove_drafts(self, *patterns):
        pass

    remove = remove_drafts


def parts_of(value):
    """The paths to the parts of a head: of dicts and lists the first two of the same kind."""
    keys = [*value] if isinstance(value, dict) else [0][: len(value)]
    for key in keys[: None if "kind" in keys else 2]:
        yield (key,)
        if isinstance(value[key], dict | list):
            yield from ((key, *more) for more in parts_of(value[key]))


def malformed(head):
    """Heads in which one part is missing or another value."""
    for path in parts_of(head):
        for value in VALUES:
            is_nothing = value is MISSING or value is None or value in ([], {})
            is_id = path == ("ids", 0) and isinstance(value, int | float)
            if is_id or (is_nothing and not OPTIONAL.isdisjoint(path)):
                continue
            changed = copy.deepcopy(head)
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            if value is MISSING:
                del inner[path[-1]]
            else:
                inner[path[-1]] = value
            yield path, value, changed


def fuzz(carrier):
    """Ask a node malformed heads in place of the first request of each kind; return the replies."""
    found, name = {}, max(carrier.connected)

    def watch(request):
        if request.node != name or request.kind in found:
            return
        node, (head, arrays) = carrier.connected[name], unpack(request.content)
        store = Unchanging(node.store.folder)
        twin = Node(node.estimator, node.load_data, store, node.identity)
        twin._digests = node._digests
        found[request.kind] = [
            (path, value, unpack(twin.answer(pack(changed, arrays)))[0])
            for path, value, changed in malformed(head)
        ]

    carrier.watch = watch
    return found


def a_fit(folder):
    estimator = RFRec(3, n_rounds=1, early_stopping=True, random_state=0)
    estimator = prepared(estimator, X, Y)
    nodes = make_nodes(estimator, X, Y, SILOS, folder)
    return coordinator(estimator, nodes, folder, evaluate=["rmse"])


def an_update(folder):
    estimator = prepared(FedEASE(warm_start=True, random_state=0), X, Y)
    half = np.arange(len(X)) % 2 > 0
    nodes = make_nodes(estimator, X[half], Y[half], SILOS[half], folder)
    coordinator(estimator, nodes, folder).run()
    nodes = make_nodes(estimator, X, Y, SILOS, folder)
    return coordinator(estimator, nodes, folder, update=True)


def a_masked_fit(folder):
    pytest.importorskip("cryptography", reason="needs fedrecsk[privacy]")
    scheme = SecAggPlus(max_dropout=0.4, max_colluding=0.0)
    estimator = prepared(FedEASE(federation=Federation(secure_aggregation=scheme)), X, Y)
    identities = write_identities(range(5), folder / "identities")
    nodes = make_nodes(estimator, X, Y, SILOS, folder, identities=identities)
    return coordinator(estimator, nodes, folder)


def new_items(folder):
    ids = np.unique(X[:, 1])
    features = pd.DataFrame(np.eye(len(ids) + 2)[:, :3], index=[*ids, 97, 98])
    estimator = LocALS(2, reg_user=1.0, n_rounds=1, warm_start=True, random_state=0)
    estimator = prepared(estimator.set_params(item_features=features[:-2]), X, Y)
    nodes = make_nodes(estimator, X, Y, SILOS, folder)
    coordinator(estimator, nodes, folder).run()
    carrier, store = InProcess(nodes), Store(folder / "server")
    settings = {"n_clients": 5, "patience": 0.2, "gathering": 1.0}
    return SimpleNamespace(
        exchanges=SimpleNamespace(carrier=carrier),
        run=lambda: send_new_items(estimator, features[-2:], carrier, store, **settings),
    )


KINDS = {
    a_fit: {"register", "setup", "round", "validate", "evaluate", "finish"},
    an_update: {"register", "setup", "withdraw", "round", "finish"},
    a_masked_fit: {"register", "round keys", "round shares", "round confirm", "round", "finish"},
    new_items: {"register", "items"},
}


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:y looks like ratings")
@pytest.mark.parametrize("begin", KINDS, ids=lambda begin: begin.__name__)
def test_a_node_refuses_malformed_heads_and_never_fails(begin, tmp_path):
    one = begin(tmp_path)
    found = fuzz(one.exchanges.carrier)
    one.run()
    assert found.keys() >= KINDS[begin]
    for kind, answers in found.items():
        assert len(answers) > 20
        assert not [(kind, *one) for one in answers if not one[-1].get("refused")]
