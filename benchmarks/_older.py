"""Give records from before there were digests of code and golden predictions these digests.

``python -m benchmarks._older`` finds the commit whose files are those of a record, and compares
with now: the golden predictions there, in tests/golden.json or, where that has no such entry yet,
computed by the package as it was; and the code of the benchmark there.
"""

import ast
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks import _records as records
from benchmarks._code import digest, digest_of_command, short_digest

WORK = Path(tempfile.mkdtemp())
# Finished packages, for another start.
CACHE = Path(tempfile.gettempdir()) / "older"
CACHE.mkdir(exist_ok=True)
NOW = json.loads(records.GOLDEN.read_text())
OVERLAY = ("__init__", "conftest", "listed", "test_contract", "golden_tools", "test_golden")
ENTRIES = """
import json, sys, warnings, pytest
from tests import test_golden as golden
found = {}
with pytest.MonkeyPatch.context() as patch:
    golden.compute_in_float64(patch)
    for name in json.loads(sys.argv[1]):
        try:
            if name in golden.CASES:
                Estimator = golden.BY_NAME[golden.CASES[name][0]]
                if set(golden.CASES[name][1]) - Estimator().get_params(deep=False).keys():
                    continue
            found[name] = golden.found_now(name)
        except Exception as error:
            print(name, repr(error)[:200], file=sys.stderr)
print(json.dumps(found))
"""


def git(*words):
    """Return what git prints."""
    return subprocess.run(
        ["git", *words], cwd=records.ROOT, capture_output=True, text=True, check=True
    ).stdout


@cache
def blobs(commit):
    """Return the Python files of a commit and the names of their contents."""
    lines = git("ls-tree", "-r", commit, "--", "fedrecsk", "benchmarks").splitlines()
    return {line.split("\t")[1]: line.split()[2] for line in lines if line.endswith(".py")}


@cache
def digest_of_blob(blob):
    """Return the digest of a file in git."""
    path = WORK / "blob.py"
    path.write_text(git("cat-file", "blob", blob))
    return digest(path)


def candidates(record, path):
    """Return the commits at which a record may have been measured, earliest first."""
    base = record["commit"].rstrip("+")
    last = git("log", "-1", "--format=%H", "--", str(path)).strip()
    between = git("rev-list", "--reverse", "--ancestry-path", f"{base}..{last}").split()
    commits = [git("rev-parse", base).strip(), *between]
    files = record["files"].items()
    return [
        one
        for one in commits
        if all(
            name in blobs(one) and digest_of_blob(blobs(one)[name]) == was for name, was in files
        )
    ]


@cache
def tree(commit):
    """Return a folder with the files of a commit."""
    folder = WORK / commit
    folder.mkdir()
    archive = subprocess.run(
        ["git", "archive", commit], cwd=records.ROOT, capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "x"], cwd=folder, input=archive, check=True)
    return folder


@cache
def code_at(folder, home, name, options):
    """Return the digest of a command's code in a folder."""
    return digest_of_command(folder, home, name, options)


def golden_at(commit):
    """Return today's entries as they were at a commit."""
    # Its golden.json may be another than that of the same package in another commit.
    return json.loads(git("show", f"{commit}:tests/golden.json")) | computed_at(
        git("rev-parse", f"{commit}:fedrecsk").strip(), commit
    )


def computed_at(package, commit):
    """Return these entries, from the last time if they were computed."""
    path = CACHE / f"{package}.json"
    if not path.exists():
        path.write_text(json.dumps(computed(commit)))
    return json.loads(path.read_text())


def computed(commit):
    """Compute the entries that golden.json does not have at a commit."""
    found, folder = json.loads(git("show", f"{commit}:tests/golden.json")), WORK / "package"
    # The same folder each time, so that numba compiles again only what differs.
    if folder.exists():
        git("-C", str(folder), "checkout", "--quiet", "--force", commit)
    else:
        git("worktree", "add", "--detach", str(folder), commit)
    for name in OVERLAY:
        text = (records.ROOT / f"tests/{name}.py").read_text()
        late = "from fedrecsk.preprocessing import split_users\n"
        folder.joinpath(f"tests/{name}.py").write_text(
            text.replace(late, f"try:\n    {late}except ImportError:\n    pass\n")
        )
    missing = json.dumps([name for name in NOW if name not in found])
    environment = os.environ | {"PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(WORK / "numba")}
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ENTRIES, missing],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(ran.stdout.splitlines()[-1])


def is_close(one, other):
    """Return whether an entry is as it was."""
    close = 1e-6
    return (
        one.keys() - {"of"} == other.keys()
        and one.get("bytes") == other.get("bytes")
        and all(
            np.allclose(one[key], other[key], rtol=close, atol=close / 100, equal_nan=True)
            for key in ("predictions", "losses", "values")
            if key in one
        )
    )


def names_at(commit, files):
    """Return what the files of a record define."""
    found = set()
    for name in files:
        body = ast.parse(git("cat-file", "blob", blobs(commit)[name])).body
        found |= {one.name for one in body if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    return found


def golden_of(commit, files):
    """Return the field of a record: digests of what is as it was are those of now."""
    names, found, then = names_at(commit, files), {}, golden_at(commit)
    for name, entry in NOW.items():
        if "refused" in entry or name not in then or not names.issuperset(entry["of"]):
            continue
        same = is_close(entry, then[name])
        if not same:
            print("  other:", name)
        one = short_digest(json.dumps(entry if same else then[name], sort_keys=True))
        first = entry["of"][0]
        found[first] = f"{found.get(first, '')} {one}".strip()
    return found


def main():
    """Complete all records."""
    for path in sorted(records.FOLDER.glob("*.json")):
        record = json.loads(path.read_text())
        if "files" not in record or "options" not in record or "golden" in record:
            continue
        command, options = record["command"], record["options"]
        commits = candidates(record, path)
        if not commits:
            print(f"{command}: no commit has its files", flush=True)
            continue
        name = str(options.get("command")).replace("-", "_")
        place = f"benchmarks.{command.split()[0]}", name, frozenset(options)
        by_code = {code_at(tree(one), *place): one for one in reversed(commits)}
        now = records.code_of(command, options)
        codes = [one for one in by_code if one != now] or [now]
        golden = golden_of(commits[0], record["files"])
        fields = {"code": codes[0], "golden": golden}
        text = path.read_text().rstrip()
        at = text.index('\n "table 1"')
        more = "".join(f"\n {json.dumps(key)}: {json.dumps(one)}," for key, one in fields.items())
        path.write_text(f"{text[:at]}{more}{text[at:]}\n")
        print(
            f"{command}: {commits[0][:8]}, {len(by_code)} codes, same {codes[0] == now}", flush=True
        )


if __name__ == "__main__":
    main()
    git("worktree", "remove", "--force", str(WORK / "package"))
