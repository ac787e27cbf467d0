"""How a server adds up uploads that it does not trust.

All of this needs uploads one by one, so it does not go together with secure sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from numbers import Integral, Real
from typing import Literal, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions

__all__ = ["Aggregator", "CoordinateMedian", "Krum", "NormClipping", "TrimmedMean"]


class Update(NamedTuple):
    """One field of one client's upload, as it crosses the wire.

    Attributes
    ----------
    rows : ndarray of shape (n_rows,) or slice
        Which rows of the field the client sends.
    change : ndarray of shape (n_rows, ...)
        What they differ by from those of a client that has changed nothing.
    """

    rows: np.ndarray | slice
    change: np.ndarray


def plain_sum(uploads, shapes):
    """Add up the changes of all clients, field by field.

    Parameters
    ----------
    uploads : list of dict of {str: Update}
    shapes : dict of {str: tuple}
        Shape of each field as a whole.

    Returns
    -------
    sums : dict of {str: ndarray}
        Of dtype int64 where all changes are integers, otherwise float64.
    """
    sums = {}
    for name, shape in shapes.items():
        dtypes = [upload[name].change.dtype for upload in uploads]
        sums[name] = np.zeros(shape, dtype=np.result_type(np.int64, *dtypes))
    for upload in uploads:
        for name, update in upload.items():
            sums[name][update.rows] += update.change
    return sums


class Aggregator(BaseEstimator, ABC):
    """Base class: what ``Federation(aggregator=...)`` takes."""

    def _check_clients(self, data, n_clients):
        """Raise if the rule makes no sense for the clients of `data`, `n_clients` a round."""

    @abstractmethod
    def combine(self, uploads, shapes):
        """Like :func:`plain_sum`, guarded; None if there are too few uploads for it."""


class NormClipping(Aggregator):
    """Scale down every upload whose norm exceeds a bound, then add up.

    Fits every method and every kind of client: no single client can move the model further
    than an ordinary one. It bounds poisoned uploads and does not remove them.

    Parameters
    ----------
    max_norm : float or "median", default="median"
        The bound on the Euclidean norm of what a client changes in one field of its upload.
        "median": the bound is learned in every round for each field from the norms of its
        uploads, which attackers cannot raise while they are fewer than half.
    multiple : float, default=1.0
        Times the median, if it is learned.

    Notes
    -----
    A client that holds many items has a longer update than one that holds few, and is
    shortened more. Holding a round's uploads to learn their median takes as much memory as
    they have numbers.

    Examples
    --------
    >>> from fedrecsk import Federation, LocALS
    >>> from fedrecsk.aggregation import NormClipping
    >>> from fedrecsk.attacks import RandomUpload
    >>> from fedrecsk.datasets import make_interactions
    >>> X = make_interactions(n_users=60, n_items=40, n_interactions=900, random_state=0)
    >>> world = Federation(adversary=RandomUpload(0.1, strength=100), aggregator=NormClipping())
    >>> model = LocALS(n_factors=4, federation=world, random_state=0).fit(X)
    >>> len(model.compromised_clients_)
    6
    """

    _parameter_constraints: dict = {
        "max_norm": [Interval(Real, 0, None, closed="neither"), StrOptions({"median"})],
        "multiple": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(self, max_norm: float | Literal["median"] = "median", *, multiple: float = 1.0):
        self.max_norm = max_norm
        self.multiple = multiple

    def combine(self, uploads, shapes):
        bounds = {name: self._bound([u[name].change for u in uploads]) for name in shapes}
        clipped = [
            {
                name: update._replace(change=shortened(update.change, bounds[name]))
                for name, update in upload.items()
            }
            for upload in uploads
        ]
        return plain_sum(clipped, shapes)

    def _bound(self, changes):
        if self.max_norm != "median":
            return self.max_norm
        return self.multiple * np.median([np.linalg.norm(change) for change in changes])


def shortened(change, bound):
    """The same direction with a norm of at most `bound`."""
    norm = np.linalg.norm(change)
    return change * (bound / norm) if norm > bound else change


class _Comparison(Aggregator):
    """A rule that compares clients number by number; who sends nothing counts as 0."""

    def _check_clients(self, data, n_clients):
        pairs = np.unique(data.clients * data.n_items + data.items)
        holders = np.bincount(pairs % data.n_items, minlength=data.n_items)
        if np.median(2 * holders[data.items]) < data.n_clients:
            raise ValueError(
                f"{type(self).__name__} compares clients number by number, but most rows of X are "
                f"of items that fewer than half of the {data.n_clients} clients hold, so it would "
                "mostly compare silence. Group the users into silos through `clients`, or use "
                "NormClipping."
            )


class _OrderStatistic(_Comparison):
    """A robust mean over clients of each number."""

    def combine(self, uploads, shapes):
        return {
            name: len(uploads) * self._mean(_stacked(uploads, name, shape))
            for name, shape in shapes.items()
        }

    @abstractmethod
    def _mean(self, changes):
        """Over the first axis."""


class CoordinateMedian(_OrderStatistic):
    """The median over clients of every single number (Yin et al., ICML 2018).

    For silos, where most clients hold most items. Right while fewer than half of the clients
    of a round are attackers.

    Examples
    --------
    >>> from fedrecsk import Federation, GlobSGD
    >>> from fedrecsk.aggregation import CoordinateMedian
    >>> from fedrecsk.datasets import make_interactions
    >>> X = make_interactions(n_users=60, n_items=20, n_interactions=500, random_state=0)
    >>> world = Federation(aggregator=CoordinateMedian())
    >>> model = GlobSGD(4, federation=world, random_state=0).fit(X, clients=X[:, 0] % 5)
    """

    _parameter_constraints: dict = {}

    def _mean(self, changes):
        return np.median(changes, axis=0)


class TrimmedMean(_OrderStatistic):
    """The mean of every single number without its largest and smallest (Yin et al., ICML 2018).

    For silos, where most clients hold most items.

    Parameters
    ----------
    trim : float in [0, 0.5), default=0.2
        Share of the clients to leave out at each end (beta): more than are attackers.

    Examples
    --------
    >>> from fedrecsk.aggregation import TrimmedMean
    >>> TrimmedMean(trim=0.3)
    TrimmedMean(trim=0.3)
    """

    _parameter_constraints: dict = {"trim": [Interval(Real, 0, 0.5, closed="left")]}

    def __init__(self, trim: float = 0.2):
        self.trim = trim

    def _mean(self, changes):
        n_cut = int(np.ceil(self.trim * len(changes)))
        n_cut = min(n_cut, (len(changes) - 1) // 2)
        return np.sort(changes, axis=0)[n_cut : len(changes) - n_cut].mean(axis=0)


class Krum(_Comparison):
    """Keep the uploads that lie closest to their neighbours (Blanchard et al., NeurIPS 2017).

    An upload's score is the sum of its squared distances to its n - f - 2 nearest others; the
    `n_selected` lowest are averaged. For silos, where most clients hold most items.

    Parameters
    ----------
    n_attackers : int, default=1
        Attackers to withstand in a round (f). A round needs 2 f + 3 uploads; one that gets
        fewer, by dropout, changes nothing.
    n_selected : int, default=1
        Uploads to average; more than one is Multi-Krum.

    Examples
    --------
    >>> from fedrecsk.aggregation import Krum
    >>> Krum(n_attackers=2, n_selected=3)
    Krum(n_attackers=2, n_selected=3)
    """

    _parameter_constraints: dict = {
        "n_attackers": [Interval(Integral, 0, None, closed="left")],
        "n_selected": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(self, n_attackers: int = 1, *, n_selected: int = 1):
        self.n_attackers = n_attackers
        self.n_selected = n_selected

    @property
    def _n_needed(self):
        return max(2 * self.n_attackers + 3, self.n_attackers + 2 + self.n_selected)

    def _check_clients(self, data, n_clients):
        super()._check_clients(data, n_clients)
        if n_clients < self._n_needed:
            raise ValueError(
                f"Krum(n_attackers={self.n_attackers}, n_selected={self.n_selected}) needs "
                f"{self._n_needed} clients a round, but there are {n_clients}; lower n_attackers "
                "or n_selected, or raise client_fraction."
            )

    def combine(self, uploads, shapes):
        n = len(uploads)
        if n < self._n_needed:
            return None
        changes = np.hstack(
            [_stacked(uploads, name, shape).reshape(n, -1) for name, shape in shapes.items()]
        )
        squares = (changes**2).sum(axis=1)
        distances = squares[:, None] + squares - 2 * changes @ changes.T
        np.fill_diagonal(distances, np.inf)
        nearest = np.sort(distances, axis=1)[:, : n - self.n_attackers - 2]
        chosen = np.argsort(nearest.sum(axis=1), kind="stable")[: self.n_selected]
        sums = plain_sum([uploads[k] for k in sorted(chosen)], shapes)
        return {name: n / self.n_selected * total for name, total in sums.items()}


def _stacked(uploads, name, shape):
    stack = np.zeros((len(uploads), *shape))
    for k, upload in enumerate(uploads):
        stack[k][upload[name].rows] = upload[name].change
    return stack
