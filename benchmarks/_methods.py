"""Which methods this process measures, for its record."""

# Their modules.
modules: set[str] = set()


def add_method(model):
    """Note that an estimator, with all that is inside it, is measured."""
    parts = {type(part).__module__ for part in (model, *model.get_params().values())}
    modules.update(name for name in parts if name.startswith("fedrecsk."))
