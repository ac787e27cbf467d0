"""Bring a fitted model up to date: `partial_fit` with new rows, and `forget` users."""

from __future__ import annotations

from contextlib import contextmanager
from numbers import Integral
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pandas as pd
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from fedrecsk._utils.parameters import checked
from fedrecsk._utils.sklearn_compat import Interval, check_sample_weight, fit_context
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
from fedrecsk.simulation.method import FederatedMethod
from fedrecsk.simulation.receipt import Receipt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike

    from fedrecsk.simulation.run import Run

    M = TypeVar("M", bound=FederatedMethod)

# Rounds of an update, as a share of those of a fit.
SHARE = 0.2
ROUNDS = {"n_rounds": [Interval(Integral, 1, None, closed="left"), None]}


def goes_on(estimator: FederatedMethod) -> bool:
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


class Updating(FederatedMethod):
    """`partial_fit` and `forget` of federated methods."""

    # The last fit; None: it cannot go on.
    _run: Run | None

    @available_if(goes_on)
    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self: M,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        clients: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        n_rounds: int | None = None,
    ) -> M:
        """Bring the model up to date with new rows, users and items.

        Devices keep their rows, so the model learns from the old rows and the new ones. Where it
        is a sum over clients (:class:`~fedrecsk.FedEASE`, :class:`~fedrecsk.FedSpectral`), only
        clients with new rows send: they withdraw their earlier uploads and send new ones. The
        result is exactly that of a `fit` to all rows. Other methods continue from their last model
        for a few rounds.

        Parameters
        ----------
        X, y, clients, sample_weight
            New rows, as in `fit`; the first call is a `fit`. A repeated (user, item) pair is merged
            with its old row, as in a `fit` to both. Known users stay with their client.
        n_rounds : int, default=None
            Number of rounds. If None, 20% of those of a fit, at least one.

        Returns
        -------
        self : object
            `communication_`, `privacy_`, `history_`, `loss_curve_` and `n_rounds_` are those of
            this update alone. Add privacy up with :class:`~fedrecsk.privacy.PrivacyBudget`.

        Raises
        ------
        ValueError
            If the last fit had ``warm_start=False``; if parameters have changed since; if uploads
            cannot be withdrawn from a sum, because masks hide it, or noise, attacks, aggregators,
            lost uploads or early stopping changed it; if times are in another unit; or as `fit`
            does. The model then stays as it was.
        AttributeError
            If ``warm_start=False``, with which clients keep no rows; or if the method cannot go
            on from its last model.

        Notes
        -----
        Users that were added by `fold_in`, and items that were added by `add_items`, are forgotten,
        unless X has their rows, or `item_features` the items. Rounds of an update are not stopped
        early.

        Examples
        --------
        >>> import numpy as np
        >>> from fedrecsk import FedEASE
        >>> from fedrecsk.datasets import make_ratings
        >>> X, _ = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
        >>> model = FedEASE(reg=50.0, warm_start=True).fit(X[:800]).partial_fit(X[800:])
        >>> np.allclose(model.predict(X), FedEASE(reg=50.0).fit(X).predict(X), atol=1e-6)
        True
        """
        checked("partial_fit", ROUNDS, n_rounds=n_rounds)
        if not hasattr(self, "item_ids_"):
            return self.fit(X, y, clients=clients, sample_weight=sample_weight)
        with _restore_on_error(self):
            self._require_y(y)
            X, y = self._checked(X, y)
            data = _run_of(self, "partial_fit").data
            times = self._times_of(X)
            if times is not None and getattr(self, "timestamps", None) == ROW_ORDER:
                times += data.times.max() + 1  # after all old rows
            elif times is not None and data.times is not None:
                check_unit(data.times, times, getattr(self, "timestamps", None))
            rows = _rows(X, y, clients, sample_weight, data, times, self._limits(is_fit=True))
            catalogue = _public_catalogue(self, data)
            if catalogue is not None and self._catalogue() is None:
                # A matrix had a column for each item, and X may have others.
                values = np.union1d(catalogue.values, id_array(rows["item"], "item ids"))
                catalogue = Ids(values, catalogue.name, catalogue.source)
            changed = id_array(rows["client"].unique(), "clients")
            data = _encoded(pd.concat([_frame(data), rows], ignore_index=True), catalogue)
            return _updated(self, data, (X, y, sample_weight), changed, n_rounds)

    @available_if(goes_on)
    @fit_context(prefer_skip_nested_validation=True)
    def forget(self: M, users: ArrayLike, *, n_rounds: int | None = None) -> M:
        """Make the model forget users: their rows, their private state and their uploads.

        Where the model is a sum over clients (:class:`~fedrecsk.FedEASE`,
        :class:`~fedrecsk.FedSpectral`), the users' clients withdraw their uploads. The result is
        exactly that of a `fit` without these users. Other methods continue from their last model
        for a few rounds without them: what such a model learned from them fades but is not removed,
        except by a new `fit` without them. Nothing of the users remains in this object or its
        pickle but the counts in `forgotten_` and `communication_`, which the next update or fit
        replaces.

        Parameters
        ----------
        users : array-like of shape (n_forgotten,)
            Ids of users of the last fit. Items that no other user has are forgotten too, unless the
            catalogue is public: by `items`, by `item_features`, or as the columns of a matrix.
            Without any ids, nothing is done.
        n_rounds : int, default=None
            Number of rounds. If None, 20% of those of a fit, at least one.

        Returns
        -------
        self : object
            `n_rounds_` and `communication_` are the cost of forgetting. In
            ``communication_.entries``, "taken back" lists the last uploads of the users' clients.
            `forgotten_` is a receipt, until the next `fit`, `partial_fit` or `forget`: what was
            removed and from where, whether the model equals a new fit, and what may remain.
            ``print(model.forgotten_)`` shows it. It contains counts, and no ids.

        Raises
        ------
        ValueError
            If a user was not in the last fit, if no user would be left, or as `partial_fit` does.
            The model then stays as it was.
        AttributeError
            If ``warm_start=False``, with which clients keep no rows; or if the method cannot go
            on from its last model.
        TypeError
            If `users` is a mask.

        See Also
        --------
        fedrecsk.audit.measure_forgetting : Whether forgotten users still show in the model.

        Examples
        --------
        >>> import numpy as np
        >>> from fedrecsk import FedEASE
        >>> from fedrecsk.datasets import make_ratings
        >>> X, _ = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
        >>> others = X[X[:, 0] != 7]
        >>> model = FedEASE(reg=50.0, warm_start=True).fit(X).forget([7])
        >>> refitted = FedEASE(reg=50.0).fit(others)
        >>> np.allclose(model.predict(others), refitted.predict(others), atol=1e-6)
        True
        >>> model.forgotten_.n_users, model.forgotten_.is_exact
        (1, True)
        """
        checked("forget", ROUNDS, n_rounds=n_rounds)
        check_is_fitted(self)
        before = data = _run_of(self, "forget").data
        users = id_array(users, "users")
        if not len(users):
            return self
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
        with _restore_on_error(self):
            self._forget_features(users)
            data = _encoded(kept, _public_catalogue(self, data))
            X, y = kept[["user", "item"]].to_numpy(), kept["value"].to_numpy()
            _updated(self, data, (X, y, None), changed, n_rounds)
        ledger = self.communication_
        self.forgotten_ = Receipt(
            method=type(self).__name__,
            n_users=before.n_users - data.n_users,
            n_rows=len(before.users) - len(data.users),
            n_items=before.n_items - data.n_items,
            n_clients=len(changed),
            n_withdrawn=sum(
                entry["messages_up"] for entry in ledger.entries if entry["phase"] == "taken back"
            ),
            is_exact=self._algorithm().traits.sends_once,
            n_rounds=self.n_rounds_,
            bytes_up=ledger.bytes_up,
            bytes_down=ledger.bytes_down,
        )
        return self


@contextmanager
def _restore_on_error(estimator: FederatedMethod) -> Iterator[None]:
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
        frame[["user", "item"]],
        frame["value"].to_numpy(),
        clients=frame["client"].to_numpy(),
        sample_weight=frame["weight"].to_numpy(),
        item_ids=item_ids,
        drop_other_items=False,
        times=None if frame["time"].isna().all() else frame["time"].to_numpy(dtype=np.float64),
    )
