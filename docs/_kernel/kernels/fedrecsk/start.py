"""Runs in the kernel of every page before its first cell."""

import os as _os
import warnings as _warnings

_os.environ["MATPLOTLIBRC"] = _os.path.join(_os.path.dirname(__file__), "matplotlibrc")
# Readers need no path of a temporary file.
_warnings.formatwarning = lambda message, category, *_, **__: f"{category.__name__}: {message}\n"
# implicit's progress bar asks for widgets, which a page has no use for.
_warnings.filterwarnings("ignore", message="IProgress not found")
