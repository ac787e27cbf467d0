"""The two halves of the protocol over nothing but bytes: one server, and a device per client.

Everything that crosses goes through :func:`pack`. The server and every device are pickled and
unpickled between steps. What has crossed is counted here, too.
"""

import io
import pickle
from dataclasses import replace

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from fedrecsk.data.interactions import encode
from fedrecsk.protocol import (
    ClientMessage,
    Clients,
    Derived,
    Device,
    Message,
    Numbers,
    Rows,
    Server,
)
from fedrecsk.protocol.blocks import by_user, of_clients
from fedrecsk.protocol.clients import VALIDATION
from fedrecsk.protocol.early_stopping import hold_out
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.messages import Dense
from fedrecsk.protocol.registration import Registration
from fedrecsk.updates import Counts

# ------------------------------------------------------------------------------------ bytes


def pack(arrays):
    """A dict of arrays as bytes; nothing but arrays of numbers and strings passes."""
    file = io.BytesIO()
    for array in (np.array(list(arrays), dtype=str), *arrays.values()):
        np.save(file, array, allow_pickle=False)
    return file.getvalue()


def unpack(content):
    """The dict again."""
    file = io.BytesIO(content)
    names = np.load(file, allow_pickle=False).tolist()
    return {name: np.load(file, allow_pickle=False) for name in names}


def pack_message(message, held, client):
    """A message as bytes, for a client of this code that holds the items `held`."""
    arrays = {}
    for name, field in (message or Message()).of(np.array([client])).items():
        values = np.asarray(field.values)
        if isinstance(field, Rows):
            arrays[f"rows {name}"] = values[held]
        elif not isinstance(field, Derived):
            arrays[f"dense {name}"] = values
    return pack(arrays) if arrays else b""


def unpack_message(content, held, n_items):
    """The message as the client has it: rows that it did not receive are zero."""
    fields = {}
    for label, values in (unpack(content) if content else {}).items():
        kind, name = label.split(" ")
        if kind == "rows":
            whole = np.zeros((n_items, *values.shape[1:]), dtype=values.dtype)
            whole[held] = values
            fields[name] = Rows(whole)
        else:
            fields[name] = Dense(values)
    return Message(**fields)


def message_nbytes(message, content, wire_dtype):
    """Bytes of what crossed, in the types of the message's fields."""
    total = 0
    for label, values in (unpack(content) if content else {}).items():
        field = message[label.split(" ")[1]]
        total += values.size * np.dtype(field.dtype or wire_dtype).itemsize
    return total


def pack_upload(upload, specs):
    """An upload as bytes: of each field the numbers that cross, and no other."""
    arrays = {"step": np.array([upload.phase, str(upload.round), str(upload.client)])}
    for name, spec in specs.items():
        values, rows, columns = upload.fields[name]
        real = not spec.is_integer or values.dtype.kind == "f"
        assert (rows is None) == (spec.rows == "all" or is_known(spec, upload.phase))
        if not real and spec.bits:
            arrays[f"bits {name}"] = np.packbits(values > 0, axis=1)
        elif not real:
            assert values.dtype == spec.dtype
            arrays[f"values {name}"] = values
        elif values.dtype != np.float64:
            # Codes of a compressor.
            arrays[f"values {name}"] = values
        else:
            # Real numbers keep all their digits here, so that fits can be compared bit by bit.
            arrays[f"values {name}"] = values.astype(np.float64)
        if rows is not None:
            arrays[f"rows {name}"] = rows.astype(np.int32)
        if columns is not None:
            arrays[f"columns {name}"] = columns
    arrays |= {f"extras {name}": extra for name, extra in upload.extras.items()}
    return pack(arrays)


def unpack_upload(content, specs):
    """The upload as the server has it, and its bytes in the types of the forms."""
    arrays = unpack(content)
    phase, round, client = arrays["step"].tolist()
    fields = {}
    for name, spec in specs.items():
        values = arrays.get(f"values {name}")
        if f"bits {name}" in arrays:
            bits = np.unpackbits(arrays[f"bits {name}"], axis=1, count=spec.width)
            values = 2 * bits.astype(np.int8) - 1
        rows, columns = arrays.get(f"rows {name}"), arrays.get(f"columns {name}")
        fields[name] = Numbers(values, rows, columns)
    extras = {n.removeprefix("extras "): a for n, a in arrays.items() if n.startswith("extras ")}
    return ClientMessage(phase, int(round), int(client), fields, extras)


def upload_nbytes(upload, specs, wire_dtype):
    """Bytes of what crossed, in the types of the forms."""
    total = 0
    for name, spec in specs.items():
        values, rows, _ = upload.fields[name]
        if spec.bits:
            total += len(values) * 8 * -(-spec.width // 64)
        elif (values.dtype.kind == "f" and values.itemsize < 8) or values.dtype == np.int8:
            total += values.nbytes
        else:
            total += values.size * np.dtype(spec.dtype or wire_dtype).itemsize
        # In the set-up the number of a held item is the field.
        total += 4 * len(rows) if spec.rows == "chosen" else 0
    for extra in upload.extras.values():
        wide = extra.dtype == np.float64
        total += extra.size * np.dtype(wire_dtype).itemsize if wide else extra.nbytes
    return total


def is_known(spec, phase):
    """Whether the server knows which rows come."""
    return spec.rows == "held" and phase != "setup"


# ---------------------------------------------------------------------------------- devices


class Machine:
    """A client's machine: its `Device`, pickled whenever nothing happens."""

    def __init__(self, device):
        self.held = device.block.row_items
        self.n_items = device.block.n_items
        self._asleep = pickle.dumps(device)

    def call(self, function, *arguments):
        """Wake up, do something, and go back to sleep."""
        device = pickle.loads(self._asleep)
        result = function(device, *arguments)
        self._asleep = pickle.dumps(device)
        return result

    def message(self, content):
        return unpack_message(content, self.held, self.n_items)

    def place(self, place):
        def _place(device):
            device.place(place)
            return device.block

        self.block = self.call(_place)

    def setup(self, step, content, specs):
        first, again = (
            [pack_upload(upload, specs) for upload in answer]
            for answer in (self.call(Device.setup, step, self.message(content)) for _ in range(2))
        )
        assert first == again
        return first

    def announce(self, content):
        self.call(Device.announce, self.message(content))

    def receive(self, round, content):
        self.call(Device.receive, round, self.message(content))

    def update(self, round, specs):
        """Its upload as bytes, and its loss, which only a simulation gets to know."""

        def _update(device):
            uploads, loss = device.update(round)
            return [pack_upload(upload, specs) for upload in uploads], loss

        first, again = self.call(_update), self.call(_update)
        # The network fails, the server asks once more, and nothing happens twice.
        assert first[0] == again[0]
        assert np.array_equal(first[1], again[1])
        return first

    def validate(self, round, content):
        first, again = (
            pack_upload(upload, VALIDATION)
            for _ in range(2)
            for upload in self.call(Device.validate, round, self.message(content))
        )
        assert first == again
        return first

    def keep(self, is_best):
        self.call(Device.keep_measured if is_best else Device.forget_kept)

    def fitted(self, content, round):
        def _fitted(device):
            complete = device._complete(self.message(content), round)
            return Clients.fitted(device, complete, round)

        return self.call(_fitted)


# ------------------------------------------------------------------------------- deployment


class Deployment:
    """A fit of `estimator` over bytes, with what a simulation would draw."""

    def __init__(self, estimator, X, y, clients=None):
        data = encode(X, y, clients=clients)
        self.key = Key(int(check_random_state(estimator.random_state).randint(2**31 - 1)))
        federation = clone(estimator._setting())
        catalogue = data.item_ids.values
        method = clone(estimator).set_params(
            random_state=None, federation=federation, items=catalogue
        )
        rating_range = data.values.min(), data.values.max()
        self.server = Server(method, federation, self.key, catalogue, rating_range)
        self.bytes_down = self.bytes_up = 0
        held_out = None
        if method.early_stopping:
            held_out = hold_out(data, method.validation_fraction, self.key)[1]
        names = X[:, 0] if clients is None else clients
        machines = []
        for name in data.client_ids:
            mine = names == name
            device = Device(method, X[mine], y[mine], client_id=name, private=self.key)
            if held_out is not None:
                self._hold_out(device, data, held_out)
            machines.append(Machine(device))
        self._register(machines)

    @staticmethod
    def _hold_out(device, data, held_out):
        """Let it hold out what the simulation does, which draws with the users' codes."""
        own = device.data
        first = np.searchsorted(data.client_ids, own.client_ids[0])
        users = data.client_indptr[first] + own.users
        theirs = set(zip(held_out.users.tolist(), held_out.items.tolist(), strict=True))
        mask = np.array([pair in theirs for pair in zip(users, own.items, strict=True)])
        device.block = of_clients(own.take(~mask), np.array([0]))
        device.held_out = of_clients(own.take(mask), np.array([0]))

    def _register(self, devices):
        """In any order; the server says who is who."""
        order = np.random.default_rng(0).permutation(len(devices))
        registrations = []
        for d in order:
            content = pack(devices[d].call(Device.register)._asdict())
            registrations.append(Registration(**unpack(content)))
        self.devices = {}
        for d, place in zip(order, self.server.register(registrations), strict=True):
            devices[d].place(pickle.loads(pickle.dumps(place)))
            self.devices[int(place.clients[0])] = devices[d]

    def _sent(self, message, client):
        """A message on its way to one client."""
        content = pack_message(message, self.devices[client].held, client)
        wire_dtype = self.server.federation.wire_dtype
        self.bytes_down += message_nbytes(message, content, wire_dtype)
        return content

    def _arrived(self, content, specs, delivers=True):
        """The updates of an upload that has reached the server, or of one that was lost."""
        upload = unpack_upload(content, specs)
        self.bytes_up += upload_nbytes(upload, specs, self.server.federation.wire_dtype)
        updates = self.server.accept(upload)
        if delivers:
            return updates
        nobody, nothing = np.zeros(1, dtype=bool), {"fields": {}, "held": None, "counts": Counts()}
        return replace(updates, arrives=nobody, accepted=nobody, **nothing)

    def _sleep(self):
        self.server = pickle.loads(pickle.dumps(self.server))

    # -------------------------------------------------------------------------- the protocol

    def fit(self):
        """All of it; returns the fitted attributes."""
        self._set_up()
        n_rounds = self.server.method.n_rounds
        while self.server.round < n_rounds and not self.server.stopping.stopped:
            self._round()
            self._sleep()
        return self._end()

    def _set_up(self):
        n_items = len(self.server.item_ids)
        for step in range(self.server.method._n_setups):
            message = self.server.setup_message(step)
            specs = self.server.method._setup_specs(n_items, step)
            answers = []
            for client, device in sorted(self.devices.items()):
                answers += device.setup(step, self._sent(message, client), specs)
            self._sleep()
            arrived = [self._arrived(one, specs) for one in answers]
            self.server.close_setup(step, arrived, trusted=True)
        announcement = self.server.send_announcement()
        for client, device in self.devices.items():
            device.announce(self._sent(announcement, client))

    def _round(self):
        turn, message = self.server.open_round()
        server, round = self.server, self.server.round
        if message and round and server.method.early_stopping:
            self._validate(turn)
            server = self.server
            if server.stopping.stopped:
                return
        specs = server.method._upload_specs(len(server.item_ids))
        arrived, total = [], np.zeros(2)
        for client in np.flatnonzero(turn.receives | turn.active).tolist():
            device = self.devices[client]
            device.receive(round, self._sent(message, client) if turn.receives[client] else b"")
            if not turn.active[client]:
                continue
            contents, loss = device.update(round, specs)
            total += loss
            arrived += [self._arrived(one, specs, turn.delivers[client]) for one in contents]
        self._sleep()
        self.server.close_round(arrived, total, trusted=True)

    def _validate(self, turn):
        server = self.server
        message = server.send_for_validation(turn.receives)
        answers, asked = [], np.flatnonzero(turn.receives).tolist()
        for client in asked:
            content = pack_message(message, self.devices[client].held, client)
            answer = self.devices[client].validate(server.round, content)
            answers.append(self._arrived(answer, VALIDATION, turn.delivers[client]))
        self._sleep()
        is_best = self.server.close_validation(answers, turn.receives, trusted=True)
        if is_best:
            for client, device in self.devices.items():
                device.keep(client in asked)

    def _end(self):
        server, stopping = self.server, self.server.stopping
        if stopping.stopped:
            message = server.send_best()
        else:
            message = server.send_final()
            if server.method.early_stopping:
                self._validate(server.final_participation())
                server, stopping = self.server, self.server.stopping
                if stopping.best_round != server.round - 1:
                    message = server.send_best()
        announced = server.announcement()
        final = Message(**{name: field for name, field in message.items() if name not in announced})
        parts = []
        for client, device in self.devices.items():
            self._sent(final, client)
            content = pack_message(message, device.held, client)
            parts.append(device.fitted(content, server.round))
        users = by_user([device.block.users for device in self.devices.values()], parts)
        received = server.method._decode_broadcast(message, self.key.at(server.round))
        return server.method._server_attributes(received) | users
