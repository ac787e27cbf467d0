"""What all robust aggregators share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np
from sklearn.base import BaseEstimator

from fedrecsk.uploads import Batch, Form, Listed, SingleUploads, Update

# Sums stay below this, so that they fit into 64 bits.
LARGEST_SUM = 2.0**62


def plain_sum(
    uploads: Iterable[dict[str, Update]], shapes: dict[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Add up the changes of all clients, field by field.

    Parameters
    ----------
    uploads : iterable of dict of {str: Update}
    shapes : dict of {str: tuple}
        Shape of each whole field.

    Returns
    -------
    sums : dict of {str: ndarray}
        Sum of each field; dtype int64 if all changes are integers, otherwise float64.
    """
    sums = {name: np.zeros(shape, dtype=np.int64) for name, shape in shapes.items()}
    for upload in uploads:
        for name, total in sums.items():
            rows, change = upload[name]
            total = total.astype(np.result_type(total, change), copy=False)
            total[rows] += change
            sums[name] = total
    return sums


class Aggregator(BaseEstimator, ABC):
    """Base class of robust aggregators: what ``Federation(aggregator=...)`` takes.

    To write your own aggregator, implement one method, `combine`. Each upload is a dict with an
    ``Update(rows, change)`` for each field of what the client has learned. `change` is the
    difference from the upload of a client that has learned nothing, and `rows` are the rows of
    the field that it belongs to.

    Examples
    --------
    An aggregator that leaves out every client whose largest change is 1 or more:

    >>> import numpy as np
    >>> from fedrecsk.aggregation import Aggregator, Update, plain_sum
    >>> class Below1(Aggregator):
    ...     def combine(self, uploads, shapes):
    ...         def largest(upload):
    ...             return max(np.abs(update.change).max() for update in upload.values())
    ...
    ...         return plain_sum([u for u in uploads if largest(u) < 1], shapes)
    >>> uploads = [{"items": Update(slice(None), np.full((2, 1), x))} for x in (0.5, 0.25, 9.0)]
    >>> Below1().combine(uploads, {"items": (2, 1)})
    {'items': array([[0.75],
           [0.75]])}
    """

    _parameter_constraints: ClassVar[dict] = {}

    def __init_subclass__(cls, **arguments: object) -> None:
        super().__init_subclass__(**arguments)
        # A subclass's own `combine` takes precedence over an inherited `_combine_batches`.
        if "combine" in vars(cls) and "_combine_batches" not in vars(cls):
            cls._combine_batches = Aggregator._combine_batches

    def _check_clients(self, data, n_clients):
        """Raise if the aggregator does not suit `data` with `n_clients` clients per round."""

    def _check_adversary(self, client_ids):
        """Raise if the aggregator cannot work when an adversary controls these clients."""

    def _check_forms(self, forms):
        """Raise if the aggregator does not suit uploads of these forms, a dict of Form."""

    def _start(self, client_ids):
        """What the aggregator remembers over the rounds of one fit, before the first; a dict.

        The server keeps it beside the model, so it must be picklable. `client_ids` are the ids of
        the registered clients, in the order of their codes.
        """
        return {}

    @abstractmethod
    def combine(
        self, uploads: Sequence[dict[str, Update]], shapes: dict[str, tuple[int, ...]]
    ) -> dict[str, np.ndarray] | None:
        """Combine the uploads of one round into the sum that the server continues with.

        Parameters
        ----------
        uploads : sequence of dict of {str: Update}
            One upload per client, in the order of the clients. Each is computed when you access
            it. All numbers are finite.
        shapes : dict of {str: tuple}
            Shape of each whole field.

        Returns
        -------
        sums : dict of {str: ndarray} or None
            Sum of the changes of each field. The server takes it for a sum over all
            ``len(uploads)`` clients, so multiply a mean by that number. None if there are too few
            uploads; the round then changes nothing.
        """

    def _combine_batches(self, batches, memory=None):
        """Total change of each learned field over the accepted clients of all batches.

        Parameters
        ----------
        batches : list of Batch
        memory : dict or None
            What `_start` has returned, with what earlier rounds have written into it.

        Returns
        -------
        totals : dict of {str: ndarray} or None
            One array per field, dtype float64 or, for fields of integers, int64. None: too few
            uploads.
        """
        uploads = _single_uploads(batches)
        if len(uploads) == 0:
            return None
        forms = forms_of(batches)
        sums = self.combine(uploads, {name: form.shape for name, form in forms.items()})
        return None if sums is None else _checked(type(self).__name__, sums, forms)


def _single_uploads(batches):
    """The accepted clients' uploads in the order of their codes."""
    where = {}
    for batch, places in zip(batches, places_of(batches), strict=True):
        for client in np.flatnonzero(batch.accepted):
            where[places[client]] = batch, client
    return SingleUploads([where[place] for place in range(len(where))])


def _checked(rule, sums, forms):
    """Check what a user's `combine` has returned, and raise a ValueError if it is wrong."""
    if not isinstance(sums, dict) or sums.keys() != forms.keys():
        found = sorted(sums) if isinstance(sums, dict) else type(sums).__name__
        raise ValueError(
            f"{rule}.combine returned {found}; return a dict with one array for each of the "
            f"fields {sorted(forms)}, or None if there are too few uploads."
        )
    return {name: _checked_field(rule, name, sums[name], form) for name, form in forms.items()}


def _checked_field(rule, name, values, form):
    values = np.asarray(values)
    if values.dtype.kind not in "iuf" or values.shape != form.shape:
        raise ValueError(
            f"{rule}.combine returned an array of shape {values.shape} and dtype {values.dtype} "
            f"for field {name!r}; return numbers of shape {form.shape}."
        )
    if not np.isfinite(values).all():
        raise ValueError(
            f"{rule}.combine returned NaN or infinite numbers for field {name!r} of shape "
            f"{form.shape}, but all uploads that it received are finite; look for a division by "
            "zero or an overflow."
        )
    return as_sum(values, form)


def as_sum(values, form):
    """Convert to the data type of the field's sums."""
    if form.is_integer and values.dtype.kind == "f":
        values = np.rint(np.clip(values, -LARGEST_SUM, LARGEST_SUM))
    return values.astype(form.sum_dtype, copy=False)


class InBlocks(Aggregator):
    """An aggregator that combines whole batches; a list of uploads becomes a batch first."""

    @abstractmethod
    def _combined(self, batches):
        """Like `_combine_batches`, with at least one accepted client and without memory."""

    def _combine_batches(self, batches, memory=None):
        return self._combined(batches) if any(b.accepted.any() for b in batches) else None

    def combine(
        self, uploads: Sequence[dict[str, Update]], shapes: dict[str, tuple[int, ...]]
    ) -> dict[str, np.ndarray] | None:
        return self._combined([as_batch(uploads, shapes)]) if len(uploads) else None


def as_batch(uploads, shapes):
    uploads = list(uploads)
    everyone = np.ones(len(uploads), dtype=bool)
    forms, changes = {}, {}
    for name, shape in shapes.items():
        updates = [upload[name] for upload in uploads]
        exact = all(update.change.dtype.kind in "iub" for update in updates)
        forms[name] = Form(shape, dtype="int64" if exact else None)
        changes[name] = Listed(updates, forms[name])
    clients = np.arange(len(uploads))
    return Batch(clients, everyone, everyone, everyone, forms, changes, {})


def weighted_sum(batches, name, weights):
    """Weighted sum over the accepted clients of all batches; one array of weights per batch."""
    return as_sum(float_sum(batches, name, weights), batches[0].forms[name])


def float_sum(batches, name, weights):
    """Like `weighted_sum`, in float64 even if the field has integers."""
    sums = [b.sum_of_changes(name, w) for b, w in zip(batches, weights, strict=True)]
    return sum(sums[1:], start=sums[0])


def forms_of(batches):
    """Forms of the learned fields."""
    return {name: batches[0].forms[name] for name in batches[0].changes}


def places_of(batches):
    """Each client's rank by code among all accepted clients, batch by batch; -1 for the others."""
    codes = np.concatenate([batch.clients for batch in batches])
    accepted = np.flatnonzero(np.concatenate([batch.accepted for batch in batches]))
    places = np.full(len(codes), -1)
    places[accepted[np.argsort(codes[accepted])]] = np.arange(len(accepted))
    return np.split(places, np.cumsum([len(batch.clients) for batch in batches])[:-1])
