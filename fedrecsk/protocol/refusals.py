"""Which parts of a federation do not suit which algorithms, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fedrecsk.protocol.algorithm import Traits
    from fedrecsk.protocol.federation import Federation


class Refusal(NamedTuple):
    """A part of a federation that algorithms with some trait cannot have.

    Attributes
    ----------
    part : name of the parameter of :class:`~fedrecsk.Federation`
    applies : function of Traits that returns whether they have the trait
    reason : what the method does, after its name, and why that does not suit the part
    cure : what to do instead
    """

    part: str
    applies: Callable[[Traits], bool]
    reason: str
    cure: str


REFUSALS = (
    Refusal(
        "secure_aggregation",
        lambda traits: traits.treats_clients_apart,
        "treats clients individually, so its server must see single uploads, which "
        "secure_aggregation hides",
        "set secure_aggregation=None",
    ),
    Refusal(
        "central_dp",
        lambda traits: traits.treats_clients_apart,
        "treats clients individually, so there is no sum to which central_dp could add noise",
        "set central_dp=None, or use a method whose server needs sums only",
    ),
    Refusal(
        "central_dp",
        lambda traits: traits.chooses_cohorts,
        "chooses its cohorts itself, and how often a client takes part may then depend on the data",
        "set central_dp=None",
    ),
)
# The reason against asynchronous rounds of a method whose traits lack `takes_stale`.
NOT_STALE = (
    "{} uploads what only fits the model of the same round, so that rounds cannot be asynchronous; "
    "set schedule=None or Synchronous(), or use FedEB, FedMF, FCF or LocALS."
)


def check(name: str, traits: Traits, federation: Federation) -> None:
    """Raise ValueError with all parts of a federation that a method of this name cannot have."""
    found = [
        f"{name} {one.reason}; {one.cure}."
        for one in REFUSALS
        if getattr(federation, one.part) is not None and one.applies(traits)
    ]
    found += [
        f"{name} has no {part}: {reason}"
        for part, reason in traits.refuses.items()
        if getattr(federation, part) is not None
    ]
    is_apart = traits.treats_clients_apart or traits.chooses_cohorts
    if federation.is_asynchronous and (is_apart or not traits.takes_stale):
        found.append(NOT_STALE.format(name))
    raise_all(found, "this federation")


def raise_all(found: list[str], what: str) -> None:
    """Raise a ValueError about all problems, if there are any."""
    if len(found) > 1:
        raise ValueError("\n- ".join([f"{len(found)} settings do not suit {what}:", *found]))
    if found:
        raise ValueError(found[0])
