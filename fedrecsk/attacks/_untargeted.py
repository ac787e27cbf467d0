"""Attacks that keep the model from learning."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Literal

import numpy as np
from scipy.stats import norm

from fedrecsk._utils import memory
from fedrecsk.attacks._base import (
    Adversary,
    Factor,
    Strength,
    draw,
    random_items,
    send_rows_of,
    with_numbers,
    with_rows,
)


class _FieldByField(Adversary):
    """Base class of attacks that forge each field on its own."""

    @abstractmethod
    def _forge_field(self, view, rows, name, seeds):
        """Return what the clients send in one field, whose plan is ``view.plan[name]``."""

    def _plan_field(self, view, name):
        """Decide what is the same for all controlled clients in one field."""

    def _plan(self, view):
        return {name: self._plan_field(view, name) for name in view.specs}

    def _forge(self, view, updates, seeds):
        fields = {
            name: self._forge_field(view, rows, name, seeds)
            for name, rows in updates.learned.items()
        }
        return updates.with_fields(**fields)


@dataclass(kw_only=True, eq=False, repr=False)
class RandomUpload(_FieldByField):
    """Upload noise: every number is drawn from N(0, strength^2).

    Parameters
    ----------
    fraction, clients
        As in :class:`Adversary`.
    strength : float, default=1.0
        Standard deviation, in the units of the uploads.

    Examples
    --------
    >>> from fedrecsk import Federation, LocALS
    >>> from fedrecsk.attacks import RandomUpload
    >>> from fedrecsk.datasets import make_interactions
    >>> X = make_interactions(n_users=60, n_items=40, n_interactions=900, random_state=0)
    >>> federation = Federation(adversary=RandomUpload(clients=[3, 5]))
    >>> LocALS(n_factors=4, federation=federation, random_state=0).fit(X).compromised_clients_
    array([3, 5])
    """

    strength: Strength = 1.0

    def _forge_field(self, view, rows, name, seeds):
        rows, numbers = draw(rows, name, seeds, np.random.Generator.standard_normal)
        return with_numbers(rows, self.strength * numbers)


@dataclass(kw_only=True, eq=False, repr=False)
class SignFlip(_FieldByField):
    """Upload ``-strength`` times what the client has honestly learned.

    Parameters
    ----------
    fraction, clients
        As in :class:`Adversary`.
    strength : float, default=5.0
        Factor on the honest change, whose sign is flipped.

    Examples
    --------
    >>> from fedrecsk.attacks import SignFlip
    >>> SignFlip(fraction=0.2, strength=1.0)
    SignFlip(fraction=0.2, strength=1.0)
    """

    strength: Strength = 5.0

    def _forge_field(self, view, rows, name, seeds):
        if rows.factors is not None:
            rows = rows.written_out()
        flipped = with_numbers(rows, -self.strength * rows.values.astype(np.float64))
        default = None if rows.default is None else -self.strength * rows.default.astype(np.float64)
        return replace(flipped, default=default)


class RandomDirection(_FieldByField):
    """Upload a random direction with the norm of the honest change, which clipping cannot detect.

    Parameters
    ----------
    fraction, clients
        As in :class:`Adversary`.

    Examples
    --------
    >>> from fedrecsk.attacks import RandomDirection
    >>> RandomDirection(fraction=0.2)
    RandomDirection(fraction=0.2)
    """

    def _forge_field(self, view, rows, name, seeds):
        lengths = rows.norms()
        rows, numbers = draw(rows, name, seeds, np.random.Generator.standard_normal)
        if rows.columns is not None:
            numbers *= rows.columns[rows.owners]
        drawn = rows.with_values(numbers).norms()
        factors = (lengths / np.where(drawn > 0, drawn, 1))[rows.owners]
        return with_numbers(rows, (numbers.T * factors).T)


@dataclass(kw_only=True, eq=False, repr=False)
class ALIE(_FieldByField):
    """A Little Is Enough: upload the mean less a few standard deviations, which looks honest.

    Every controlled client sends ``mean - z std``, number by number, over what the adversary's
    clients would honestly send. Many honest uploads lie farther from the mean, so that medians
    and trimmed means keep it, and it always points to the same side.

    Parameters
    ----------
    fraction, clients
        As in :class:`Adversary`.
    z : float, default=None
        Number of standard deviations. If None, the largest with which, if numbers are normal, a
        majority can still be made of the controlled clients and honest ones that lie farther out.
        Of n clients that upload, m controlled: the normal quantile of ``(n - m - s) / (n - m)``
        with ``s = floor(n / 2 + 1) - m``, and at least 0.

    Notes
    -----
    *What it knows*: its own clients' honest uploads, and how many clients upload in the round.

    *What differs from the paper* [1]_: where not all clients send a row, mean and deviation are
    over those of its clients that do, and only these forge it.

    References
    ----------
    .. [1] G. Baruch, M. Baruch and Y. Goldberg, "A Little Is Enough: Circumventing Defenses For
       Distributed Learning", NeurIPS 2019.

    Examples
    --------
    >>> from fedrecsk.attacks import ALIE
    >>> ALIE(fraction=0.2, z=1.5)
    ALIE(fraction=0.2, z=1.5)
    """

    z: Factor | None = None

    def _plan_field(self, view, name):
        z = largest_z(view.n_senders, view.n_own) if self.z is None else self.z
        return view.mean(name) - z * view.std(name)

    def _forge_field(self, view, rows, name, seeds):
        return send_rows_of(view.plan[name], rows)


def largest_z(n_clients: int, n_own: int) -> float:
    """Return how many standard deviations a value may be off and still find supporters."""
    n_honest = n_clients - n_own
    n_supporters = max(n_clients // 2 + 1 - n_own, 1)
    return float(norm.ppf(max((n_honest - n_supporters) / max(n_honest, 1), 0.5)))


@dataclass(kw_only=True, eq=False, repr=False)
class Fang(_FieldByField):
    """Fang et al.'s attack on trimmed means: numbers just beyond the honest ones, the wrong way.

    Where the adversary's clients would raise a number on average, its forged values lie between
    3 and 4 standard deviations below their mean, and above it otherwise, drawn uniformly by each
    client.

    Parameters
    ----------
    fraction, clients
        As in :class:`Adversary`.
    nearest, farthest : float, default=3.0 and 4.0
        Between how many standard deviations from the mean the values lie.

    Notes
    -----
    *What it knows*: its own clients' honest uploads (the paper's partial knowledge).

    *What differs from the paper* [1]_: means and deviations as in :class:`ALIE`. Only the attack
    on trimmed mean and median is here, not the one on Krum.

    References
    ----------
    .. [1] M. Fang, X. Cao, J. Jia and N. Gong, "Local Model Poisoning Attacks to Byzantine-Robust
       Federated Learning", USENIX Security 2020.

    Examples
    --------
    >>> from fedrecsk.attacks import Fang
    >>> Fang(fraction=0.2)
    Fang(fraction=0.2)
    """

    nearest: Factor = 3.0
    farthest: Factor = 4.0

    def enter(self, data, rates, key):
        if self.nearest > self.farthest:
            raise ValueError(
                f"Fang(nearest={self.nearest}, farthest={self.farthest}): nearest must not exceed "
                "farthest; lower nearest, or raise farthest."
            )
        return super().enter(data, rates, key)

    def _plan_field(self, view, name):
        mean = view.mean(name)
        return mean, -np.sign(mean) * view.std(name)

    def _forge_field(self, view, rows, name, seeds):
        mean, off = view.plan[name]
        rows, numbers = draw(
            rows, name, seeds, lambda one, shape: one.uniform(self.nearest, self.farthest, shape)
        )
        return with_numbers(rows, mean[rows.rows] + numbers * off[rows.rows])


@dataclass(kw_only=True, eq=False, repr=False)
class MinMax(_FieldByField):
    """Upload the mean plus the largest perturbation that stays within the honest uploads' spread.

    Each controlled client sends ``mean + gamma * perturbation``, with the largest gamma for which
    its greatest distance to an honest upload does not exceed the greatest distance between two
    honest ones. This holds for each field on its own.

    Parameters
    ----------
    fraction, clients
        As in :class:`Adversary`.
    perturbation : {"unit_vector", "std", "sign"}, default="std"
        Direction: the inverse of the mean's unit vector, of the standard deviations, or of the
        mean's signs.

    Notes
    -----
    *What it knows*: its own clients' honest uploads, which stand for all honest ones. With one
    client only, it sends the honest upload.

    *What differs from the paper* [1]_: gamma has a closed form instead of a search, and is found
    for each field, because fields have units of their own. Mean and deviation are over the clients
    that send a row, and rows that a client does not send count as 0 in distances, so gamma can
    differ between clients. Clients for which the mean itself is too far off send the mean.

    References
    ----------
    .. [1] V. Shejwalkar and A. Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning
       Attacks and Defenses for Federated Learning", NDSS 2021.

    Examples
    --------
    >>> from fedrecsk.attacks import MinMax
    >>> MinMax(fraction=0.2)
    MinMax(fraction=0.2)
    """

    perturbation: Literal["unit_vector", "std", "sign"] = "std"

    def _plan_field(self, view, name):
        mean = view.mean(name)
        match self.perturbation:
            case "unit_vector":
                direction = -mean / (np.linalg.norm(mean) or 1.0)
            case "std":
                direction = -view.std(name)
            case _:
                direction = -np.sign(mean)
        spec = view.specs[name]
        memory.require(
            2 * 8 * view.n_own * prod(spec.shape),
            f"MinMax's {view.n_own} uploads of {name!r} side by side",
            "Let it control fewer clients, or use ALIE.",
        )
        honest = np.concatenate([one.fields[name].whole() for one in view.updates])
        spread = _Spread(honest.astype(np.float64, copy=False), mean, direction)
        if spec.rows != "all":
            return spread
        return mean + spread.gamma(slice(None)) * direction

    def _forge_field(self, view, rows, name, seeds):
        plan = view.plan[name]
        if rows.spec.rows == "all":
            return send_rows_of(plan, rows)
        gammas = [plan.gamma(rows.rows[slice(*span)]) for span in pairwise(rows.indptr)]
        steps = plan.direction[rows.rows].T * np.repeat(gammas, rows.n_rows)
        return with_numbers(rows, plan.mean[rows.rows] + steps.T)


class _Spread:
    """The honest uploads of one field, and the direction of the attack."""

    def __init__(self, honest, mean, direction):
        self.honest, self.mean, self.direction = honest, mean, direction
        flat = honest.reshape(len(honest), -1)
        products = flat @ flat.T
        self.squares = products.diagonal()
        # The greatest squared distance between two of them.
        distances = self.squares[:, None] + self.squares - 2 * products
        self.bound = max(distances.max(), 0.0)

    def gamma(self, rows):
        """Return the largest gamma for a client that sends these rows."""
        # The largest root of |mean + gamma direction - honest|^2 = bound, over the nearest.
        mean, direction = self.mean[rows].ravel(), self.direction[rows].ravel()
        honest = self.honest[:, rows].reshape(len(self.honest), -1)
        gaps = self.squares - 2 * honest @ mean + mean @ mean - self.bound
        slopes, square = (mean - honest) @ direction, direction @ direction
        if square == 0 or (gaps > 0).any():
            return 0.0
        return float(((np.sqrt(slopes**2 - square * gaps) - slopes) / square).min())


class LabelFlip(Adversary):
    """Train honestly, but on the opposite of the users' preferences.

    Ratings are mirrored on their scale. With implicit feedback, a user's items are replaced by as
    many items that it has not interacted with; users with all items keep them.

    Parameters
    ----------
    fraction, clients
        As in :class:`Adversary`.

    Examples
    --------
    >>> from fedrecsk.attacks import LabelFlip
    >>> LabelFlip(fraction=0.3)
    LabelFlip(fraction=0.3)
    """

    def _poison(self, data, controlled, rates, key):
        theirs = np.repeat(controlled, np.diff(data.rating_indptr))
        if rates:
            mirrored = data.values.min() + data.values.max() - data.values
            return replace(data, values=np.where(theirs, mirrored, data.values))
        users, items = data.users, data.items.astype(np.int64)
        kept = ~theirs
        for u in np.unique(users[theirs]):
            rows = slice(data.indptr[u], data.indptr[u + 1])
            others = np.setdiff1d(np.arange(data.n_items), data.items[rows])
            if len(others) == 0:
                kept[rows] = True
                continue
            n = rows.stop - rows.start
            new = random_items(key, "flipped labels", data.n_items, u, others, n)
            span = slice(rows.start, rows.start + len(new))
            items[span] = new
            kept[span] = True
        return with_rows(data, users[kept], items[kept], data.values[kept], data.weights[kept])
