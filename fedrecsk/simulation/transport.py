"""The wire between clients and server: it validates, protects, meters and adds."""

from __future__ import annotations

import numpy as np

from fedrecsk.privacy.local_dp import PrivacyReport
from fedrecsk.simulation.ledger import Ledger
from fedrecsk.simulation.messages import Rows, Total, Upload


class Transport:
    """Carries messages for one fit and keeps its ledger.

    Parameters
    ----------
    federation : Federation
    client_ids : ndarray of shape (n_clients,)
    """

    def __init__(self, federation, client_ids):
        self.federation = federation
        self.ledger = Ledger(client_ids)
        self._uploads = np.zeros(len(client_ids), dtype=np.int64)
        self._coordinates = np.zeros(len(client_ids), dtype=np.int64)

    def down(self, blocks, message, hears):
        """Send one message from the server to the clients that hear it (a mask)."""
        for block in blocks if message else ():
            mask = hears[block.clients]
            nbytes = message.nbytes(block, self.federation.wire_dtype)
            self.ledger.down(block.clients[mask], nbytes[mask])

    def up(self, blocks, parts, active, delivers, key):
        """Bring the blocks' uploads to the server as one sum.

        Parameters
        ----------
        blocks : list of Block
        parts : iterable of Message or None
            One a block, taken one at a time: the sum over its clients that deliver and are
            sound; None where it sends nothing.
        active, delivers : ndarray of shape (n_clients,), dtype bool
            Clients that send, and those whose message arrives.
        key : Key

        Returns
        -------
        Upload or None
            None if no message arrived.

        Raises
        ------
        ValueError
            If messages arrived and every one of them held NaN or infinite values.
        """
        shapes, fields, totals, n_sound, n_arrived = {}, None, {}, 0, 0
        for block, part in zip(blocks, parts, strict=True):
            if part is None:
                continue
            if fields is None:
                fields = part
                shapes = {name: np.shape(field.values) for name, field in part.items()}
            self._meter(block, part, active[block.clients])
            arrived = delivers[block.clients]
            sound = arrived if part.sound is None else arrived & part.sound
            n_arrived += arrived.sum()
            if not sound.any() or not _is_valid(part, shapes):
                continue
            n_sound += sound.sum()
            for name, field in part.items():
                values = _wide(field.values)
                totals[name] = totals[name] + values if name in totals else values
        self.ledger.count(messages_up=n_sound, rejected=n_arrived - n_sound)
        if n_sound == 0:
            if n_arrived:
                raise ValueError(
                    f"The clients diverged: all {n_arrived} uploads of round {key.round} held NaN "
                    "or infinite values. Lower the learning rate, or scale the ratings."
                )
            return None
        if self.federation.local_dp is not None:
            for name, field in fields.items():
                self._perturb(field, name, totals, n_sound, key)
        return Upload(
            int(n_sound), **{name: Total(total, int(n_sound)) for name, total in totals.items()}
        )

    def _meter(self, block, part, senders):
        clients = block.clients[senders]
        self.ledger.up(clients, part.nbytes(block, self.federation.wire_dtype)[senders])
        self._uploads[clients] += 1
        self._coordinates[clients] += part.sizes(block)[senders]

    def _perturb(self, field, name, totals, n_clients, key):
        mechanism = self.federation.local_dp
        if isinstance(field, Rows) or field.clip != mechanism.clip:
            raise RuntimeError(
                f"Field {name!r} reached the wire as rows or without the clip of local_dp; a "
                "method must send dense fields that its clients have clipped."
            )
        noise = mechanism.summed_noise(
            n_clients, totals[name].shape, key.generator(f"noise of {name}")
        )
        totals[name] = totals[name] + noise

    def privacy_report(self):
        """What the uploads so far cost in privacy."""
        return PrivacyReport.of(self.federation.local_dp, self._uploads, self._coordinates)


def _wide(values):
    """As the server adds: integers exactly, everything else in float64."""
    values = np.asarray(values)
    return values.astype(np.int64 if values.dtype.kind in "iub" else np.float64)


def _is_valid(part, shapes):
    return part.keys() == shapes.keys() and all(
        np.shape(field.values) == shapes[name] and np.isfinite(field.values).all()
        for name, field in part.items()
    )
