"""Compiled kernels: what compiles them, where they are kept, and what must not depend on it."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from fedrecsk import _warmup
from fedrecsk._warmup import METHODS

WORD = "fedrecsk compiles its numerical code at first use"
PROGRAM = """
import hashlib, json, re, sys, warnings
from itertools import islice
from numba.core import event, types
from numba.core.dispatcher import Dispatcher
from fedrecsk import _kernels, _warmup
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
_warmup._ratings = lambda: (X[:, :2], y)
watch, digests, predictions = Watch(), {}, {}
event.register("numba:compile", watch)
for name in sys.argv[1:]:
    for model in islice(_warmup.models(name), 1):
        _warmup.use(model)
        digest = hashlib.md5()
        for key in ("user_factors_", "item_factors_", "user_bias_", "item_bias_"):
            if hasattr(model, key):
                digest.update(getattr(model, key).tobytes())
        digests[name] = digest.hexdigest()
        predictions[name] = model.predict(_warmup._ratings()[0][:50]).tolist()

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
    for module in _kernels._SUBMODULES
    for name, kernel in vars(getattr(_kernels, module)).items()
    if isinstance(kernel, Dispatcher)
}
compiled = {name: kernel.nopython_signatures for name, kernel in kernels.items()}
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
        for name, signatures in compiled.items()
        if any(
            isinstance(one.return_type, types.BaseTuple) and holds_array(one.return_type)
            for one in signatures
        )
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
    return fits(METHODS, NUMBA_CACHE_DIR=str(cache))


def test_who_waits_is_told_why_and_once(first):
    assert first[1].count(WORD) == 1


def test_later_processes_compile_nothing_and_fit_the_same_bits(first, cache):
    again, errors = fits(METHODS, NUMBA_CACHE_DIR=str(cache))
    assert again["digests"] == first[0]["digests"]
    assert again["compiled"] == []
    assert WORD not in errors


def test_no_kernel_compiles_what_formats_text(first):
    # It takes seconds, and comes with the error message of `x[:] = y`.
    assert not [module for module in first[0]["compiled"] if "unicode" in module]


def test_no_kernel_returns_a_tuple_with_an_array(first):
    # numba loses a KeyboardInterrupt there.
    assert first[0]["returns"] == []


def test_no_sum_depends_on_where_arrays_lie(first):
    # A loop that stores and adds up is vectorised where the arrays are seen to lie apart, and
    # else not: two orders of additions, which differ by rounding from one fit to the next.
    assert first[0]["orders"] == []


def test_broken_files_are_made_anew(first, cache, tmp_path):
    broken = shutil.copytree(cache, tmp_path / "cache")
    files = sorted(broken.rglob("*.nb[ci]"))
    assert files
    # A third stays whole; others lose everything, or all but 100 bytes.
    for number, file in enumerate(files):
        if number % 3:
            os.truncate(file, 100 * (number % 3 - 1))
    place = {"NUMBA_CACHE_DIR": str(broken)}
    again, _ = fits(["PMF"], **place)
    assert again["compiled"]
    assert again["digests"]["PMF"] == first[0]["digests"]["PMF"]
    assert fits(["PMF"], **place)[0]["compiled"] == []


def test_no_place_for_a_cache_is_a_warning():
    nowhere = {
        "NUMBA_CACHE_DIR": "/proc/nowhere",
        "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator",
    }
    done, errors = fits(["PMF"], **nowhere)
    assert done["predictions"]["PMF"]
    assert errors.count("RuntimeWarning") == 1
    assert "NUMBA_CACHE_DIR" in errors


def test_all_methods_run_without_a_compiler(first):
    interpreted, _ = fits(METHODS, NUMBA_DISABLE_JIT="1")
    for method, expected in first[0]["predictions"].items():
        np.testing.assert_allclose(
            interpreted["predictions"][method], expected, rtol=1e-3, atol=1e-4, err_msg=method
        )


def test_every_setting_of_a_warm_up_is_one_that_methods_accept():
    fitted = list(_warmup.models("RFRec"))
    # One of them is the default.
    assert len(fitted) == 1 + len(_warmup.SETTINGS)
