"""What a method's update returns, checked against the declared forms and measured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk.simulation.contributions import Contribution, measured
from fedrecsk.simulation.messages import Summed, Uploads
from fedrecsk.uploads import Batch, Ragged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from fedrecsk.simulation.blocks import Block
    from fedrecsk.simulation.participation import Turn
    from fedrecsk.uploads import Form


class Outgoing:
    """Turns what a method returns into sums, or into uploads client by client.

    Parameters
    ----------
    method : FederatedRecommender
    block : Block
        The clients' data.
    wire_dtype : str
        Type in which real numbers are sent.
    """

    def __init__(self, method: Any, block: Block, wire_dtype: str) -> None:
        self.method = method
        self.block: Block = block
        self.wire_dtype = wire_dtype

    def summed(
        self, step: tuple[str, int], uploads: Uploads | None, forms: Mapping[str, Form], turn: Turn
    ) -> Contribution | None:
        """A Contribution of the sums that a method returns; None if it returns nothing.

        Raises
        ------
        ValueError
            If the fields are not those of `forms`.
        """
        if uploads is None:
            return None
        self._check_names(uploads, forms)
        block, sums = self.block, {}
        sizes = measured(uploads, forms, block.row_counts, self.wire_dtype)
        for name, form in forms.items():
            values = self._sum(uploads, name, form)
            sums[name] = values.astype(form.sum_dtype, copy=False)
        turn = _senders(uploads, turn)
        return Contribution.of_sums(step, block.clients, turn, uploads.sound, sums, sizes)

    def single(self, uploads: Uploads, forms: Mapping[str, Form], turn: Turn) -> Batch:
        """A Batch of single uploads: those that a method returns, or the sum of one client.

        Raises
        ------
        ValueError
            If the fields are not those of `forms`.
        """
        self._check_names(uploads, forms)
        if not turn.separate:
            uploads = self._of_one_client(uploads, forms)
        return self._batch(uploads, forms, _senders(uploads, turn))

    def _batch(self, uploads, forms, turn):
        fields = {name: replace(uploads[name], form=form) for name, form in forms.items()}
        for name, form in forms.items():
            self._check_shape(name, (form.shape[0], *fields[name].values.shape[1:]), form)
        arrives = turn.active & turn.delivers
        accepted = arrives.copy()
        if uploads.sound is not None:
            accepted &= uploads.sound
        else:
            for ragged in fields.values():
                accepted &= ragged.finite(accepted)
        return Batch(
            self.block.clients,
            turn.active,
            arrives,
            accepted,
            forms,
            {name: ragged for name, ragged in fields.items() if forms[name].learned},
            {name: ragged for name, ragged in fields.items() if not forms[name].learned},
            {name: r.center for name, r in fields.items() if r.center is not None},
            measured(fields, forms, self.block.row_counts, self.wire_dtype),
        )

    def _of_one_client(self, uploads, forms):
        """The sum over a one-client block as that client's upload."""
        singles = {}
        for name, form in forms.items():
            values = self._sum(uploads, name, form)
            rows = np.arange(len(values))
            if form.rows == "held":
                rows = self.block.row_items
            elif form.rows == "chosen":
                rows = np.flatnonzero(values.reshape(len(values), -1).any(axis=1))
            singles[name] = Ragged(np.array([0, len(rows)]), rows, values[rows])
        return type(uploads)(sound=uploads.sound, sends=uploads.sends, **singles)

    def _sum(self, uploads, name, form):
        """A field's sum as an array of the declared shape."""
        field = uploads[name]
        values = np.asarray(field.values if isinstance(field, Summed) else field)
        self._check_shape(name, values.shape, form)
        return values

    def _check_names(self, uploads, forms):
        if uploads.keys() != forms.keys():
            raise ValueError(
                f"{type(self.method).__name__} uploads the fields {sorted(uploads)}, but its "
                f"_upload_forms (or _setup_forms) declares {sorted(forms)}; make them agree."
            )

    def _check_shape(self, name, shape, form):
        if tuple(shape) != tuple(form.shape):
            raise ValueError(
                f"{type(self.method).__name__} uploads {name!r} with shape {tuple(shape)}, but its "
                f"form says {tuple(form.shape)}; make them agree."
            )


def stacked(answers: Sequence[Uploads], forms: Mapping[str, Form]) -> Uploads:
    """The sums of several one-client blocks as the single uploads of one block."""
    fields = {}
    for name, form in forms.items():
        values = np.stack([np.asarray(answer[name]) for answer in answers])
        fields[name] = Ragged.stacked(values.reshape(len(answers), *form.shape))
    return Uploads(**fields)


def _senders(uploads, turn):
    """The turn without clients that have nothing to send."""
    if uploads.sends is None:
        return turn
    return turn._replace(active=turn.active & uploads.sends)
