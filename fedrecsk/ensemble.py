"""Sums of several recommenders, federated or not, named as in scikit-learn's ensembles."""

from __future__ import annotations

import copy
from dataclasses import KW_ONLY, dataclass, replace
from itertools import combinations
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.base import clone
from sklearn.utils import Bunch, check_random_state

from fedrecsk._utils.constraints import ArrayLike, AtLeast1, Seed
from fedrecsk._utils.docs import documented
from fedrecsk._utils.memory import batches
from fedrecsk._utils.sklearn_compat import BaseComposition
from fedrecsk.base import RankingMixin, RatingMixin, Recommender
from fedrecsk.base._recommender import deviations
from fedrecsk.models import Scores
from fedrecsk.privacy.report import PrivacyReport
from fedrecsk.protocol.ledger import Ledger

__all__ = ["RankingEnsemble", "RatingEnsemble"]

# Standard deviations below this share of the largest score are rounding.
RESOLUTION = 1e-12
# The search maximises NDCG@K over weights that are multiples of 1 / STEPS.
K = 10
STEPS = 10


@dataclass(eq=False, repr=False)
class RecommenderEnsemble(Recommender, BaseComposition):
    """Base class of the ensembles; a subclass implements the sum of scores."""

    estimators: list[Any]
    _: KW_ONLY
    weights: ArrayLike | None = None

    _has_item_vectors = _has_user_vectors = False

    # Kind of recommender that the parts must be: in words, and its class.
    _kind: ClassVar[tuple[str, type]] = ("a recommender", Recommender)

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

    def _fit(self, data, report):
        names, parts = self._named_parts()
        weights, trial, found = self._weights_for(data, parts)
        fitted = []
        for name, part in zip(names, parts, strict=True):
            close = report.step(name)
            if data.n_items > len(np.unique(data.items)):
                part._set(items=data.item_ids.values)
            fitted.append(part.fit(**_rows(data)))
            # A part takes the same tables as this model.
            for attribute in {"n_features_in_", "feature_names_in_"} & vars(self).keys():
                setattr(fitted[-1], attribute, getattr(self, attribute))
            if close(lambda: self._attributes(names, fitted, weights, trial)):
                break
        return self._attributes(names, fitted, weights, trial) | found

    def _n_tasks(self, data):
        return len(self._named_parts()[0])

    def _times_of(self, X, *, all_users=False):
        timed = [part for _, part in self.estimators if getattr(part, "_fades", False)]
        timed = [part for part in timed if part.timestamps is not None]
        columns = {part.timestamps for part in timed}
        if len(columns) > 1:
            raise ValueError(
                f"The estimators read times from different columns, {sorted(map(str, columns))}; "
                "give them the same timestamps."
            )
        return timed[0]._times_of(X, all_users=all_users) if timed else None

    def _weights_for(self, data, parts):
        """Return the parts' weights, models fitted to find them, and attributes about these."""
        return self._check_weights(), [], {}

    def _attributes(self, names, fitted, weights, trial):
        """Return the fitted attributes with the parts fitted so far, whose weights add up to 1."""
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
        self.estimators_: list[Any] = parts
        self.named_estimators_ = Bunch(**dict(zip(self.named_estimators_, parts, strict=True)))
        return {}

    def _model(self):
        return Scores(n_items=self.n_items_, pairs=self._score_pairs, board=self._score_all)

    def _weighted_sum(self, scores_of):
        parts = zip(self.weights_, self.estimators_, strict=True)
        return sum(weight * scores_of(part._model()) for weight, part in parts)

    def _named_parts(self):
        """Return names and copies of the parts that are kept, with this model's catalogue."""
        kept = [(name, part) for name, part in self.estimators if part != "drop"]
        names, parts = zip(*kept, strict=True)
        parts = [clone(part)._set(items=self.items) for part in parts]
        for part in parts:
            if getattr(part, "timestamps", None) is not None:
                part._set(timestamps=2)  # where `_rows` puts them
        return names, parts

    # ------------------------------------------------------------------------------ checks

    def _check_before_fit(self):
        pairs = all(isinstance(one, tuple | list) and len(one) == 2 for one in self.estimators)
        if not self.estimators or not pairs:
            raise ValueError(
                "estimators should be a list of (name, estimator), with at least one; got "
                f"{self.estimators!r}."
            )
        self._validate_names([name for name, _ in self.estimators])
        for name, part in self.estimators:
            self._check_part(name, part)
        if all(part == "drop" for _, part in self.estimators):
            raise ValueError("Every estimator is dropped; keep at least one.")
        self._check_weights()
        for part in self._named_parts()[1]:
            part._validate_params()
            part._check_before_fit()

    def _check_part(self, name, part):
        what, kind = self._kind
        if isinstance(part, str) and part == "drop":
            return
        if not (isinstance(part, Recommender) and isinstance(part, kind)):
            raise TypeError(
                f"{type(self).__name__} adds up estimators, each of which must be {what}; "
                f"{name!r} is {part!r}."
            )
        sets = [
            None if x is None else set(np.asarray(x).tolist()) for x in (part.items, self.items)
        ]
        if sets[0] is not None and sets[0] != sets[1]:
            raise ValueError(
                f"All estimators must have the same catalogue, but {name!r} has items of its own; "
                f"set items= of the {type(self).__name__}, which passes it on."
            )

    def _check_weights(self):
        """Return the given weights of the parts that are kept."""
        is_kept = [part != "drop" for _, part in self.estimators]
        if self.weights is None:
            return np.ones(sum(is_kept))
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
        kept = weights[is_kept]
        if not np.isfinite(weights).all() or (weights < 0).any() or not kept.any():
            raise ValueError(
                "weights should be finite, not negative, and not zero for all estimators that are "
                f"kept, got {self.weights!r}."
            )
        return kept


@documented
@dataclass(eq=False, repr=False)
class RatingEnsemble(RatingMixin, RecommenderEnsemble):
    """Weighted mean of the predictions of several rating models.

    If the errors of models differ, their mean is better than each: even the mean of fits of one
    method with different `random_state`.

    :class:`~sklearn.ensemble.VotingRegressor` predicts the same means, but has no `recommend`, no
    `fold_in`, no `items` and no ledger, and refuses `clients` unless metadata routing is switched
    on.

    Parameters
    ----------
    estimators : list of (str, estimator)
        Rating models of this package, federated or not, each with a name. "drop" in place of an
        estimator leaves it out, as in scikit-learn's ensembles.
    weights : array-like of shape (n_estimators,), default=None
        Weights of the predictions; they need not add up to 1. If None, equal weights.
    {items}
        It is passed on to all parts.

    Attributes
    ----------
    estimators_ : list of estimator
        The fitted parts, without those that are dropped.
    named_estimators_ : Bunch
        The same by their names.
    weights_ : ndarray of shape (n_estimators,), dtype float64
        Their weights, which add up to 1.
    {ids}
    n_rounds_ : int
        Rounds of all federated parts. Only if there is one.
    communication_ : Ledger
        Every byte that federated parts have sent, one after the other. Only if there is one.
    privacy_ : PrivacyReport
        Their guarantees composed. Only if all parts are federated.

    Raises
    ------
    TypeError
        By fit: if a part is not a rating model of this package.
    ValueError
        By fit: if names or weights are wrong, if a part has `items` of its own, or as a part does.

    See Also
    --------
    RankingEnsemble : The sum of rankers, whose scores have no common scale.

    Notes
    -----
    Parts are fitted one after the other, each to all rows, with the same clients and sample
    weights. `fold_in` and `recommend(interactions=)` fold new users into every part.

    With federated parts, a client takes part in each of them, and computes the mean of their
    predictions itself.

    Examples
    --------
    >>> from fedrecsk import BiasOnly, RFRec
    >>> from fedrecsk.datasets import make_ratings
    >>> from fedrecsk.ensemble import RatingEnsemble
    >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> X = X[:, :2]
    >>> parts = [("rfrec", RFRec(4, n_rounds=20, random_state=0)), ("bias", BiasOnly())]
    >>> model = RatingEnsemble(parts, weights=[2, 1]).fit(X, y)
    >>> mean = sum(w * part.predict(X) for w, part in zip(model.weights_, model.estimators_))
    >>> bool(abs(model.predict(X) - mean).max() < 1e-12), model.n_rounds_
    (True, 20)
    """

    _kind: ClassVar[tuple] = ("a rating model of fedrecsk", RatingMixin)

    def _score_pairs(self, users, items):
        return self._weighted_sum(lambda model: model.predict(users, items))

    def _score_all(self, users):
        return self._weighted_sum(lambda model: model.response(model.score_all(users)))

    def _deviations(self, users, items):
        """Return the standard deviations of the parts' distributions, mixed."""
        square = self._weighted_sum(lambda model: model.predict(users, items) ** 2)
        for weight, part in zip(self.weights_, self.estimators_, strict=True):
            square += weight * deviations(part, users, items) ** 2
        return np.sqrt(np.maximum(square - self._score_pairs(users, items) ** 2, 0))

    def _model(self):
        return replace(super()._model(), deviations=self._deviations)


@documented
@dataclass(eq=False, repr=False)
class RankingEnsemble(RankingMixin, RecommenderEnsemble):
    """Weighted sum of several rankers, on one scale for each user.

    The scores of different methods have no common scale. Each estimator's are standardised before
    they are added up: for every user, over all items, to mean 0 and standard deviation 1. If
    estimators rank about equally well but differently, their sum is better than any of them.

    Parameters
    ----------
    estimators : list of (str, estimator)
        Ranking models of this package, federated or not, each with a name. "drop" in place of an
        estimator leaves it out, as in scikit-learn's ensembles.
    weights : array-like of shape (n_estimators,) or "search", default=None
        Weights of the standardised scores; they need not add up to 1. If None, equal weights.
        "search": the best on held-out rows. One row with y > 0 is held out of each user that has
        another row, and all estimators are fitted to the rest. Of all multiples of 1/10 that add up
        to 1, the weights with the highest mean NDCG@10 are chosen. All estimators are then fitted
        to all rows: twice the time, and twice the communication, which is counted.
    n_negatives : int or None, default=None
        With "search": among how many items, drawn from those without a row of the user, the
        held-out row is ranked. If None, all of them. Use the protocol of your evaluation.
    random_state : int, RandomState instance or None, default=None
        With "search": which rows are held out, and the items drawn. Parts have their own.
    {items}
        It is passed on to all parts.

    Attributes
    ----------
    search_results_ : dict
        `weights` (array of shape (n_candidates, n_estimators)) and `score`, the mean NDCG@10
        of each. Only with "search".
    estimators_, named_estimators_, weights_, user_ids_, item_ids_, n_users_, n_items_
        As in :class:`RatingEnsemble`.
    n_rounds_, communication_, privacy_
        As in :class:`RatingEnsemble`, those of the search first.

    Raises
    ------
    TypeError
        By fit: if a part is not a ranking model of this package.
    ValueError
        By fit: if names or weights are wrong, if a part has `items` of its own, if no row can be
        held out for "search", or as a part does.

    See Also
    --------
    RatingEnsemble : The mean of rating models.

    Notes
    -----
    *Algorithm*, with "search"::

        1  hold out a row of each user                       _held_out
        2  fit all parts to the others                        _weights_for
        3  rank the held-out rows by each candidate's sum     mean_ndcg
        4  keep the best candidate, and fit all parts again   _fit

    Parts are fitted, and new users folded in, as in :class:`RatingEnsemble`.

    A part that scores all items alike for a user (an unknown one, for example) adds nothing. An
    unknown item scores 0, like the average item.

    *In a federation* each client standardises and adds up its own users' scores, for which it needs
    only the parts. A search needs one number from each client for each candidate: its
    users' NDCG, in a sum. These numbers, 264 bytes per client for three parts, are not counted.

    Examples
    --------
    >>> from fedrecsk import FedEASE, LocALS
    >>> from fedrecsk.datasets import make_interactions
    >>> from fedrecsk.ensemble import RankingEnsemble
    >>> X = make_interactions(n_users=60, n_items=40, n_interactions=900, random_state=0)
    >>> parts = [("ease", FedEASE(100.0)), ("als", LocALS(4, random_state=0))]
    >>> model = RankingEnsemble(parts, weights="search", random_state=0).fit(X)
    >>> model.weights_.sum().round(6), len(model.search_results_["score"])
    (np.float64(1.0), 11)
    >>> model.recommend(X[:2, 0], n_recommendations=3)[0].shape
    (2, 3)
    """

    _: KW_ONLY
    weights: ArrayLike | Literal["search"] | None = None
    n_negatives: AtLeast1 | None = None
    random_state: Seed = None

    _kind: ClassVar[tuple] = ("a ranking model of fedrecsk", RankingMixin)

    def _weights_for(self, data, parts):
        if not isinstance(self.weights, str):
            return super()._weights_for(data, parts)
        generator = check_random_state(self.random_state)
        mask = _held_out(data, generator)
        # Items whose only row is held out stay in the catalogue.
        catalogue, training = data.item_ids.values, data.take(~mask)
        trial = [clone(part)._set(items=catalogue).fit(**_rows(training)) for part in parts]
        weights = _candidate_weights(len(parts))
        ndcg = _mean_ndcg(weights, trial, data, mask, self.n_negatives, generator)
        found = {"search_results_": {"weights": weights, "score": ndcg}}
        return weights[ndcg.argmax()], trial, found

    def _check_weights(self):
        if not isinstance(self.weights, str):
            return super()._check_weights()
        for name, part in self.estimators:
            federation = getattr(part, "federation", None)
            if getattr(federation, "central_dp", None) or getattr(federation, "local_dp", None):
                raise ValueError(
                    'weights="search" chooses weights by held-out rows, and the privacy of '
                    f"{name!r} does not cover that choice; give the weights."
                )

    def _score_all(self, users):
        return self._weighted_sum(lambda model: _standardised(model, users))

    def _score_pairs(self, users, items):
        scores = np.zeros(len(users))
        distinct, places = np.unique(users, return_inverse=True)
        order = np.argsort(places, kind="stable")
        starts = np.searchsorted(places[order], np.arange(len(distinct) + 1))
        for batch in batches(len(distinct), self.n_items_):
            rows = order[starts[batch.start] : starts[batch.stop]]
            board = self._score_all(distinct[batch])
            known = items[rows] >= 0
            rows = rows[known]
            scores[rows] = board[places[rows] - batch.start, items[rows]]
        return scores


def _standardised(model, users):
    """Return a model's scores of all items, for each user with mean 0 and standard deviation 1."""
    board = np.asarray(model.score_all(users), dtype=np.float64)
    board = board - board.mean(axis=1, keepdims=True)
    spread = board.std(axis=1, keepdims=True)
    # Scores that differ only by rounding count as equal.
    flat = spread <= RESOLUTION * np.abs(board).max(axis=1, keepdims=True, initial=0)
    return np.where(flat, 0.0, board / np.where(flat, 1.0, spread))


def _rows(data):
    """Return Interactions as arguments of `fit` and `fold_in`."""
    columns = [data.user_ids.values[data.users], data.item_ids.values[data.items]]
    if data.times is not None:
        columns.append(data.times)
    if len({column.dtype for column in columns}) == 1:
        X = np.column_stack(columns)
    else:
        # Each column keeps a type of its own.
        X = np.empty((len(data.items), len(columns)), dtype=object)
        for number, column in enumerate(columns):
            X[:, number] = column
    return {
        "X": X,
        "y": data.values,
        "clients": data.client_ids[data.clients],
        "sample_weight": data.weights,
    }


# ------------------------------------------------------------------------- search for weights


def _candidate_weights(n_parts):
    """Return all multiples of 1 / STEPS that add up to 1, shape (n_candidates, n_parts)."""
    bars = combinations(range(STEPS + n_parts - 1), n_parts - 1)
    cuts = np.array([(-1, *bar, STEPS + n_parts - 1) for bar in bars])
    return (np.diff(cuts, axis=1) - 1) / STEPS


def _held_out(data, generator):
    """Mark a random row of y > 0 of each user that has two of them."""
    likes = data.values > 0
    users = data.users
    spare = likes & (np.bincount(users, likes, data.n_users) > 1)[users]
    draws = np.where(spare, generator.uniform(size=len(spare)), -1.0)
    order = np.lexsort((draws, users))
    last = order[data.indptr[1:] - 1]
    mask = np.zeros(len(spare), dtype=bool)
    mask[last[spare[last]]] = True
    if not mask.any():
        raise ValueError(
            'weights="search" has no row to hold out, because no user has two rows of y > 0; '
            "give weights."
        )
    return mask


def _mean_ndcg(weights, parts, data, mask, n_negatives, generator):
    """Return the mean NDCG@K of the held-out rows under each of the weights, (n_candidates,)."""
    users, items = data.users[mask], data.items[mask]
    totals = np.zeros(len(weights))
    for batch in batches(len(users), data.n_items * len(parts)):
        rows = np.arange(len(users[batch]))
        # The items without any row of the users, held out or not; of these a sample.
        others = np.ones((len(rows), data.n_items), dtype=bool)
        for row, user in enumerate(users[batch]):
            others[row, data.items[data.indptr[user] : data.indptr[user + 1]]] = False
        if n_negatives is not None and n_negatives < data.n_items:
            draws = np.where(others, generator.uniform(size=others.shape), 2.0)
            bound = np.partition(draws, n_negatives - 1, axis=1)[:, [n_negatives - 1]]
            others &= draws <= bound
        boards = np.stack([_standardised(part._model(), users[batch]) for part in parts])
        for candidate, one in enumerate(weights):
            board = np.tensordot(one, boards, 1)
            own = board[rows, items[batch]][:, None]
            ahead = ((board > own) & others).sum(axis=1)
            place = ahead + ((board == own) & others).sum(axis=1) / 2
            totals[candidate] += np.where(place < K, 1 / np.log2(place + 2), 0).sum()
    return totals / len(users)
