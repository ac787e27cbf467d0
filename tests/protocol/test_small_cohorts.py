"""Small cohorts and few rounds: users whom no round has reached, and messages of the past."""

import copy

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import FedEB, Federation, FedMF, LocALS, RFRec
from fedrecsk.federated.locals import LocALSAlgorithm
from fedrecsk.federated.rfrec import RFRecAlgorithm
from fedrecsk.protocol import Form, Message, PerClient, blocks
from fedrecsk.simulation.run import Run
from tests.conftest import make_toy
from tests.test_contract import every_federated, make

X, Y = make_toy(40, 15)


@every_federated
def test_a_fit_that_reached_nobody_serves_all(Estimator):
    nobody = Federation(dropout=0.9999, dropout_mode="offline")
    model = make(Estimator, n_rounds=1, client_fraction=0.1, federation=nobody).fit(X, Y)
    rounds = [e for e in model.communication_.entries if e["phase"] == "round"]
    assert [e["messages_up"] for e in rounds] == [0]
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.parametrize(
    ("Estimator", "parameters"), [(FedEB, {}), (LocALS, {}), (RFRec, {"aggregation": "holders"})]
)
def test_users_in_no_round_fit_their_vectors_to_the_final_model(Estimator, parameters):
    settings = {"n_rounds": 2, "client_fraction": 0.2, "warm_start": True} | parameters
    model = make(Estimator, **settings).fit(X, Y)
    (clients,) = model._run.clients
    missed = model.user_ids_[~clients._has_updated]
    assert 0 < len(missed) < 40
    rows = np.isin(X[:, 0], missed)
    newcomers = copy.copy(model).fold_in(X[rows], Y[rows], replace=True)
    np.testing.assert_allclose(model.predict(X[rows]), newcomers.predict(X[rows]), rtol=1e-6)


class NumberedAlgorithm(LocALSAlgorithm):
    """Sends each client its number at the end."""

    def downloads(self, n_items):
        return super().downloads(n_items) | {"numbers": Form((), per_client=True)}

    def final(self, server):
        numbers = PerClient(np.arange(float(server.n_clients)))
        return Message(**super().final(server), numbers=numbers)

    def personalize(self, block, clients, message, turn, key):
        numbers = message["numbers"].values
        # Newcomers receive the entries of all clients.
        numbers = numbers if len(numbers) == block.n_clients else numbers.mean(keepdims=True)
        clients = super().personalize(block, clients, message, turn, key)
        clients.numbers = numbers
        return clients

    def user_attributes(self, block, clients):
        return super().user_attributes(block, clients) | {"user_number_": clients.numbers}


class Numbered(LocALS):
    _kind = NumberedAlgorithm


def test_each_client_receives_its_own_entry_and_newcomers_those_of_all(monkeypatch):
    monkeypatch.setattr(blocks, "block_size", lambda *_: 7)
    model = Numbered(2, n_rounds=2, client_fraction=0.2, random_state=0).fit(X)
    model.fold_in([[-7, X[0, 1]]])
    assert model.user_number_.tolist() == [*range(40), 19.5]


def test_who_measured_the_best_model_keeps_what_it_had(monkeypatch):
    """Among them are users who have measured it and never trained."""
    monkeypatch.setattr(blocks, "block_size", lambda *_: 1)
    ended, fork = [], Run.fork
    monkeypatch.setattr(Run, "fork", lambda run: ended.append(fork(run)) or ended[-1])
    model = make(RFRec, n_rounds=7, client_fraction=0.2, aggregation="holders")
    model.set_params(early_stopping=True).fit(X, Y)
    # Nobody keeps what it had under an earlier model, which was the best until then.
    kept = [one for one in ended[-1].clients if one._kept is not None]
    assert model.best_round_ == 6
    assert len(kept) == 8
    assert not all(one._has_updated.any() for one in kept)
    for one in kept:
        for name, rows in one._kept[0].items():
            np.testing.assert_array_equal(getattr(model, name)[one.block.users], rows)


def test_messages_of_the_past_are_kept_where_somebody_may_go_on_with_them():
    model = FedMF(3, n_rounds=5, client_fraction=0.3, warm_start=True, random_state=0)
    assert model.fit(X, Y)._run.clients[0]._messages == {}
    model = clone(model).set_params(federation=Federation(dropout=0.4, dropout_mode="stale"))
    assert len(model.fit(X, Y)._run.clients[0]._messages) > 1


class SilentAlgorithm(RFRecAlgorithm):
    """Says nothing in the second round, and has not said that it may."""

    def broadcast(self, server, key):
        return None if key.round else super().broadcast(server, key)


class Silent(RFRec):
    _kind = SilentAlgorithm


def test_a_method_that_is_silent_must_say_that_it_may_be():
    with pytest.raises(TypeError, match=r"broadcasts nothing in round 1; .* trait may_be_silent"):
        Silent(3, n_rounds=2).fit(X, Y)
