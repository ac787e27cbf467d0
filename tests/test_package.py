import re
import subprocess
import sys
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path

import pytest
import sklearn
from packaging.requirements import Requirement

import fedrecsk
from fedrecsk import BiasOnly


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_import_is_light():
    heavy = "{'numba', 'torch', 'matplotlib', 'implicit', 'pandas', 'rich'}"
    # scikit-learn loads some of them itself where they are installed.
    callbacks = "sklearn.callback, " if find_spec("sklearn.callback") else ""
    before = f"import sys, {callbacks}sklearn.metrics, sklearn.utils; before = set(sys.modules)"
    code = f"{before}; import fedrecsk, fedrecsk.datasets; "
    assert run(code + f"print((set(sys.modules) - before) & {heavy})").strip() == "set()"


def test_import_alone_imports_nothing_else():
    code = "import sys; import fedrecsk, fedrecsk.portable; "
    found = "{'scipy', 'sklearn', 'joblib', 'pandas', 'numba'} & set(sys.modules)"
    assert run(f"{code}print({found})").strip() == "set()"
    assert run("import fedrecsk; print(fedrecsk.metrics.__name__, fedrecsk.EASE)").split()[0] == (
        "fedrecsk.metrics"
    )
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = fedrecsk.Nothing
    assert {"EASE", "__version__"} <= set(dir(fedrecsk))


CITATION = Path(__file__).parents[1] / "CITATION.cff"


@pytest.mark.skipif(not CITATION.exists(), reason="needs a checkout")
def test_the_citation_has_the_version():
    assert f"\nversion: {fedrecsk.__version__}\n" in CITATION.read_text()


def test_only_one_module_imports_what_scikit_learn_keeps_private():
    private = re.compile(r"(from|import) sklearn(\.\w+)*\._|from sklearn[\w.]* import [^(\n]*\b_")
    package = Path(fedrecsk.__file__).parent
    found = {path.name for path in package.rglob("*.py") if private.search(path.read_text())}
    assert found == {"sklearn_compat.py"}


def test_scikit_learn_is_bounded_by_the_version_that_was_tested():
    (bound,) = [r for r in requires("fedrecsk") if r.startswith("scikit-learn")]
    assert "<" in bound, "private names may move in any minor version"
    assert Requirement(bound).specifier.contains(sklearn.__version__)


@pytest.mark.skipif(bool(find_spec("sklearn.callback")), reason="scikit-learn has callbacks")
def test_callbacks_name_the_version_that_they_need():
    with pytest.raises(ImportError, match="scikit-learn 1"):
        BiasOnly().set_callbacks(print)
