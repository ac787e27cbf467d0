"""LightFR's kernels: single uploads add up to the sums, and the visits behind them are sound."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from numba.core import types

from fedrecsk import LightFR
from fedrecsk._utils.kernels import LazyModule
from fedrecsk.data.interactions import encode
from fedrecsk.federated import pack_codes, unpack_codes
from fedrecsk.protocol import blocks
from fedrecsk.protocol.keys import Key, Keys
from fedrecsk.protocol.messages import Message
from fedrecsk.protocol.participation import RoundMasks
from fedrecsk.protocol.registration import Catalogue
from tests.conftest import make_toy

lightfr_kernels = LazyModule("fedrecsk.federated._lightfr_kernels")

SHAPES = {
    "full": {},
    "full, one bit": {"user_bits": 1},
    "full, 70 bits": {"n_bits": 70},
    "gradient": {"aggregation": "gradient"},
    "gradient, one bit": {"aggregation": "gradient", "user_bits": 1},
    "gradient, the whole matrix": {"aggregation": "gradient", "upload": "all"},
    "parameter": {"aggregation": "parameter", "balance_item": 0.01},
}
KEYS = Keys(Key(3, 0), Key(3, 0))
every_shape = pytest.mark.parametrize("parameters", SHAPES.values(), ids=SHAPES)


class Setting:
    """A model, a block of its clients, and what they have received."""

    def __init__(self, parameters, n_clients=6):
        X, y = make_toy(15, 9)
        data = encode(X, y, clients=None if n_clients is None else X[:, 0] % n_clients)
        self.model = LightFR(**{"n_bits": 6, "user_bits": 2, "n_negatives": 3} | parameters)
        self.block = blocks.cut(data, max_ratings=10**6)[0]
        catalogue = Catalogue(data.n_items, data.n_clients, (1.0, 5.0))
        server = self.model._init_server(catalogue, Key(3))
        message = Message(**self.model._initial_broadcast(server), **self.model._model(server))
        self.message = self.model._decode_broadcast(message, Key(3))
        self.specs = self.model._upload_specs(data.n_items)

    def update(self, active, delivers, separate):
        """State, fields of the updates and loss after one update from the beginning."""
        state = self.model._init_clients(self.block, self.message, KEYS)
        turn = RoundMasks(np.asarray(active), np.asarray(delivers), separate)
        state, updates, loss = self.model._client_update(
            self.block, state, self.message, turn, KEYS
        )
        return state, updates.fields, loss


@pytest.fixture(params=[6, None], ids=["several users", "one user"])
def n_clients(request):
    return request.param


@every_shape
def test_single_uploads_add_up_to_the_sums(parameters, n_clients):
    setting = Setting(parameters, n_clients)
    rng = np.random.default_rng(0)
    n = setting.block.n_clients
    active, delivers = rng.random(n) < 0.7, rng.random(n) < 0.6
    one_state, single, one_loss = setting.update(active, delivers, True)
    state, sums, loss = setting.update(active, delivers, False)
    np.testing.assert_array_equal(one_state["codes"], state["codes"])
    assert one_loss == loss
    assert single.keys() == sums.keys() == setting.specs.keys()
    for name, spec in setting.specs.items():
        expected = np.zeros(spec.shape, dtype=np.int64)
        for c in np.flatnonzero(active & delivers):
            own = slice(*single[name].indptr[c : c + 2])
            np.add.at(expected, single[name].rows[own], single[name].values[own])
        np.testing.assert_array_equal(getattr(sums[name], "values", sums[name]), expected)
        if hasattr(sums[name], "n_rows"):
            np.testing.assert_array_equal(sums[name].n_rows, np.diff(single[name].indptr))


@every_shape
def test_rows_ascend_and_come_once_and_idle_clients_have_none(parameters, n_clients):
    setting = Setting(parameters, n_clients)
    active = np.arange(setting.block.n_clients) % 3 > 0
    _, uploads, _ = setting.update(active, active, True)
    for field in uploads.values():
        assert len(field.rows) == len(field.values) == field.indptr[-1]
        for c, takes_part in enumerate(active):
            rows = field.rows[slice(*field.indptr[c : c + 2])]
            assert (np.diff(rows) > 0).all()
            assert (len(rows) > 0) == takes_part


@every_shape
def test_a_clients_upload_does_not_depend_on_who_else_is_in_the_block(parameters):
    setting = Setting(parameters)
    everyone = np.ones(setting.block.n_clients, dtype=bool)
    _, together, _ = setting.update(everyone, everyone, True)
    for c in range(setting.block.n_clients):
        alone = np.arange(len(everyone)) == c
        _, uploads, _ = setting.update(alone, alone, True)
        for name, field in uploads.items():
            own = slice(*together[name].indptr[c : c + 2])
            np.testing.assert_array_equal(field.rows, together[name].rows[own])
            np.testing.assert_array_equal(field.values, together[name].values[own])


def test_visited_items_are_the_own_ones_and_negatives_that_the_user_has_no_row_of():
    setting = Setting({"aggregation": "gradient", "n_negatives": 1}, None)
    everyone = np.ones(setting.block.n_clients, dtype=bool)
    _, uploads, _ = setting.update(everyone, everyone, True)
    block, rows = setting.block, uploads["rows"]
    for c in range(block.n_clients):
        own = block.items[slice(*block.indptr[c : c + 2])]
        visited = rows.rows[slice(*rows.indptr[c : c + 2])]
        assert np.isin(own, visited).all()
        assert 0 < len(visited) - len(own) <= len(own)


def test_votes_are_signs():
    setting = Setting({"aggregation": "parameter"})
    everyone = np.ones(setting.block.n_clients, dtype=bool)
    _, uploads, _ = setting.update(everyone, everyone, True)
    assert set(np.unique(uploads["votes"].values)) == {-1, 1}


def test_a_server_given_matrices_without_symmetry_comes_to_an_end():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2**63, (5, 1)).astype(np.uint64)
    shapes = {"rows": (5, 65), "gram": (64, 64), "total": 64}
    sums = {name: rng.integers(-(2**53), 2**53, shape) for name, shape in shapes.items()}
    before, signs = codes.copy(), unpack_codes(codes, 64)
    model = LightFR(64)._quadratic_model(signs, sums | {"n_users": np.array([3])})
    lightfr_kernels.step_by_curvature(codes, signs, *model, sums["gram"], 0)
    assert (codes != before).any()


@pytest.mark.parametrize("n_bits", [1, 63, 64, 65, 130])
def test_packing_is_undone_by_unpacking(n_bits):
    signs = np.where(np.random.default_rng(1).random((7, n_bits)) < 0.5, -1.0, 1.0)
    codes = pack_codes(signs)
    assert codes.shape == (7, -(-n_bits // 64))
    for k in (0, n_bits - 1):
        bits = (codes[:, k // 64] >> np.uint64(k % 64)) & np.uint64(1)
        np.testing.assert_array_equal(2.0 * bits - 1, signs[:, k])
    unpacked = unpack_codes(codes, n_bits)
    assert unpacked.dtype == np.int8
    np.testing.assert_array_equal(unpacked, signs)
    if n_bits % 64:
        assert (codes[:, -1] >> np.uint64(n_bits % 64) == 0).all()


def test_kernels_return_scalars_at_most():
    setting = Setting({})
    everyone = np.ones(setting.block.n_clients, dtype=bool)
    setting.update(everyone, everyone, True)
    overloads = lightfr_kernels.update_clients.overloads
    assert overloads
    for overload in overloads.values():
        returned = overload.signature.return_type
        kinds = types.Number, types.NoneType
        assert all(isinstance(one, kinds) for one in getattr(returned, "types", [returned]))


FITTED = """
import hashlib
import numpy as np
from fedrecsk import LightFR
rng = np.random.default_rng(0)
X = np.unique(np.column_stack([rng.integers(0, 6, 40), rng.integers(0, 60, 40)]), axis=0)
for aggregation in ("full", "gradient", "parameter"):
    model = LightFR(n_bits=70, n_rounds=2, aggregation=aggregation, random_state=0).fit(X)
    items, scores = model.recommend(model.user_ids_, 3)
    arrays = model.item_codes_, model.user_codes_, items, scores, model.predict(X)
    print(hashlib.sha256(b"".join(one.tobytes() for one in arrays)).hexdigest())
"""


def test_nothing_changes_where_nothing_is_compiled():
    found = [
        subprocess.run(
            [sys.executable, "-c", FITTED],
            env=os.environ | {"NUMBA_DISABLE_JIT": disabled},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for disabled in "01"
    ]
    assert found[0] == found[1]
    assert len(found[0].split()) == 3
