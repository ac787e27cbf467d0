"""FedEASE and FedSpectral against sums over clients, client by client."""

import numpy as np
import pytest

from fedrecsk import EASE, FedEASE, Federation, FedSpectral, Popularity
from fedrecsk._utils import memory
from fedrecsk.aggregation import NormClipping
from fedrecsk.data.interactions import encode
from fedrecsk.datasets import make_interactions
from fedrecsk.federated._gram import clear_counts, signal
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.model_selection import UserHoldout
from fedrecsk.privacy import CKKS, CentralDP
from fedrecsk.protocol import blocks
from tests.conftest import make_toy
from tests.federated.turns import turns_of
from tests.reference import ease as reference

METHODS = [FedEASE, FedSpectral]
every_method = pytest.mark.parametrize("Estimator", METHODS)
ITEMS = 1000 + 3 * np.arange(9)
SPECTRAL = {"n_factors": 4, "alpha": 2.0, "reg_user": 0.7}


pytestmark = pytest.mark.usefixtures("float64")


def make(Estimator, **parameters):
    own = {"reg": 3.0} if issubclass(Estimator, FedEASE) else SPECTRAL
    return Estimator(**own | {"random_state": 0} | parameters)


def counted(model, data):
    """Users of the clients that take part at least once, if the first upload arrives."""
    asked = np.zeros(data.n_clients, dtype=bool)
    arrived = asked.copy()
    for _, active, delivers in turns_of(model, data.n_clients):
        arrived |= active & delivers & ~asked
        asked |= active
    return np.flatnonzero(np.repeat(arrived, np.diff(data.client_indptr)))


def assert_equals_the_reference(model, X, y, clients=None, weight=None):
    data = encode(X, y, clients=clients, sample_weight=weight)
    rows = reference.rows_of(data)
    G = reference.gram(rows, counted(model, data))
    if isinstance(model, FedEASE):
        expected = rows @ reference.ease(G, model.reg)
    else:
        expected = reference.spectral_scores(G, rows, model.n_factors, model.alpha, model.reg_user)
    np.testing.assert_allclose(
        model._model().score_all(np.arange(data.n_users)), expected, rtol=1e-7, atol=1e-9
    )


COHORTS = [
    {},
    {"upload": "all"},
    {"client_fraction": 0.3, "n_rounds": 2},
    {"client_fraction": 0.3, "n_rounds": 9, "federation": Federation(dropout=0.4)},
    {"client_fraction": 0.25, "n_rounds": 4, "federation": Federation(sampling="rotating")},
    {"n_rounds": 3, "federation": Federation(dropout=0.5, dropout_mode="offline")},
    # Looks at single uploads and changes nothing.
    {"federation": Federation(aggregator=NormClipping(1e9)), "client_fraction": 0.5, "n_rounds": 3},
    {"upload": "all", "federation": Federation(aggregator=NormClipping(1e9))},
]


@every_method
@pytest.mark.parametrize("setting", COHORTS, ids=str)
def test_equals_the_sum_over_clients(Estimator, setting, monkeypatch):
    monkeypatch.setattr(blocks, "block_size", lambda *_: 40)
    X, y = make_toy(30, 9, seed=2)
    y -= 2
    weight = np.random.default_rng(1).uniform(0.2, 2, len(y))
    for clients in (None, X[:, 0] // 7 % 4):
        model = make(Estimator, **setting).fit(X, y, clients=clients, sample_weight=weight)
        assert_equals_the_reference(model, X, y, clients, weight)


@pytest.mark.parametrize("download", ["local", "all"])
@pytest.mark.parametrize("upload", ["local", "all"])
def test_fedease_is_ease_whatever_is_sent(upload, download):
    X, y = make_toy(30, 9, seed=2)
    model = FedEASE(3.0, upload=upload, download=download).fit(X, y)
    expected = EASE(3.0).fit(X, y)
    np.testing.assert_allclose(model.item_weights_, expected.item_weights_, atol=1e-12)
    np.testing.assert_allclose(model.predict(X), expected.predict(X), atol=1e-12)
    n_own, counts = np.unique(X[:, 0], return_counts=True)[1], model.communication_
    pairs = (n_own * (n_own + 1) // 2).sum()
    up = 8 * pairs if upload == "local" else 30 * 4 * 45
    ids, request = 30 * 9 * 8, 30
    if download == "local":
        up += 4 * len(X)
        down = 4 * 9 * len(X)
    else:
        down = 30 * 4 * 45
    assert counts.bytes_up == up
    assert counts.bytes_down == ids + request + down


def test_spectral_factors_have_a_sign_an_order_and_a_size():
    X, y = make_toy(60, 20, seed=4)
    factors = FedSpectral(6).fit(X, y).item_factors_
    lengths = (factors**2).sum(axis=0)
    assert lengths.mean() == pytest.approx(100)
    largest = np.abs(factors).argmax(axis=0)
    assert (factors[largest, np.arange(6)] > 0).all()
    wide = FedSpectral(25).fit(X, y).item_factors_
    assert wide.shape == (20, 25)
    assert not wide[:, 20:].any()


@every_method
def test_a_client_sends_once(Estimator):
    X, y = make_toy(30, 9, seed=2)
    once = make(Estimator).fit(X, y)
    often = make(Estimator, n_rounds=4).fit(X, y)
    rounds = [e for e in often.communication_.entries if e["phase"] == "round"]
    assert [e["messages_up"] for e in rounds] == [30, 0, 0, 0]
    assert [e["bytes_up"] > 0 for e in rounds] == [True, False, False, False]
    np.testing.assert_array_equal(often.predict(X), once.predict(X))
    assert often.privacy_.n_uploads == once.privacy_.n_uploads


@every_method
def test_what_does_not_fit_into_memory_is_refused_before_any_work(Estimator, toy, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 6 * 8 * 81)
    make(Estimator).fit(*toy)
    with pytest.raises(ValueError, match=r"9 by 9 items, and the pairs of 12 clients, take"):
        make(Estimator, federation=Federation(aggregator=NormClipping())).fit(*toy)
    monkeypatch.setattr(memory, "available", lambda: 6 * 8 * 81 - 1)
    with pytest.raises(ValueError, match=f"{Estimator.__name__}'s matrices"):
        make(Estimator).fit(*toy)


@pytest.mark.parametrize(
    "model",
    [FedEASE(download="local"), FedEASE(download="all"), FedSpectral(4)],
    ids=["local", "all", "spectral"],
)
def test_the_model_that_clients_measure_is_counted(model):
    X, y = make_toy(30, 9, seed=2)
    model.set_params(n_rounds=2, early_stopping=True, validation_fraction=0.3, random_state=0)
    entries = model.fit(X, y).communication_.entries
    down = {(entry["phase"], entry["round"]): entry["bytes_down"] for entry in entries}
    # The second round's message is a byte that asks, and comes with the model.
    assert down["round", 0] == 30
    assert down["round", 1] == down["final", 2] + 30


# ------------------------------------------------------------------------- central privacy


def watched(Estimator):
    """Keep the sum that the server solves, the deviation of its noise, and the items' counts."""

    def state_attributes(self, server):
        Watched.seen = server.gram.copy(), server.noise_std, server.counts
        return kind.state_attributes(self, server)

    kind = Estimator._kind
    one = type(kind.__name__, (kind,), {"state_attributes": state_attributes})
    Watched = type(Estimator.__name__, (Estimator,), {"_kind": one})
    return Watched


def private(Estimator, setting, **dp):
    federation = Federation(central_dp=CentralDP(**dp), **setting.pop("federation", {}))
    return make(Estimator, items=ITEMS, federation=federation, **setting)


NOISY = Federation(central_dp=CentralDP(noise_multiplier=1))
ENCRYPTED = Federation(secure_aggregation=CKKS())
PRIVATE = [
    {},
    {"client_fraction": 0.5, "n_rounds": 2},
    {"federation": {"dropout": 0.4}, "n_rounds": 2},
]


@every_method
@pytest.mark.parametrize("setting", PRIVATE, ids=str)
@pytest.mark.parametrize("n_silos", [None, 8])
def test_noisy_sums_are_solved_for_what_is_visible(Estimator, setting, n_silos, monkeypatch):
    monkeypatch.setattr(blocks, "block_size", lambda *_: 40)
    X, y = make_toy(30, 9, seed=2)
    silos = None if n_silos is None else X[:, 0] // 7 % n_silos
    dp = {"clip": 1.5, "noise_multiplier": 0.1, "setup_share": 0.01}
    model = private(watched(Estimator), dict(setting), **dp)
    model.fit(X, y - 2, clients=silos)
    data, (triangle, std, counts) = encode(X, y - 2, clients=silos), type(model).seen
    # Clients send once, so that a second round has noise only if it reaches others.
    n_noisy = 2 if model.client_fraction < 1 else 1
    assert std == pytest.approx(0.15 * np.sqrt(n_noisy))
    rows, seen = reference.rows_of(data), np.zeros((9, 9))
    seen[np.tril_indices(9)] = triangle
    seen += np.tril(seen, -1).T
    users = np.split(np.arange(data.n_users), data.client_indptr[1:-1])
    kept = np.flatnonzero(counts)
    assert len(kept)
    if not setting:
        exact = reference.clipped_gram(rows * (counts > 0), users, 1.5)
        noise = (seen - exact)[np.tril_indices(9)]
        assert np.abs(noise).max() < 4.5 * std
        assert noise.std() == pytest.approx(std, rel=0.5)
    if Estimator is FedEASE:
        expected = rows @ reference.noisy_ease(seen, kept, std, model.reg)
    else:
        expected = reference.noisy_spectral_scores(
            seen, kept, std, rows, model.n_factors, model.alpha, model.reg_user
        )
    scores = model._model().score_all(np.arange(data.n_users))
    np.testing.assert_allclose(scores, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("Estimator", "setting", "message"),
    [
        (FedEASE, {"upload": "local", "federation": NOISY}, 'whole matrices; set upload="all"'),
        (FedSpectral, {"upload": "local", "federation": NOISY}, 'set upload="all"'),
        (FedEASE, {"download": "local", "federation": NOISY}, 'set download="all" or "auto"'),
        (FedEASE, {"download": "local", "federation": ENCRYPTED}, 'set download="all" or "auto"'),
    ],
)
def test_what_a_hidden_sum_does_not_tell_is_refused(Estimator, setting, message, toy):
    with pytest.raises(ValueError, match=message):
        make(Estimator, items=ITEMS, **setting).fit(*toy)


def test_noise_alone_is_not_taken_for_a_signal():
    """Its eigenvalues are within the bound."""
    rng = np.random.default_rng(0)
    for n in (50, 200):
        noise = np.tril(2.0 * rng.standard_normal((n, n)))
        noise += np.tril(noise, -1).T
        assert len(signal(noise, 2.0)[0]) <= 1
        planted = np.ones(n) / np.sqrt(n)
        strengths, vectors = signal(noise + 400 * np.outer(planted, planted), 2.0)
        assert strengths[0] == pytest.approx(400, rel=0.05)
        assert abs(vectors[:, 0] @ planted) > 0.98


@pytest.mark.parametrize(
    "model",
    [FedSpectral(16, alpha=1.0, reg_user=100.0), FedEASE(reg=20.0)],
    ids=["spectral", "ease"],
)
def test_private_lists_are_better_than_popular_ones(model):
    X = make_interactions(n_users=3000, n_items=200, n_interactions=90_000, random_state=0)
    train, test = UserHoldout(test_size=0.2, random_state=0).train_test_split(X)
    dp = CentralDP(epsilon=10)
    model = model.set_params(
        items=np.unique(X[:, 1]), federation=Federation(central_dp=dp), random_state=0
    )
    ours, popular = (
        evaluate_ranking(one.fit(train), test, metrics="precision", k=10)["precision@10"]
        for one in (model, Popularity())
    )
    assert model.privacy_.epsilon == pytest.approx(10, abs=1e-3)
    assert ours > 1.2 * popular


@every_method
def test_noise_above_every_count_gives_equal_scores_and_a_warning(Estimator):
    X, y = make_toy(30, 9, seed=2)
    model = private(Estimator, {}, clip=1, noise_multiplier=1000)
    with pytest.warns(UserWarning, match="larger than the count of every item"):
        model.fit(X, y)
    assert not model.predict(X).any()


def test_no_more_items_than_noise_alone_lifts_give_a_warning(recwarn):
    counts = np.random.default_rng(0).standard_normal(2000)
    assert 0 < (counts > 3).sum() < 8
    with pytest.warns(UserWarning, match="of 2000 items .* no more than noise alone may lift"):
        clear_counts(counts, 1.0, 0.0)
    recwarn.clear()
    counts[:20] = 10
    assert (clear_counts(counts, 1.0, 0.0) > 0).sum() >= 20
    assert not recwarn


def test_items_are_kept_whose_pairs_stand_out():
    rng = np.random.default_rng(0)
    for n_clients, noise_std in ((50, 1.0), (200, 2.0), (2000, 2.0)):
        counts = 100 * rng.random(60) ** 4 + noise_std * rng.standard_normal(60)
        clear = clear_counts(counts, noise_std, 4 / 3 * noise_std / (1.5 * n_clients))
        kept = reference.clear_items(counts, noise_std, 1.5, n_clients)
        assert 0 < len(kept) < 60
        np.testing.assert_array_equal(np.flatnonzero(clear), kept)
        np.testing.assert_array_equal(clear[kept], counts[kept])


def test_frequent_items_are_counted_with_a_share_of_the_budget():
    X = make_interactions(n_users=3000, n_items=200, n_interactions=90_000, random_state=0)
    dp = CentralDP(epsilon=10)
    model = watched(FedEASE)(items=np.unique(X[:, 1]), federation=Federation(central_dp=dp))
    kept = []
    for epsilon in (10, 3, 1):
        model.set_params(federation__central_dp=CentralDP(epsilon=epsilon), random_state=0).fit(X)
        _, std, counts = type(model).seen
        kept.append(np.flatnonzero(counts))
        clear = counts[counts > 0]
        # The set-up spends a tenth, so that its noise is three times that of the sum.
        assert clear.min() > 9 * std
        assert 3000 * clear.min() / clear.sum() > 4 * std
    assert len(kept[0]) > len(kept[1]) > len(kept[2]) > 10
    popular = np.argsort(-np.bincount(X[:, 1]))[: len(kept[2])]
    assert np.isin(kept[2], popular).mean() > 0.8
