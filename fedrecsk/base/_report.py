"""What a fit reports to scikit-learn's callbacks."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fedrecsk.data.interactions import Interactions


def attributes_of(data: Interactions) -> dict[str, Any]:
    """Fitted attributes about users and items that every model has, as a dict."""
    return {
        "user_ids_": data.user_ids.values.copy(),
        "item_ids_": data.item_ids.values.copy(),
        "n_users_": data.n_users,
        "n_items_": data.n_items,
        "_users": data.user_ids,
        "_items": data.item_ids,
        "_seen": (data.indptr, data.items),
    }


class FitReport:
    """Reports a running fit to scikit-learn's callbacks.

    Parameters
    ----------
    estimator : Recommender
    X, y, sample_weight
        As given to fit.
    data : Interactions
    """

    def __init__(
        self, estimator: Any, X: Any, y: Any, sample_weight: Any, data: Interactions
    ) -> None:
        self.static: dict[str, Any] = attributes_of(data)
        self._estimator = estimator
        # ScoringMonitor does nothing if y is None.
        y = np.ones(len(X)) if y is None and hasattr(X, "__len__") else y
        metadata = None if sample_weight is None else {"sample_weight": sample_weight}
        self._arguments = {"X": X, "y": y, "metadata": metadata}
        self._context = estimator._init_callback_context(max_subtasks=estimator._n_tasks(data))

    def begin(self) -> None:
        """Report that the fit begins."""
        self._context.call_on_fit_task_begin(estimator=self._estimator, **self._arguments)

    def end(self) -> None:
        """Report that the fit has ended and the estimator is fitted."""
        self._context.call_on_fit_task_end(
            estimator=self._estimator,
            **self._arguments,
            reconstruction_attributes=lambda: copy.deepcopy(
                {name: value for name, value in vars(self._estimator).items() if name[-1] == "_"}
            ),
        )

    def step(self, name: str) -> Callable[[Callable[[], dict[str, Any]]], bool]:
        """Open a step of the fit, and return the function that closes it.

        The closing function takes `attributes`, a function that returns the fitted attributes of
        the moment and is called only if a callback needs them. It returns True to stop the fit.
        """
        context = self._context.subcontext(task_name=name)
        context.call_on_fit_task_begin(estimator=self._estimator, **self._arguments)

        def close(attributes):
            return context.call_on_fit_task_end(
                estimator=self._estimator,
                **self._arguments,
                reconstruction_attributes=lambda: self.static | attributes(),
            )

        return close
