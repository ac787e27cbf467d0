"""What FedEB and PrivFedEB share: units of ratings, and uploads of rows of items."""

from __future__ import annotations

import numpy as np

from fedrecsk._utils.kernels import LazyModule
from fedrecsk.base import RatingMixin
from fedrecsk.federated._feedback import RatingScale
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.portable import Ridge
from fedrecsk.protocol.participation import RoundMasks
from fedrecsk.updates import SparseRows

fedeb_kernels: LazyModule = LazyModule("fedrecsk.federated._fedeb_kernels")

# The ends of the scale are this many units apart: on a scale from 1 to 5 a unit is a star.
UNITS = 4.0


class EmpiricalBayes(RatingScale, RatingMixin, FederatedRecommender):
    """Base class of methods whose clients infer their users given the items."""

    _single_uploads = True
    _prefers_rotation = True
    _dtype = np.float32

    @staticmethod
    def _unit(low, high):
        """Return what counts as 1 in the model, in ratings."""
        return ((high - low) or UNITS) / UNITS

    def _arriving(self, n_clients):
        """Return the share of the clients whose uploads arrive in a round, as planned."""
        return self._cohort_share(n_clients) * (1 - self._setting().dropout)

    @staticmethod
    def _empty_uploads(block, turn, width, n_implicit=0, dtype=np.float64):
        """Return where kernels write: sums by item, or the active clients' own rows."""
        senders, n_rows, slots, n = turn.active & turn.delivers, block.n_items, block.row_items, 1
        if turn.separate:
            own = block.own_rows(turn.active)
            senders, n_rows, slots, n = turn.active, len(own.items), own.slots, block.n_clients
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

    @staticmethod
    def _written(block, turn, out):
        """Return what kernels have written, as fields of uploads."""
        if not turn.separate:
            return {"items": out.items, "implicit": out.implicit, "scales": out.scales[0]}
        own = block.own_rows(turn.active)
        return {
            "items": SparseRows(own.indptr, own.items, out.items),
            "implicit": SparseRows(own.indptr, own.items, out.implicit),
            "scales": SparseRows.stacked(out.scales),
        }

    def _personalize(self, block, state, message, turn, key):
        # Users start afresh: only their own data count.
        part = block.part(turn.active)
        everybody, nobody = np.ones(part.n_clients, dtype=bool), np.zeros(part.n_clients, bool)
        state = self._init_clients(part, message, key)
        fitted = self._fitted_users(part, state, message, RoundMasks(everybody, nobody, False))
        return {name: block.spread(rows, turn.active) for name, rows in fitted.items()}

    def _item_vectors(self, message):
        return message["items"].values

    def _posterior_rule(self, noise_variance, bias_variance, **others):
        """Return the rule of users' posterior means, in ratings."""
        vectors = np.column_stack([np.ones(self.n_items_, self._dtype), self.item_factors_])
        prior_precision = np.ones(vectors.shape[1])
        prior_precision[0] = 1 / bias_variance
        return Ridge.of(
            vectors,
            np.diag(prior_precision),
            offset=self.global_bias_ + self.item_bias_.astype(float),
            rates=True,
            confidence=1 / noise_variance,
            **others,
        )

    def _response(self, scores):
        return np.clip(scores, *self.rating_scale_)
