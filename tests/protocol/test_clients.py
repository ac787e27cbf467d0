"""The clients' half: asked too early, and never asked at all."""

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import Federation, RFRec
from fedrecsk.aggregation import NormClipping
from fedrecsk.data.interactions import encode
from fedrecsk.federated.rfrec import RFRecAlgorithm
from fedrecsk.privacy import LaplaceMechanism
from fedrecsk.protocol import ClientGroup, FieldSpec, Updates
from fedrecsk.protocol.blocks import cut
from fedrecsk.protocol.keys import Key, Keys
from fedrecsk.simulation.run import Run
from tests.conftest import make_toy


def opened(estimator, **settings):
    """A server in its first round, its clients in one block, the turn and the message."""
    run = Run.new(clone(estimator).set_params(random_state=0, **settings), encode(*make_toy()))
    run.set_up()
    turn, message = run.server.open_round()
    (clients,) = run.clients
    return run.server, clients, turn, run.server.algorithm.decode(message, Key(0))


def validating():
    """Clients of RFRec, the turn, the message of round 0, and the same to be validated."""
    early = {"early_stopping": True, "validation_fraction": 0.4}
    _, clients, turn, message = opened(RFRec(3), **early)
    return clients, turn, message, type(message)(**clients._announcement, **message)


def test_an_update_before_a_message_says_what_to_call():
    _, clients, turn, message = opened(RFRec(3))
    with pytest.raises(ValueError, match=r"update in round 0, .* call receive\(round, message\)"):
        clients.update(0)
    clients.receive(0, message, turn)
    with pytest.raises(ValueError, match="update in round 1, because they have received no"):
        clients.update(1)


# ------------------------------------------------------------------------ what methods hand over


class WrongAlgorithm(RFRecAlgorithm):
    """Hands over something else than it declared."""

    def update(self, block, clients, message, turn, key):
        clients, updates, loss = super().update(block, clients, message, turn, key)
        return clients, Updates(self.spoil(updates.fields)), loss


class Wrong(RFRec):
    _kind = WrongAlgorithm


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: {"items": f["item_vectors"]}, "uploads the fields .'items'., but its"),
        (lambda f: f | {"more": f["item_vectors"]}, "declares .'item_vectors'.; make them"),
        (
            lambda f: {"item_vectors": f["item_vectors"][1:]},
            r"shape \(8, 4\), but its FieldSpec says \(9, 4\)",
        ),
    ],
    ids=["another name", "one more", "another shape"],
)
def test_a_method_that_uploads_something_else_than_it_declares_is_told(spoil, message):
    WrongAlgorithm.spoil = staticmethod(spoil)
    settings = (None,) if "shape" in message else (None, Federation(aggregator=NormClipping()))
    for setting in settings:
        with pytest.raises(ValueError, match=message):
            Wrong(3, n_rounds=1, federation=setting).fit(*make_toy())


TOLD = []


class CountsAlgorithm(RFRecAlgorithm):
    """Asks its clients for something that they must not tell without noise."""

    def setup_fields(self, n_items):
        return {"n": FieldSpec((2,), clip=1.0, learned=False)}

    def answer(self, block, message, key):
        return Updates({"n": np.ones(2) * block.n_clients})

    def begin(self, catalogue, sums, key):
        TOLD.append(sums["n"].sum)
        return super().begin(catalogue, None, key)


class Counts(RFRec):
    _kind = CountsAlgorithm


NOISY = Federation(local_dp=LaplaceMechanism(clip=1.0, scale=0.5))


def test_the_set_up_of_every_fit_has_noise_of_its_own():
    X, y = make_toy()
    TOLD.clear()
    public = {"rating_scale": (1, 5), "items": np.unique(X[:, 1]), "federation": NOISY}
    for seed in range(2):
        Counts(3, n_rounds=1, random_state=seed, **public).fit(X, y)
    assert np.abs(TOLD[1] - TOLD[0]).min() > 1e-6


@pytest.mark.parametrize("is_device", [False, True])
def test_a_deployed_clients_answer_before_the_rounds_has_its_noise_too(is_device):
    (block,) = cut(encode(*make_toy(n_users=1)))
    key = Key(3)
    method = Counts(3, rating_scale=(1, 5), federation=NOISY)
    given = {"client_ids": block.clients, "is_device": is_device}
    clients = ClientGroup(method._plan(), block, Keys(key, key), **given)
    answer = clients.setup(None)
    if is_device:
        assert not answer.lacks_noise
        assert (answer.held.single(0).whole(0)["n"] != 1).all()
    else:
        # The simulator draws the noise of all clients at once.
        assert answer.lacks_noise
        assert answer.fields["n"].tolist() == [1, 1]


def test_validation_errors_that_are_lost_or_not_finite_are_not_in_the_sum():
    clients, turn, _, announced = validating()

    def asked(delivers=True):
        answer = clients.validate(1, announced, turn._replace(delivers=turn.delivers & delivers))
        return answer.accepted.tolist(), answer.fields["validation_loss"]

    some = np.arange(12) < 5
    (everyone, whole), (here, ours), (there, theirs) = asked(), asked(some), asked(~some)
    assert (all(everyone), here, there) == (True, some.tolist(), (~some).tolist())
    assert (np.minimum(ours, theirs) > 0).all()
    np.testing.assert_allclose(ours + theirs, whole)
    rows = np.diff(clients.held_out.indptr)
    broken = np.flatnonzero(rows)[0]
    clients.held_out.values[clients.held_out.indptr[broken]] = np.nan
    accepted, others = asked()
    assert accepted == (np.arange(12) != broken).tolist()
    assert whole[1] - others[1] == rows[broken]


def test_under_local_noise_nobody_says_how_many_items_it_holds():
    X, _ = make_toy()
    for mechanism in (None, LaplaceMechanism(clip=0.2, scale=0.1)):
        public = {"rating_scale": (1, 5), "items": np.unique(X[:, 1])}
        model = RFRec(3, **public, federation=Federation(local_dp=mechanism))
        _, clients, _, _ = opened(model)
        n_held = clients.register().n_held
        assert n_held.tolist() == (clients.block.row_counts * (mechanism is None)).tolist()


def test_without_validation_rows_there_is_nothing_to_validate_and_no_best_model():
    server, clients, _, message = opened(RFRec(3))
    n_entries = len(server.ledger.entries)
    with pytest.raises(ValueError, match=r"hold no rows out .* set early_stopping=True"):
        clients.validate(1, message)
    with pytest.raises(ValueError, match=r"no best model.* use send_final"):
        server.send_best()
    assert len(server.ledger.entries) == n_entries
