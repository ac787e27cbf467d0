"""The base class of all federated estimators: their fit, in one process or on a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedrecsk.base._fading import life_of
from fedrecsk.base._item_weights import history_of
from fedrecsk.data.interactions import Interactions
from fedrecsk.simulation import dask_run, run, weak_fits
from fedrecsk.simulation.updating import Updating


@dataclass(eq=False, repr=False)
class FederatedRecommender(Updating):
    """Base class of the federated methods.

    An estimator holds parameters and fitted attributes. Server and clients run its
    :class:`~fedrecsk.protocol.Algorithm`, which `_algorithm` makes from the parameters.
    :func:`~fedrecsk.federated.estimator_of` makes an estimator of an algorithm.
    """

    # The users' models on the workers of a Dask cluster: Parts, or None if they are here.
    _parts = None

    def _fit_on_cluster(self, X, y, clients, sample_weight):
        return dask_run.fit(self, X, y, clients, sample_weight)

    def _fit(self, data, report):
        # Not before the fit has ended: a refused one must not lose the last one's users.
        report.static |= {"_parts": None}
        return run.fit(self, data, report)

    def _check_after_fit(self, data):
        # A history that fades is not there to rank the user's old rows.
        fades = getattr(self, "history_half_life", None) is not None
        is_here = isinstance(data, Interactions)
        if is_here and self._setting().adversary is None and not fades:
            weak_fits.warn_if_weak(self, data)

    if not TYPE_CHECKING:  # see Recommender

        def __getattr__(self, name: str) -> object:
            if vars(self).get("_parts") is not None and name.startswith("user_"):
                raise AttributeError(
                    f"The users of this {type(self).__name__} are on the workers of a Dask "
                    "cluster; pass a Dask DataFrame, or use fedrecsk.cluster.gather(model), which "
                    f"returns a model that has {name} here."
                )
            # Raise as Python does, or as `available_if` does.
            return object.__getattribute__(self, name)

    def _kept_rows(self, user):
        run = getattr(self, "_run", None)
        if run is not None:
            data = run.data
            (code,) = data.user_ids.codes(self.user_ids_[user : user + 1])
            if code >= 0:
                return history_of(data, code, life_of(self, "history_half_life"))
        return super()._kept_rows(user)


# What mixins derive from for type checkers, because they use what the class has.
if TYPE_CHECKING:
    Mixin = FederatedRecommender
else:
    Mixin = object
