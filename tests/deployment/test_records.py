"""What crosses the network: bytes that anybody may have made."""

import io
import pickle
import zipfile

import numpy as np
import pytest

from fedrecsk.deployment import ClientMessage, Numbers
from fedrecsk.deployment.records import (
    MalformedMessage,
    message_arrays,
    message_of,
    pack,
    place_head,
    place_of,
    registration_of,
    unpack,
    upload_arrays,
    upload_of,
)
from fedrecsk.protocol import Dense, Derived, FieldSpec, Form, Message, Rows
from fedrecsk.protocol.messages import PerClient

HELD = np.array([0, 2, 5])
ROUND = "round", 0, 0


def test_arrays_come_back_as_they_were():
    arrays = {
        "reals": np.random.default_rng(0).normal(size=(3, 2)),
        "big end": np.arange(4, dtype=">i4"),
        "nothing": np.zeros((0, 7), np.float32),
        "one": np.array(3, np.int8),
        "mask": np.array([True, False]),
    }
    head, back = unpack(pack({"kind": "round", "number": 3}, arrays))
    assert head == {"kind": "round", "number": 3}
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)
        assert back[name].dtype == array.dtype.newbyteorder("<")
        assert back[name].flags.writeable


def test_only_numbers_can_be_sent():
    for array in (np.array(["a"]), np.array([object()]), np.array([1j])):
        with pytest.raises(TypeError, match="Field 'ids' has type"):
            pack({}, {"ids": array})


def npz(*members, compression=zipfile.ZIP_STORED):
    """A zip file of these names and bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members:
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def npy(descr, shape, body=b""):
    """An npy file with this header."""
    file = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + body


def of(text):
    return "head", npy("|u1", (len(text),), text)


EMPTY = of(b"{}")
LONG = 10**6 * b"\0"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a message of this version"),
        (pickle.dumps({"a": 1}), "not a message of this version"),
        (pack({}, {"q": np.zeros(9)})[:-30], "not a message of this version"),
        (npz(), "head of the message is not valid JSON"),
        (npz(of(b"{")), "head of the message is not valid JSON"),
        (npz(of(9999 * b"[")), "head of the message is not valid JSON"),
        (npz(of(b"[]")), "must be a dict"),
        (npz(EMPTY, ("q", LONG), compression=zipfile.ZIP_DEFLATED), "longer than the message"),
        (npz(EMPTY, ("q", b"junk")), "Field 'q' is not an array"),
        (npz(EMPTY, ("q", b"\x93NUMPY\x01\x00\x08\x00{[[[[[[[")), "not a message of this"),
        (npz(EMPTY, ("q", npy("|O", (1,), pickle.dumps(1)))), "not a message of this"),
        (npz(EMPTY, ("q", npy([("a", "<f4")], (1,), b"x" * 4))), "Field 'q' is not an array"),
        (npz(EMPTY, ("q", npy(">f4", (1,), b"x" * 4))), "Field 'q' is not an array"),
        (npz(EMPTY, ("q", npy("<U1", (1,), b"x" * 4))), "Field 'q' is not an array"),
        (npz(EMPTY, ("q", npy("<f4", (-1,)))), "not a message of this"),
        (npz(EMPTY, ("q", npy("<f4", (2**39, 2**39)))), "not a message of this"),
        (npz(EMPTY, ("q", npy("<f4", (2**39,)))), "not a message of this"),
        (npz(EMPTY, ("q", npy("|b1", (1,), b"\x07"))), "'q' has truth values other than"),
    ],
)
def test_malformed_bytes_are_refused_by_name(content, message):
    with pytest.raises(MalformedMessage, match=message):
        unpack(content)


def test_a_client_receives_what_it_needs_of_a_message():
    values = np.arange(12.0).reshape(6, 2)
    message = Message(
        whole=Dense(values),
        own=Rows(values),
        known=Derived(values),
        mine=PerClient(np.array([[1.0], [2.0], [3.0]])),
        count=Dense(np.array([7]), dtype="uint8"),
    )
    spec, arrays = message_arrays(message, HELD, 1, "float32")
    assert {name: array.nbytes for name, array in arrays.items()} == {
        "whole": 48,
        "own": 24,
        "mine": 4,
        "count": 1,
    }
    forms = {"own": Form((6, 2))}
    back = message_of(*json_and_bytes(spec, arrays), HELD, forms)
    np.testing.assert_array_equal(back["whole"].values, values)
    np.testing.assert_array_equal(back["own"].values[HELD], values[HELD])
    assert not back["own"].values[[1, 3, 4]].any()
    np.testing.assert_array_equal(back["mine"].values, [[2.0]])
    # What was computed in float64 and sent in float32 is computed with in float64.
    assert back["whole"].values.dtype == np.float64
    assert message_of(*message_arrays(None, HELD, 0, "float32"), HELD, forms) is None


@pytest.mark.parametrize("change", [lambda a: a[:-1], lambda a: a.ravel(), lambda a: a[:, :1]])
def test_rows_of_another_form_reserve_no_memory_for_all_items(change):
    message = Message(own=Rows(np.arange(12.0).reshape(6, 2)))
    spec, arrays = message_arrays(message, HELD, 1, "float32")
    with pytest.raises(MalformedMessage, match="Field 'own' of the message has shape"):
        message_of(spec, {"own": change(arrays["own"])}, HELD, {"own": Form((10**9, 2))})


def json_and_bytes(spec, arrays):
    return unpack(pack(spec, arrays))


FORMS = {
    "vectors": FieldSpec((6, 2), rows="held"),
    "chosen": FieldSpec((6, 2), rows="chosen"),
    "signs": FieldSpec((6, 70), rows="held", dtype="int8", bits=True),
    "held": FieldSpec((6,), rows="held", dtype="int32", learned=False),
    "n_users": FieldSpec((1,), dtype="uint32", learned=False),
    "gram": FieldSpec((2, 2)),
}


def test_uploads_come_back_as_they_were():
    generator = np.random.default_rng(0)
    mask = np.array([True, False])
    fields = {
        "vectors": Numbers(generator.normal(size=(3, 1)).astype(np.float32), HELD, mask),
        "chosen": Numbers(np.ones((2, 2), np.float32), np.array([1, 4])),
        "signs": Numbers(np.where(generator.random((3, 70)) < 0.5, -1, 1).astype(np.int8)),
        "held": Numbers(np.ones(3, np.int32), HELD),
        "n_users": Numbers(np.array([300], np.uint32)),
        "gram": Numbers(np.full((2, 2), np.nan)),
    }
    head, arrays = upload_arrays(ClientMessage("setup", 1, 2, fields), FORMS, "float32")
    # Three rows of 70 bits, and one number for ones.
    assert arrays["signs/values"].nbytes == 27
    assert arrays["held/values"].nbytes == 4
    head, back = unpack(pack(head, arrays))
    upload = upload_of(head, back, FORMS, ("setup", 1, 2))
    for name, numbers in fields.items():
        for one, other in zip(numbers, upload.fields[name], strict=True):
            assert (one is None) == (other is None)
            np.testing.assert_array_equal(one, other)


def test_what_does_not_fit_its_type_is_not_bent_until_it_does():
    """The server must see it to reject it."""
    fields = {"n_users": Numbers(np.array([2**40])), "signs": Numbers(np.zeros((3, 70), np.int8))}
    message = ClientMessage("round", 0, 0, fields)
    upload = upload_of(*upload_arrays(message, FORMS, "float32"), FORMS, ROUND)
    assert upload.fields["n_users"].values.tolist() == [2**40]
    assert not upload.fields["signs"].values.any()


STEP = {"phase": "round", "round": 0, "client": 0}


@pytest.mark.parametrize(
    ("head", "arrays", "message"),
    [
        (None, {}, "lacks its phase"),
        ({"phase": "round", "round": 0}, {}, "lacks its phase"),
        (STEP | {"client": 1}, {}, r"sends .* instead of \('round', 0, 0\)"),
        (STEP | {"client": 0.0}, {}, "instead of"),
        (STEP | {"round": False}, {}, "instead of"),
        (STEP, {"other/values": np.ones(1)}, "Unexpected field 'other/values'"),
        (STEP, {"gram": np.ones(1)}, "Unexpected field 'gram'"),
        (STEP, {"gram/else": np.ones(1)}, "Unexpected field 'gram/else'"),
        (STEP, {"held/rows": np.ones(1, np.int32)}, "values of field 'held' are missing"),
        (STEP, {"signs/values": np.zeros((3, 8), np.uint8)}, r"'signs' has \(3, 8\) bytes"),
    ],
)
def test_malformed_uploads_are_refused_by_name(head, arrays, message):
    with pytest.raises(MalformedMessage, match=message):
        upload_of(head, arrays, FORMS, ROUND)


def test_one_number_does_not_become_a_large_array():
    arrays = {"held/values": np.array(1), "held/rows": np.zeros(10**6, np.int32)}
    assert upload_of(STEP, arrays, FORMS, ROUND).fields["held"].values.size == 1


@pytest.mark.parametrize(
    "head",
    [
        None,
        {"client_ids": ["a"], "n_users": [1]},
        {"client_ids": ["a", "b"], "n_users": [1, 1], "n_held": [1, 1]},
        {"client_ids": [None], "n_users": [1], "n_held": [1]},
        {"client_ids": ["a"], "n_users": [-1], "n_held": [1]},
        {"client_ids": [float("nan")], "n_users": [1], "n_held": [1]},
        {"client_ids": [10**30], "n_users": [1], "n_held": [1]},
        {"client_ids": ["a"], "n_users": [0], "n_held": [1]},
        {"client_ids": ["a"], "n_users": [1], "n_held": [7]},
    ],
)
def test_malformed_registrations_are_refused(head):
    with pytest.raises(MalformedMessage, match=r"registration (has|must have)|client's id must be"):
        registration_of(head, n_items=6)


PLACE = {"clients": [1], "first_users": [4], "shared": 5, "n_clients": 3, "n_users": 9}


def test_places_come_back_as_they_were():
    assert place_head(place_of(PLACE)) == PLACE


@pytest.mark.parametrize(
    "change",
    [
        {"clients": [1, 2]},
        {"clients": []},
        {"clients": 1},
        {"clients": [1.0]},
        {"clients": [[1]]},
        {"clients": [True]},
        {"first_users": [None]},
        {"first_users": [2**63]},
        {"shared": "5"},
        {"shared": 2**63},
        {"n_clients": 3.0},
        {"n_clients": 10**30},
        {"n_users": "9"},
    ],
)
def test_malformed_places_are_refused(change):
    with pytest.raises(MalformedMessage, match=r"(A place has|of a place must be)"):
        place_of(PLACE | change)


@pytest.mark.parametrize("head", [None, [], [1, 2, 3, 4], {"clients": [1]}])
def test_what_is_no_place_is_refused(head):
    with pytest.raises(MalformedMessage, match="A place has clients"):
        place_of(head)
