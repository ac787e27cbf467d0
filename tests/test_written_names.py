"""Pages, examples and benchmarks name what exists: modules, files, parameters."""

import ast
import inspect
import pkgutil
import re
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/*/*.md")]
PROGRAMS = [*ROOT.glob("examples/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]
# It also says what is gone.
OLD_NAMES = {ROOT / "CHANGELOG.md"}
NAME = re.compile(r"(?<![\w/.-])fedrecsk(?!\.js\b)(?:\.[A-Za-z_]\w*)+")
FILE = re.compile(r"(?<![\w/.-])(?:fedrecsk|benchmarks|tests|docs|examples)/[\w./-]*\w")
COMMAND = re.compile(r"python\s+-m\s+benchmarks[.\s](?!(?:all|list|pages|NAME)\b)(\w+)")
CODE = re.compile(r"^ *```python[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
# Made when the site is built, and the address of the repository.
NOT_FILES = ("docs/_build", "fedrecsk/fedrecsk")


def resolved(name):
    """Return what has this name, or None if an optional package is missing."""
    try:
        return pkgutil.resolve_name(name)
    except ModuleNotFoundError as error:
        if error.name.startswith("fedrecsk"):
            raise
        return None


def missing(text):
    """Yield the names and files that do not exist."""
    commands = [f"benchmarks.{name}" for name in COMMAND.findall(text)]
    for name in [*NAME.findall(text), *commands]:
        try:
            resolved(name)
        except (ImportError, AttributeError):
            yield name
    for file in FILE.findall(text):
        if not (ROOT / file).exists() and not file.startswith(NOT_FILES):
            yield file


def wrong_keywords(code):
    """Yield the keyword arguments that what is imported from fedrecsk does not take."""
    tree = ast.parse(code)
    imported = {
        one.asname or one.name: f"{node.module}.{one.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedrecsk")
        for one in node.names
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        thing = resolved(imported[node.func.id]) if node.func.id in imported else None
        if not callable(thing):
            continue
        parameters = inspect.signature(thing).parameters
        if any(one.kind == one.VAR_KEYWORD for one in parameters.values()):
            continue
        for keyword in node.keywords:
            if keyword.arg and keyword.arg not in parameters:
                yield f"{node.func.id}({keyword.arg}=...)"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_what_exists(page):
    text = page.read_text()
    if page not in OLD_NAMES:
        assert list(missing(text)) == []
    code = "".join(textwrap.dedent(block) for block in CODE.findall(text))
    assert list(wrong_keywords(code)) == []


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_program_names_what_exists(program):
    assert list(missing(program.read_text())) == []
    assert list(wrong_keywords(program.read_text())) == []


def test_wrong_names_are_found():
    text = "fedrecsk.FedEB fedrecsk.nothing python -m benchmarks none docs/none.md tests/listed.py"
    assert list(missing(text)) == ["fedrecsk.nothing", "benchmarks.none", "docs/none.md"]
    code = "from fedrecsk import FedEB\nFedEB(4, n_rounds=3, none=1)"
    assert list(wrong_keywords(code)) == ["FedEB(none=...)"]
