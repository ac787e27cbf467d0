"""Build sdist and wheel, look into them, and use the wheel where there is no checkout.

    python .ci/check_wheel.py

Needs the packages `build` and `uv`. Exits with an error at the first thing that is wrong.
"""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / ".ci" / "constraints.txt"
BUILD = "-m", "build", "--installer", "uv"
# What a wheel may hold beside its own metadata.
SUFFIXES = {".py", ".typed", ".js"}
EXTRAS = "plot,privacy,progress"
# Without an extra, a module may fail only with the error that names the extra to install. The large
# extras for torch and Flower are left out: the tests have them.
IMPORT_ALL = """
import importlib, pkgutil, sys, fedrecsk
assert "site-packages" in fedrecsk.__file__, fedrecsk.__file__
lacking = sys.argv[1:]
names = [m.name for m in pkgutil.walk_packages(fedrecsk.__path__, "fedrecsk.")]
public = [n for n in names if not any(part.startswith("_") for part in n.split("."))]
waiting = []
for name in public:
    try:
        importlib.import_module(name)
    except ImportError as error:
        if not any(f"pip install '.[{extra}" in str(error) for extra in lacking):
            raise
        waiting.append(name)
print(f"{len(public) - len(waiting)} public modules import, fedrecsk {fedrecsk.__version__}")
if waiting:
    print("need an extra:", *waiting)
"""


def run(*command, folder):
    """Run a command without the checkout on the path."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run([str(part) for part in command], cwd=folder, env=environment, check=True)


def built(kind, source, target):
    """Build in an environment of its own; the path of what was built."""
    run(sys.executable, *BUILD, f"--{kind}", "--outdir", target, source, folder=target)
    (path,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return path


def contents(wheel):
    """Bytes of each file in a wheel but for its table of contents, which has the order."""
    with zipfile.ZipFile(wheel) as archive:
        return {n: archive.read(n) for n in archive.namelist() if not n.endswith("RECORD")}


def check_contents(files):
    """Raise if something is missing or does not belong there."""
    ours = {n for n in files if n.startswith("fedrecsk/")}
    metadata = set(files) - ours
    strange = {n for n in ours if Path(n).suffix not in SUFFIXES}
    strange |= {n for n in metadata if ".dist-info/" not in n}
    assert not strange, f"does not belong into a wheel: {sorted(strange)}"
    assert "fedrecsk/py.typed" in ours
    assert any(n.endswith("LICENSE") for n in metadata)
    tracked = subprocess.run(
        ["git", "ls-files", "fedrecsk"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    missing = set(tracked.stdout.split()) - ours
    assert not missing, f"not in the wheel: {sorted(missing)}"


def check_metadata(files):
    """Raise if an address is missing, or if a link of the description is dead outside."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    (metadata,) = (text.decode() for n, text in files.items() if n.endswith("METADATA"))
    assert f"Home-page: {config['metadata']['url']}" in metadata
    dead = re.findall(r"\]\((?!https?:|#|mailto:)[^)]*\)", metadata)
    assert not dead, f"relative links on PyPI: {dead}"


def main():
    """Run all checks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        places = [folder / part for part in ("sdist", "wheel", "again", "empty")]
        for place in places:
            place.mkdir()
        sdist = built("sdist", ROOT, places[0])
        wheel = built("wheel", ROOT, places[1])
        with tarfile.open(sdist) as archive:
            archive.extractall(folder / "source", filter="data")
        (source,) = (folder / "source").iterdir()
        assert (source / "SECURITY.md").exists(), "not in the sdist: SECURITY.md"
        files = contents(wheel)
        assert contents(built("wheel", source, places[2])) == files, "sdist and checkout differ"
        check_contents(files)
        check_metadata(files)
        empty = places[3]
        run("uv", "venv", "--quiet", folder / "venv", folder=empty)
        python = folder / "venv" / "bin" / "python"
        install = "uv", "pip", "install", "--quiet", "--python", python, "-c", CONSTRAINTS
        run(*install, wheel, folder=empty)
        run(python, "-c", IMPORT_ALL, "", folder=empty)
        run(*install, f"{wheel}[{EXTRAS}]", folder=empty)
        run(python, "-c", IMPORT_ALL, "torch", "flower", folder=empty)
        run(python, "-m", "fedrecsk", "--rounds", "3", folder=empty)
    print(f"{wheel.name}: {len(files)} files, installs and runs.")


if __name__ == "__main__":
    main()
