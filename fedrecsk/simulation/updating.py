"""Bring a fitted model up to date: `partial_fit` with new rows, and `forget` users."""

from __future__ import annotations

from contextlib import contextmanager
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_consistent_length

from fedrecsk._utils.sklearn_compat import Interval, check_sample_weight
from fedrecsk._utils.user_warnings import warn
from fedrecsk.base import FitReport
from fedrecsk.base._recommender import check_unchanged
from fedrecsk.data._checks import check_rows
from fedrecsk.data._times import ROW_ORDER, check_unit
from fedrecsk.data.ids import OF_ROWS, Ids, id_array, named
from fedrecsk.data.interactions import encode, id_columns
from fedrecsk.protocol import refusals
from fedrecsk.simulation import continuing
from fedrecsk.simulation.both_sides import parameters_of_a_run
from fedrecsk.simulation.receipt import Receipt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike

    from fedrecsk.federated.base import FederatedRecommender

# Rounds of an update, as a share of those of a fit.
SHARE = 0.2
PAIR = ["user", "item"]
# X hardly has new rows alone with more than this share of the old pairs, or with so many pairs and
# no new one.
MANY_OLD, ALL_OLD = 0.5, 20
ROUNDS = {"n_rounds": [Interval(Integral, 1, None, closed="left"), None]}


def goes_on(estimator: FederatedRecommender) -> bool:
    """Return whether a model can go on from its last fit; raise AttributeError if not."""
    name = type(estimator).__name__
    if not estimator._algorithm().traits.goes_on:
        raise AttributeError(
            f"{name} cannot continue from its last model; call fit on all rows, or fold_in to add "
            "users."
        )
    if not estimator.warm_start:
        raise AttributeError(
            f"The clients of this {name} do not keep their rows; set warm_start=True before the "
            "first fit."
        )
    return True


def add_rows(
    estimator: FederatedRecommender,
    X: ArrayLike,
    y: ArrayLike | None,
    clients: ArrayLike | None,
    sample_weight: ArrayLike | None,
    n_rounds: int | None,
) -> None:
    """Bring a fitted model up to date with new rows."""
    with _restore_on_error(estimator):
        estimator._require_y(y)
        X, y = estimator._checked(X, y)
        data = _run_of(estimator, "partial_fit").data
        times = estimator._times_of(X)
        if times is not None and getattr(estimator, "timestamps", None) == ROW_ORDER:
            times += data.times.max() + 1  # after all old rows
        elif times is not None and data.times is not None:
            check_unit(data.times, times, getattr(estimator, "timestamps", None))
        rows = _rows(X, y, clients, sample_weight, data, times, estimator._limits(is_fit=True))
        catalogue = _public_catalogue(estimator, data)
        if catalogue is not None and estimator._catalogue() is None:
            # A matrix had a column for each item, and X may have others.
            values = np.union1d(catalogue.values, id_array(rows["item"], "item ids"))
            catalogue = Ids(values, catalogue.name, catalogue.source)
        changed = id_array(rows["client"].unique(), "clients")
        old = _frame(data)
        _warn_of_old_rows(old[PAIR], rows[PAIR])
        data = _encoded(pd.concat([old, rows], ignore_index=True), catalogue)
        _updated(estimator, data, (X, y, sample_weight), changed, n_rounds)


def forget(estimator: FederatedRecommender, users: Any, n_rounds: int | None) -> None:
    """Make a fitted model forget users, and leave a receipt."""
    before = data = _run_of(estimator, "forget").data
    users = id_array(users, "users")
    if not len(users):
        return
    codes = data.user_ids.codes(users)
    if (codes < 0).any():
        raise ValueError(
            f"The last fit had no {named('user', users[codes < 0])}; give ids of its users."
        )
    kept = _frame(data).loc[~np.isin(data.users, codes)]
    if not len(kept):
        raise ValueError("Cannot forget all users; delete the model instead.")
    # Other users of their clients are counted anew.
    changed = data.client_ids[data.clients_with(codes)]
    with _restore_on_error(estimator):
        estimator._forget_features(users)
        data = _encoded(kept, _public_catalogue(estimator, data))
        X, y = kept[PAIR].to_numpy(), kept["value"].to_numpy()
        _updated(estimator, data, (X, y, None), changed, n_rounds)
    ledger = estimator.communication_
    estimator.forgotten_ = Receipt(
        method=type(estimator).__name__,
        n_users=before.n_users - data.n_users,
        n_rows=len(before.users) - len(data.users),
        n_items=before.n_items - data.n_items,
        n_clients=len(changed),
        n_withdrawn=sum(
            entry["messages_up"] for entry in ledger.entries if entry["phase"] == "taken back"
        ),
        is_exact=estimator._algorithm().traits.sends_once,
        n_rounds=estimator.n_rounds_,
        bytes_up=ledger.bytes_up,
        bytes_down=ledger.bytes_down,
    )


@contextmanager
def _restore_on_error(estimator: FederatedRecommender) -> Iterator[None]:
    """Leave an estimator as it was if what is done to it raises an error."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


def _run_of(estimator, caller_name):
    """Return the last fit's Run, or raise if it cannot go on."""
    run, name = getattr(estimator, "_run", None), type(estimator).__name__
    if run is None:
        raise ValueError(
            f"{caller_name} needs a completed fit with warm_start=True, and the last fit of this "
            f"{name} was not; fit it again with warm_start=True."
        )
    # New items and users come with features of their own.
    parameters = parameters_of_a_run(estimator)
    for name in ("item_features", "user_features"):
        parameters[name] = run.parameters.get(name)
    check_unchanged(run, parameters, f"{caller_name} continues the last fit")
    refusals.check("update", run.server.plan)
    return run


def _public_catalogue(estimator, data):
    """Return the public catalogue, of which the items of the last fit are a part; None: none."""
    catalogue, known = estimator._catalogue(), data.item_ids
    if catalogue is None:
        return None if known.source == OF_ROWS else known
    lacking = known.values[catalogue.codes(known.values) < 0]
    if len(lacking):
        raise ValueError(
            f"{catalogue.source} lacks {named('item', lacking)} of the last fit; add new items to "
            "the old ones."
        )
    return catalogue


def _updated(estimator, data, arguments, changed, n_rounds):
    """Go on from the last fit with data in which the rows of these clients (ids) are others."""
    if n_rounds is None:
        plan = estimator._plan()
        n_rounds = max(1, round(SHARE * plan.rounds(plan.units(data))))

    data = estimator._with_features(data, fitted=True)
    _warn_of_the_added(estimator, data)

    def fit(data, report):
        return continuing.update(estimator, estimator._run, data, report, n_rounds, changed)

    return estimator._learn(data, FitReport(estimator, *arguments, data, n_rounds), fit)


def _warn_of_old_rows(old, rows):
    """Warn if new rows have most of the old pairs again, or no other pairs."""
    rows = rows.drop_duplicates()
    n_again = len(old.merge(rows))
    if n_again > MANY_OLD * len(old) or n_again == len(rows) >= ALL_OLD:
        warn(
            f"{n_again} of the {len(rows)} pairs of user and item in X are in the last fit already,"
            " and their weights add up. If these are the old rows, pass new rows alone, or fit "
            "sklearn.base.clone(model) to all rows."
        )


def _warn_of_the_added(estimator, data):
    """Warn of users and items that were added to the last fit, if the update drops them."""
    for role, ids, call, now, cure in (
        ("user", "user_ids", "fold_in or add_users", estimator._users, "call it again"),
        ("item", "item_ids", "add_items", estimator._items, "or give item_features with them"),
    ):
        in_fit, kept = getattr(estimator._run.data, ids), getattr(data, ids)
        added = now.values[(in_fit.codes(now.values) < 0) & (kept.codes(now.values) < 0)]
        if len(added):
            warn(
                f"The model no longer knows {named(role, added)} of {call}, because the fit has no "
                f"rows of them; pass their rows to partial_fit, {cure}.",
                UserWarning,
            )


def _rows(X, y, clients, sample_weight, data, times, limits):
    """Return the new rows as a DataFrame, with the client and the time of each."""
    users, items = id_columns(X)
    if sample_weight is not None:
        sample_weight = check_sample_weight(sample_weight, X, allow_all_zero_weights=True)
    check_rows(y, sample_weight, limits)
    users, items = _alike(users, data.user_ids), _alike(items, data.item_ids)
    codes = data.user_ids.codes(users)
    known, each = codes >= 0, np.repeat(data.client_ids, np.diff(data.client_indptr))
    if clients is not None:
        clients = _alike(id_array(clients, "clients"), Ids(data.client_ids, "clients"))
        check_consistent_length(users, clients)
    elif known.all():
        clients = each[codes]
    elif np.array_equal(each, data.user_ids.values):
        clients = users
    else:
        raise ValueError(
            f"User {users[~known][0]!s} is new, and the last fit was given clients; pass clients=, "
            "the client of each row."
        )
    values = 1.0 if y is None else np.asarray(y, dtype=np.float64)
    weights = 1.0 if sample_weight is None else sample_weight
    return _table(users, items, clients, values, weights, times)


def _alike(ids, known):
    """Return ids in the type of the known ones, if it can hold them; raise if they are of others.

    The types of numbers may differ, but not strings and numbers.
    """
    known.codes(ids)
    return known.followed_by(ids).values[len(known) :]


def _frame(data):
    """Return the rows of Interactions as a DataFrame."""
    users, items = data.user_ids.values[data.users], data.item_ids.values[data.items]
    clients = data.client_ids[data.clients]
    return _table(users, items, clients, data.values, data.weights, data.times)


def _table(*columns):
    names = "user", "item", "client", "value", "weight", "time"
    return pd.DataFrame(dict(zip(names, columns, strict=True)))


def _encoded(frame, item_ids):
    """Return Interactions of the rows of a DataFrame."""
    return encode(
        frame[PAIR],
        frame["value"].to_numpy(),
        clients=frame["client"].to_numpy(),
        sample_weight=frame["weight"].to_numpy(),
        item_ids=item_ids,
        drop_other_items=False,
        times=None if frame["time"].isna().all() else frame["time"].to_numpy(dtype=np.float64),
    )
