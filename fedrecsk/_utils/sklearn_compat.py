"""What differs between versions of scikit-learn, and its private names, which no other module has.

scikit-learn may move them in any minor version, so setup.cfg has an upper bound of its version. To
raise the bound, install the new version, run the tests, and repair this file.
"""

from functools import cache, partial
from numbers import Number
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from sklearn.base import _fit_context as fit_context
from sklearn.base import clone
from sklearn.metrics._scorer import _BaseScorer as BaseScorer
from sklearn.metrics._scorer import _cached_call as cached_call
from sklearn.metrics._scorer import _MultimetricScorer as MultimetricScorer
from sklearn.utils import _safe_indexing as safe_indexing
from sklearn.utils._param_validation import (
    Interval,
    InvalidParameterError,
    Options,
    RealNotInt,
    StrOptions,
    validate_parameter_constraints,
)
from sklearn.utils._param_validation import validate_params as _validate_params
from sklearn.utils.metaestimators import _BaseComposition as BaseComposition
from sklearn.utils.validation import _check_feature_names as check_feature_names
from sklearn.utils.validation import check_array, check_non_negative
from threadpoolctl import ThreadpoolController

from fedrecsk._utils.given import check_numbers

try:
    from sklearn.callback import CallbackSupportMixin  # pyright: ignore[reportAssignmentType]
except ModuleNotFoundError:  # scikit-learn < 1.9

    class CallbackSupportMixin:
        """Stand in for scikit-learn's mixin where there are no callbacks."""

        def set_callbacks(self, *callbacks):
            """Refuse callbacks."""
            if callbacks:
                raise ImportError("Callbacks need scikit-learn 1.9 or later; upgrade it.")
            return self

        def _init_callback_context(self, **_):
            return _NoContext()

    class _NoContext:
        def subcontext(self, **_):
            return self

        def call_on_fit_task_begin(self, **_):
            pass

        def call_on_fit_task_end(self, **_):
            return False


if TYPE_CHECKING:
    T = TypeVar("T")

    def clone(estimator: T) -> T:
        """Return an unfitted copy of the same class."""
        ...


# What checked functions call checks nothing again.
validate_params = partial(_validate_params, prefer_skip_nested_validation=True)


@cache
def get_threadpool_controller() -> ThreadpoolController:
    """Return the controller of the threads of BLAS and OpenMP, found once."""
    return ThreadpoolController()


def check_sample_weight(sample_weight, X, *, allow_all_zero_weights=False):
    """Return weights of the rows of X as float64, a number for each row; raise if invalid."""
    check_numbers(sample_weight, "sample_weight")
    n_samples = X.shape[0] if hasattr(X, "shape") else len(X)
    if isinstance(sample_weight, Number):
        sample_weight = np.full(n_samples, sample_weight)
    weights = check_array(
        sample_weight, ensure_2d=False, dtype=np.float64, order="C", input_name="sample_weight"
    )
    if weights.shape != (n_samples,):
        raise ValueError(f"sample_weight.shape == {weights.shape}, expected {(n_samples,)}!")
    if not allow_all_zero_weights and (weights == 0).all():
        raise ValueError("Sample weights must contain at least one non-zero number.")
    check_non_negative(weights, "`sample_weight`")
    return weights
