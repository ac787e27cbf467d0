"""Adversaries: clients of a federation that do not follow the protocol."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from sklearn.base import BaseEstimator

from fedrecsk._sklearn import Interval
from fedrecsk.attacks._one_by_one import forged_one_by_one
from fedrecsk.attacks._profiles import rows_of
from fedrecsk.interactions import Ids, id_array
from fedrecsk.uploads import Ragged

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from fedrecsk.attacks._view import View
    from fedrecsk.interactions import Interactions
    from fedrecsk.simulation.keys import Key
    from fedrecsk.uploads import Batch, Changes


@dataclass(eq=False)
class Intrusion:
    """An adversary that takes part in a fit.

    Parameters
    ----------
    adversary : Adversary
    controlled : ndarray of shape (n_clients,), dtype bool
        Mask of the clients that it controls.
    data : Interactions
        Data that all clients train on.
    memory : dict
        What the adversary remembers from round to round.
    """

    adversary: Adversary
    controlled: np.ndarray
    data: Interactions
    memory: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        users = np.repeat(self.controlled, np.diff(self.data.client_indptr))
        self.own_data: Interactions = rows_of(self.data, users)
        self.message = None
        self._view = None

    def look(self, view: View | None) -> None:
        """Take what the adversary sees in a round, and let it plan; None: the round is over."""
        self._view = view
        if view is not None:
            view.plan = self.adversary._plan(view)

    def forge(self, batch: Batch, seeds: NDArray[np.uint64], summed: bool) -> dict[str, Changes]:
        """What the clients of a batch send instead of their uploads. It controls all of them.

        Parameters
        ----------
        batch : Batch
        seeds : ndarray of shape (n_clients,), dtype uint64
            Seeds of the clients' draws.
        summed : bool
            Whether only the sum of the uploads will be used.

        Returns
        -------
        dict of {str: Changes}
        """
        if not batch.sends.any():
            return batch.changes
        return self.adversary._forged_batch(self._view, batch, seeds, summed)


class Adversary(BaseEstimator, ABC):
    """Base class: what ``Federation(adversary=...)`` takes.

    An adversary controls some clients for the whole fit. They register, and report their errors
    on held-out rows, like all other clients; but their uploads, or the data that they train on,
    are forged. ``compromised_clients_`` of the fitted model has their ids.

    To write your own adversary, implement one method, ``_forged(self, view, upload, generator)``.
    It receives what one client would honestly send, and returns what the client sends instead.
    `upload` is a dict with an ``Update(rows, change)`` for each field: `change` is the difference
    from the upload of a client that has learned nothing. Return the same fields with changes of
    the same shapes. Integer fields are rounded for you; where a number takes one bit, it becomes
    its sign. Use `generator` for your draws. `view` is a :class:`View`: what the adversary sees in
    this round, such as the broadcast and all its clients' honest uploads. What is the same for
    all its clients can be computed once, in ``_plan(self, view)``, whose result is ``view.plan``.

    Parameters
    ----------
    fraction : float in (0, 1), default=0.1
        Share of the clients to control, at least one client. They are drawn with the fit's
        `random_state`.
    clients : array-like of shape (n_controlled,), default=None
        Ids of the clients to control, instead of a share of all.

    Examples
    --------
    An adversary whose clients send twice what they have learned:

    >>> import numpy as np
    >>> from fedrecsk import Federation
    >>> from fedrecsk.aggregation import Update
    >>> from fedrecsk.attacks import Adversary
    >>> class Double(Adversary):
    ...     def _forged(self, view, upload, generator):
    ...         return {name: u._replace(change=2 * u.change) for name, u in upload.items()}
    >>> upload = {"items": Update(slice(None), np.array([[0.5, -1.0]]))}
    >>> Double()._forged(None, upload, np.random.default_rng(0))["items"].change
    array([[ 1., -2.]])
    >>> federation = Federation(adversary=Double(fraction=0.2))
    """

    _parameter_constraints: ClassVar[dict] = {
        "fraction": [Interval(Real, 0, 1, closed="neither")],
        "clients": ["array-like", None],
    }

    def __init__(self, fraction: float = 0.1, *, clients: ArrayLike | None = None):
        self.fraction = fraction
        self.clients = clients

    def __init_subclass__(cls, **arguments: object) -> None:
        super().__init_subclass__(**arguments)
        # A subclass's own `_forged` takes precedence over an inherited `_forged_batch`.
        if "_forged" in vars(cls) and "_forged_batch" not in vars(cls):
            cls._forged_batch = Adversary._forged_batch

    @property
    def forges(self) -> bool:
        """Whether it forges uploads, rather than only the data that its clients train on."""
        own = type(self)
        return (
            own._forged is not Adversary._forged or own._forged_batch is not Adversary._forged_batch
        )

    def enter(self, data: Interactions, rates: bool, key: Key) -> Intrusion:
        """Take over some clients of a fit.

        Parameters
        ----------
        data : Interactions
            Data of all clients.
        rates : bool
            Whether the data are ratings, rather than implicit feedback.
        key : Key
            Key of the fit's random draws.

        Returns
        -------
        Intrusion

        Raises
        ------
        ValueError
            If a client is unknown, if no honest client is left, or if a subclass implements no
            attack.
        """
        if not self.forges and type(self)._poisoned is Adversary._poisoned:
            raise ValueError(
                f"{type(self).__name__} attacks nothing: it has no `_forged` of its own, which "
                "returns what its clients upload. Implement _forged(self, view, upload, "
                "generator), or use an adversary of fedrecsk.attacks."
            )
        controlled = self._controlled(data.client_ids, key)
        poisoned = self._poisoned(data, controlled, rates, key)
        return Intrusion(self, controlled, poisoned)

    def _controlled(self, client_ids, key):
        n_clients = len(client_ids)
        controlled = np.zeros(n_clients, dtype=bool)
        if self.clients is None:
            order = np.argsort(key.at(-1).hashed("adversary", np.arange(n_clients)), kind="stable")
            controlled[order[: max(1, round(self.fraction * n_clients))]] = True
        else:
            theirs = id_array(self.clients, "clients of the adversary")
            codes = Ids(client_ids, "clients").codes(theirs)
            if len(codes) == 0:
                raise ValueError(
                    f"{type(self).__name__}(clients=[]) controls no client; name one, or set "
                    "adversary=None."
                )
            unknown = theirs[codes < 0]
            if len(unknown):
                raise ValueError(
                    f"{type(self).__name__}(clients=...) names {unknown[0]!s}, which is not a "
                    "client of this fit; use ids of the user column, or of fit's `clients` if you "
                    "pass them."
                )
            controlled[codes] = True
        if controlled.all():
            raise ValueError(
                f"{type(self).__name__} would control all {n_clients} clients, so that no honest "
                "one would be left; lower fraction, or name fewer clients."
            )
        return controlled

    def _poisoned(self, data, controlled, rates, key):
        """Data that the clients train on."""
        return data

    def _check_method(self, method):
        """Raise if the attack does not suit a federated method."""

    def _plan(self, view):
        """Decide what is the same for all controlled clients in a round.

        Parameters
        ----------
        view : View

        Returns
        -------
        plan : object
            It becomes ``view.plan``.
        """

    def _forged(self, view, upload, generator):
        """What a controlled client sends instead of `upload`.

        Parameters
        ----------
        view : View
            What the adversary sees in this round.
        upload : dict of {str: Update}
            What the client would honestly send.
        generator : numpy.random.Generator
            Generator of this client in this round.

        Returns
        -------
        dict of {str: Update}
        """
        return upload

    def _forged_batch(self, view, batch, seeds, summed):
        """What the clients of a batch send instead of their uploads; all are controlled.

        Parameters
        ----------
        view : View
        batch : Batch
        seeds : ndarray of shape (n_clients,), dtype uint64
        summed : bool
            Whether only the sum of the uploads will be used, so that one draw for the sum is
            enough.

        Returns
        -------
        dict of {str: Changes}
        """
        return forged_one_by_one(self, view, batch, seeds)


def are_ragged(batch: Batch) -> bool:
    """Whether all learned fields of a batch are Ragged."""
    return all(isinstance(changes, Ragged) for changes in batch.changes.values())


def changed(upload, change):
    """An upload with `change` applied to the change of each field."""
    return {name: update._replace(change=change(update.change)) for name, update in upload.items()}
