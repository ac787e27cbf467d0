"""The metrics by name, and what each needs to know of a ranking."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedrecsk.metrics import _lists, _places

# Depth at which all places are exact.
EVERYWHERE = 2**62

AT_PLACES = {
    "ndcg": _places.ndcg,
    "hit_rate": _places.hit_rate,
    "precision": _places.precision,
    "recall": _places.recall,
    "mrr": _places.mrr,
    "map": _places.average_precision,
}
OF_LISTS = {
    "coverage": _lists.coverage,
    "novelty": _lists.novelty,
    "diversity": _lists.diversity,
}
# All of them; "auc" has no cutoff.
METRICS = (*AT_PLACES, "auc", *OF_LISTS)


class Need(NamedTuple):
    """What metrics need to know of a ranking.

    Attributes
    ----------
    cutoff : int
        Largest cutoff of the metrics.
    whole : bool
        Whether all places must be exact, as for AUC.
    listed : int
        Length of the lists.
    """

    cutoff: int = 1
    whole: bool = False
    listed: int = 0

    @classmethod
    def of(cls, metrics, cutoffs):
        """What these metrics at these cutoffs need."""
        k = max(cutoffs)
        with_cutoff = any(metric != "auc" for metric in metrics)
        lists = any(metric in OF_LISTS for metric in metrics)
        return cls(k if with_cutoff else 1, "auc" in metrics, k if lists else 0)

    @property
    def depth(self):
        """Places up to this one must be exact."""
        return EVERYWHERE if self.whole else self.cutoff

    def joined(self, other):
        """What both need."""
        return Need(*map(max, self, other))


class Ranking(NamedTuple):
    """Places of the relevant items, lists of recommendations, and the needs that these meet."""

    places: _places.Places
    lists: _lists.Lists | None
    need: Need


def key_of(metric, k):
    """The name of a metric at a cutoff, as in results."""
    return metric if metric == "auc" else f"{metric}@{k}"


def value(metric, ranking, k):
    """Compute a metric by name: the mean over users, or coverage of all lists together.

    Raises
    ------
    ValueError
        If there is no user to average over.
    """
    if metric == "coverage":
        return _lists.coverage(ranking.lists, k)
    if metric == "auc":
        values, missing = _places.auc(ranking.places), "a candidate that is not relevant"
    elif metric in OF_LISTS:
        values = OF_LISTS[metric](ranking.lists, k)
        missing = "an item to recommend" if metric == "novelty" else "two items to recommend"
    else:
        return float(AT_PLACES[metric](ranking.places, k).mean())
    known = values[~np.isnan(values)]
    if not len(known):
        raise ValueError(f"No user has {missing}, so there is no {metric}.")
    return float(known.mean())
