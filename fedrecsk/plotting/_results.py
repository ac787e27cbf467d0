"""Tables of results, as rows and as a curve a method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from numbers import Real

import numpy as np
from sklearn.base import clone

from fedrecsk.model_selection import Comparison, compare
from fedrecsk.model_selection._compare import _named, _scorers, _scorers_for
from fedrecsk.model_selection._comparison import COSTS, TIMES


def as_rows(results):
    """Rows of a comparison, a DataFrame or a list of dicts, as dicts."""
    if isinstance(results, Comparison):
        results = results.per_fold
    if hasattr(results, "to_dict"):
        results = results.to_dict("records")
    rows = list(results) if isinstance(results, Iterable) else []
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        raise ValueError("results must be a Comparison, or a table with at least one row.")
    return rows


def column(rows, name):
    for row in rows:
        if name not in row:
            it = "give the comparison itself; this" if f"mean_{name}" in row else "it"
            raise ValueError(
                f"results has no column {name!r}; {it} has {', '.join(map(str, row))}."
            )
    return [row[name] for row in rows]


def check_any(found, name):
    if not found:
        raise ValueError(f"Nothing to draw: no row of the results has {name!r}.")


def failures(rows, score, by):
    """What to say of each method some of whose rows have an error in place of the score."""
    n_rows, n_failed = Counter(row[by] for row in rows), Counter()
    for row in rows:
        error = row.get("error")
        n_failed[row[by]] += row[score] != row[score] and isinstance(error, str) and error != ""
    return [f"{name}: {n} of {n_rows[name]} failed" for name, n in n_failed.items() if n]


def by_method(rows, *, setting, x, score, by):
    """Mean and spread of the score by method and setting; conditions in order."""
    columns = (column(rows, name) for name in (by, setting, x, score))
    points = {}
    for name, key, place, value in zip(*columns, strict=True):
        if not np.isnan(value):
            of_method = points.setdefault(str(name), {})
            of_method.setdefault(_condition(key), []).append((_condition(place), value))
    check_any(points, score)
    curves = {}
    for name, settings in points.items():
        pairs = list(settings.values())
        if all(isinstance(place, Real) for group in pairs for place, _ in group):
            places = [float(np.mean([place for place, _ in group])) for group in pairs]
            order = np.argsort(places, kind="stable")
        else:
            places = [group[0][0] for group in pairs]
            order = range(len(places))
        scores = [[value for _, value in pairs[i]] for i in order]
        curves[name] = (
            [places[i] for i in order],
            np.array([np.mean(values) for values in scores]),
            np.array([np.std(values) for values in scores]),
        )
    return curves


def _condition(value):
    """A number, or a name; a DataFrame turns None into NaN."""
    if value is None or value != value:
        return "none"
    return value if isinstance(value, Real) else str(value)


def vary(estimator, X, y, param_name, param_range, scores, compare_params):
    """Rows of comparisons of the estimators for each value of a parameter, in a new column."""
    several = isinstance(estimator, Mapping | list | tuple)
    named = _named(estimator if several else [estimator])
    params = dict(compare_params or {})
    params["scoring"] = _scoring(params.get("scoring"), scores, named, y)
    if isinstance(param_range, Mapping):
        values = dict(param_range)
    else:
        values = {_condition(value): value for value in param_range}
    settings, varied = {}, {}
    for label, value in values.items():
        for name, one in named.items():
            full = f"{name} with {param_name}={label}"
            settings[full] = {"estimator": name, param_name: label}
            varied[full] = clone(one).set_params(**{param_name: clone(value, safe=False)})
    comparison = compare(varied, X, y, **params)
    return [{**row, **settings[row["estimator"]]} for row in as_rows(comparison)]


def _scoring(given, wanted, named, y):
    """The wanted scorers; what cannot be had is refused before anything is fitted."""
    known, scorers = _scorers(given, y), {}
    for name in wanted:
        if name not in [*TIMES, *COSTS]:
            scorers[name] = known[name] if name in [*known] else _scorers([name], y)[name]
            if not any(name in _scorers_for(one, scorers) for one in named.values()):
                raise ValueError(f"{name!r} is for rating models, and there is none.")
    return scorers or given
