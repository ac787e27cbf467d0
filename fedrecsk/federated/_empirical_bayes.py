"""What FedEB and PrivFedEB share: units of ratings, and uploads of rows of items."""

from __future__ import annotations

import numpy as np

from fedrecsk._utils.kernels import LazyModule
from fedrecsk.federated import _ratings
from fedrecsk.portable import Ridge
from fedrecsk.protocol.participation import RoundMasks
from fedrecsk.updates import SparseRows

fedeb_kernels: LazyModule = LazyModule("fedrecsk.federated._fedeb_kernels")

# The ends of the scale are this many units apart: on a scale from 1 to 5 a unit is a star.
UNITS = 4.0

# -------------------------------------------------------------------------- for algorithms


class Scale(_ratings.Scale):
    """The ends of the rating scale, and the level from which ratings are counted."""

    @property
    def unit(self):
        """What counts as 1 in the model, in ratings."""
        return ((self.high - self.low) or UNITS) / UNITS

    def in_units(self, block):
        """Return a block's ratings from the level, in units."""
        return (block.values - self.level) / self.unit


def for_nobody(block):
    """Return the masks of a step of all clients that send nothing."""
    everybody = np.ones(block.n_clients, dtype=bool)
    return RoundMasks(everybody, ~everybody, False)


def uploads(block, turn, width, n_implicit=0, dtype=np.float64):
    """Return where kernels write: sums by item, or the active clients' own rows."""
    senders, n_rows, slots, n = turn.active & turn.delivers, block.n_items, block.row_items, 1
    if turn.separate:
        senders, slots, n = turn.active, block.own_slots(turn.active), block.n_clients
        n_rows = int(block.row_counts[senders].sum())
    else:
        dtype = np.float64
    return fedeb_kernels.Uploads(
        senders,
        np.zeros((n_rows, width), dtype),
        np.zeros((n_rows, n_implicit), dtype),
        slots,
        np.zeros((n, 4)),
        np.ones(block.n_clients, dtype=bool),
        turn.separate,
    )


def written(block, turn, out):
    """Return what kernels have written, as fields of uploads."""
    if not turn.separate:
        return {"items": out.items, "implicit": out.implicit, "scales": out.scales[0]}
    own = block.own_rows(turn.active)
    return {
        "items": SparseRows(own.indptr, own.items, out.items),
        "implicit": SparseRows(own.indptr, own.items, out.implicit),
        "scales": SparseRows.stacked(out.scales),
    }


def posterior_rule(fitted, noise_variance, bias_variance, **others):
    """Return the rule of users' posterior means, in ratings."""
    factors = fitted["item_factors_"]
    vectors = np.column_stack([np.ones(len(factors), factors.dtype), factors])
    prior_precision = np.ones(vectors.shape[1])
    prior_precision[0] = 1 / bias_variance
    return Ridge.of(
        vectors,
        np.diag(prior_precision),
        offset=fitted["global_bias_"] + fitted["item_bias_"].astype(float),
        rates=True,
        confidence=1 / noise_variance,
        **others,
    )


def scale_of(fitted):
    """Return the scale of a fitted model."""
    return Scale(*fitted["rating_scale_"], fitted["global_bias_"])
