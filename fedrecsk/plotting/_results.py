"""Tables of results, as rows and as one curve per method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import clone

from fedrecsk.model_selection import Comparison, compare
from fedrecsk.model_selection._compare import _named, _scorers, _scorers_for
from fedrecsk.model_selection._comparison import COSTS, TIMES
from fedrecsk.plotting._drawing import check_reference

# Scores that are worse when they are higher.
HIGHER_IS_WORSE = ("rmse", "mae", "exposure")
# Column of the number of a value, where several values of a parameter share a label.
VARIANT = "variant"


def as_rows(results) -> list[Mapping[str, Any]]:
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


def numbers(rows, name):
    """A column of numbers, NaN where a row has none.

    Raises
    ------
    ValueError
        If there is no such column, or it holds something else.
    """
    values = []
    for value in column(rows, name):
        if value is not None and not isinstance(value, Real):
            raise ValueError(
                f"Column {name!r} holds {value!r}, which is not a number; convert the column, or "
                "name another."
            )
        values.append(float("nan") if value is None else float(value))
    return values


def scores_of(rows, name):
    """A column of scores; raises where one is infinite."""
    values = numbers(rows, name)
    if np.isinf(values).any():
        raise ValueError(
            f"{name!r} is infinite in row {int(np.isinf(values).argmax())}; did the fit diverge? "
            "Leave such rows out."
        )
    return values


def check_any(found, name):
    if not found:
        raise ValueError(f"Nothing to draw: no row of the results has {name!r}.")


def failures(rows, score, by):
    """Notes about methods with rows that have an error in place of the score."""
    n_rows, n_failed = Counter(row[by] for row in rows), Counter()
    for row in rows:
        error = row.get("error")
        missing = row[score] is None or row[score] != row[score]
        n_failed[row[by]] += missing and isinstance(error, str) and error != ""
    return [f"{name}: {n} of {n_rows[name]} failed" for name, n in n_failed.items() if n]


def by_method(rows, *, setting, x, score, by):
    """Mean and standard deviation of the score, by method and setting."""
    columns = [column(rows, name) for name in (by, setting, x)] + [scores_of(rows, score)]
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


def worst_rows(rows, *, x, score, by, over, worst):
    """Rows with the worst mean score over the columns `over`, for each method and condition.

    Returns the rows, and a dict from (method, condition) to the values of these columns there.
    """
    groups = {}
    scores = scores_of(rows, score)
    keys = zip(*[column(rows, name) for name in (by, x, *over)], strict=True)
    for row, value, (name, place, *chosen) in zip(rows, scores, keys, strict=True):
        of_place = groups.setdefault((str(name), _condition(place)), {})
        of_place.setdefault(tuple(map(_condition, chosen)), []).append((row, value))
    sign = -1 if is_worse_when_higher(score, worst) else 1
    found, settings = [], {}
    for place, choices in groups.items():
        means = {
            chosen: sign * np.mean(values)
            for chosen, pairs in choices.items()
            if (values := [value for _, value in pairs if not np.isnan(value)])
        }
        kept = min(means, key=means.__getitem__) if means else next(iter(choices))
        settings[place] = dict(zip(over, kept, strict=True))
        # Fits that failed stay, for the note in the legend.
        for chosen, pairs in choices.items():
            found += [row for row, value in pairs if chosen == kept or np.isnan(value)]
    return found, settings


def is_worse_when_higher(score, worst):
    """Whether higher scores are worse, which "auto" takes from the name of the score."""
    if worst not in ("auto", "lowest", "highest"):
        raise ValueError(f"worst={worst!r} must be 'auto', 'lowest' or 'highest'.")
    return worst == "highest" or (worst == "auto" and score in HIGHER_IS_WORSE)


def _condition(value):
    """A number, or a name; a DataFrame turns None into NaN."""
    if value is None or value != value:
        return "none"
    return value if isinstance(value, Real) else str(value)


def vary(
    estimator, X, y, param_name, param_range, scores, compare_params, reference, variants=False
):
    """Compare the estimators with each value of a parameter.

    Returns the rows, with the value in a new column, and the reference scores by name. With
    `variants`, a list in a dict is several values with one label.
    """
    numbers, baselines = _numbers_and_estimators(reference)
    several = isinstance(estimator, Mapping | list | tuple)
    named = _named(estimator if several else [estimator])
    params = dict(compare_params or {})
    params["scoring"] = _scoring(params.get("scoring"), scores, named, y)
    if isinstance(param_range, str) or not isinstance(param_range, Iterable):
        raise TypeError(f"param_range must be a list of values or a dict, got {param_range!r}.")
    if isinstance(param_range, Mapping):
        values = dict(param_range)
    else:
        values = {_condition(value): value for value in param_range}
    variants = variants and isinstance(param_range, Mapping)
    values = {
        label: value if variants and isinstance(value, list) else [value]
        for label, value in values.items()
    }
    if not values or not all(values.values()):
        raise ValueError("param_range is empty, or has an empty list; give at least one value.")
    settings, varied = {}, {}
    for label, value in values.items():
        for variant, one_value in enumerate(value):
            for name, one in named.items():
                full = f"{name} with {param_name}={label}" + f", {one_value}" * (variant > 0)
                settings[full] = {"estimator": name, param_name: label, VARIANT: str(one_value)}
                varied[full] = clone(one).set_params(**{param_name: clone(one_value, safe=False)})
    rows = as_rows(compare(varied | baselines, X, y, **params))
    for name in baselines:
        values = [row[scores[0]] for row in rows if row["estimator"] == name]
        numbers[name] = float(np.mean(values))
        if np.isnan(numbers[name]):
            raise ValueError(
                f"reference {name!r} has no {scores[0]!r}; leave it out, or draw another score."
            )
    order = map(str, reference) if isinstance(reference, Mapping) else numbers
    settled = [row for row in rows if row["estimator"] in settings]
    found = [{**row, **settings[row["estimator"]]} for row in settled]
    return found, {name: numbers[name] for name in order}


def _numbers_and_estimators(reference):
    """Split a reference into scores and estimators, both by name."""
    if isinstance(reference, list | tuple) or hasattr(reference, "fit"):
        return {}, _named(reference if isinstance(reference, list | tuple) else [reference])
    if not isinstance(reference, Mapping):
        return check_reference(reference), {}
    estimators = {name: one for name, one in reference.items() if hasattr(one, "fit")}
    numbers = {name: one for name, one in reference.items() if name not in estimators}
    return check_reference(numbers), _named(estimators) if estimators else {}


def _scoring(given, wanted, named, y):
    """The wanted scorers; raises before anything is fitted if one does not apply."""
    known, scorers = _scorers(given, y), {}
    for name in wanted:
        if name not in [*TIMES, *COSTS]:
            scorers[name] = known[name] if name in [*known] else _scorers([name], y)[name]
            if not any(name in _scorers_for(one, scorers) for one in named.values()):
                raise ValueError(f"{name!r} applies to rating models only, and there is none.")
    return scorers or given
