"""Turn comparisons and tables of results into curves, and compare fits for a display."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Real

import numpy as np
import pandas as pd
from sklearn.base import clone

from fedrecsk.model_selection import Comparison, compare
from fedrecsk.model_selection._compare import _named, _scorers, _scorers_for
from fedrecsk.model_selection._comparison import COSTS, TIMES
from fedrecsk.plotting._base import check_any, check_reference

# Scores that are worse when they are higher.
HIGHER_IS_WORSE = ("rmse", "mae", "exposure")
# Column of the value, where several values of a parameter share a label.
VARIANT = "variant"


def as_table(results):
    """Return a comparison, a DataFrame or a list of dicts as a DataFrame."""
    table = results.per_fold if isinstance(results, Comparison) else results
    if not isinstance(table, pd.DataFrame):
        rows = list(table) if isinstance(table, Iterable) else []
        table = pd.DataFrame(
            rows if all(isinstance(row, Mapping) for row in rows) else [], dtype=object
        )
    if table.empty:
        raise ValueError("results must be a Comparison, or a table with at least one row.")
    return table.reset_index(drop=True)


def errors_over_users(results, score, by, stds):
    """Return the standard errors over users of a Comparison's scores, where it has them."""
    if by != "estimator" or not isinstance(results, Comparison) or score not in results.per_user:
        return stds
    found = {name: draws[1:].std() for name, draws in results._resampled(score).items()}
    return pd.Series({name: found.get(name, std) for name, std in stds.items()})


def column(table, name):
    """Return a column; the error for a missing one lists those that there are."""
    if name not in table:
        it = "give the comparison itself; this" if f"mean_{name}" in table else "it"
        raise ValueError(f"results has no column {name!r}; {it} has {', '.join(map(str, table))}.")
    return table[name]


def numbers(table, name):
    """Return a column of numbers, NaN where a row has none."""
    values = column(table, name)
    for value in values:
        if not (pd.isna(value) or isinstance(value, Real)):
            raise ValueError(
                f"Column {name!r} holds {value!r}, which is not a number; convert the column, or "
                "name another."
            )
    return np.array([np.nan if pd.isna(value) else float(value) for value in values])


def scores_of(table, name):
    """Return a column of scores; raise where one is infinite."""
    values = numbers(table, name)
    if np.isinf(values).any():
        raise ValueError(
            f"{name!r} is infinite in row {int(np.isinf(values).argmax())}; did the fit diverge? "
            "Leave such rows out."
        )
    return values


def conditions(table, name):
    """Return a column of numbers and names; a DataFrame may turn None into NaN."""
    return [_condition(value) for value in column(table, name)]


def _condition(value):
    if value is None or value != value:
        return "none"
    return value if isinstance(value, Real) else str(value)


def failures(table, score, by):
    """Return notes about methods with rows that have an error in place of the score."""
    if "error" not in table:
        return []
    has_error = [isinstance(error, str) and error != "" for error in table["error"]]
    failed = table[score].isna() & np.array(has_error)
    return [
        f"{name}: {own.sum()} of {len(own)} failed"
        for name, own in failed.groupby(table[by], sort=False)
        if own.any()
    ]


def curves_by_method(table, *, setting, x, score, by):
    """Return x, mean and standard deviation of the score over settings, by method."""
    points = pd.DataFrame(
        {
            "method": list(map(str, column(table, by))),
            "setting": pd.Series(conditions(table, setting), dtype=object),
            "x": pd.Series(conditions(table, x), dtype=object),
            "score": scores_of(table, score),
        }
    ).dropna(subset="score")
    check_any(points, score)
    curves = {}
    for name, own in points.groupby("method", sort=False):
        numeric = all(isinstance(place, Real) for place in own["x"])
        settings = own.astype({"x": float} if numeric else {}).groupby("setting", sort=False)
        curve = pd.DataFrame(
            {
                "x": settings["x"].agg("mean" if numeric else "first"),
                "mean": settings["score"].mean(),
                "std": settings["score"].std(ddof=0),
            }
        )
        if numeric:
            curve = curve.sort_values("x", kind="stable")
        curves[name] = curve["x"].tolist(), curve["mean"].to_numpy(), curve["std"].to_numpy()
    return curves


def worst_rows(table, *, x, score, by, over, worst):
    """Return the rows with the worst mean score over the columns `over`, and what is worst there.

    The second is a dict from (method, condition) to the values of these columns.
    """
    if worst not in ("auto", "lowest", "highest"):
        raise ValueError(f"worst={worst!r} must be 'auto', 'lowest' or 'highest'.")
    highest = worst == "highest" or (worst == "auto" and score in HIGHER_IS_WORSE)
    scores = pd.Series(scores_of(table, score) * (-1 if highest else 1))
    places = list(zip(map(str, column(table, by)), conditions(table, x), strict=True))
    choices = list(zip(*(conditions(table, name) for name in over), strict=True))
    keys = [pd.Series(one, index=scores.index) for one in (places, choices)]
    best = {}
    for (place, choice), mean in scores.groupby(keys, sort=False).mean().items():
        if place not in best or np.isnan(best[place][0]) or mean < best[place][0]:
            best[place] = mean, choice
    # Fits that failed stay, for the note in the legend.
    kept = [best[place][1] == choice for place, choice in zip(places, choices, strict=True)]
    found = {place: dict(zip(over, choice, strict=True)) for place, (_, choice) in best.items()}
    return table[np.array(kept) | scores.isna().to_numpy()].reset_index(drop=True), found


def vary(
    estimator, X, y, param_name, param_range, scores, compare_params, reference, variants=False
):
    """Compare the estimators with each value of a parameter.

    Return the table, with the value in a new column, and the reference scores by name. With
    `variants`, a list in a dict is several values with one label.
    """
    known, baselines = _scores_and_estimators(reference)
    several = isinstance(estimator, Mapping | list | tuple)
    models = _named(estimator if several else [estimator])
    params = dict(compare_params or {})
    params["scoring"] = _scoring(params.get("scoring"), scores, models, y)
    if isinstance(param_range, str) or not isinstance(param_range, Iterable):
        raise TypeError(f"param_range must be a list of values or a dict, got {param_range!r}.")
    if not isinstance(param_range, Mapping):
        param_range, variants = {_condition(value): value for value in param_range}, False
    values = {
        label: value if variants and isinstance(value, list) else [value]
        for label, value in param_range.items()
    }
    if not values or not all(values.values()):
        raise ValueError("param_range is empty, or has an empty list; give at least one value.")
    varied, settings = {}, {}
    for label, group in values.items():
        for i, value in enumerate(group):
            for name, model in models.items():
                full = f"{name} with {param_name}={label}" + f", {value}" * (i > 0)
                settings[full] = {"estimator": name, param_name: label, VARIANT: str(value)}
                varied[full] = clone(model).set_params(**{param_name: clone(value, safe=False)})
    table = as_table(compare(varied | baselines, X, y, **params))
    for name in baselines:
        own = table["estimator"] == name
        known[name] = float(np.mean(table.loc[own, scores[0]].to_numpy()))
        if np.isnan(known[name]):
            raise ValueError(
                f"reference {name!r} has no {scores[0]!r}; leave it out, or draw another score."
            )
    table = table[table["estimator"].isin(settings)].reset_index(drop=True)
    columns = pd.DataFrame([settings[name] for name in table["estimator"]], dtype=object)
    order = map(str, reference) if isinstance(reference, Mapping) else known
    return table.assign(**columns), {name: known[name] for name in order}


def _scores_and_estimators(reference):
    """Split a reference into scores and estimators, both by name."""
    if isinstance(reference, list | tuple) or hasattr(reference, "fit"):
        return {}, _named(reference if isinstance(reference, list | tuple) else [reference])
    if not isinstance(reference, Mapping):
        return check_reference(reference), {}
    estimators = {name: one for name, one in reference.items() if hasattr(one, "fit")}
    known = {name: one for name, one in reference.items() if name not in estimators}
    return check_reference(known), _named(estimators) if estimators else {}


def _scoring(given, wanted, models, y):
    """Return the wanted scorers; raise before anything is fitted if one does not apply."""
    known, scorers = _scorers(given, y), {}
    for name in wanted:
        if name not in [*TIMES, *COSTS]:
            scorers[name] = known[name] if name in [*known] else _scorers([name], y)[name]
            if not any(name in _scorers_for(one, scorers) for one in models.values()):
                raise ValueError(f"{name!r} applies to rating models only, and there is none.")
    return scorers or given
