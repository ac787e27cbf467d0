"""Downloads: sizes and compression of the server's messages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk.compression._compressors import BlockCompressor
from fedrecsk.data._checks import Diverged
from fedrecsk.protocol.messages import Message, Rows

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import ArrayLike, NDArray

    from fedrecsk.protocol.encryption import SecureChannel
    from fedrecsk.protocol.federation import Federation
    from fedrecsk.protocol.keys import Key
    from fedrecsk.protocol.ledger import Ledger


class Downlink:
    """Sends the server's messages, and counts what each client receives.

    Parameters
    ----------
    federation : Federation
    ledger : Ledger
    n_held : ndarray of shape (n_clients,)
        Items that each client holds.
    channel : SecureChannel or None
    sends_whole : bool
        Whether clients always receive the full model, as in a deployment, and not what has changed.

    Attributes
    ----------
    changes : set of str
        Fields of the last message that are sent as compressed changes of the message before it.
    """

    def __init__(
        self,
        federation: Federation,
        ledger: Ledger,
        n_held: NDArray[np.int64],
        channel: SecureChannel | None,
        sends_whole: bool = False,
    ) -> None:
        self.federation = federation
        self.ledger = ledger
        self.channel = channel
        self._n_held = n_held
        # Bytes of the updates that each client has missed; inf if it needs the full model.
        self._missed = np.full(len(n_held), np.inf if channel is None else 0.0)
        # The model as clients know it, if its changes are compressed.
        self._known = {}
        self.changes: set[str] = set()
        self.sends_whole = sends_whole
        # Bytes of encrypted sums that clients are still to receive; None before the first model.
        self._pending = None

    def send(
        self,
        message: Message | None,
        receives: NDArray[np.bool_],
        delta: Message | None = None,
        key: Key | None = None,
    ) -> Message | None:
        """Send the model to the clients of the mask `receives`.

        Parameters
        ----------
        message : Message or None
        receives : ndarray of shape (n_clients,), dtype bool
        delta : Message or None
            What clients with the last model need instead. None: the full model.
        key : Key or None
            For compression. None: the model is sent as it is.

        Returns
        -------
        message : Message or None
            The message as it arrives.
        """
        self.changes = set()
        if not message:
            return message
        compression = self.federation.compression
        if compression is not None and compression.down:
            # A delta of the model does not apply to the compressed model that clients have.
            if key is None:
                delta = None
            else:
                message, delta = self._compressed(message, delta, compression, key)
        whole, payload = message.sizes(self._n_held, self.federation.wire_dtype)
        latest = whole
        if delta is not None:
            latest, payload = delta.sizes(self._n_held, self.federation.wire_dtype)
        if self.channel is not None:
            # The server sends only encrypted sums and its own draws.
            first = self._pending is None
            drawn = {name: f for name, f in message.items() if first or not f.is_learned}
            latest = self._sizes(Message(**drawn)) + (self._pending or 0)
            self._pending = 0
            self._missed += latest
            whole = self._missed.astype(np.int64)
        else:
            self._missed += np.inf if delta is None else latest
        needs_whole = np.isinf(self._missed) | self.sends_whole
        missed = np.where(needs_whole, whole, self._missed).astype(np.int64)
        self._missed[receives] = 0
        self.ledger.down(
            receives.nonzero()[0],
            whole[receives],
            missed[receives],
            latest[receives],
            payload[receives],
        )
        return message

    def admit(self, n_held: NDArray[np.int64]) -> None:
        """Add clients that join late, given how many items each holds; they need the full model."""
        self._n_held = np.concatenate([self._n_held, n_held])
        self._missed = np.pad(self._missed, (0, len(n_held)), constant_values=np.inf)

    def announce(self, message: Message | None, who: NDArray[np.bool_] | None = None) -> None:
        """Send a message once to the clients of the mask, or to all."""
        if not message:
            return
        sizes = self._sizes(message)
        if self.channel is not None:
            n_values = sum(np.size(field.values) for field in message.values())
            sizes = np.full(len(sizes), self.channel.nbytes(n_values))
        self.count(sizes, who)

    def count(self, sizes: ArrayLike, who: NDArray[np.bool_] | None = None) -> None:
        """Count bytes that the clients of the mask receive, or all.

        `sizes` is an array of shape (n_clients,) or one number.
        """
        who = np.ones(len(self._missed), dtype=bool) if who is None else who
        self.ledger.down(who.nonzero()[0], np.broadcast_to(sizes, len(who))[who])

    def add(self, message: Message, receives: NDArray[np.bool_]) -> None:
        """Count a message that the clients of the mask receive together with the last one."""
        self.ledger.more_down(receives.nonzero()[0], self._sizes(message)[receives])

    def owe(self, nbytes: int) -> None:
        """Note that clients are still to receive an encrypted sum of `nbytes` bytes."""
        if self._pending is not None:
            self._pending += nbytes

    def _compressed(self, message, delta, compression, key):
        """Return the model as clients know it after another compressed change, and that change."""
        received, changes = {}, {}
        for name, field in message.items():
            values = matrix_to_compress(field)
            if values is not None and name in self._known:
                packed = self._compressed_change(name, field, values, compression, key)
                self._known[name] = self._known[name] + packed.values
                changes[name] = replace(field, packed=packed)
                received[name] = replace(field, values=self._known[name])
                continue
            if values is not None:
                self._known[name] = values.copy()
            received[name] = changes[name] = field
        first = not any(field.packed for field in changes.values())
        return Message(**received), delta if first else Message(**changes)

    def _compressed_change(self, name, field, values, compression, key):
        if not np.isfinite(values).all():
            raise Diverged(
                f"The server's model diverged: {name} held NaN or infinite values in round "
                f"{key.round}."
            )
        generator = key.generator(f"compression of {name} on its way down")
        change = values - self._known[name]
        packed = compression.compress(change, generator)
        if not np.isfinite(packed.values).all():
            raise ValueError(
                f"The server's change of {name} in round {key.round} does not fit into "
                f"{compression}, which ends at 65504; use "
                'Quantization("int8"), which scales the values.'
            )
        self.changes.add(name)
        is_known = isinstance(compression, BlockCompressor) and not compression._is_changed
        if not is_known or compression._is_exact:
            return packed
        # What clients know is what they make of the numbers that cross.
        wire = np.dtype(field.dtype or self.federation.wire_dtype)
        encoded: Any = compression._encoded(packed.values.astype(np.float64), packed.step)
        values, extra = encoded
        extra = None if extra is None else _narrowed(extra, wire)
        received: Any = compression._decoded(_narrowed(values, wire), extra, change.shape)
        return replace(packed, values=received.astype(change.dtype))

    def _sizes(self, message):
        """Return the bytes of the message for each client, shape (n_clients,)."""
        return message.sizes(self._n_held, self.federation.wire_dtype)[0]


def _narrowed(values, wire):
    """Real numbers in the type of the wire, if they are longer."""
    longer = values.dtype.kind == "f" and values.dtype.itemsize > wire.itemsize
    return values.astype(wire) if longer else values


def matrix_to_compress(field: Any) -> Any:
    """Return the matrix of a field that may be compressed, else None."""
    # Fields that are not learned, such as a basis, are sent as they are.
    if isinstance(field, Rows) or not (field.is_learned and field.compressible):
        return None
    values = np.asarray(field.values)
    return values if values.ndim == 2 and values.dtype.kind == "f" else None
