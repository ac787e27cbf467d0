"""A torch module of your own as a federated recommender: FederatedModule and Net."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

from sklearn.base import BaseEstimator
from torch import nn

from fedrecsk._utils.constraints import Positive
from fedrecsk._utils.docs import documented
from fedrecsk.neural._layout import Recipe
from fedrecsk.neural.base import NeuralRecommender
from fedrecsk.neural.modules import GMF


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
        vars(self).update(
            module=params.pop("module", self.module), arguments=self.arguments | params
        )
        return self


@documented
@dataclass(eq=False, repr=False)
class FederatedModule(NeuralRecommender):
    """Federated averaging of your own torch module.

    Name the private parameters. They stay on the clients; the others are trained by federated
    averaging [1]_: in each round, clients receive them, train all parameters on their own data, and
    upload the changes. Clients are trained side by side by ``torch.func``, with the results of a
    loop over clients.

    The feedback, the negatives and the losses are those of :class:`~fedrecsk.FedMF`.

    Parameters
    ----------
    module : Net or callable, default=None
        Constructor of the module, called with `n_users` and `n_items`: its class, a function, or a
        :class:`Net` with further arguments. ``module(users, items)`` must return the scores of
        pairs of codes, in the shape of `users`. If None, :class:`~fedrecsk.neural.modules.GMF`.
    private : str or sequence of str, default=("user*",)
        Pattern or patterns (as in ``fnmatch``) of the names of private parameters. All parameters
        with a row per user must be among them.
    loss : {"bce", "squared"} or callable, default="bce"
        Cross-entropy with sampled negatives; half the squared error of ratings, without negatives;
        or a function of tensors of scores and targets that returns the loss of each example, which
        must not depend on the others, because they are those of many clients at once. Targets
        are y (1 without y), and 0 for negatives, of which `n_negatives` are drawn for each row with
        y > 0.
    n_negatives : int, default=4
        Number of sampled negatives per positive.
    optimizer : {"adam", "sgd"} or callable, default="adam"
        How clients train. Every client starts anew in each round. A callable returns a torch
        optimiser for a list of parameter groups, for example
        ``functools.partial(torch.optim.SGD, momentum=0.9)``.
    learning_rate : float or dict of str to float, default=0.01
        Learning rate, or one for each pattern of names; the first that matches counts.
    local_epochs : int, default=1
        Number of passes of a client over its examples per round.
    batch_size : int, default=256
        Number of examples in a mini-batch; an epoch's last one may be smaller.
    aggregation : {"visits", "mean"}, default="visits"
        Divisor of the sum of the clients' changes. "visits": a table with a row per item is
        divided, row by row, by the number of clients with examples of the item, which they upload
        too. "mean": everything is divided by the number of clients.
    device : str or torch.device, default="cpu"
        Torch device on which clients are trained. Fits are repeatable on "cpu" only.
    n_rounds : int, default=100
        Number of rounds in total.
    {shared parameters}

    Attributes
    ----------
    parameters_ : dict of str to ndarray
        The shared parameters, as matrices: of a table with a row per item, of shape (n_items,
        width).
    item_factors_ : ndarray of shape (n_items, width)
        Those with a row per item, side by side.
    user_factors_ : ndarray of shape (n_users, n_private)
        Each user's private parameters, one after the other in the module's order, after
        `local_epochs` more on the final model.
    {neural attributes}
    {shared attributes}

    Raises
    ------
    ValueError
        If the module cannot be simulated exactly: it has buffers (batch normalisation), dropout, a
        table with a row per user that is not private, or another use of codes than as rows of its
        tables; if the optimizer mixes coordinates; if a pattern matches no parameter; if the
        device does not exist; or as :class:`~fedrecsk.FedMF` does. If a client's loss is infinite
        or NaN.
    ImportError
        If torch is not installed.

    See Also
    --------
    FedNCF, PFedRec : Methods of papers on the same base class.

    Notes
    -----
    *What is sent.* Each round a client receives all parameters that are not private, and uploads a
    change of each, with zeros for items without examples, plus one byte per item with
    ``aggregation="visits"``. A server that sees single uploads learns from one of them which items
    the client has: positives have changed one way and sampled negatives the other, see
    :func:`~fedrecsk.audit.measure_leak` and ``Federation(secure_aggregation=...)``.

    *Exactness.* The result is that of a loop over clients with whole tables, up to rounding: of a
    table with a row per item, only the rows of a client's examples have a gradient.

    *Fixed parameters*, with ``requires_grad=False``, are part of the module on every machine: they
    are neither trained nor sent. Features of items are such a table, with rows in the order of
    `item_ids_`.

    *Users' rows* begin as normal numbers with the mean and the standard deviation of the table
    that the module's constructor fills.

    References
    ----------
    .. [1] B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, "Communication-Efficient
       Learning of Deep Networks from Decentralized Data", AISTATS 2017, algorithm 1.

    Examples
    --------
    >>> from torch import nn
    >>> from fedrecsk.datasets import make_ratings
    >>> from fedrecsk.neural import FederatedModule, Net
    >>> class Dot(nn.Module):
    ...     def __init__(self, n_users, n_items, width):
    ...         super().__init__()
    ...         self.user = nn.Embedding(n_users, width)
    ...         self.item = nn.Embedding(n_items, width)
    ...
    ...     def forward(self, users, items):
    ...         return (self.user(users) * self.item(items)).sum(-1)
    >>> X, _ = make_ratings(n_users=50, n_items=30, n_ratings=400, random_state=0)
    >>> model = FederatedModule(Net(Dot, width=4), learning_rate=0.05, n_rounds=5, random_state=0)
    >>> model.fit(X).recommend([X[0, 0]], 3)[0].shape
    (1, 3)
    """

    module: Net | Callable[..., nn.Module] | None = None
    _: KW_ONLY
    private: str | Sequence[str] = ("user*",)
    learning_rate: Positive | dict[str, float] = 0.01

    def set_params(self, **params: Any) -> Self:
        """Set parameters; ``module__width`` sets an argument of a :class:`Net`.

        Returns
        -------
        self : estimator

        Raises
        ------
        ValueError
            If there is no such parameter, or `module` is not a :class:`Net`.
        """
        nested = [name for name in params if name.startswith("module__")]
        if nested and not isinstance(params.get("module", self.module), Net):
            raise ValueError(
                f"{nested[0]} sets an argument of a Net, and module is "
                f"{params.get('module', self.module)!r}; pass module=Net(...)."
            )
        return super().set_params(**params)

    def _check_before_fit(self):
        made = self.module.module if isinstance(self.module, Net) else self.module
        if isinstance(made, nn.Module):
            kind = type(made).__name__
            raise TypeError(
                f"module is an object of {kind}, already built; give its class, {kind}, or "
                f"Net({kind}, ...) with the arguments of its constructor."
            )
        for pattern in self._recipe().patterns:
            if not isinstance(pattern, str):
                raise TypeError(
                    f"private has {pattern!r}, which is not a string; give patterns of names of "
                    'parameters, for example private=("user*",).'
                )
        super()._check_before_fit()

    def _recipe(self):
        net = GMF if self.module is None else self.module
        if not isinstance(net, Net):
            return Recipe(net, self.private, (net,))
        arguments = type(net), net.module, *net.arguments, *net.arguments.values()
        return Recipe(net.build, self.private, arguments)
