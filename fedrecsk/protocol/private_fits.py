"""What a method must fulfil to be fitted under privacy and secure sums."""

from __future__ import annotations

import time
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk._utils.user_warnings import warn
from fedrecsk.privacy import central_dp
from fedrecsk.protocol.central_noise import PlannedUploads
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.refusals import raise_all

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fedrecsk.privacy import CentralDP
    from fedrecsk.protocol.plan import FitPlan

# Shares that take fewer seconds are drawn without a word.
LONG = 30.0
# Numbers that are drawn to see how long it takes.
SAMPLE = 2**15


def check(plan: FitPlan, mechanism: CentralDP, others: Iterable[str]) -> None:
    """Raise ValueError if central privacy would not protect all that a method sends.

    `others` are texts of what else does not suit it.
    """
    algorithm = plan.algorithm
    found = list(_problems_of_settings(plan, "central_dp", "on which central_dp adds no noise"))
    found += others
    # Of any catalogue: what is sent, not how much.
    n_items = plan.n_items or 1
    specs = dict(algorithm.fields(n_items))
    specs |= algorithm.setup_fields(n_items)
    found += _problems_of_fields(plan, specs)
    unknown = sorted(set(mechanism.field_weights or {}) - set(specs))
    if unknown:
        found.append(
            f"CentralDP(field_weights=...) names {unknown[0]!r}, but {plan.name} sends "
            f"{', '.join(sorted(specs))}; use these names."
        )
    raise_all(found, "this privacy")


def check_local(plan: FitPlan, others: Iterable[str]) -> None:
    """Raise ValueError if local noise would not protect all that a method sends; see `check`."""
    found = list(_problems_of_settings(plan, "local_dp", "which local_dp does not protect"))
    raise_all([*found, *others], "this privacy")


def check_secure(plan: FitPlan) -> None:
    """Raise ValueError if secure sums cannot add up what a method sends."""
    if any(spec.rows != "all" for spec in plan.algorithm.fields(1).values()):
        raise ValueError(
            f"With secure_aggregation {plan.name} must send whole matrices, because "
            'rows of only some items cannot be added encrypted; set upload="all".'
        )


def warn_of_cost(plan: FitPlan, n_clients: int) -> None:
    """Warn, before any work, if clients' shares of the noise under secure sums take long."""
    mechanism, scheme = plan.federation.central_dp, plan.federation.secure_aggregation
    if mechanism is None or mechanism.noise != "clients" or scheme is None:
        return
    uploads = PlannedUploads.of(plan, n_clients, Key(0))
    sizes, n_uploads = uploads.sizes, int(uploads.cohort * uploads.n_rounds)
    if plan.algorithm.traits.sends_once:
        n_uploads = min(n_uploads, n_clients)
    n_values = n_uploads * sizes["round"] + uploads.n_setups * n_clients * sizes["setup"]
    start = time.process_time()
    central_dp.skellam(1e4, (SAMPLE,), np.random.default_rng(0))
    seconds = n_values * (time.process_time() - start) / SAMPLE
    if seconds < LONG:
        return
    nbytes = n_uploads * scheme._bytes_of_vector(sizes["round"], int(uploads.cohort))
    warn(
        f"Each client draws its share of the noise in {n_uploads:,} uploads of {sizes['round']:,} "
        f"numbers, which takes at least {seconds:,.0f} s on this machine. Under secure sums "
        f"clients send {nbytes / 1e9:,.2g} GB in all, and receive about as much. Lower "
        "n_rounds, client_fraction or n_factors, or try a part of the clients first."
    )


def _problems_of_settings(plan, name, but):
    if plan.early_stopping:
        yield (
            f"early_stopping uploads validation errors, {but}; set early_stopping=False with "
            f"{name}."
        )
    if plan.n_items is None:
        yield (
            f"With {name} the catalogue must be public, because one derived from the data "
            "reveals who is in them; set items= to the ids of all items on offer."
        )


def _problems_of_fields(plan, specs):
    name, partial = plan.name, []
    for field, spec in specs.items():
        if spec.bits or (spec.is_integer and spec.learned):
            yield (
                f"{name} sends codes or exact integers ({field}), which noise would destroy; set "
                "central_dp=None, or use a method that sends real numbers."
            )
        elif spec.rows != "all":
            partial.append(repr(field))
    if partial:
        own = fields(plan.algorithm) if is_dataclass(plan.algorithm) else ()
        has_choice = any(one.name == "upload" and one.init for one in own)
        hint = 'set upload="all"' if has_choice else "use a method that does, such as RFRec"
        yield (
            f"{name} sends only some rows of its matrix {', '.join(partial)}, and which ones "
            "reveals the items that a client holds; with central_dp clients must send whole "
            f"matrices: {hint}."
        )
