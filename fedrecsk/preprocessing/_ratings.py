"""Scaling and binarising ratings."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fedrecsk._utils.parameters import PlainParameters
from fedrecsk._utils.sklearn_compat import Interval, fit_context, validate_params
from fedrecsk._utils.user_warnings import warn
from fedrecsk.preprocessing._filters import ratings

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import ArrayLike, NDArray


@validate_params(
    {"y": ["array-like"], "threshold": [Interval(Real, None, None, closed="neither")]},
    prefer_skip_nested_validation=True,
)
def binarize(y: ArrayLike, *, threshold: float = 4.0) -> NDArray[np.float64]:
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
    values = ratings(y)
    preferred = values >= threshold
    if len(values) and not preferred.any():
        warn(
            f"No rating reaches threshold={threshold}, so all of y becomes 0; the largest rating "
            f"is {values.max():g}. Lower the threshold.",
        )
    return preferred.astype(np.float64)


@dataclass(eq=False, repr=False)
class RatingScaler(OneToOneFeatureMixin, TransformerMixin, PlainParameters):
    """Map ratings linearly to another scale, and predictions back.

    Use it as the `transformer` of :class:`sklearn.compose.TransformedTargetRegressor`: the
    model learns ratings in `feature_range`, and its predictions are mapped back to the scale of
    the ratings and clipped to its ends.

    Parameters
    ----------
    rating_range : tuple (low, high), default=None
        Ends of the scale, for example (1, 5). None: the lowest and the highest rating that fit
        sees. In a federation, these reveal something about all clients' data; a scale that is
        known beforehand reveals nothing.
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

    _parameter_constraints: ClassVar[dict] = {
        "rating_range": [tuple, None],
        "feature_range": [tuple],
        "clip": ["boolean"],
    }

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
        _check_range(self.feature_range, "feature_range")
        if self.rating_range is not None:
            _check_range(self.rating_range, "rating_range")
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
        return cast("NDArray[np.float64]", validate_data(self, X, dtype=np.float64, reset=reset))

    def _step(self) -> NDArray[np.float64]:
        width = self.rating_max_ - self.rating_min_
        low, high = self.feature_range
        return np.where(width > 0, width, 1.0) / (high - low)


def _check_range(ends, name):
    are_numbers = len(ends) == 2 and all(isinstance(end, Real) for end in ends)
    # The difference of two huge numbers can be infinite although they are not.
    if not are_numbers or not 0 < float(ends[1]) - float(ends[0]) < np.inf:
        raise ValueError(f"{name} should be two finite numbers in ascending order, got {ends!r}.")
