"""Federated recommendation: scikit-learn estimators whose fit simulates the federated protocol."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fedrecsk._version import __version__

if TYPE_CHECKING:
    from fedrecsk.centralized import *
    from fedrecsk.federated import *
    from fedrecsk.protocol import Federation

__all__ = [
    "DCF",
    "DDL",
    "EASE",
    "FCF",
    "PMF",
    "BayesianSVDpp",
    "BiasOnly",
    "BiasedMF",
    "CoLR",
    "ExplicitFCF",
    "FedEASE",
    "FedEB",
    "FedFast",
    "FedItemKNN",
    "FedMF",
    "FedRec",
    "FedSpectral",
    "Federation",
    "GlobSGD",
    "ImplicitALS",
    "ImplicitBPR",
    "ImplicitLMF",
    "ItemKNN",
    "LightFR",
    "LocALS",
    "LocSGD",
    "Popularity",
    "PrivFedEB",
    "PrivRec",
    "RFRec",
    "RFRecF",
    "RandomRecommender",
    "SCoLR",
    "SVDpp",
    "SemiDFEGL",
    "UserKNN",
    "__version__",
]

_CENTRALIZED = {"DCF", "DDL", "EASE", "PMF", "BayesianSVDpp", "BiasOnly", "BiasedMF", "SVDpp"}
_CENTRALIZED |= {"ImplicitALS", "ImplicitBPR", "ImplicitLMF", "ItemKNN", "UserKNN"}
_CENTRALIZED |= {"Popularity", "RandomRecommender"}


def __getattr__(name: str) -> Any:
    # Imported when first needed, because fedrecsk.portable works with NumPy alone.
    if name in __all__:
        other = "protocol" if name == "Federation" else "federated"
        room = "centralized" if name in _CENTRALIZED else other
        value = getattr(import_module(f"fedrecsk.{room}"), name)
    elif not name.startswith("_") and find_spec(f"fedrecsk.{name}"):
        value = import_module(f"fedrecsk.{name}")
    else:
        raise AttributeError(f"module 'fedrecsk' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
