import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_offline_as_they_stand(path, capsys, monkeypatch, tmp_path):
    if "import torch" in path.read_text():
        pytest.importorskip("torch", reason="needs the extra torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDRECSK_DATA", raising=False)
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
    assert not list(tmp_path.iterdir())
