"""Which inversion a curious server uses against which method."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fedrecsk.attacks._inversion_factors import explicit_fcf, fcf, fedfast, fedmf, wmf
from fedrecsk.attacks._inversion_other import fedeb, fedrec, gram, lightfr, neural, semidfegl
from fedrecsk.attacks._inversion_rfrec import rfrec
from fedrecsk.attacks._source_separation import by_lines, by_lines_beside_a_matrix, by_pairs

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedrecsk.attacks._reconstruction import Reconstruction


class Inversion(NamedTuple):
    """How to invert a method's uploads, and how to separate a sum of them (None: not at all)."""

    invert: Callable[..., Reconstruction] | None
    separate: Callable[..., list[Reconstruction]] | None = None


_WMF = Inversion(wmf, by_lines(wmf, "rows"))
_FEDMF = Inversion(fedmf, by_lines(fedmf, "updates", tolerance=1e-3))
_RFREC = Inversion(rfrec, by_lines(rfrec, "item_vectors", tolerance=1e-3, signed=True))

# By class or, for this package's own methods, by its name: they import no attacks and, of the
# neural ones, not all can be imported everywhere. Subclasses inherit.
_INVERSIONS: dict[type | str, Inversion] = {
    "CoLR": _FEDMF,
    "ExplicitFCF": Inversion(explicit_fcf, by_lines(explicit_fcf, "gradient")),
    "FCF": Inversion(fcf, by_lines_beside_a_matrix),
    "FedEASE": Inversion(gram, by_pairs),
    "FedEB": Inversion(fedeb),
    "FedFast": Inversion(fedfast),
    "FedMF": _FEDMF,
    "FedNCF": Inversion(neural),
    "FedRec": Inversion(fedrec),
    "FedSpectral": Inversion(gram, by_pairs),
    "FederatedModule": Inversion(neural),
    "GlobSGD": _WMF,
    "LightFR": Inversion(lightfr),
    "LocALS": _WMF,
    "LocSGD": _WMF,
    "PFedRec": Inversion(neural),
    "RFRec": _RFREC,
    "SemiDFEGL": Inversion(semidfegl),
}


def inversion_of(method: type) -> Inversion:
    """Return the inversion of the class, or of its first base class that has one."""
    for one in method.__mro__:
        for key in (one, one.__name__ if one.__module__.startswith("fedrecsk.") else None):
            if key in _INVERSIONS:
                return _INVERSIONS[key]
    return Inversion(None)


def register_inversion(
    method: type,
    invert: Callable[..., Reconstruction] | None,
    separate: Callable[..., list[Reconstruction]] | None = None,
) -> None:
    """Tell `measure_leak` how a curious server attacks a method.

    Parameters
    ----------
    method : type
        Class of the method. Its subclasses inherit the inversion.
    invert : callable or None
        A function ``(model, exchanges, n_items)`` that returns the `Reconstruction` of a client.
        `model` is an estimator with the method's hyperparameters that is not fitted. `exchanges`
        are the client's uploads in the order of rounds; each has the `message` that it answers, a
        dict of fields, and the `upload`, a dict of :class:`~fedrecsk.aggregation.Update`. None:
        there is no inversion.
    separate : callable or None, default=None
        A function ``(model, exchanges, n_items)`` of the sums of a few clients' uploads that
        returns a list of `Reconstruction`, one for each client that it finds in them. None: sums
        are not taken apart.

    Examples
    --------
    A method whose clients send the rows of their own items, and nothing else, reveals them:

    >>> import numpy as np
    >>> from fedrecsk import LocALS
    >>> from fedrecsk.attacks import Reconstruction, measure_leak, register_inversion
    >>> from fedrecsk.datasets import make_interactions
    >>> class Mine(LocALS):
    ...     pass
    >>> def invert(model, exchanges, n_items):
    ...     rows = exchanges[-1].upload["rows"].rows
    ...     return Reconstruction(vector=None, items=np.arange(n_items)[rows])
    >>> register_inversion(Mine, invert)
    >>> X = make_interactions(n_users=60, n_items=40, n_interactions=900, random_state=0)
    >>> measure_leak(Mine(4), X).interactions
    1.0
    """
    _INVERSIONS[method] = Inversion(invert, separate)
