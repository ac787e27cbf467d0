"""Private names of scikit-learn that fedrecsk uses. No other module may import private names.

scikit-learn may move them in any minor version, so setup.cfg has an upper bound of its version. To
raise the bound, install the new version, run the tests, and repair this file.
"""

from sklearn.base import _fit_context as fit_context
from sklearn.metrics._scorer import _BaseScorer as BaseScorer
from sklearn.metrics._scorer import _MultimetricScorer as MultimetricScorer
from sklearn.utils import _safe_indexing as safe_indexing
from sklearn.utils._param_validation import (
    Interval,
    InvalidParameterError,
    Options,
    RealNotInt,
    StrOptions,
    validate_parameter_constraints,
    validate_params,
)
from sklearn.utils.metaestimators import _BaseComposition as BaseComposition
from sklearn.utils.parallel import _get_threadpool_controller as get_threadpool_controller
from sklearn.utils.validation import _check_feature_names as check_feature_names
from sklearn.utils.validation import _check_sample_weight as check_sample_weight

__all__ = [
    "BaseComposition",
    "BaseScorer",
    "Interval",
    "InvalidParameterError",
    "MultimetricScorer",
    "Options",
    "RealNotInt",
    "StrOptions",
    "check_feature_names",
    "check_sample_weight",
    "fit_context",
    "get_threadpool_controller",
    "safe_indexing",
    "validate_parameter_constraints",
    "validate_params",
]
