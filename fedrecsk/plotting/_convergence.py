"""Convergence: the loss by round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fedrecsk.metrics._recommender import unwrap
from fedrecsk.model_selection import Comparison
from fedrecsk.plotting._curves import CurvesDisplay
from fedrecsk.plotting._drawing import check_reference
from fedrecsk.plotting._results import as_rows, check_any, numbers

if TYPE_CHECKING:
    from typing import Self

    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike
    from sklearn.base import BaseEstimator


class ConvergenceDisplay(CurvesDisplay):
    """Loss by round, or any other number that a method reports each round.

    Parameters
    ----------
    curves : dict of str to (x, mean, std)
        For each method, arrays of shape (n_rounds,): the rounds, counted from 1, and the mean and
        standard deviation of the number after each.
    score_name : str, default="loss"
        Name of the number, which labels the axis.
    reference : float or dict of str to float, default=None
        Scores of baselines by name, to draw as dashed horizontal lines.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    references_ : list of matplotlib Line2D
        One per reference score.
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

    def __init__(
        self,
        *,
        curves: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike]],
        score_name: str = "loss",
        reference: float | Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(curves=curves, x_name="rounds", score_name=score_name, reference=reference)

    @classmethod
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
        reference : float or dict of str to float, default=None
            Scores of baselines by name, to draw as dashed horizontal lines:
            ``{"BiasOnly": 0.94}``.
        ax : matplotlib Axes, default=None
            Axes to draw in. None: those of a new figure.
        **kwargs
            Passed to :meth:`plot`.

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
        reference : float or dict of str to float, default=None
            Scores of baselines by name, to draw as dashed horizontal lines:
            ``{"BiasOnly": 0.94}``.
        ax : matplotlib Axes, default=None
            Axes to draw in. None: those of a new figure.
        **kwargs
            Passed to :meth:`plot`.

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
            runs = [_by_round(name, run, score) for run in _runs(name, result)]
            by_round = np.full((len(runs), max(map(len, runs))), np.nan)
            for line, run in zip(by_round, runs, strict=True):
                line[: len(run)] = run
            known = ~np.isnan(by_round).all(axis=0)
            if known.any():
                rounds = np.flatnonzero(known)
                losses = by_round[:, rounds]
                curves[str(name)] = (
                    rounds + 1,
                    np.nanmean(losses, axis=0),
                    np.nanstd(losses, axis=0),
                )
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
    runs = {}
    for row in as_rows(comparison):
        if not np.isnan(row["rounds"]):
            fitted = comparison.estimators[row["estimator"]][row["fold"]]
            runs.setdefault(row["estimator"], []).append(fitted)
    return runs


def _runs(name, result):
    """A list of models, histories or arrays of numbers, from one or several."""
    if hasattr(result, "fit"):
        return [result]
    if isinstance(result, str) or not isinstance(result, Iterable):
        raise TypeError(
            f"{name!r} must be a fitted model, its history_, numbers by round, or a list of these, "
            f"got {result!r}."
        )
    result = list(result)
    one = len(result) == 0 or isinstance(result[0], Mapping | Real)
    return [result] if one else result


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
    rows = run if isinstance(run[0], Mapping) else [{score: number} for number in run]
    losses = np.array(numbers(rows, score))
    # An infinite loss leaves a gap, like an unknown one.
    losses[np.isinf(losses)] = np.nan
    return losses
