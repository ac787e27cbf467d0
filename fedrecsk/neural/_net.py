"""A module that is still to be built, with the arguments of its constructor."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sklearn.base import BaseEstimator

if TYPE_CHECKING:
    from typing import Self

    from torch import nn


class Net(BaseEstimator):
    """A torch module that an estimator builds once it knows the numbers of users and items.

    Parameters
    ----------
    module : callable
        The module's class, or a function that returns a module. It is called with the keyword
        arguments `n_users` and `n_items`, and with those below.
    **arguments : object
        Further keyword arguments. They are parameters, so that searches can vary them.

    Examples
    --------
    >>> from fedrecsk.neural import FederatedModule, Net
    >>> from fedrecsk.neural.modules import GMF
    >>> net = Net(GMF, n_factors=4)
    >>> net.build(n_users=3, n_items=5).item
    Embedding(5, 4)
    >>> model = FederatedModule(net).set_params(module__n_factors=16)
    >>> model.module
    Net(module=<class 'fedrecsk.neural.modules.GMF'>, n_factors=16)
    """

    def __init__(self, module: Callable[..., nn.Module], **arguments: Any) -> None:
        self.module = module
        self.arguments = arguments

    def build(self, n_users: int, n_items: int) -> nn.Module:
        """Build the module.

        Parameters
        ----------
        n_users, n_items : int

        Returns
        -------
        module : torch.nn.Module
        """
        return self.module(n_users=n_users, n_items=n_items, **self.arguments)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters: the module's class and the arguments of its constructor.

        Parameters
        ----------
        deep : bool, default=True
            Without effect.

        Returns
        -------
        params : dict
        """
        return {"module": self.module} | self.arguments

    def set_params(self, **params: Any) -> Self:
        """Set the module's class, or arguments of its constructor, which may be new ones.

        Returns
        -------
        self : Net
        """
        self.module = params.pop("module", self.module)
        self.arguments = self.arguments | params
        return self
