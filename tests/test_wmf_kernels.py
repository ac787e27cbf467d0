"""The kernels of LocALS, LocSGD and GlobSGD, array by array against the naive reference."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedrecsk._utils.kernels import LazyModule
from tests.reference import wmf as reference

shared_kernels = LazyModule("fedrecsk._utils.shared_kernels")
wmf_kernels = LazyModule("fedrecsk.federated._wmf_kernels")

N_ITEMS, D = 9, 3
USERS_OF_CLIENTS = [1, 3, 1, 2, 1]
BROKEN = 3


def parameters(method, full, n_epochs=1, solver="exact"):
    """What the reference reads of a model; an attribute that is missing tells it the method."""
    model = {"n_factors": D, "alpha": 2.0, "reg_user": 0.5, "reg_item": 0.7, "solver": solver}
    model["aggregation"] = "full" if full else "clients"
    if method != "GlobSGD":
        model |= {"prox": 0.3, "local_epochs": n_epochs}
    if method == "LocSGD":
        model |= {"n_steps": 2, "learning_rate": 0.05}
    return SimpleNamespace(**model)


CASES = [
    pytest.param(parameters(method, full, n_epochs), id=f"{method}-{full}-{n_epochs}")
    for method, most in (("LocALS", 2), ("LocSGD", 2), ("GlobSGD", 1))
    for full in (True, False)
    for n_epochs in range(1, most + 1)
] + [pytest.param(parameters("LocALS", True, 2, "cg"), id="LocALS-cg")]
every_case = pytest.mark.parametrize("model", CASES)


class Block:
    """Five clients, some with several users, on random data."""

    def __init__(self, dtype=np.float64, users_of_clients=USERS_OF_CLIENTS):
        rng = np.random.default_rng(0)
        n_users = sum(users_of_clients)
        self.items = rng.normal(0, 0.5, (N_ITEMS, D)).astype(dtype)
        self.rated = rng.random((n_users, N_ITEMS)) < 0.5
        self.rated[:, 0] = True
        self.r = np.where(self.rated, rng.random(self.rated.shape) < 0.8, 0.0)
        self.c = 1 + self.r * rng.integers(1, 4, self.rated.shape)
        client_indptr = np.concatenate([[0], np.cumsum(users_of_clients)])
        self.spans = [slice(*client_indptr[c : c + 2]) for c in range(len(users_of_clients))]
        held = [np.flatnonzero(self.rated[span].any(axis=0)) for span in self.spans]
        row_indptr = np.concatenate([[0], np.cumsum([len(h) for h in held])])
        users, items = np.nonzero(self.rated)
        client = np.repeat(np.arange(len(held)), users_of_clients)[users]
        rows = [
            row_indptr[k] + np.searchsorted(held[k], i) for k, i in zip(client, items, strict=True)
        ]
        self.layout = shared_kernels.Layout(
            client_indptr,
            np.concatenate([[0], np.cumsum(self.rated.sum(axis=1))]),
            row_indptr,
            np.array(rows, dtype=np.int32),
            np.concatenate(held).astype(np.int32),
        )
        c, r = self.c[self.rated].astype(dtype), self.r[self.rated].astype(dtype)
        self.feedback = wmf_kernels.Feedback(c - 1, c * r)
        order = np.argsort(rows, kind="stable")
        self.by_row = wmf_kernels.ByRow(
            np.bincount(rows), users[order].astype(np.int32), c[order] - 1, (c * r)[order]
        )
        self.broadcast = wmf_kernels.Broadcast(self.items, self.items.T @ self.items)
        self.users = np.zeros((n_users, D), dtype=dtype)

    @property
    def n_clients(self):
        return len(self.spans)

    def sums(self, senders):
        """Where uploads are added up."""
        squares, zeros = np.zeros((1, D, D)), np.zeros(self.n_clients, dtype=np.int32)
        return wmf_kernels.Uploads(
            senders,
            np.zeros((N_ITEMS, D)),
            self.layout.row_items,
            squares,
            zeros,
            np.ones(self.n_clients, dtype=bool),
            False,
        )

    def singles(self, senders):
        """Where they are kept apart."""
        n_rows, dtype = len(self.layout.row_items), self.users.dtype
        return wmf_kernels.Uploads(
            senders,
            np.zeros((n_rows, D), dtype=dtype),
            np.arange(n_rows, dtype=np.int32),
            np.zeros((self.n_clients, D, D), dtype=dtype),
            np.arange(self.n_clients, dtype=np.int32),
            np.ones(self.n_clients, dtype=bool),
            True,
        )

    def run(self, model, active, out, *, of_one=False):
        """One round of the method; returns loss and mass."""
        full = model.aggregation == "full"
        problem = wmf_kernels.Problem(
            model.reg_user, model.reg_item / self.n_clients, getattr(model, "prox", 0.0), full
        )
        work = wmf_kernels.workspace(self.layout, self.users, self.by_row.sizes)
        n_steps = None if model.solver == "exact" else 3
        given = self.layout, self.feedback
        rest = work, self.users, out
        if of_one:
            return wmf_kernels.local_als_of_one(
                *given, active, self.broadcast, problem, n_steps, *rest
            )
        if reference.is_global(model):
            return wmf_kernels.item_gradients(*given, active, self.broadcast, problem, *rest)
        if hasattr(model, "n_steps"):
            steps = model.local_epochs, model.n_steps, model.learning_rate
            return wmf_kernels.local_sgd(*given, active, self.broadcast, problem, *steps, *rest)
        steps = model.local_epochs, n_steps
        return wmf_kernels.local_als(
            *given, self.by_row, active, self.broadcast, problem, *steps, *rest
        )

    def expected(self, model):
        """Rows (n_rows, d) and matrices (n_clients, d, d) of all clients, and their users."""
        rows, squares, users = [], [], []
        for k, span in enumerate(self.spans):
            rated = self.rated[span]
            holds = rated.any(axis=0)
            client = reference.Client(model, self.c[span], self.r[span], holds, self.n_clients)
            client.receive(self.items)
            if reference.is_global(model):
                version = client.gradient(rated)
                square = client.users.T @ client.users
                idle = self.items @ square.T * (model.aggregation == "full")
            else:
                version = client.local_items(rated)
                square = client.background()
                idle = self.items @ square.T if model.aggregation == "full" else self.items
            rows.append((version - idle)[self.held(k)])
            squares.append(square * (model.aggregation == "full"))
            users.append(client.users)
        return np.concatenate(rows), np.array(squares), np.concatenate(users)

    def held(self, client):
        return self.layout.row_items[slice(*self.layout.row_indptr[client : client + 2])]

    def summed(self, rows, squares, whom):
        """The same added up by item over the clients in `whom`."""
        sums = np.zeros((N_ITEMS, D))
        of_whom = np.repeat(whom, np.diff(self.layout.row_indptr))
        np.add.at(sums, self.layout.row_items[of_whom], rows[of_whom])
        return sums, squares[whom].sum(axis=0)


EVERYBODY = np.ones(5, dtype=bool)
SOME = np.array([True, True, False, True, False])


@every_case
def test_single_uploads_equal_the_naive_reference(model):
    block = Block()
    rows, squares, users = block.expected(model)
    out = block.singles(EVERYBODY)
    block.run(model, EVERYBODY, out)
    np.testing.assert_allclose(out.rows, rows, atol=1e-11)
    np.testing.assert_allclose(out.squares, squares, atol=1e-11)
    np.testing.assert_allclose(block.users, users, atol=1e-11)
    assert out.is_finite.all()


@every_case
def test_sums_are_those_of_single_uploads(model):
    block = Block()
    rows, squares, users = block.expected(model)
    out = block.sums(SOME & [False, True, True, True, True])
    block.run(model, SOME, out)
    sums, square = block.summed(rows, squares, out.senders)
    np.testing.assert_allclose(out.rows, sums, atol=1e-11)
    np.testing.assert_allclose(out.squares[0], square, atol=1e-11)
    updates = np.repeat(SOME, USERS_OF_CLIENTS)
    np.testing.assert_allclose(block.users[updates], users[updates], atol=1e-11)
    assert not block.users[~updates].any()


@pytest.mark.parametrize("solver", ["exact", "cg"])
def test_the_kernel_for_one_user_equals_the_general_one(solver):
    model = parameters("LocALS", True, solver=solver)
    alone = np.array(USERS_OF_CLIENTS) == 1
    for spec in ("singles", "sums"):
        general, special = Block(), Block()
        one, other = getattr(general, spec)(alone), getattr(special, spec)(alone)
        losses = general.run(model, alone, one), special.run(model, alone, other, of_one=True)
        np.testing.assert_allclose(other.rows, one.rows, atol=1e-12)
        np.testing.assert_allclose(other.squares, one.squares, atol=1e-12)
        np.testing.assert_allclose(special.users, general.users, atol=1e-12)
        np.testing.assert_allclose(losses[1], losses[0])


@every_case
def test_the_loss_is_that_of_the_first_fit(model):
    block = Block()
    loss, mass = block.run(model, SOME, block.sums(SOME))
    whom = np.repeat(SOME, USERS_OF_CLIENTS)
    if model.solver == "exact":
        solved = [
            reference.user_solve(c, r, block.items, model.reg_user)
            for c, r in zip(block.c[whom], block.r[whom], strict=True)
        ]
        errors = block.c[whom] * (block.r[whom] - np.array(solved) @ block.items.T) ** 2
        assert loss == pytest.approx(errors.sum())
    assert mass == pytest.approx((block.c[whom] - 1).sum())


@pytest.mark.parametrize(
    ("model", "of_one"),
    [pytest.param(*case.values, False, id=case.id) for case in CASES]
    + [pytest.param(parameters("LocALS", True), True, id="LocALS-of-one")],
)
def test_broken_clients_are_told_apart(model, of_one):
    """Sums leave them out; single uploads have them as they are."""
    users_of_clients = [1] * 5 if of_one else USERS_OF_CLIENTS

    def run(spec):
        block = Block(users_of_clients=users_of_clients)
        rows, squares, _ = block.expected(model)
        first = block.layout.indptr[block.layout.client_indptr[BROKEN]]
        block.feedback.extra[first] = np.nan
        block.by_row.extra[first] = np.nan
        out = getattr(block, spec)(EVERYBODY)
        block.run(model, EVERYBODY, out, of_one=of_one)
        return block, rows, squares, out

    others = np.arange(5) != BROKEN
    block, rows, squares, out = run("sums")
    np.testing.assert_array_equal(out.is_finite, others)
    sums, square = block.summed(rows, squares, others)
    np.testing.assert_allclose(out.rows, sums, atol=1e-11)
    np.testing.assert_allclose(out.squares[0], square, atol=1e-11)
    block, rows, squares, out = run("singles")
    np.testing.assert_array_equal(out.is_finite, others)
    healthy = np.repeat(others, np.diff(block.layout.row_indptr))
    np.testing.assert_allclose(out.rows[healthy], rows[healthy], atol=1e-11)
    assert not np.isfinite(out.rows[~healthy]).all()


def test_rows_that_overflow_are_broken():
    """Where the user's vector and the multiples are finite but their products are not."""
    block = Block(users_of_clients=[1])
    block.items[:], block.broadcast.gram[:] = 1e-200, 0
    model = parameters("LocALS", True)
    model.reg_user = 1e-30
    model.reg_item, model.prox = 0.0, 1e-300
    out = block.singles(np.ones(1, dtype=bool))
    block.run(model, np.ones(1, dtype=bool), out, of_one=True)
    assert np.isfinite(block.users).all()
    assert out.is_finite[0] == np.isfinite(out.rows).all()


def test_sums_are_float64_whatever_the_vectors_are():
    model = parameters("LocALS", True)
    double, single = Block(), Block(np.float32)
    one, other = double.sums(EVERYBODY), single.sums(EVERYBODY)
    double.run(model, EVERYBODY, one)
    single.run(model, EVERYBODY, other)
    np.testing.assert_allclose(other.rows, one.rows, atol=1e-5)
    kept = Block(np.float32)
    rows = kept.singles(EVERYBODY)
    kept.run(model, EVERYBODY, rows)
    sums, square = kept.summed(
        rows.rows.astype(np.float64), rows.squares.astype(np.float64), EVERYBODY
    )
    np.testing.assert_allclose(other.rows, sums, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(other.squares[0], square, rtol=1e-12)


def test_users_are_fitted_exactly():
    block = Block()
    work = wmf_kernels.workspace(block.layout, block.users)
    items = np.nonzero(block.rated)[1].astype(np.int32)
    wmf_kernels.fit_users(
        block.layout.indptr, items, block.feedback, block.broadcast, 0.5, work, block.users
    )
    expected = [
        reference.user_solve(c, r, block.items, 0.5) for c, r in zip(block.c, block.r, strict=True)
    ]
    np.testing.assert_allclose(block.users, expected, atol=1e-12)


def test_a_matrix_that_is_not_positive_gives_nan():
    block = Block()
    block.broadcast.gram[:] = -1e3 * np.eye(D)
    work = wmf_kernels.workspace(block.layout, block.users)
    items = np.nonzero(block.rated)[1].astype(np.int32)
    wmf_kernels.fit_users(
        block.layout.indptr, items, block.feedback, block.broadcast, 0.5, work, block.users
    )
    assert np.isnan(block.users).all()
