"""Runs in the kernel of every page before its first cell."""

import logging as _logging
import os as _os
import warnings as _warnings

_os.environ["MATPLOTLIBRC"] = _os.path.join(_os.path.dirname(__file__), "matplotlibrc")
# Whether numba has to compile is a matter of the machine, not of the page.
_logging.getLogger("fedrecsk").setLevel(_logging.ERROR)
# Readers need no path of a temporary file.
_warnings.formatwarning = lambda message, category, *_, **__: f"{category.__name__}: {message}\n"
# implicit's progress bar asks for widgets, which a page has no use for.
_warnings.filterwarnings("ignore", message="IProgress not found")
