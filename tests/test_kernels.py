"""Compiled kernels: what compiles them, where they are kept, and what must not depend on it."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

METHODS = ["RFRec", "LocALS", "FedEB", "FedMF", "LightFR", "SVDpp"]
PROGRAM = """
import hashlib, json, re, sys, warnings
from numba.core import event, types
from numba.core.dispatcher import Dispatcher
import fedrecsk
from fedrecsk.datasets import make_ratings

warnings.simplefilter("always", RuntimeWarning)

class Watch(event.Listener):
    def __init__(self):
        self.compiled = []

    def on_start(self, event):
        self.compiled.append(event.data["dispatcher"].py_func.__module__)

    def on_end(self, event):
        pass

# What is compiled does not depend on the amount of data.
X, y = make_ratings(25, 15, 200, random_state=0)
watch, digests, predictions = Watch(), {}, {}
event.register("numba:compile", watch)
for name in sys.argv[1:]:
    model = getattr(fedrecsk, name)(random_state=0)
    few = {"n_rounds": 2, "n_epochs": 2}
    model.set_params(**{n: v for n, v in few.items() if n in model.get_params()}).fit(X[:, :2], y)
    model.recommend(X[:9, 0], 5)
    digests[name] = hashlib.md5(model.item_factors_.tobytes()).hexdigest()
    predictions[name] = model.predict(X[:50, :2]).tolist()

def holds_array(kind):
    return isinstance(kind, types.Array) or any(map(holds_array, getattr(kind, "types", ())))

# Whether some loop of LLVM's adds up in one order or another, by where arrays lie in memory.
def adds_up_where_memory_allows(code):
    for function in re.split(r"\\ndefine ", code)[1:]:
        label, blocks = None, {}
        for line in function.splitlines():
            begins = re.match(r'^([\\w.$-]+):', line)
            if begins:
                label = begins.group(1)
            if label:
                blocks[label] = blocks.get(label, "") + line
        for check in (name for name in blocks if "vector.memcheck" in name):
            todo, seen = [check], set()
            while todo:
                name = todo.pop()
                if name in seen:
                    continue
                seen.add(name)
                if "middle.block" in name:
                    if re.search(r"reduce.f|rdx[\\w.]* = f", blocks[name]):
                        return True
                    continue
                targets = re.findall(r'label %([\\w.$-]+)', blocks.get(name, ""))
                todo += [one for one in targets if "vec" in one or "middle" in one]
    return False

kernels = {
    f"{module}.{name}": kernel
    for module in sorted(set(watch.compiled)) if module.startswith("fedrecsk.")
    for name, kernel in vars(sys.modules[module]).items()
    if isinstance(kernel, Dispatcher)
}
print(json.dumps({
    "digests": digests,
    "predictions": predictions,
    "compiled": watch.compiled,
    "orders": [
        name
        for name, kernel in kernels.items()
        for one in kernel.overloads.values()
        if adds_up_where_memory_allows(one.library.get_llvm_str())
    ],
    "returns": [
        name
        for name, kernel in kernels.items()
        for one in kernel.nopython_signatures
        if isinstance(one.return_type, types.BaseTuple) and holds_array(one.return_type)
    ],
}))
"""


def fits(methods, **environment):
    """What the program prints in a process of its own, and what it writes to stderr."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *methods],
        env=os.environ | environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def first(cache):
    """All methods in a process that finds an empty cache."""
    return fits(METHODS, NUMBA_CACHE_DIR=str(cache))[0]


def test_later_processes_compile_nothing_and_fit_the_same_bits(first, cache):
    again, _ = fits(METHODS, NUMBA_CACHE_DIR=str(cache))
    assert again["digests"] == first["digests"]
    assert again["compiled"] == []


def test_no_kernel_compiles_what_formats_text(first):
    # It takes seconds, and comes with the error message of `x[:] = y`.
    assert "fedrecsk.federated._rfrec_kernels" in first["compiled"]
    assert not [module for module in first["compiled"] if "unicode" in module]


def test_no_kernel_returns_a_tuple_with_an_array(first):
    # numba loses a KeyboardInterrupt there.
    assert first["returns"] == []


def test_no_sum_depends_on_where_arrays_lie(first):
    # A loop that stores and adds up is vectorised where the arrays are seen to lie apart, and
    # else not: two orders of additions, which differ by rounding from one fit to the next.
    assert first["orders"] == []


def test_no_place_for_a_cache_is_a_warning():
    nowhere = {
        "NUMBA_CACHE_DIR": "/proc/nowhere",
        "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator",
    }
    done, errors = fits(["SVDpp"], **nowhere)
    assert done["predictions"]["SVDpp"]
    assert errors.count("RuntimeWarning") == 1
    assert "NUMBA_CACHE_DIR" in errors


def test_methods_run_without_a_compiler(first):
    interpreted, _ = fits(METHODS, NUMBA_DISABLE_JIT="1")
    for method, expected in first["predictions"].items():
        np.testing.assert_allclose(
            interpreted["predictions"][method], expected, rtol=1e-3, atol=1e-4, err_msg=method
        )
