"""The wire between clients and server: it validates, protects, meters and adds.

What clients have learned goes through an adversary, local noise, compression and encryption on
their side, and through the server's aggregator on the other.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedrecsk.aggregation import plain_sum
from fedrecsk.privacy.local_dp import PrivacyReport
from fedrecsk.simulation._singles import Single
from fedrecsk.simulation.encryption import SecureChannel
from fedrecsk.simulation.ledger import Ledger
from fedrecsk.simulation.messages import Message, Rows, Total, Upload


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
        scheme = federation.secure_aggregation
        self.channel = None if scheme is None else SecureChannel(scheme)
        # News since each client last heard the server; inf where only the whole will do.
        self._missed = np.full(len(client_ids), np.inf if scheme is None else 0.0)
        self._known = {}
        # Bytes of encrypted sums that clients have yet to hear; None before the first model.
        self._unheard = None
        self._uploads = np.zeros(len(client_ids), dtype=np.int64)
        self._coordinates = np.zeros(len(client_ids), dtype=np.int64)

    # ------------------------------------------------------------------------------ down

    def down(self, blocks, message, hears, news=None, key=None):
        """Send the model to the clients that hear it (a mask).

        Parameters
        ----------
        blocks : list of Block
        message : Message or None
        hears : ndarray of shape (n_clients,), dtype bool
        news : Message or None
            What those need instead who know the last model already; None: all of it.
        key : Key or None
            For compression. None: the model crosses as it is.

        Returns
        -------
        message : Message or None
            As it arrives.
        """
        if not message:
            return message
        if self._compresses_down:
            # News do not complete a model of which clients know a compressed form.
            message, news = (message, None) if key is None else self._compressed(message, news, key)
        everyone = np.ones_like(hears)
        whole = self._sizes(blocks, message, hears)
        payload = self._sizes(blocks, news or message, hears, "payload_nbytes")
        if self.channel is not None:
            # The server has nothing to give but encrypted sums and what it draws itself.
            first = self._unheard is None
            drawn = {name: f for name, f in message.items() if first or f.is_count}
            latest = self._sizes(blocks, Message(**drawn), everyone) + (self._unheard or 0)
            self._unheard = 0
            self._missed += latest
            whole = self._missed.astype(np.int64)
        else:
            latest = whole if news is None else self._sizes(blocks, news, everyone)
            self._missed += np.inf if news is None else latest
        missed = np.where(np.isinf(self._missed), whole, self._missed).astype(np.int64)
        self._missed[hears] = 0
        self.ledger.down(
            hears.nonzero()[0], whole[hears], missed[hears], latest[hears], payload[hears]
        )
        return message

    def announce(self, blocks, message):
        """Tell every client something once."""
        if not message:
            return
        everyone = np.ones(len(self._missed), dtype=bool)
        sizes = self._sizes(blocks, message, everyone)
        if self.channel is not None:
            n_values = sum(np.size(field.values) for field in message.values())
            sizes = np.full(len(sizes), self.channel.nbytes(n_values))
        self.ledger.down(everyone.nonzero()[0], sizes)

    @property
    def _compresses_down(self):
        return self.federation.compression is not None and self.federation.compression.down

    def _compressed(self, message, news, key):
        """The model as clients have it after one more compressed change."""
        heard, changes = {}, {}
        for name, field in message.items():
            values = np.asarray(field.values)
            matrix = values.ndim == 2 and values.dtype.kind == "f" and not isinstance(field, Rows)
            # What is not learned, like a basis that both sides compute with, crosses as it is.
            matrix = matrix and not field.is_count and field.compressible
            if matrix and name in self._known:
                generator = key.generator(f"compression of {name}")
                packed = self.federation.compression.compress(values - self._known[name], generator)
                if not np.isfinite(packed.values).all():
                    raise ValueError(
                        f"The server's change of {name} in round {key.round} does not fit into "
                        f"{self.federation.compression}, which ends at 65504; use "
                        'Quantization("int8"), whose scale follows the values.'
                    )
                self._known[name] = self._known[name] + packed.values
                changes[name] = replace(field, packed=packed)
                heard[name] = replace(field, values=self._known[name])
                continue
            if matrix:
                self._known[name] = values.copy()
            heard[name] = changes[name] = field
        first = not any(field.packed for field in changes.values())
        return Message(**heard), news if first else Message(**changes)

    def _sizes(self, blocks, message, who, measure="nbytes"):
        """Bytes of the message for each client of the mask `who`, shape (n_clients,)."""
        wire_dtype = self.federation.wire_dtype
        if all(field.is_uniform for field in message.values()):
            return np.full(len(who), getattr(message, measure)(blocks[0], wire_dtype)[0])
        sizes = np.zeros(len(who), dtype=np.int64)
        for block in blocks:
            if who[block.clients].any():
                sizes[block.clients] = getattr(message, measure)(block, wire_dtype)
        return sizes

    # -------------------------------------------------------------------------------- up

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
            adversaries forge, compressors shorten, aggregators guard and audits encrypt; the
            blocks must have one client each if there are any.

        Returns
        -------
        Upload or None
            None if no message arrived, or too few for the aggregator.

        Raises
        ------
        ValueError
            If messages arrived and every one of them held NaN or infinite values.
        """
        fields, shapes, totals, singles = None, {}, {}, {}
        n_sound, n_arrived = 0, 0
        one_by_one = learned and self.federation.one_by_one
        held = one_by_one and self._holds_uploads
        for block, part in zip(blocks, parts, strict=True):
            if not part:
                continue
            if fields is None:
                fields = part
                shapes = {name: np.shape(field.values) for name, field in part.items()}
            valid = _is_valid(part, shapes)
            single = self._single(block, part, key) if one_by_one and valid else None
            self._meter(block, part, single, active[block.clients], learned)
            # What an attacker has forged need not be finite.
            valid = valid and (single is None or single.is_finite)
            arrived = delivers[block.clients]
            sound = arrived if part.sound is None else arrived & part.sound
            n_arrived += arrived.sum()
            if not sound.any() or not valid:
                continue
            n_sound += sound.sum()
            if held:
                singles[int(block.clients[0])] = single
                continue
            for name, values in (single or part).numbers(shapes).items():
                _add(totals, name, values)
        self.ledger.count(messages_up=n_sound, rejected=n_arrived - n_sound)
        if n_sound == 0:
            if n_arrived:
                raise ValueError(
                    f"The clients diverged: all {n_arrived} uploads of round {key.round} held NaN "
                    "or infinite values. Lower the learning rate, or scale the ratings."
                )
            return None
        if held:
            totals = self._combined(singles, fields, shapes, key)
            if totals is None:
                return None
        elif self.federation.local_dp is not None and not one_by_one:
            for name, field in fields.items():
                totals[name] = totals[name] + self._noise(field, name, n_sound, key)
        if self._unheard is not None:
            self._unheard += self.channel.nbytes(_aligned_size(fields))
        return Upload(
            int(n_sound), **{name: Total(total, int(n_sound)) for name, total in totals.items()}
        )

    @property
    def _holds_uploads(self):
        """Whether a round's uploads must all be there before they can be added up."""
        return self.federation.aggregator is not None or self.channel is not None

    def _single(self, block, part, key):
        """What one client sends, after all that happens to it on the client's side."""
        client = int(block.clients[0])
        wire_dtype = self.federation.wire_dtype
        single = Single.of(block, part, wire_dtype)
        if self.intrusion is not None and self.intrusion.controlled[client]:
            generator = key.generator(f"forged by {client}")
            single = single.forged(self.intrusion.forge, generator)
        elif self.federation.local_dp is not None:
            whose = f" from {client}"
            single = single.noised(
                {name: self._noise(field, name, 1, key, whose) for name, field in part.items()}
            )
        compressor = self.federation.compression
        if compressor is not None and compressor.up and single.is_finite:
            generator = key.generator(f"compression by {client}")
            single = single.compressed(compressor, generator, np.dtype(wire_dtype).itemsize)
        return single

    def _combined(self, singles, fields, shapes, key):
        """The sum of single uploads as the server makes it; None if it makes none."""
        totals = {}
        for single in singles.values():
            for name, values in single.rest.items():
                _add(totals, name, values)
        updates = [single.updates for single in singles.values()]
        guard = self.federation.aggregator
        combine = plain_sum if guard is None else guard.combine
        sums = combine(updates, {name: shapes[name] for name in updates[0]})
        if sums is None:
            return None
        for name, values in sums.items():
            integers = np.asarray(fields[name].values).dtype.kind in "iub"
            averaged = integers and values.dtype.kind == "f"
            _add(totals, name, np.rint(values).astype(np.int64) if averaged else values)
        if self.channel is not None:
            totals = self._audited(singles, totals, shapes, key)
        return totals

    def _audited(self, singles, totals, shapes, key):
        """Encrypt the audited clients' uploads; take the decrypted sum if that is all of them.

        A sample is only checked, so that the noise of ciphertexts, which no seed can
        repeat, stays out of the model.
        """
        self.channel.check(max(single.largest for single in singles.values()), len(singles))
        chosen = self.channel.audited(np.array(list(singles)), key)
        vectors = [single.whole(shapes) for client, single in singles.items() if client in chosen]
        decrypted = self.channel.sum(vectors, len(singles))
        self.ledger.count(encrypted=len(vectors))
        if self.channel.scheme.audit != "all":
            return totals
        ends = np.cumsum([np.prod(shape, dtype=np.int64) for shape in shapes.values()])
        parts = np.split(decrypted, ends[:-1])
        return {
            name: part.reshape(shape)
            if totals[name].dtype.kind == "f"
            else np.rint(part.reshape(shape)).astype(np.int64)
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        }

    def _meter(self, block, part, single, senders, learned):
        clients = block.clients[senders]
        wire_dtype = self.federation.wire_dtype
        if self.channel is not None:
            nbytes = np.full(block.n_clients, self.channel.nbytes(_aligned_size(part)))
        elif single is not None:
            nbytes = np.array([single.nbytes])
        else:
            nbytes = part.nbytes(block, wire_dtype)
        payload = None
        if single is not None:
            payload = np.array([single.payload])[senders]
        elif learned:
            payload = part.payload_nbytes(block, wire_dtype)[senders]
        self.ledger.up(clients, nbytes[senders], payload)
        self._uploads[clients] += 1
        self._coordinates[clients] += part.sizes(block)[senders]

    def _noise(self, field, name, n_clients, key, whose=""):
        mechanism = self.federation.local_dp
        if isinstance(field, Rows) or field.clip != mechanism.clip:
            raise RuntimeError(
                f"Field {name!r} reached the wire as rows or without the clip of local_dp; a "
                "method must send dense fields that its clients have clipped."
            )
        generator = key.generator(f"noise of {name}{whose}")
        return mechanism.summed_noise(n_clients, np.shape(field.values), generator)

    # -------------------------------------------------------------------------- accounts

    def privacy_report(self):
        """What the uploads so far cost in privacy."""
        return PrivacyReport.of(self.federation.local_dp, self._uploads, self._coordinates)


def _add(totals, name, values):
    totals[name] = totals[name] + values if name in totals else values


def _is_valid(part, shapes):
    return part.keys() == shapes.keys() and all(
        np.shape(field.values) == shapes[name] and np.isfinite(field.values).all()
        for name, field in part.items()
    )


def _aligned_size(part):
    """Values in the vector that every client encrypts; they must be the same for all."""
    for name, field in part.items():
        if isinstance(field, Rows):
            raise RuntimeError(
                f"Field {name!r} has rows of some items only, which do not add up under "
                "encryption; a method must send dense fields to a secure sum."
            )
    return sum(np.size(field.values) for field in part.values())
