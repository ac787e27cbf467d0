import configparser
import sys
from pathlib import Path

import pytest

from fedrecsk._utils.extras import EXTRAS, require

SETUP = Path(__file__).parents[1] / "setup.cfg"


def test_it_imports_what_is_there():
    assert require("json.decoder", "The caller").JSONDecoder


def test_what_is_missing_is_named_with_its_extra(monkeypatch):
    for package, extra in EXTRAS.items():
        monkeypatch.setitem(sys.modules, package, None)
        message = rf"^The caller needs {package}: pip install '\.\[{extra}\]' in a"
        for module in (package, f"{package}.inner"):
            with pytest.raises(ImportError, match=message):
                require(module, "The caller")


@pytest.mark.skipif(not SETUP.exists(), reason="needs the checkout's setup.cfg")
def test_extras_have_what_is_said_of_them():
    config = configparser.ConfigParser()
    config.read(SETUP)
    extras = config["options.extras_require"]
    for package, extra in EXTRAS.items():
        assert any(line.startswith(package.replace("_", "-")) for line in extras[extra].split())
    for extra in ("docs", "test"):
        assert "plot,privacy,progress" in extras[extra]
