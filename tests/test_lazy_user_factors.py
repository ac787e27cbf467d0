"""Users whom no round has reached: served when somebody asks, as if they had been at the end."""

import copy
import pickle
from dataclasses import dataclass
from threading import Thread

import joblib
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from fedrecsk import FedEASE, Federation, FedMF, LightFR, LocALS, RFRec, RFRecF
from fedrecsk.ensemble import RankingEnsemble
from fedrecsk.federated._rfrec_predictions import OwnItems
from fedrecsk.federated._round_loop import Run
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.protocol import Message, PerClient, blocks
from fedrecsk.protocol.personal import LazyUserFactors
from tests.conftest import make_toy
from tests.listed import tolerance
from tests.test_contract import Recorder, every_federated, federated_representatives, make

X, Y = make_toy(40, 15)
EVERYBODY = np.unique(X[:, 0])


def fit(Estimator, clients=None, **parameters):
    """A model that has reached some of the users and others not."""
    settings = {"n_rounds": 2, "client_fraction": 0.2}
    model = make(Estimator, **settings | parameters).fit(X, Y, clients=clients)
    assert 0 < len(model._unreached) < 40
    return model


def attributes(model):
    """All that is known of users, as dense arrays."""
    names = ("factors", "bias", "codes", "history", "covariance", "noise")
    found = {name: getattr(model, f"user_{name}_", None) for name in names}
    return {
        name: rows.toarray() if sparse.issparse(rows) else rows
        for name, rows in found.items()
        if rows is not None
    }


def assert_close(Estimator, one, other):
    close = tolerance(Estimator, 0)
    np.testing.assert_allclose(one, other, rtol=close, atol=close)


def assert_same(one, other):
    mine, others = attributes(one), attributes(other)
    assert mine.keys() == others.keys()
    assert len(mine)
    for name, rows in mine.items():
        close = tolerance(type(one), 0)
        np.testing.assert_allclose(rows, others[name], rtol=close, atol=close, err_msg=name)
        assert rows.dtype == others[name].dtype
        assert len(rows) == one.n_users_
    assert_close(type(one), one.predict(X), other.predict(X))


def at_once(model):
    """The same model with everybody served at the end of the fit."""
    run, served = model._run, copy.copy(model)
    server, clients = run.server, run.clients
    message = server.method._decode_broadcast(server.current_message(), server.key.at(server.round))
    parts = [one.fitted(message, server.round) for one in clients]
    users = blocks.by_user([one.block.users for one in clients], parts)
    vars(served).update(users, _waiting=None)
    return served


def waiting(model):
    """Ids of those who wait."""
    return model.user_ids_[model._unreached._block_of_user[: len(model.user_ids_)] >= 0]


# ----------------------------------------------------------------------- always the same bits


@every_federated
@pytest.mark.parametrize("silos", [False, True])
def test_users_get_the_same_whenever_they_ask(Estimator, silos, monkeypatch):
    monkeypatch.setattr(blocks, "block_size", lambda data: 40)
    clients = X[:, 0] % 11 if silos else None
    model = fit(Estimator, clients, warm_start=True)
    expected = at_once(model)
    alone, together, stored = copy.deepcopy(model), model, pickle.dumps(model)
    for user in np.random.default_rng(0).permutation(EVERYBODY):
        theirs = X[X[:, 0] == user]
        assert_close(Estimator, alone.predict(theirs), expected.predict(theirs))
        for one, other in zip(
            alone.recommend([user, -5], 4), expected.recommend([user, -5], 4), strict=True
        ):
            assert_close(Estimator, one, other)
    assert len(alone._unreached) == 0
    assert_same(alone, expected)
    assert_same(together, expected)
    assert alone._unreached is None
    assert together._unreached is None
    again = pickle.loads(stored)
    assert len(again._unreached) > 0
    assert_same(again, expected)
    assert_same(pickle.loads(pickle.dumps(alone)), expected)


@pytest.mark.parametrize("Estimator", [RFRec, RFRecF])
def test_users_who_were_not_reached_have_the_servers_items(Estimator):
    parameters = {"predict_with": "local", "federation": Federation(sampling="rotating")}
    model = fit(Estimator, warm_start=True, **parameters)
    expected = at_once(model)
    assert isinstance(model._own_items, OwnItems)
    np.testing.assert_array_equal(model.predict(X), expected.predict(X))
    np.testing.assert_array_equal(model.recommend(EVERYBODY)[1], expected.recommend(EVERYBODY)[1])


@federated_representatives
def test_several_threads_serve_the_same_users(Estimator):
    model = fit(Estimator)
    expected, answers = copy.deepcopy(model), {}

    def ask(name):
        answers[name] = [model.predict(X[X[:, 0] == user]) for user in EVERYBODY[::3]]

    threads = [Thread(target=ask, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in answers.values():
        for user, predicted in zip(EVERYBODY[::3], one, strict=True):
            np.testing.assert_array_equal(predicted, expected.predict(X[X[:, 0] == user]))


@every_federated
def test_a_fit_that_reached_nobody_serves_all(Estimator):
    nobody = Federation(dropout=0.99, dropout_mode="offline")
    for seed in range(20):
        model = make(Estimator, n_rounds=1, client_fraction=0.1, federation=nobody)
        model.set_params(random_state=seed).fit(X, Y)
        if model.communication_.bytes_up == 0:
            break
    assert np.isfinite(model.predict(X)).all()
    assert all(len(rows) == 40 for rows in attributes(model).values())


# ------------------------------------------------------------------------ nobody else is served


@federated_representatives
def test_only_those_who_ask_are_served(Estimator):
    model = fit(Estimator)
    first, second, *_ = waiting(model)
    n = len(model._unreached)
    model.predict(
        [[first, X[0, 1]], [-7, X[0, 1]], [np.setdiff1d(EVERYBODY, waiting(model))[0], 0]]
    )
    assert len(model._unreached) == n - 1
    assert first not in waiting(model)
    model.recommend([first, second], 3)
    assert len(model._unreached) == n - 2
    model.__repr__(), model._repr_html_(), copy.copy(model), clone(model)
    assert len(model._unreached) == n - 2
    assert "user_factors_" not in vars(model)
    assert not hasattr(model, "user_nonsense_")


def test_metrics_and_ensembles_serve_those_whom_they_are_about():
    models = [fit(LocALS), fit(FedMF)]
    user = waiting(models[0])[0]
    before = [len(model._unreached) for model in models]
    unseen = np.setdiff1d(models[0].item_ids_, X[X[:, 0] == user, 1])
    evaluate_ranking(models[0], [[user, unseen[0]]])
    assert len(models[0]._unreached) == before[0] - 1
    parts = [
        (name, make(Estimator, n_rounds=2, client_fraction=0.2))
        for name, Estimator in (("als", LocALS), ("mf", FedMF))
    ]
    ensemble = RankingEnsemble(parts, weights=[1, 2]).fit(X, Y)
    before = [len(part._unreached) for part in ensemble.estimators_]
    users = [waiting(part)[0] for part in ensemble.estimators_]
    ensemble.recommend(np.unique(users), 3)
    ensemble.predict([[user, X[0, 1]] for user in users])
    assert all("user_factors_" not in vars(part) for part in ensemble.estimators_)
    for part, n in zip(ensemble.estimators_, before, strict=True):
        assert n - 2 <= len(part._unreached) <= n - 1


def test_a_pickle_has_the_data_of_those_who_wait():
    model = fit(FedMF)
    kept = pickle.loads(pickle.dumps(model))._unreached.blocks
    users = np.concatenate([block.users for block in kept if block is not None])
    np.testing.assert_array_equal(np.sort(model.user_ids_[users]), waiting(model))
    assert "_received" not in vars(model._unreached) or model._unreached._received is None
    model.predict(X)
    assert pickle.loads(pickle.dumps(model))._unreached.blocks == [None] * len(kept)


# ---------------------------------------------------------------------------- users come and go


@federated_representatives
def test_users_can_be_folded_in_while_others_wait(Estimator):
    model = fit(Estimator)
    served = copy.deepcopy(model)
    assert attributes(served)
    user, other, *_ = waiting(model)
    n, before = len(model._unreached), copy.copy(model)
    rows, ratings = X[X[:, 0] == other][:2] * [0, 1] + [[-7, 0]], Y[:2]
    again, others = X[X[:, 0] == user][1:], 6 - Y[X[:, 0] == user][1:]
    for one in (model, served):
        one.fold_in(rows, ratings).fold_in(again, others, replace=True)
    assert len(model._unreached) == n - 1
    assert len(before._unreached) == n
    for one, same in zip(
        model.recommend([-7, user, other], 5), served.recommend([-7, user, other], 5), strict=True
    ):
        assert_close(Estimator, one, same)
    assert_same(model, served)
    assert before.n_users_ == 40
    assert len(attributes(before).popitem()[1]) == 40


@dataclass(eq=False, repr=False)
class Numbered(LocALS):
    """Sends each client its number at the end."""

    def _final_model(self, server):
        numbers = PerClient(np.arange(float(server["n_clients"])))
        return Message(**super()._final_model(server), numbers=numbers)

    def _personalize(self, block, state, message, turn, key):
        numbers = message["numbers"].values
        numbers = numbers if len(numbers) == block.n_clients else np.repeat(numbers.mean(), 1)
        return super()._personalize(block, state, message, turn, key) | {"numbers": numbers}

    def _user_attributes(self, block, state):
        return super()._user_attributes(block, state) | {"user_number_": state["numbers"]}


def test_each_client_receives_its_own_entry_and_newcomers_those_of_all():
    model = fit(Numbered, n_factors=2)
    model.fold_in([[-7, X[0, 1]]])
    assert model.user_number_.tolist() == [*range(40), 19.5]


def test_items_can_be_added_while_users_wait():
    model = fit(LightFR)
    served = copy.deepcopy(model)
    assert len(served.user_codes_) == 40
    for one in (model, served):
        one.fold_in_items([[user, 5000] for user in EVERYBODY[:9]])
    assert_same(model, served)


def test_what_was_seen_is_left_out_for_those_who_wait():
    model = fit(FedMF)
    user = waiting(model)[0]
    items, scores = model.recommend([user], 15)
    seen = set(X[X[:, 0] == user, 1].tolist())
    assert set(items[0][np.isfinite(scores[0])]) == set(model.item_ids_.tolist()) - seen


# ----------------------------------------------------------------------------- fit after fit


def test_parameters_that_are_set_later_do_not_matter():
    model = fit(FedMF)
    expected = copy.deepcopy(model).user_factors_
    model.set_params(learning_rate=0.01, n_negatives=0, reg=0.5)
    np.testing.assert_array_equal(model.user_factors_, expected)


class Looker(Recorder):
    """A callback that looks at the users."""

    def __init__(self):
        super().__init__()
        self.waited, self.seen = [], []

    def on_fit_task_end(self, estimator, context, *, fitted_estimator):
        self.waited.append("user_factors_" not in vars(fitted_estimator))
        self.seen.append(fitted_estimator.user_factors_)


def test_a_model_in_the_making_has_nothing_of_an_earlier_fit():
    looker = Looker()
    model = make(FedMF, n_rounds=3, client_fraction=1.0).fit(X, Y)
    model.set_params(client_fraction=0.2).set_callbacks(looker).fit(X, Y)
    assert looker.waited == [True] * 4
    np.testing.assert_array_equal(looker.seen[-1], model.user_factors_)
    for n_rounds in (1, 2):
        shorter = make(FedMF, n_rounds=n_rounds, client_fraction=0.2).fit(X, Y)
        np.testing.assert_array_equal(looker.seen[n_rounds - 1], shorter.user_factors_)
    model.set_callbacks().set_params(client_fraction=1.0).fit(X, Y)
    assert model._unreached is None
    assert "user_factors_" in vars(model)


@federated_representatives
def test_a_warm_start_goes_on_while_users_wait(Estimator):
    warm = fit(Estimator, warm_start=True)
    warm.predict(X[:3])
    warm.set_params(n_rounds=3).fit(X, Y)
    assert_same(warm, make(Estimator, n_rounds=3, client_fraction=0.2).fit(X, Y))


# ------------------------------------------------------------------------------ early stopping


def test_a_cohort_measures_the_last_model():
    parameters = {"early_stopping": True, "n_iter_no_change": 99, "client_fraction": 0.1}
    model = FedMF(3, n_rounds=8, **parameters, random_state=0).fit(X, Y)
    final = [e for e in model.communication_.entries if e["phase"] == "final"]
    assert [entry["messages_up"] for entry in final] == [4]
    assert final[0]["messages_down"] == 40
    assert len(model._unreached) > 0
    assert np.isfinite(model.history_[-1]["validation_loss"])


def test_a_fit_shorter_than_a_pass_is_judged_by_its_rounds():
    model = make(LocALS, n_rounds=2, client_fraction=0.1, early_stopping=True).fit(X, Y)
    assert model.best_round_ == 1
    assert np.isfinite(model.predict(X)).all()


def test_who_measured_the_best_model_keeps_what_it_had(monkeypatch):
    """Among them are users who have measured it and never trained."""
    ended, at_its_end = [], Run.at_its_end
    monkeypatch.setattr(Run, "at_its_end", lambda run: ended.append(at_its_end(run)) or ended[-1])
    model = make(RFRec, n_rounds=3, client_fraction=0.2, aggregation="holders")
    model.set_params(early_stopping=True).fit(X, Y)
    (clients,) = ended[-1].clients
    kept, who = clients._kept
    untrained = who & ~clients._has_updated
    assert model.best_round_ == 2
    assert who.sum() == 8
    assert untrained.any()
    assert not np.isin(model.user_ids_[who], waiting(model)).any()
    for name, rows in kept.items():
        np.testing.assert_array_equal(getattr(model, name)[who], rows)


# -------------------------------------------------------------------------------- the messages


def test_messages_of_the_past_are_kept_where_somebody_may_go_on_with_them():
    model = FedMF(3, n_rounds=5, client_fraction=0.3, warm_start=True, random_state=0)
    assert model.fit(X, Y)._run.clients[0]._messages == {}
    model = clone(model).set_params(federation=Federation(dropout=0.4, dropout_mode="stale"))
    assert len(model.fit(X, Y)._run.clients[0]._messages) > 1


class Silent(RFRec):
    """Says nothing in the second round, and has not said that it may."""

    def _broadcast(self, server, key):
        return None if key.round else self._model(server)


def test_a_method_that_is_silent_must_say_that_it_may_be():
    with pytest.raises(TypeError, match=r"broadcasts nothing in round 1; .* _may_be_silent = True"):
        Silent(3, n_rounds=2).fit(X, Y)


def test_a_sparse_attribute_is_filled_in_row_by_row():
    model = fit(FedEASE, n_rounds=1)
    user = waiting(model)[0]
    expected = copy.deepcopy(model).user_history_
    model.predict(X[X[:, 0] == user])
    row = np.searchsorted(model.user_ids_, user)
    partial = model._unreached.attributes["user_history_"]
    assert partial[[row]].nnz == expected[[row]].nnz > 0
    assert partial.nnz < expected.nnz
    assert (model.user_history_ != expected).nnz == 0


# ------------------------------------------------------------------------------- interrupted


def test_whoever_was_interrupted_asks_again(monkeypatch):
    monkeypatch.setattr(blocks, "RATINGS_PER_BLOCK", 30)
    model = fit(FedMF)
    expected = copy.deepcopy(model).user_factors_
    served, attributes_of = [], LazyUserFactors._attributes_of

    def interrupted(unreached, block):
        if len(served) >= 3:
            raise KeyboardInterrupt
        served.extend(block.users)
        return attributes_of(unreached, block)

    n = len(model._unreached)
    with monkeypatch.context() as patch:
        patch.setattr(LazyUserFactors, "_attributes_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _ = model.user_factors_
    assert 0 < len(model._unreached) < n
    np.testing.assert_array_equal(model.user_factors_, expected)


def test_a_user_folded_in_anew_keeps_what_it_has_when_a_housemate_is_asked_for():
    # Users are 7 apart.
    clients = X[:, 0] // 14
    model = FedMF(n_rounds=1, client_fraction=0.1, random_state=0).fit(X, Y, clients=clients)
    home = next(
        home
        for home in (np.unique(X[clients == c, 0]) for c in np.unique(clients))
        if len(home) == 2 and set(home.tolist()) <= set(waiting(model))
    )
    rows = X[X[:, 0] == home[0]]
    model.fold_in(rows[:1], Y[:1], replace=True)
    before = model.predict(rows)
    model.recommend(home[1:])
    np.testing.assert_array_equal(model.predict(rows), before)


@every_federated
def test_a_model_in_a_read_only_memory_map_serves_them(Estimator, tmp_path):
    model = fit(Estimator)
    joblib.dump(model, tmp_path / "model")
    loaded = joblib.load(tmp_path / "model", mmap_mode="r")
    users = EVERYBODY[:20]
    for one in (model, loaded):
        one.recommend(users, 2)
    assert_same(model, loaded)
