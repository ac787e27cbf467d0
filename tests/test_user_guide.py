"""README and pages: the code of README prints what it shows, and links lead somewhere.

The code of the other pages runs when the site is built, which fails on errors and on pages whose
code shows nothing (docs/_pages.py).
"""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
WRITTEN = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *DOCS.glob("*/*.md")]
# Made when the site is built.
MADE = ("auto_examples/", "generated/")
LINK = re.compile(r"\]\(([^()\s]+)\)|src=\"([^\"]+)\"")
SECONDS = re.compile(r"(± [\d.]+(?: ~)?) +[\d.]+ ± [\d.]+")


def without_code(text):
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def anchors_of(page):
    """The anchors that GitHub and MyST give to headings, and the page's own labels."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    own = re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", title.lower()).strip() for title in titles]
    return {*own, *(title.replace(" ", "-") for title in words)}


def broken_links(page):
    for target in map("".join, LINK.findall(without_code(page.read_text()))):
        if re.match(r"[a-z]+:", target) or any(folder in target for folder in MADE):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or (anchor and anchor not in anchors_of(file)):
            yield target


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page):
    assert list(broken_links(page)) == []


def test_links_are_found_and_checked(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One Title!\n[a](#one-title) [b](#two) [c](none.md) ![d](https://x.org/y)")
    assert list(broken_links(page)) == ["#two", "none.md"]


def test_readme_prints_what_it_shows(capsys):
    code, shown = re.search(
        r"```python\n(.*?)```\n\n```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    ).groups()
    exec(code, {})
    printed = capsys.readouterr().out
    # The seconds of fits are the machine's; the rest is the same everywhere.
    assert len(SECONDS.findall(shown)) == 3
    assert SECONDS.sub(r"\1", printed).split() == SECONDS.sub(r"\1", shown).split()
    assert f"```python\n{code}```" in (DOCS / "index.md").read_text()


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", DOCS / "index.md"], ids=lambda path: path.name
)
def test_federated_methods_are_counted(page):
    table = (DOCS / "methods" / "index.md").read_text().partition("| centralised |")[0]
    names = ", ".join(re.findall(r"^\| \[(.*?)\]", table, re.MULTILINE)).split(", ")
    n_methods = len(names) - names.count("your own torch module")
    assert f"{n_methods} federated methods" in page.read_text()


def test_every_page_of_the_guide_is_listed_in_it():
    guide = (DOCS / "user_guide.md").read_text()
    for page in DOCS.glob("user_guide/*.md"):
        assert f"](user_guide/{page.name})" in guide
        assert f"\nuser_guide/{page.stem}\n" in guide
