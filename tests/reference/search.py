"""Successive halving as one writes it down: each candidate is fitted anew for each cut.

Slow on purpose. The first candidate, the default, stays until the last cut.
"""

import numpy as np
from sklearn.base import clone


def n_cohorts(method):
    """Rounds of a pass over the clients."""
    return round(1 / method.client_fraction)


def halving(methods, data, rungs, factor, scoring):
    """For each cut the numbers of the candidates, best first, and their scores; and all fits."""
    alive, cuts, fits = list(range(len(methods))), [], {}
    for rung in rungs:
        scores = {}
        for number in alive:
            method = clone(methods[number])
            watched = {"early_stopping": True, "scoring": scoring, "n_iter_no_change": 10**6}
            model = method.set_params(n_rounds=rung, **watched).fit(*data)
            values = [row["validation_score"] for row in model.history_[-n_cohorts(model) :]]
            scores[number] = float(np.mean(values)) * (-1 if scoring == "rmse" else 1)
            fits[number] = model
        ranked = sorted(alive, key=lambda number: -scores[number])
        cuts.append((ranked, scores))
        n_kept = 1 if rung == rungs[-1] else int(np.ceil(len(alive) / factor))
        kept = ranked[:n_kept]
        if rung != rungs[-1] and 0 not in kept:
            kept[-1] = 0
        alive = sorted(kept)
    return cuts, fits
