"""Send what happens during a fit to a tracker of experiments, or to ``print``."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any

from sklearn.metrics import check_scoring, get_scorer, get_scorer_names

from fedrecsk.metrics import make_ranking_scorer

__all__ = ["Tracker"]


class Tracker:
    """A callback that hands the numbers of each round or epoch to a function; scikit-learn 1.9.

    Parameters
    ----------
    sink : callable
        Called as ``sink(metrics, step)`` with a dict of str to float and the number of the round,
        from 0: ``print``, ``mlflow.log_metrics``, ``wandb.log``, or a function of your own. If fits
        run in other processes, it must be picklable.
    scoring : str, callable, list, dict or None, default=None
        Further scores of the model after each round, as in `cross_validate`, or ranking metrics
        such as "ndcg@10". If None, none.
    validation : tuple (X, y) or None, default=None
        The rows that `scoring` scores; y may be None for rankings. If None, the rows of the fit.

    Notes
    -----
    Metrics of a federated fit are those of `history_`: `loss`, `participants`, `bytes_down` and
    `bytes_up` of the round, and the `hours` of a simulated clock. Only a simulation knows the loss.
    Clients report a `validation_loss` (or a `validation_score`) one round later, so it is not among
    them. Those of other models are their scores, and the last `loss` where they have one. What is
    NaN is left out.

    Examples
    --------
    >>> from fedrecsk import RFRec
    >>> from fedrecsk.datasets import make_ratings
    >>> from fedrecsk.tracking import Tracker
    >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> def log(metrics, step):
    ...     print(step, {name: round(number, 2) for name, number in metrics.items()})
    >>> model = RFRec(4, n_rounds=2, random_state=0)
    >>> model = model.set_callbacks(Tracker(log, scoring="r2")).fit(X, y)
    0 {'loss': 1.27, 'participants': 60.0, 'bytes_down': 48000.0, 'bytes_up': 48000.0, 'r2': 0.08}
    1 {'loss': 1.02, 'participants': 60.0, 'bytes_down': 48000.0, 'bytes_up': 48000.0, 'r2': 0.16}
    """

    def __init__(
        self,
        sink: Callable[[dict[str, float], int], Any],
        *,
        scoring: Any = None,
        validation: tuple[Any, Any] | None = None,
    ) -> None:
        if not callable(sink):
            raise TypeError(
                f"sink should be a function such as print or mlflow.log_metrics, got {sink!r}."
            )
        if validation is not None and not (isinstance(validation, tuple) and len(validation) == 2):
            raise ValueError("validation should be a tuple (X, y); for rankings, (X, None).")
        if validation is not None and scoring is None:
            raise ValueError(
                "validation needs scoring=, for example 'neg_root_mean_squared_error'."
            )
        self._sink = sink
        if isinstance(scoring, str):
            scoring = [scoring]
        if isinstance(scoring, list | tuple) and all(isinstance(one, str) for one in scoring):
            scoring = {name: name for name in scoring}
        if isinstance(scoring, dict):
            scoring = {name: _scorer(one) for name, one in scoring.items()}
        self._scoring = scoring
        self._validation = validation

    def setup(self, estimator: Any, context: Any) -> None:
        """Do nothing before a fit."""

    def teardown(self, estimator: Any, context: Any) -> None:
        """Do nothing after a fit."""

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        """Do nothing before a round."""

    def on_fit_task_end(
        self,
        estimator: Any,
        context: Any,
        *,
        X: Any = None,
        y: Any = None,
        fitted_estimator: Any = None,
    ) -> None:
        """Send the numbers of the round that has ended.

        Parameters
        ----------
        estimator, context, X, y, fitted_estimator
            As scikit-learn gives them.
        """
        if context.task_name == "fit" or fitted_estimator is None:
            return
        metrics = getattr(fitted_estimator, "history_", [{}])[-1].copy()
        metrics.pop("round", None)
        losses = getattr(fitted_estimator, "loss_curve_", ())
        if len(losses):
            metrics.setdefault("loss", losses[-1])
        if self._scoring is not None:
            rows = (X, y) if self._validation is None else self._validation
            scorer: Any = check_scoring(fitted_estimator, self._scoring)
            scores = scorer(fitted_estimator, *rows)
            metrics |= scores if isinstance(scores, dict) else {"score": scores}
        numbers = {name: one for name, one in metrics.items() if isinstance(one, Real)}
        self._sink({n: float(one) for n, one in numbers.items() if one == one}, context.task_id)


def _scorer(name):
    """Return the scorer of a name of scikit-learn, or of a ranking metric with a cutoff."""
    if not isinstance(name, str):
        return name
    metric, _, k = name.partition("@")
    if k.isdecimal():
        return make_ranking_scorer(metric, int(k))
    if name not in get_scorer_names():
        raise ValueError(
            f"Unknown score {name!r}; give a ranking metric with its cutoff, such as 'ndcg@10', or "
            "a name of sklearn.metrics.get_scorer_names()."
        )
    return get_scorer(name)
