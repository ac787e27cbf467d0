"""Shows the formulas of docstrings as formulas.

Docstrings have them in plain text, which reads well in a terminal::

    sum_r w (r - p_u . q_i)^2 + reg_user sum_u |p_u|^2

Blocks of which every word is known here become LaTeX; all others stay as they are.
"""

import re

GREEK = {"alpha", "eta", "gamma", "lambda", "Lambda", "mu", "nu", "psi", "rho", "tau"}
FUNCTIONS = {"GP", "Gamma", "diag", "link", "ln", "sigmoid", "tr"}
NAMES = {
    "estimate",
    "level",
    "mean",
    "n_clients",
    "prox",
    "reg",
    "reg_bias",
    "reg_item",
    "REG_POWER",
    "reg_user",
    "res",
    "shrinkage",
    "shrinkage_bias",
}
# Sums in words, as in "sum over liked (u, i) of".
SUM = re.compile(r"sum over (?P<what>[\w ,()]+?) of ")
SUBSCRIPT = re.compile(r"_\{(?P<what>[^}]*)\}")
WORD = re.compile(r"(?P<name>[A-Za-z]\w*)")


def _word(match):
    name = match["name"]
    base, _, index = name.partition("_")
    if name in NAMES:
        return r"\mathrm{" + name.replace("_", r"\_") + r"}\,"
    if name in FUNCTIONS:
        return rf"\operatorname{{{name}}}"
    if name == "N":
        return r"\mathcal{N}"
    if base == "sum":
        base = r"\sum"
    elif base in GREEK:
        base = rf"\{base}"
    elif len(base) != 1:
        raise ValueError(f"{name} is no word of a formula.")
    return f"{base}_{{{index}}}" if index else f"{base} "


def latex(line):
    """A line of a formula in LaTeX; a ValueError where it has an unknown word."""
    kept = []

    def keep(text):
        kept.append(text)
        return f"@{len(kept) - 1}@"

    def words(text):
        return re.sub(r"[A-Za-z]{2,}( of [A-Za-z])?", lambda m: rf"\text{{{m[0]} }}", text)

    def total(match):
        what = re.sub(r"\bALL ", "", match["what"])
        return keep(rf"\sum_{{{words(what)}}} ")

    def index(match):
        what = re.sub(r"\b(all|of|in)\b", r"\\text{ \1 }", match["what"])
        return keep(f"_{{{what.replace(chr(92) + 'text{ in }', chr(92) + 'in ')}}}")

    text = SUBSCRIPT.sub(index, SUM.sub(total, line))
    text = re.sub(r"\^(-?[\w/]+)", lambda m: "^{" + m[1] + "}", text)
    text = WORD.sub(_word, text)
    for plain, formula in (
        (" . ", r" \cdot "),
        (r"}.", r"} \cdot "),
        ("...", r"\ldots"),
        (" * ", r" \cdot "),
        ("~", r"\sim"),
    ):
        text = text.replace(plain, formula)
    text = re.sub(r"(?<=,) {2,}", r" \\qquad ", text)
    return re.sub(r"@(\d+)@", lambda m: kept[int(m[1])], text)


def formula(lines):
    """The lines of a block as one formula, continued lines indented."""
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    rows = []
    for line in lines:
        indented = len(line) - len(line.lstrip()) > margin
        rows.append((r"& \quad " if indented else "& ") + latex(line.strip()))
    return " \\\\\n".join(rows).split("\n")


def show_formulas(app, what, name, thing, options, lines):
    """Replace the plain formulas of a docstring."""
    number = 0
    while number < len(lines):
        number += 1
        head = lines[number - 1].rstrip()
        if not head.endswith("::") or number >= len(lines) or lines[number].strip():
            continue
        end = number + 1
        margin = len(head) - len(head.lstrip())
        while end < len(lines) and (
            not lines[end].strip() or len(lines[end]) - len(lines[end].lstrip()) > margin
        ):
            end += 1
        block = [line for line in lines[number:end] if line.strip()]
        try:
            rows = formula(block)
        except ValueError:
            continue
        pad = " " * margin
        shown = [f"{pad}.. math::", "", *(f"{pad}    {row}" for row in rows), ""]
        lines[number - 1 : end] = [head[:-1], "", *shown]


def setup(app):
    """Sphinx calls this."""
    # Before numpydoc, which has priority 500.
    app.connect("autodoc-process-docstring", show_formulas, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
