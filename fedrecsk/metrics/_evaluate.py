"""Ranking metrics of a fitted recommender on held-out rows, and the exposure of an item."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from fedrecsk._utils.constraints import AtLeast1, Finite, Seed
from fedrecsk._utils.parameters import limits_of, suggest
from fedrecsk._utils.sklearn_compat import (
    check_feature_names,
    safe_indexing,
    validate_parameter_constraints,
)
from fedrecsk._utils.user_warnings import warn
from fedrecsk.data.ids import id_array
from fedrecsk.data.interactions import id_columns
from fedrecsk.metrics._held_out import (
    PEERS,
    Own,
    adapt,
    check_rows,
    group_negatives,
    hold_out,
    negatives_by,
    of_codes,
    rank,
    read_negatives,
    transform_negatives,
    unwrap,
    unwrap_and_adapt,
    warn_of_pairs,
)
from fedrecsk.metrics._ranking import (
    AT_PLACES,
    OF_LISTS,
    Ranking,
    RankingSpec,
    check_cutoffs,
    check_metrics,
    key_of,
    value,
)

Which = Literal["all", "known", "new"]


@suggest
def evaluate_ranking(
    estimator: object,
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    metrics: str | Sequence[str] = ("ndcg", "hit_rate"),
    k: int | Sequence[int] = 10,
    n_negatives: int | None = None,
    negatives: ArrayLike | Mapping[Any, ArrayLike] | None = None,
    exclude_seen: bool = True,
    threshold: float | None = None,
    items: Which = "all",
    users: Which = "all",
    random_state: int | np.random.RandomState | None = None,
    sample_weight: ArrayLike | None = None,
    X_train: ArrayLike | None = None,
) -> dict[str, float]:
    """Evaluate the rankings of a fitted recommender by one or more metrics.

    For each user of X, candidates are ranked by the model's scores: either the whole catalogue,
    or the user's rows of X among sampled negatives. The result is the mean over all users with
    at least one relevant row. Tied items count as if they were in random order: each metric is
    its expectation over all orders. Several metrics and cutoffs cost little more than one.

    Parameters
    ----------
    estimator : object
        A fitted recommender, or a Pipeline or search object that ends in one; X is then
        transformed by the pipeline's earlier steps. A model of another package needs `predict`;
        see `X_train` and Notes.
    X : array-like or DataFrame of shape (n_samples, n_features >= 2)
        Test rows; column 0 is the user's id, column 1 the item's id. Their items are candidates
        even if the user has seen them in fit. Items that the model does not know are never found,
        but count as relevant. Unknown users are ranked by the model's predictions for them.
    y : array-like of shape (n_samples,), default=None
        Ratings: rows that reach the `threshold` are relevant. If None, all rows are.
    metrics : str or sequence of str, default=("ndcg", "hit_rate")
        Names of the metrics:

        - "ndcg", "hit_rate", "precision", "recall", "mrr" and "map": see :func:`ndcg_at_k`,
          :func:`hit_rate_at_k`, :func:`precision_at_k`, :func:`recall_at_k`,
          :func:`reciprocal_rank_at_k` and :func:`average_precision_at_k`.
        - "auc": see :func:`user_auc`. It has no cutoff, and its key is "auc".
        - "coverage": share of the catalogue that is among the first k items of at least one test
          user.
        - "novelty": mean self-information of a user's first k items, in bits: log2(n_users / n) for
          an item that n of the n_users users in fit have. Items without users count as n = 1.
        - "diversity": mean dissimilarity of all pairs of a user's first k items, 1 - cosine, where
          an item is represented by the set of users who have it in fit.

        The last three describe the recommendations themselves, whether or not their items are
        relevant. Recommendations are taken from the whole catalogue, with ties resolved by the
        order of `item_ids_` as in `recommend`.
    k : int or sequence of int, default=10
        Cutoffs.
    n_negatives : int, default=None
        Number of negatives per user: items that the user has neither in X nor seen in fit, drawn
        without replacement. The user's rows of X are ranked among these. If None, among the whole
        catalogue.
    negatives : mapping or table, default=None
        Given negatives: a mapping from user to items, or an array-like or DataFrame whose rows
        are a user followed by one or more items (pairs, or a file of the usual leave-one-out
        protocol). Each candidate is ranked once, even if it is given twice or is in X too, and
        even if the user has seen it in fit. Unknown items and users that are not in X are
        ignored.
    exclude_seen : bool, default=True
        Whether to leave out items that the user has seen in fit, when the whole catalogue is
        ranked.
    threshold : float, default=None
        The least y of a relevant row, as in :func:`~fedrecsk.preprocessing.to_implicit`: 4 makes
        fours and fives of a scale of 1 to 5 stars relevant. If None, all y above 0 are.
    items : {"all", "known", "new"}, default="all"
        "known": only items that some user has in fit are tested and ranked. "new": only the others,
        which a model knows by its catalogue `items`, by `item_features` or by `add_items`. Not
        among negatives.
    users : {"all", "known", "new"}, default="all"
        "known": only users with rows in fit are tested. "new": only the others.
    random_state : int, RandomState instance or None, default=None
        Seed for drawing negatives. With an int, the same X and the same training rows give the
        same negatives, whatever the order of the rows.
    sample_weight : array-like of shape (n_samples,), default=None
        Weights of the rows, by which NDCG multiplies their gains. The other metrics ignore weights,
        except that rows of weight zero count as absent. Repeated (user, item) rows are merged as
        in `fit`.
    X_train : array-like or DataFrame of shape (n_samples, n_features >= 2), default=None
        Training rows, for a model of another package that does not expose what it was fitted to.
        They define the catalogue and what users have seen.

    Returns
    -------
    scores : dict of str to float
        One entry for each metric and cutoff, ``"ndcg@10"`` for example.

    Raises
    ------
    NotFittedError
        If `estimator` is not fitted.
    TypeError
        If `estimator` is not a recommender, or has no `predict`.
    ValueError
        If a metric is unknown or has no meaning among negatives, k is below 1 or above the
        number of candidates, no row is relevant, lengths differ, a score is NaN, both kinds of
        negatives are requested, the columns of X are swapped, a user has fewer than
        `n_negatives` items left or none in `negatives`, or what users have seen is not known.

    Warns
    -----
    UserWarning
        If more than 1% of the given negatives are in X or were seen in fit, of the relevant pairs
        of X are training pairs, or of its rows repeat a pair; if the model knows none of the
        negatives, none of the users of X or none of its items; or if the model was fitted to the
        rows of X.

    Notes
    -----
    A model of another package is ranked by ``predict(X)``, called with all candidates as rows of
    two columns, (user, item), in a DataFrame if it was fitted to one. Pass `X_train`, or give the
    model the attributes `item_ids_`, `user_ids_` and `interactions_` (a sparse matrix of shape
    (n_users, n_items)), with which it can be scored inside a search too. With `item_ids_` only,
    pass ``exclude_seen=False`` or `negatives`.

    Examples
    --------
    >>> from fedrecsk import Popularity
    >>> from fedrecsk.metrics import evaluate_ranking
    >>> X = [["ann", "alien"], ["ann", "brazil"], ["bob", "alien"], ["bob", "clue"]]
    >>> model = Popularity().fit(X)
    >>> evaluate_ranking(model, [["ann", "clue"], ["zoe", "brazil"]], k=[1, 2])
    {'ndcg@1': 0.5, 'ndcg@2': 0.657..., 'hit_rate@1': 0.5, 'hit_rate@2': 0.75}
    """
    protocol = Protocol(
        n_negatives, negatives, exclude_seen, threshold, random_state, items, users, X_train
    )
    names, cutoffs, spec = protocol.plan(metrics, k)
    ranking = protocol.rank(estimator, X, y, sample_weight, spec=spec, on_purpose=False)
    return {key_of(m, k): value(m, ranking, k) for m in names for k in cutoffs}


def catalogue_ndcg(
    model: Any, X: ArrayLike, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None
) -> float:
    """Return NDCG at 10 of a recommender of this package over its catalogue, however small."""
    adapted = adapt(model)
    held_out = hold_out(adapted, *check_rows(X, y, sample_weight))
    warn_of_pairs(adapted, held_out, on_purpose=True, hides_seen=True)
    return value("ndcg", rank(adapted, held_out, RankingSpec(10)), 10)


def values_by_user(
    model: Any,
    seen: tuple[NDArray[np.int64], NDArray[np.int64]],
    rows: Any,
    places: NDArray[np.int64],
    metrics: Sequence[tuple[str, int]],
    *,
    threshold: float | None = None,
    uniform: Callable[[NDArray[np.int64]], NDArray[np.float64]] | None = None,
) -> tuple[NDArray[np.int64], list[NDArray[np.float64]]]:
    """Return the users that have a relevant row, and their values of metrics with cutoffs.

    `rows` are of users with numbers and of items with codes (see `of_codes`), and `places` the
    users' codes in `model`, of this package, whose `seen` says where each user's items begin, and
    which these are. The catalogue is ranked, or the negatives by the draws that `uniform` returns
    for these users.
    """
    adapted = Own(model, seen, range(model.n_items))
    users, held_out = of_codes(rows, places, threshold)
    if not len(users):
        return users, [np.empty(0) for _ in metrics]
    negatives = None
    if uniform is not None:
        negatives = negatives_by(uniform(users), adapted, held_out)
    spec = RankingSpec(max(k for _, k in metrics))
    ranking = rank(adapted, held_out, spec, negatives=negatives)
    return users, [AT_PLACES[name](ranking, k) for name, k in metrics]


def exposure(
    model: object, item: float | str, users: ArrayLike | None = None, *, k: int = 10
) -> float:
    """Share of users whose first k recommendations include an item.

    Users who have the item already do not count.

    Parameters
    ----------
    model : fitted recommender
    item : int, float or str
        Id of the item.
    users : array-like of shape (n_users,), default=None
        Users to recommend to, for example the honest ones. If None, all users of fit.
    k : int, default=10
        Number of recommendations.

    Returns
    -------
    exposure : float
        In [0, 1].

    Raises
    ------
    ValueError
        If the item is unknown to the model, k is below 1, there are no users, or all of them have
        the item already.

    Warns
    -----
    UserWarning
        If the model knows none of the users.

    Examples
    --------
    >>> from fedrecsk import Popularity
    >>> from fedrecsk.metrics import exposure
    >>> X = [[1, "a"], [2, "a"], [2, "b"], [3, "c"]]
    >>> exposure(Popularity().fit(X), "a", k=1)
    1.0
    """
    (k,) = check_cutoffs([k])
    _, model = unwrap(model)
    (code,) = model._items.codes(id_array([item], "item"))
    if code < 0:
        raise ValueError(f"Item {item!r} is unknown to the model; name one of its item_ids_.")
    users = id_array(model.user_ids_ if users is None else users, "users")
    if len(users) == 0:
        raise ValueError("users is empty; give at least one, or None for all users of fit.")
    if (model._users.codes(users) < 0).all():
        warn(
            f"The model knows none of these {len(users)} users, so all of them get the "
            "recommendations of an unknown user."
        )
    indptr, items = model._seen
    owners = np.searchsorted(indptr, np.flatnonzero(items == code), side="right") - 1
    without = users[~np.isin(model._users.codes(users), owners)]
    if len(without) == 0:
        raise ValueError(f"All {len(users)} users have item {item!r} already; pass other users.")
    items, _ = model.recommend(without, k)
    return float((items == item).any(axis=1).mean())


@dataclass(frozen=True, eq=False)
class Protocol:
    """Rank held-out rows by the options of :func:`evaluate_ranking`."""

    n_negatives: AtLeast1 | None = None
    negatives: object = None
    exclude_seen: bool = True
    threshold: Finite | None = None
    random_state: Seed = None
    items: Which = "all"
    users: Which = "all"
    X_train: object = None

    def __post_init__(self) -> None:
        validate_parameter_constraints(
            limits_of(Protocol), vars(self), caller_name="evaluate_ranking"
        )
        if self.n_negatives is not None and self.negatives is not None:
            raise ValueError("n_negatives draws negatives and negatives gives them; pass only one.")
        if self.items != "all" and (self.n_negatives is not None or self.negatives is not None):
            raise ValueError(
                f"items={self.items!r} ranks all these items; leave out n_negatives and negatives."
            )

    @property
    def key(self) -> tuple[Any, ...]:
        """Return the key by which equal protocols share one ranking."""
        options = vars(self).values()
        return tuple(one if isinstance(one, str | Real | None) else id(one) for one in options)

    @property
    def hides_seen(self) -> bool:
        """Return whether a user's other training items are not ranked."""
        return self.exclude_seen or self.n_negatives is not None or self.negatives is not None

    def plan(self, metrics: Any, k: Any, name: str = "metrics") -> tuple[list, list, RankingSpec]:
        """Return names, cutoffs and what they need; raise if they make no sense here."""
        names, cutoffs = check_metrics(metrics, name), check_cutoffs(k)
        of_lists = [metric for metric in names if metric in OF_LISTS]
        if of_lists and (self.n_negatives is not None or self.negatives is not None):
            raise ValueError(
                f"{of_lists[0]!r} is about recommendations from the whole catalogue and has no "
                "meaning among negatives; leave out n_negatives and negatives."
            )
        if "diversity" in names and min(cutoffs) < 2:
            raise ValueError("'diversity' compares pairs of items, so it needs k of at least 2.")
        cutoff = max(cutoffs) if {*names} != {"auc"} else 1
        return names, cutoffs, RankingSpec(cutoff, "auc" in names, cutoff if of_lists else 0)

    def rank(
        self,
        estimator: Any,
        X: ArrayLike,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        spec: RankingSpec,
        on_purpose: bool = True,
    ) -> Ranking:
        """Rank the rows, as exactly as the specification needs.

        With `on_purpose`, they may be the training rows.
        """
        transformers, recommender, model = unwrap_and_adapt(estimator, self.X_train)
        X, y, sample_weight = check_rows(X, y, sample_weight)
        given = None
        if self.negatives is not None:
            given = transform_negatives(*read_negatives(self.negatives), X, transformers)
        for transformer in transformers:
            X = transformer.transform(X)
        if hasattr(X, "columns") and hasattr(recommender, "feature_names_in_"):
            check_feature_names(recommender, X, reset=False)
        ranked = None
        if self.items != "all" or self.users != "all":
            _check_seen_is_known(model, recommender)
            ranked, rows = self._group(model, X)
            X = safe_indexing(X, rows)
            y = None if y is None else y[rows]
            sample_weight = None if sample_weight is None else sample_weight[rows]
        groups = {"user": self.users, "item": self.items}
        new_roles = [role for role, which in groups.items() if which == "new"]
        held_out = hold_out(model, X, y, sample_weight, self.threshold, new_roles)
        if self.X_train is None or not on_purpose:
            # `compare`, which passes the training rows, looks at the pairs of each fold once.
            warn_of_pairs(model, held_out, on_purpose=on_purpose, hides_seen=self.hides_seen)
        n_ranked = len(model.item_ids) if ranked is None else int(ranked.sum())
        _check_depth(spec.cutoff, n_ranked, "items of the catalogue")
        if self.n_negatives is not None or spec.n_listed or (given is None and self.exclude_seen):
            _check_seen_is_known(model, recommender)
        if given is None and self.n_negatives is None:
            return rank(model, held_out, spec, exclude_seen=self.exclude_seen, ranked=ranked)
        if given is None:
            shape = held_out.n_users, self.n_negatives
            uniform = check_random_state(self.random_state).random_sample(shape)
            negatives = negatives_by(uniform, model, held_out)
        else:
            negatives = group_negatives(model, held_out, *given)
        n_candidates = np.diff(negatives[0]) + held_out.n_rows
        user = held_out.user_ids.values[n_candidates.argmin()]
        _check_depth(spec.cutoff, n_candidates.min(), f"candidates of user {user!s}")
        return rank(model, held_out, spec, negatives=negatives)

    def _group(self, model, X):
        """Return which items of the catalogue are ranked, and the rows of X that are tested."""
        n_items = len(model.item_ids)
        counts = np.diff(model.seen.indptr), np.bincount(model.seen.indices, minlength=n_items)
        known = model.user_ids.values[counts[0] > 0], model.item_ids.values[counts[1] > 0]
        rows = np.ones(len(id_columns(X)[0]), dtype=bool)
        for which, ids, own in zip((self.users, self.items), id_columns(X), known, strict=True):
            if which != "all":
                rows &= np.isin(ids, own) == (which == "known")
        if not rows.any():
            raise ValueError(
                f"No test row is of users={self.users!r} and items={self.items!r}; hold some out "
                'by UserHoldout or ColdItemHoldout, or leave both at "all".'
            )
        ranked = None if self.items == "all" else (counts[1] > 0) == (self.items == "known")
        if ranked is not None and not ranked.any():
            raise ValueError(
                "The model knows no item without training rows, so that none can be ranked; give "
                "it the new items by items= in its constructor, or by add_items(...)."
            )
        return ranked, np.flatnonzero(rows)


def _check_depth(k, n_candidates, what):
    if k > n_candidates:
        raise ValueError(f"k={k} is more than the {n_candidates} {what}; lower k.")


def _check_seen_is_known(model, recommender):
    if model.seen is None:
        raise ValueError(
            f"{type(recommender).__name__} does not expose what its users have seen. {PEERS} Or "
            "pass exclude_seen=False, or your own negatives."
        )
