"""What clients of LocALS, LocSGD and GlobSGD send, row by row, against the naive reference."""

import numpy as np
import pytest

from fedrecsk import GlobSGD, LocALS, LocSGD
from fedrecsk.federated._wmf import FederatedWMF
from fedrecsk.protocol import blocks
from fedrecsk.protocol.keys import Key, Keys
from fedrecsk.protocol.messages import Message
from fedrecsk.protocol.participation import RoundMasks
from tests.reference import wmf as reference

N_ITEMS, D = 9, 3
USERS_OF_CLIENTS = [1, 3, 1, 2, 1]
EVERYBODY = np.ones(5, dtype=bool)
SOME = np.array([True, True, False, True, False])
BROKEN = 3


def make(Estimator, full=True, n_epochs=1, **parameters):
    """Small penalties, which leave something of a few ratings."""
    parameters |= {"alpha": 2.0, "reg_user": 0.5, "reg_item": 0.7}
    parameters["aggregation"] = "full" if full else "clients"
    if Estimator is not GlobSGD:
        parameters |= {"prox": 0.3, "local_epochs": n_epochs}
    if Estimator is LocSGD:
        parameters |= {"n_steps": 2, "learning_rate": 0.05}
    return Estimator(D, **parameters)


CASES = [
    pytest.param(make(Estimator, full, n_epochs), id=f"{Estimator.__name__}-{full}-{n_epochs}")
    for Estimator, most in ((LocALS, 2), (LocSGD, 2), (GlobSGD, 1))
    for full in (True, False)
    for n_epochs in range(1, most + 1)
] + [pytest.param(make(LocALS, True, 2, solver="cg"), id="LocALS-cg")]
every_case = pytest.mark.parametrize("model", CASES)


@pytest.fixture(autouse=True)
def float64(monkeypatch):
    monkeypatch.setattr(FederatedWMF, "_dtype", np.float64)


class Round:
    """A first round of five clients, some with several users, on random data."""

    def __init__(self, model, users_of_clients=USERS_OF_CLIENTS):
        rng, self.model = np.random.default_rng(0), model
        n_users, n_clients = sum(users_of_clients), len(users_of_clients)
        self.items = rng.normal(0, 0.5, (N_ITEMS, D))
        self.rated = rng.random((n_users, N_ITEMS)) < 0.5
        self.rated[:, 0] = True
        self.r = np.where(self.rated, rng.random(self.rated.shape) < 0.8, 0.0)
        weights = rng.integers(1, 4, self.rated.shape) / model.alpha
        self.c = 1 + model.alpha * self.r * weights
        client_indptr = np.concatenate([[0], np.cumsum(users_of_clients)])
        self.spans = [slice(*client_indptr[c : c + 2]) for c in range(n_clients)]
        self.block = blocks.Block(
            np.arange(n_clients),
            np.arange(n_users),
            client_indptr,
            np.concatenate([[0], np.cumsum(self.rated.sum(axis=1))]),
            np.nonzero(self.rated)[1].astype(np.int32),
            self.r[self.rated],
            weights[self.rated],
            N_ITEMS,
        )
        server = {"item_factors": self.items, "reg_item": model.reg_item / n_clients}
        self.keys = Keys(Key(0), Key(0))
        message = model._decode_broadcast(model._model(server), Key(0))
        self.message = Message(**model._initial_broadcast(server), **message)
        self.state = model._init_clients(self.block, self.message, self.keys)

    def run(self, active, delivers=None, *, separate=False):
        """Run the clients' update; return it with its loss."""
        turn = RoundMasks(active, active if delivers is None else delivers, separate)
        _, updates, loss = self.model._client_update(
            self.block, self.state, self.message, turn, self.keys
        )
        return updates, loss

    def break_client(self, client):
        """Make a number of its first rating NaN."""
        start = self.block.indptr[self.block.client_indptr[client]]
        self.state["extra"][start] = np.nan
        if self.state.get("raters") is not None:
            self.state["raters"].extra[start] = np.nan

    def expected(self):
        """Rows (n_rows, d) and matrices (n_clients, d, d) of all clients, and their users."""
        model, rows, squares, users = self.model, [], [], []
        for k, span in enumerate(self.spans):
            rated = self.rated[span]
            client = reference.Client(
                model, self.c[span], self.r[span], rated.any(axis=0), len(self.spans)
            )
            client.receive(self.items)
            if reference.is_global(model):
                version = client.gradient(rated)
                square = client.users.T @ client.users
                idle = self.items @ square.T * (model.aggregation == "full")
            else:
                version = client.local_items(rated)
                square = client.background()
                idle = self.items @ square.T if model.aggregation == "full" else self.items
            held = self.block.row_items[slice(*self.block.row_indptr[k : k + 2])]
            rows.append((version - idle)[held])
            squares.append(square)
            users.append(client.users)
        return np.concatenate(rows), np.array(squares), np.concatenate(users)

    def assert_sums(self, updates, whom):
        """Updates are the expected rows and matrices of these clients, added up."""
        rows, squares, _ = self.expected()
        sums, of_whom = np.zeros((N_ITEMS, D)), np.repeat(whom, self.block.row_counts)
        np.add.at(sums, self.block.row_items[of_whom], rows[of_whom])
        np.testing.assert_allclose(updates.fields["rows"], sums, atol=1e-11)
        if self.model.aggregation == "full":
            total = squares[whom].sum(axis=0)
            np.testing.assert_allclose(updates.fields["others"], total, atol=1e-11)

    def assert_single(self, updates, whom):
        """The clients of the mask have sent the expected rows and matrices."""
        rows, squares, _ = self.expected()
        of_whom = np.repeat(whom, self.block.row_counts)
        np.testing.assert_allclose(
            updates.fields["rows"].values[of_whom], rows[of_whom], atol=1e-11
        )
        if self.model.aggregation == "full":
            sent = updates.fields["others"].values.reshape(squares.shape)
            if (center := updates.fields["others"].center) is not None:
                sent = sent + center
            np.testing.assert_allclose(sent[whom], squares[whom], atol=1e-11)


@every_case
def test_single_uploads_equal_the_naive_reference(model):
    clients = Round(model)
    updates, _ = clients.run(EVERYBODY, separate=True)
    clients.assert_single(updates, EVERYBODY)
    np.testing.assert_allclose(clients.state["users"], clients.expected()[2], atol=1e-11)
    assert updates.is_finite.all()


@every_case
def test_sums_are_those_of_single_uploads(model):
    clients = Round(model)
    delivers = np.array([False, True, True, True, True])
    updates, _ = clients.run(SOME, delivers)
    clients.assert_sums(updates, SOME & delivers)
    moved, users = np.repeat(SOME, USERS_OF_CLIENTS), clients.state["users"]
    np.testing.assert_allclose(users[moved], clients.expected()[2][moved], atol=1e-11)
    assert not users[~moved].any()


@every_case
def test_the_loss_is_that_of_the_first_fit(model):
    clients = Round(model)
    _, (loss, weight) = clients.run(SOME)
    whom = np.repeat(SOME, USERS_OF_CLIENTS)
    confidences = clients.c[whom]
    if getattr(model, "solver", "exact") == "exact":
        solved = [
            reference.user_solve(c, r, clients.items, model.reg_user)
            for c, r in zip(confidences, clients.r[whom], strict=True)
        ]
        errors = confidences * (clients.r[whom] - np.array(solved) @ clients.items.T) ** 2
        assert loss == pytest.approx(errors.sum())
    assert weight == pytest.approx(confidences.sum())


@every_case
@pytest.mark.parametrize("users_of_clients", [USERS_OF_CLIENTS, [1] * 5], ids=["mixed", "alone"])
def test_broken_clients_are_told_apart(model, users_of_clients):
    """Sums leave them out; single uploads have them as they are."""
    others = np.arange(5) != BROKEN
    clients = Round(model, users_of_clients)
    clients.break_client(BROKEN)
    updates, _ = clients.run(EVERYBODY)
    np.testing.assert_array_equal(updates.is_finite, others)
    clients.assert_sums(updates, others)
    clients = Round(model, users_of_clients)
    clients.break_client(BROKEN)
    updates, _ = clients.run(EVERYBODY, separate=True)
    np.testing.assert_array_equal(updates.is_finite, others)
    clients.assert_single(updates, others)
    of_broken = np.repeat(~others, clients.block.row_counts)
    assert not np.isfinite(updates.fields["rows"].values[of_broken]).all()


def test_rows_that_overflow_are_broken():
    """Where the user's vector and the multiples are finite but their products are not."""
    model = make(LocALS).set_params(reg_user=1e-30, reg_item=0.0, prox=1e-300)
    clients = Round(model, [1])
    clients.items[:] = 1e-200
    clients.message["gram"].values[:] = 0
    updates, _ = clients.run(np.ones(1, dtype=bool), separate=True)
    assert np.isfinite(clients.state["users"]).all()
    assert updates.is_finite[0] == np.isfinite(updates.fields["rows"].values).all()


def test_sums_are_float64_whatever_the_vectors_are(monkeypatch):
    monkeypatch.setattr(FederatedWMF, "_dtype", np.float32)
    together, apart = Round(make(LocALS)), Round(make(LocALS))
    sums = together.run(EVERYBODY)[0].fields
    single = apart.run(EVERYBODY, separate=True)[0].fields
    assert single["rows"].values.dtype == np.float32
    expected = np.zeros((N_ITEMS, D))
    np.add.at(expected, single["rows"].rows, single["rows"].values.astype(np.float64))
    assert sums["rows"].dtype == sums["others"].dtype == np.float64
    np.testing.assert_allclose(sums["rows"], expected, rtol=1e-12, atol=1e-14)


def test_a_matrix_that_is_not_positive_gives_nan():
    clients = Round(make(GlobSGD))
    clients.message["gram"].values[:] = -1e3 * np.eye(D)
    clients.run(EVERYBODY)
    assert np.isnan(clients.state["users"]).all()
