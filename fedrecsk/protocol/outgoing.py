"""The updates that a method returns, completed by what the protocol must know about them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrecsk.updates import ClientUpdates, SparseRows, Summed, all_finite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fedrecsk.protocol.blocks import Block
    from fedrecsk.protocol.participation import RoundMasks
    from fedrecsk.updates import FieldSpec


class Outgoing:
    """Completes the updates of a block of clients.

    Parameters
    ----------
    method : FederatedRecommender
    block : Block
    wire_dtype : str
    """

    def __init__(self, method: Any, block: Block, wire_dtype: str) -> None:
        self.method = method
        self.block: Block = block
        self.wire_dtype = wire_dtype

    def summed(
        self,
        step: tuple[str, int],
        updates: ClientUpdates,
        specs: Mapping[str, FieldSpec],
        turn: RoundMasks,
    ) -> ClientUpdates:
        """Complete updates that the method has added up.

        Raises
        ------
        ValueError
            If the fields are not those of `specs`.
        """
        done, sums = self._completed(step, updates, specs, turn), {}
        for name, spec in specs.items():
            sums[name] = self._sum(updates, name, spec).astype(spec.sum_dtype, copy=False)
            if not all_finite(sums[name]):
                done.accepted = np.zeros_like(done.accepted)
        return replace(done, fields=sums if done.n_accepted else {}, lacks_noise=True)

    def single(
        self,
        step: tuple[str, int],
        updates: ClientUpdates,
        specs: Mapping[str, FieldSpec],
        turn: RoundMasks,
    ) -> ClientUpdates:
        """Complete the single updates of the clients that send something.

        If the method has added them up, there must be one client.

        Raises
        ------
        ValueError
            If the fields are not those of `specs`.
        """
        done, fields = self._completed(step, updates, specs, turn), {}
        for name, spec in specs.items():
            rows = updates.fields[name]
            if isinstance(rows, SparseRows):
                self._check_shape(name, (spec.shape[0], *rows.values.shape[1:]), spec)
            else:
                rows = self._of_one_client(updates, name, spec)
            fields[name] = replace(rows, spec=spec)
            if updates.is_finite is None:
                done.accepted = done.accepted & fields[name].finite()
        return replace(done, fields=fields).take(done.sends)

    def _completed(self, step, updates, specs, turn):
        """Set everything but the fields."""
        if updates.fields.keys() != specs.keys():
            raise ValueError(
                f"{type(self.method).__name__} uploads the fields {sorted(updates.fields)}, but "
                f"its _upload_specs (or _setup_specs) declares {sorted(specs)}; make them agree."
            )
        sends = turn.active if updates.sends is None else turn.active & updates.sends
        arrives = sends & turn.delivers
        return replace(
            updates,
            phase=step[0],
            round=step[1],
            clients=self.block.clients,
            sends=sends,
            arrives=arrives,
            accepted=arrives if updates.is_finite is None else arrives & updates.is_finite,
            specs=specs,
            sizes=measured(updates, specs, self.block.row_counts, self.wire_dtype),
        )

    def _of_one_client(self, updates, name, spec):
        """Take the sum over a one-client block as that client's rows."""
        values = self._sum(updates, name, spec)
        rows = np.arange(len(values))
        if spec.rows == "held":
            rows = self.block.row_items
        elif spec.rows == "chosen":
            rows = np.flatnonzero(values.reshape(len(values), -1).any(axis=1))
        return SparseRows(np.array([0, len(rows)]), rows, values[rows])

    def _sum(self, updates, name, spec):
        """Return a field's sum as an array of the declared shape."""
        one = updates.fields[name]
        values = np.asarray(one.values if isinstance(one, Summed) else one)
        self._check_shape(name, values.shape, spec)
        return values

    def _check_shape(self, name, shape, spec):
        if tuple(shape) != tuple(spec.shape):
            raise ValueError(
                f"{type(self.method).__name__} uploads {name!r} with shape {tuple(shape)}, but its "
                f"FieldSpec says {tuple(spec.shape)}; make them agree."
            )


def stacked(answers: Sequence[ClientUpdates], specs: Mapping[str, FieldSpec]) -> ClientUpdates:
    """Take the sums of several one-client blocks as the single updates of one block."""
    fields = {}
    for name, spec in specs.items():
        values = np.stack([np.asarray(answer.fields[name]) for answer in answers])
        fields[name] = SparseRows.stacked(values.reshape(len(answers), *spec.shape))
    return ClientUpdates(fields)


def measured(
    updates: ClientUpdates,
    specs: Mapping[str, FieldSpec],
    n_held: NDArray[np.int64],
    wire_dtype: str,
) -> NDArray[np.int64]:
    """Return the `sizes` of ClientUpdates, of uploads as the method returns them.

    `n_held` is the number of items that each client holds, of shape (n_clients,).
    """
    sizes = np.zeros((3, len(n_held)), dtype=np.int64)
    for name, spec in specs.items():
        one, n_rows, n_columns = updates.fields[name], n_held, None
        if isinstance(one, Summed | SparseRows):
            n_columns = one.n_columns
            if spec.rows == "chosen":
                n_rows = one.n_rows
        sizes += spec.sizes(wire_dtype, n_rows, n_columns)
    return sizes
