import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import numpy as np
import pytest
import sklearn
from packaging.requirements import Requirement
from scipy import sparse

import fedrecsk
from fedrecsk import BiasOnly, _sklearn
from fedrecsk.__main__ import main


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_import_is_light():
    heavy = "{'numba', 'torch', 'matplotlib', 'implicit', 'pandas', 'rich'}"
    # scikit-learn loads some of them itself where they are installed.
    before = (
        "import sys, sklearn.callback, sklearn.metrics, sklearn.utils; before = set(sys.modules)"
    )
    code = f"{before}; import fedrecsk, fedrecsk.datasets; "
    assert run(code + f"print((set(sys.modules) - before) & {heavy})").strip() == "set()"


def test_everything_public_is_there():
    assert all(hasattr(fedrecsk, name) for name in fedrecsk.__all__)


def test_the_main_job_runs_offline(capsys, tmp_path):
    main(["--rounds", "5", "--n-jobs", "1"])
    out = capsys.readouterr().out
    for words in ("FedEB, federated: RMSE", "For user", "MB up", "mechanism='none'"):
        assert words in out


def test_the_main_job_has_privacy_and_reads_files(capsys, tmp_path):
    rows = [f"{u},{i},{1 + (u + i) % 5}" for u in range(30) for i in range(12)]
    path = tmp_path / "ratings.csv"
    path.write_text("user,item,rating\n" + "\n".join(rows))
    main(["--data", str(path), "--rounds", "5", "--scale", "0.04"])
    assert "epsilon_per_coordinate=10.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nosuch.csv"], "no such file, nor one of generated, 100k"),
        (["--rounds", "0"], "at least 1 round"),
        (["--n-jobs", "0"], "-1 for all cores"),
        (["--scale", "0"], "--scale 0 must be positive"),
        (["--clip", "-1", "--scale", "1"], "--clip -1 must be positive"),
    ],
)
def test_wrong_arguments_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


def test_a_matrix_is_told_from_a_table():
    matrix = sparse.csr_array(np.eye(3))
    with pytest.raises(TypeError, match=r"one row an interaction.*tocoo"):
        BiasOnly().fit(matrix, np.ones(3))


CITATION = Path(__file__).parents[1] / "CITATION.cff"


@pytest.mark.skipif(not CITATION.exists(), reason="needs a checkout")
def test_the_citation_has_the_version():
    assert f"\nversion: {fedrecsk.__version__}\n" in CITATION.read_text()


def test_only_one_module_imports_what_scikit_learn_keeps_private():
    private = re.compile(r"(from|import) sklearn(\.\w+)*\._|from sklearn[\w.]* import [^(\n]*\b_")
    package = Path(fedrecsk.__file__).parent
    found = {path.name for path in package.rglob("*.py") if private.search(path.read_text())}
    assert found == {"_sklearn.py"}


def test_scikit_learn_is_bounded_by_the_version_that_was_tested():
    (bound,) = [r for r in requires("fedrecsk") if r.startswith("scikit-learn")]
    assert "<" in bound, "private names may move in any minor version"
    assert Requirement(bound).specifier.contains(sklearn.__version__)
    assert all(hasattr(_sklearn, name) for name in _sklearn.__all__)
