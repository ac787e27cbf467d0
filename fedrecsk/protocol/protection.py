"""What becomes of updates before they leave the clients, in the simulator and on devices.

An attack or local noise first, then compression, then clipping and noise for central privacy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from fedrecsk.compression._compressors import BlockCompressor
from fedrecsk.privacy.central_dp import clip_updates, round_updates
from fedrecsk.updates import (
    ClientUpdates,
    Counts,
    FieldSpec,
    HeldUpdates,
    SparseRows,
    Summed,
    Update,
    Updates,
    add_sums,
    all_finite,
    joined,
    through,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedrecsk.compression import Compressor
    from fedrecsk.privacy import CentralDP
    from fedrecsk.protocol.blocks import Block
    from fedrecsk.protocol.federation import Federation
    from fedrecsk.protocol.keys import Key
    from fedrecsk.protocol.messages import Message
    from fedrecsk.protocol.participation import RoundMasks
    from fedrecsk.protocol.plan import FitPlan, Uploads
    from fedrecsk.updates._client_updates import Stage

    # Takes updates, and a seed for each client.
    Forge = Callable[[ClientUpdates, NDArray[np.uint64]], ClientUpdates]


# The field of every message that tells clients the clip, and the variance of their shares.
TERMS = "privacy_terms"


def as_sent(specs: dict[str, FieldSpec], federation: Federation) -> dict[str, FieldSpec]:
    """Return the specs of what crosses: clipped integers are real numbers."""
    if federation.central_dp is None:
        return specs
    return {name: spec.real for name, spec in specs.items()}


def completed(
    plan: FitPlan,
    block: Block,
    updates: Updates,
    step: tuple[str, int],
    specs: Mapping[str, FieldSpec],
    turn: RoundMasks,
    uploads: Uploads,
) -> ClientUpdates:
    """Add to a method's updates what the protocol must know; check their fields.

    Unless `uploads` is "sum", return the updates of the clients that send something, and not the
    sums over the block. If the method has added them up, there must be one client.
    """
    single, name = uploads != "sum", plan.name
    if updates.fields.keys() != specs.keys():
        raise ValueError(
            f"{name} uploads the fields {sorted(updates.fields)}, but its fields (in the set-up "
            f"setup_fields) declares {sorted(specs)}; make them agree."
        )
    sends = turn.active if updates.sends is None else turn.active & updates.sends
    accepted = arrives = sends & turn.delivers
    if updates.is_finite is not None:
        accepted = arrives & updates.is_finite
    fields = {}
    for field, spec in specs.items():
        one = updates.fields[field]
        is_sparse = isinstance(one, SparseRows)
        if is_sparse and not single:
            raise ValueError(
                f"{name} returns {field!r} client by client, but turn.separate is False; return "
                "the sum."
            )
        values = one.values if isinstance(one, Summed | SparseRows) else np.asarray(one)
        shape = (spec.shape[0], *values.shape[1:]) if is_sparse else values.shape
        if tuple(shape) != tuple(spec.shape):
            raise ValueError(
                f"{name} uploads {field!r} with shape {tuple(shape)}, but its FieldSpec says "
                f"{tuple(spec.shape)}; make them agree."
            )
        if single:
            rows = one if is_sparse else _of_one_client(values, spec, block)
            fields[field] = replace(rows, spec=spec)
            if updates.is_finite is None:
                accepted = accepted & fields[field].finite()
        else:
            fields[field] = values.astype(spec.sum_dtype, copy=False)
            if not all_finite(fields[field]):
                accepted = np.zeros_like(accepted)
    done = ClientUpdates(
        fields=fields if single or accepted.any() else {},
        phase=step[0],
        round=step[1],
        clients=block.clients,
        sends=sends,
        arrives=arrives,
        accepted=accepted,
        specs=specs,
        sizes=measured(updates.fields, specs, block.row_counts, plan.federation.wire_dtype),
        lacks_noise=not single,
    )
    return done.take(sends) if single else done


def _of_one_client(values, spec, block):
    """Take the sum over a one-client block as that client's rows."""
    rows = np.arange(len(values))
    if spec.rows == "held":
        rows = block.row_items
    elif spec.rows == "chosen":
        rows = np.flatnonzero(values.reshape(len(values), -1).any(axis=1))
    return SparseRows(np.array([0, len(rows)]), rows, values[rows])


def measured(
    fields: Mapping[str, object],
    specs: Mapping[str, FieldSpec],
    n_held: NDArray[np.int64],
    wire_dtype: str,
    compressor: Compressor | None = None,
) -> NDArray[np.int64]:
    """Return the `sizes` of a method's fields, by the number of items that each client holds.

    If the number of rows that clients choose is not known, it is taken to be that of their items.
    `compressor`: what becomes of the fields, if its messages have lengths by shape.
    """
    sizes = np.zeros((3, len(n_held)), dtype=np.int64)
    for name, spec in specs.items():
        one, n_rows, n_columns = fields[name], n_held, None
        if isinstance(one, Summed | SparseRows):
            n_columns = one.n_columns
            if spec.rows == "chosen":
                n_rows = one.n_rows
        own = spec.sizes(wire_dtype, n_rows, n_columns)
        if isinstance(compressor, BlockCompressor) and is_compressed(compressor, spec, n_columns):
            own[:2] = compressor._sizes_of_upload(spec, n_rows, spec.itemsize(wire_dtype))
        sizes += own
    return sizes


def stages(
    federation: Federation,
    key: Key,
    message: Message | None,
    forge: Forge | None = None,
    *,
    each: bool,
    clips: bool = True,
    is_setup: bool = False,
) -> list[Stage]:
    """List functions of ClientUpdates: what becomes of updates before they leave the clients.

    `key` is the clients' private one, and `message` may have the terms of central privacy. Clients
    that an adversary controls `forge`, and add no noise. `each`: every client draws its own noise,
    even if one draw of the sum would do. `clips`: they have not been clipped before, user by user.
    Answers in the set-up are neither forged nor compressed.
    """
    compressor, local, central = federation.compression, federation.local_dp, federation.central_dp
    compresses = compressor is not None and compressor.up and not is_setup
    result = []
    if forge is not None and not is_setup:
        result.append(lambda updates: forge(updates, key.hashed("forged", updates.clients)))
    elif local is not None:
        result.append(partial(_add_noise, mechanism=local, key=key, each=each or compresses))
    if compresses:
        result.append(partial(_compress, federation=federation, key=key))
    if central is not None and message is not None:
        bound, variance = message[TERMS].values
        # Poisoned clients add no noise, and if only the sum matters, its noise is drawn at once.
        adds = central.noise == "clients" and forge is None
        says_short = central.quantile is not None and not is_setup
        terms = {"clip": float(bound), "field_weights": central.field_weights or {}}
        given = {"clips": clips, "says_short": says_short}
        result.append(partial(_clip, **terms, **given, adds=adds, is_late=not each))
        if central.noise == "clients":
            own = float(variance) if adds and each else 0.0
            result.append(partial(round_updates, **terms, variance=own, key=key))
    return result


def added_up_by(
    updates: ClientUpdates,
    mechanism: CentralDP,
    message: Message,
    owners: NDArray[np.int64],
    n: int,
) -> Updates:
    """Clip users' updates by the terms of a message; add them up by their owners, 0 to n - 1."""
    clip, weights = float(message[TERMS].values[0]), mechanism.field_weights or {}
    specs, totals, is_finite = updates.specs, [], np.zeros(n, dtype=bool)
    for owner in range(n):
        sums = {}
        for tile in updates.take(owners == owner).tiles():
            tile = clip_updates(tile, clip, weights)[0].without_broken()
            if mechanism.noise == "clients":
                tile = round_updates(tile, clip, weights, variance=0.0, key=None)
            done = tile.added_up()
            is_finite[owner] |= done.accepted.any()
            add_sums(sums, done.fields)
        totals.append({name: _rows_of(sums.get(name), spec) for name, spec in specs.items()})
    fields = {
        name: SparseRows.listed([one[name] for one in totals], spec.real)
        for name, spec in specs.items()
    }
    return Updates(fields, is_finite, np.bincount(owners, minlength=n) > 0)


def _rows_of(total, spec):
    """Return the rows of a sum that are not zero as an Update; None: nothing was added up."""
    if total is None:
        return Update(np.arange(0), np.zeros((0, *spec.shape[1:])))
    if sparse.issparse(total):
        return Update(total.indices, total.data[:, None])
    rows = np.flatnonzero(total.reshape(len(total), -1).any(axis=1))
    return Update(rows, total[rows])


def protected(
    updates: ClientUpdates, through_stages: Sequence[Stage], uploads: Uploads
) -> ClientUpdates:
    """Pass single updates through all stages, and add them up, or hold them for the server."""
    hold = uploads == "held"
    if not len(updates.clients):
        return replace(updates, fields={})
    # Clipping leaves rows as they are; other stages may write out whole matrices.
    only_clips = all(getattr(stage, "func", None) is _clip for stage in through_stages)
    tiles = [updates] if only_clips else updates.tiles()
    whole = joined(_through_and_added(tile, through_stages, hold) for tile in tiles)
    if hold:
        whole.held = HeldUpdates(updates, through_stages, whole.accepted)
    return whole


def _through_and_added(updates, through_stages, hold):
    """Pass updates through all stages; return their sums, or nothing of them to hold."""
    updates = through(updates, through_stages)
    if hold:
        return replace(updates.without_broken() if through_stages else updates, fields={})
    done = updates.added_up()
    if through_stages and not all(all_finite(done.fields[n]) for n in done.learned):
        # Once more without those whose numbers are broken.
        done = updates.without_broken().added_up()
    return done


def _add_noise(updates, *, mechanism, key, each):
    seeds = partial(key.hashed, index=updates.clients)
    return mechanism._protect(updates, seeds, each=each)


def is_compressed(
    compressor: Compressor | None, spec: FieldSpec, columns: np.ndarray | None = None
) -> bool:
    """Return whether clients compress a field of this form; not if they send some columns only."""
    is_matrix = len(spec.shape) == 2 and not spec.is_integer and spec.learned
    is_whole = columns is None and spec.compressible
    return compressor is not None and compressor.up and is_matrix and is_whole


def _compress(updates, *, federation, key):
    """Compress all compressible fields."""
    compressor, wire_dtype = federation.compression, federation.wire_dtype
    fields, sizes = {}, updates.sizes.copy()
    for name, rows in updates.learned.items():
        spec = updates.specs[name]
        if not is_compressed(compressor, spec, rows.columns):
            continue
        seeds = key.hashed(f"compression of {name}", updates.clients)
        packed = compressor._compress_rows(rows, seeds, spec.itemsize(wire_dtype))
        fields[name] = packed.rows
        whole = spec.sizes(wire_dtype, rows.n_rows)
        sizes[:2] += np.array([packed.nbytes, packed.payload]) - whole[:2]
    updates = updates.with_fields(**fields)
    return replace(updates, sizes=sizes)


def _clip(updates, *, clip, field_weights, clips, adds, is_late, says_short):
    """Clip each client's whole update, and count what the server must know to add noise."""
    clipped, is_short = updates, np.ones(len(updates.clients), dtype=bool)
    if clips:
        clipped, is_short = clip_updates(updates, clip, field_weights)
    clipped = clipped.without_broken()
    n_accepted = clipped.n_accepted
    n_shares = n_accepted if adds else 0
    excess = int((clipped.accepted & is_short).sum()) - n_accepted / 2
    if says_short:
        # Whether the upload was short enough is one bit, which takes a byte.
        clipped = replace(clipped, sizes=clipped.sizes + np.array([[1], [0], [1]]))
    return replace(clipped, counts=Counts(n_shares, n_shares * is_late, excess))
