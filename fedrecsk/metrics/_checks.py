"""Checks that metrics and scorers share."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral

import numpy as np

from fedrecsk.metrics._metrics import METRICS


def metric_names(metrics, name="metrics"):
    """One name or several, as a list of known ones."""
    if not isinstance(metrics, str | Iterable):
        raise TypeError(f"{name} must be a name or several, got {metrics!r}.")
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    if not names:
        raise ValueError(f"{name} is empty; choose from {', '.join(METRICS)}.")
    for metric in names:
        if not isinstance(metric, str) or metric not in METRICS:
            cutoff = "; cutoffs go into k" if "@" in str(metric) else ""
            raise ValueError(
                f"Unknown metric {metric!r}; choose from {', '.join(METRICS)}{cutoff}."
            )
    return names


def cutoffs(k):
    """One cutoff or several, as a list of positive integers."""
    values = [k] if np.ndim(k) == 0 else list(k)
    if not values:
        raise ValueError("k is empty; give at least one cutoff.")
    for value in values:
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise ValueError(f"k must be an integer of at least 1, or several; got {value!r}.")
    return [int(value) for value in values]
