"""Find leaks of test items into scores, by test items that their users never touched."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state

from fedrecsk._utils import html
from fedrecsk._utils.constraints import AtLeast1, Between0And1, Seed
from fedrecsk._utils.parameters import checked, limits_of, suggest
from fedrecsk.audit._leakage import check_is_instance
from fedrecsk.audit._membership import at_least
from fedrecsk.data.interactions import encode
from fedrecsk.metrics import check_rows, evaluate_ranking, hit_rate_at_k
from fedrecsk.metrics._held_out import table_of

FitAndRank = Callable[[Any, NDArray[Any], NDArray[Any]], ArrayLike]


@dataclass(frozen=True, repr=False)
class PlaceboReport:
    """How often a program ranks placebo items among the first k, beside chance and popularity.

    Attributes
    ----------
    method : str
        Class of the estimator, or name of the function.
    n_users : int
        Number of users, each with one placebo item.
    k : int
        A placebo item is hit if it is among the first k.
    n_negatives : int
        Number of other items that each placebo item was ranked among.
    hit_rate : float
        Share of the placebo items that were hit; tied candidates count as if in random order.
    interval : tuple of float
        Confidence interval of the hit rate, by Clopper and Pearson.
    confidence : float
        Confidence of the interval.
    popularity : float
        Hit rate of the same placebo items if candidates are ranked by their number of users.
    """

    method: str
    n_users: int
    k: int
    n_negatives: int
    hit_rate: float
    interval: tuple[float, float]
    confidence: float
    popularity: float

    @property
    def chance(self) -> float:
        """Expected hit rate of a program that does not read which item is under test."""
        return self.k / (self.n_negatives + 1)

    @property
    def has_leak(self) -> bool:
        """Whether the interval excludes chance."""
        return not self.interval[0] <= self.chance <= self.interval[1]

    @property
    def verdict(self) -> str:
        """The result in words."""
        if not self.has_leak:
            return "no leak found: placebo items rank like other items that the user never touched"
        where = "above" if self.hit_rate > self.chance else "below"
        return f"leak: placebo items rank {where} other items that the user never touched"

    def __repr__(self) -> str:
        low, high = self.interval
        return (
            f"PlaceboReport({self.method}, n_users={self.n_users}, n_negatives={self.n_negatives}: "
            f"hit rate at {self.k} {self.hit_rate:.3f}, {100 * self.confidence:.6g}% interval "
            f"{low:.3f} to {high:.3f} (by chance {self.chance:.3f}, by popularity "
            f"{self.popularity:.3f}); {self.verdict})"
        )

    def _repr_html_(self) -> str:
        rows = [
            [self.method, f"{self.hit_rate:.3f}", "{:.3f} to {:.3f}".format(*self.interval)],
            ["by chance", f"{self.chance:.3f}", ""],
            ["by popularity", f"{self.popularity:.3f}", ""],
        ]
        head = ["", f"hit rate at {self.k}", f"{100 * self.confidence:.6g}% interval"]
        size = f"{self.n_users} users, each placebo item among {self.n_negatives} others"
        caption = f"{self.method}: placebo test items"
        return html.table(caption, head, rows, notes=[self.verdict, size])


@suggest
def placebo(
    fit_and_rank: BaseEstimator | FitAndRank,
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    k: AtLeast1 = 10,
    n_negatives: AtLeast1 = 99,
    n_users: AtLeast1 | None = None,
    confidence: Between0And1 = 0.99,
    random_state: Seed = None,
) -> PlaceboReport:
    """Find out whether a program's scores depend on which items are its test items.

    Each user gets a random item that it never touched as a test item, a placebo. An honest program
    ranks it like any other such item. A program that uses its test items, for example one that
    never draws them as negatives of training, ranks it higher, and ranks real test items too high.

    Parameters
    ----------
    fit_and_rank : callable or estimator
        The program under test, as a function ``fit_and_rank(train, test, candidates)``. It is
        called once, with

        - `train`: a copy of X as it was passed, all rows for training;
        - `test`: an array of shape (n_users, 2), a user and its placebo item in each row, as a
          program gets them that holds test rows out;
        - `candidates`: an array of items of shape (n_users, 1 + n_negatives), the placebo item of
          the user in the same row of `test` first, and then other items it never touched.

        It returns one of

        - scores of the candidates, in the same shape, higher is better;
        - the rank of each placebo item among its candidates, of shape (n_users,), from 1, the best;
        - the hit rate at `k` as a number, if the program prints no more than that. It has then to
          rank each placebo item among `n_negatives` items that the user never touched, drawn
          uniformly.

        An estimator is cloned, fitted to X and y, and ranks by its scores. It never receives the
        placebo items, so test the function that you evaluate it by rather than the estimator alone.
    X : array-like or DataFrame of shape (n_samples, n_features >= 2)
        One row per interaction: column 0 is the user's id, column 1 the item's id.
    y : array-like of shape (n_samples,), default=None
        Ratings for the fit of an estimator. A function uses its own.
    k : int, default=10
        Number of first places that count as a hit, at most `n_negatives`.
    n_negatives : int, default=99
        Number of other items that each placebo item is ranked among.
    n_users : int, default=None
        Number of users with a placebo item, drawn at random. If None, all users.
    confidence : float in (0, 1), default=0.99
        Confidence of the interval, and so of the verdict: an honest program is called leaky with a
        probability of at most ``1 - confidence``. For m programs, pass ``1 - 0.01 / m``.
    random_state : int, RandomState instance or None, default=None
        Seed of the users, placebo items and other candidates. An estimator's own is not changed.

    Returns
    -------
    PlaceboReport

    Raises
    ------
    ValueError
        If a user never touched fewer than ``n_negatives + 1`` items, there are fewer than `n_users`
        users, the function returns scores, ranks or a hit rate of the wrong shape or range, or a
        score is NaN.
    TypeError
        If `fit_and_rank` is a class, or neither an estimator nor a function.

    See Also
    --------
    fedrecsk.metrics.evaluate_ranking : Ranks real test items.

    Notes
    -----
    *The test.* Given a user's candidates, each is the placebo item with the same probability. So
    whatever an honest program learned, and however popular the items are, it hits with the
    probability k / (n_negatives + 1), independently for each user, and the number of hits is
    binomial. The verdict is "no leak found" if this probability is in the Clopper-Pearson interval
    of the hit rate, which is the exact two-sided binomial test at the level ``1 - confidence``.
    Ties enter by their expectation, which makes the number of hits vary less than that.

    *What it cannot find.* A leak that moves a placebo item by a few places needs many users: the
    ends of the interval show how large a leak may have been missed. The same program may leak with
    other settings, because only a model that is flexible enough can learn single pairs by heart.
    A number of rounds chosen on test rows shows only as far as it lifts these placebo items.

    *Ranks and ties.* A program that ranks by itself and sorts tied candidates by position, the test
    item first, is called leaky too. Its numbers are indeed too high.

    Examples
    --------
    >>> import numpy as np
    >>> from fedrecsk import EASE
    >>> from fedrecsk.audit import placebo
    >>> from fedrecsk.datasets import make_interactions
    >>> X = make_interactions(n_users=200, n_items=200, n_interactions=3000, random_state=0)
    >>> placebo(EASE(reg=10), X, random_state=0).verdict
    'no leak found: placebo items rank like other items that the user never touched'

    A function with a leak: it forgets to leave the test rows out of its training.

    >>> def forgetful(train, test, candidates):
    ...     model = EASE(reg=10).fit(np.concatenate([train[:, :2], test]))
    ...     users = np.repeat(test[:, 0], candidates.shape[1])
    ...     scores = model.predict(np.column_stack([users, candidates.ravel()]))
    ...     return scores.reshape(candidates.shape)
    >>> report = placebo(forgetful, X, random_state=0)
    >>> report.hit_rate > 0.5, report.chance
    (True, 0.1)
    >>> report.verdict
    'leak: placebo items rank above other items that the user never touched'
    """
    check_is_instance(fit_and_rank, "placebo")
    is_estimator = hasattr(fit_and_rank, "fit")
    if not is_estimator and not callable(fit_and_rank):
        raise TypeError(
            f"fit_and_rank is neither an estimator nor a function: {fit_and_rank!r}; pass one with "
            "fit, or a function of (train, test, candidates)."
        )
    given = {"k": k, "n_negatives": n_negatives, "n_users": n_users}
    given |= {"confidence": confidence, "random_state": random_state}
    limits = limits_of(placebo)
    k, n_negatives, n_users, confidence, random_state = checked("placebo", limits, **given)
    if k > n_negatives:
        raise ValueError(
            f"k={k} must be at most n_negatives={n_negatives}, or every placebo item would be hit."
        )
    data = encode(check_rows(X)[0])
    users, codes = _draw(data, n_users, 1 + n_negatives, check_random_state(random_state))
    ids, candidates = data.user_ids.values[users], data.item_ids.values[codes]
    test = table_of(ids, candidates[:, :1])
    if is_estimator:
        model = clone(fit_and_rank).fit(X) if y is None else clone(fit_and_rank).fit(X, y)
        others = table_of(ids, candidates[:, 1:])
        scores = evaluate_ranking(model, test, metrics="hit_rate", k=k, negatives=others, X_train=X)
        hit_rate = scores[f"hit_rate@{k}"]
    else:
        hit_rate = _hit_rate(fit_and_rank(deepcopy(X), test, candidates), codes.shape, k)
    tail, hits = (1 - confidence) / 2, hit_rate * len(users)
    low, high = at_least(hits, len(users), tail), 1 - at_least(len(users) - hits, len(users), tail)
    name = getattr(fit_and_rank, "__name__", type(fit_and_rank).__name__)
    return PlaceboReport(
        method=name,
        n_users=len(users),
        k=k,
        n_negatives=n_negatives,
        hit_rate=float(hit_rate),
        interval=(low, high),
        confidence=confidence,
        popularity=_hit_rate(np.bincount(data.items)[codes], codes.shape, k),
    )


def _draw(data, n_users, n_candidates, random):
    """Draw users and items that each never touched: codes (n_users,) and (n_users, n)."""
    users = np.arange(data.n_users)
    if n_users is not None:
        if n_users > len(users):
            raise ValueError(f"n_users={n_users}, but X has only {len(users)} users; lower it.")
        users = np.sort(random.choice(users, n_users, replace=False))
    codes = np.empty((len(users), n_candidates), dtype=np.int64)
    for row, user in enumerate(users):
        is_left = np.ones(data.n_items, dtype=bool)
        is_left[data.items[data.indptr[user] : data.indptr[user + 1]]] = False
        left = np.flatnonzero(is_left)
        if len(left) < n_candidates:
            raise ValueError(
                f"User {data.user_ids.values[user]!s} never touched {len(left)} of the "
                f"{data.n_items} items of X, and a placebo item among others needs {n_candidates}; "
                "lower n_negatives, or leave this user's rows out."
            )
        codes[row] = random.choice(left, n_candidates, replace=False)
    return users, codes


def _hit_rate(returned, shape, k):
    """Return the hit rate at k of the first candidates, from scores, ranks or the rate itself."""
    if returned is None or np.shape(returned) not in (shape, shape[:1], ()):
        got = "None" if returned is None else f"an array of shape {np.shape(returned)}"
        raise ValueError(
            f"fit_and_rank returned {got}; return scores of shape {shape}, like candidates, ranks "
            f"of shape {shape[:1]}, or a hit rate."
        )
    values = np.asarray(returned, dtype=np.float64)
    if np.isnan(values).any():
        raise ValueError("fit_and_rank returned NaN, so there is no ranking; did the fit diverge?")
    if values.ndim == 2:
        is_placebo = np.zeros(shape)
        is_placebo[:, 0] = 1
        return float(hit_rate_at_k(is_placebo, values, k=k))
    low, high, what = (1, shape[1], "ranks") if values.ndim else (0, 1, "a hit rate")
    if values.min() < low or values.max() > high:
        raise ValueError(
            f"fit_and_rank returned {what} from {values.min():g} to {values.max():g}, but they "
            f"should be from {low} to {high}."
        )
    return float(np.mean(values <= k)) if values.ndim else float(values)
