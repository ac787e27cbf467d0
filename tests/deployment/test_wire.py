"""What crosses the network: bytes that anybody may have made."""

import json
import pickle
import struct

import numpy as np
import pytest

from fedrecsk.deployment._forms import (
    message_arrays,
    message_of,
    parcel_arrays,
    parcels_of,
    registration_of,
)
from fedrecsk.deployment._wire import MAGIC, MalformedMessage, pack, unpack
from fedrecsk.simulation import Dense, Derived, Form, Message, Numbers, Parcel, Rows
from fedrecsk.simulation.messages import PerClient

HELD = np.array([0, 2, 5])


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


def raw(head, table, body=b""):
    text = json.dumps([head, table]).encode()
    return MAGIC + struct.pack("<I", len(text)) + text + body


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a message of this version"),
        (pickle.dumps({"a": 1}), "not a message of this version"),
        (MAGIC + b"\xff\xff\xff\xff{", "not valid JSON with a head and fields"),
        (raw([], []), "must be a dict"),
        (raw({}, [["q", "<f4"]]), "must have name, type and shape"),
        (raw({}, [["q", "|O8", [1]]], b"x" * 8), "Field 'q' has the type"),
        (raw({}, [["q", "<f4", [-1]]]), "Field 'q' has the shape"),
        (raw({}, [["q", "<f4", [True]]]), "Field 'q' has the shape"),
        (raw({}, [["q", "<f4", [2**39, 2**39]]]), "Field 'q' is cut off"),
        (raw({}, [["q", "|u1", [1]], ["q", "|u1", [1]]], b"ab"), "'q' is cut off, or sent twice"),
        (raw({}, [["q", "|b1", [1]]], b"\x07"), "'q' has truth values other than"),
        (raw({}, [["q", "|i1", [1] * 65]], b"x"), "Field 'q' has the shape"),
        (raw({}, [["q", "|i1", [0, *[2**39] * 3]]]), "Field 'q' has an impossible shape"),
        (raw({}, [], b"abc"), "3 bytes belong to no field"),
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
    form, arrays = message_arrays(message, HELD, 1, "float32")
    assert {name: array.nbytes for name, array in arrays.items()} == {
        "whole": 48,
        "own": 24,
        "mine": 4,
        "count": 1,
    }
    back = message_of(*json_and_bytes(form, arrays), HELD, 6)
    np.testing.assert_array_equal(back["whole"].values, values)
    np.testing.assert_array_equal(back["own"].values[HELD], values[HELD])
    assert not back["own"].values[[1, 3, 4]].any()
    np.testing.assert_array_equal(back["mine"].values, [[2.0]])
    # What was computed in float64 and sent in float32 is computed with in float64.
    assert back["whole"].values.dtype == np.float64
    assert message_of(*message_arrays(None, HELD, 0, "float32"), HELD, 6) is None


def json_and_bytes(form, arrays):
    return unpack(pack(form, arrays))


FORMS = {
    "vectors": Form((6, 2), rows="held"),
    "chosen": Form((6, 2), rows="chosen"),
    "signs": Form((6, 70), rows="held", dtype="int8", bits=True),
    "held": Form((6,), rows="held", dtype="int32", learned=False),
    "n_users": Form((1,), dtype="uint32", learned=False),
    "gram": Form((2, 2)),
}


def test_parcels_come_back_as_they_were():
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
    heads, arrays = parcel_arrays([Parcel("setup", 1, 2, fields)], FORMS, "float32")
    content = pack({"parcels": heads}, arrays)
    # Three rows of 70 bits, and nothing for ones.
    assert arrays["0/signs/values"].nbytes == 27
    assert "0/held/values" not in arrays
    head, back = unpack(content)
    (parcel,) = parcels_of(head["parcels"], back, FORMS)
    assert (parcel.phase, parcel.round, parcel.client) == ("setup", 1, 2)
    for name, numbers in fields.items():
        for one, other in zip(numbers, parcel.fields[name], strict=True):
            assert (one is None) == (other is None)
            np.testing.assert_array_equal(one, other)


def test_codes_of_a_compressor_are_sent_as_they_are():
    for values in (np.zeros((6, 2), np.int8), np.ones((6, 2), np.float16)):
        heads, arrays = parcel_arrays(
            [Parcel("round", 0, 0, {"gram": Numbers(values)})], FORMS, "float32"
        )
        (parcel,) = parcels_of(heads, arrays, FORMS | {"gram": Form((6, 2))})
        np.testing.assert_array_equal(parcel.fields["gram"].values, values)
        assert parcel.fields["gram"].values.dtype == values.dtype


def test_what_does_not_fit_its_type_is_not_bent_until_it_does():
    """The server must see it to reject it."""
    fields = {"n_users": Numbers(np.array([2**40])), "signs": Numbers(np.zeros((3, 70), np.int8))}
    heads, arrays = parcel_arrays([Parcel("round", 0, 0, fields)], FORMS, "float32")
    (parcel,) = parcels_of(*unpack(pack({"p": heads}, arrays))[0].values(), arrays, FORMS)
    assert parcel.fields["n_users"].values.tolist() == [2**40]
    assert not parcel.fields["signs"].values.any()


ONES = {"values": ["same", 1, [3], "<i4"]}


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        (None, "must be a list"),
        ([7], "lacks its phase"),
        ([{"phase": "round", "round": 0, "client": 0}], "lacks its phase"),
        ([{"fields": {"other": {}}}], "Unexpected field 'other'"),
        ([{"fields": [[1, {}]]}], "Unexpected field '1'"),
        ([{"fields": {"gram": {"values": ["plain"]}}}], "Field 'gram' .* numbers are missing"),
        ([{"fields": {"gram": {"values": []}}}], "Field 'gram' of a parcel cannot be read"),
        ([{"fields": {"gram": {"extra": ["plain"]}}}], "Field 'gram' of a parcel cannot be read"),
        (
            [{"fields": {"held": {"values": ["same", 1, [10**9], "|u1"]}}}],
            "Field 'held' .* the shape",
        ),
        ([{"fields": {"held": {"values": ["same", 1, [-1], "<i4"]}}}], "Field 'held' .* the shape"),
        ([{"fields": {"held": {"values": ["same", 2**70, [3], "<i4"]}}}], "Field 'held'"),
        ([{"fields": {"held": {"values": ["same", 1, [3], "|O8"]}}}], "Field 'held' .* the type"),
        ([{"fields": {"signs": {"values": ["signs", 80]}}}], "Field 'signs' .* for 80 bits"),
        ([{"fields": {"held": ONES}, "extras": ["gram"]}], "extras of a parcel are missing"),
    ],
)
def test_malformed_parcels_are_refused_by_name(heads, message):
    step = {"phase": "round", "round": 0, "client": 0}
    if heads and isinstance(heads[0], dict) and heads[0].get("fields"):
        heads = [step | heads[0]]
    arrays = {"0/signs/values": np.zeros((3, 9), np.uint8)}
    with pytest.raises(MalformedMessage, match=message):
        parcels_of(heads, arrays, FORMS)


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
