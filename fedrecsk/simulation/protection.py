"""Stages of an upload on the client: attack or local noise, then compression or clipping."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedrecsk.privacy import _clipped

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fedrecsk.privacy import CentralDP
    from fedrecsk.privacy.local_dp import LocalMechanism
    from fedrecsk.simulation.federation import Federation
    from fedrecsk.simulation.keys import Key
    from fedrecsk.uploads import Batch, Form


def protect(
    batch: Batch,
    federation: Federation,
    key: Key,
    forge: Callable[..., Any] | None = None,
    *,
    each: bool = False,
) -> None:
    """Apply the federation's stages to the uploads of a batch, in place.

    Parameters
    ----------
    batch : Batch
    federation : Federation
    key : Key
        The clients' private key of the round.
    forge : callable or None
        Forges the uploads, if an adversary controls these clients, which then add no noise.
    each : bool
        Whether every client draws its own noise even if one draw of the sum would do.
    """
    compressor = federation.compression
    compresses = compressor is not None and compressor.up
    honest = dict(batch.changes)
    if forge is not None:
        batch.changes = forge(batch, key.hashed("forged", batch.clients), not (compresses or each))
        batch.accepted = _finite(batch)
    else:
        add_noise(batch, federation.local_dp, key, each=each or compresses)
    if compresses:
        _compress(batch, honest, federation, key, each)
        batch.accepted = _finite(batch)


def add_noise(batch: Batch, mechanism: LocalMechanism | None, key: Key, *, each: bool) -> None:
    """Protect the uploads of a batch by local noise, in place; None: no noise.

    Parameters
    ----------
    batch : Batch
    mechanism : LocalMechanism or None
    key : Key
        The clients' private key of the round.
    each : bool
        Whether every client must draw its own noise. Otherwise the noise may be left to the sum of
        all uploads, see `Batch.lacks_noise`.
    """
    if mechanism is not None:
        mechanism._protect(batch, lambda purpose: key.hashed(purpose, batch.clients), each=each)


def is_compressed(federation: Federation | None, form: Form) -> bool:
    """Whether clients compress a field of this form, if they send all its columns."""
    compressor = None if federation is None else federation.compression
    is_matrix = len(form.shape) == 2 and not form.is_integer and form.learned
    return compressor is not None and compressor.up and is_matrix and form.compressible


def _compress(batch, honest, federation, key, each):
    """Compress all compressible fields; `honest` has the fields as the method returned them."""
    compressor, wire_dtype = federation.compression, federation.wire_dtype
    for name, changes in batch.changes.items():
        form = batch.forms[name]
        if not is_compressed(federation, form) or honest[name].columns is not None:
            continue
        itemsize = np.dtype(form.dtype or wire_dtype).itemsize
        seeds = key.hashed(f"compression of {name}", batch.clients)
        packed = compressor._compress_uploads(changes, form, batch.sends, seeds, itemsize, not each)
        batch.changes[name], n_rows = packed.changes, honest[name].n_rows
        batch.sizes.nbytes[:] += packed.nbytes - form.nbytes(wire_dtype, n_rows)
        batch.sizes.payload[:] += packed.payload - form.payload_nbytes(wire_dtype, n_rows)


def _finite(batch):
    accepted = batch.accepted.copy()
    for changes in batch.changes.values():
        accepted &= changes.finite(accepted)
    return accepted


def clip(batch: Batch, mechanism: CentralDP, key: Key, bound: float, variance: float) -> int:
    """Clip the uploads of a batch, in place; under noise by clients, round them to the grid, too.

    Parameters
    ----------
    batch : Batch
    mechanism : CentralDP
    key : Key
        The clients' private key of the round.
    bound : float
        Largest norm of an upload.
    variance : float
        Of the share of the noise that each client adds, in squared steps of the grid. 0: none.

    Returns
    -------
    n_unclipped : int
        Number of accepted clients whose upload was short enough.
    """
    weights: dict[str, float] = mechanism.field_weights or {}
    n_unclipped = _clipped.clip_uploads(batch, bound, weights)
    if mechanism.noise == "clients":
        _clipped.rounded(batch, bound, weights, variance, key)
    return n_unclipped
