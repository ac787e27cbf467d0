"""What a fit reports to scikit-learn's callbacks."""

from __future__ import annotations

import copy

import numpy as np


def attributes_of(data):
    """What every fitted model knows of its users and items: a dict of fitted attributes."""
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
    """What a running fit tells scikit-learn's callbacks.

    Parameters
    ----------
    estimator : Recommender
    X, y, sample_weight
        As given to fit.
    data : Interactions
    """

    def __init__(self, estimator, X, y, sample_weight, data):
        self.static = attributes_of(data)
        self._estimator = estimator
        # ScoringMonitor stays silent where y is None.
        y = np.ones(len(X)) if y is None and hasattr(X, "__len__") else y
        metadata = None if sample_weight is None else {"sample_weight": sample_weight}
        self._arguments = {"X": X, "y": y, "metadata": metadata}
        self._context = estimator._init_callback_context(max_subtasks=estimator._n_tasks())

    def begin(self):
        """The fit begins."""
        self._context.call_on_fit_task_begin(estimator=self._estimator, **self._arguments)

    def end(self):
        """The fit has ended and the estimator is fitted."""
        self._context.call_on_fit_task_end(
            estimator=self._estimator,
            **self._arguments,
            reconstruction_attributes=lambda: copy.deepcopy(
                {name: value for name, value in vars(self._estimator).items() if name[-1] == "_"}
            ),
        )

    def step(self, name):
        """Open a step of the fit; returns the function that closes it.

        The closing function takes `attributes`, a function that makes the fitted attributes
        of the moment, called only if some callback asks, and returns True to stop the fit.
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
