"""The base class of neural methods: a torch module whose clients are trained side by side."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import nn

from fedrecsk._utils import memory
from fedrecsk._utils.constraints import AtLeast1, Positive
from fedrecsk.data.ids import id_array
from fedrecsk.federated._feedback import LearnsFromFeedback
from fedrecsk.neural import _checks
from fedrecsk.neural._averaging import ModuleAlgorithm, ModuleParameters
from fedrecsk.neural._layout import Recipe, blueprint, built, seeded
from fedrecsk.neural._training import Training, loss_function

Optimizer = Literal["adam", "sgd"] | Callable[..., torch.optim.Optimizer]


@dataclass(eq=False, repr=False)
class NeuralRecommender(ModuleParameters, LearnsFromFeedback):
    """Base class of the estimators whose algorithm averages a torch module.

    Parameters that match a pattern of the module's recipe stay with their client. The others are
    averaged: in each round clients receive them, train all on their own data, and upload the
    changes.
    """

    _: KW_ONLY
    optimizer: Optimizer = "adam"
    learning_rate: Positive | dict[str, float] = 0.001
    local_epochs: AtLeast1 = 1
    batch_size: AtLeast1 = 256
    device: str | torch.device = "cpu"

    _kind: ClassVar[type[ModuleAlgorithm]] = ModuleAlgorithm

    @abstractmethod
    def _recipe(self) -> Recipe:
        """Return how the module is built, whose ``module(users, items)`` gives scores of pairs."""

    @property
    def _training(self):
        rates = self.learning_rate
        return Training(
            optimizer=self.optimizer,
            rates=rates if isinstance(rates, dict) else {"*": rates},
            loss=self.loss,
            n_negatives=self._n_negatives,
            n_epochs=self.local_epochs,
            batch_size=self.batch_size,
            device=self.device,
        )

    def _algorithm(self, **parts):
        own = {"recipe": self._recipe(), "fitted_recipe": self._recipe()}
        return super()._algorithm(**own | parts)

    # ------------------------------------------------------------------------ the module

    def _module_layout(self):
        return blueprint(self._recipe()).layout

    @property
    def _n_negatives(self):
        return 0 if self.loss == "squared" else self.n_negatives

    @property
    def _dtype(self):
        return self._module_layout().dtype.type

    # ---------------------------------------------------------------------------- checks

    def _check_before_fit(self):
        super()._check_before_fit()
        recipe, layout = self._recipe(), self._module_layout()
        if not layout.sent:
            raise ValueError(
                "All parameters of the module are private, so clients would learn nothing from "
                f"one another; private={recipe.patterns!r} must leave some of "
                f"{', '.join(layout.parts)}."
            )
        if not layout.named("item", "private item"):
            raise ValueError(
                "The module trains no parameter with a row per item; give it one, such as "
                "nn.Embedding(n_items, 8)."
            )
        _checks.check_rates(self._algorithm().training_for(1).rates, layout)
        _checks.check_device(self.device)
        _checks.check_optimizer(self.optimizer)
        _checks.check_module(recipe.make, layout, loss_function(self.loss))

    def _check_setting(self, plan, data, blocks):
        super()._check_setting(plan, data, blocks)
        blueprint(self._recipe()).fixed(data.n_items)
        layout = self._module_layout()
        tables = layout.named("private item")
        numbers = data.n_users * data.n_items * sum(layout.parts[name].width for name in tables)
        memory.require(
            2 * numbers * layout.dtype.itemsize,
            f"Private tables with a row per item ({', '.join(tables)}) for {data.n_users} users",
            "Share them among the clients, or use fewer users or items.",
        )

    @property
    def _needs_positives(self):
        return self.loss == "bce" or self._n_negatives > 0

    @property
    def _sees_ratings(self):
        return self.loss != "bce"

    def _least_bytes(self, data):
        users = data.n_users * self._module_layout().n_private(data.n_items)
        everybody = 2 * np.dtype(self._dtype).itemsize * users if self.client_fraction == 1 else 0
        return super()._least_bytes(data) + everybody

    def to_module(self, user: Any = None) -> nn.Module:
        """Return the fitted module, with copies of the parameters.

        Parameters
        ----------
        user : int, float or str, default=None
            Id of the only user of the module, whose code in it is 0. If None, all users, in the
            order of `user_ids_`, unless layers are private: then each user has a module of its own.

        Returns
        -------
        module : torch.nn.Module
            ``module(users, items)`` gives the scores of codes, items' in the order of `item_ids_`,
            without `global_bias_` and before the sigmoid that `predict` takes.

        Raises
        ------
        ValueError
            If the user is not known, or is needed.

        Examples
        --------
        >>> import torch
        >>> from fedrecsk.neural import FedNCF
        >>> X = [["ann", "tea"], ["ann", "jam"], ["bob", "tea"]]
        >>> model = FedNCF(2, layers=(4, 2), n_rounds=2, random_state=0).fit(X)
        >>> score = model.to_module()(torch.tensor([0]), torch.tensor([1]))
        >>> bool(abs(score.sigmoid().item() - model.predict([["ann", "tea"]])[0]) < 1e-6)
        True
        """
        check_is_fitted(self)
        made, n_items = blueprint(self._fitted_recipe), self.n_items_
        own = made.layout.named("private", "private item")
        if user is None and own:
            raise ValueError(
                f"{', '.join(own)} of the module are private to each client, so there is no module "
                "of all users; pass the id of one, such as "
                f"to_module({self.user_ids_[0].item()!r})."
            )
        if user is None:
            codes = np.arange(self.n_users_)
        else:
            codes = self._users.codes(id_array([user], "user"))
        if (codes < 0).any():
            raise ValueError(f"User {user!s} is not known; pass an id of user_ids_.")
        rows = self.user_factors_[codes]
        values = self.parameters_ | {n: v.numpy() for n, v in made.fixed(n_items).items()}
        for name, column in made.layout.columns(n_items).items():
            is_table = made.layout.parts[name].kind == "user"
            values[name] = rows[:, column] if is_table else rows[0, column]
        with seeded(0):
            module = built(self._fitted_recipe.make, len(codes), n_items)
        state = {
            name: torch.from_numpy(values[name].copy()).reshape(first.shape).to(first.dtype)
            for name, first in module.named_parameters()
        }
        # Tied parameters have one name among these.
        module.load_state_dict(state, strict=False)
        return module.eval()
