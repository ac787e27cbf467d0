"""What ensembles share: their parts, which they fit, fold in and add up."""

from __future__ import annotations

import copy
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from sklearn.base import clone
from sklearn.utils import Bunch

from fedrecsk._sklearn import BaseComposition
from fedrecsk.base import Recommender
from fedrecsk.privacy.report import PrivacyReport
from fedrecsk.simulation.ledger import Ledger

if TYPE_CHECKING:
    from typing import Any, Self

    from numpy.typing import ArrayLike


@dataclass(eq=False, repr=False)
class RecommenderEnsemble(Recommender, BaseComposition):
    """Base class of the ensembles; a subclass says how scores are added up."""

    estimators: list[Any]
    _: KW_ONLY
    weights: ArrayLike | None = None

    _parameter_constraints: ClassVar[dict] = Recommender._parameter_constraints | {
        "estimators": [list],
        "weights": ["array-like", None],
    }

    _has_item_vectors = _has_user_vectors = False

    # What kind of recommender the parts must be, for people and by class.
    _kind: ClassVar[tuple[str, type]] = ("a recommender", Recommender)

    # -------------------------------------------------------------------------- parameters

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters, those of the parts included as ``<name>__<parameter>``.

        Returns
        -------
        params : dict
        """
        return self._get_params("estimators", deep=deep)

    def set_params(self, **params: Any) -> Self:
        """Set parameters; a part's by ``<name>__<parameter>``, a part itself by its name.

        Returns
        -------
        self : object
        """
        return self._set_params("estimators", **params)

    # --------------------------------------------------------------------------------- fit

    def _fit(self, data, report):
        names, parts = self._named_parts()
        weights, trial, found = self._weights_for(data, parts)
        fitted = []
        for name, part in zip(names, parts, strict=True):
            close = report.step(name)
            fitted.append(self._like_this(fit_part(part, data)))
            if close(lambda: self._attributes(names, fitted, weights, trial)):
                break
        return self._attributes(names, fitted, weights, trial) | found

    def _like_this(self, part):
        """The part, which takes the same tables as this model from now on."""
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self, name):
                setattr(part, name, getattr(self, name))
        return part

    def _n_tasks(self):
        return len(self._named_parts()[0])

    def _weights_for(self, data, parts):
        """Weights of the parts, models fitted to find them, and fitted attributes about it."""
        given = self.weights
        if given is None:
            return np.ones(len(parts)), [], {}
        kept = [one != "drop" for _, one in self.estimators]
        return np.asarray(given, dtype=np.float64)[kept], [], {}

    def _attributes(self, names, fitted, weights, trial):
        """Of the parts fitted so far, with their weights brought to the sum 1."""
        weights = weights[: len(fitted)]
        weights = weights if weights.any() else np.ones(len(fitted))
        attributes = {
            "estimators_": list(fitted),
            "named_estimators_": Bunch(**dict(zip(names, fitted, strict=False))),
            "weights_": weights / weights.sum(),
        }
        everything = [*trial, *fitted]
        federated = [part for part in everything if hasattr(part, "communication_")]
        if federated:
            attributes["communication_"] = Ledger.joined([m.communication_ for m in federated])
            attributes["n_rounds_"] = sum(m.n_rounds_ for m in federated)
        if all(hasattr(part, "privacy_") for part in everything):
            attributes["privacy_"] = PrivacyReport.joined([m.privacy_ for m in federated])
        return attributes

    def _new_user_attributes(self, data):
        # Copies, because `recommend(interactions=)` folds users into a copy of this model.
        parts = [copy.copy(part).fold_in(**_rows(data), replace=True) for part in self.estimators_]
        self.estimators_ = parts
        self.named_estimators_ = Bunch(**dict(zip(self.named_estimators_, parts, strict=True)))
        return {}

    # ------------------------------------------------------------------------------ checks

    def _serving(self, users):
        model = copy.copy(self)
        model.estimators_ = [part._serving(users) for part in self.estimators_]
        return model

    def _named_parts(self):
        """Names, and copies of the parts that are not dropped, with this model's catalogue."""
        kept = [(name, part) for name, part in self.estimators if part != "drop"]
        names, parts = zip(*kept, strict=True)
        return names, [clone(part).set_params(items=self.items) for part in parts]

    def _check_before_fit(self):
        self._check_names()
        for name, part in self.estimators:
            self._check_part(name, part)
        if all(part == "drop" for _, part in self.estimators):
            raise ValueError("Every estimator is dropped; keep at least one.")
        self._check_weights()
        for part in self._named_parts()[1]:
            part._validate_params()
            part._check_before_fit()

    def _check_names(self):
        pairs = all(isinstance(one, tuple | list) and len(one) == 2 for one in self.estimators)
        if not self.estimators or not pairs:
            raise ValueError(
                "estimators should be a list of (name, estimator), with at least one; got "
                f"{self.estimators!r}."
            )
        self._validate_names([name for name, _ in self.estimators])

    def _check_part(self, name, part):
        what, kind = self._kind
        if isinstance(part, str) and part == "drop":
            return
        if not (isinstance(part, Recommender) and isinstance(part, kind)):
            raise TypeError(
                f"{type(self).__name__} adds up estimators, each of which must be {what}; "
                f"{name!r} is {part!r}."
            )
        if part.items is not None and not _same(part.items, self.items):
            raise ValueError(
                f"All estimators must have the same catalogue, but {name!r} has items of its own; "
                f"set items= of the {type(self).__name__}, which passes it on."
            )

    def _check_weights(self):
        if self.weights is None:
            return
        try:
            weights = np.asarray(self.weights, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"weights should be a number for each estimator, got {self.weights!r}."
            ) from error
        if weights.shape != (len(self.estimators),):
            raise ValueError(
                f"weights has shape {weights.shape}, and there are {len(self.estimators)} "
                "estimators; give one weight for each, dropped ones included."
            )
        kept = weights[[part != "drop" for _, part in self.estimators]]
        if not np.isfinite(weights).all() or (weights < 0).any() or not kept.any():
            raise ValueError(
                "weights should be finite, not negative, and not zero for all estimators that are "
                f"kept, got {self.weights!r}."
            )


def fit_part(part, data):
    """Fit a part to encoded interactions."""
    return part.fit(**_rows(data))


def _rows(data):
    """The rows of Interactions as `fit` and `fold_in` take them."""
    users, items = data.user_ids.values[data.users], data.item_ids.values[data.items]
    if users.dtype == items.dtype:
        X = np.column_stack([users, items])
    else:
        # Each column keeps a type of its own.
        X = np.empty((len(users), 2), dtype=object)
        X[:, 0], X[:, 1] = users, items
    return {
        "X": X,
        "y": data.values,
        "clients": data.client_ids[data.clients],
        "sample_weight": data.weights,
    }


def _same(items, others):
    return others is not None and set(np.asarray(items).tolist()) == set(
        np.asarray(others).tolist()
    )
