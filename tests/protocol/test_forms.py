"""What a message must look like is declared, and nothing else reaches an algorithm."""

import numpy as np
import pytest

from fedrecsk import FCF, FedEB, FedItemKNN, FedMF, LocALS, RFRec
from fedrecsk.deployment import Device, DeviceServer
from fedrecsk.federated.rfrec import RFRecAlgorithm
from fedrecsk.protocol import Dense, Form, Message, PerClient
from fedrecsk.protocol.messages import MalformedMessage, Registration
from tests.conftest import make_toy
from tests.protocol.test_device import entered, make


@pytest.mark.parametrize(
    ("form", "values", "wrong"),
    [
        (Form((3, 2)), np.zeros((3, 2)), None),
        (Form((3, 2)), np.zeros((3, 2), "f4"), None),
        (Form(()), np.array(0.5), None),
        (Form((3, range(1, 4))), np.zeros((3, 3)), None),
        (Form((2,), per_client=True), np.zeros((5, 2)), None),
        (Form((3, 2)), np.zeros((3, 4)), r"shape \(3, 4\) in place of \(3, 2\)"),
        (Form((3, 2)), np.zeros(6), r"shape \(6,\) in place of \(3, 2\)"),
        (Form((3, range(1, 4))), np.zeros((3, 4)), r"in place of \(3, '1 to 3'\)"),
        (Form((2,), per_client=True), np.zeros((4, 2)), r"in place of \(5, 2\)"),
        (Form((2,)), np.zeros(2, "f2"), "type float16 in place of float"),
        (Form((2,)), np.zeros(2, int), "type int64 in place of float"),
        (Form((2,)), np.array(["a", "b"]), "in place of float"),
        (Form((2,), "uint"), np.zeros(2, int), "in place of uint"),
        (Form((2,), "int", (0, 7)), np.array([0, 8]), "outside of 0 to 7"),
        (Form((1,), bounds=(0, 1)), np.array([np.nan]), "outside of 0 to 1"),
    ],
)
def test_a_form_says_what_is_wrong_with_an_array(form, values, wrong):
    found = form.mismatch(values, 5)
    if wrong is None:
        assert found is None
    else:
        with pytest.raises(MalformedMessage, match=wrong):
            Message(x=PerClient(values)).check({"x": form}, 5)


METHODS = {"LocALS": LocALS, "FCF": FCF, "FedMF": FedMF, "FedEB": FedEB, "RFRec": RFRec}
RATES = {FedEB: {"rating_scale": (1, 5)}}
WRONG = {
    "twice the columns": lambda a: np.concatenate([a, a], axis=-1),
    "no columns": lambda a: a[..., :0],
    "transposed": lambda a: a.T,
    "no rows": lambda a: a[:0],
    "integers": lambda a: a.astype("i4"),
}


@pytest.fixture(params=METHODS.values(), ids=METHODS)
def devices(request):
    """A server that has set its devices up, and these."""
    X, y = make_toy()
    method, clients = make(request.param, **RATES.get(request.param, {})), X[:, 0] % 3
    devices = [Device(method, X[clients == c], y[clients == c], client_id=c) for c in range(3)]
    server = DeviceServer.of(method)
    entered(server, devices)
    return server, devices


def refuses(device, step, message):
    """Every array of another form is refused by its field's name."""
    assert message
    for name, field in message.items():
        for change in WRONG.values():
            wrong = change(np.asarray(field.values))
            # A server may have found any number of audiences.
            is_free = name == "audiences" and len(wrong) == len(field.values)
            if wrong.dtype == field.values.dtype and (is_free or wrong.shape == field.values.shape):
                continue
            with pytest.raises(MalformedMessage, match=f"Field '{name}' of the message has"):
                step(device, message | {name: Dense(wrong)})
    with pytest.raises(MalformedMessage, match="unexpected field 'other'"):
        step(device, message | {"other": Dense(np.zeros(3))})


@pytest.mark.full
def test_a_device_refuses_rounds_and_models_of_another_form(devices):
    server, (device, *_) = devices
    _, message = server.open_round()
    refuses(device, lambda one, message: one.receive(0, message), message)
    device.receive(0, message)
    assert device.update(0)[0]
    refuses(device, lambda one, message: one.fitted(message, 1), server.current_message())
    if server.announcement():
        refuses(device, lambda one, message: one.announce(message), server.announcement())


@pytest.mark.parametrize("devices", [RFRec], indirect=True)
def test_a_field_that_is_missing_is_named(devices):
    server, (device, *_) = devices
    with pytest.raises(MalformedMessage, match="The message has no field 'item_vectors'"):
        device.fitted(server.announcement(), 1)


def test_neighbours_that_are_no_items_are_refused():
    method = FedItemKNN(n_neighbors=3, items=range(6), download="all")
    forms = method._algorithm().downloads(6)
    neighbors = np.zeros((6, 3), dtype=np.int32)
    Message(neighbors=Dense(neighbors)).check(forms)
    for beyond in (6, -1):
        neighbors[2, 1] = beyond
        with pytest.raises(MalformedMessage, match=r"'neighbors' .* numbers outside of 0 to 5"):
            Message(neighbors=Dense(neighbors)).check(forms)


class UndeclaredAlgorithm(RFRecAlgorithm):
    def downloads(self, n_items):
        return {"scale": Form((3,)), "n_ratings": Form((n_items,))}


class Undeclared(RFRec):
    _kind = UndeclaredAlgorithm


def test_a_simulated_fit_sends_only_what_is_declared():
    with pytest.raises(TypeError, match=r"Undeclared sends what .* downloads\(\) does not declare"):
        Undeclared(3, n_rounds=1).fit(*make_toy())


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("n_users", np.array([0])),
        ("n_users", np.array([2**41])),
        ("n_users", np.array([1, 1])),
        ("n_users", np.array([1.5])),
        ("n_held", np.array([-1])),
        ("n_held", np.array([10])),
        ("client_ids", np.array([np.nan])),
    ],
)
def test_a_server_refuses_registrations_of_another_form(field, wrong):
    one = np.ones(1, dtype=np.int64)
    registration = Registration(np.array([5]), one, one)._replace(**{field: wrong})
    server = DeviceServer.of(RFRec(3, items=range(9), rating_scale=(1, 5)))
    with pytest.raises(ValueError, match=f"{field!r} of a registration|client ids contain NaN"):
        server.register([registration])
    assert not server.n_clients
