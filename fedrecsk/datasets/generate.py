"""Ratings and implicit feedback, drawn from models that were matched to MovieLens-100k."""

from __future__ import annotations

from numbers import Integral
from typing import Annotated, Any

import numpy as np
import pandas as pd
from scipy.special import gammaincinv
from sklearn.utils import check_random_state

from fedrecsk._utils.constraints import AtLeast0, AtLeast1, NotNegative, Seed
from fedrecsk._utils.parameters import check_arguments
from fedrecsk.datasets.readers import make_X, make_y

# Shares of MovieLens-100k's ratings up to each of its five stars.
_STARS_CDF = (0.0, 0.0611, 0.1748, 0.4463, 0.7880, 1.0)

# Standard deviations and slopes in stars; calibrated on MovieLens-100k together with the
# defaults of noise, popularity and n_factors.
_USER_BIAS = 0.44
_ITEM_BIAS = 0.45
_ITEM_BIAS_PER_LOG_POPULARITY = 0.28
_TASTE = 0.50
# Correlation of a feature with the factor that it shows.
_SHOWN = 0.7
_TASTE_DECAY = 0.4

# Weight of the few stars in the log-popularity; more for implicit feedback, whose choices taste
# spreads.
_STARS = 1 / 18
_IMPLICIT_STARS = 1 / 12

# Shape of the gamma distribution of users' activity: many rate little, few rate a lot.
_ACTIVITY_SHAPE = 0.7

_FIRST_SECOND = 1_577_836_800  # 2020-01-01 00:00 UTC
_ARRIVALS = 215 * 86_400  # users join over seven months
_NEW_SESSION = 0.0176  # chance that a rating opens a new session
_BETWEEN_SESSIONS = 14 * 86_400
_WITHIN_SESSION = 30

_BLOCK = 1 << 22  # user-item pairs held in memory at a time

# Up to this many user-item pairs, each pair gets its own noise and each user's pairs are ranked.
# For more, items are drawn one by one, which gives the same distribution.
_RANKED_PAIRS = 1 << 26
_DRAWN_BLOCK = 1 << 20  # pairs in a block then: few enough to stay in the processor's cache
_GROUP = 32  # items that are first drawn as one


@check_arguments
def make_ratings(
    n_users: AtLeast1 = 943,
    n_items: AtLeast1 = 1682,
    n_ratings: AtLeast1 = 100_000,
    *,
    n_factors: AtLeast0 = 10,
    noise: NotNegative = 0.81,
    popularity: NotNegative = 4.7,
    min_ratings_per_user: AtLeast1 | None = None,
    rating_scale: Annotated[tuple[int, int], tuple, list] = (1, 5),
    item_features: AtLeast0 = 0,
    timestamps: bool = True,
    random_state: Seed = None,
    as_frame: bool = False,
) -> tuple[Any, ...]:
    """Generate ratings that resemble MovieLens-100k.

    A few items get most of the ratings, and a few users give most of them; popular items are
    rated higher, and users choose items that they will like. A rating is the sum of a user's
    bias, an item's bias, taste (a product of low-rank factors) and noise, cut into stars so
    that the shares of the stars are those of MovieLens. With the defaults, the ratings are also
    about as hard to predict as those of MovieLens; see Notes.

    Parameters
    ----------
    n_users : int, default=943
        Number of users. Each has at least one rating.
    n_items : int, default=1682
        Number of items. Each has at least one rating if `n_ratings >= n_items`.
    n_ratings : int, default=100_000
        Number of ratings, all of different (user, item) pairs. At least
        `n_users` and at most `n_users * n_items`.
    n_factors : int, default=10
        Number of latent factors of taste, each weaker than the one before. Their total
        strength is the same for any number. 0: only biases and noise.
    noise : float, default=0.81
        Standard deviation of the noise, before ratings are cut into stars. For comparison, the
        standard deviation of the ratings is about 1.15 with the defaults.
    popularity : float, default=4.7
        Skew of the items' popularity: an item near the top of the ranking is chosen about
        `exp(popularity)` times as often as one near the bottom, and the first few even more
        often. 0: all items are equally popular.
    min_ratings_per_user : int, default=None
        Minimum number of ratings of a user. If None, 20% of the mean number, but at least 1 and at
        most 20, the minimum in MovieLens.
    item_features : int, default=0
        Number of features of the items, which come as a third result if there are any. Column k
        shows factor k (modulo `n_factors`) with the correlation 0.7, and noise beside it. They
        change nothing else.
    rating_scale : tuple of (int, int), default=(1, 5)
        The lowest and the highest rating; ratings are whole numbers.
    timestamps : bool, default=True
        Whether `X` has a third column, the time of the rating. Users join over seven
        months and rate in sessions: half a minute between ratings, weeks between
        sessions. The ratings do not depend on the time.
    random_state : int, RandomState instance or None, default=None
        Source of all random numbers. An int gives the same ratings in every call.
    as_frame : bool, default=False
        Whether to return pandas objects.

    Returns
    -------
    X : ndarray of shape (n_ratings, 3) or (n_ratings, 2) and dtype int64, or DataFrame
        The columns user (0 to `n_users` - 1), item (0 to `n_items` - 1) and, with
        `timestamps=True`, timestamp (seconds since 1970, UTC). The rows are in
        random order.
    y : ndarray of shape (n_ratings,) and dtype float64, or Series
        The ratings: whole numbers.
    features : DataFrame of shape (n_items, item_features), dtype float64
        Only with `item_features`: standard normal numbers; the index has the items' ids.

    Raises
    ------
    ValueError
        If there are more ratings than (user, item) pairs, or too few for
        `min_ratings_per_user`, or if `rating_scale` is not two whole numbers in ascending order.

    See Also
    --------
    fetch_movielens : The real ratings.
    make_interactions : Implicit feedback, where taste decides what is chosen.

    Notes
    -----
    The defaults compared with MovieLens-100k (mean of three seeds; RMSE on a random fifth of
    the ratings; the factor model is ridge-regularised ALS on the residuals of the biases):

    ===================================   =============   =============
    quantity                              MovieLens       generated
    Gini coefficient of items / users     0.629 / 0.472   0.633 / 0.465
    ratings per user, median and most     65 and 737      70 and 845
    ratings per item, median and most     27 and 583      23 and 554
    mean and deviation of the stars       3.53 and 1.13   3.53 and 1.13
    deviation of the users' means         0.445           0.429
    correlation of log-popularity, mean   0.47            0.45
    RMSE of biases only                   0.938           0.936
    RMSE with 10 factors                  0.913           0.914
    ===================================   =============   =============

    The time, but not the memory, grows with `n_users * n_items`: data of the size of
    MovieLens-1M take about two seconds, of MovieLens-25M about half a minute.

    Examples
    --------
    >>> import numpy as np
    >>> from fedrecsk.datasets import make_ratings
    >>> X, y = make_ratings(n_users=20, n_items=15, n_ratings=80, random_state=0)
    >>> X.shape, y.shape
    ((80, 3), (80,))
    >>> np.unique(y)
    array([1., 2., 3., 4., 5.])
    """
    n_users, n_items, n_ratings = int(n_users), int(n_items), int(n_ratings)
    low, high = _check_scale(rating_scale)
    minimum = _check_sizes(n_users, n_items, n_ratings, min_ratings_per_user, "ratings")
    rng = check_random_state(random_state)

    log_popularity = popularity * rng.permutation(_popularity_curve(n_items, _STARS))
    user_factors, item_factors = _draw_taste(rng, n_users, n_items, n_factors)
    n_ratings_per_user = rng.permutation(_activity(n_users, n_items, n_ratings, minimum))
    users, items = _draw_pairs(rng, n_ratings_per_user, log_popularity, user_factors, item_factors)

    user_bias = _USER_BIAS * rng.standard_normal(n_users)
    item_bias = _ITEM_BIAS * rng.standard_normal(n_items)
    item_bias += _ITEM_BIAS_PER_LOG_POPULARITY * log_popularity
    opinion = user_bias[users] + item_bias[items]
    _add_products(opinion, users, items, user_factors, item_factors)
    opinion += noise * rng.standard_normal(n_ratings)

    columns = {"user": users, "item": items}
    if timestamps:
        gaps = _draw_gaps(rng, n_ratings)
        arrivals = rng.randint(_ARRIVALS, size=n_users)
        # Random within a user: the order of the rows must not reveal the order in time.
        columns["timestamp"] = _lay_out(users, rng.random_sample(n_ratings), arrivals, gaps)
    X = make_X(columns, as_frame=as_frame)
    y = make_y(_to_stars(opinion, low, high), as_frame=as_frame)
    return (X, y, _draw_features(rng, item_factors, item_features)) if item_features else (X, y)


@check_arguments
def make_interactions(
    n_users: AtLeast1 = 943,
    n_items: AtLeast1 = 1682,
    n_interactions: AtLeast1 = 100_000,
    *,
    n_factors: AtLeast0 = 10,
    taste: NotNegative = 1.55,
    popularity: NotNegative = 5.2,
    drift: NotNegative = 0.0,
    min_interactions_per_user: AtLeast1 | None = None,
    item_features: AtLeast0 = 0,
    timestamps: bool = True,
    random_state: Seed = None,
    as_frame: bool = False,
) -> Any:
    """Generate implicit feedback that resembles MovieLens-100k without its stars.

    Which items a user chooses depends on the items' popularity, the user's activity and the user's
    taste, a product of low-rank factors. With the defaults, matrix factorisation beats
    recommending popular items by about as much as on MovieLens-100k; see Notes. The time does
    not matter unless `drift` is positive.

    Parameters
    ----------
    n_users, n_items, n_interactions : int, default=943, 1682, 100_000
        As in :func:`make_ratings`, with interactions in place of ratings.
    n_factors : int, default=10
        As in :func:`make_ratings`. 0: all users have the same taste.
    taste : float, default=1.55
        Strength of taste: an item that a user likes one standard deviation more than
        another is chosen `exp(taste)` times as often. 0: only popularity counts.
    popularity : float, default=5.2
        As in :func:`make_ratings`.
    drift : float, default=0.0
        How much the items' popularity changes with time. Each item has a trend, a
        standard normal number; its log-popularity changes by `drift` times the trend
        between the first user's arrival and the last user's. Each user takes falling items first
        and rising items last, more strictly for a larger `drift`. Positive values need
        `timestamps=True`.
    min_interactions_per_user : int, default=None
        As `min_ratings_per_user` in :func:`make_ratings`.
    item_features : int, default=0
        As in :func:`make_ratings`; they come as a second result.
    timestamps, random_state, as_frame
        As in :func:`make_ratings`.

    Returns
    -------
    X : ndarray of shape (n_interactions, 3) or (n_interactions, 2) and dtype int64, or DataFrame
        As in :func:`make_ratings`.
    features : DataFrame of shape (n_items, item_features), dtype float64
        Only with `item_features`: standard normal numbers; the index has the items' ids.

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
    ALS is implicit's, with 20 factors, regularization 0.1, alpha 1 and 15 iterations):

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

    log_popularity = popularity * rng.permutation(_popularity_curve(n_items, _IMPLICIT_STARS))
    user_factors, item_factors = _draw_taste(rng, n_users, n_items, n_factors, taste)
    arrivals = rng.randint(_ARRIVALS, size=n_users)
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
    X = make_X(columns, as_frame=as_frame)
    return (X, _draw_features(rng, item_factors, item_features)) if item_features else X


def _check_scale(rating_scale) -> tuple[int, int]:
    whole = [v for v in rating_scale if isinstance(v, Integral) and not isinstance(v, bool)]
    if len(rating_scale) != 2 or len(whole) != 2 or not whole[0] < whole[1]:
        raise ValueError(
            f"rating_scale must be two whole numbers, the lowest first; got {rating_scale!r}."
        )
    return int(whole[0]), int(whole[1])


def _check_sizes(n_users, n_items, n_rows, minimum, what: str) -> int:
    """Check that the sizes agree, and return the minimum number of rows per user."""
    if n_rows > n_users * n_items:
        raise ValueError(
            f"n_{what}={n_rows} is more than the number of pairs, n_users * n_items = "
            f"{n_users * n_items}. Lower n_{what}, or raise n_users or n_items."
        )
    if minimum is None:
        minimum = min(20, max(1, n_rows // n_users // 5))
    if minimum > n_items:
        raise ValueError(
            f"min_{what}_per_user={minimum} is more than n_items={n_items}. Lower it, or raise "
            "n_items."
        )
    if n_rows < n_users * minimum:
        raise ValueError(
            f"n_{what}={n_rows} is less than n_users * min_{what}_per_user = {n_users} * "
            f"{minimum} = {n_users * minimum}. Raise n_{what}, or lower n_users."
        )
    return minimum


def _popularity_curve(n_items: int, stars: float) -> np.ndarray:
    """Log-popularity by rank, from about 0 to above 1: a straight line and a few hits."""
    # Quantiles rather than random draws, so that a small catalogue is as skewed as a large one.
    quantiles = (np.arange(n_items) + 0.5) / n_items
    return quantiles - stars * np.log1p(-quantiles)


def _activity(n_users: int, n_items: int, n_rows: int, minimum: int) -> np.ndarray:
    """Distribute `n_rows` over the users: `minimum` each, the rest by gamma quantiles."""
    appetite = gammaincinv(_ACTIVITY_SHAPE, (np.arange(n_users) + 0.5) / n_users)
    room, rest = n_items - minimum, n_rows - minimum * n_users

    def extra(scale):
        return np.minimum(np.floor(scale * appetite), room).astype(np.int64)

    # At `high` all users have all items, so the right scale is between.
    low, high = 0.0, (room + 1) / appetite[0]
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if extra(middle).sum() <= rest else (low, middle)
    counts = extra(low)
    # Users whose counts step up at the same scale: the most active who have room go first.
    counts[np.flatnonzero(counts < room)[::-1][: rest - counts.sum()]] += 1
    return minimum + counts


def _draw_taste(rng, n_users, n_items, n_factors, deviation=_TASTE):
    """Draw factors whose products have that standard deviation."""
    strength = np.arange(1, n_factors + 1) ** -_TASTE_DECAY
    strength *= deviation / np.linalg.norm(strength) if n_factors else 1.0
    user_factors = rng.standard_normal((n_users, n_factors))
    return user_factors, rng.standard_normal((n_items, n_factors)) * strength


def _draw_features(rng, item_factors, n_features):
    """Draw features that correlate with the items' factors, the same in all columns."""
    n_items, n_factors = item_factors.shape
    features = rng.standard_normal((n_items, n_features))
    if n_factors:
        shown = item_factors[:, np.arange(n_features) % n_factors]
        features = _SHOWN * shown / shown.std(axis=0) + np.sqrt(1 - _SHOWN**2) * features
    return pd.DataFrame(features, columns=[f"feature_{k}" for k in range(n_features)])


def _draw_pairs(rng, n_per_user, log_popularity, user_factors, item_factors):
    """Return the user and the item of each row; all pairs differ."""
    n_users, n_items = len(user_factors), len(item_factors)
    users = np.repeat(np.arange(n_users), n_per_user)
    choose = _rank_items if n_users * n_items <= _RANKED_PAIRS else _draw_items
    items = choose(rng, n_per_user, log_popularity, user_factors, item_factors)
    # After this, the order does not reveal what was chosen first.
    order = rng.permutation(len(users))
    users, items = users[order], items[order]
    _rate_the_unrated(items, n_items)
    return users, items


def _rank_items(rng, n_per_user, log_popularity, user_factors, item_factors):
    n_users, n_items = len(n_per_user), len(log_popularity)
    size = max(1, _BLOCK // n_items)
    chosen = []
    for start in range(0, n_users, size):
        block = slice(start, start + size)
        # The k largest of log-weights plus Gumbel noise are k draws without replacement.
        appeal = log_popularity + user_factors[block] @ item_factors.T
        appeal += rng.gumbel(size=appeal.shape)
        ranked = np.argsort(-appeal, axis=1)
        chosen.append(ranked[np.arange(n_items) < n_per_user[block, None]])
    return np.concatenate(chosen)


def _draw_items(rng, n_per_user, log_popularity, user_factors, item_factors):
    n_users, n_items = len(n_per_user), len(log_popularity)
    # The popularity is an additional factor. Groups are padded with items of weight zero.
    users = np.column_stack([user_factors, np.ones(n_users)]).astype(np.float32)
    items = np.zeros((users.shape[1], -(-n_items // _GROUP) * _GROUP), dtype=np.float32)
    items[:-1, :n_items], items[-1, :n_items] = item_factors.T, log_popularity
    size = max(1, _DRAWN_BLOCK // items.shape[1])
    chosen = []
    for start in range(0, n_users, size):
        weights = users[start : start + size] @ items
        weights -= weights[:, :n_items].max(axis=1, keepdims=True)
        np.exp(weights, out=weights)
        weights[:, n_items:] = 0
        chosen.append(_draw_different(rng, weights, n_per_user[start : start + size], n_items))
    return np.concatenate(chosen)


def _draw_different(rng, weights, n_per_row, n_items) -> np.ndarray:
    """Draw items by each row's weights until it has enough different ones; ascending by row."""
    n_rows, width = weights.shape
    drawn, short, missing = np.empty(0, dtype=np.int64), np.arange(n_rows), n_per_row
    while len(short):
        # A few more than needed, because rows with many draws draw some items twice.
        rows = np.repeat(np.arange(len(short)), missing + missing // 8 + 4)
        of_short = weights if len(short) == n_rows else weights[short]
        cells = short[rows] * width + _draw_columns(rng, of_short, rows)
        # Rounding errors can lead to a neighbour that must not be drawn.
        cells = cells[weights.ravel()[cells] > 0]
        drawn = _first_of_each_row(np.concatenate([drawn, cells]), width, n_per_row)
        missing = n_per_row - np.bincount(drawn // width, minlength=n_rows)
        short = np.flatnonzero(missing)
        missing = missing[short]
        # Even with tiny weights, there must be something left to draw.
        weights[short, :n_items] = np.maximum(weights[short, :n_items], np.float32(1e-30))
        weights.ravel()[drawn] = 0
    return np.sort(drawn) % width


def _draw_columns(rng, weights, rows) -> np.ndarray:
    """Draw a column for each of `rows` (ascending): first a group of columns, then a column."""
    groups = weights.reshape(-1, _GROUP)
    per_row = weights.shape[1] // _GROUP
    ends = np.cumsum(groups @ np.ones(_GROUP, dtype=np.float32), dtype=np.float64)
    begin, end = np.append(0.0, ends)[rows * per_row], ends[(rows + 1) * per_row - 1]
    group = np.searchsorted(ends, begin + rng.random_sample(len(rows)) * (end - begin), "right")
    group = np.minimum(group, (rows + 1) * per_row - 1)
    within = np.cumsum(groups[group], axis=1)
    column = (within <= rng.random_sample((len(rows), 1)) * within[:, -1:]).sum(axis=1)
    return (group - rows * per_row) * _GROUP + np.minimum(column, _GROUP - 1)


def _first_of_each_row(cells, width, n_per_row) -> np.ndarray:
    """Keep the first `n_per_row` different cells of each row."""
    cells = pd.unique(cells)
    rows = cells // width
    place = pd.Series(rows).groupby(rows).cumcount().to_numpy()
    return cells[place < n_per_row[rows]]


def _rate_the_unrated(items: np.ndarray, n_items: int) -> None:
    """Give each item without a rating a rating of an item that has several, in place."""
    # No pair can occur twice: no user has the new item yet.
    unrated = np.flatnonzero(np.bincount(items, minlength=n_items) == 0)
    spare = np.flatnonzero(pd.Series(items).duplicated())[: len(unrated)]
    items[spare] = unrated[: len(spare)]


def _add_products(totals, users, items, user_factors, item_factors) -> None:
    """Add the product of the user's and the item's factors to each row's total, in place."""
    for start in range(0, len(totals), _BLOCK):
        block = slice(start, start + _BLOCK)
        own, theirs = user_factors[users[block]], item_factors[items[block]]
        totals[block] += np.einsum("ij,ij->i", own, theirs)


def _draw_gaps(rng, n: int) -> np.ndarray:
    """Draw the seconds between each row and the same user's previous row."""
    gaps = np.where(rng.random_sample(n) < _NEW_SESSION, _BETWEEN_SESSIONS, _WITHIN_SESSION)
    return (gaps * rng.standard_exponential(n)).astype(np.int64)


def _lay_out(users, turns, arrivals, gaps) -> np.ndarray:
    """Return each row's time: a user's rows follow its arrival, in the order of `turns`."""
    order = np.argsort(turns)
    grouped = order[np.argsort(users[order], kind="stable")]
    counts = np.bincount(users)
    begins = np.cumsum(counts) - counts
    gaps[begins] = 0
    elapsed = np.cumsum(gaps)
    elapsed += np.repeat(_FIRST_SECOND + arrivals - elapsed[begins], counts)
    times = np.empty(len(users), dtype=np.int64)
    times[grouped] = elapsed
    return times


def _to_stars(opinion: np.ndarray, low: int, high: int) -> np.ndarray:
    """Cut opinions into ratings with the shares of MovieLens, stretched to the scale."""
    n_levels = high - low + 1
    inner = np.arange(1, n_levels) / n_levels
    shares = np.interp(inner, np.linspace(0, 1, len(_STARS_CDF)), _STARS_CDF)
    return low + np.searchsorted(np.quantile(opinion, shares), opinion).astype(np.float64)
