"""Check the prose of pages by the rules of CONTRIBUTING.md's style sheet that a program can check.

    python .ci/check_prose.py [PAGE...]

Without names it checks the README, the guides for contributors and all pages of the site. Code,
formulas and addresses do not count, and tables only count for the way numbers are written. Prints
one line for each problem, and exits with 1 if there is any.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/*.md",
    "docs/user_guide/*.md",
    "docs/methods/*.md",
    "docs/numbers/*.md",
)
MOST_WORDS = 40
# Only numbers are checked here: lists of changes and measurements.
NUMBERS_ONLY = ("CHANGELOG.md", "docs/choices.md", "docs/numbers/papers.md")
# Elsewhere, commits are in records only.
WITH_COMMITS = ("CHANGELOG.md", "CONTRIBUTING.md")

NUMBERS = {
    r"(?<![\w.\])}/\\])\.\d": "write numbers with a leading zero",
    r"\d %": "write percentages without a space",
}
PHRASES = {
    r"\b(some|any|every|no)body\b|\bwhoever\b": "name the role: server, client, attacker, operator",
    r"\bsays? so\b": "software raises, warns or logs",
    r"\bthat you have\b|\bof your own\b": 'write "your ..."',
    r"\bany more\b": 'write "no longer"',
    r"\balso (those|if|inside)\b": 'write "including" or "even"',
    r"\b(items|users|clients)' (vectors?|features?|ids|biases|uploads?|embeddings?)\b": (
        "write a compound: item vectors"
    ),
    r"\b(is|are) no (proof|comparison|guarantee|evidence)\b": 'write "is not a", "does not"',
    r"\bfilms?\b": 'write "movie"',
    r"\bexplode[ds]?\b": 'write "diverged"',
    r"\b(a|two|three|four|nine) (tenth|fifth)s? of\b": "write measured shares in digits: 10%",
    r"\b(one|a) noise\b|\bnoises\b": "noise has no plural and no article",
}
COMMIT = r"\bcommit (?=[0-9a-f]*\d)[0-9a-f]{7,}\b"

HIDDEN = re.compile(
    r"^ *(?P<fence>```+|:::+)(?!\{(note|grid|container)).*?^ *(?P=fence) *$"  # code and directives
    r"|^---\n.*?^---$"  # front matter
    r"|<!-- table\(.*?-->\n\n( *\|[^\n]*\n)+\n[^\n]*|<!--.*?-->"  # tables of records, comments
    r"|\$\$.*?\$\$|\$[^$\n]+\$"
    r"|(\{[\w:]+\})?`+[^`]+`+|<[^>\n]+>|(?<=\]\()[^)\s]+|https?://\S+",
    re.DOTALL | re.MULTILINE,
)
# What ends a paragraph, apart from an empty line: the next item of a list, a heading, a table.
PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*#|:]|\d+\. |\(\w+\)=))")
SENTENCE = re.compile(r"(?<=[.!?:;])[)*\"]*\s+(?=[\"(*\[]*[A-Z0-9`])")


def blank(match):
    """Replace what is hidden by one word and as many lines."""
    return "X" + "\n" * match.group().count("\n")


def prose_of(text):
    """The text without code, formulas and addresses, line by line as in the file."""
    return HIDDEN.sub(blank, text)


def found(rules, text):
    """Line and advice for each match of a rule."""
    for rule, advice in rules.items():
        for match in re.finditer(rule, text, re.IGNORECASE):
            yield text.count("\n", 0, match.start()) + 1, f"{match.group()!r}: {advice}"


def long_sentences(text):
    """Line and advice for each sentence that is too long."""
    start = 0
    for end in [*(match.start() for match in PARAGRAPH.finditer(text)), len(text)]:
        paragraph, line = text[start:end], text.count("\n", 0, start) + 1
        start = end
        if paragraph.lstrip().startswith("|"):
            continue
        for sentence in SENTENCE.split(paragraph):
            words = re.findall(r"[^\W_][\w'.,-]*", sentence)
            if len(words) > MOST_WORDS:
                at = line + paragraph[: paragraph.index(sentence)].count("\n")
                yield at, f"{' '.join(words[:4])} ...: {len(words)} words; write shorter sentences"


def without_tables(text):
    """The text with empty lines for the rows of tables."""
    return re.sub(r"^ *\|.*$", "", text, flags=re.MULTILINE)


def problems(name, text):
    """Line and advice for each problem of a page."""
    prose = prose_of(text)
    yield from found(NUMBERS, prose)
    if not name.startswith(WITH_COMMITS):
        yield from found({COMMIT: "leave commits to the records in benchmarks/measured"}, prose)
    if not name.startswith(NUMBERS_ONLY):
        yield from found(PHRASES, prose)
        yield from long_sentences(without_tables(prose))


def main(names):
    """Check the named pages, or all."""
    pages = [Path(name).resolve() for name in names]
    pages = pages or sorted(page for glob in PAGES for page in ROOT.glob(glob))
    n_problems = 0
    for page in pages:
        name = page.relative_to(ROOT).as_posix()
        for line, advice in sorted(problems(name, page.read_text())):
            print(f"{name}:{line}: {advice}")
            n_problems += 1
    return 1 if n_problems else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
