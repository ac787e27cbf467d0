"""The training loss of a round, against loops over all examples of the clients that take part."""

import numpy as np
import pytest
from scipy.special import expit
from sklearn.base import clone

from benchmarks._variants import variant, with_constants
from fedrecsk import FCF, CoLR, FedEB, FedFast, FedMF, LocALS, RFRec, SCoLR
from fedrecsk.data.interactions import encode
from tests.conftest import make_toy
from tests.federated import (
    test_colr,
    test_fedeb,
    test_fedfast,
    test_fedrec,
    test_lightfr,
    test_rfrec,
    test_wmf,
)
from tests.federated.turns import first_items, key_of
from tests.reference import colr, fedeb, lightfr
from tests.reference.wmf import user_solve

pytestmark = pytest.mark.usefixtures("float64")


def active_in(model, data):
    """Codes of the clients of the first round."""
    turn = model._plan().sampling.draw(data.n_clients, key_of(model).at(0))
    return np.flatnonzero(turn.active)


def users_of(data, clients):
    return [u for c in clients for u in range(*data.client_indptr[c : c + 2])]


def all_pairs(model, data, whom, **_):
    """Weighted by confidence: all pairs of a user, just solved for, and an item, just received."""
    c, r, _ = test_wmf.dense(data, model.alpha)
    items = first_items(model, data.n_items)
    for u in users_of(data, whom):
        p = user_solve(c[u], r[u], items, model.reg_user)
        for i, q in enumerate(items):
            yield c[u, i], (r[u, i] - p @ q) ** 2


def scaled_ratings(model, data, whom, X, y, **fit):
    """RFRec's, before the step; ratings are scaled to [0, 1] for training only."""
    _, items, everyone = test_rfrec.reference_fit(clone(model).set_params(n_rounds=0), X, y, **fit)
    low, high = y.min(), y.max()
    for c in whom:
        one = everyone[c]
        for u, i in np.argwhere(~np.isnan(one.ratings)):
            p, q = one.users[u], items[i]
            score = one.level + p[0] + q[0] + p[1:] @ q[1:]
            error = (high - low) * (one.ratings[u, i] - expit(score))
            yield one.weights[u, i], error**2


def real_ratings(model, data, whom, X, y, **fit):
    """FedRec's, before the step; virtual ratings do not count."""
    everyone, items = test_fedrec.reference_fit(clone(model).set_params(n_rounds=0), X, y, **fit)
    for c in whom:
        one = everyone[c]
        for u, i in np.argwhere(~np.isnan(one.ratings)):
            error = (one.ratings[u, i] - one.score(one.users[u], items[i])) * np.ptp(y) / 4
            yield one.weights[u, i], error**2


def ratings_after_inference(model, data, whom, y, **_):
    """FedEB's, at the mean of each user's posterior."""
    ratings, weights, _, unit = test_fedeb.dense(data, (y.min(), y.max()))
    m, d = data.n_items, model.n_factors
    start = model.INIT_STD * key_of(model).generator("item factors").standard_normal((m, d))
    items, reg = np.column_stack([np.zeros(m), start]), np.r_[5.0, np.full(d, 100.0)]
    known = fedeb.Model(items, np.zeros((m, d)), weights.sum(axis=0), reg, 6.0, 1.3)
    for u in users_of(data, whom):
        phi = fedeb.infer(known, ratings[u], weights[u]).phi
        for i in np.flatnonzero(weights[u]):
            error = unit * (ratings[u, i] - known.x[i] @ phi)
            yield weights[u, i], error**2


def examples(model, data, whom, **_):
    """FedMF's positives and negatives in two local epochs, each a single batch."""
    key, everyone = key_of(model).at(0), test_colr.clients_of(model, data)
    items = first_items(model, data.n_items)
    rows = test_colr.rows_of_basis(model, key, data.n_clients)
    one_epoch = clone(model).set_params(local_epochs=1)
    if isinstance(model, FedFast):
        basis = np.eye(model.n_factors)
        vectors = test_fedfast.first_vectors(model, data.n_clients)
    else:
        basis = test_colr.basis_of(model, key)
    exponent = getattr(model, "RANK_EXPONENT", 1.0)
    rate = model.learning_rate * (len(basis) / model.n_factors) ** exponent
    for c in whom:
        one, seed = everyone[c], key.hashed("visit", np.arange(data.n_clients))[c]
        one.model, now = one_epoch, items
        if isinstance(model, FedFast):
            one.users[:] = vectors[c]
        stream = colr.Stream(seed)
        drawn = [e for u in range(len(one.users)) for e in one.examples_of(u, stream)]
        for _ in range(model.local_epochs):
            for u, i, target, weight in drawn:
                score = one.users[u] @ now[i]
                if model.loss == "bce":
                    estimate = expit(score)
                    yield weight, -np.log(estimate if target else 1 - estimate)
                else:
                    yield weight, 0.5 * (score - target) ** 2
            A, _ = one.visit(now, basis[rows[c]], rate, seed)
            now = now + A @ basis[rows[c]]


def similarities(model, data, whom, X, y, **_):
    """LightFR's pairs that count, with the users' new codes and the items received."""
    values, weights = np.zeros((2, data.n_users, data.n_items))
    values[data.users, data.items] = data.values
    weights[data.users, data.items] = data.weights
    spans = [list(range(*data.client_indptr[c : c + 2])) for c in range(data.n_clients)]
    items, users = test_lightfr.first_codes(model, data)
    naive = lightfr.LightFR(model, spans, values, weights, (y.min(), y.max()), items, users)
    key = key_of(model).at(0)
    naive.round(model._plan().sampling.draw(data.n_clients, key), key)
    for u in users_of(data, whom):
        for i, w, aim in naive.pairs(u, key):
            error = (aim / w - np.dot(naive.users[u], items[i])) / (2 * naive.top)
            yield w / lightfr.ONE, error**2


METHODS = [
    (test_wmf.make(LocALS), all_pairs),
    (variant(FCF, 3, alpha=2.0, reg_user=0.5, INIT_STD=0.5), all_pairs),
    (variant(RFRec, 3, INIT_STD=0.5), scaled_ratings),
    (test_fedrec.make(user_steps=1), real_ratings),
    (with_constants(FedEB, INIT_STD=0.5)(3), ratings_after_inference),
    (test_colr.make(FedMF), examples),
    (test_colr.make(CoLR, loss="squared", learning_rate=0.1), examples),
    (test_colr.make(SCoLR), examples),
    (test_fedfast.make(sampling="federation"), examples),
    (test_lightfr.make(), similarities),
    (test_lightfr.make(aggregation="gradient", user_bits=1, n_negatives=2), similarities),
    (test_lightfr.make(targets="ratings"), similarities),
]


@pytest.mark.parametrize(
    ("model", "losses"), METHODS, ids=lambda one: getattr(one, "__name__", type(one).__name__)
)
def test_the_training_loss_is_a_weighted_mean_over_the_rounds_examples(model, losses):
    X, y = make_toy()
    # Zero and less are dislikes, which have no negatives. Ratings are on another scale than
    # methods train on, but the loss is in squared ratings.
    y = y - 2 if losses in (all_pairs, examples, similarities) else 3 * y
    model = clone(model).set_params(n_rounds=1, client_fraction=0.4, random_state=0)
    if losses is examples:
        model.set_params(local_epochs=2, batch_size=10**6)
    silos = np.where(X[:, 0] < 140, X[:, 0] % 4, X[:, 0])
    weight = np.where(y > y.mean(), 3.0, 1.0) * np.random.default_rng(3).integers(1, 4, len(y))
    fit = {"clients": silos, "sample_weight": weight}
    data = encode(X, y, **fit)
    clients = active_in(model, data)
    assert len(clients) < data.n_clients
    w, loss = np.transpose(list(losses(model, data, clients, X=X, y=y, **fit)))
    expected = np.average(loss, weights=w)
    assert model.fit(X, y, **fit).loss_curve_ == pytest.approx([expected], rel=1e-6)
