"""How kernels are compiled, and kept for later processes."""

import functools
import hashlib
import inspect
import logging
import multiprocessing
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path

import numba.extending
import numpy as np
from numba import config, njit
from numba.core import event
from numba.core.caching import FunctionCache, IndexDataCacheFile, NullCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.runtime.nrt import rtsys

# nogil: blocks run in threads. error_model: zero-division checks halve the speed.
# fastmath stops short of "nnan" and "ninf": a server must be able to see a NaN.
# forceinline: a function within a kernel would be compiled twice, with sums in different orders,
# and which of the two runs would depend on whether they come from numba's cache.
_OPTIONS = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz"},
    "forceinline": True,
}
_PACKAGE = __name__.rpartition(".")[0]


class _PartLibrary(JITCodeLibrary):
    """The code of a part, kept as LLVM IR: its callers inline it, so it needs no machine code."""

    def finalize(self):
        """Link the parts that it calls."""
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True

    @property
    def codegen(self):
        """Numba calls `codegen.set_env` to write an address into the machine code."""
        return self

    def set_env(self, name, env):
        """Do nothing: there is no machine code."""


class _PartCompiler(Compiler):
    """Numba's compiler, with its result in a `_PartLibrary`."""

    def define_pipelines(self):
        state = self.state
        state.library = _PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        return super().define_pipelines()


# What only kernels call: no wrappers for Python, and stored within its callers. The compiler above
# shortens first fits, but uses private parts of numba 0.68; other versions go without it.
_PARTS = {"pipeline_class": _PartCompiler} if numba.version_info[:2] == (0, 68) else {}
part = njit(**_OPTIONS, **_PARTS, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def kernel(function):
    """Decorate what Python calls; under NUMBA_DISABLE_JIT=1 it is interpreted."""
    if config.DISABLE_JIT:
        return _interpreted(function)
    compiled = njit(**_OPTIONS)(function)
    compiled._cache = _cache_of(function)
    return compiled


def intrinsic(plain):
    """Decorate like :func:`numba.extending.intrinsic`; `plain` does it where nothing compiles."""

    def decorate(typed):
        return plain if config.DISABLE_JIT else numba.extending.intrinsic(typed)

    return decorate


def _interpreted(function):
    """Compiled code overflows and divides by zero in silence, so this does too."""

    @functools.wraps(function)
    def run(*args):
        with np.errstate(all="ignore"):
            return function(*args)

    return run


# ------------------------------------------------------------------- the cache on disk


class _Cache(FunctionCache):
    """Numba's cache on disk, which a broken file or a full disk must not make fail.

    It is also out of date when another module of kernels changes that the function's imports.
    """

    def __init__(self, function):
        super().__init__(function)
        base, stamp = self._impl.filename_base, _stamp(function.__module__)
        self._cache_file = IndexDataCacheFile(self.cache_path, base, stamp)

    def load_overload(self, sig, target_context):
        # Running needs numba's runtime only; compiling would also load what it knows of Python.
        rtsys.initialize(target_context)
        # Truncated, unreadable, or of classes that have moved since: compile anew.
        with suppress(Exception):
            return self._load_overload(sig, target_context)
        return None

    def save_overload(self, sig, data):
        try:
            if not self._is_readable():
                self.flush()
            super().save_overload(sig, data)
        except OSError as error:
            _warn_of_no_cache(f"{self.cache_path} cannot be written ({error})")

    def _is_readable(self):
        with suppress(Exception):
            self._cache_file._load_index()
            return True
        return False


def _cache_of(function):
    try:
        return _Cache(function)
    except (OSError, RuntimeError):
        # The former of modules that are no files of their own, such as those of a zip file.
        _warn_of_no_cache("Neither the package's folder nor your home can be written")
        return NullCache()


@functools.cache
def _warn_of_no_cache(why):
    warnings.warn(
        f"{why}, so fedrecsk compiles its numerical code again in every process, which takes some "
        "seconds. Set the environment variable NUMBA_CACHE_DIR to a folder that can be written.",
        RuntimeWarning,
        stacklevel=2,
    )


@functools.cache
def _stamp(module):
    """Digest of the text of a module of kernels and of those that it imports."""
    digest = hashlib.sha256()
    for name in sorted(_imported(module, set())):
        digest.update(Path(inspect.getfile(sys.modules[name])).read_bytes())
    return digest.digest()


def _imported(module, found):
    found.add(module)
    for value in list(vars(sys.modules[module]).values()):
        owner = getattr(value, "__module__", None) or ""
        if owner.startswith(_PACKAGE) and owner not in found:
            _imported(owner, found)
    return found


# --------------------------------------------------------------- a word to who is waiting


class Stopwatch(event.Listener):
    """Seconds that this process has spent compiling; says so once they are more than one.

    Attributes
    ----------
    seconds : float
    """

    patience = 1.0

    def __init__(self):
        self.seconds = 0.0
        self._depth, self._start, self._has_spoken = 0, 0.0, False

    def on_start(self, event):
        """A function begins to compile; numba's lock lets one thread do so at a time."""
        if self._depth == 0:
            self._start = time.perf_counter()
        self._depth += 1

    def on_end(self, event):
        """It is compiled."""
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._start
        if self.seconds > self.patience and not self._has_spoken:
            self._has_spoken = True
            self._speak()

    @staticmethod
    def _speak():
        # One of many processes of a search is not to repeat it.
        if multiprocessing.parent_process() is None:
            logging.getLogger("fedrecsk").warning(
                "fedrecsk compiles its numerical code at first use, which takes some seconds, and "
                "keeps it on disk. `python -m fedrecsk warmup` compiles it ahead of time."
            )


compiling = Stopwatch()
event.register("numba:compile", compiling)
