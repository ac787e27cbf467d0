"""Rows and tables of the papers, and why a row cannot be run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

NOT_HERE = "not in fedrecsk yet"


class NotObtainableError(Exception):
    """A row cannot be run here: its data, or something in them, is absent."""


@dataclass(frozen=True)
class Row:
    """A line of a table.

    Parameters
    ----------
    label : str
    model : estimator or None
        None: cannot be run; `why` says why.
    paper : dict of {str: float}
        By metric; the keys are what is measured. NaN where the paper has a figure only.
    data : str
    protocol : callable
        ``protocol(model, data, seed, options)`` returns a dict of scores.
    why : str
        Why it does not reproduce, if it does not.
    """

    label: str
    model: object
    paper: dict
    data: str
    protocol: Callable
    why: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of one protocol."""

    name: str
    protocol: str
    rows: list = field(default_factory=list)


def told(metrics, values):
    """The paper's numbers by metric."""
    return dict(zip(metrics, values, strict=True))


def untold(*metrics):
    """Metrics for which the paper has no number, or a figure only."""
    return dict.fromkeys(metrics, float("nan"))
