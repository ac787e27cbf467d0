"""What a server of a deployed fit needs if it is restarted, and how it finds it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from fedrecsk.data.ids import catalogue_ids, named
from fedrecsk.deployment.checks import differences
from fedrecsk.deployment.device_server import DeviceServer
from fedrecsk.deployment.exchanges import Members
from fedrecsk.deployment.records import pack
from fedrecsk.deployment.store import STATE, Store
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.protocol.keys import Key

CHECKPOINT = "checkpoint"
# Who is in the masked sum that is being unmasked, by the name of the fit.
SUMS = "*.sums"


@dataclass(eq=False)
class Progress:
    """All that a restarted server needs."""

    # Name of the fit, by which nodes know their state.
    fit: str
    # Of the estimator's parameters.
    digests: dict[str, str]
    server: DeviceServer
    members: Members
    # Name of the fit that this one goes on from.
    after: str | None = None
    # Whether this is a fit of a search, all of which have names that begin alike.
    is_searched: bool = False
    # Number of the validation whose model is the best so far.
    best: int | None = None
    # One per exchange: what was sent, and how long it took.
    traffic: list[dict[str, float | str]] = field(default_factory=list)

    @classmethod
    def new(
        cls,
        method: FederatedRecommender,
        digests: dict[str, str],
        key: Key | None,
        last: Progress | None = None,
        fit: str | None = None,
    ) -> Self:
        """Return the progress of a new fit, which goes on from `last` if that is given.

        `fit` is its name in a search, None in no search.
        """
        name = secrets.token_hex(8) if fit is None else fit
        members, after = Members(last and last.members), last and last.fit
        return cls(name, digests, DeviceServer.of(method, key), members, after, fit is not None)

    def greeting(self) -> bytes:
        """Return the request to register."""
        head = {"kind": "register", "fit": self.fit, "parameters": self.digests}
        more = {"after": self.after, "search": self.is_searched}
        return pack(head | {name: value for name, value in more.items() if value}, {})

    def forget_nodes(self) -> None:
        """Let all clients say again where they are."""
        for one in self.members:
            one.node, one.is_late = None, False


def last_fit(estimator: FederatedRecommender, ours: dict[str, str], store: Store) -> Progress:
    """Return the last fit, of which only the items may differ."""
    path, last = store.folder / STATE, store.load(STATE)
    if last is None:
        raise ValueError(
            f"{store.folder} has no state of a fit that has ended, so there is nothing to "
            "update; run without update first."
        )
    of_items = {name: ours[name] for name in ("items", "item_features") if name in ours}
    differing = differences(ours, last.digests | of_items)
    if differing:
        raise ValueError(f"{path} is of another fit: {differing}")
    lacking = np.setdiff1d(last.server.item_ids, catalogue_ids(estimator.items).values)
    if len(lacking):
        raise ValueError(
            f"items lacks {named('item', lacking)}, which the last fit had; add new items to "
            "the old ones."
        )
    return last


def interrupted(ours: dict[str, str], store: Store) -> Progress | None:
    """Return the progress of a fit that was interrupted; None if there is none."""
    progress = store.load(CHECKPOINT)
    if progress is None:
        return None
    differing = differences(ours, progress.digests)
    if differing:
        raise ValueError(
            f"{store.folder / CHECKPOINT} is of a fit that has not ended, but {differing} Or "
            "remove the file to begin anew."
        )
    progress.forget_nodes()
    return progress
