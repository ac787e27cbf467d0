"""The two halves of the protocol over nothing but bytes: one server, and a device per client.

Everything that crosses goes through :func:`pack`. The server and every device are pickled and
unpickled between steps. The numbers and bytes that the ledger is told of uploads are those that
crossed, counted here.
"""

import io
import pickle

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from fedrecsk.interactions import Ids, encode
from fedrecsk.simulation import Clients, Derived, Message, Rows, Server
from fedrecsk.simulation.blocks import by_user, of_clients
from fedrecsk.simulation.clients import VALIDATION, Registration
from fedrecsk.simulation.contributions import Contribution
from fedrecsk.simulation.keys import Key, Keys
from fedrecsk.simulation.messages import Dense
from fedrecsk.simulation.stopping import hold_out
from fedrecsk.uploads import Batch, Ragged, Sizes

# ------------------------------------------------------------------------------------ bytes


def pack(arrays):
    """A dict of arrays as bytes; nothing but arrays of numbers and strings passes."""
    file = io.BytesIO()
    assert not any(array.dtype.hasobject for array in arrays.values())
    np.savez(file, **arrays)
    return file.getvalue()


def unpack(content):
    """The dict again."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)


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


def pack_contribution(one, forms, held):
    """One client's contribution as bytes: of each field the numbers that cross."""
    assert one.clients.shape == (1,) and one.sends.all()
    arrays = {"step": np.array([one.phase, str(one.round), str(one.clients[0])])}
    for name, form in forms.items():
        rows, values, columns, center = _numbers(one, name, form, held)
        if form.rows == "chosen":
            arrays[f"numbers {name}"] = rows.astype(np.int32)
        elif form.rows == "held":
            # The server knows these numbers.
            assert np.array_equal(rows, held)
        if columns is not None:
            # Which ones they are, another field says.
            assert not values[:, ~columns].any()
            values = values[:, columns]
        if form.bits:
            assert np.array_equal(np.abs(values), np.ones_like(values))
            arrays[f"bits {name}"] = np.packbits(values > 0, axis=1)
        else:
            # Real numbers keep all their digits here, so that fits can be compared bit by bit.
            dtype = form.dtype if form.is_integer else np.float64
            arrays[f"values {name}"] = values.astype(dtype)
            assert np.array_equal(arrays[f"values {name}"], values, equal_nan=True)
        if columns is not None:
            arrays[f"columns {name}"] = columns
        if center is not None:
            arrays[f"center {name}"] = center
    return pack(arrays)


def _numbers(one, name, form, held):
    """Rows, values, columns and center of a field; all numbers are NaN if they are unsound."""
    if one.batch is None:
        values = one.sums.get(name, np.full(form.shape, np.nan))
        assert form.rows != "chosen", "its row numbers are lost in a sum"
        rows = held if form.rows == "held" else np.arange(len(values))
        assert not np.delete(values, rows, axis=0).any()
        return rows, values[rows], None, None
    changes = (one.batch.changes | one.batch.counts)[name]
    rows, values = changes.update(0)
    rows = np.arange(len(values)) if isinstance(rows, slice) else rows
    columns = getattr(changes, "columns", None)
    return rows, values, None if columns is None else columns[0], one.batch.centers.get(name)


def unpack_contribution(content, forms, held, holds_uploads, wire_dtype):
    """The contribution as the server has it: nobody has checked it."""
    arrays = unpack(content)
    phase, round, client = arrays["step"].tolist()
    fields, centers, sizes = {}, {}, np.zeros((3, 1), dtype=np.int64)
    for name, form in forms.items():
        rows, values, n_sent = _rebuilt(arrays, name, form, held)
        fields[name] = Ragged(np.array([0, len(rows)]), rows, values, form=form)
        if f"center {name}" in arrays:
            centers[name] = arrays[f"center {name}"]
        sizes += _sizes(form, len(rows), n_sent, wire_dtype)[:, None]
    everybody, code = np.ones(1, dtype=bool), np.array([int(client)])
    one = Contribution(
        phase, int(round), code, everybody, everybody, everybody, Sizes(*sizes), sums={}
    )
    if holds_uploads and phase == "round":
        changes = {name: field for name, field in fields.items() if forms[name].learned}
        counts = {name: field for name, field in fields.items() if not forms[name].learned}
        masks = one.sends, one.arrives, one.accepted
        one.batch = Batch(code, *masks, forms, changes, counts, centers, one.sizes)
        return one
    for name, form in forms.items():
        rows, values = fields[name].rows, fields[name].values
        one.sums[name] = np.zeros(form.shape, dtype=form.sum_dtype)
        one.sums[name][rows] = values
        one.sums[name] += centers.get(name, one.sums[name].dtype.type(0))
    return one


def _rebuilt(arrays, name, form, held):
    """Rows, whole values in them, and how many numbers crossed."""
    if form.bits:
        bits = np.unpackbits(arrays[f"bits {name}"], axis=1, count=form.width)
        values = 2 * bits.astype(np.int64) - 1
    else:
        values = arrays[f"values {name}"]
    n_sent = values.size
    if f"columns {name}" in arrays:
        columns = arrays[f"columns {name}"]
        whole = np.zeros((len(values), len(columns)), dtype=values.dtype)
        whole[:, columns] = values
        values = whole
    if form.rows == "all":
        return np.arange(form.shape[0]), values, n_sent
    return (arrays[f"numbers {name}"] if form.rows == "chosen" else held), values, n_sent


def _sizes(form, n_rows, n_sent, wire_dtype):
    nbytes = n_sent * np.dtype(form.dtype or wire_dtype).itemsize
    if form.bits:
        nbytes = n_rows * 8 * -(-form.width // 64)
    row_numbers = 4 * n_rows if form.rows == "chosen" else 0
    return np.array([nbytes + row_numbers, nbytes * form.learned, n_sent])


# ---------------------------------------------------------------------------------- devices


class Device:
    """A client's machine: `Clients` of one client, pickled whenever nothing happens."""

    def __init__(self, clients):
        self.held = clients.block.row_items
        self.n_items = clients.block.n_items
        self._asleep = pickle.dumps(clients)

    def call(self, function, *arguments):
        """Wake up, do something, and go back to sleep."""
        clients = pickle.loads(self._asleep)
        result = function(clients, *arguments)
        self._asleep = pickle.dumps(clients)
        return result

    def message(self, content):
        return unpack_message(content, self.held, self.n_items)

    def place(self, code, first_user):
        def _place(clients):
            clients.place(np.array([code]), np.array([first_user]))
            return clients.block

        self.block = self.call(_place)

    def setup(self, step, content):
        def _setup(clients):
            answer = clients.setup(step, self.message(content))
            forms = clients.method._setup_forms(self.n_items, step)
            return None if answer is None else pack_contribution(answer, forms, self.held)

        return self.call(_setup)

    def announce(self, content):
        self.call(Clients.announce, self.message(content))

    def receive(self, round, content):
        def _receive(clients):
            message = self.message(content)
            received = None
            if message:
                received = clients.method._on_receipt(message, clients.keys.shared.at(round))
            clients.receive(round, received)

        self.call(_receive)

    def update(self, round):
        """Its upload as bytes, and its loss, which only a simulation gets to know."""

        def _update(clients):
            contributions, loss = clients.update(round)
            forms = clients.method._upload_forms(self.n_items)
            return [pack_contribution(one, forms, self.held) for one in contributions], loss

        first, again = self.call(_update), self.call(_update)
        # The network fails, the server asks once more, and nothing happens twice.
        assert first[0] == again[0] and np.array_equal(first[1], again[1])
        return first

    def validate(self, round, content):
        def _validate(clients):
            message = clients.method._on_receipt(
                self.message(content), clients.keys.shared.at(round)
            )
            one = clients.validate(round, message)
            return pack_contribution(one, VALIDATION, self.held)

        return self.call(_validate)

    def keep(self, is_best):
        self.call(Clients.keep_measured if is_best else Clients.forget_kept)

    def fitted(self, content, round, kept):
        def _fitted(clients):
            message = clients.method._on_receipt(
                self.message(content), clients.keys.shared.at(round)
            )
            return clients.fitted(message, round, kept=kept)

        return self.call(_fitted)


# ------------------------------------------------------------------------------- deployment


class Deployment:
    """A fit of `estimator` over bytes, with what a simulation would draw."""

    def __init__(self, estimator, X, y, clients=None, *, separate=False):
        data = encode(X, y, clients=clients)
        self.key = Key(int(check_random_state(estimator.random_state).randint(2**31 - 1)))
        federation = clone(estimator._setting())
        method = clone(estimator).set_params(random_state=None, federation=federation)
        self.server = Server(
            method,
            federation,
            self.key,
            data.item_ids.values,
            (data.values.min(), data.values.max()),
        )
        self.bytes_down = 0
        held_out = None
        if method.early_stopping:
            held_out = hold_out(data, method.validation_fraction, self.key)[1]
        names = X[:, 0] if clients is None else clients
        devices = [
            self._device(data, held_out, X[mine], y[mine], names[mine], separate)
            for mine in (names == name for name in data.client_ids)
        ]
        self._register(devices)

    def _device(self, data, held_out, X, y, names, separate):
        """A device made of its own rows and the catalogue only."""
        method = pickle.loads(pickle.dumps(self.server.method))
        own = encode(X, y, clients=names, item_ids=Ids(data.item_ids.values.copy(), "item ids"))
        rest = None
        if held_out is not None:
            # The simulation draws with the users' codes, which nobody has before registration.
            first = np.searchsorted(data.client_ids, own.client_ids[0])
            users = data.client_indptr[first] + own.users
            theirs = set(zip(held_out.users.tolist(), held_out.items.tolist(), strict=True))
            mask = np.array([pair in theirs for pair in zip(users, own.items, strict=True)])
            own, rest = own.take(~mask), of_clients(own.take(mask), np.array([0]))
        clients = Clients(
            method,
            of_clients(own, np.array([0])),
            method._setting(),
            Keys(self.key, self.key),
            held_out=rest,
            client_ids=own.client_ids,
            separate=separate,
        )
        return Device(clients)

    def _register(self, devices):
        """In any order; the server says who is who."""
        order = np.random.default_rng(0).permutation(len(devices))
        registrations = []
        for d in order:
            content = pack(devices[d].call(Clients.register)._asdict())
            registrations.append(Registration(**unpack(content)))
        self.devices = {}
        for d, places in zip(order, self.server.register(registrations), strict=True):
            devices[d].place(places.clients[0], places.first_users[0])
            self.devices[int(places.clients[0])] = devices[d]

    def _sent(self, message, client):
        """A message on its way to one client."""
        content = pack_message(message, self.devices[client].held, client)
        wire_dtype = self.server.federation.wire_dtype
        self.bytes_down += message_nbytes(message, content, wire_dtype)
        return content

    def _arrived(self, content, forms, client):
        federation = self.server.federation
        held = self.devices[client].held
        return unpack_contribution(
            content, forms, held, federation.holds_uploads, federation.wire_dtype
        )

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
            forms = self.server.method._setup_forms(n_items, step)
            answers = {
                client: device.setup(step, self._sent(message, client))
                for client, device in sorted(self.devices.items())
            }
            self._sleep()
            self.server.close_setup(
                step,
                [self._arrived(a, forms, c) for c, a in answers.items() if a is not None],
            )
        announcement = self.server.send_announcement()
        for client, device in self.devices.items():
            device.announce(self._sent(announcement, client))

    def _round(self):
        turn, message = self.server.open_round()
        server, round = self.server, self.server.round
        if message and round and server.method.early_stopping:
            self._validate(turn)
            if server.stopping.stopped:
                return
        forms = server.method._upload_forms(len(server.item_ids))
        arrived, total = [], np.zeros(2)
        for client in np.flatnonzero(turn.receives | turn.active).tolist():
            device = self.devices[client]
            device.receive(round, self._sent(message, client) if turn.receives[client] else b"")
            if not turn.active[client]:
                continue
            contents, loss = device.update(round)
            total += loss
            for content in contents:
                one = self._arrived(content, forms, client)
                arrived.append(one if turn.delivers[client] else _lost(one))
        self._sleep()
        self.server.close_round(arrived, total)

    def _validate(self, turn):
        server = self.server
        message = server.send_for_validation(turn.receives)
        answers, asked = [], np.flatnonzero(turn.receives).tolist()
        for client in asked:
            content = pack_message(message, self.devices[client].held, client)
            answer = self.devices[client].validate(server.round, content)
            one = self._arrived(answer, VALIDATION, client)
            answers.append(one if turn.delivers[client] else _lost(one))
        is_best = server.close_validation(answers, turn.receives)
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
                self._validate(_Everybody(server.n_clients))
                if stopping.best_round != server.round - 1:
                    message = server.send_best()
        announced = server.announcement()
        final = Message(**{name: field for name, field in message.items() if name not in announced})
        parts = []
        for client, device in self.devices.items():
            self._sent(final, client)
            content = pack_message(message, device.held, client)
            parts.append(device.fitted(content, server.round, True))
        users = by_user([device.block for device in self.devices.values()], parts)
        received = server.method._on_receipt(message, self.key.at(server.round))
        return server.method._server_attributes(received) | users


class _Everybody:
    def __init__(self, n_clients):
        self.receives = self.delivers = np.ones(n_clients, dtype=bool)


def _lost(one):
    """An upload that was sent and did not arrive; a network knows of it, a server does not."""
    nobody = np.zeros(1, dtype=bool)
    one.arrives = one.accepted = nobody
    one.sums, one.batch = {}, None
    return one
