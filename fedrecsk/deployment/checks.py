"""What server and nodes must agree on, and what cannot be deployed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple

import joblib
import numpy as np

from fedrecsk._utils.constraints import AtLeast1
from fedrecsk._utils.parameters import checked, limits_of
from fedrecsk._version import __version__
from fedrecsk.data.ids import catalogue_ids
from fedrecsk.deployment.device_server import DeviceServer
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.privacy._secagg_protocol import FEWEST_CLIENTS
from fedrecsk.protocol import refusals
from fedrecsk.protocol.early_stopping import HoldOut
from fedrecsk.protocol.evaluation import Scoring
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.messages import Registration
from fedrecsk.selection import FederatedSearch
from fedrecsk.selection._evaluate import scoring_of
from fedrecsk.selection._search import method_of
from fedrecsk.simulation.updating import goes_on

# Parameters of a machine or of the simulator, which need not agree.
OWN = frozenset({"random_state", "n_jobs", "callbacks", "federation", "items"})


class Refused(ValueError):
    """A node or the server refuses something. The text has no private data, so it may be sent."""


def check_deployable(estimator: FederatedRecommender) -> None:
    """Raise if an estimator cannot be deployed, and say which parameter is the reason."""
    if isinstance(estimator, FederatedSearch):
        raise TypeError(
            "New items are sent to nodes that have a model; pass the winner of the search in its "
            "place, with the parameters of best_params_."
        )
    if not isinstance(estimator, FederatedRecommender):
        raise TypeError(
            f"Only federated estimators can be deployed, such as RFRec(), got {estimator!r}."
        )
    if hasattr(estimator, "item_ids_"):
        raise ValueError(
            f"This {type(estimator).__name__} is fitted already, and a deployment begins anew; "
            "pass sklearn.base.clone(estimator). To go on from the model of an earlier deployment, "
            "set update=True."
        )
    estimator._validate_params()
    federation = estimator._setting()
    refusals.check("deployment", estimator._plan())
    # A trial registration shows all that a server misses. A cohort must be able to mask its
    # uploads, and FLTrust needs its reference.
    n_clients = math.ceil(FEWEST_CLIENTS / estimator.client_fraction) if federation.masks else 1
    names = [f"trial {number}" for number in range(n_clients)]
    names[0] = getattr(federation.aggregator, "reference", names[0])
    one = np.ones(1, dtype=np.int64)
    DeviceServer.of(estimator).register([Registration(np.array([n]), one, one) for n in names])


# The name of what the nodes of a search hold out.
HOLDS_OUT = "validation_rows"


class Fit(NamedTuple):
    """A fit in which a node may take part: a method, and which rows it holds out.

    `grid` has a digest of the values of each parameter that a search tries.
    """

    method: FederatedRecommender
    holds_out: HoldOut | None = None
    grid: dict[str, str] | None = None

    def digests(self) -> dict[str, str]:
        """Return a digest of all that server and nodes must agree on, by its name."""
        found = digests(self.method) | (self.grid or {})
        return found if self.holds_out is None else found | {HOLDS_OUT: str(self.holds_out)}


class Drawn(NamedTuple):
    """A candidate of a search: parameters, the model to fit at the end, and the fit before."""

    params: dict[str, Any]
    model: FederatedRecommender
    fit: Fit


def candidates_of(search: FederatedSearch) -> list[Drawn]:
    """Return the candidates of a search, which all machines find alike; raise if they would not."""
    search._validate_params()
    if not isinstance(search.random_state, Integral):
        raise ValueError(
            "All machines must draw the same candidates; set random_state=0 in FederatedSearch, or "
            "another int."
        )
    if not search.refit:
        raise ValueError(
            "A deployed search ends with a model on all machines; set refit=True in "
            "FederatedSearch, or search by fit."
        )
    method = search.estimator
    if not isinstance(method, FederatedRecommender):
        raise TypeError(
            "A deployed search is one of a federated method alone, because the steps of a Pipeline "
            f"learn from the rows of all clients, which no machine has; got {method!r}."
        )
    refusals.check("deployed search", method._plan())
    _, drawn = search._draw()
    found, grid = [], {}
    for name in sorted({name for params, _ in drawn for name in params}):
        values = [_plain(params.get(name)) for params, _ in drawn]
        grid[f"the candidates' {name}"] = str(joblib.hash(values))
    for params, model in drawn:
        trained = method_of(model, search._metric(model), search.validation_fraction)
        found.append(Drawn(params, model, Fit(trained, search._holds_out, grid)))
    return found


def fits_of(estimator: FederatedRecommender | FederatedSearch) -> list[Fit]:
    """Return the fits in which a node with an estimator may take part."""
    if not isinstance(estimator, FederatedSearch):
        return [Fit(estimator)]
    drawn = candidates_of(estimator)
    return [*(one.fit for one in drawn), *(Fit(one.model) for one in drawn)]


def check(estimator: FederatedRecommender | FederatedSearch) -> None:
    """Raise if an estimator, or a candidate of a search, cannot be deployed."""
    for one in fits_of(estimator):
        check_deployable(one.method)
        if one.holds_out is not None:
            plan = one.method._plan()
            plan.scoring.check(plan, plan.n_items)


def evaluation_of(
    estimator: FederatedRecommender,
    metrics: Sequence[str] | None,
    n_negatives: AtLeast1 | None = None,
) -> Scoring | None:
    """Return what clients report of the final model; raise if it does not suit the estimator."""
    if metrics is None:
        if n_negatives is not None:
            raise ValueError(
                "n_negatives needs evaluate=; name the metrics of the evaluation there."
            )
        return None
    checked("server_app", limits_of(evaluation_of), n_negatives=n_negatives)
    refusals.check("deployed evaluation", estimator._plan())
    scale = getattr(estimator, "rating_scale", None)
    return scoring_of(
        estimator, metrics, len(catalogue_ids(estimator.items)), scale, n_negatives=n_negatives
    )


def check_updatable(estimator: FederatedRecommender) -> None:
    """Raise if a deployed fit of an estimator cannot go on from an earlier one."""
    try:
        goes_on(estimator)
    except AttributeError as error:
        raise ValueError(f"{error} Or leave out update.") from error
    plan = estimator._plan()
    refusals.check("deployed update", plan)
    refusals.check("update", plan)


def digests(estimator: FederatedRecommender) -> dict[str, str]:
    """Return a digest of each parameter that server and nodes must agree on, by its name."""
    method = type(estimator)
    parameters = {
        name: value for name, value in estimator._all_params(deep=False).items() if name not in OWN
    }
    for name, value in estimator._setting().get_params(deep=False).items():
        parameters[f"federation__{name}"] = value
    parameters["items"] = catalogue_ids(estimator.items).values
    digested = {name: str(joblib.hash(_plain(value))) for name, value in parameters.items()}
    return {
        "fedrecsk": __version__,
        "estimator": f"{method.__module__}.{method.__qualname__}",
        **digested,
    }


def terms_of_noise(estimator: FederatedRecommender, n_clients: int, n_users: int, key: Key) -> str:
    """Return all by which clients plan their shares of the noise; empty if they add none."""
    mechanism = estimator._setting().central_dp
    if mechanism is None or mechanism.noise != "clients":
        return ""
    return f"{n_clients} {n_users} {key.seed} {sorted(digests(estimator).items())}"


def _plain(value):
    """Return a value in a form that is the same on all machines."""
    if hasattr(value, "get_params") and not isinstance(value, type):
        parameters = value.get_params(deep=False)
        return type(value).__qualname__, [(n, _plain(parameters[n])) for n in sorted(parameters)]
    if isinstance(value, np.ndarray) and value.dtype.kind in "iufbU":
        return value.dtype.kind, value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple | range):
        return [_plain(one) for one in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def differences(ours: dict[str, str], theirs: dict[str, str]) -> str | None:
    """Return in what digests of this side and of the server differ; None if in nothing."""
    differing = [name for name in {**theirs, **ours} if ours.get(name) != theirs.get(name)]
    if not differing:
        return None
    if "fedrecsk" in differing:
        return (
            f"fedrecsk {ours.get('fedrecsk')} is installed here, and the server has "
            f"{theirs.get('fedrecsk')}; install the same version on all machines."
        )
    if "estimator" in differing:
        return (
            f"the estimator here is a {ours.get('estimator')}, and the server has a "
            f"{theirs.get('estimator')}; use the same on all machines."
        )
    names = ", ".join(differing)
    return f"the estimator here differs from the server's in {names}; make them equal."
