"""The order of the examples: as one gets to know the package; those that plot come last."""

FIRST = (
    "quickstart.py",
    "compare_methods.py",
    "compare_with_als.py",
    "grid_search.py",
    "watch_a_fit.py",
    "temporal_split.py",
)
LAST = "add_a_method.py"


def order(name):
    """Sort key of a file of examples/; what is not named above comes by name."""
    rank = FIRST.index(name) if name in FIRST else len(FIRST)
    return name.startswith("plot_"), name == LAST, rank, name
