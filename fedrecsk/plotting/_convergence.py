"""Draw the loss by round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from fedrecsk._utils.docs import documented
from fedrecsk.metrics._recommender import unwrap
from fedrecsk.model_selection import Comparison
from fedrecsk.plotting._base import CurvesDisplay, check_any, check_reference
from fedrecsk.plotting._results import as_table, numbers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from matplotlib.axes import Axes
    from sklearn.base import BaseEstimator


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class ConvergenceDisplay(CurvesDisplay):
    """Loss by round, or any other number that a method reports each round.

    Parameters
    ----------
    curves : dict of str to (x, mean, std)
        For each method, arrays of shape (n_rounds,): the rounds, counted from 1, and the mean and
        standard deviation of the number after each.
    score_name : str, default="loss"
        Name of the number, which labels the axis.
    {reference}

    Attributes
    ----------
    {display attributes}
    lines_ : list of matplotlib Line2D
        One per method.
    bands_ : list of matplotlib artists
        One per method with a standard deviation above 0.

    Notes
    -----
    Each method minimises its own objective. Compare the losses of a method over rounds, to see
    whether it has converged, but not the losses of different methods.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from fedrecsk import RFRec
    >>> from fedrecsk.datasets import make_ratings
    >>> from fedrecsk.plotting import ConvergenceDisplay
    >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=1000, random_state=0)
    >>> model = RFRec(n_rounds=5, random_state=0).fit(X, y)
    >>> display = ConvergenceDisplay.from_estimator(model)
    >>> display.lines_[0].get_xdata().tolist()
    [1, 2, 3, 4, 5]
    """

    x_name: str = field(init=False, default="rounds")
    score_name: str = "loss"
    failed: Sequence[str] = field(init=False, default=())

    @classmethod
    @documented
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        *,
        score: str = "loss",
        name: str | None = None,
        reference: float | Mapping[str, float] | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw the history of a fitted federated model.

        Parameters
        ----------
        estimator : estimator
            A fitted federated model, or a Pipeline or search that ends in one.
        score : str, default="loss"
            Key of the rows of `history_`: "loss", or "validation_loss" after early stopping.
        name : str, default=None
            Label of the line. None: the name of the class.
        {drawing}

        Returns
        -------
        display : ConvergenceDisplay

        Raises
        ------
        ImportError
            If matplotlib is missing.
        NotFittedError
            If the estimator is not fitted.
        TypeError
            If it has no `history_`, because it is centralised.
        ValueError
            If the history has no such key.
        """
        check_is_fitted(estimator)
        if name is None:
            name = type(unwrap(estimator)[1]).__name__
        return cls.from_results(
            {name: estimator}, score=score, reference=reference, ax=ax, **kwargs
        )

    @classmethod
    @documented
    def from_results(
        cls,
        results: Comparison | Mapping[str, Any],
        *,
        score: str = "loss",
        reference: float | Mapping[str, float] | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw histories of several fits.

        Parameters
        ----------
        results : Comparison or dict
            By name, one of these: a fitted model, a `history_` (list of dict), the numbers
            themselves, or a list of models or histories (of several folds, for example), whose
            mean is drawn with a band of one standard deviation. A comparison must be made with
            ``return_estimator=True``; its federated models are drawn.
        score : str, default="loss"
            Key of the rows of `history_`, or the name of the numbers.
        {drawing}

        Returns
        -------
        display : ConvergenceDisplay

        Raises
        ------
        ImportError
            If matplotlib is missing.
        TypeError
            If a model has no `history_`, or the results are not a dict by name.
        ValueError
            If a history has no such key, nothing is given, or the comparison kept no models.
        """
        check_reference(reference)
        if isinstance(results, Comparison):
            results = _federated_of(results)
        if not isinstance(results, Mapping):
            raise TypeError(
                f"results must be a Comparison or a dict by name, got {type(results).__name__}."
            )
        curves = {}
        for name, result in results.items():
            runs = [pd.Series(_by_round(name, run, score)) for run in _runs(name, result)]
            losses = pd.concat(runs, axis="columns").dropna(how="all")
            if len(losses):
                mean, std = losses.mean(axis="columns"), losses.std(axis="columns", ddof=0)
                curves[str(name)] = losses.index.to_numpy() + 1, mean.to_numpy(), std.to_numpy()
        check_any(curves, score)
        return cls(curves=curves, score_name=score, reference=reference).plot(ax, **kwargs)

    def _draw(self, ax, kwargs):
        super()._draw(ax, kwargs)
        if ax.get_xscale() == "linear":
            ax.locator_params(axis="x", integer=True)


def _federated_of(comparison):
    if comparison.estimators is None:
        raise ValueError(
            "The comparison kept no fitted estimators; compare with return_estimator=True."
        )
    table = as_table(comparison)
    federated = table[table["rounds"].notna()]
    return {
        str(name): [comparison.estimators[name][fold] for fold in own["fold"]]
        for name, own in federated.groupby("estimator", sort=False)
    }


def _runs(name, result):
    """Return a list of models, histories or arrays of numbers, from one or several."""
    if hasattr(result, "fit"):
        return [result]
    if isinstance(result, str) or not isinstance(result, Iterable):
        raise TypeError(
            f"{name!r} must be a fitted model, its history_, numbers by round, or a list of these, "
            f"got {result!r}."
        )
    result = list(result)
    return [result] if not result or isinstance(result[0], Mapping | Real) else result


def _by_round(name, run, score):
    if hasattr(run, "fit"):
        _, model = unwrap(run)
        if not hasattr(model, "history_"):
            raise TypeError(
                f"{name} has no history_: {type(model).__name__} does not learn in rounds."
            )
        run = model.history_
    run = list(run)
    if len(run) == 0:
        raise ValueError(f"{name} has no rounds to draw.")
    if not isinstance(run[0], Mapping):
        run = [{score: loss} for loss in run]
    losses = numbers(as_table(run), score)
    # An infinite loss leaves a gap, like an unknown one.
    losses[np.isinf(losses)] = np.nan
    return losses
