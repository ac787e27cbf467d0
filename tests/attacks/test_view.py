"""What an adversary sees in a round, and no more."""

import copy

import numpy as np
import pytest

from fedrecsk import Federation, LightFR, LocALS, RFRec, RFRecF, SCoLR
from fedrecsk.attacks import Adversary
from tests.conftest import make_toy

pytestmark = pytest.mark.sampled

X, Y = make_toy(n_users=20, n_items=12)
USERS = np.unique(X[:, 0])
METHODS = [RFRec, RFRecF, LocALS, SCoLR, LightFR]
SEEN = []


class Watching(Adversary):
    """Sends what is honest, and writes down what it sees."""

    def _plan(self, view):
        view.memory["rounds"] = [*view.memory.get("rounds", []), view.round]
        SEEN.append(copy.copy(view))
        SEEN[-1].honest = [dict(one) for one in view.uploads]
        SEEN[-1].rounds = view.memory["rounds"]
        return len(view.uploads)

    def _forged(self, view, upload, generator):
        assert view.plan == len(view.uploads)
        return upload


def watched(Method, adversary=None, n_rounds=4, **parameters):
    """Views of a fit, and the fitted model."""
    SEEN.clear()
    setting = {
        name: parameters.pop(name) for name in ("dropout", "dropout_mode") if name in parameters
    }
    adversary = adversary or Watching(clients=USERS[[3, 8, 15]])
    federation = Federation(adversary=adversary, **setting)
    model = Method(4, n_rounds=n_rounds, random_state=0, federation=federation, **parameters)
    model.fit(X, Y if Method in (RFRec, RFRecF) else None)
    return list(SEEN), model


@pytest.mark.parametrize("Method", METHODS)
def test_it_sees_its_own_clients_and_what_everyone_receives(Method):
    views, model = watched(Method, client_fraction=1.0)
    assert [view.round for view in views] == sorted({view.round for view in views})
    # RFRecF sends in the rounds only in which its coin changes.
    assert len(views) == 4 or Method is RFRecF
    for view in views:
        assert view.n_senders == 20
        assert len(view.honest) == 3
        owners = USERS[np.unique(view.data.users)]
        np.testing.assert_array_equal(owners, USERS[[3, 8, 15]])
        np.testing.assert_array_equal(view.item_ids, model.item_ids_)
        assert view.n_items == 12
        if Method is not LightFR:
            assert view.item_vectors.shape[0] == 12
            assert np.isfinite(view.item_vectors).all()
    assert views[-1].rounds == [view.round for view in views]
    # It sends what is honest, which changes nothing.
    items = model.predict(X)
    honest = model.set_params(federation__adversary=None).fit(X, Y)
    np.testing.assert_allclose(honest.predict(X), items, rtol=1e-4, atol=1e-5)


def test_clients_that_do_not_take_part_send_nothing_to_it():
    views, _ = watched(LocALS, n_rounds=12, client_fraction=0.25)
    assert 0 < len(views) <= 12
    assert all(view.n_senders == 5 and 1 <= len(view.honest) <= 3 for view in views)


def test_stale_clients_attack_with_the_last_broadcast_that_one_of_them_received():
    views, _ = watched(LocALS, n_rounds=6, dropout=0.6, dropout_mode="stale")
    assert len(views) >= 4
    assert all(np.isfinite(view.item_vectors).all() for view in views)


def test_its_memory_lasts_when_a_fit_goes_on():
    SEEN.clear()
    federation = Federation(adversary=Watching(clients=USERS[:2]))
    model = LocALS(4, n_rounds=2, warm_start=True, random_state=0, federation=federation).fit(X)
    model = copy.deepcopy(model)
    model.set_params(n_rounds=5).fit(X)
    assert SEEN[-1].rounds == [0, 1, 2, 3, 4]
