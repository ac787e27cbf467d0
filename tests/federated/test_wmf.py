"""LocALS, LocSGD and GlobSGD, which share their users' step and their messages."""

import numpy as np
import pytest
from sklearn.base import clone

from benchmarks._variants import variant
from fedrecsk import Federation, GlobSGD, LocALS, LocSGD, Popularity
from fedrecsk.data.interactions import encode
from fedrecsk.federated._wmf import FederatedWMF
from fedrecsk.protocol import blocks
from fedrecsk.protocol.keys import Key, Keys, RoundMasks, draw_participation
from fedrecsk.protocol.messages import Message
from tests.conftest import BLOCK_SIZES, fits_in_blocks, make_toy, split
from tests.federated.turns import SETTINGS, clients_of_kind, key_of, turns_of
from tests.reference import wmf as reference

METHODS = [LocALS, LocSGD, GlobSGD]
every_method = pytest.mark.parametrize("Estimator", METHODS)


@pytest.fixture(autouse=True)
def float64(monkeypatch):
    monkeypatch.setattr(FederatedWMF, "_dtype", np.float64)


def make(Estimator, **parameters):
    """Small, and with penalties that leave something of a small data set."""
    defaults = {
        "n_factors": 3,
        "n_rounds": 4,
        "alpha": 2.0,
        "reg_user": 0.5,
        "reg_item": 0.7,
        "INIT_STD": 0.5,
        "random_state": 0,
    }
    if Estimator is not GlobSGD:
        defaults["prox"] = 0.3
    if Estimator is LocSGD:
        defaults |= {"learning_rate": 0.05, "n_steps": 2}
    if Estimator is GlobSGD:
        auto = parameters.get("aggregation", "full") == "full"
        defaults["learning_rate"] = "auto" if auto else 0.3
    return variant(Estimator, **defaults | parameters)


def dense(data, alpha):
    """Confidence and preference of every pair, and which pairs have a row."""
    c, r = np.ones((2, data.n_users, data.n_items)) * [[[1.0]], [[0.0]]]
    positive = data.values > 0
    c[data.users, data.items] += np.where(positive, alpha * data.weights, 0)
    r[data.users, data.items] = positive
    rated = np.zeros(c.shape, dtype=bool)
    rated[data.users, data.items] = True
    return c, r, rated


def first_items(model, n_items):
    shape = (n_items, model.n_factors)
    return model.INIT_STD * key_of(model).generator("item factors").standard_normal(shape)


def assert_equals_reference(model, X, y=None, block_sizes=BLOCK_SIZES[:1], **fit_params):
    data = encode(X, y, **fit_params)
    c, r, rated = dense(data, model.alpha)
    spans = [slice(*data.client_indptr[k : k + 2]) for k in range(data.n_clients)]
    clients = [
        reference.Client(model, c[s], r[s], rated[s].any(axis=0), data.n_clients) for s in spans
    ]
    start, turns = first_items(model, data.n_items), turns_of(model, data.n_clients)
    items = reference.run(model, clients, [rated[s] for s in spans], start, turns)
    penalties = [reference.user_penalty(model, one) for one in c]
    users = [reference.user_solve(c[u], r[u], items, penalties[u]) for u in range(len(c))]
    for fitted in fits_in_blocks(model, X, y, block_sizes=block_sizes, **fit_params):
        np.testing.assert_allclose(fitted.item_factors_, items, atol=1e-9)
        np.testing.assert_allclose(fitted.user_factors_, users, atol=1e-9)
        assert np.abs(items - start).max() > 1e-3


def parameters_of(Estimator):
    """Every aggregation, with its local epochs or, for GlobSGD, preconditioners."""
    for aggregation in ("full", "clients", "holders"):
        if Estimator is not GlobSGD:
            others = [{"local_epochs": 1}, {"local_epochs": 2}]
        elif aggregation == "full":
            others = [{"preconditioner": True}, {"preconditioner": False}]
        else:
            others = [{}]
        yield from ({"aggregation": aggregation} | other for other in others)


COMBINATIONS = [
    pytest.param(Estimator, parameters, id=f"{Estimator.__name__}-{parameters}")
    for Estimator in METHODS
    for parameters in parameters_of(Estimator)
]
every_combination = pytest.mark.parametrize(("Estimator", "parameters"), COMBINATIONS)


@every_combination
@pytest.mark.parametrize("holders", ["users", "groups", "both"])
def test_equals_the_naive_reference(Estimator, parameters, holders, toy):
    X, y = toy
    weight = np.random.default_rng(3).integers(1, 4, len(y)).astype(float)
    setting = {"block_sizes": BLOCK_SIZES, "clients": clients_of_kind(X, holders)}
    model = make(Estimator, **parameters)
    assert_equals_reference(model, X, **setting)
    assert_equals_reference(model, X, y - 2, sample_weight=weight, **setting)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@every_combination
def test_equals_the_naive_reference_in_any_setting(Estimator, parameters, setting, toy):
    X, _ = toy
    assert_equals_reference(make(Estimator, **parameters, **setting), X)
    assert_equals_reference(make(Estimator, **parameters, **setting), X, clients=X[:, 0] % 5)


@pytest.mark.parametrize("local_epochs", [1, 2])
@pytest.mark.parametrize("n_clients", [None, 4])
def test_conjugate_gradients_equal_the_naive_reference(n_clients, local_epochs, toy):
    """With more factors than steps, so that they are not exact."""
    X, _ = toy
    clients = None if n_clients is None else X[:, 0] % n_clients
    parameters = {"n_factors": 6, "EXACT_UP_TO": 5, "local_epochs": local_epochs}
    assert_equals_reference(make(LocALS, **parameters), X, clients=clients)
    assert_equals_reference(make(LocALS, client_fraction=0.5, **parameters), X, clients=clients)


@pytest.mark.parametrize("upload", ["local", "all"])
@pytest.mark.parametrize("parameters", list(parameters_of(LocALS)), ids=str)
def test_scaled_penalties_equal_the_naive_reference(parameters, upload, toy):
    X, y = toy
    model = make(LocALS, reg_exponent=0.7, upload=upload, **parameters)
    assert_equals_reference(model, X)
    assert_equals_reference(model, X, y - 2, clients=X[:, 0] % 5)
    assert_equals_reference(clone(model).set_params(client_fraction=0.5), X)


def test_scaled_penalties_need_prox(toy):
    with pytest.raises(ValueError, match="reg_exponent"):
        make(LocALS, reg_exponent=1.0, prox=0.0).fit(toy[0])


@pytest.mark.parametrize("parameters", list(parameters_of(GlobSGD)), ids=str)
def test_a_given_rate_is_used(parameters, toy):
    assert_equals_reference(make(GlobSGD, **parameters, learning_rate=0.4), toy[0])


@every_combination
def test_what_is_sent_does_not_change_the_model(Estimator, parameters, toy):
    own, whole = (make(Estimator, upload=d, **parameters).fit(toy[0]) for d in ("local", "all"))
    np.testing.assert_allclose(own.item_factors_, whole.item_factors_, atol=1e-12)


@pytest.mark.parametrize("local_epochs", [1, 3])
def test_one_client_without_a_tie_is_centralised_als(local_epochs, toy):
    X, _ = toy
    data = encode(X, clients=np.zeros(len(X)))
    c, r, _ = dense(data, 2.0)
    model = make(LocALS, prox=0.0, n_rounds=2, local_epochs=local_epochs)
    model.fit(X, clients=np.zeros(len(X)))
    items = first_items(model, data.n_items)
    for _ in range(2 * local_epochs):
        _, items = reference.centralised_sweep(c, r, items, model.reg_user, model.reg_item)
    np.testing.assert_allclose(model.item_factors_, items, atol=1e-9)


def test_the_full_gradient_is_the_centralised_one(toy):
    X, _ = toy
    data = encode(X)
    c, r, _ = dense(data, 2.0)
    model = make(GlobSGD, n_rounds=1, learning_rate=0.3).fit(X)
    items = first_items(model, data.n_items)
    users, _ = reference.centralised_sweep(c, r, items, model.reg_user, model.reg_item)
    gradient = (c * (users @ items.T - r)).T @ users + model.reg_item * items
    expected = items - model.learning_rate * gradient / data.n_clients
    np.testing.assert_allclose(model.item_factors_, expected, atol=1e-12)


def ledger_of(model, X, **fit_params):
    return model.fit(X, **fit_params).communication_


@every_method
@pytest.mark.parametrize("n_clients", [None, 4])
def test_the_ledger_counts_own_items_and_small_matrices(Estimator, n_clients, toy):
    X, _ = toy
    clients = X[:, 0] if n_clients is None else X[:, 0] % n_clients
    d, n_rounds, n = 3, 4, len(np.unique(clients))
    n_rows = len(np.unique(np.column_stack([clients, X[:, 1]]), axis=0))
    down, up = (
        n_rows * d + n * d * d,
        {
            "full": n_rows * d + n * d * d,
            "clients": n_rows * d,
            "holders": n_rows * d + n_rows / 4,
        },
    )
    for aggregation, values in up.items():
        model = make(Estimator, aggregation=aggregation)
        catalogue, setup, *rounds, final = ledger_of(model, X, clients=clients).entries
        assert catalogue["bytes_up"] == 0
        assert setup["bytes_up"] == 4 * n_rows
        assert setup["bytes_down"] == (0 if Estimator is GlobSGD else 4 * n)
        assert [e["bytes_down"] for e in rounds] == [4 * down] * n_rounds
        assert [e["bytes_up"] for e in rounds] == [4 * values] * n_rounds
        # To recommend, a client needs all items.
        assert final["bytes_down"] == 4 * n * 9 * d


@every_method
def test_the_ledger_counts_the_whole_matrix(Estimator, toy):
    X, _ = toy
    n, n_items, d = 12, 9, 3
    for aggregation, extra in {"full": 4 * d * d, "clients": 0, "holders": n_items}.items():
        model = make(Estimator, aggregation=aggregation, upload="all")
        _, setup, *rounds, final = ledger_of(model, X).entries
        assert setup["bytes_up"] == n * n_items
        assert {e["bytes_down"] for e in rounds} == {4 * n * n_items * d}
        assert {e["bytes_up"] for e in rounds} == {n * (4 * n_items * d + extra)}
        assert final["bytes_down"] == 4 * n * n_items * d


def first_update(model, block, items, *, gram=None, separate=False, broken=None):
    """State and updates of a block's clients in a first round in which all take part.

    A number of the client `broken` is NaN. `gram` is sent in place of the items' own.
    """
    everyone, keys = np.ones(block.n_clients, dtype=bool), Keys(Key(0), Key(0))
    server = {"item_factors": items, "reg_item": 0.1}
    message = model._decode_broadcast(model._model(server), Key(0))
    if gram is not None:
        message["gram"].values[:] = gram
    state = model._init_clients(block, Message(**model._initial_broadcast(server), **message), keys)
    if broken is not None:
        start = block.indptr[block.client_indptr[broken]]
        state["extra"][start] = np.nan
        if state.get("raters") is not None:
            state["raters"].extra[start] = np.nan
    turn = RoundMasks(everyone, everyone, separate)
    state, updates, _ = model._client_update(block, state, message, turn, keys)
    return state, updates


@every_method
@pytest.mark.parametrize("n_clients", [None, 4])
def test_nothing_depends_on_rows_that_a_client_does_not_hold(Estimator, n_clients, toy):
    """A block reads of the broadcast no more than the ledger says its clients got."""
    X, _ = toy
    clients = None if n_clients is None else X[:, 0] % n_clients
    data = encode(X, clients=clients)
    model = make(Estimator)
    items = first_items(model, data.n_items)
    gram = items.T @ items
    for block in blocks.cut(data, max_ratings=1):
        uploads = []
        for hidden in (0.0, np.nan):
            masked = np.full_like(items, hidden)
            masked[block.row_items] = items[block.row_items]
            uploads.append(first_update(model, block, masked, gram=gram)[1].fields)
        assert uploads[0]["rows"].any()
        for name in uploads[0]:
            np.testing.assert_array_equal(uploads[0][name], uploads[1][name])


@every_combination
@pytest.mark.parametrize("n_clients", [None, 4])
def test_broken_clients_are_told_apart(Estimator, parameters, n_clients, toy):
    """Sums leave them out; single uploads have them as they are."""
    X, _ = toy
    data = encode(X, clients=None if n_clients is None else X[:, 0] % n_clients)
    model, block = make(Estimator, **parameters), blocks.cut(data)[0]
    items, others = first_items(model, data.n_items), np.arange(block.n_clients) != 2
    whole = first_update(model, block, items, separate=True)[1]
    sums = first_update(model, block, items, broken=2)[1]
    apart = first_update(model, block, items, broken=2, separate=True)[1]
    np.testing.assert_array_equal(sums.is_finite, others)
    np.testing.assert_array_equal(apart.is_finite, others)
    for name, rows in whole.fields.items():
        expected = np.zeros(sums.fields[name].shape)
        for c in np.flatnonzero(others):
            own = slice(*rows.indptr[c : c + 2])
            np.testing.assert_array_equal(apart.fields[name].values[own], rows.values[own])
            np.add.at(expected, rows.rows[own], rows.values[own])
            expected += 0.0 if rows.center is None else rows.center
        np.testing.assert_allclose(sums.fields[name], expected, atol=1e-11)
    own = slice(*apart.fields["rows"].indptr[2:4])
    assert not np.isfinite(apart.fields["rows"].values[own]).all()


def test_rows_that_overflow_are_broken(toy):
    """Where the user's vector and the multiples are finite but their products are not."""
    model = make(LocALS, reg_user=1e-30, reg_item=0.0, prox=1e-300)
    block = blocks.cut(encode(toy[0], clients=np.zeros(len(toy[0]))))[0]
    tiny = np.full((9, 3), 1e-200)
    state, updates = first_update(model, block, tiny, gram=0, separate=True)
    assert np.isfinite(state["users"]).all()
    assert updates.is_finite[0] == np.isfinite(updates.fields["rows"].values).all()


def test_sums_are_float64_whatever_the_vectors_are(toy, monkeypatch):
    monkeypatch.setattr(FederatedWMF, "_dtype", np.float32)
    model, block = make(LocALS), blocks.cut(encode(toy[0], clients=toy[0][:, 0] % 5))[0]
    items = first_items(model, 9).astype(np.float32)
    sums = first_update(model, block, items)[1].fields
    single = first_update(model, block, items, separate=True)[1].fields["rows"]
    assert single.values.dtype == np.float32
    expected = np.zeros((9, 3))
    np.add.at(expected, single.rows, single.values.astype(np.float64))
    assert sums["rows"].dtype == sums["others"].dtype == np.float64
    np.testing.assert_allclose(sums["rows"], expected, rtol=1e-12, atol=1e-14)


def test_a_matrix_that_is_not_positive_gives_nan(toy):
    model, block = make(GlobSGD), blocks.cut(encode(toy[0]))[0]
    items = first_items(model, 9)
    assert np.isnan(first_update(model, block, items, gram=-1e3 * np.eye(3))[0]["users"]).all()


@every_method
def test_new_users_get_the_exact_vector(Estimator):
    X, _ = make_toy(40, 12, seed=3)
    mine = X[:, 0] == X[0, 0]
    model = make(Estimator).fit(X[~mine])
    weight = np.arange(1.0, mine.sum() + 1)
    model.fold_in(X[mine], sample_weight=weight)
    c, r = np.ones(model.n_items_), np.zeros(model.n_items_)
    items = np.searchsorted(model.item_ids_, X[mine, 1])
    c[items], r[items] = 1 + model.alpha * weight, 1
    expected = reference.user_solve(c, r, model.item_factors_, model.reg_user)
    np.testing.assert_allclose(model.user_factors_[-1], expected, atol=1e-12)


@every_method
def test_rows_that_are_no_positives_are_like_no_rows(Estimator, toy, monkeypatch):
    """In the full form, and with a step of a given size: the server's rule counts them as held."""
    X, y = toy
    monkeypatch.setattr(FederatedWMF, "_cautious", lambda *_: 0.3)
    rate = {"learning_rate": 0.3} if Estimator is GlobSGD else {}
    model = make(Estimator, aggregation="full", **rate)
    full, without = clone(model).fit(X, y - 2), clone(model).fit(X[y > 2])
    np.testing.assert_array_equal(full.user_ids_, without.user_ids_)
    np.testing.assert_array_equal(full.item_ids_, without.item_ids_)
    np.testing.assert_allclose(full.item_factors_, without.item_factors_, atol=1e-9)


@every_method
def test_the_validation_loss_is_the_objective_on_what_was_not_trained_on(Estimator, toy):
    X, _ = toy
    everything = encode(X)
    mask = np.zeros(len(everything.items), dtype=bool)
    mask[everything.indptr[:-1]] = True
    held_out = everything.take(mask)
    model = make(Estimator).fit(X)
    losses, weights = model._validation_losses(held_out)
    c, r, rated = dense(everything, 2.0)
    trained = rated.copy()
    trained[held_out.users, held_out.items] = False
    errors = c * (r - model.user_factors_ @ model.item_factors_.T) ** 2
    np.testing.assert_allclose(losses, np.where(trained, 0, errors).sum(axis=1))
    np.testing.assert_allclose(weights, 3.0)


def test_items_that_nobody_holds_in_a_round_stay_with_holders(toy):
    X, _ = toy
    model = make(LocALS, aggregation="holders", client_fraction=0.01, n_rounds=1).fit(X)
    start = first_items(model, model.n_items_)
    moved = np.abs(model.item_factors_ - start).max(axis=1) > 0
    key = key_of(model).at(0)
    active = draw_participation(12, 0.01, Federation(), key).active
    user = model.user_ids_[active][0]
    assert set(model.item_ids_[moved]) == set(X[X[:, 0] == user, 1])


def test_locsgd_does_not_diverge_whatever_its_rate(toy):
    model = make(LocSGD, learning_rate=1000, n_rounds=50, n_steps=5).fit(toy[0])
    assert np.abs(model.predict(toy[0])).max() < 10
    with pytest.raises(ValueError, match=r"'learning_rate' .* of LocSGD must be .* 1000.0\]"):
        make(LocSGD, learning_rate=1e9).fit(toy[0])


def test_a_preconditioner_without_its_matrices_is_refused(toy):
    with pytest.raises(ValueError, match='needs the matrices that aggregation="full" uploads'):
        make(GlobSGD, preconditioner=True, aggregation="clients").fit(toy[0])


def test_items_without_any_penalty_are_refused(toy):
    with pytest.raises(ValueError, match="prox=0 with reg_item=0"):
        make(LocALS, prox=0, reg_item=0).fit(toy[0])


@pytest.mark.parametrize("alpha", [0.0, 40.0])
@every_method
def test_users_without_positives_get_zero(Estimator, alpha, toy):
    X, y = toy
    y = np.where(X[:, 0] == X[0, 0], 0.0, y)
    model = make(Estimator, alpha=alpha, n_rounds=1).fit(X, y)
    mine = model.user_ids_ == X[0, 0]
    assert not model.user_factors_[mine].any()
    assert model.user_factors_[~mine].any()


def precision(model, train, test, k=10):
    """Mean precision@k of the users that have test rows, their training items left out."""
    users = np.intersect1d(train[:, 0], test[:, 0])
    items, _ = model.recommend(users, k)
    taken = set(map(tuple, test.tolist()))
    return np.mean([(u, i) in taken for u, row in zip(users, items, strict=True) for i in row])


class TestQuality:
    """Precision@10 on MovieLens-100k; the full tables are in benchmarks/fedals.py."""

    @pytest.fixture(autouse=True)
    def float32(self, monkeypatch):
        monkeypatch.setattr(FederatedWMF, "_dtype", np.float32)

    @pytest.fixture
    def parts(self, ml100k):
        X, y = ml100k
        train, _, test, _ = split(X[:, :2], y, seed=0)
        return train, test

    @pytest.mark.parametrize(
        ("model", "bound"),
        [
            (LocALS(), 0.36),
            (variant(LocALS, EXACT_UP_TO=0), 0.36),
            (LocALS(local_epochs=2), 0.36),
            (LocALS(client_fraction=0.1), 0.323),
            (GlobSGD(), 0.352),
            (GlobSGD(preconditioner=True, n_rounds=10), 0.36),
            (LocSGD(), 0.315),
        ],
        ids=str,
    )
    def test_reaches_its_number(self, model, bound, parts):
        model = clone(model).set_params(random_state=0).fit(parts[0])
        assert precision(model, *parts) > bound

    def test_the_mean_over_holders_is_no_better_than_popularity(self, parts):
        model = LocALS(aggregation="holders", random_state=0, n_rounds=30).fit(parts[0])
        assert precision(model, *parts) < precision(Popularity().fit(parts[0]), *parts)


@pytest.mark.parametrize("local_epochs", [1, 2])
def test_a_single_user_without_a_tie_still_fits(local_epochs, toy):
    X = toy[0][toy[0][:, 0] == toy[0][0, 0]]
    model = make(LocALS, prox=0.0, local_epochs=local_epochs).fit(X)
    assert np.isfinite(model.predict(X)).all()
