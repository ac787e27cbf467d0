"""Import optional packages, with an error that names the extra to install."""

from __future__ import annotations

import importlib
from types import ModuleType

# Optional packages and the extras that they belong to.
EXTRAS = {
    "cryptography": "privacy",
    "dask": "distributed",
    "distributed": "distributed",
    "dp_accounting": "privacy",
    "gmpy2": "privacy",
    "flwr": "flower",
    "matplotlib": "plot",
    "phe": "privacy",
    "starlette": "serve",
    "tenseal": "privacy",
    "torch": "torch",
    "uvicorn": "serve",
}


def require(module: str, caller: str) -> ModuleType:
    """Import a module of an optional package for `caller`; the error names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f"{caller} needs {package}: pip install '.[{EXTRAS[package]}]' in a checkout of "
            "fedrecsk."
        ) from error
