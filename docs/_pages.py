"""Runs the code of the pages when the site is built, and shows what it prints and draws.

Pages are plain Markdown. A fence that begins with ```python is a cell, as in a notebook. Options
may follow that word:

=========== ==================================================
fold        the code is folded, its output shown
output      only the output is shown
hidden      runs, but nothing is shown
raises      has to raise an error, which is shown
static      does not run
alt="..."   the alternative text of the figure
=========== ==================================================

`bash run` shows a shell command, runs it and shows what it prints. The build warns about a page
whose code shows nothing, about a figure without alternative text, and about a paragraph that begins
with markup; with -W it fails.
"""

import json
import os
import re
import shlex
import sys
from pathlib import Path

from docutils import nodes
from sphinx.util import logging

logger = logging.getLogger(__name__)

FENCE = re.compile(
    r"^```(?P<language>python|bash)(?P<options>[^\n]*)\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
TAGS = {
    "fold": "hide-input",
    "output": "remove-input",
    "hidden": "remove-cell",
    "raises": "raises-exception",
}
# Recipes for files that a build does not have.
STATIC = {"datasets"}
# How tables, fences and comments begin. Dashes may have become typographic ones.
MARKUP = "|", ":::", "<!"
# The text of a display or of axes, which stand above their figure.
OBJECT = re.compile(r"<[\w.]+ at 0x[0-9a-f]+>|<Axes: .*>|\[?<matplotlib\..*>\]?", re.DOTALL)
# All of the output at once: IPython's %%bash passes it on in pieces, which MyST-NB breaks lines at.
SHELL = """\
import subprocess

done = subprocess.run(
    ["bash", "-c", {!r}],
    check=True,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
)
print(done.stdout, end="")
"""
FRONT = "---\nfile_format: mystnb\nkernelspec:\n  name: fedrecsk\n---\n"


def cell(code, tags=(), alt=None):
    """A code cell of MyST-NB."""
    options = {"tags": [TAGS[tag] for tag in tags]}
    if alt:
        options["mystnb"] = {"image": {"alt": alt}}
    return f"```{{code-cell}} python\n---\n{json.dumps(options)}\n---\n{code}```"


def as_cell(match):
    """A fence as a cell, or as it is where it is not to run."""
    options = shlex.split(match["options"])
    alt = next((one[len("alt=") :] for one in options if one.startswith("alt=")), None)
    flags = [one for one in options if not one.startswith("alt=")]
    plain = f"```{match['language']}\n{match['code']}```"
    if match["language"] == "bash":
        shell = SHELL.format(match["code"])
        return plain + "\n\n" + cell(shell, ["output"]) if flags == ["run"] else plain
    return plain if "static" in flags else cell(match["code"], flags, alt)


def make_cells(app, docname, source):
    """Make a page with code a notebook in the form of MyST-NB."""
    if app.env.doc2path(docname).suffix != ".md" or docname in STATIC:
        return
    text = FENCE.sub(as_cell, source[0])
    if "```{code-cell}" in text and os.environ.get("FEDRECSK_DOCS_ONLY", "") in docname:
        source[0] = FRONT + text


def check_outputs(app, doctree):
    """Remove the text of displays; warn about code without output and figures without text."""
    page = app.env.current_document.docname
    cells = [one for one in doctree.findall(nodes.container) if "cell" in one["classes"]]
    for one in cells:
        for bundle in list(one.findall(nodes.container)):
            if bundle.get("nb_element") == "mime_bundle" and OBJECT.fullmatch(bundle.astext()):
                bundle.parent.remove(bundle)
        for image in one.findall(nodes.image):
            if not image.get("alt"):
                logger.warning('add alt="..." behind the ```python of this figure', location=one)
    outputs = [
        output
        for one in cells
        for output in one.findall(nodes.container)
        if "cell_output" in output["classes"] and output.children
    ]
    if cells and not outputs:
        logger.warning("the code of this page shows no output", location=page)


def check_paragraphs(app, doctree):
    """Warn about markup that a page shows as text."""
    for one in doctree.findall(nodes.paragraph):
        first = next(iter(one.findall(nodes.Text)), "")
        # |x| may be a formula, and anything may be code.
        if isinstance(getattr(first, "parent", None), nodes.paragraph) and first.startswith(MARKUP):
            logger.warning("the page shows the markup %r as text", str(first)[:40], location=one)


def setup(app):
    """Sphinx calls this."""
    # The site's own kernel: this python, whatever kernels the user has.
    os.environ["JUPYTER_PATH"] = str(Path(__file__).parent / "_kernel")
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    app.connect("source-read", make_cells)
    app.connect("doctree-read", check_outputs)
    app.connect("doctree-read", check_paragraphs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
