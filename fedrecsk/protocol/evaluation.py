"""Metrics of a model on rows that clients keep apart: what each client computes, and the sums."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from fedrecsk.metrics import values_by_user
from fedrecsk.updates import FieldSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from fedrecsk.models import Model
    from fedrecsk.protocol.blocks import Block
    from fedrecsk.protocol.keys import Key
    from fedrecsk.protocol.messages import Upload
    from fedrecsk.protocol.plan import FitPlan

    Losses = Callable[[Model, "HeldOut", Any], tuple[NDArray[np.float64], NDArray[np.float64]]]

ERRORS: dict[str, Callable[[NDArray], NDArray]] = {"rmse": np.square, "mae": np.abs}
N_BINS = 10
# By their short names; metrics of rankings have a cutoff.
RANKINGS = {
    "ndcg": "ndcg",
    "hr": "hit_rate",
    "hit_rate": "hit_rate",
    "precision": "precision",
    "recall": "recall",
    "map": "map",
    "mrr": "mrr",
}
NAMES = '"rmse", "mae", or "ndcg@10", "hr@10", "precision@10", "recall@10", "map@10", "mrr@10"'


class HeldOut(NamedTuple):
    """Held-out rows of a block's users; `ranks` are their positions among the user's rows.

    Items that the model does not know are -1.
    """

    users: np.ndarray
    items: np.ndarray
    values: np.ndarray
    weights: np.ndarray
    n_users: int
    n_items: int
    ranks: np.ndarray
    # Ids of the users, for errors; None: their numbers.
    names: np.ndarray | None = None

    @classmethod
    def of(cls, block: Block) -> HeldOut:
        """Make them from a block of held-out rows."""
        lengths = np.diff(block.indptr)
        users = np.repeat(np.arange(block.n_users), lengths)
        ranks = np.arange(len(users)) - np.repeat(block.indptr[:-1], lengths)
        return cls(
            users, block.items, block.values, block.weights, block.n_users, block.n_items, ranks
        )


class Metric(NamedTuple):
    """A metric by its name; `kind` is "loss", "rmse", "mae" or a ranking metric with cutoff `k`."""

    name: str
    kind: str
    k: int = 0

    @classmethod
    def of(cls, name: object) -> Self:
        """Read a name; raise ValueError if it is unknown."""
        if name == "loss" or name in ERRORS:
            return cls(str(name), str(name))
        found = re.fullmatch(r"([a-z_]+)@([1-9][0-9]*)", str(name))
        if found is None or found[1] not in RANKINGS:
            cutoff = f", for example {name}@10" if name in RANKINGS else ""
            raise ValueError(f"Unknown metric {name!r}; choose from {NAMES}{cutoff}.")
        return cls(str(name), RANKINGS[found[1]], int(found[2]))

    @property
    def greater_is_better(self) -> bool:
        """Whether a larger value is a better one."""
        return self.k > 0

    def unit(self, most: float) -> float:
        """Return the greatest value in one unit, given that of the metric."""
        return most**2 if self.kind == "rmse" else most

    def mean(self, total: float, weight: float) -> float:
        """Return the metric from the sums over all units."""
        if not weight > 0:
            return float("nan")
        # Noise may make a sum of squares negative.
        return float(np.sqrt(max(total, 0.0) / weight) if self.kind == "rmse" else total / weight)


class Spread(NamedTuple):
    """How unequal clients are: a standard error over clients, and clients by their own value.

    `counts` are the numbers of clients between each two of the `edges`; the last bin has greater
    ones too.
    """

    standard_error: float
    counts: NDArray[np.float64]
    edges: NDArray[np.float64]


@dataclass(frozen=True)
class Scoring:
    """What clients report of a model on rows that it has not learned from.

    A client reports two sums for each metric: of the metric over its units, and of the units'
    weights. Units are rows for the loss, RMSE (squared errors) and MAE, and users with a relevant
    row for ranking metrics, which are those of :func:`fedrecsk.metrics.evaluate_ranking`.

    Attributes
    ----------
    metrics : tuple of str
        "loss" (of the method, on held-out rows), "rmse", "mae", or a ranking metric with its
        cutoff, such as "ndcg@10".
    n_negatives : int or None
        Items among which a user's rows are ranked; None: the whole catalogue.
    threshold : float or None
        The least value of a relevant row; None: all values above 0 are relevant.
    ranges : tuple of float or None
        Greatest value of each metric. Each client then also reports its own mean, divided by it
        (squared for RMSE), the mean's square, and in which of ten bins its metric is. None: not.
    bounded : bool
        Whether clients report nothing else, so that each counts once, however many rows it has.
    divisor : float or None
        By which clients divide sums, under encryption that holds small numbers only. None: they
        send whole parts, which are exact in every other encoding, and the rest.
    """

    metrics: tuple[str, ...] = ("loss",)
    n_negatives: int | None = None
    threshold: float | None = None
    ranges: tuple[float, ...] | None = None
    bounded: bool = False
    divisor: float | None = None

    @cached_property
    def _read(self) -> list[Metric]:
        return [Metric.of(name) for name in self.metrics]

    @property
    def curve(self) -> str:
        """Name of the first metric in `history_`."""
        return "validation_loss" if self.metrics[0] == "loss" else "validation_score"

    @property
    def greater_is_better(self) -> bool:
        """Whether a larger value of the first metric is a better one."""
        return self._read[0].greater_is_better

    def check(self, plan: FitPlan, n_items: int | None = None) -> None:
        """Raise ValueError if a metric is unknown, or does not suit a plan or the catalogue."""
        for one in self._read:
            if one.kind in ERRORS and not plan.rates:
                raise ValueError(
                    f"{one.name!r} compares ratings, but {plan.name} learns from implicit "
                    'feedback; choose a ranking metric such as "ndcg@10".'
                )
            if self.n_negatives is None and n_items is not None and one.k > n_items:
                raise ValueError(
                    f"{one.name!r} looks at {one.k} places, but the catalogue has {n_items} items; "
                    "lower the number after @."
                )

    def check_y(self, y: object) -> None:
        """Raise ValueError if a metric needs ratings, and there are none."""
        if y is None and not ERRORS.keys().isdisjoint(self.metrics):
            raise ValueError('"rmse" and "mae" compare ratings; pass y, or other metrics.')

    def fields(self) -> dict[str, FieldSpec]:
        """Return the FieldSpecs of what a client sends."""
        specs = {}
        for one in self._read:
            if one.kind == "loss":
                specs["validation_loss"] = FieldSpec((2,), learned=False)
            elif not self.bounded and self.divisor is not None:
                specs[one.name] = FieldSpec((2,))
            elif not self.bounded:
                specs[one.name] = FieldSpec((2,), dtype="uint32", learned=False)
                specs[f"{one.name} rest"] = FieldSpec((2,))
            if self.ranges is not None:
                specs[f"{one.name} by client"] = FieldSpec((2 + N_BINS,))
        return specs

    def packed(self, sums: Mapping[str, NDArray[np.float64]]) -> dict[str, np.ndarray]:
        """Return the fields of clients from their sums, finite ones of shape (n_clients, 2)."""
        fields, ranges = {}, self.ranges or (None,) * len(self.metrics)
        for one, most in zip(self._read, ranges, strict=True):
            if one.kind == "loss":
                fields["validation_loss"] = sums["loss"]
            elif not self.bounded and self.divisor is not None:
                fields[one.name] = sums[one.name] / self.divisor
            elif not self.bounded:
                whole = np.floor(sums[one.name])
                fields[one.name] = whole.astype(np.int64)
                fields[f"{one.name} rest"] = sums[one.name] - whole
            if most is not None:
                fields[f"{one.name} by client"] = _by_client(one, *sums[one.name].T, most)
        return fields

    def values(self, totals: Upload | None) -> dict[str, float]:
        """Return each metric from the sums of the fields (an Upload); NaN if nothing was sent."""
        if totals is None:
            return dict.fromkeys(self.metrics, float("nan"))
        return {one.name: one.mean(*self._sums(one, totals)) for one in self._read}

    def _sums(self, one, totals):
        if one.kind == "loss":
            return totals["validation_loss"].sum
        if self.bounded and self.ranges is not None:
            most, total = self.ranges[self._read.index(one)], totals[f"{one.name} by client"].sum
            return one.unit(most) * total[0], total[2:].sum()
        if self.divisor is not None:
            return totals[one.name].sum * self.divisor
        return totals[one.name].sum + totals[f"{one.name} rest"].sum

    def spread(self, totals: Upload) -> dict[str, Spread]:
        """Return how unequal clients are, by metric."""
        means, found = self.values(totals), {}
        for one, most in zip(self._read, self.ranges or (), strict=True):
            total = totals[f"{one.name} by client"]
            (first, second), counts = total.sum[:2], total.sum[2:]
            n, error = float(counts.sum()), float("nan")
            if n > 1:
                variance = max(second - first**2 / n, 0.0) / (n - 1) + total.noise_std**2 / n
                error = one.unit(most) * np.sqrt(variance / n)
            if one.kind == "rmse":
                # Of the root of a mean, which noise may make 0.
                error = error / (2 * means[one.name]) if means[one.name] > 0 else float("nan")
            found[one.name] = Spread(float(error), counts, np.linspace(0, most, N_BINS + 1))
        return found

    # ------------------------------------------------------------------------- clients

    def measure(
        self,
        model: Model,
        seen: tuple[NDArray[np.int64], NDArray[np.int64]],
        held_out: HeldOut,
        clients: NDArray[np.int64],
        codes: NDArray[np.int64],
        key: Key,
        places: NDArray[np.int64] | None = None,
        losses: Losses | None = None,
    ) -> dict[str, NDArray[np.float64]]:
        """Return the sums of each client, by metric, of shape (n_clients, 2).

        `seen` are the users' rows in the fit: where each user's begin, and their items.
        `clients` are the clients of the users of the held-out rows, and `codes` the users' codes,
        by which `key` draws negatives. `places` are their numbers in the model, -1 for unknown
        users; None: the model has these users only. `losses` gives the loss and the weight of rows.
        """
        places = np.arange(held_out.n_users) if places is None else places
        n_clients = int(clients.max(initial=-1)) + 1
        rankings = [(one.kind, one.k) for one in self._read if one.k]
        ranked = {}
        if rankings:

            def uniform(users):
                """Return the draws of some users' negatives, alike wherever they are evaluated."""
                addresses = codes[users][:, None] * 2**32 + np.arange(self.n_negatives)
                return key.uniform("negatives of an evaluation", addresses)

            draws = {"threshold": self.threshold, "uniform": uniform if self.n_negatives else None}
            users, values = values_by_user(model, seen, held_out, places, rankings, **draws)
            weights, owners = np.ones(len(users)), clients[users]
            ranked = {
                one: (owners, each, weights) for one, each in zip(rankings, values, strict=True)
            }
        found = {}
        for one in self._read:
            owners, *sums = ranked.get((one.kind, one.k)) or self._by_row(
                one, model, seen, held_out, clients, places, losses
            )
            found[one.name] = np.stack(
                [np.bincount(owners, each, minlength=n_clients) for each in sums], axis=1
            )
        return found

    @staticmethod
    def _by_row(metric, model, seen, held_out, clients, places, losses):
        """Return each row's client, its loss or error, and its weight."""
        users, weights = held_out.users, held_out.weights
        if metric.kind == "loss":
            return clients[users], *losses(model, held_out, seen)
        errors = held_out.values - model.predict(places[users], held_out.items)
        return clients[users], weights * ERRORS[metric.kind](errors), weights


def _by_client(metric, totals, weights, most):
    """Return clients' own means and squares, in [0, 1], and their bins; zeros without a unit."""
    fields = np.zeros((len(totals), 2 + N_BINS))
    has = np.flatnonzero(weights > 0)
    share = np.minimum(totals[has] / weights[has] / metric.unit(most), 1.0)
    fields[has, 0], fields[has, 1] = share, share**2
    own = np.sqrt(share) if metric.kind == "rmse" else share
    # What rounding has put just below an edge is on it.
    bins = np.minimum((N_BINS * own + 1e-9).astype(int), N_BINS - 1)
    fields[has, 2 + bins] = 1.0
    return fields
