import subprocess
import sys
from pathlib import Path

import pytest

from fedrecsk.datasets import clear_data_home, get_data_home


def test_argument_beats_variable_beats_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.delenv("FEDRECSK_DATA", raising=False)
    assert get_data_home() == str(tmp_path / "me" / "fedrecsk_data")
    monkeypatch.setenv("FEDRECSK_DATA", str(tmp_path / "variable"))
    assert get_data_home() == str(tmp_path / "variable")
    assert get_data_home(tmp_path / "argument") == str(tmp_path / "argument")
    assert get_data_home("~/tilde") == str(tmp_path / "me" / "tilde")
    for name in ("me/fedrecsk_data", "variable", "argument", "me/tilde"):
        assert (tmp_path / name).is_dir()


def test_an_empty_variable_counts_as_unset(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FEDRECSK_DATA", "")
    assert get_data_home() == str(tmp_path / "fedrecsk_data")


def test_clear_deletes_archives_and_nothing_else(tmp_path):
    keep = tmp_path / "ml-100k" / "ratings.csv.gz"
    keep.parent.mkdir()
    keep.touch()
    (tmp_path / "ml-100k.zip").touch()
    clear_data_home(tmp_path)
    assert keep.exists()
    assert not (tmp_path / "ml-100k.zip").exists()


def test_clear_removes_a_folder_that_is_empty_then(tmp_path):
    home = Path(get_data_home(tmp_path / "home"))
    (home / "ml-1m.zip").touch()
    clear_data_home(home)
    assert not home.exists()


def test_clear_of_a_missing_folder_makes_none(tmp_path):
    clear_data_home(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("function", [get_data_home, clear_data_home])
def test_data_home_must_be_a_path(function):
    with pytest.raises(ValueError, match="data_home"):
        function(3)


def test_the_package_works_without_pandas():
    # Not "does not import pandas": scikit-learn itself does, where it is installed.
    code = (
        "import sys; sys.modules['pandas'] = None\n"
        "from fedrecsk.datasets import make_ratings\n"
        "assert make_ratings(5, 5, 9, random_state=0)[0].shape == (9, 3)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
