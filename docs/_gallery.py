"""The gallery's order, by task, and the headings on its page."""

SECTIONS = {
    "First fits": ("quickstart", "watch_a_fit", "plot_convergence"),
    "Compare and evaluate": (
        "compare_methods",
        "compare_with_als",
        "temporal_split",
        "what_came_last",
        "new_movies",
    ),
    "Search and cost": (
        "grid_search",
        "search_where_data_are",
        "accuracy_within_a_budget",
        "plot_accuracy_per_megabyte",
    ),
    "Privacy": ("what_an_upload_reveals", "encrypted_sums", "plot_privacy"),
    "Lost and dishonest clients": ("plot_robustness", "poisoned_clients"),
    "Deploy": ("codes_on_a_device", "in_the_browser", "both_sides"),
    "Your own method": ("add_a_method", "treat_clients_individually", "bring_your_own_module"),
}
ORDER = [name for names in SECTIONS.values() for name in names]
OPEN = '.. raw:: html\n\n    <div class="sphx-glr-thumbnails">\n\n'
CLOSE = ".. raw:: html\n\n    </div>\n\n"
CARD = '.. raw:: html\n\n    <div class="sphx-glr-thumbcontainer"'


def order(name):
    """Sort key of a file of examples/, which must be in a section."""
    return ORDER.index(name.removesuffix(".py"))


def add_headings(app, docname, source):
    """Begin a section before the card of its first example."""
    if docname != "auto_examples/index":
        return
    page = source[0]
    for title, (first, *_) in SECTIONS.items():
        place = page.rindex(CARD, 0, page.index(f"sphx_glr_{first}_thumb"))
        heading = f"{title}\n{'-' * len(title)}\n\n"
        page = page[:place] + CLOSE + heading + OPEN + page[place:]
    # The gallery's own container, which is left without cards, goes.
    source[0] = page.replace(OPEN, "", 1).replace(CLOSE, "", 1)


def setup(app):
    """Sphinx calls this."""
    app.connect("source-read", add_headings)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
