"""Configuration of the documentation site: `sphinx-build -W --keep-going -b html docs out`."""

import importlib
import importlib.util
import inspect
import pkgutil
import re
import shutil
import sys
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst.states import Inliner
from sphinx import addnodes

import fedrecsk
from fedrecsk.base import Recommender
from fedrecsk.federated.base import FederatedRecommender

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import _matrix  # noqa: E402
from _links import TYPES, write_inventories  # noqa: E402

project = "fedrecsk"
author = "The fedrecsk developers"
version = release = fedrecsk.__version__
copyright = f"{author}. Version {version}, licence BSD-3-Clause"

extensions = [
    "myst_nb",
    "notfound.extension",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinxext.opengraph",
    "_formulas",
    "_gallery",
    "_pages",
]
# The tables of times would load scripts from the network.
exclude_patterns = ["_build", "sg_execution_times.rst", "auto_examples/sg_execution_times.rst"]
templates_path = ["_templates"]
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_show_tb = True
# Of a cell; a busy machine needs long.
nb_execution_timeout = 1800
nb_merge_streams = True
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
# MathJax comes with the site (copy_mathjax), so that formulas need no network.
mathjax_path = "mathjax/tex-chtml.js"
copybutton_prompt_text = r">>> |\.\.\. |\$ |In \[\d*\]: | {2,5}\.\.\.: "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"
copybutton_selector = "div.highlight pre:not(.cell_output pre, .sphx-glr-script-out pre)"
myst_heading_anchors = 3

html_theme = "pydata_sphinx_theme"
html_title = "fedrecsk"
# Descriptions of pages, for search engines and previews of links: their first sentences.
html_baseurl = ogp_site_url = "https://fedrecsk.github.io/fedrecsk/"
ogp_description_length = 160
ogp_social_cards = {"enable": False}
notfound_urls_prefix = "/fedrecsk/"
html_static_path = ["_static"]
html_css_files = ["fedrecsk.css"]
html_js_files = [("sort_tables.js", {"defer": "defer"})]
html_show_sourcelink = False
# Pages without others of their section beside them.
ALONE = (
    "404 add_a_method changelog choose cite coming_from coming_from_flower datasets faq "
    "getting_started index numbers troubleshooting"
)
html_sidebars = {page: [] for page in ALONE.split()}
html_last_updated_fmt = "%d %B %Y"
html_context = {
    "github_user": "fedrecsk",
    "github_repo": "fedrecsk",
    "github_version": "main",
    "doc_path": "docs",
}
html_logo = html_favicon = "_static/logo.svg"
html_theme_options = {
    "logo": {"text": "fedrecsk", "alt_text": "fedrecsk"},
    "github_url": "https://github.com/fedrecsk/fedrecsk",
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_toc_level": 2,
    "use_edit_page_button": True,
    "secondary_sidebar_items": {
        "*": ["page-toc", "edit-this-page"],
        "methods/*": ["page-toc", "edit-this-page"],
        "user_guide/*": ["page-toc", "edit-this-page"],
        # These are made from docstrings and examples.
        "api/**": ["page-toc"],
        "auto_examples/**": ["page-toc"],
    },
    "footer_start": ["copyright"],
    "footer_end": ["last-updated"],
}
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"
default_role = "literal"
autodoc_typehints = "none"
autosummary_generate = True
numpydoc_show_class_members = False
numpydoc_xref_param_type = True
numpydoc_xref_aliases = TYPES
numpydoc_xref_ignore = "all"
nitpicky = True
nitpick_ignore_regex = [
    # Python's own docstrings of dict, which a subclass inherits.
    ("py:class", r".* D('s \w+)?|None\.  .*|.* of D"),
    # Names of other packages that docs/_links.py does not list; they become text.
    ("py:.*", r"(joblib|matplotlib|numba|numpy|pandas|scipy|sklearn)\..*"),
]

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    # All of them run; the default runs only files named plot_*.py.
    "filename_pattern": r"\.py$",
    "within_subsection_order": "_gallery.order",
    "download_all_examples": False,
    "show_signature": False,
    "notebook_extensions": set(),
    "thumbnail_size": (480, 320),
    "parallel": True,
    "min_reported_time": 3600,
    "abort_on_example_error": True,
    "remove_config_comments": True,
}

# ------------------------------------------------------------- tables of the API reference

# What authors of methods, and whoever runs the two halves, need beyond what the packages export.
FOR_AUTHORS = {
    "fedrecsk.aggregation": ["Update"],
    "fedrecsk.data.ids": ["catalogue_ids"],
    "fedrecsk.data.interactions": ["encode"],
    "fedrecsk.base": ["Recommender", "RatingMixin", "RankingMixin"],
    "fedrecsk.deployment": ["ClientMessage", "Device", "DeviceServer", "Numbers"],
    "fedrecsk.federated": ["estimator_of", "pack_codes", "unpack_codes"],
    "fedrecsk.federated.base": ["FederatedRecommender"],
    "fedrecsk.models": ["Factors", "Model", "Scores", "clipped"],
    "fedrecsk.neural.base": ["NeuralRecommender"],
    "fedrecsk.neural.modules": ["GMF", "MLP", "NeuMF", "ScoreFunction"],
    "fedrecsk.protocol.blocks": ["Block", "of_clients"],
    "fedrecsk.protocol.keys": ["Key", "Keys"],
    "fedrecsk.protocol.messages": ["Catalogue", "ClientCodes", "Registration"],
    "fedrecsk.protocol.participation": ["Participation", "RoundMasks"],
    "fedrecsk.protocol.secure_accounts": ["EncryptionReport", "MaskingReport"],
}
# The pages that explain an estimator; its page in the API reference leads there.
METHOD_PAGES = {
    "rfrec": ("RFRec", "RFRecF"),
    "ease": ("EASE", "FedEASE", "FedItemKNN", "FedSpectral", "ItemKNN", "UserKNN"),
    "fedals": ("LocALS", "LocSGD", "GlobSGD"),
    "fcf": ("FCF", "ExplicitFCF"),
    "fedeb": ("FedEB",),
    "privfedeb": ("PrivFedEB",),
    "fedfast": ("FedFast",),
    "privrec": ("PrivRec",),
    "fedrec": ("FedRec",),
    "semidfegl": ("SemiDFEGL",),
    "lightfr": ("LightFR",),
    "colr": ("FedMF", "CoLR", "SCoLR"),
    "ddl": ("DCF", "DDL"),
    "neural": ("FederatedModule", "FedNCF", "PFedRec", "FedRAP", "GPFedRec"),
    "ncf": ("NCF",),
    "metamf": ("MetaMF",),
    "mf": ("PMF", "BiasedMF", "SVDpp", "BayesianSVDpp"),
}
# Modules of subpackages that users import from.
NESTED = {
    "fedrecsk.deployment.flower",
    "fedrecsk.deployment.keys",
    "fedrecsk.protocol.network_time",
}
# Their members are exported by the package itself, or are not for users.
NOT_LISTED = {
    "fedrecsk.federated",
    "fedrecsk.centralized",
    "fedrecsk.base",
    "fedrecsk.data",
    "fedrecsk.deployment",
    "fedrecsk.models",
    "fedrecsk.simulation",
    "fedrecsk.updates",
}


def public_modules():
    """Names of the modules that users import from, those of NESTED included."""
    names = [f"fedrecsk.{module.name}" for module in pkgutil.iter_modules(fedrecsk.__path__)]
    names = [name for name in names if not name.startswith("fedrecsk._")]
    return sorted({*names, *NESTED} - NOT_LISTED)


def public_names(module):
    """`__all__`, or what a module without one defines."""
    own = [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
    ]
    # Sphinx wants one page a thing, and that of the enclosing package comes first.
    elsewhere, package = {"__version__"}, module.__name__
    while package := package.rpartition(".")[0]:
        elsewhere |= set(getattr(importlib.import_module(package), "__all__", ()))
    return [name for name in getattr(module, "__all__", own) if name not in elsewhere]


def table(module, names, title, underline="-"):
    """A section with an autosummary table; empty for no names."""
    if not names:
        return ""
    rows = "\n".join(f"   {name}" for name in names)
    return (
        f"{title}\n{underline * len(title)}\n\n.. currentmodule:: {module}\n\n"
        f".. autosummary::\n   :toctree: objects\n   :nosignatures:\n\n{rows}\n\n"
    )


def summary_of(name):
    """The first sentence of a module's docstring."""
    text = inspect.getdoc(importlib.import_module(name))
    return " ".join(text.split("\n\n")[0].split())


def page_of(name):
    """The page of one module."""
    module = importlib.import_module(name)
    names = public_names(module)
    summary, _, rest = inspect.getdoc(module).partition("\n")
    page = f"{name}\n{'=' * len(name)}\n\n.. module:: {name}\n\n{summary}\n{rest}\n\n"
    if module is not fedrecsk:
        return page + table(name, names, "Contents")

    def section(one):
        thing = getattr(fedrecsk, one)
        if inspect.isclass(thing) and issubclass(thing, FederatedRecommender):
            return "Federated methods"
        if inspect.isclass(thing) and issubclass(thing, Recommender):
            return "Centralised models"
        return "Around them"

    titles = ("Federated methods", "Centralised models", "Around them")
    return page + "".join(table(name, [n for n in names if section(n) == t], t) for t in titles)


def write_tables():
    """Write api/generated from the modules, so that new names join by themselves."""
    folder = HERE / "api" / "generated"
    # Pages of names that are no more would be left over.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    names = ["fedrecsk", *public_modules()]
    for name in names:
        (folder / f"{name}.rst").write_text(page_of(name))
    lines = [f"[`{name}`](generated/{name}.rst)\n: {summary_of(name)}\n\n" for name in names]
    (folder / "modules.txt").write_text("".join(lines))
    title = "For authors of methods"
    text = (
        f"{title}\n{'=' * len(title)}\n\nWhat :doc:`/add_a_method` and :doc:`/user_guide/halves` "
        "build on.\n\n"
    )
    for module, names in FOR_AUTHORS.items():
        text += table(module, names, module)
    (folder / "for_authors.rst").write_text(text)
    pages = {one: page for page, classes in METHOD_PAGES.items() for one in classes}
    _matrix.write(
        folder,
        lambda one: (
            f"[{one}]({pages[one]}.md)" if one in pages else f"{{py:class}}`~fedrecsk.{one}`"
        ),
    )


write_tables()
intersphinx_mapping = write_inventories(HERE / "api" / "generated")


def skip_foreign(app, what, name, thing, skip, options):
    """Leave scikit-learn's methods and set_fit_request to scikit-learn's documentation."""
    theirs = not (getattr(thing, "__module__", None) or "fedrecsk").startswith("fedrecsk")
    return True if theirs or (name.startswith("set_") and name.endswith("_request")) else skip


def escape_types(app, what, name, thing, options, lines):
    """Keep ``shape (n_items_,)`` in what numpydoc made from being read as a link."""
    for number, line in enumerate(lines):
        if re.match(r"\s*\*\*.*\*\* : ", line):
            lines[number] = re.sub(r"(?<=\w)_(?=[,)\s])", r"\\_", line)


def lead_to_method(app, what, name, thing, options, lines):
    """Put a link to the page of a method behind the first sentence of its class."""
    for page, classes in METHOD_PAGES.items():
        own = {f"fedrecsk.{one}" for one in classes} | {f"fedrecsk.neural.{one}" for one in classes}
        if what == "class" and name in own:
            text = f"Equations, what is sent, what to expect: :doc:`/methods/{page}`."
            first = next(number for number, line in enumerate(lines) if line)
            lines[lines.index("", first) : lines.index("", first)] = ["", text]


def fold_inherited(app, doctree):
    """Collapse what a class inherits, below what it defines."""
    shown_classes = [one for one in doctree.findall(addnodes.desc) if one["objtype"] == "class"]
    for shown in shown_classes:
        signature, content = shown[0], shown[-1]
        own = vars(getattr(importlib.import_module(signature["module"]), signature["fullname"]))
        inherited = {
            member[0]["fullname"].rpartition(".")[2]: member
            for member in content
            if isinstance(member, addnodes.desc)
        }
        inherited = {name: member for name, member in inherited.items() if name not in own}
        if inherited:
            names = ", ".join(inherited)
            opening = f"<details><summary>Inherited: {names}</summary>"
            for member in inherited.values():
                content.remove(member)
            content += nodes.raw("", opening, format="html")
            content += list(inherited.values())
            content += nodes.raw("", "</details>", format="html")


def title_example(app, docname, source):
    """Make the question that an example's docstring begins with the title of its page."""
    label = f".. _sphx_glr_{docname.replace('/', '_')}.py:"
    if label in source[0]:
        head, body = source[0].split(label, 1)
        first, _, rest = body.lstrip().partition("\n")
        question, mark, more = first.partition("?")
        title = question + mark
        source[0] = f"{head}{label}\n\n{title}\n{'=' * len(title)}\n\n{more.strip()}\n{rest}"


def stay_in_section(app, pagename, templatename, context, doctree):
    """Let the links to the previous and the next page lead to pages of the same section only."""
    relations = app.builder.relations

    def section(name):
        while relations.get(name, [None])[0] not in (None, "index"):
            name = relations[name][0]
        return name

    for key, place in (("prev", 1), ("next", 2)):
        other = relations.get(pagename, [None] * 3)[place]
        if other and section(other) != section(pagename):
            context[key] = None


def bar(inliner, match, lineno):
    """A bar is one of a norm, as in |p_u|^2; docutils would read the name of a substitution."""
    end = match.end("start")
    return match.string[:end], [], match.string[end:], []


Inliner.dispatch["|"] = bar


def unlink_addresses(app, doctree):
    """NDCG@10 is no e-mail address, though docutils takes it for one."""
    for link in list(doctree.findall(nodes.reference)):
        if link.get("refuri", "").startswith("mailto:"):
            link.replace_self(link.children)


def copy_mathjax(app, exception):
    """Copy MathJax and its fonts to the site."""
    if exception is None and app.builder.format == "html":
        package = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent
        source, target = package / "static" / "mathjax", app.outdir / "_static" / "mathjax"
        fonts = "output/chtml/fonts"
        shutil.copytree(source / fonts, target / fonts, dirs_exist_ok=True)
        shutil.copy(source / "tex-chtml.js", target)


def setup(app):
    """Sphinx calls this."""
    app.connect("build-finished", copy_mathjax)
    app.connect("doctree-read", fold_inherited)
    app.connect("doctree-read", unlink_addresses)
    app.connect("html-page-context", stay_in_section)
    app.connect("source-read", title_example)
    # After numpydoc, which has priority 500.
    app.connect("autodoc-process-docstring", escape_types, priority=600)
    app.connect("autodoc-process-docstring", lead_to_method, priority=600)
    app.connect("autodoc-skip-member", skip_foreign)
