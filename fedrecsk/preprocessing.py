"""Encoders, rating scales and row filters.

Steps of a Pipeline must keep the number of rows, or scikit-learn would misalign X and y. So there
are three kinds: transformers that map rows one to one, for a Pipeline (:class:`IdEncoder`);
transformers of y, for a :class:`~sklearn.compose.TransformedTargetRegressor`
(:class:`RatingScaler`); and functions of (X, y, clients, sample_weight) that drop rows.
:func:`split_users` changes the ids of users who have rows on several clients.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import Tags, column_or_1d
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from fedrecsk._utils.constraints import ArrayLike, AtLeast0, AtLeast1, Finite
from fedrecsk._utils.docs import documented
from fedrecsk._utils.given import check_given, check_numbers
from fedrecsk._utils.parameters import PlainParameters, check_arguments
from fedrecsk._utils.sklearn_compat import check_sample_weight, fit_context, safe_indexing
from fedrecsk._utils.user_warnings import warn
from fedrecsk.data._checks import check_scale
from fedrecsk.data._mistakes import warn_about_columns
from fedrecsk.data.ids import Ids
from fedrecsk.data.interactions import ROLES, as_rows, as_table, coded_ids, coded_rows, id_columns

__all__ = [
    "IdEncoder",
    "RatingScaler",
    "binarize",
    "filter_k_core",
    "filter_min_ratings",
    "split_users",
    "to_implicit",
]

# A sparse matrix is refused with a better message than this gives.
Rows = Annotated[ArrayLike, "sparse matrix"]


@documented
@check_arguments
def filter_k_core(
    X: Rows,
    y: ArrayLike | None = None,
    *,
    clients: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    k: AtLeast1 = 5,
) -> ArrayLike | tuple[Any, ...]:
    """Keep the k-core: users and items with at least k rows among the rows that stay.

    Users and items with fewer rows are dropped repeatedly, until all that remain have k. The
    result is the largest such set of rows and does not depend on the order of dropping.

    Parameters
    ----------
    {rows to filter}
    k : int, default=5
        Minimum number of rows of a user and of an item. Repeated (user, item) rows all count.

    {rows kept}

    See Also
    --------
    filter_min_ratings : One pass, with a minimum for users and one for items.

    Notes
    -----
    Each pass takes linear time; real ratings need about ten passes.

    Examples
    --------
    >>> from fedrecsk.preprocessing import filter_k_core
    >>> X = [["ann", "alien"], ["ann", "brazil"], ["bob", "alien"], ["bob", "brazil"],
    ...      ["bob", "clue"], ["cat", "clue"]]
    >>> X_core, y_core = filter_k_core(X, [5, 4, 3, 2, 1, 5], k=2)
    >>> X_core
    [['ann', 'alien'], ['ann', 'brazil'], ['bob', 'alien'], ['bob', 'brazil']]
    >>> y_core
    [5, 4, 3, 2]
    """
    data, rows, codes = _read(X, y, clients, sample_weight)
    while len(rows):
        enough = _have_enough(codes, rows, (k, k))
        if enough.all():
            return _take(data, rows)
        rows = rows[enough]
    raise ValueError(
        f"No row of X is in the {k}-core: there are no users and items that all have k={k} rows "
        "among themselves. Lower k."
    )


@documented
@check_arguments
def filter_min_ratings(
    X: Rows,
    y: ArrayLike | None = None,
    *,
    clients: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    min_user: AtLeast0 = 20,
    min_item: AtLeast0 = 0,
) -> ArrayLike | tuple[Any, ...]:
    """Drop the rows of users and items that have too few rows, in one pass.

    Rows are counted before any are dropped. With `min_item=0`, every user that is kept has at
    least `min_user` rows, and likewise for items with `min_user=0`. With both, some users or items
    may end up with fewer; :func:`filter_k_core` avoids that.

    Parameters
    ----------
    {rows to filter}
    min_user : int, default=20
        Minimum number of rows of a user. MovieLens was published with 20.
    min_item : int, default=0
        Minimum number of rows of an item.

    {rows kept}

    Examples
    --------
    >>> from fedrecsk.preprocessing import filter_min_ratings
    >>> X = [["ann", "alien"], ["ann", "brazil"], ["bob", "alien"]]
    >>> filter_min_ratings(X, min_user=2)
    [['ann', 'alien'], ['ann', 'brazil']]
    """
    data, rows, codes = _read(X, y, clients, sample_weight)
    rows = rows[_have_enough(codes, rows, (min_user, min_item))]
    if not len(rows):
        raise ValueError(
            f"No row of X has a user with min_user={min_user} rows and an item with "
            f"min_item={min_item}; lower them."
        )
    return _take(data, rows)


@check_arguments
def to_implicit(
    X: Rows,
    y: ArrayLike,
    *,
    clients: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    threshold: Finite = 4.0,
) -> tuple[Any, ...]:
    """Turn ratings into implicit feedback: keep the rows at or above a threshold, with y = 1.

    Users and items without such a row are dropped.

    Parameters
    ----------
    X : array-like or DataFrame of shape (n_samples, n_features >= 2)
        Column 0 is the user's id, column 1 the item's.
    y : array-like of shape (n_samples,)
        Ratings, or a substitute such as watch ratios.
    clients, sample_weight : array-like of shape (n_samples,), default=None
        Other arrays with one entry per row. Rows of weight zero count as absent, as in fit.
    threshold : float, default=4.0
        Lowest rating that counts as a preference.

    Returns
    -------
    X : of the type given
        The rows that are kept, in their order.
    y : ndarray of shape (n_kept,), dtype float64
        Ones.
    clients, sample_weight
        The arrays that were given, with the same rows.

    Raises
    ------
    ValueError
        If no row would be kept, a rating is NaN, lengths differ, or ids are invalid.
    TypeError
        If an id is neither a string nor a number.

    See Also
    --------
    binarize : 0 and 1 for y, with every row kept.

    Examples
    --------
    >>> from fedrecsk.preprocessing import to_implicit
    >>> to_implicit([["ann", "alien"], ["ann", "brazil"]], [5, 3])
    ([['ann', 'alien']], array([1.]))
    """
    data, rows, _ = _read(X, y, clients, sample_weight)
    rows = rows[_read_ratings(y)[rows] >= threshold]
    if not len(rows):
        raise ValueError(
            f"No row of X has a rating of threshold={threshold} or more; the largest is "
            f"{np.max(y)}. Lower the threshold."
        )
    X, _, *others = _take(data, rows)
    return X, np.ones(len(rows)), *others


@check_arguments
def binarize(y: ArrayLike, *, threshold: Finite = 4.0) -> NDArray[np.float64]:
    """Turn ratings into 1 (at or above the threshold) and 0, row by row.

    Parameters
    ----------
    y : array-like of shape (n_samples,)
    threshold : float, default=4.0
        Lowest rating that counts as a preference. (In
        :func:`sklearn.preprocessing.binarize`, the threshold itself gives 0.)

    Returns
    -------
    y : ndarray of shape (n_samples,), dtype float64

    Raises
    ------
    ValueError
        If a rating is NaN, infinite or not a number.

    Warns
    -----
    UserWarning
        If no rating reaches the threshold.

    See Also
    --------
    to_implicit : Keep the preferred rows only.

    Examples
    --------
    >>> from fedrecsk.preprocessing import binarize
    >>> binarize([1, 4, 5])
    array([0., 1., 1.])
    """
    values = _read_ratings(y)
    preferred = values >= threshold
    if len(values) and not preferred.any():
        warn(
            f"No rating reaches threshold={threshold}, so all of y becomes 0; the largest rating "
            f"is {values.max():g}. Lower the threshold."
        )
    return preferred.astype(np.float64)


def _read_ratings(y):
    """Read y as finite numbers; shape (n,), dtype float64."""
    check_given(y, "y")
    y = column_or_1d(y)
    try:
        if y.dtype.kind in "mMc":
            # Times in nanoseconds would become integers.
            raise TypeError(y.dtype)
        numbers = y.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"y holds what is not a number ({error}); ratings must be numbers. Map labels to "
            "numbers first."
        ) from error
    if not np.isfinite(numbers).all():
        raise ValueError(
            f"y contains NaN or infinity (first in row {np.isfinite(numbers).argmin()}); drop "
            "these rows first."
        )
    return numbers


def _read(X, y, clients, sample_weight):
    """Return the given arrays, the rows that count, and users and items as codes."""
    (users, _), (items, _) = coded_rows(X)
    data = [values for values in (X, y, clients, sample_weight) if values is not None]
    check_consistent_length(*data)
    rows = np.arange(len(users))
    if sample_weight is not None:
        rows = rows[check_sample_weight(sample_weight, X) > 0]
    return data, rows, (users, items)


def _have_enough(codes, rows, least):
    """Mark the rows whose user and item have at least these numbers of the rows."""
    own = [one[rows] for one in codes]
    return np.all([(np.bincount(c) >= n)[c] for c, n in zip(own, least, strict=True)], axis=0)


def _take(data, rows):
    taken = tuple(safe_indexing(values, rows) for values in data)
    return taken if len(taken) > 1 else taken[0]


@check_arguments
def split_users(X: Rows, clients: ArrayLike) -> tuple[Any, dict[str, tuple[Any, Any]]]:
    """Give users a separate id on each client, so that users may have rows on several.

    A fit then learns a vector for each pair of user and client, from the rows there alone.
    :doc:`/user_guide/silos` says what this costs, and what epsilon then protects.

    Parameters
    ----------
    X : array-like or DataFrame of shape (n_samples, n_features >= 2)
        Column 0 is the user's id, column 1 the item's.
    clients : array-like of shape (n_samples,)
        The client of each row.

    Returns
    -------
    X : list, DataFrame (pandas or polars) or ndarray, as the given one
        The same rows. Column 0 is "user@client".
    origins : dict of {str: (user, client)}
        The user and the client of each new id.

    Raises
    ------
    ValueError
        If two pairs lead to the same id, lengths differ, or ids are invalid.
    TypeError
        If an id is neither a string nor a number.

    Examples
    --------
    >>> from fedrecsk.preprocessing import split_users
    >>> X = [["ann", "alien"], ["ann", "brazil"], ["bob", "alien"]]
    >>> X, origins = split_users(X, clients=["north", "south", "south"])
    >>> X
    [['ann@north', 'alien'], ['ann@south', 'brazil'], ['bob@south', 'alien']]
    >>> origins["ann@south"]
    ('ann', 'south')
    """
    users, items = id_columns(as_rows(X))
    users, user_codes = coded_ids(users, "user ids (column 0 of X)")
    places, place_codes = coded_ids(clients, "clients")
    check_consistent_length(user_codes, place_codes)
    numbers, pair_codes = np.unique(
        user_codes.astype(np.int64) * len(places) + place_codes, return_inverse=True
    )
    owners, homes = users[numbers // len(places)], places[numbers % len(places)]
    origins: dict[str, tuple[Any, Any]] = {}
    for user, client in zip(owners.tolist(), homes.tolist(), strict=True):
        name = f"{_written(user)}@{_written(client)}"
        if name in origins:
            other, another = origins[name]
            raise ValueError(
                f"User {user!r} on client {client!r} and user {other!r} on client {another!r} "
                f"would both be {name!r}; rename the clients so that they contain no '@'."
            )
        origins[name] = user, client
    names = np.array(list(origins))[pair_codes]
    if isinstance(X, list | tuple):
        rows = zip(names.tolist(), X, strict=True)
        return [[name, *list(row)[1:]] for name, row in rows], origins
    if hasattr(X, "isetitem"):
        frame = cast("Any", X).copy()
        frame.isetitem(0, names)
        return frame, origins
    if hasattr(X, "with_columns"):
        column = cast("Any", X)[:, 0]
        return cast("Any", X).with_columns(type(column)(column.name, names)), origins
    return _with_ids(np.asarray(X), [names, items]), origins


@dataclass(eq=False, repr=False)
class RatingScaler(OneToOneFeatureMixin, TransformerMixin, PlainParameters):
    """Map ratings linearly to another scale, and predictions back.

    Use it as the `transformer` of :class:`sklearn.compose.TransformedTargetRegressor`: the
    model learns ratings in `feature_range`, and its predictions are mapped back to the scale of
    the ratings and clipped to its ends.

    Parameters
    ----------
    rating_range : tuple (low, high), default=None
        Ends of the scale, for example (1, 5). If None, the lowest and the highest rating that fit
        sees. In a federation, these reveal something about all clients' data; a scale that is known
        beforehand reveals nothing.
    feature_range : tuple (low, high), default=(0, 1)
        Ends of the new scale.
    clip : bool, default=True
        Whether `inverse_transform` clips to the scale of the ratings.

    Attributes
    ----------
    rating_min_, rating_max_ : ndarray of shape (n_features_in_,), dtype float64
        The ends of the scale.
    n_features_in_ : int
        Number of columns; 1 for a target.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, if they have any.

    Notes
    -----
    TransformedTargetRegressor passes y as a column, of shape (n_samples, 1), without X. So this
    transformer cannot subtract each user's mean; models with user biases learn it.

    Examples
    --------
    >>> from sklearn.compose import TransformedTargetRegressor
    >>> from fedrecsk import BiasOnly
    >>> from fedrecsk.preprocessing import RatingScaler
    >>> X = [["ann", "alien"], ["ann", "brazil"], ["bob", "alien"], ["bob", "clue"]]
    >>> model = TransformedTargetRegressor(BiasOnly(), transformer=RatingScaler((1, 5)))
    >>> model.fit(X, [5, 4, 3, 2]).predict([["bob", "brazil"]]).round(2)
    array([3.42])
    """

    rating_range: tuple[float, float] | None = None
    _: KW_ONLY
    feature_range: tuple[float, float] = (0, 1)
    clip: bool = True

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: None = None) -> Self:
        """Find or check the scale.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Ratings; as a target, one column.
        y : None
            Ignored.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If a range is not two numbers in ascending order, or a rating is NaN, infinite or
            outside `rating_range`.
        """
        check_scale(self.feature_range, "feature_range")
        if self.rating_range is not None:
            check_scale(self.rating_range, "rating_range")
        ratings = self._read(X, reset=True)
        low, high = ratings.min(axis=0), ratings.max(axis=0)
        if self.rating_range is not None:
            if low.min() < self.rating_range[0] or high.max() > self.rating_range[1]:
                raise ValueError(
                    f"The ratings go from {low.min():g} to {high.max():g}, beyond "
                    f"rating_range={self.rating_range}; widen it, or leave it at None."
                )
            low, high = (np.full(ratings.shape[1], float(end)) for end in self.rating_range)
        if float(high.max()) - float(low.min()) == np.inf:
            raise ValueError(
                f"The ratings go from {low.min():g} to {high.max():g}, too far for a float64; "
                "drop such outliers first."
            )
        self.rating_min_: NDArray[np.float64] = low
        self.rating_max_: NDArray[np.float64] = high
        return self

    def transform(self, X: ArrayLike) -> NDArray[np.float64]:
        """Map ratings to `feature_range`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        X : ndarray of shape (n_samples, n_features), dtype float64
            A column of equal ratings is mapped to the low end.
        """
        check_is_fitted(self)
        ratings = self._read(X, reset=False)
        return self.feature_range[0] + (ratings - self.rating_min_) / self._step()

    def inverse_transform(self, X: ArrayLike) -> NDArray[np.float64]:
        """Map values of `feature_range` back to ratings.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        X : ndarray of shape (n_samples, n_features), dtype float64
            Within the scale of the ratings, if `clip`.
        """
        check_is_fitted(self)
        scaled = self._read(X, reset=False)
        ratings = self.rating_min_ + (scaled - self.feature_range[0]) * self._step()
        return np.clip(ratings, self.rating_min_, self.rating_max_) if self.clip else ratings

    @np.errstate(invalid="ignore", over="ignore")
    def _read(self, X, *, reset):
        check_numbers(X, "X")
        return cast("NDArray[np.float64]", validate_data(self, X, dtype=np.float64, reset=reset))

    def _step(self) -> NDArray[np.float64]:
        width = self.rating_max_ - self.rating_min_
        low, high = self.feature_range
        return np.where(width > 0, width, 1.0) / (high - low)


# ------------------------------------------------------------------------------------- ids


@dataclass(eq=False, repr=False)
class IdEncoder(OneToOneFeatureMixin, TransformerMixin, PlainParameters):
    """Encode the ids of users and items as 0, 1, ... n - 1.

    The recommenders of this package take ids as they are. Use this encoder for tools that need
    codes: embeddings, sparse matrices, other libraries. It keeps the number of rows, so it can be
    a step of a Pipeline.

    Parameters
    ----------
    handle_unknown : {"use_encoded_value", "error"}, default="use_encoded_value"
        What `transform` does with ids that fit did not see. "use_encoded_value": encode them
        as -1, -2, ... in ascending order, which every recommender of this package treats as
        unknown ids; these codes differ from call to call. "error": raise. Test folds usually
        have some unknown ids.

    Attributes
    ----------
    user_ids_, item_ids_ : ndarray of shape (n_users_,) and (n_items_,)
        Ids in ascending order; the code of an id is its position.
    n_users_, n_items_ : int
        Numbers of users and items.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, if they are strings.

    Examples
    --------
    >>> from fedrecsk.preprocessing import IdEncoder
    >>> encoder = IdEncoder().fit([["bob", 70], ["ann", 50]])
    >>> encoder.transform([["ann", 70], ["cat", 50]])
    array([[ 0,  1],
           [-1,  0]])
    >>> encoder.inverse_transform([[0, 1]])
    array([['ann', 70]], dtype=object)
    """

    _: KW_ONLY
    handle_unknown: Literal["error", "use_encoded_value"] = "use_encoded_value"

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: None = None) -> Self:
        """Learn the ids.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features >= 2)
            Column 0 is the user's id, column 1 the item's (integers, floats or strings).
        y : None
            Ignored.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If ids are NaN, infinite or of mixed types.
        TypeError
            If an id is neither a string nor a number.
        """
        X, _ = self._checked(X, reset=True)
        users, items = id_columns(X)
        self.user_ids_: NDArray[Any] = np.unique(users)
        self.item_ids_: NDArray[Any] = np.unique(items)
        self.n_users_: int = len(self.user_ids_)
        self.n_items_: int = len(self.item_ids_)
        return self

    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """Encode the ids; other columns stay as they are.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features)

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
            int64 if X has only the two columns of ids; otherwise a type that holds the codes
            and the other columns: object if these are not numbers.

        Raises
        ------
        ValueError
            If an id is unknown and `handle_unknown` is "error", or ids are strings where fit
            saw numbers or the other way round.
        """
        check_is_fitted(self)
        X, array = self._checked(X)
        codes = []
        for role, ids, known in zip(ROLES, id_columns(X), self._ids(), strict=True):
            codes.append(known.codes(ids))
            unknown = codes[-1] < 0
            if self.handle_unknown == "error" and unknown.any():
                raise ValueError(
                    f"{role.capitalize()} {ids[unknown.argmax()]!s} was not in fit; drop its "
                    "rows, or use handle_unknown='use_encoded_value'."
                )
            codes[-1][unknown] = -1 - np.unique(ids[unknown], return_inverse=True)[1]
        return _with_ids(array, codes)

    def inverse_transform(self, X: ArrayLike) -> NDArray[Any]:
        """Turn codes back into ids.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            As `transform` gives it.

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
            Of a type that holds all columns: object if these are strings and numbers.

        Raises
        ------
        ValueError
            If there is no id with this code, such as -1.
        """
        check_is_fitted(self)
        X, array = self._checked(X)
        ids = []
        for role, codes, known in zip(ROLES, id_columns(X), self._ids(), strict=True):
            strange = ~np.isin(codes, np.arange(len(known)))
            if strange.any():
                raise ValueError(
                    f"{codes[strange.argmax()]!s} is not the code of any {role}: codes are "
                    f"0 to {len(known) - 1}."
                )
            ids.append(known.values[codes.astype(np.int64)])
        return _with_ids(array, ids)

    def _ids(self):
        return Ids(self.user_ids_, "user ids"), Ids(self.item_ids_, "item ids")

    def _checked(self, X, *, reset=False):
        """X to read ids from, column by column, and X as one array."""
        if hasattr(X, "columns"):
            # As one array, dates beside ids would be refused.
            validate_data(self, X, skip_check_array=True, reset=reset)
            return as_rows(X), np.asarray(X)
        table = validate_data(
            self, as_table(X), dtype=None, ensure_min_features=2 if reset else 1, reset=reset
        )
        warn_about_columns(table)
        # A list becomes a table of objects, whose context may be plain numbers all the same.
        plain = np.asarray(X) if isinstance(X, list | tuple) else table
        return table, plain if plain.dtype.kind in "biuf" else table

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags


def _written(one):
    """Write an id as text; 1.0 is written as 1."""
    is_whole = isinstance(one, float) and one.is_integer()
    return str(int(one) if is_whole else one)


def _with_ids(array, ids):
    """Put columns of ids or codes in front of the other columns of `array`."""
    columns = ids + ([array[:, 2:]] if array.shape[1] > 2 else [])
    out = np.empty(array.shape, dtype=_common_type(columns))
    for column, values in enumerate(ids):
        out[:, column] = values
    out[:, 2:] = array[:, 2:]
    return out


def _common_type(columns):
    kinds = {column.dtype.kind for column in columns}
    if not (kinds <= set("biuf") or kinds == {"U"}):
        return object
    common = np.result_type(*columns)
    integers = [column for column in columns if column.dtype.kind in "iu" and column.size]
    # Floats would merge neighbouring integers beyond this.
    too_large = any(column.max() >= 2**53 or column.min() <= -(2**53) for column in integers)
    return object if common.kind == "f" and too_large else common
