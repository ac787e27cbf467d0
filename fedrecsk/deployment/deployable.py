"""Checks of an estimator whose server and clients run apart, outside the simulator."""

from __future__ import annotations

from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.protocol import refusals
from fedrecsk.simulation.both_sides import plain_copy


def deployable_copy(estimator: FederatedRecommender) -> FederatedRecommender:
    """Check an estimator's parameters and return a copy for one side of a deployment."""
    method = plain_copy(estimator)
    method._validate_params()
    method._check_before_fit()
    plan = method._plan()
    refusals.check("fit on devices", plan)
    aggregator = plan.federation.aggregator
    if aggregator is not None:
        aggregator._check_specs(plan.algorithm.fields(len(method.items)))
    return method
