"""FCF: gradients of all items by a collapsed sum."""

import numpy as np
import pytest
from sklearn.base import clone

from benchmarks._variants import variant
from fedrecsk import FCF, Federation, GlobSGD
from fedrecsk.data.interactions import encode
from tests.conftest import BLOCK_SIZES, fits_in_blocks
from tests.federated.test_wmf import dense
from tests.federated.turns import (
    IDLE,
    SETTINGS,
    crossed,
    first_items,
    spans_of,
    turns_of,
    two_fits,
)
from tests.reference import fcf as reference
from tests.reference.wmf import final_users, item_penalties

pytestmark = pytest.mark.usefixtures("float64")


def make(**parameters):
    defaults = {
        "n_factors": 3,
        "n_rounds": 5,
        "alpha": 2.0,
        "reg_user": 0.5,
        "reg_item": 0.7,
        "INIT_STD": 0.5,
        "random_state": 0,
    }
    return variant(FCF, **defaults | parameters)


def assert_equals_reference(model, X, y=None, block_sizes=BLOCK_SIZES[:1], **fit_params):
    data = encode(X, y, **fit_params)
    c, r, rated = dense(data, model.alpha)
    spans = spans_of(data)
    clients = [reference.ImplicitClient(model, c[s], r[s]) for s in spans]
    start = first_items(model, data.n_items)
    turns = turns_of(model, data.n_clients)
    holds = [rated[s].any(axis=0) for s in spans]
    penalties = item_penalties(model, holds)[:, None]
    items = reference.run(model, clients, start, penalties, turns)
    users = final_users(model, data, c, r, items)
    for fitted in fits_in_blocks(model, X, y, block_sizes=block_sizes, **fit_params):
        np.testing.assert_allclose(fitted.item_factors_, items, atol=1e-9)
        np.testing.assert_allclose(fitted.user_factors_, users, atol=1e-9)
        assert np.abs(items - start).max() > 1e-3


PARAMETERS = [
    {},
    {"optimizer": "gd", "learning_rate": 0.2},
    {"learning_rate": 0.03, "BETA_1": 0.9, "BETA_2": 0.999, "reg_item": 0.0},
    {"alpha": 0.5, "reg_user": 2.0, "EPSILON": 1e-3},
    {"reg_exponent": 0.7},
]


@pytest.mark.parametrize("upload", ["all", "local"])
@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_equals_the_naive_reference(upload, parameters, toy):
    for arguments, options in two_fits(*toy, shift=2):
        assert_equals_reference(make(upload=upload, **parameters), *arguments, **options)


@pytest.mark.parametrize(("parameters", "setting"), crossed(PARAMETERS[:2], SETTINGS, 4))
def test_equals_the_naive_reference_in_any_setting(parameters, setting, toy):
    X, _ = toy
    assert_equals_reference(make(**parameters, **setting), X)
    assert_equals_reference(make(**parameters, **setting), X, clients=X[:, 0] % 5)


STALE = {"dropout": 0.4, "dropout_mode": "stale"}


@pytest.mark.parametrize("extra", [{}, {"aggregator": IDLE}], ids=str)
def test_stale_gradients_in_few_bytes_are_taken_at_the_servers_items(extra, toy):
    """As GlobSGD's are, of which FCF with plain gradient descent is a form."""
    X, _ = toy
    common = {"n_rounds": 5, "random_state": 0, "federation": Federation(**STALE, **extra)}
    one = make(upload="local", optimizer="gd", learning_rate=0.1, **common).fit(X)
    parameters = {name: getattr(one, name) for name in ("alpha", "reg_user", "reg_item")}
    other = variant(GlobSGD, 3, learning_rate=0.2, INIT_STD=0.5, **parameters, **common).fit(X)
    np.testing.assert_allclose(one.item_factors_, other.item_factors_, atol=1e-12)


def test_the_ledger_counts_whole_matrices(toy):
    X, _ = toy
    n, n_items, d = 12, 9, 3
    catalogue, *rounds, final = make().fit(X).communication_.entries
    assert catalogue["bytes_up"] == 0
    assert [e["bytes_up"] for e in rounds] == [4 * n * n_items * d] * 5
    assert [e["bytes_down"] for e in rounds] == [4 * n * n_items * d] * 5
    assert final["bytes_down"] == 4 * n * n_items * d


@pytest.mark.parametrize("n_clients", [None, 4])
def test_the_ledger_counts_own_rows_and_small_matrices(n_clients, toy):
    X, _ = toy
    clients = X[:, 0] if n_clients is None else X[:, 0] % n_clients
    n, d = len(np.unique(clients)), 3
    n_rows = len(np.unique(np.column_stack([clients, X[:, 1]]), axis=0))
    model = make(upload="local").fit(X, clients=clients)
    _, setup, *rounds, _ = model.communication_.entries
    assert setup["bytes_up"] == 4 * n_rows
    assert {e["bytes_up"] for e in rounds} == {4 * (n_rows * d + n * d * d)}
    assert {e["bytes_down"] for e in rounds} == {4 * (n_rows * d + n * d * d)}


def test_dense_uploads_that_do_not_fit_are_refused(toy, monkeypatch):
    X, _ = toy
    # 12 clients, 9 items, 3 factors, 8 bytes each.
    monkeypatch.setattr("fedrecsk.federated.fcf.DENSE_LIMIT", 12 * 9 * 3 * 8 - 1)
    model = make(federation=Federation(aggregator=IDLE))
    with pytest.raises(ValueError, match=r'those of 12 clients, each with 9 x 3 .* upload="local"'):
        model.fit(X)
    for fits in (
        make(),
        clone(model).set_params(upload="local"),
        clone(model).set_params(client_fraction=0.5),
    ):
        assert np.isfinite(fits.fit(X).item_factors_).all()
