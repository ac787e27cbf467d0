"""A silo that the server trusts as the reference for all others (FLTrust)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fedrecsk.aggregation._base import Aggregator, forms_of, weighted_sum
from fedrecsk.aggregation._whole import WholeUploads
from fedrecsk.interactions import Ids, id_array
from fedrecsk.uploads import Update

# Share of the rows of X that must be of items that the reference holds.
LEAST_SHARE = 0.5


class FLTrust(Aggregator):
    """Weight every upload by its agreement with that of a trusted client (Cao et al., NDSS 2021).

    The server trusts one client, such as a silo of its own. An upload's trust score is the cosine
    of its angle to the trusted client's upload, or 0 if that is negative. Every upload is
    rescaled to the trusted one's norm, and the rescaled uploads are averaged with their trust
    scores as weights (Algorithm 2 of the paper). For silos, where most clients hold most items.

    Angles and norms are those of whole uploads, all fields together, each field divided by the
    norm of the trusted upload's. Rows that a client does not send count as unchanged.

    Parameters
    ----------
    reference : id
        Id of the client that the server trusts: of the user column, or of fit's `clients` if
        you pass them.

    Raises
    ------
    ValueError
        By fit: if there is no such client, or if the federation's adversary controls it.

    Notes
    -----
    A round that the trusted client's upload does not reach, because of dropout or because it is
    not in the cohort, changes nothing.

    It is meant against uploads that point in another direction, such as noise or flipped signs. A
    client that promotes one item and is honest about all others keeps most of its trust: clip
    rows, or use an order statistic, against promotions.

    Departures from the paper: there the server trains on a small data set of its own; here the
    trusted client is one of the federation, and its upload is part of the mean, with trust
    score 1.

    References
    ----------
    .. [1] X. Cao, M. Fang, J. Liu and N. Z. Gong, "FLTrust: Byzantine-robust Federated Learning
       via Trust Bootstrapping", NDSS 2021.

    Examples
    --------
    >>> from fedrecsk import Federation, GlobSGD
    >>> from fedrecsk.aggregation import FLTrust
    >>> from fedrecsk.attacks import SignFlip
    >>> from fedrecsk.datasets import make_interactions
    >>> X = make_interactions(n_users=60, n_items=20, n_interactions=500, random_state=0)
    >>> attack, defence = SignFlip(clients=[3, 4]), FLTrust(reference=0)
    >>> federation = Federation(adversary=attack, aggregator=defence)
    >>> model = GlobSGD(4, federation=federation, random_state=0).fit(X, clients=X[:, 0] % 8)
    >>> model.compromised_clients_
    array([3, 4])
    """

    _parameter_constraints: ClassVar[dict] = {"reference": "no_validation"}

    def __init__(self, reference: object):
        self.reference = reference

    def _check_clients(self, data, n_clients):
        code = self._code(data.client_ids)
        held = np.zeros(data.n_items, dtype=bool)
        held[data.items[data.clients == code]] = True
        share = held[data.items].mean()
        if share < LEAST_SHARE:
            raise ValueError(
                f"FLTrust compares all uploads with that of client {self.reference!s}, but only "
                f"{100 * share:.0f} % of the rows of X are of items that it holds, so it would "
                "mostly compare zeros. Trust a client with more items, group the users into silos "
                "by fit(..., clients=...), or use RowClipping."
            )

    def _check_adversary(self, client_ids):
        if _code_of(self.reference, client_ids) >= 0:
            raise ValueError(
                f"FLTrust trusts client {self.reference!s}, but the federation's adversary "
                "controls it, so that nothing would be defended; name another reference, or the "
                "adversary's clients by its parameter `clients`."
            )

    def _start(self, client_ids):
        return {"reference": self._code(client_ids)}

    def _code(self, client_ids):
        code = _code_of(self.reference, client_ids)
        if code < 0:
            raise ValueError(
                f"FLTrust(reference={self.reference!r}) is not a client of this fit; use an id of "
                "the user column, or of fit's `clients` if you pass them, as it is there: a "
                "number or a string."
            )
        return code

    def combine(
        self, uploads: Sequence[dict[str, Update]], shapes: dict[str, tuple[int, ...]]
    ) -> dict[str, np.ndarray] | None:
        """Raise a ValueError: a list of uploads does not say which one is the reference's."""
        raise ValueError(
            "FLTrust cannot combine a list of uploads, which does not say whose they are; fit a "
            "model with Federation(aggregator=FLTrust(...))."
        )

    def _combine_batches(self, batches, memory=None):
        reference = _upload_of((memory or {}).get("reference", -1), batches)
        if reference is None:
            return None
        lengths = {name: float(np.linalg.norm(change)) for name, change in reference.items()}
        units = {name: length for name, length in lengths.items() if length > 0}
        uploads = WholeUploads(batches)
        shares = uploads.split(uploads.accepted.sum() * _shares(uploads, reference, units))
        totals = {}
        for name, form in forms_of(batches).items():
            if name in units:
                totals[name] = weighted_sum(batches, name, shares)
            else:
                # The trusted client has not changed this field.
                totals[name] = np.zeros(form.shape, dtype=form.sum_dtype)
        return totals


def _code_of(reference, client_ids):
    """Code of the client with this id; -1 if there is none, also for ids of another type."""
    try:
        return int(Ids(client_ids, "clients").codes(id_array([reference], "reference"))[0])
    except (TypeError, ValueError):
        return -1


def _upload_of(code, batches):
    """A client's whole upload, as arrays; None if the round has not received it."""
    for batch in batches:
        for client in np.flatnonzero(batch.accepted & (batch.clients == code)):
            return {name: changes.whole(client) for name, changes in batch.changes.items()}
    return None


def _shares(uploads, reference, units):
    """What each upload is multiplied by in the mean: its share of all trust, rescaled."""
    norms, length = np.sqrt(uploads.squares(units)), np.sqrt(len(units))
    known = uploads.accepted & (norms > 0) & np.isfinite(norms)
    # Attackers can send numbers so large that their products are infinite or NaN.
    with np.errstate(invalid="ignore", over="ignore"):
        cosines = uploads.products(reference, units) / np.where(known, norms * length, 1.0)
    known &= np.isfinite(cosines)
    trust = np.where(known, np.maximum(cosines, 0), 0.0)
    scale = np.divide(length, norms, out=np.zeros(len(norms)), where=known)
    return trust / (trust.sum() or 1.0) * scale
