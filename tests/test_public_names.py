"""What users can import and the parameters it takes, as in `public_names.json`.

`python -m tests.test_public_names` writes that file again, if a change is intended; note the change
in CHANGELOG.md.
"""

import importlib
import inspect
import json
from pathlib import Path

import pytest

PATH = Path(__file__).with_name("public_names.json")
MODULES = [
    "fedrecsk",
    "fedrecsk.aggregation",
    "fedrecsk.attacks",
    "fedrecsk.audit",
    "fedrecsk.base",
    "fedrecsk.centralized",
    "fedrecsk.cluster",
    "fedrecsk.compression",
    "fedrecsk.datasets",
    "fedrecsk.deployment",
    "fedrecsk.deployment.serving",
    "fedrecsk.ensemble",
    "fedrecsk.federated",
    "fedrecsk.metrics",
    "fedrecsk.model_selection",
    "fedrecsk.models",
    "fedrecsk.neural",
    "fedrecsk.plotting",
    "fedrecsk.portable",
    "fedrecsk.preprocessing",
    "fedrecsk.privacy",
    "fedrecsk.protocol",
    "fedrecsk.selection",
    "fedrecsk.testing",
    "fedrecsk.tracking",
]


def public_names(module_name):
    """Return the parameters of each public name of a module, None if it cannot be called."""
    module = importlib.import_module(module_name)
    return {
        f"{module_name}.{name}": parameters(getattr(module, name))
        for name in sorted(getattr(module, "__all__", []))
    }


def parameters(thing):
    """Return names of parameters, after * those by name only, whose order does not matter."""
    if not callable(thing):
        return None
    try:
        found = inspect.signature(thing).parameters.values()
    except ValueError:
        return None
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    by_name = sorted(one.name for one in found if one.kind == inspect.Parameter.KEYWORD_ONLY)
    others = [
        marks.get(one.kind, "") + one.name
        for one in found
        if one.kind != inspect.Parameter.KEYWORD_ONLY
    ]
    return " ".join([*others, *(["*", *by_name] if by_name else [])])


@pytest.mark.parametrize("module", MODULES)
def test_public_names_are_as_recorded(module):
    if module == "fedrecsk.neural":
        pytest.importorskip("torch")
    recorded = json.loads(PATH.read_text())
    expected = {name: of for name, of in recorded.items() if name.rpartition(".")[0] == module}
    cure = "if this is intended, run python -m tests.test_public_names and note it in CHANGELOG.md"
    assert public_names(module) == expected, cure


if __name__ == "__main__":
    names = {name: of for module in MODULES for name, of in public_names(module).items()}
    PATH.write_text(json.dumps(names, indent=0) + "\n")
