"""The base class of federated estimators, apart from their fit: parameters, plan and checks."""

from __future__ import annotations

import copy
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.utils import check_random_state

from fedrecsk._utils.constraints import Above0To1, AtLeast1, Between0And1, Jobs, NotNegative, Seed
from fedrecsk._utils.parameters import did_you_mean
from fedrecsk._utils.sklearn_compat import clone, get_threadpool_controller
from fedrecsk.base import Recommender
from fedrecsk.cluster import _frames
from fedrecsk.data import _checks
from fedrecsk.protocol import blocks as _blocks
from fedrecsk.protocol import refusals
from fedrecsk.protocol.central_noise import CentralNoise, warn_of_cost
from fedrecsk.protocol.clients import newcomers
from fedrecsk.protocol.evaluation import Scoring
from fedrecsk.protocol.federation import Federation
from fedrecsk.protocol.keys import Key, Keys
from fedrecsk.protocol.participation import Sampling
from fedrecsk.protocol.plan import FitPlan

if TYPE_CHECKING:
    from typing import Self

    from fedrecsk.privacy import PrivacyReport
    from fedrecsk.protocol.algorithm import AnyAlgorithm
    from fedrecsk.protocol.ledger import Ledger
    from fedrecsk.protocol.messages import Message


@dataclass(eq=False, repr=False)
class FederatedMethod(Recommender):
    """An estimator, apart from its fit: the parameters of the protocol, and what a method gives."""

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
        """Return the method's algorithm, whose fields are parameters of this estimator or `parts`.

        What a parameter stands for, or what follows from others, has an underscore in front.
        """
        kind, own = self._kind, {}
        for one in fields(kind):
            if one.name in parts:
                continue
            name = f"_{one.name}" if hasattr(type(self), f"_{one.name}") else one.name
            if not hasattr(self, name):
                raise TypeError(
                    f"{kind.__name__} has a field {name!r}, but {type(self).__name__} has no such "
                    f"parameter; {did_you_mean(name, vars(self), 'declare it there.')}"
                )
            own[one] = getattr(self, name)
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
            holds_out=self.validation_fraction if self.early_stopping else None,
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

    def _forget_features(self, users):
        """Forget what this object has of these users beside their rows."""

    def _new_user_attributes(self, data):
        algorithm = clone(self)._algorithm()
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
