"""Tables of what each method can do, for its users: found out from the classes, by trying.

A setting counts as supported if a fit of a few rows reaches its first client; settings that do not
suit a method are refused before that.
"""

import inspect
import re
import warnings
from unittest import mock

import fedrecsk
import fedrecsk.neural
from fedrecsk import Federation
from fedrecsk.base import RatingMixin, Recommender
from fedrecsk.base._public_half import LINEAR
from fedrecsk.compression import Quantization
from fedrecsk.datasets import make_ratings
from fedrecsk.deployment.checks import check_deployable
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.privacy import CentralDP, LaplaceMechanism, SecAggPlus
from fedrecsk.protocol import ClientGroup

N_ITEMS = 12
YES = "✓"
# More than any integer that a method uploads.
LARGE = 10**12
SETTINGS = {
    "secure sums": [
        {"secure_aggregation": SecAggPlus()},
        {"secure_aggregation": SecAggPlus(max_abs=LARGE)},
    ],
    "central DP": [{"central_dp": CentralDP(0.5, noise_multiplier=0.1)}],
    "local DP": [{"local_dp": LaplaceMechanism(0.2, 0.04)}],
    "compression": [{"compression": Quantization("int8")}],
}
# Parameters without which a method may refuse a setting.
VARIANTS = (
    {},
    {"upload": "all"},
    {"aggregation": "clients"},
    {"upload": "all", "client_fraction": 1.0},
)
SOURCES = {
    "FCF ExplicitFCF": "Ammad-ud-din et al., 2019",
    "FedMF CoLR SCoLR": "Nguyen et al., 2024",
    "FedFast": "Muhammad et al., 2020",
    "FedRec": "Lin et al., 2021",
    "GlobSGD LocALS LocSGD": "Hurley et al., 2024",
    "LightFR": "Zhang et al., 2023",
    "PrivRec": "Wang et al., 2022",
    "RFRec RFRecF": "Liu et al., 2024",
    "SemiDFEGL": "Qu et al., 2023",
    "FedNCF": "Perifanis and Efraimidis, 2022",
    "PFedRec": "Zhang et al., 2023",
    "FedRAP": "Li et al., 2024",
    "GPFedRec": "Zhang et al., 2024",
    "MetaMF": "Lin et al., 2020",
    "FedEASE": "fedrecsk, after Steck, 2019",
}


class Begun(Exception):
    """A fit has passed all checks."""


def classes_of(kind):
    """The estimators of a kind, by name."""
    found = [
        getattr(package, name)
        for package in (fedrecsk, fedrecsk.neural)
        for name in package.__all__
    ]
    found = [one for one in found if inspect.isclass(one) and issubclass(one, kind)]
    return sorted(set(found), key=lambda one: one.__name__.lower())


def made(Method, **parameters):
    """A small estimator with those of the parameters that it has."""
    common = {"items": range(N_ITEMS), "rating_scale": (1, 5), "n_rounds": 1}
    known = inspect.signature(Method).parameters
    return Method(**{name: value for name, value in (common | parameters).items() if name in known})


def accepts(Method, federation, variant):
    """Whether a fit in this federation begins."""

    def stop(*args):
        raise Begun

    X, y = make_ratings(n_users=30, n_items=N_ITEMS, n_ratings=200, random_state=0)
    try:
        model = made(Method, federation=Federation(**federation), **variant)
        with mock.patch.multiple(ClientGroup, setup=stop, update=stop):
            model.fit(X[:, :2], y if issubclass(Method, RatingMixin) else None)
    except Begun:
        return True
    except ValueError:
        return False
    return False


def supports(Method, name):
    """A tick, or the parameters that must be set, or nothing."""
    known = inspect.signature(Method).parameters
    for federation in SETTINGS[name]:
        for variant in VARIANTS:
            if set(variant) <= set(known) and accepts(Method, federation, variant):
                needs = [*variant, *(["max_abs"] if federation != SETTINGS[name][0] else [])]
                return ", ".join(f"`{one}`" for one in needs) or YES
    return ""


def deployable(Method):
    """Whether a fit with default parameters can be deployed."""
    try:
        check_deployable(made(Method))
    except (ValueError, TypeError):
        return False
    return True


def tick(condition):
    """A tick or nothing."""
    return YES if condition else ""


def row_of(Method):
    """What a class says about itself."""
    known = inspect.signature(Method).parameters
    return {
        "feedback": "ratings" if issubclass(Method, RatingMixin) else "implicit",
        "item features": tick("item_features" in known),
        "user features": tick("user_features" in known),
        "time": tick({"history_half_life", "timestamps"} & set(known)),
        "explain, export": tick(re.search(rf"\b{Method.__name__}\b", LINEAR)),
    }


def federated_rows():
    """Rows of the two tables of federated methods."""
    sources = {name: source for names, source in SOURCES.items() for name in names.split()}
    rows = {}
    for Method in classes_of(FederatedRecommender):
        if Method is fedrecsk.neural.FederatedModule:
            continue
        apart = made(Method)._algorithm().traits.treats_clients_apart
        updates = "warm_start" in inspect.signature(Method).parameters and hasattr(
            made(Method, warm_start=True), "partial_fit"
        )
        rows[Method.__name__] = {
            "source": sources.get(Method.__name__, "fedrecsk"),
            "server sees": "single uploads" if apart else "sums",
            **{name: supports(Method, name) for name in SETTINGS},
            **row_of(Method),
            "partial_fit, forget": tick(updates),
            "Flower": tick(deployable(Method)),
            "Dask": tick(not apart and not Method.__module__.startswith("fedrecsk.neural")),
        }
    return rows


def central_rows():
    """Rows of the table of centralised models."""
    return {
        Model.__name__: row_of(Model)
        for Model in classes_of(Recommender)
        if not issubclass(Model, FederatedRecommender) and not inspect.isabstract(Model)
    }


def table(rows, columns, links):
    """A table in Markdown."""
    lines = [f"| method | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for name, row in rows.items():
        lines.append(f"| {links(name)} | {' | '.join(row[column] for column in columns)} |")
    return "\n".join(lines) + "\n"


def write(folder, links):
    """Write the tables into files that a page includes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        federated, central = federated_rows(), central_rows()
    sent = ["feedback", "source", "server sees", *SETTINGS]
    able = [
        "item features",
        "user features",
        "time",
        "partial_fit, forget",
        "explain, export",
        "Flower",
        "Dask",
    ]
    own = ["feedback", "item features", "time", "explain, export"]
    for file, rows, columns in (
        ("sent", federated, sent),
        ("able", federated, able),
        ("central", central, own),
    ):
        (folder / f"{file}.txt").write_text(table(rows, columns, links))
