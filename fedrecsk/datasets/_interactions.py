"""Implicit feedback drawn from a model of MovieLens-100k in which every rating is a positive."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING

import numpy as np
from sklearn.utils import check_random_state

from fedrecsk._utils.sklearn_compat import Interval, validate_params
from fedrecsk.datasets._bunch import make_X
from fedrecsk.datasets._generate import (
    _ARRIVALS,
    _activity,
    _check_sizes,
    _draw_arrivals,
    _draw_gaps,
    _draw_pairs,
    _draw_taste,
    _lay_out,
    _popularity_curve,
)

if TYPE_CHECKING:
    import pandas

# More than for ratings, because taste spreads the choices.
_STARS = 1 / 12


@validate_params(
    {
        "n_users": [Interval(Integral, 1, None, closed="left")],
        "n_items": [Interval(Integral, 1, None, closed="left")],
        "n_interactions": [Interval(Integral, 1, None, closed="left")],
        "n_factors": [Interval(Integral, 0, None, closed="left")],
        "taste": [Interval(Real, 0, None, closed="left")],
        "popularity": [Interval(Real, 0, None, closed="left")],
        "drift": [Interval(Real, 0, None, closed="left")],
        "min_interactions_per_user": [Interval(Integral, 1, None, closed="left"), None],
        "timestamps": ["boolean"],
        "random_state": ["random_state"],
        "as_frame": ["boolean"],
    },
    prefer_skip_nested_validation=True,
)
def make_interactions(
    n_users: int = 943,
    n_items: int = 1682,
    n_interactions: int = 100_000,
    *,
    n_factors: int = 10,
    taste: float = 1.55,
    popularity: float = 5.2,
    drift: float = 0.0,
    min_interactions_per_user: int | None = None,
    timestamps: bool = True,
    random_state: int | np.random.RandomState | None = None,
    as_frame: bool = False,
) -> np.ndarray | pandas.DataFrame:
    """Generate implicit feedback that resembles MovieLens-100k without its stars.

    Which items a user chooses depends on the items' popularity, the user's activity and the user's
    taste, a product of low-rank factors. With the defaults, matrix factorisation beats
    recommending popular items by about as much as on MovieLens-100k; see Notes. The time does
    not matter unless `drift` is positive.

    Parameters
    ----------
    n_users : int, default=943
        Number of users. Each has at least one interaction.

    n_items : int, default=1682
        Number of items. Each has at least one interaction if
        `n_interactions >= n_items`.

    n_interactions : int, default=100_000
        Number of interactions, all of different (user, item) pairs. At least
        `n_users` and at most `n_users * n_items`.

    n_factors : int, default=10
        Number of latent factors of taste, each weaker than the one before. Their total
        strength is the same for any number. 0: all users have the same taste.

    taste : float, default=1.55
        Strength of taste: an item that a user likes one standard deviation more than
        another is chosen `exp(taste)` times as often. 0: only popularity counts.

    popularity : float, default=5.2
        Skew of the items' popularity: an item near the top of the ranking is chosen about
        `exp(popularity)` times as often as one near the bottom, and the first few even more
        often. 0: all items are equally popular.

    drift : float, default=0.0
        How much the items' popularity changes with time. Each item has a trend, a
        standard normal number; its log-popularity changes by `drift` times the trend
        between the first user's arrival and the last user's. Each user takes falling items first
        and rising items last, more strictly for a larger `drift`. Positive values need
        `timestamps=True`.

    min_interactions_per_user : int, default=None
        Minimum number of interactions of a user. None: a fifth of the mean number, but at
        least 1 and at most 20, the minimum in MovieLens.

    timestamps : bool, default=True
        Whether `X` has a third column, the time. Users join over seven months and come
        in sessions: half a minute between interactions, weeks between sessions.

    random_state : int, RandomState instance or None, default=None
        Source of all random numbers. An int gives the same interactions in every call.

    as_frame : bool, default=False
        Whether to return a DataFrame.

    Returns
    -------
    X : ndarray of shape (n_interactions, 3) or (n_interactions, 2) and dtype int64, or DataFrame
        The columns user (0 to `n_users` - 1), item (0 to `n_items` - 1) and, with
        `timestamps=True`, timestamp (seconds since 1970, UTC). The rows are in
        random order.

    Raises
    ------
    ValueError
        If there are more interactions than (user, item) pairs, or too few for
        `min_interactions_per_user`, or if there is drift but there are no timestamps.

    See Also
    --------
    make_ratings : Explicit feedback, where taste determines the stars.
    fetch_movielens : The real ratings.

    Notes
    -----
    The defaults compared with MovieLens-100k, every rating a positive (mean of
    three seeds; a fifth of each user's interactions is held out, at random or the last fifth;
    ALS is implicit's, with 20 factors, regularization .1, alpha 1 and 15 iterations):

    ====================================  =============  =============  =============  =============
    quantity                              MovieLens      drift=0        drift=1        drift=2
    ====================================  =============  =============  =============  =============
    Gini coefficient of items / users     0.629 / 0.472  0.641 / 0.465  0.639 / 0.465  0.633 / 0.465
    interactions per user, median / most  65 / 737       70 / 845       70 / 845       70 / 845
    interactions per item, median / most  27 / 583       23 / 604       23 / 599       24 / 589
    random: precision@10 of the popular   0.193          0.178          0.177          0.170
    random: precision@10 of ALS           0.360          0.359          0.362          0.368
    last: precision@10 of the popular     0.107          0.179          0.097          0.059
    last: precision@10 of ALS             0.172          0.357          0.261          0.161
    ====================================  =============  =============  =============  =============

    The users of MovieLens begin with popular films, which hurts both methods in a temporal
    split. Here, `drift` hurts them: the popularity changes.

    The time, but not the memory, grows with `n_users * n_items`.

    Examples
    --------
    >>> from fedrecsk.datasets import make_interactions
    >>> X = make_interactions(n_users=20, n_items=15, n_interactions=80, random_state=0)
    >>> X.shape
    (80, 3)
    >>> len({(user, item) for user, item, _ in X.tolist()})
    80
    """
    n_users, n_items, n_interactions = int(n_users), int(n_items), int(n_interactions)
    minimum = _check_sizes(
        n_users, n_items, n_interactions, min_interactions_per_user, "interactions"
    )
    if drift > 0 and not timestamps:
        raise ValueError(
            f"drift={drift} needs timestamps, and timestamps=False leaves them out. "
            "Pass timestamps=True or drift=0."
        )
    rng = check_random_state(random_state)

    log_popularity = popularity * rng.permutation(_popularity_curve(n_items, _STARS))
    user_factors, item_factors = _draw_taste(rng, n_users, n_items, n_factors, taste)
    arrivals = _draw_arrivals(rng, n_users)
    trends = drift * rng.standard_normal(n_items)
    # The drift is an additional factor: the time when a user joins, times the item's trend.
    users, items = _draw_pairs(
        rng,
        rng.permutation(_activity(n_users, n_items, n_interactions, minimum)),
        log_popularity,
        np.column_stack([user_factors, arrivals / _ARRIVALS - 0.5]),
        np.column_stack([item_factors, trends]),
    )

    columns = {"user": users, "item": items}
    if timestamps:
        turns = trends[items] + rng.gumbel(size=n_interactions)
        columns["timestamp"] = _lay_out(users, turns, arrivals, _draw_gaps(rng, n_interactions))
    return make_X(columns, as_frame=as_frame)
