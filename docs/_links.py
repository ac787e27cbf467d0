"""Links to other packages' documentation, without a network.

Sphinx's intersphinx usually downloads the names of other sites. Here the few names that our pages
use are listed, and written as files of the same format, so that every build gives the same links.
"""

import zlib

# Site; then by role the names, with {} in the address for the name.
LINKS = {
    "python": {
        "site": "https://docs.python.org/3",
        "py:data library/constants.html#{}": "None True False",
        "py:function library/functions.html#{}": "callable",
        "std:term glossary.html#term-{}": "sequence iterable iterator generator",
        "std:label library/stdtypes.html#boolean-type-bool": "bltin-boolean-values",
        "py:class library/functions.html#{}": "int float bool str dict list tuple set object",
        "py:exception library/exceptions.html#{}": (
            "FileNotFoundError ImportError KeyboardInterrupt KeyError MemoryError "
            "NotImplementedError OSError RuntimeError TypeError UserWarning ValueError"
        ),
    },
    "numpy": {
        "site": "https://numpy.org/doc/stable",
        "std:term glossary.html#term-{}": "array_like",
        "py:class reference/generated/{}.html": "numpy.ndarray",
        "py:class reference/random/generator.html#{}": "numpy.random.Generator",
        "py:class reference/random/legacy.html#{}": "numpy.random.RandomState",
        "py:function reference/generated/{}.html": "numpy.unique numpy.savez",
    },
    "scipy": {
        "site": "https://docs.scipy.org/doc/scipy",
        "py:class reference/generated/{}.html": "scipy.sparse.csr_array scipy.sparse.csr_matrix",
        "py:function reference/generated/{}.html": "scipy.sparse.find",
    },
    "sklearn": {
        "site": "https://scikit-learn.org/stable",
        "py:class modules/generated/{}.html": (
            "sklearn.base.BaseEstimator sklearn.callback.ProgressBar "
            "sklearn.callback.ScoringMonitor sklearn.compose.TransformedTargetRegressor "
            "sklearn.ensemble.VotingRegressor "
            "sklearn.exceptions.ConvergenceWarning sklearn.exceptions.NotFittedError "
            "sklearn.model_selection.GridSearchCV sklearn.model_selection.GroupKFold "
            "sklearn.model_selection.GroupShuffleSplit "
            "sklearn.model_selection.HalvingGridSearchCV sklearn.pipeline.Pipeline "
            "sklearn.utils.Bunch"
        ),
        "py:function modules/generated/{}.html": (
            "sklearn.base.clone sklearn.metrics.make_scorer sklearn.metrics.mean_absolute_error "
            "sklearn.metrics.root_mean_squared_error sklearn.metrics.roc_auc_score "
            "sklearn.model_selection.cross_val_predict "
            "sklearn.model_selection.cross_val_score sklearn.model_selection.cross_validate "
            "sklearn.model_selection.train_test_split sklearn.preprocessing.binarize "
            "sklearn.utils.estimator_checks.check_estimator"
        ),
    },
    "pandas": {
        "site": "https://pandas.pydata.org/docs",
        "py:class reference/api/{}.html": "pandas.DataFrame pandas.Series",
    },
    "matplotlib": {
        "site": "https://matplotlib.org/stable",
        "py:class api/_as_gen/{}.html": "matplotlib.lines.Line2D",
        "py:class api/container_api.html#{}": "matplotlib.container.ErrorbarContainer",
        "py:class api/_as_gen/{}.html#{}": "matplotlib.axes.Axes matplotlib.figure.Figure",
    },
    "joblib": {
        "site": "https://joblib.readthedocs.io/en/stable",
        "py:class generated/{}.html": "joblib.Parallel",
        "py:function generated/{}.html": "joblib.delayed",
    },
}
# What docstrings call the types of parameters.
TYPES = {
    "Axes": "matplotlib.axes.Axes",
    "Bunch": "sklearn.utils.Bunch",
    "DataFrame": "pandas.DataFrame",
    "ErrorbarContainer": "matplotlib.container.ErrorbarContainer",
    "Figure": "matplotlib.figure.Figure",
    "Generator": "numpy.random.Generator",
    "Line2D": "matplotlib.lines.Line2D",
    "RandomState": "numpy.random.RandomState",
    "Series": "pandas.Series",
    "ndarray": "numpy.ndarray",
}


def write_inventories(folder):
    """Write a file per site, and return the mapping for intersphinx."""
    mapping = {}
    for project, links in LINKS.items():
        rows = []
        for place, names in links.items():
            role, _, address = place.partition(" ")
            rows += [
                f"{name} {role} 1 {address.replace('{}', name)} -\n"
                for name in (names.split() if address else [])
            ]
        head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
        file = folder / f"{project}.inv"
        text = head + "# The remainder of this file is compressed using zlib.\n"
        file.write_bytes(text.encode() + zlib.compress("".join(rows).encode()))
        mapping[project] = (links["site"], str(file))
    return mapping
