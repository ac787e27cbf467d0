"""The order of the examples: the first one first, those that plot last."""


def order(name):
    """Sort key of a file of examples/."""
    return name != "quickstart.py", name.startswith("plot_"), name
