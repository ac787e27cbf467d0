"""The base class of all federated estimators: parameters, the plan of a fit, and updates."""

from __future__ import annotations

import copy
import inspect
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from fedrecsk._utils.constraints import Above0To1, AtLeast1, Between0And1, Jobs, NotNegative, Seed
from fedrecsk._utils.parameters import checked, did_you_mean
from fedrecsk._utils.sklearn_compat import fit_context, get_threadpool_controller
from fedrecsk.base import Recommender
from fedrecsk.base._fading import life_of
from fedrecsk.base._item_weights import history_of
from fedrecsk.cluster import _frames
from fedrecsk.data import _checks
from fedrecsk.data.interactions import Interactions
from fedrecsk.protocol import blocks as _blocks
from fedrecsk.protocol import refusals
from fedrecsk.protocol.central_noise import CentralNoise, warn_of_cost
from fedrecsk.protocol.clients import newcomers
from fedrecsk.protocol.early_stopping import HoldOut
from fedrecsk.protocol.evaluation import Scoring
from fedrecsk.protocol.federation import Federation
from fedrecsk.protocol.keys import Key, Keys
from fedrecsk.protocol.messages import Message
from fedrecsk.protocol.participation import Sampling
from fedrecsk.protocol.plan import FitPlan
from fedrecsk.simulation import dask_run, run, updating, weak_fits

if TYPE_CHECKING:
    from fedrecsk.privacy import PrivacyReport
    from fedrecsk.protocol.algorithm import AnyAlgorithm
    from fedrecsk.protocol.ledger import Ledger
    from fedrecsk.simulation.run import Run


@dataclass(eq=False, repr=False)
class FederatedRecommender(Recommender):
    """Base class of the federated methods.

    An estimator holds parameters and fitted attributes. Server and clients run its
    :class:`~fedrecsk.protocol.Algorithm`, which `_algorithm` makes from the parameters.
    :func:`~fedrecsk.federated.estimator_of` makes an estimator of an algorithm.
    """

    _: KW_ONLY
    n_rounds: AtLeast1 = 100
    client_fraction: Above0To1 = 1.0
    early_stopping: bool = False
    scoring: str = "loss"
    validation_fraction: Between0And1 = 0.1
    n_iter_no_change: AtLeast1 = 10
    tol: NotNegative = 1e-4
    warm_start: bool = False
    n_jobs: Jobs = None
    random_state: Seed = None
    federation: Federation | None = None

    # The users' models on the workers of a Dask cluster: Parts, or None if they are here.
    _parts = None
    if TYPE_CHECKING:
        # The last fit; None: it cannot go on.
        _run: Run | None
    # What a fit sends last.
    _final_message: ClassVar[Message]
    communication_: ClassVar[Ledger]
    n_rounds_: ClassVar[int]
    # The class of its algorithm.
    _kind: ClassVar[type[AnyAlgorithm]]
    # The type that most methods compute in.
    _dtype: ClassVar[type[np.floating]] = np.float32

    # The parameter that says how many numbers of `_dtype` every user keeps; None if there is no
    # such parameter. By it, fits for which there is not enough memory are refused.
    _user_width = None

    # ------------------------------------------------------------------ what a method gives

    def _algorithm(self, **parts: object) -> Any:
        """Return the method's algorithm, made of `parts` and of what this estimator has.

        A field `x` is `self._x` if the class has such a property or constant, a value that follows
        from parameters, and otherwise the parameter `x`.
        """
        kind, own, name = getattr(self, "_kind", None), {}, type(self).__name__
        if kind is None:
            raise TypeError(
                f"{name} has no algorithm; set _kind = ..., its class, or make {name} by "
                "fedrecsk.federated.estimator_of."
            )
        for one in fields(kind):
            if one.name in parts:
                continue
            derived = inspect.getattr_static(type(self), f"_{one.name}", None)
            if derived is not None and not inspect.isroutine(derived):
                own[one] = getattr(self, f"_{one.name}")
            elif hasattr(self, one.name):
                own[one] = getattr(self, one.name)
            else:
                cure = did_you_mean(one.name, vars(self), "declare it there.")
                raise TypeError(
                    f"{kind.__name__} has a field {one.name!r}, but {name} has no such parameter; "
                    f"{cure}"
                )
        built = kind(**{one.name: value for one, value in own.items() if one.init}, **parts)
        # A subclass may have other constants.
        vars(built).update({one.name: value for one, value in own.items() if not one.init})
        return built

    def _check_setting(self, plan, data, blocks):
        """Raise, before any work, if the method does not suit the plan of its fit or its data."""

    @property
    def _sees_ratings(self):
        """Whether it trains on how much users like an item, instead of whether they do."""
        return self.__sklearn_tags__().target_tags.required

    # ------------------------------------------------------------------ what all methods have

    def _setting(self):
        """Return the federation that the method runs in."""
        return Federation() if self.federation is None else self.federation

    def _plan(self):
        """Return how a fit runs, as server and clients know it."""
        algorithm, federation = self._algorithm(), self._setting()
        rotates = algorithm.traits.rotates
        return FitPlan(
            name=type(self).__name__,
            algorithm=algorithm,
            federation=federation,
            sampling=Sampling.of(federation, self.client_fraction, rotates=rotates),
            n_rounds=None if self.n_rounds == "auto" else self.n_rounds,
            n_items=None if self.items is None else len(self.items),
            rating_scale=getattr(self, "rating_scale", None),
            rates=self._sees_ratings,
            scoring=Scoring((self.scoring,)),
            holds_out=HoldOut(self.validation_fraction) if self.early_stopping else None,
            early_stopping=self.early_stopping,
            tol=self.tol,
            patience=self.n_iter_no_change,
            warm_start=self.warm_start,
        )

    def _model(self):
        # A model does without vectors that are missing.
        _frames.check_users_are_here(self)
        return self._algorithm().model(vars(self))

    def _n_tasks(self, data):
        plan = self._plan()
        return plan.rounds(plan.units(data))

    def set_params(self, **params: object) -> Self:
        """Set parameters; ``federation__...`` of a federation that is None makes one.

        Returns
        -------
        self : object
        """
        nested = any(name.startswith("federation__") for name in params)
        if nested and self.federation is None and params.get("federation") is None:
            params["federation"] = Federation()
        return super().set_params(**params)

    def _least_bytes(self, data):
        # A round's sums, the server's model, and users' vectors during and after the rounds.
        itemsize = np.dtype(self._dtype).itemsize
        specs = self._algorithm().fields(data.n_items).values()
        total = sum(spec.size * np.dtype(spec.sum_dtype).itemsize for spec in specs)
        model = [spec for spec in specs if spec.learned and not spec.is_integer]
        total += itemsize * sum(f.size for f in model if f.shape[0] == data.n_items)
        if self._user_width is not None and self.client_fraction == 1:
            total += 2 * itemsize * data.n_users * getattr(self, self._user_width)
        return total

    def _check_before_fit(self):
        super()._check_before_fit()
        self._setting()._validate_params()
        plan = self._plan()
        plan.scoring.check(plan)
        refusals.check("fit", plan)

    def _prepared(self, X, y=None, clients=None, sample_weight=None, catalogue=None):
        data = super()._prepared(X, y, clients, sample_weight, catalogue)
        plan = self._plan()
        if plan.early_stopping:
            plan.scoring.check(plan, data.n_items)
        warn_of_cost(plan, data.n_clients)
        return data

    def planned_privacy(self, n_clients: int, n_users: int | None = None) -> PrivacyReport:
        """Report what a fit with central privacy will guarantee, before it has begun.

        Parameters
        ----------
        n_clients : int
            Number of clients.
        n_users : int or None, default=None
            Number of their users. If None, each client has one.

        Returns
        -------
        report : PrivacyReport
            ``privacy_`` of the fit, if all clients take part as planned. With cohorts of a fixed
            size at random and ``random_state=None``, the fit's may differ.

        Raises
        ------
        ValueError
            If the federation has no `central_dp`, or if the method does not suit it.
        """
        federation = self._setting()
        if federation.central_dp is None:
            raise ValueError(
                f"{type(self).__name__} has no central_dp, so there is nothing to plan; set "
                "federation=Federation(central_dp=CentralDP(epsilon=10))."
            )
        self._validate_params()
        self._check_before_fit()
        seed = check_random_state(copy.deepcopy(self.random_state)).randint(2**31 - 1)
        plan = self._plan()
        releases = CentralNoise.of(plan, n_clients, Key(int(seed)), Key(int(seed)), n_users)
        return releases.planned(plan.server_sees)

    def _rows_of_items(self):
        return {name: field.values for name, field in self._final_message.items()}

    def _with_rows_of_items(self, arrays):
        changed = {n: replace(self._final_message[n], values=one) for n, one in arrays.items()}
        message, algorithm = Message(**self._final_message | changed), self._algorithm()
        attributes = algorithm.server_attributes(algorithm.decode(message, Key(0)))
        return attributes | {"_final_message": message}

    def _forget_features(self, users):
        """Forget what this object has of these users beside their rows."""

    def _new_user_attributes(self, data):
        algorithm = self._algorithm()
        # Final messages need no draws.
        message = algorithm.decode(self._final_message, Key(0))
        keys, blocks, attributes = Keys(Key(0), Key(0)), _blocks.cut(data), []
        if not blocks:
            blocks = [_blocks.of_clients(data, np.zeros(0, dtype=np.int64))]
        with get_threadpool_controller().limit(limits=1, user_api="blas"):
            for block in blocks:
                ids, block = data.client_ids[block.clients], algorithm.as_newcomers(block)
                state = newcomers(algorithm, block, ids, message, keys)
                attributes.append(algorithm.user_attributes(block, state))
                _checks.check_users(self, block, ids, attributes[-1])
        joined = _blocks.by_user([block.users for block in blocks], attributes)
        return {name: rows for name, rows in joined.items() if name.startswith("user_")}

    # ---------------------------------------------------------------------- fit and update

    def _fit_on_cluster(self, X, y, clients, sample_weight):
        return dask_run.fit(self, X, y, clients, sample_weight)

    def _fit(self, data, report):
        # Not before the fit has ended: a refused one must not lose the last one's users.
        report.static |= {"_parts": None}
        return run.fit(self, data, report)

    def _check_after_fit(self, data):
        # A history that fades is not there to rank the user's old rows.
        fades = getattr(self, "history_half_life", None) is not None
        is_here = isinstance(data, Interactions)
        if is_here and self._setting().adversary is None and not fades:
            weak_fits.warn_if_weak(self, data)

    if not TYPE_CHECKING:  # see Recommender

        def __getattr__(self, name: str) -> object:
            if vars(self).get("_parts") is not None and name.startswith("user_"):
                raise AttributeError(
                    f"The users of this {type(self).__name__} are on the workers of a Dask "
                    "cluster; pass a Dask DataFrame, or use fedrecsk.cluster.gather(model), which "
                    f"returns a model that has {name} here."
                )
            # Raise as Python does, or as `available_if` does.
            return object.__getattribute__(self, name)

    def _kept_rows(self, user):
        run = getattr(self, "_run", None)
        if run is not None:
            data = run.data
            (code,) = data.user_ids.codes(self.user_ids_[user : user + 1])
            if code >= 0:
                return history_of(data, code, life_of(self, "history_half_life"))
        return super()._kept_rows(user)

    @available_if(updating.goes_on)
    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        clients: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        n_rounds: int | None = None,
    ) -> Self:
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
            with its old row, as in a `fit` to both, and their weights add up. A warning tells if X
            has most of the old pairs again, or no others. Known users stay with their client.
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
        checked("partial_fit", updating.ROUNDS, n_rounds=n_rounds)
        if not hasattr(self, "item_ids_"):
            return self.fit(X, y, clients=clients, sample_weight=sample_weight)
        updating.add_rows(self, X, y, clients, sample_weight, n_rounds)
        return self

    @available_if(updating.goes_on)
    @fit_context(prefer_skip_nested_validation=True)
    def forget(self, users: ArrayLike, *, n_rounds: int | None = None) -> Self:
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
        checked("forget", updating.ROUNDS, n_rounds=n_rounds)
        check_is_fitted(self)
        updating.forget(self, users, n_rounds)
        return self


# What mixins derive from for type checkers, because they use what the class has.
if TYPE_CHECKING:
    Mixin = FederatedRecommender
else:
    Mixin = object
