"""Make an estimator of an algorithm of your own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, field, fields, is_dataclass, make_dataclass
from typing import Literal, get_type_hints

from fedrecsk._utils.constraints import types_of
from fedrecsk.base import RankingMixin, RatingMixin
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.protocol.algorithm import Algorithm

__all__ = ["estimator_of"]


def estimator_of(
    algorithm: type[Algorithm],
    *,
    learns: Literal["ratings", "likes"] = "ratings",
    constraints: Mapping[str, object] | None = None,
    **defaults: object,
) -> type[FederatedRecommender]:
    """Return the class of an estimator whose `fit` simulates an algorithm.

    Its parameters are the fields of the algorithm and those of every federated method; the first
    may be passed by position. Give it the name of the algorithm without "Algorithm", so that it can
    be pickled.

    Parameters
    ----------
    algorithm : type
        A dataclass derived from :class:`~fedrecsk.protocol.Algorithm`, each of whose fields
        has a default. Of its fitted attributes, `predict` and `recommend` use ``item_factors_``,
        ``user_factors_``, ``item_bias_``, ``user_bias_`` and ``global_bias_``, unless it implements
        ``model``.
    learns : {"ratings", "likes"}, default="ratings"
        Whether y are ratings, which `fit` then requires, or implicit feedback.
    constraints : dict or None, default=None
        Constraints of parameters that scikit-learn checks (``_parameter_constraints``), beside
        those that follow from the types in the annotations.
    **defaults
        Other defaults of parameters that every federated method has, for example ``n_rounds=30``.

    Returns
    -------
    estimator : type
        A subclass of :class:`~fedrecsk.federated.base.FederatedRecommender`.

    Raises
    ------
    TypeError
        If `algorithm` is not such a class, or lacks a function.
    ValueError
        If `learns` is neither "ratings" nor "likes".

    Examples
    --------
    See :doc:`/add_a_method`.
    """
    _check(algorithm)
    if learns not in ("ratings", "likes"):
        raise ValueError(f'learns should be "ratings" or "likes", got {learns!r}.')
    own = [one for one in fields(algorithm) if one.init]
    hints = get_type_hints(algorithm, include_extras=True)
    given = [
        (one.name, hints[one.name], field(default=one.default, kw_only=place > 0))
        for place, one in enumerate(own)
    ]
    unknown = sorted(set(defaults) - {one.name for one in fields(FederatedRecommender)})
    if unknown:
        raise TypeError(
            f"{unknown[0]!r} is not a parameter of every federated method; make it a field of "
            f"{algorithm.__name__}."
        )
    given += [
        (name, types_of(FederatedRecommender)[name], field(default=value, kw_only=True))
        for name, value in defaults.items()
    ]

    def build(self):
        return algorithm(**{one.name: getattr(self, one.name) for one in own})

    name = algorithm.__name__.removesuffix("Algorithm")
    Mixin = RatingMixin if learns == "ratings" else RankingMixin
    estimator = make_dataclass(
        name,
        given,
        bases=(Mixin, FederatedRecommender),
        namespace={"__doc__": algorithm.__doc__, "_algorithm": build},
        eq=False,
        repr=False,
    )
    # Python 3.12 and later would overwrite it in the namespace.
    estimator.__module__ = algorithm.__module__
    if constraints:
        estimator._parameter_constraints |= constraints
    return estimator


def _check(algorithm):
    """Raise TypeError unless this is the class of an algorithm, with all that it needs."""
    if not (isinstance(algorithm, type) and issubclass(algorithm, Algorithm)):
        raise TypeError(
            "estimator_of takes a class derived from fedrecsk.protocol.Algorithm, got "
            f"{algorithm!r}."
        )
    name = algorithm.__name__
    if not is_dataclass(algorithm):
        raise TypeError(f"{name} must be a dataclass; decorate it with @dataclass.")
    lacking = sorted(algorithm.__abstractmethods__)
    if lacking:
        raise TypeError(f"{name} lacks {', '.join(lacking)}; see fedrecsk.protocol.Algorithm.")
    for one in fields(algorithm):
        if one.init and one.default is MISSING:
            raise TypeError(f"The field {one.name} of {name} needs a default, as parameters have.")
