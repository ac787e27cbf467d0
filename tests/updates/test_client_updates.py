"""The updates of a block of clients, and of all blocks of a round."""

import numpy as np
import pytest

from fedrecsk.protocol.protection import protected
from fedrecsk.updates import (
    ClientUpdates,
    FieldSpec,
    HeldUpdates,
    RoundUpdates,
    SparseRows,
    _client_updates,
)

FORMS = {"x": FieldSpec((4, 2)), "n": FieldSpec((4,), dtype="uint8", learned=False)}
CENTER = np.full((4, 2), 10.0)


def block(codes, seed=0):
    """Updates of clients of these codes; x has a default and a center."""
    rng, n = np.random.default_rng(seed), len(codes)
    everyone = np.ones(n, dtype=bool)
    x = SparseRows(
        np.arange(n + 1),
        rng.integers(0, 4, n),
        rng.standard_normal((n, 2)),
        default=np.full((4, 2), 0.5),
        center=CENTER,
        spec=FORMS["x"],
    )
    n_seen = SparseRows.stacked(np.ones((n, 4), dtype=np.uint8), spec=FORMS["n"])
    return ClientUpdates(
        {"x": x, "n": n_seen},
        phase="round",
        round=0,
        sends=everyone,
        clients=np.array(codes),
        arrives=everyone,
        accepted=everyone,
        specs=FORMS,
        sizes=(np.tile(np.arange(n), (3, 1))),
    )


def double(updates):
    """A stage that is not linear for the machine: it writes everything out."""
    rows = updates.fields["x"]
    return updates.with_fields(x=rows.with_whole(2 * rows.whole()))


def test_sums_are_those_of_the_accepted_clients():
    updates = block([3, 1, 4])
    updates.accepted = np.array([True, False, True])
    summed = updates.added_up()
    whole = updates.fields["x"].whole()
    np.testing.assert_allclose(summed.fields["x"], whole[[0, 2]].sum(axis=0) + 2 * CENTER)
    assert summed.fields["n"].tolist() == [2, 2, 2, 2]
    assert summed.fields["n"].dtype == np.int64
    np.testing.assert_allclose(updates.whole(0)["x"], whole[0] + CENTER)


@pytest.mark.parametrize("uploads", ["single", "held"])
@pytest.mark.parametrize("clients_in_a_tile", [1, 2, 100])
def test_tiles_do_not_change_the_result(monkeypatch, clients_in_a_tile, uploads):
    nbytes = 8 * (4 * 2 + 4)
    monkeypatch.setattr(_client_updates, "WRITTEN_BYTES", clients_in_a_tile * nbytes)
    updates = block([5, 2, 7])
    assert len(list(updates.tiles())) == -(-3 // clients_in_a_tile)
    done = protected(updates, [double], uploads)
    assert done.clients.tolist() == [5, 2, 7]
    assert done.sizes[0].tolist() == [0, 1, 2]
    expected = 2 * updates.fields["x"].sum()
    if uploads == "held":
        assert done.fields == {}
        np.testing.assert_allclose(RoundUpdates([done.held]).sum("x"), expected)
    else:
        np.testing.assert_allclose(done.fields["x"], expected + 3 * CENTER)


@pytest.mark.parametrize("clients_in_a_tile", [1, 100])
def test_a_round_has_its_clients_in_the_order_of_their_codes(monkeypatch, clients_in_a_tile):
    monkeypatch.setattr(_client_updates, "WRITTEN_BYTES", clients_in_a_tile * 8 * 12)
    blocks = [block([5, 2, 7], seed=0), block([1, 9], seed=1)]
    accepted = [np.array([True, True, False]), np.ones(2, dtype=bool)]
    held = [HeldUpdates(one, [double], who) for one, who in zip(blocks, accepted, strict=True)]
    updates = RoundUpdates(held)
    assert updates.codes.tolist() == [1, 2, 5, 9]
    wholes = {
        code: 2 * whole
        for one in blocks
        for code, whole in zip(one.clients, one.fields["x"].whole(), strict=True)
    }
    expected = np.stack([wholes[code] for code in (1, 2, 5, 9)])
    np.testing.assert_allclose(updates.norms("x"), np.sqrt((expected**2).sum(axis=(1, 2))))
    weights = np.array([1.0, 0.0, 2.0, -1.0])
    np.testing.assert_allclose(updates.sum("x", weights), np.tensordot(weights, expected, 1))
    np.testing.assert_allclose(updates.rest()["x"], 4 * CENTER)
    assert updates.rest()["n"].tolist() == [4, 4, 4, 4]
    assert updates.specs.keys() == {"x"}
    for (code, one), whole in zip(updates.single(), expected, strict=True):
        np.testing.assert_allclose(one.fields["x"].whole()[0], whole)
        assert one.clients.tolist() == [code]
    # Another stage, and one stage less.
    np.testing.assert_allclose(updates.then(double).sum("x"), 2 * expected.sum(axis=0))
    before = RoundUpdates([one.before(1) for one in held])
    np.testing.assert_allclose(2 * before.sum("x"), expected.sum(axis=0))
    # What a client sends that is not accepted.
    np.testing.assert_allclose(held[0].sent(2).fields["x"].whole()[0], wholes[7])
