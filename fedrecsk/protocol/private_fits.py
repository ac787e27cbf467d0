"""A warning before a private fit that takes long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk._utils.user_warnings import warn
from fedrecsk.privacy import central_dp
from fedrecsk.protocol.central_noise import PlannedUploads
from fedrecsk.protocol.keys import Key

if TYPE_CHECKING:
    from fedrecsk.protocol.plan import FitPlan

# Shares that take fewer seconds are drawn without a word.
LONG = 30.0
# Numbers that are drawn to see how long it takes.
SAMPLE = 2**15


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
