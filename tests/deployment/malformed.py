"""Send nodes malformed messages: ``python -m tests.deployment.malformed FCF LocALS ...``.

A program of its own, which a crash ends. Before each request of an honest fit, a copy of the node
is sent the request with an array of another shape, type or value, and must refuse the wrong shapes
and types. What it answers to other values is its own affair, as long as it answers.
"""

import logging
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

from fedrecsk.deployment.node import Node
from fedrecsk.deployment.records import pack, unpack
from fedrecsk.deployment.store import Store
from tests.conftest import make_toy
from tests.deployment.in_process import coordinator, make_nodes, prepared
from tests.deployment.test_fit import make
from tests.listed import THINGS

# Settings in which a method has other messages.
OTHER_SETTINGS = {
    "FCF": {"upload": "all"},
    "FedEB": {"implicit": False, "upload": "all"},
    "FedItemKNN": {"download": "all"},
    "FedEASE": {"download": "all"},
    "LightFR": {"targets": "ratings"},
    "LocALS": {"upload": "all"},
    "FedMF": {"loss": "squared"},
}
# Fields with a number of columns that depends on the data.
FREE = {"FedEB": {"audiences"}, "PrivFedEB": {"features", "average_items", "average_implicit"}}
COLUMNS = {"twice the columns", "no columns", "one column"}
WRONG = {
    "twice the columns": lambda a: np.concatenate([a, a], axis=-1),
    "no columns": lambda a: a[..., :0],
    "one column": lambda a: a[..., :1] if a.shape[-1] > 1 else a[..., :0],
    "transposed": lambda a: a.T.copy() if a.shape != a.T.shape else a[:-1],
    "twice the rows": lambda a: np.concatenate([a, a]),
    "fewer rows": lambda a: a[:-1],
    "no rows": lambda a: a[:0],
    "one more axis": lambda a: a[..., None],
    "flat": lambda a: a.ravel() if a.ndim > 1 else a[None],
    "a number": lambda a: a.ravel()[0],
    "truth values": lambda a: a.astype(bool) if a.dtype.kind != "b" else a.astype("i1"),
    "short": lambda a: a.astype("f2"),
    "bytes": lambda a: a.astype("u1") if a.dtype.kind != "u" else a.astype("f4"),
}
NUMBERS = {"NaN": np.nan, "inf": np.inf, "huge": 1e38, "negative": -1e9, "tiny": 1e-38, "zero": 0.0}
INTEGERS = {"largest": 2**31 - 1, "negative": -1}


def wrong_arrays(array):
    """Yield a name, another array in the place of one, and whether it must be refused."""
    array = np.asarray(array)
    for name, change in WRONG.items():
        try:
            changed = np.asarray(change(array))
        except (IndexError, ValueError):
            continue  # a number has no rows and columns
        if (changed.shape, changed.dtype) != (array.shape, array.dtype):
            yield name, changed, True
    values = NUMBERS if array.dtype.kind == "f" else INTEGERS
    for name, value in values.items():
        yield name, np.full(array.shape, value).astype(array.dtype, casting="unsafe"), False


def wrong_requests(content, free):
    """Yield a name, the bytes of a malformed request, and whether it must be refused."""
    head, arrays = unpack(content)
    for field in arrays:
        part, _, name = field.partition("/")
        if part not in ("message", "announcement"):
            continue
        for how, array, is_refused in wrong_arrays(arrays[field]):
            is_refused = is_refused and not (name in free and how in COLUMNS)
            yield f"{field} {how}", pack(head, arrays | {field: array}), is_refused
        yield f"{field} twice", pack(head, arrays | {f"{field} again": arrays[field]}), True
        without = {other: one for other, one in arrays.items() if other != field}
        yield f"{field} missing", pack(head, without), False
        for key, value in (("computed", {name: "x"}), ("computed", [name]), ("rows", 7)):
            lies = pack(head | {part: head[part] | {key: value}}, arrays)
            yield f"{field} {key} {value}", lies, True


def attack(name, parameters):
    """Return what a node of a method has answered wrongly."""
    X, y = make_toy(n_users=12, n_items=10)
    clients, estimator = X[:, 0] % 3, make(THINGS[name], **{"n_rounds": 1} | parameters)
    estimator, wrong, n_sent = prepared(estimator, X, y, clients), [], 0
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        nodes = make_nodes(estimator, X, y, clients, folder)
        one = coordinator(estimator, nodes, folder)
        victim = min(nodes)

        def watch(request):
            nonlocal n_sent
            if request.node != victim:
                return
            node = nodes[victim]
            for how, content, is_refused in wrong_requests(request.content, FREE.get(name, ())):
                with tempfile.TemporaryDirectory() as copy:
                    shutil.copytree(node.store.folder, copy, dirs_exist_ok=True)
                    print(name, request.kind, how, flush=True)
                    head, _ = unpack(
                        Node(estimator, node.load_data, Store(Path(copy))).answer(content)
                    )
                n_sent += 1
                failed = head.get("failed") in ("IndexError", "MemoryError", "SystemError")
                if failed or (is_refused and "refused" not in head):
                    wrong.append(f"{name} {request.kind}: {how}: {head}")

        one.exchanges.carrier.watch = watch
        one.run()
    assert n_sent
    return wrong


if __name__ == "__main__":
    logging.disable()
    warnings.simplefilter("ignore")
    found = []
    for name in sys.argv[1:]:
        found += attack(name, {})
        if name in OTHER_SETTINGS:
            found += attack(name, OTHER_SETTINGS[name])
    sys.exit("\n".join(found) or 0)
