"""LocALS, LocSGD and GlobSGD, which share their users' step and their messages."""

import numpy as np
import pytest
from sklearn.base import clone

from benchmarks._variants import variant
from fedrecsk import GlobSGD, LocALS, LocSGD
from fedrecsk.data.interactions import encode
from fedrecsk.federated._wmf import WMFServer
from fedrecsk.protocol import blocks
from fedrecsk.protocol.keys import Key, Keys
from fedrecsk.protocol.messages import Message
from fedrecsk.protocol.participation import RoundMasks
from tests.conftest import BLOCK_SIZES, fits_in_blocks, make_toy
from tests.federated.turns import SETTINGS, crossed, first_items, spans_of, turns_of, two_fits
from tests.reference import wmf as reference

METHODS = [LocALS, LocSGD, GlobSGD]
every_method = pytest.mark.parametrize("Estimator", METHODS)


pytestmark = pytest.mark.usefixtures("float64")


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


def assert_equals_reference(model, X, y=None, block_sizes=BLOCK_SIZES[:1], **fit_params):
    data = encode(X, y, **fit_params)
    c, r, rated = dense(data, model.alpha)
    spans = spans_of(data)
    clients = [
        reference.Client(model, c[s], r[s], rated[s].any(axis=0), data.n_clients) for s in spans
    ]
    start, turns = first_items(model, data.n_items), turns_of(model, data.n_clients)
    items = reference.run(model, clients, [rated[s] for s in spans], start, turns)
    users = reference.final_users(model, data, c, r, items)
    for fitted in fits_in_blocks(model, X, y, block_sizes=block_sizes, **fit_params):
        np.testing.assert_allclose(fitted.item_factors_, items, atol=1e-9)
        np.testing.assert_allclose(fitted.user_factors_, users, atol=1e-9)
        assert np.abs(items - start).max() > 1e-3


def parameters_of(Estimator):
    """Every aggregation, with its local epochs or, for GlobSGD, preconditioners."""
    for aggregation in ("full", "clients", "holders"):
        if Estimator is not GlobSGD:
            others = [{"local_epochs": 1}, {"local_epochs": 2}]
            if Estimator is LocSGD:
                others.append({"learning_rate": "auto"})
        elif aggregation == "full":
            others = [
                {"preconditioner": True},
                {"preconditioner": False},
                {"preconditioner": True, "learning_rate": 0.4},
            ]
        else:
            others = [{}]
        yield from ({"aggregation": aggregation} | other for other in others)


COMBINATIONS = [(Estimator, own) for Estimator in METHODS for own in parameters_of(Estimator)]
every_combination = pytest.mark.parametrize(("Estimator", "parameters"), COMBINATIONS)


@every_combination
def test_equals_the_naive_reference(Estimator, parameters, toy):
    for arguments, options in two_fits(*toy, shift=2):
        assert_equals_reference(make(Estimator, **parameters), *arguments, **options)


@pytest.mark.parametrize(("combination", "setting"), crossed(COMBINATIONS, SETTINGS))
def test_equals_the_naive_reference_in_any_setting(combination, setting, toy):
    X, _ = toy
    Estimator, parameters = combination
    assert_equals_reference(make(Estimator, **parameters, **setting), X)
    assert_equals_reference(make(Estimator, **parameters, **setting), X, clients=X[:, 0] % 5)


@pytest.mark.parametrize("local_epochs", [1, 2])
def test_conjugate_gradients_equal_the_naive_reference(local_epochs, toy):
    """With more factors than steps, so that they are not exact."""
    X, _ = toy
    parameters = {"n_factors": 6, "EXACT_UP_TO": 5, "local_epochs": local_epochs}
    assert_equals_reference(make(LocALS, **parameters), X)
    model = make(LocALS, client_fraction=0.5, **parameters)
    assert_equals_reference(model, X, clients=X[:, 0] % 4)


@pytest.mark.parametrize("upload", ["local", "all"])
@pytest.mark.parametrize("aggregation", ["full", "clients", "holders"])
@pytest.mark.parametrize("pivot", [None, 3])
def test_scaled_penalties_equal_the_naive_reference(pivot, aggregation, upload, toy):
    X, y = toy
    ours = {"upload": upload, "aggregation": aggregation, "REG_PIVOT": pivot}
    model = make(LocALS, reg_exponent=0.7, **ours)
    assert_equals_reference(model, X, y - 2, clients=X[:, 0] % 5)
    for share in (0.5, 2.5 / len(np.unique(X[:, 0]))):
        assert_equals_reference(clone(model).set_params(client_fraction=share), X)


@every_combination
def test_what_is_sent_does_not_change_the_model(Estimator, parameters, toy):
    own, whole = (make(Estimator, upload=d, **parameters).fit(toy[0]) for d in ("local", "all"))
    np.testing.assert_allclose(own.item_factors_, whole.item_factors_, atol=1e-12)


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
        ledger = model.fit(X, clients=clients).communication_
        catalogue, setup, *rounds, final = ledger.entries
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
        _, setup, *rounds, final = model.fit(X).communication_.entries
        assert setup["bytes_up"] == n * n_items
        assert {e["bytes_down"] for e in rounds} == {4 * n * n_items * d}
        assert {e["bytes_up"] for e in rounds} == {n * (4 * n_items * d + extra)}
        assert final["bytes_down"] == 4 * n * n_items * d


def first_update(model, block, items, *, gram=None, separate=False, broken=None):
    """State and updates of a block's clients in a first round in which all take part.

    A number of the client `broken` is NaN. `gram` is sent in place of the items' own.
    """
    everyone, keys = np.ones(block.n_clients, dtype=bool), Keys(Key(0), Key(0))
    algorithm, n_clients = model._algorithm(), model.reg_item / 0.1 or 1
    server = WMFServer(items, n_clients, None, None)
    message = algorithm.decode(algorithm.broadcast(server, Key(0)), Key(0))
    if gram is not None:
        message["gram"].values[:] = gram
    first = Message(**algorithm.announce(server), **message)
    state = algorithm.enter(block, first, keys)
    if broken is not None:
        start = block.indptr[block.client_indptr[broken]]
        state.extra[start] = np.nan
        if state.raters is not None:
            state.raters.extra[start] = np.nan
    turn = RoundMasks(everyone, everyone, separate)
    state, updates, _ = algorithm.update(block, state, message, turn, keys)
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


@every_method
@pytest.mark.parametrize("aggregation", ["full", "holders"])
def test_broken_clients_are_told_apart(Estimator, aggregation, toy):
    """Sums leave them out; single uploads have them as they are."""
    X, _ = toy
    data = encode(X, clients=X[:, 0] % 4)
    model, block = make(Estimator, aggregation=aggregation), blocks.cut(data)[0]
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
    assert np.isfinite(state.users).all()
    assert updates.is_finite[0] == np.isfinite(updates.fields["rows"].values).all()


def test_sums_are_float64_whatever_the_vectors_are(toy, monkeypatch):
    monkeypatch.setattr(LocALS, "_dtype", np.float32)
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
    assert np.isnan(first_update(model, block, items, gram=-1e3 * np.eye(3))[0].users).all()


def test_new_users_get_the_exact_vector():
    X, _ = make_toy(40, 12, seed=3)
    mine = X[:, 0] == X[0, 0]
    model = make(LocALS).fit(X[~mine])
    weight = np.arange(1.0, mine.sum() + 1)
    model.fold_in(X[mine], sample_weight=weight)
    c, r = np.ones(model.n_items_), np.zeros(model.n_items_)
    items = np.searchsorted(model.item_ids_, X[mine, 1])
    c[items], r[items] = 1 + model.alpha * weight, 1
    expected = reference.final_user(c, r, model.reg_user, weight.sum(), model.item_factors_)
    np.testing.assert_allclose(model.user_factors_[-1], expected, atol=1e-12)


def test_the_validation_loss_is_the_objective_on_what_was_not_trained_on(toy):
    X, _ = toy
    everything = encode(X)
    mask = np.zeros(len(everything.items), dtype=bool)
    mask[everything.indptr[:-1]] = True
    held_out = everything.take(mask)
    model = make(LocALS).fit(X)
    seen = everything.indptr, everything.items
    losses, weights = model._algorithm().losses(model._model(), held_out, seen)
    c, r, rated = dense(everything, 2.0)
    trained = rated.copy()
    trained[held_out.users, held_out.items] = False
    errors = c * (r - model.user_factors_ @ model.item_factors_.T) ** 2
    np.testing.assert_allclose(losses, np.where(trained, 0, errors).sum(axis=1))
    np.testing.assert_allclose(weights, 3.0)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (make(LocALS, reg_exponent=1.0, prox=0.0), "reg_exponent"),
        (make(LocALS, prox=0, reg_item=0), "prox=0 with reg_item=0"),
        (
            make(GlobSGD, preconditioner=True, aggregation="clients"),
            'needs the matrices that aggregation="full" uploads',
        ),
    ],
)
def test_settings_that_have_no_solution_are_refused(model, message, toy):
    with pytest.raises(ValueError, match=message):
        model.fit(toy[0])


@pytest.mark.parametrize("alpha", [0.0, 40.0])
def test_users_without_positives_get_zero(alpha, toy):
    X, y = toy
    y = np.where(X[:, 0] == X[0, 0], 0.0, y)
    model = make(LocALS, alpha=alpha, n_rounds=1).fit(X, y)
    mine = model.user_ids_ == X[0, 0]
    assert not model.user_factors_[mine].any()
    assert model.user_factors_[~mine].any()


def test_a_single_user_without_a_tie_still_fits(toy):
    X = toy[0][toy[0][:, 0] == toy[0][0, 0]]
    assert np.isfinite(make(LocALS, prox=0.0).fit(X).predict(X)).all()
