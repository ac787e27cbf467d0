"""Held-out rows, ranked by the scores of any fitted recommender, of this package or another.

Rows are ranked among the whole catalogue, or among negatives, drawn or given.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from fedrecsk._utils.given import check_given, check_numbers
from fedrecsk._utils.sklearn_compat import check_sample_weight, safe_indexing
from fedrecsk._utils.user_warnings import warn
from fedrecsk.data._mistakes import check_order
from fedrecsk.data.ids import Ids, id_array
from fedrecsk.data.interactions import as_table, encode, id_columns, shape_of_ids
from fedrecsk.metrics._ranking import Ranking, ranking_kernels

# With a smaller share of known users, or items, the test rows are probably wrong.
FEW = 0.05
# Gains above this are scaled down.
LARGE = 1e100
# Published files of negatives contain a few rated items, and test rows a few repetitions; larger
# shares are mistakes.
TOLERATED_SHARE = 0.01
FITTED = (
    "The model was fitted to the test rows, so this does not measure prediction. Evaluate held-out "
    "rows: see fedrecsk.model_selection."
)
REPEATED = (
    "{} repeat a pair of user and item, and NDCG counts a pair as often as it occurs; drop "
    "repeated rows to count each pair once."
)
# Items that one call of the kernel looks through, so that it ends within a second.
ITEMS_PER_CALL = 2**27
PEERS = (
    "To be ranked, a model of another package needs predict, and either X_train (its training "
    "rows; compare passes them) or the attributes item_ids_, user_ids_ and interactions_ (a "
    "sparse matrix of users by items)."
)


@dataclass(frozen=True)
class HeldOut:
    """Test rows of all users who have at least one relevant row."""

    user_ids: Ids
    item_ids: Ids  # all items of the test rows, known to the recommender or not
    users: np.ndarray  # the recommender's codes, -1 for unknown users
    indptr: np.ndarray  # rows of each user
    own_items: np.ndarray  # of each row, as a code of `item_ids`
    items: np.ndarray  # of each row, as the recommender's code or -1
    relevant: np.ndarray  # of each row, bool
    weights: np.ndarray  # of each row
    share_repeated: float  # of the rows that were given, those of a pair that an earlier row has

    @property
    def n_users(self):
        return len(self.users)

    @property
    def n_rows(self):
        """Return the number of rows of each user."""
        return np.diff(self.indptr)


def of_codes(
    rows: Any, places: NDArray[np.int64], threshold: float | None = None
) -> tuple[NDArray[np.int64], HeldOut]:
    """Return the users who have a relevant row, and the rows of these users, user by user.

    `rows` has `users` (numbers), `items` (codes, -1: unknown), `values`, `weights`, `n_users`,
    `n_items` and `names` (ids of the users, or None); `places` are the users' codes in a model, -1
    for unknown users.
    """
    names = np.arange(rows.n_users) if rows.names is None else rows.names
    ids = Ids(names, "user ids"), Ids(np.arange(rows.n_items), "item ids")
    return _with_relevant_rows(rows, threshold, ids, places, rows.items)


def _with_relevant_rows(rows, threshold, ids, users, items, share_repeated=0.0):
    """Return users who have a relevant row, and their rows, by codes of users and of each row."""
    relevant = rows.values > 0 if threshold is None else rows.values >= threshold
    kept = np.bincount(rows.users[relevant], minlength=rows.n_users) > 0
    counts, mask = np.bincount(rows.users, minlength=rows.n_users), kept[rows.users]
    user_ids, item_ids = ids
    held_out = HeldOut(
        user_ids=Ids(user_ids.values[kept], user_ids.name),
        item_ids=item_ids,
        users=users[kept],
        indptr=np.concatenate([[0], np.cumsum(counts[kept])]),
        own_items=rows.items[mask],
        items=items[mask],
        relevant=relevant[mask],
        weights=rows.weights[mask],
        share_repeated=share_repeated,
    )
    return np.flatnonzero(kept), held_out


@np.errstate(invalid="ignore", over="ignore")
def check_rows(
    X: Any, y: Any = None, sample_weight: Any = None
) -> tuple[Any, NDArray[np.float64] | None, Any]:
    """Return X as a table, y and the weights as arrays or None; raise if they are invalid."""
    table = as_table(X)
    options = {"dtype": None, "ensure_all_finite": False, "ensure_min_features": 2}
    # Later columns of X may hold anything; its ids are checked where they are encoded.
    if hasattr(table, "columns"):
        check_array(shape_of_ids(table), **options)
    else:
        table = check_array(table, **options)
    check_numbers(y, "y")
    if y is not None:
        y = check_array(column_or_1d(y), ensure_2d=False, dtype=np.float64, input_name="y")
        check_consistent_length(table, y)
    if sample_weight is not None:
        sample_weight = check_sample_weight(sample_weight, table)
    return table, y, sample_weight


def hold_out(model, X, y, sample_weight, threshold=None, new_roles=()):
    """Encode test rows for `model`; raise if none is relevant or the columns are swapped."""
    test = encode(X, y, sample_weight=sample_weight)
    ids = test.user_ids, test.item_ids
    users, codes = np.full(test.n_users, -1), model.item_ids.codes(test.item_ids.values)
    if model.user_ids is not None:
        users = model.user_ids.codes(test.user_ids.values)
    n_given = X.shape[0] if sample_weight is None else np.count_nonzero(sample_weight)
    share_repeated = 1 - len(test.items) / n_given
    items = codes[test.items]
    kept, held_out = _with_relevant_rows(test, threshold, ids, users, items, share_repeated)
    if not len(kept):
        needed = "y > 0" if threshold is None else f"y >= {threshold:g}"
        raise ValueError(
            f"No test row is relevant ({needed}), so there is nothing to evaluate; check y, or "
            "change the threshold."
        )
    user_ids, users, item_ids = held_out.user_ids.values, held_out.users, test.item_ids.values
    if model.user_ids is not None:
        check_order(user_ids, item_ids, (users, codes), (model.user_ids, model.item_ids))
    warn_if_unknown(model, user_ids, users, item_ids, codes, new_roles)
    return held_out


def warn_if_unknown(
    model: Any, user_ids: Any, users: Any, item_ids: Any, items: Any, new_roles: Sequence[str] = ()
) -> None:
    """Warn if the model knows hardly any test user or test item, unless they are to be new."""
    if model.user_ids is None:
        return
    for role, known, asked, codes, effect in (
        ("user", model.user_ids, user_ids, users, "the rest are treated as one unknown user"),
        ("item", model.item_ids, item_ids, items, "the rest have the same score"),
    ):
        if are_known(codes) or role in new_roles:
            continue
        n_known, n_asked = (len(np.unique(one)) for one in (asked[codes >= 0], asked))
        warn(
            f"The model knows {n_known} of the {n_asked} {role}s in the test rows, and {effect}. "
            "Unless you want to measure that, use a splitter that leaves every user rows for "
            "training (fedrecsk.model_selection), and check ids and columns: X has "
            f"{role} {asked[codes < 0][0]!s}, and the model knows {role} {known.values[0]!s}."
        )


def are_known(codes: np.ndarray) -> bool:
    """Return whether more than a few codes are those of known ids."""
    return len(codes) == 0 or float(np.mean(codes >= 0)) > FEW


def warn_of_pairs(model: Any, held_out: HeldOut, *, on_purpose: bool, hides_seen: bool) -> None:
    """Warn of test pairs that are training pairs, or that occur in several test rows.

    Scores of training rows themselves may be on purpose.
    """
    relevant = held_out.relevant
    users = np.repeat(held_out.users, held_out.n_rows)[relevant]
    share = _n_seen(model, users, held_out.items[relevant]) / len(users)
    if share == 1 and not on_purpose:
        warn(FITTED)
    if share == 1:
        return
    if hides_seen and share > TOLERATED_SHARE:
        warn(
            f"{share:.0%} of the relevant test pairs are training pairs too. They are ranked "
            "without the other items that users have seen, so scores are too good; drop their "
            "rows, or rank all items with exclude_seen=False."
        )
    if held_out.share_repeated > TOLERATED_SHARE:
        warn(REPEATED.format(f"{held_out.share_repeated:.0%} of the test rows"))


def warn_if_seen(model: Any, users: NDArray[np.int64], items: NDArray[np.int64]) -> None:
    """Warn if a model of this package was fitted to pairs of codes, -1 for unknown."""
    share = _n_seen(adapt(model), users, items) / len(users)
    if share == 1:
        warn(FITTED)
    elif share > TOLERATED_SHARE:
        warn(
            f"{share:.0%} of the test pairs are training pairs too, so scores are too good; drop "
            "their rows."
        )


def _n_seen(model, users, items):
    """Count the pairs of codes, -1 for unknown, that the model was fitted to."""
    if model.seen is None:
        return 0
    known = (users >= 0) & (items >= 0)
    pairs = np.ones(known.sum()), (users[known], items[known])
    return int(sparse.csr_array(pairs, shape=model.seen.shape).multiply(model.seen).sum())


# ----------------------------------------------------------------------------- ranking


def rank(model, held_out, spec, *, negatives=None, exclude_seen=True, ranked=None):
    """Rank each user's rows among the catalogue, `ranked` items, or negatives (indptr, codes)."""
    n_users, n_items = held_out.n_users, len(model.item_ids)
    if negatives is None:
        n_candidates = np.full(n_users, n_items)
    else:
        n_candidates = np.diff(negatives[0]) + held_out.n_rows
    n_ranked = np.empty(n_users, dtype=np.int64)
    ahead, tied = np.empty((2, len(held_out.items)), dtype=np.int64)
    lists = np.empty((n_users, spec.n_listed), dtype=np.int32)
    for batch in _batches(model.n_scored(n_candidates), model.scores_per_batch):
        indptr = held_out.indptr[batch.start : batch.stop + 1]
        rows = slice(indptr[0], indptr[-1])
        indptr = indptr - indptr[0]
        if negatives is None:
            board = model.board(held_out.users[batch], held_out.user_ids.values[batch])
            if exclude_seen and model.seen is not None:
                _hide_seen(board, held_out.users[batch], model.seen, indptr, held_out.items[rows])
            if ranked is not None:
                board[:, ~ranked] = -np.inf
            if spec.n_listed:
                best = top_k(board, spec.n_listed)
                found = np.isfinite(np.take_along_axis(board, best, axis=1))
                lists[batch] = np.where(found, best, -1)
            scores, starts = board.ravel(), np.arange(len(board) + 1) * n_items
            positions = held_out.items[rows]
        else:
            scores, starts, positions = _score_candidates(model, held_out, negatives, batch)
        chosen = np.where(held_out.relevant[rows], positions, -1)
        broken = ranking_kernels.places(
            scores, starts, indptr, chosen, spec.depth, ahead[rows], tied[rows]
        )
        if broken >= 0:
            user = held_out.user_ids.values[batch][broken]
            raise ValueError(
                f"The model's scores for user {user!s} contain NaN, so there is no ranking; did "
                "the fit diverge?"
            )
        if spec.whole:
            n_ranked[batch] = np.add.reduceat(scores > -np.inf, starts[:-1], dtype=np.int64)
    relevant = held_out.relevant
    gains = held_out.weights[relevant]
    if gains.max() > LARGE:
        # NDCG is a ratio, and sums of such gains would be infinite.
        gains = gains / gains.max()
    return Ranking(
        spec=spec,
        indptr=np.concatenate([[0], np.cumsum(relevant)])[held_out.indptr],
        ahead=ahead[relevant],
        tied=tied[relevant],
        gains=gains,
        n_candidates=n_ranked,
        lists=lists,
        seen=model.seen,
        users=held_out.user_ids.values,
    )


def _hide_seen(board, users, seen, indptr, items):
    """Set the scores of each user's seen items to -inf, in place, but for those under test."""
    known = np.flatnonzero(users >= 0)
    rows, columns = seen[users[known]].nonzero()
    tested = np.repeat(np.arange(len(users)), np.diff(indptr))[items >= 0], items[items >= 0]
    scores = board[tested]
    board[known[rows], columns] = -np.inf
    board[tested] = scores


def _score_candidates(model, held_out, negatives, batch):
    """Score each user's rows, then its negatives; return starts and the rows' positions too."""
    indptr = held_out.indptr[batch.start : batch.stop + 1]
    negative_indptr = negatives[0][batch.start : batch.stop + 1]
    lengths = np.stack([np.diff(indptr), np.diff(negative_indptr)], axis=1)
    n_candidates = lengths.sum(axis=1)
    own = np.repeat(np.tile([True, False], len(lengths)), lengths.ravel())
    items = np.empty(len(own), dtype=np.int64)
    items[own] = held_out.items[indptr[0] : indptr[-1]]
    items[~own] = negatives[1][negative_indptr[0] : negative_indptr[-1]]
    users = np.repeat(np.arange(len(lengths)), n_candidates)
    scores = np.full(len(items), -np.inf)
    known = items >= 0
    scores[known] = model.pairs(
        held_out.users[batch], held_out.user_ids.values[batch], users[known], items[known]
    )
    starts = np.concatenate([[0], np.cumsum(n_candidates)])
    positions = np.flatnonzero(own) - starts[users[own]]
    return scores, starts, positions


def _batches(n_scores, scores_per_batch):
    """Return slices of users with about as many scores each."""
    part = np.cumsum(n_scores) // scores_per_batch
    cuts = [0, *(np.flatnonzero(np.diff(part)) + 1), len(n_scores)]
    return [slice(int(a), int(b)) for a, b in itertools.pairwise(cuts)]


def top_k(scores: np.ndarray, k: int) -> NDArray[np.int64]:
    """Return columns of the k largest scores of each row, ties by order; not finite ones last."""
    if 16 * k > scores.shape[1]:
        finite = np.where(np.isfinite(scores), scores, -np.inf)
        return np.argsort(-finite, axis=1, kind="stable")[:, :k]
    if scores.dtype.kind != "f":
        scores = scores.astype(np.float64)
    columns = np.empty((len(scores), k), dtype=np.int64)
    ranking_kernels.best(np.ascontiguousarray(scores), np.empty(k, scores.dtype), columns)
    return columns


# ----------------------------------------------------------------------------- negatives


def negatives_by(uniform, model, held_out):
    """Return indptr and codes of items, neither seen nor under test, by draws in [0, 1)."""
    n_items, n_negatives = len(model.item_ids), uniform.shape[1]
    items = np.empty(uniform.shape, dtype=np.int64)
    left, taken = np.empty(n_items, dtype=np.int64), np.empty(n_items, dtype=bool)
    n_each = max(1, ITEMS_PER_CALL // n_items)
    for start in range(0, held_out.n_users, n_each):
        batch = slice(start, start + n_each)
        row, n_left = ranking_kernels.draw(
            uniform[batch],
            held_out.users[batch],
            model.seen.indptr,
            model.seen.indices,
            held_out.indptr[start : start + n_each + 1],
            held_out.items,
            left,
            taken,
            items[batch],
        )
        if row >= 0:
            user = held_out.user_ids.values[start + row]
            raise ValueError(
                f"n_negatives={n_negatives}, but user {user!s} has only {n_left} items that are "
                "neither seen in fit nor in the test rows; lower n_negatives."
            )
    return np.arange(held_out.n_users + 1) * n_negatives, items.ravel()


def read_negatives(negatives):
    """Return the users and the items of given negatives, one pair each."""
    check_given(negatives, "negatives")
    if isinstance(negatives, Mapping):
        lists = [id_array(items, "negatives") for items in negatives.values()]
        users = np.repeat(id_array(list(negatives), "users of negatives"), list(map(len, lists)))
        items = np.concatenate(lists) if lists else np.array([])
    else:
        table = negatives if hasattr(negatives, "columns") else np.asarray(as_table(negatives))
        if table.ndim != 2 or table.shape[1] < 2:
            raise ValueError(
                "negatives must be a mapping from user to items, or a table whose rows are a user "
                f"and one or more negatives; got shape {table.shape}."
            )
        width = table.shape[1] - 1
        users = np.repeat(id_array(safe_indexing(table, 0, axis=1), "users of negatives"), width)
        columns = safe_indexing(table, list(range(1, width + 1)), axis=1)
        items = id_array(np.asarray(columns).ravel(), "negatives")
    if len(users) == 0:
        raise ValueError("negatives is empty; pass at least one for each user of X.")
    return users, items


def transform_negatives(users, items, X, transformers):
    """Return the pairs as a pipeline's recommender sees them, of users in X only."""
    if not transformers:
        return users, items
    known, first = np.unique(id_columns(X)[0], return_index=True)
    inside = np.isin(users, known)
    users, items = users[inside], items[inside]
    # Each pair goes through the transformers as a row of X of the same user with another item.
    rows = safe_indexing(X, first[np.searchsorted(known, users)], axis=0)
    if hasattr(rows, "columns"):
        table = rows.copy()
        table[table.columns[1]] = items
    else:
        table = rows.astype(np.result_type(rows, items))
        table[:, 1] = items
    for transformer in transformers:
        table = transformer.transform(table)
    return id_columns(table)


def group_negatives(model, held_out, users, items):
    """Group given negatives by test user, each item once; return indptr and item codes."""
    rows = held_out.user_ids.codes(users)
    asked = rows >= 0
    rows, items = rows[asked], items[asked]
    missing = np.bincount(rows, minlength=held_out.n_users) == 0
    if missing.any():
        raise ValueError(
            f"User {held_out.user_ids.values[missing.argmax()]!s} is in X but has no "
            "negatives; add some, or leave the user's rows out."
        )
    n_items = len(held_out.item_ids)
    own = np.repeat(np.arange(held_out.n_users), held_out.n_rows) * n_items + held_out.own_items
    codes = held_out.item_ids.codes(items)
    tested = (codes >= 0) & np.isin(rows * n_items + codes, own)
    n_codes = len(model.item_ids) + 1
    pairs = np.sort((rows * n_codes + model.item_ids.codes(items) + 1)[~tested])
    rows, codes = np.divmod(pairs[np.diff(pairs, prepend=-1) > 0], n_codes)
    indptr = np.searchsorted(rows, np.arange(held_out.n_users + 1))
    if not codes.any():
        warn(
            "The model knows none of the given negatives, so test items have nothing to be ranked "
            f"among. Give item ids as in fit, such as {model.item_ids.values[0]!s}."
        )
    n_rated = tested.sum() + _n_seen(model, held_out.users[rows], codes - 1)
    if n_rated > TOLERATED_SHARE * len(items):
        warn(
            f"{n_rated} of the {len(items)} given negatives are not negatives: their users have "
            "seen them in fit, or they are in the test rows."
        )
    return indptr, codes - 1


# ----------------------------------------------------------------------------- recommenders


def unwrap(estimator: Any) -> tuple[list[Any], Any]:
    """Return the transformers of pipelines and searches, and the recommender inside."""
    transformers, inner = [], estimator
    while True:
        check_is_fitted(inner)
        if isinstance(inner, Pipeline):
            *first, (_, inner) = inner.steps
            transformers += [step for _, step in first if hasattr(step, "transform")]
        elif hasattr(inner, "best_estimator_"):
            inner = inner.best_estimator_
        elif isinstance(inner, TransformedTargetRegressor):
            # It rescales ratings, which does not change their order.
            inner = cast(Any, inner.regressor_)
        else:
            break
    missing = [name for name in ("predict", "item_ids_") if not hasattr(inner, name)]
    if missing:
        raise TypeError(
            f"{type(inner).__name__} is not a recommender: it has no {' and no '.join(missing)}. "
            f"{PEERS}"
        )
    return transformers, inner


def unwrap_and_adapt(estimator, X_train=None):
    """Return transformers, recommender and adapted model; `X_train` says what users have seen."""
    if X_train is not None and not hasattr(estimator, "predict"):
        raise TypeError(f"{type(estimator).__name__} cannot be ranked: it has no predict. {PEERS}")
    try:
        transformers, recommender = unwrap(estimator)
    except (NotFittedError, TypeError):
        # To scikit-learn, a model without attributes that end in "_" is not fitted.
        if X_train is None:
            raise
    else:
        model = adapt(recommender)
        if X_train is None or model.seen is not None:
            return transformers, recommender, model
    return [], estimator, _Plain(estimator, X_train)


def adapt(recommender: Any) -> Any:
    """Adapt a recommender: by its codes if it is of this package, else by `predict`."""
    if not (hasattr(recommender, "_model") and hasattr(recommender, "_seen")):
        return _Peer(recommender)
    known = recommender._items, recommender._users
    return Own(recommender._model(), recommender._seen, *known)


class Own:
    """A model of this package, by its codes; scores are those before the response."""

    scores_per_batch = 2**22

    def __init__(self, model, seen, item_ids, user_ids=None):
        self._model, self.item_ids, self.user_ids = model, item_ids, user_ids
        self.seen = _ones(*seen, model.n_items)

    def n_scored(self, n_candidates):
        """Return the number of scores to compute for each user's candidates."""
        return np.full_like(n_candidates, len(self.item_ids))

    def board(self, users, ids):
        """Return scores of all items, which the caller may overwrite, (n_users, n_items)."""
        return np.ascontiguousarray(self._model.score_all(users))

    def pairs(self, users, ids, rows, items):
        """Return scores of pairs: position in `users` and item code of each."""
        return self._model.score_all(users)[rows, items]


class _Peer:
    """Any recommender with `predict`, `item_ids_` and perhaps `user_ids_` and `interactions_`."""

    scores_per_batch = 2**20

    def __init__(self, model):
        self._model = model
        self._columns = getattr(model, "feature_names_in_", None)
        item_order = np.argsort(model.item_ids_, kind="stable")
        self.item_ids = Ids(np.asarray(model.item_ids_)[item_order], "item ids")
        self.user_ids = self.seen = None
        if hasattr(model, "user_ids_"):
            self.user_ids = Ids(np.asarray(model.user_ids_), "user ids")
            if sparse.issparse(getattr(model, "interactions_", None)):
                code = np.empty_like(item_order)
                code[item_order] = np.arange(len(item_order))
                matrix = sparse.csr_array(model.interactions_)
                self.seen = _ones(matrix.indptr, code[matrix.indices], len(self.item_ids))
                self.seen.sum_duplicates()

    def n_scored(self, n_candidates):
        return n_candidates

    def board(self, users, ids):
        n_items = len(self.item_ids)
        rows = np.repeat(np.arange(len(ids)), n_items)
        items = np.tile(np.arange(n_items), len(ids))
        return self.pairs(users, ids, rows, items).reshape(len(ids), n_items)

    def pairs(self, users, ids, rows, items):
        columns = ids[rows], self.item_ids.values[items]
        scores = np.array(self._model.predict(self._table(*columns)))
        return scores if scores.dtype.kind == "f" else scores.astype(np.float64)

    def _table(self, users, items):
        if self._columns is not None:
            return pd.DataFrame({self._columns[0]: users, self._columns[1]: items})
        return table_of(users, items)


def table_of(users: NDArray[Any], items: NDArray[Any]) -> NDArray[Any]:
    """Return rows of a user and its items; of objects if their ids are of two kinds."""
    if users.dtype.kind != items.dtype.kind:
        users, items = users.astype(object), items.astype(object)
    return np.column_stack([users, items])


class _Plain(_Peer):
    """Any model with `predict`; catalogue and seen items are those of its training rows."""

    def __init__(self, model, X_train):
        data = encode(check_rows(X_train)[0])
        self._model = model
        self._columns = getattr(X_train, "columns", None)
        self.item_ids, self.user_ids = data.item_ids, data.user_ids
        self.seen = _ones(data.indptr, data.items, len(data.item_ids))


def _ones(indptr, items, n_items):
    ones = np.ones(len(items), dtype=np.int32)
    return sparse.csr_array((ones, items, indptr), (len(indptr) - 1, n_items))
