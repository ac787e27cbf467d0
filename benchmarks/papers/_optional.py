"""Estimators of modules that may be absent: fedrecsk.neural needs torch."""

from __future__ import annotations

import importlib
import importlib.util

from benchmarks.papers._rows import NOT_HERE

NO_TORCH = "torch is not installed (pip install fedrecsk[torch])"


def optional(module, name, **settings):
    """An estimator, or None and why there is none.

    Parameters
    ----------
    module : str
        "fedrecsk" or "fedrecsk.neural".
    name : str
    **settings
        Its parameters.

    Returns
    -------
    model : estimator or None
    why : str
        Empty if there is one.
    """
    if importlib.util.find_spec(module) is None:
        return None, NOT_HERE
    if module == "fedrecsk.neural" and importlib.util.find_spec("torch") is None:
        return None, NO_TORCH
    Estimator = getattr(importlib.import_module(module), name, None)
    return (None, NOT_HERE) if Estimator is None else (Estimator(**settings), "")
