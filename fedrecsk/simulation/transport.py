"""The wire between clients and server: it validates, protects, meters and adds."""

from __future__ import annotations

import numpy as np

from fedrecsk.aggregation import Update, plain_sum
from fedrecsk.privacy.local_dp import PrivacyReport
from fedrecsk.simulation.ledger import Ledger
from fedrecsk.simulation.messages import Dense, Rows, Total, Upload


class Transport:
    """Carries messages for one fit and keeps its ledger.

    Parameters
    ----------
    federation : Federation
    client_ids : ndarray of shape (n_clients,)
    intrusion : Intrusion or None
    """

    def __init__(self, federation, client_ids, intrusion=None):
        self.federation = federation
        self.intrusion = intrusion
        self.ledger = Ledger(client_ids)
        # News since each client last heard the server; before that only the whole will do.
        self._missed = np.full(len(client_ids), np.inf)
        self._uploads = np.zeros(len(client_ids), dtype=np.int64)
        self._coordinates = np.zeros(len(client_ids), dtype=np.int64)

    def down(self, blocks, message, hears, news=None):
        """Send the model to the clients that hear it (a mask).

        `news` is what those need instead who know the last model already; None: all of it.
        """
        if not message:
            return
        whole = self._sizes(blocks, message, hears)
        latest = whole if news is None else self._sizes(blocks, news, np.ones_like(hears))
        self._missed += np.inf if news is None else latest
        missed = np.where(np.isinf(self._missed), whole, self._missed).astype(np.int64)
        self._missed[hears] = 0
        self.ledger.down(hears.nonzero()[0], whole[hears], missed[hears], latest[hears])

    def announce(self, blocks, message):
        """Tell every client something once."""
        if message:
            everyone = np.arange(len(self._missed))
            self.ledger.down(everyone, self._sizes(blocks, message, everyone >= 0))

    def _sizes(self, blocks, message, who):
        """Bytes of the message for each client of the mask `who`, shape (n_clients,)."""
        wire_dtype = self.federation.wire_dtype
        if all(type(field) is Dense for field in message.values()):
            return np.full(len(who), message.nbytes(blocks[0], wire_dtype)[0])
        sizes = np.zeros(len(who), dtype=np.int64)
        for block in blocks:
            if who[block.clients].any():
                sizes[block.clients] = message.nbytes(block, wire_dtype)
        return sizes

    def up(self, blocks, parts, active, delivers, key, *, learned=False):
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
        learned : bool
            Whether the parts are what clients have learned in a round. These alone are what
            adversaries forge and aggregators guard; the blocks must have one client each if
            there are any.

        Returns
        -------
        Upload or None
            None if no message arrived, or too few for the aggregator.

        Raises
        ------
        ValueError
            If messages arrived and every one of them held NaN or infinite values.
        """
        shapes, fields, totals, uploads, n_sound, n_arrived = {}, None, {}, [], 0, 0
        one_by_one = learned and self.federation.one_by_one
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
            if one_by_one:
                uploads.append(self._received(block, part, totals, key))
                continue
            for name, field in part.items():
                _add(totals, name, _wide(field.values))
        self.ledger.count(messages_up=n_sound, rejected=n_arrived - n_sound)
        if n_sound == 0:
            if n_arrived:
                raise ValueError(
                    f"The clients diverged: all {n_arrived} uploads of round {key.round} held NaN "
                    "or infinite values. Lower the learning rate, or scale the ratings."
                )
            return None
        if one_by_one:
            learned_shapes = {name: shapes[name] for name in uploads[0]}
            guard = self.federation.aggregator
            combine = plain_sum if guard is None else guard.combine
            sums = combine(uploads, learned_shapes)
            if sums is None:
                return None
            for name, values in sums.items():
                integers = np.asarray(fields[name].values).dtype.kind == "i"
                _add(totals, name, _wide(np.rint(values).astype(int) if integers else values))
        elif self.federation.local_dp is not None:
            for name, field in fields.items():
                totals[name] = totals[name] + self._noise(field, name, n_sound, key)
        return Upload(
            int(n_sound), **{name: Total(total, int(n_sound)) for name, total in totals.items()}
        )

    def _meter(self, block, part, senders):
        clients = block.clients[senders]
        self.ledger.up(clients, part.nbytes(block, self.federation.wire_dtype)[senders])
        self._uploads[clients] += 1
        self._coordinates[clients] += part.sizes(block)[senders]

    def _received(self, block, part, totals, key):
        """What one client sends, as changes; adds what is known or counted to `totals`."""
        client = block.clients[0]
        upload = {}
        for name, field in part.items():
            values = _wide(field.values)
            if field.is_count:
                _add(totals, name, values)
                continue
            rows = field.rows_of(block)
            if field.center is None:
                upload[name] = Update(rows, values[rows])
            else:
                known = np.zeros_like(values)
                known[rows] = field.center[rows]
                _add(totals, name, known)
                upload[name] = Update(rows, values[rows] - known[rows])
        if self.intrusion is not None and self.intrusion.controlled[client]:
            return self.intrusion.forge(upload, key.generator(f"forged by {client}"))
        if self.federation.local_dp is not None:
            for name, field in part.items():
                noise = self._noise(field, name, 1, key, f" from {client}")
                upload[name] = upload[name]._replace(change=upload[name].change + noise)
        return upload

    def _noise(self, field, name, n_clients, key, whose=""):
        mechanism = self.federation.local_dp
        if isinstance(field, Rows) or field.clip != mechanism.clip:
            raise RuntimeError(
                f"Field {name!r} reached the wire as rows or without the clip of local_dp; a "
                "method must send dense fields that its clients have clipped."
            )
        generator = key.generator(f"noise of {name}{whose}")
        return mechanism.summed_noise(n_clients, np.shape(field.values), generator)

    def privacy_report(self):
        """What the uploads so far cost in privacy."""
        return PrivacyReport.of(self.federation.local_dp, self._uploads, self._coordinates)


def _add(totals, name, values):
    totals[name] = totals[name] + values if name in totals else values


def _wide(values):
    """As the server adds: integers exactly, everything else in float64."""
    values = np.asarray(values)
    return values.astype(np.int64 if values.dtype.kind in "iub" else np.float64)


def _is_valid(part, shapes):
    return part.keys() == shapes.keys() and all(
        np.shape(field.values) == shapes[name] and np.isfinite(field.values).all()
        for name, field in part.items()
    )
