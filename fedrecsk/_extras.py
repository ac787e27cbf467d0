"""What comes with an extra of the package, and how a missing one is told."""

import importlib

EXTRAS = {
    "gmpy2": "privacy",
    "matplotlib": "plot",
    "pandas": "plot",
    "phe": "privacy",
    "tenseal": "privacy",
}


def require(module, caller):
    """Import a module of an extra.

    Parameters
    ----------
    module : str
        "pandas", "matplotlib.pyplot"...
    caller : str
        What needs it, as the user calls it.

    Returns
    -------
    module

    Raises
    ------
    ImportError
        If it is missing; says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f"{caller} needs {package}: pip install 'fedrecsk[{EXTRAS[package]}]'."
        ) from error
