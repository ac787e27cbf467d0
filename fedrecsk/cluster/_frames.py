"""Predict, recommend, score and fold in where the users are: on the workers of a Dask cluster."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NoReturn

import numpy as np
import pandas as pd
from scipy import sparse

from fedrecsk._utils.extras import require
from fedrecsk._utils.given import is_dask as is_frame
from fedrecsk.data.ids import Ids, id_array

Y, CLIENTS, WEIGHT, PART, INDEX = "_y", "_clients", "_sample_weight", "_part", "_index"
ROLES = {"y": Y, "clients": CLIENTS, "sample_weight": WEIGHT}


def check_users_are_here(model: Any) -> None:
    """Raise if a model's users live on the workers of a cluster."""
    if getattr(model, "_parts", None) is not None:
        # Scores would do without vectors that are missing.
        model.__getattr__("user_factors_")


def client_of(caller: str) -> Any:
    """Return the client of the cluster in use."""
    distributed = require("distributed", f"{caller} of a Dask DataFrame")
    try:
        return distributed.get_client()
    except ValueError:
        raise ValueError(
            f"{caller} of a Dask DataFrame needs a cluster: make a dask.distributed.Client first, "
            "such as Client(LocalCluster())."
        ) from None


def checked(X: Any, **others: Any) -> dict[str, Any]:
    """Return the other columns that are given; raise unless they are Series partitioned as X is."""
    if getattr(X, "ndim", 0) != 2 or len(X.columns) < 2:
        raise ValueError(
            "X should be a Dask DataFrame with the user's id in column 0 and the item's id in "
            f"column 1; it has {list(getattr(X, 'columns', []))}."
        )
    given = {name: one for name, one in others.items() if one is not None}
    for name, one in given.items():
        if not (is_frame(one) and getattr(one, "ndim", 0) == 1):
            raise TypeError(
                f"X is a Dask DataFrame, but {name} is a {type(one).__name__}; take {name} from a "
                f"column of the same frame: frame[{name!r}]."
            )
        if one.npartitions != X.npartitions:
            raise ValueError(
                f"X has {X.npartitions} partitions and {name} has {one.npartitions}; take both "
                "from columns of the same frame."
            )
    return given


def together(X: Any, **others: Any) -> Any:
    """Return one Dask DataFrame with the columns of X and the others, by their `ROLES`."""
    dd, given = require("dask.dataframe", "A Dask DataFrame"), checked(X, **others)
    names, parts = tuple(given), list(given.values())
    meta = _together(X._meta, *(one._meta for one in parts), names=names)
    options = {"meta": meta, "align_dataframes": False, "enforce_metadata": False}
    return dd.map_partitions(_together, X, *parts, names=names, **options)


def _together(X, *others, names):
    for name, one in zip(names, others, strict=True):
        if len(one) != len(X):
            raise ValueError(
                f"A partition of X has {len(X)} rows and that of {name} has {len(one)}; take both "
                "from columns of the same frame."
            )
    return X.assign(**{ROLES[n]: np.asarray(one) for n, one in zip(names, others, strict=True)})


def apart(frame: Any) -> tuple[Any, dict[str, Any]]:
    """Return X and the other columns of a partition, by their names."""
    given = {name: column for name, column in ROLES.items() if column in frame.columns}
    others = {name: frame[column].to_numpy() for name, column in given.items()}
    return frame.drop(columns=list(given.values())), others


@dataclass(eq=False)
class Parts:
    """The models (Futures) of a fit's partitions, and in which of them each of its `users` is."""

    client: Any
    models: list
    users: Ids
    parts: np.ndarray

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "The users of this model live on a Dask cluster; save fedrecsk.cluster.gather(model)."
        )

    def __deepcopy__(self, memo: dict) -> Parts:
        return self

    def after(self, function: Callable[..., Any], *args: Any) -> Parts:
        """Return the Parts of what a function makes of each model."""
        models = [self.client.submit(function, one, *args, pure=False) for one in self.models]
        return Parts(self.client, models, self.users, self.parts)

    def at_home(self, frame: Any, *, whole_users: bool) -> list:
        """Return a Delayed partition for each model, with the rows of its users.

        Partitions stay as they are if they are those of the fit; else rows move to their users.
        With `whole_users` all rows of an unknown user come to the same model.
        """
        delayed = require("dask", "A Dask DataFrame").delayed
        ours, n_parts = frame.to_delayed(), len(self.models)
        (index,) = self.client.scatter([(self.users, self.parts)], broadcast=True, hash=False)
        if len(ours) == n_parts:
            args = index, n_parts, whole_users
            checks = [delayed(_is_at_home)(one, n, *args) for n, one in enumerate(ours)]
            if all(self.client.gather(self.client.compute(checks))):
                return ours
        dd = require("dask.dataframe", "A Dask DataFrame")
        # That of `Series.unique` has a row.
        meta = _with_part(frame._meta.iloc[:0], None, n_parts)
        moved = [delayed(_with_part)(one, index, n_parts) for one in ours]
        moved = dd.from_delayed(moved, meta=meta, verify_meta=False)
        moved = moved.set_index(PART, divisions=tuple(range(n_parts + 1)))
        return [delayed(_without_part)(one, frame._meta.index.name) for one in moved.to_delayed()]


def _parts_of(frame, index, n_parts):
    """Return the model of each row's user, for unknown users one by their ids; and who is known."""
    known, parts = index
    users = id_array(frame.iloc[:, 0], "user ids (column 0 of X)")
    codes = known.codes(users)
    others = pd.util.hash_array(users.astype(str).astype(object)) % n_parts
    return np.where(codes >= 0, parts[codes], others).astype(np.int64), codes >= 0


def _is_at_home(frame, part, index, n_parts, whole_users):
    if not len(frame):
        return True
    parts, known = _parts_of(frame, index, n_parts)
    return bool(((parts == part) | (~known & (not whole_users))).all())


def _with_part(frame, index, n_parts):
    parts = np.zeros(0, dtype=np.int64)
    if len(frame):
        parts, _ = _parts_of(frame, index, n_parts)
    return frame.assign(**{INDEX: frame.index, PART: parts})


def _without_part(frame, name):
    return frame.set_index(INDEX).rename_axis(index=name)


# ------------------------------------------------------------------- what a model is asked


def on_workers(model: Any, name: str, X: Any, y: Any = None, **options: Any) -> Any:
    """Call a method of a fitted model for a Dask DataFrame."""
    if getattr(model, "_parts", None) is None and name in ("score", "fold_in"):
        raise TypeError(
            f"X is a Dask DataFrame, but the users of this {type(model).__name__} are in this "
            f"process; call {name} with X.compute(), or fit to a Dask DataFrame."
        )
    return _CALLS[name](model, X, y, **options)


def _asked(model, frame, function, *args, whole_users=False):
    """Return a Delayed result of a function of (partition, model, *args) for each partition."""
    delayed, parts = require("dask", "A Dask DataFrame").delayed, getattr(model, "_parts", None)
    if parts is None:
        client_of("predict")
        one = delayed(model, pure=False)
        return [delayed(function)(part, one, *args) for part in frame.to_delayed()]
    pairs = zip(parts.at_home(frame, whole_users=whole_users), parts.models, strict=True)
    return [delayed(function)(part, its, *args) for part, its in pairs]


def _as_frame(results, meta):
    dd = require("dask.dataframe", "A Dask DataFrame")
    return dd.from_delayed(results, meta=meta, verify_meta=False)


def _predict(model, X, y, *, return_std=False):
    meta = pd.Series(dtype=np.float64, name="y_pred")
    if return_std:
        meta = pd.DataFrame({"y_pred": meta, "y_std": meta})
    return _as_frame(_asked(model, together(X), _predicted, return_std), meta)


def _predicted(X, model, return_std):
    if return_std:
        both = model.predict(X, return_std=True) if len(X) else (np.zeros(0), np.zeros(0))
        return pd.DataFrame(dict(zip(("y_pred", "y_std"), both, strict=True)), index=X.index)
    scores = model.predict(X) if len(X) else np.zeros(0)
    return pd.Series(scores, index=X.index, name="y_pred")


def _recommend(model, X, y, **options):
    frame = X.to_frame() if X.ndim == 1 else X
    types = {
        "user": frame._meta.dtypes.iloc[0],
        "item": model.item_ids_.dtype,
        "score": np.float64,
        "rank": np.int64,
    }
    meta = pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in types.items()})
    return _as_frame(_asked(model, frame, _recommended, options, meta), meta)


def _recommended(frame, model, options, meta):
    if not len(frame):
        return meta
    return model.recommend(frame.iloc[:, 0].to_numpy(), **options | {"as_frame": True})


def _score(model, X, y, **options):
    frame, client = together(X, y=y, **options), client_of("score")
    rates = model.__sklearn_tags__().target_tags.required
    sums = _asked(model, frame, _squares if rates else _gains, whole_users=True)
    total = sum(client.gather(client.compute(sums)))
    if not rates:
        if not total[0]:
            raise ValueError("No row is relevant (y > 0), so there is nothing to score; check y.")
        return float(total[1] / total[0])
    weight, linear, square, error = total
    return float(1 - error / (square - linear**2 / weight))


def _squares(frame, model):
    """Return sums of weights, of y and its square, and of the squared errors of predictions."""
    if not len(frame):
        return np.zeros(4)
    X, others = apart(frame)
    y, weights = others["y"], others.get("sample_weight", np.ones(len(X)))
    errors = y - model.predict(X)
    return np.array([weights.sum(), *(weights @ one for one in (y, y * y, errors * errors))])


def _gains(frame, model):
    """Return the number of users with a relevant row, and the sum of their NDCG."""
    X, others = apart(frame)
    relevant = np.ones(len(X), dtype=bool)
    for numbers in others.values():
        relevant &= numbers > 0
    n_users = X[relevant].iloc[:, 0].nunique()
    return np.array([n_users, n_users * model.score(X, **others) if n_users else 0.0])


def _fold_in(model, X, y, *, replace=False, **options):
    parts, client = model._parts, client_of("fold_in")
    frame = together(X, y=y, **options)
    new = client.compute(_asked(model, frame, _folded, replace, whole_users=True))
    models, users, number = [], parts.users, parts.parts
    for n, future in enumerate(new):
        models.append(client.submit(itemgetter(0), future))
        ids = client.submit(itemgetter(1), future).result()
        if len(ids):
            users = users.followed_by(ids)
            number = np.append(number, np.full(len(ids), n, dtype=number.dtype))
    model._parts = Parts(client, models, users, number)
    model._users, model.user_ids_, model.n_users_ = users, users.values.copy(), len(users)
    return model


def _folded(frame, model, replace):
    """Return a model with the users of a partition, and the ids of those that it did not have."""
    if not len(frame):
        return model, np.empty(0, dtype=model.user_ids_.dtype)
    X, others = apart(frame)
    folded = copy.copy(model).fold_in(X, **others, replace=replace)
    return folded, folded.user_ids_[model.n_users_ :]


_CALLS: dict[str, Callable] = {
    "predict": _predict,
    "recommend": _recommend,
    "score": _score,
    "fold_in": _fold_in,
}


def gather(model: Any) -> Any:
    """Return a model in this process, with all users, of one whose users live on a Dask cluster.

    Parameters
    ----------
    model : federated recommender
        Fitted to a Dask DataFrame.

    Returns
    -------
    model : federated recommender
        As of a fit in one process, with the users' attributes. All of them must fit into memory.

    Raises
    ------
    ValueError
        If the model's users do not live on a cluster.

    Examples
    --------
    >>> from fedrecsk import RFRec
    >>> from fedrecsk.cluster import gather
    >>> gather(RFRec())
    Traceback (most recent call last):
        ...
    ValueError: The users of this RFRec are in this process already, or it is not fitted.
    """
    parts = getattr(model, "_parts", None)
    if parts is None:
        raise ValueError(
            f"The users of this {type(model).__name__} are in this process already, or it is not "
            "fitted."
        )
    numbers = np.unique(parts.parts)
    theirs = [vars(one) for one in parts.client.gather([parts.models[n] for n in numbers])]
    # The model of a partition without users may have those of another one, too.
    codes = [parts.users.codes(one["user_ids_"]) for one in theirs]
    own = np.concatenate([parts.parts[c] == n for c, n in zip(codes, numbers, strict=True)])
    rows = np.empty(len(parts.users), dtype=np.int64)
    rows[np.concatenate(codes)[own]] = np.flatnonzero(own)
    whole = copy.copy(model)
    whole._parts = None
    for name, first in theirs[0].items():
        per_user = name.startswith("user_") and np.ndim(first) + sparse.issparse(first) > 0
        if per_user and name != "user_ids_":
            join = sparse.vstack if sparse.issparse(first) else np.concatenate
            setattr(whole, name, join([one[name] for one in theirs])[rows])
    seen = [
        sparse.csr_array((np.ones_like(items), items, indptr), (len(indptr) - 1, model.n_items_))
        for indptr, items in (one["_seen"] for one in theirs)
    ]
    seen = sparse.vstack(seen, "csr")[rows]
    whole._seen = seen.indptr, seen.indices
    return whole
