"""How much memory there is."""

import pytest

from fedrecsk._utils import memory


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with 100 MiB left, and no container."""
    (tmp_path / "meminfo").write_text("MemTotal: 999999 kB\nMemAvailable:  102400 kB\n")
    monkeypatch.setattr(memory, "MACHINE", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CONTAINER", tmp_path)
    return tmp_path


def test_what_the_machine_has_left(machine):
    assert memory.available() == 100 * 2**20
    (machine / "memory.max").write_text("max\n")
    assert memory.available() == 100 * 2**20


def test_a_container_has_less(machine):
    (machine / "memory.max").write_text(f"{50 * 2**20}\n")
    (machine / "memory.stat").write_text(f"file 77\nanon {20 * 2**20}\nanon_thp 7\n")
    assert memory.available() == 30 * 2**20


def test_elsewhere_the_size_of_the_machine(machine, monkeypatch):
    monkeypatch.setattr(memory, "MACHINE", machine / "nothing")
    sizes = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(memory.os, "sysconf_names", sizes, raising=False)
    monkeypatch.setattr(memory.os, "sysconf", sizes.get, raising=False)
    assert memory.available() == 4096000
    monkeypatch.setattr(memory.os, "sysconf_names", {})
    assert memory.available() is None
    memory.require(2**60, "Everything", "")


def test_what_does_not_fit_is_refused(machine):
    memory.require(100 * 2**20, "Two matrices", "Buy more.")
    with pytest.raises(
        ValueError, match=r"Two matrices take about 0\.195 GiB, but only 0\.0977 .*Buy"
    ):
        memory.require(200 * 2**20, "Two matrices", "Buy more.")
