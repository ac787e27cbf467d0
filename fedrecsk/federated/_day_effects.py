"""Day effects: by how much a user rates higher on a day than its vector says, on its device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array

from fedrecsk.data import _times
from fedrecsk.data.interactions import id_columns

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import ArrayLike, NDArray

    from fedrecsk.protocol.blocks import Block

# How many ratings the prior of an effect is worth.
PRIOR = 10.0


class DayEffects:
    """Predictions with `user_days_`, of models that have `timestamps` and a rating scale."""

    def predict(
        self: Any, X: ArrayLike, return_std: bool = False
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Estimate the rating of (user, item) pairs, on the days of the rows if it knows these.

        Parameters
        ----------
        X, return_std
            As in `predict` of other models. With `timestamps`, X has that column too. A day without
            ratings of the user, or a missing one, has no effect.

        Returns
        -------
        y_pred : ndarray of shape (n_samples,), dtype float64
        y_std : ndarray of shape (n_samples,), dtype float64
            With ``return_std=True``: the predicted standard deviation of the rating.

        Raises
        ------
        ValueError
            With ``return_std=True``, if the model has no standard deviations; or if times are not
            valid.
        """
        found = super().predict(X, return_std)  # type: ignore[misc]
        if self.timestamps is None:
            return found
        predicted = found[0] if return_std else found
        X, _ = self._checked(X)
        users, days = self._users.codes(id_columns(X)[0]), self._times_of(X)
        rows = np.flatnonzero((users >= 0) & ~np.isnan(days))
        # Of no rows, SciPy's answer is a sparse array.
        if len(rows):
            effects = self.user_days_[users[rows], days[rows].astype(np.int64)]
            predicted[rows] += np.asarray(effects).ravel()
        predicted = np.clip(predicted, *self.rating_scale_)
        return (predicted, found[1]) if return_std else predicted

    def _times_of(self: Any, X: ArrayLike, *, all_users: bool = False) -> np.ndarray | None:
        if self.timestamps is None:
            return None
        return _times.days_of(X, self.timestamps, all_users=all_users)


def effects_of_days(block: Block, expected: np.ndarray, dtype: type[np.floating]) -> object:
    """Return the effects of users' days, given the expected ratings of the block's rows."""
    shape = block.n_users, _times.N_DAYS
    if block.times is None:
        return csr_array(shape, dtype=dtype)
    known = ~np.isnan(block.times)
    users = np.repeat(np.arange(block.n_users), np.diff(block.indptr))[known]
    places = users, block.times[known].astype(np.int64)
    weights = block.weights[known]
    # Rows of the same user and day are added up.
    sums = csr_array((weights * (block.values - expected)[known], places), shape)
    counts = csr_array((weights, places), shape)
    sums.sum_duplicates()
    counts.sum_duplicates()
    sums.data /= counts.data + PRIOR
    return sums.astype(dtype)
