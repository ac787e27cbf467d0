"""Clipping of whole uploads."""

from __future__ import annotations

from numbers import Real
from typing import ClassVar, Literal

import numpy as np

from fedrecsk._sklearn import Interval, StrOptions
from fedrecsk.aggregation._base import InBlocks, forms_of, weighted_sum


class NormClipping(InBlocks):
    """Scale down every upload whose norm exceeds a bound, then add the uploads up.

    Works with every method and any kind of clients: no client can move the model further than an
    ordinary one. It limits the damage of poisoned uploads, but does not remove them.

    Parameters
    ----------
    max_norm : float or "median", default="median"
        Bound on the Euclidean norm of a client's change of one field. "median": the median norm
        of the round's uploads, for each field. Attackers cannot raise it much while they are
        fewer than half of the clients.
    multiple : float, default=1.0
        Factor on the median, if ``max_norm="median"``.

    Notes
    -----
    A client that holds many items has a longer update than one that holds few, and is
    scaled down more. All uploads of a round are kept in memory until their median is known.

    Examples
    --------
    >>> from fedrecsk import Federation, LocALS
    >>> from fedrecsk.aggregation import NormClipping
    >>> from fedrecsk.attacks import RandomUpload
    >>> from fedrecsk.datasets import make_interactions
    >>> X = make_interactions(n_users=60, n_items=40, n_interactions=900, random_state=0)
    >>> attack, defence = RandomUpload(0.1, strength=100), NormClipping()
    >>> federation = Federation(adversary=attack, aggregator=defence)
    >>> model = LocALS(n_factors=4, federation=federation, random_state=0).fit(X)
    >>> len(model.compromised_clients_)
    6
    """

    _parameter_constraints: ClassVar[dict] = {
        "max_norm": [Interval(Real, 0, None, closed="neither"), StrOptions({"median"})],
        "multiple": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(self, max_norm: float | Literal["median"] = "median", *, multiple: float = 1.0):
        self.max_norm = max_norm
        self.multiple = multiple

    def _combined(self, batches):
        return {
            name: clipped_sum(batches, name, self.max_norm, self.multiple)
            for name in forms_of(batches)
        }


def clipped_sum(batches, name, max_norm, multiple):
    """Sum of one field, with each client's whole change clipped."""
    norms = [batch.changes[name].norms(batch.accepted) for batch in batches]
    bound = max_norm
    if max_norm == "median":
        accepted = [n[batch.accepted] for n, batch in zip(norms, batches, strict=True)]
        bound = multiple * np.median(np.concatenate(accepted))
    return weighted_sum(batches, name, [factors_to(bound, n) for n in norms])


def factors_to(bound, norms):
    """Factors that bring each norm down to at most `bound`."""
    return np.divide(bound, norms, out=np.ones(len(norms)), where=norms > bound)
