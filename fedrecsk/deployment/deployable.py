"""Checks of an estimator whose server and clients run apart, outside the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrecsk.compression._compressors import BlockCompressor
from fedrecsk.simulation.making import plain_copy

if TYPE_CHECKING:
    from fedrecsk.federated.base import FederatedRecommender


def deployable_copy(estimator: FederatedRecommender) -> FederatedRecommender:
    """Check an estimator's parameters and return a copy for one side of a deployment."""
    method = plain_copy(estimator)
    method._validate_params()
    method._check_before_fit()
    if method.items is None:
        raise ValueError(
            f"{type(method).__name__} needs the catalogue, because it does not see "
            "the data of all clients; set items= to the ids of all items on offer."
        )
    federation = method._setting()
    if federation.encrypts:
        raise ValueError(
            f"{type(federation.secure_aggregation).__name__} is for simulations: on devices all "
            "clients would share one secret key. Deploy with "
            "federation.secure_aggregation=SecAggPlus(), whose masks need no such key."
        )
    method._check_on_devices(federation)
    algorithm = method._algorithm()
    if algorithm.traits.n_exchanges:
        raise ValueError(
            f"A Device does not talk to other devices yet, as {type(method).__name__} needs, which "
            "only the simulator does; call fit."
        )
    _check_compression(federation)
    if federation.aggregator is not None:
        federation.aggregator._check_specs(algorithm.fields(len(method.items)))
    if federation.adversary is not None:
        raise ValueError(
            "A Device does not attack, which only the simulator does; set "
            "federation.adversary=None, or call fit."
        )
    return method


def _check_compression(federation):
    """Raise if the server could not reconstruct compressed uploads."""
    compressor = federation.compression
    if compressor is None or not compressor.up:
        return
    if not isinstance(compressor, BlockCompressor) or compressor._is_changed:
        raise ValueError(
            f"A Device cannot send what {type(compressor).__name__} makes of an upload, whose form "
            "the server does not know; use TopK, LowRank or Quantization as they are, or call fit."
        )
    if federation.dropout > 0 and federation.dropout_mode == "stale":
        raise ValueError(
            "A Device sends compressed changes from the latest message, but with "
            'dropout_mode="stale" it would start from an older one; set dropout_mode="upload" or '
            '"offline", or call fit.'
        )
