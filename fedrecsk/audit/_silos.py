"""What the upload of a client with several users, a silo, says about its users."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from sklearn.metrics import roc_auc_score

from fedrecsk.audit._inversion_rfrec import rated_items, rfrec
from fedrecsk.audit._inversions import best_length
from fedrecsk.audit._server_view import (
    LEAST,
    Reconstruction,
    by_lines,
    by_pairs,
    direction_of,
    matrix_of_pairs,
    sent_rows,
    separate_rows,
)
from fedrecsk.updates import Update

# Largest error of a cosine between rows computed from float32.
TOLERANCE = 1e-6
# Largest misfit of an item's row, as a share of its length along the user's vector.
MISFIT = 1e-3


class Silo(NamedTuple):
    """What a curious server infers about a silo, or about several whose uploads are added up."""

    common: Reconstruction  # of all users: the items that some of them have
    profiles: list[Reconstruction] | None  # of users that are isolated; None if not tried
    pairs: np.ndarray | None = None  # whether a user has both items, (n_items, n_items)


def locals_silo(model, exchanges, n_items):
    """Undo what the users of a LocALS silo share, and take the rest apart by lines."""
    # With F = prox A^-1, A (q_c - F q) is the sum of (pull - extra p . q_c) p over an item's users.
    message, upload = exchanges[-1].message, exchanges[-1].upload
    rows, items = sent_rows(upload["rows"], n_items)
    if "others" not in upload or not model.prox:
        return Silo(Reconstruction(None, items), None)
    follow = np.eye(rows.shape[1]) + upload["others"].change
    versions = rows + message["item_factors"].values[items] @ follow.T
    profiles = []
    for own, parts in separate_rows(model.prox * np.linalg.solve(follow, rows.T).T, TOLERANCE):
        direction = direction_of(parts)
        direction *= np.sign((parts @ direction).sum())
        along, scores = parts @ direction, versions[own] @ direction

        def misfits(length, along=along, scores=scores):
            return np.abs(along - length * (1 + model.alpha * (1 - length * scores)))

        # Where rows of several users are taken apart wrongly, the rest does not fit.
        length = best_length(lambda length, of=misfits: of(length).sum())
        fits = misfits(length) <= MISFIT * np.abs(along)
        if fits.sum() >= LEAST:
            profiles.append(Reconstruction(length * direction, items[own][fits]))
    return Silo(Reconstruction(None, items), profiles)


def gram_silo(model, exchanges, n_items):
    """Read the pairs of items, which are a sum over users: its diagonal is the items' counts."""
    pairs = matrix_of_pairs(exchanges[0].upload["gram"], n_items) > 0
    common = Reconstruction(None, np.flatnonzero(np.diag(pairs)))
    return Silo(common, by_pairs(model, exchanges, n_items), pairs)


def rfrec_silo(model, exchanges, n_items):
    """Take the items that do not follow the server's; those of one user have the same signs."""
    items = rated_items(model._algorithm(), exchanges, model._setting().local_dp)
    separate = by_lines(rfrec, "item_vectors", tolerance=1e-3, signed=True)
    return Silo(Reconstruction(None, items), separate(model, exchanges, n_items))


def silo_of(inversion, model, exchanges, n_clients, n_users, n_items):
    """Return what the server infers from uploads of a client, or from sums over several."""
    if n_clients == 1 and n_users > 1 and inversion.silo is not None:
        return inversion.silo(model, exchanges, n_items)
    common = inversion.invert(model, _means_of(exchanges, n_clients), n_items)
    if n_users == 1:
        return Silo(common, [])
    separate = inversion.separate
    return Silo(common, separate and separate(model, exchanges, n_items))


def _means_of(exchanges, n):
    if n == 1:
        return exchanges
    return [
        one._replace(upload={name: Update(r, c / n) for name, (r, c) in one.upload.items()})
        for one in exchanges
    ]


def not_tried(name, inversion, is_summed, is_isolating):
    """Return what the attack on a silo has left out."""
    missing = ["to infer attributes of users", "to combine several uploads of a silo"]
    if inversion.silo is None:
        missing.append(f"an attack made for silos of {name}, beyond the one for single users")
    elif is_summed:
        missing.append("the attack on single silos, which sums over several do not allow")
    if not is_isolating:
        missing.append("to isolate users")
    return tuple(missing)


def auc_of_membership(silo, lists, is_member, n_items):
    """Return the AUC with which known lists of items are found to be of a silo's users or not."""
    if is_member.all():
        return 0.5
    if silo.pairs is None:
        inferred = (np.isin(one, silo.common.items) for one in lists)
    else:
        inferred = (silo.pairs[np.ix_(one, one)] for one in lists)
    scores = np.array([one.mean() if one.size else 0.0 for one in inferred])
    if silo.profiles:
        scores = scores + similarities(lists, [one.items for one in silo.profiles], n_items).max(1)
    return float(roc_auc_score(is_member, scores))


def similarities(lists, others, n_items):
    """Return the Jaccard index of each list of items with each other."""
    one, other = _incidence(lists, n_items), _incidence(others, n_items)
    shared = (one @ other.T).toarray()
    either = one.sum(axis=1)[:, None] + other.sum(axis=1)[None] - shared
    return shared / np.maximum(either, 1)


def _incidence(lists, n_items) -> csr_array:
    """Return a matrix with a row for each list of items, and ones in their columns."""
    indptr = np.concatenate([[0], np.cumsum([len(one) for one in lists])])
    items = np.concatenate(lists).astype(np.int64)
    return csr_array((np.ones(len(items)), items, indptr), shape=(len(lists), n_items))
