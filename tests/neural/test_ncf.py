"""NCF: fits against a plain loop, negatives, ratings, early stopping, warm starts."""

import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fedrecsk.data.interactions import encode  # noqa: E402
from fedrecsk.datasets import make_ratings  # noqa: E402
from fedrecsk.neural import NCF  # noqa: E402
from fedrecsk.neural import ncf as ncf_file  # noqa: E402
from tests.conftest import make_toy  # noqa: E402
from tests.reference.neural import ncf as reference  # noqa: E402


def recorded(model, X, y=None, sample_weight=None):
    """Fit a model; the first parameters, the batches, and the learning rates of its fit."""
    start, batches, rates = {}, [], []
    train_on = ncf_file._train_on

    def recorder(batch, network, state, losses_of, reg, rate, *others):
        if not batches:
            start.update({name: moments[0].copy() for name, moments in state.items()})
        batches.append(tuple(one.numpy() for one in batch))
        rates.append(rate)
        return train_on(batch, network, state, losses_of, reg, rate, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ncf_file, "_train_on", recorder)
        model.fit(X, y, sample_weight=sample_weight)
    return start, batches, rates


# ------------------------------------------------------------------ against a plain loop


@pytest.mark.parametrize(
    ("architecture", "loss"),
    [("neumf", "squared"), ("neumf", "bce"), ("gmf", "bce"), ("mlp", "bce")],
)
def test_a_fit_is_the_plain_loop_in_torch(architecture, loss, monkeypatch):
    X, y = make_toy(30, 20, density=0.4)
    for place in ("fedrecsk.neural.ncf.DTYPE", "fedrecsk.centralized._sgd.DTYPE"):
        monkeypatch.setattr(place, np.float64)
    weight = np.random.default_rng(1).uniform(0.5, 2, len(X))
    settings = {"layers": (8, 6, 4), "n_epochs": 4, "batch_size": 50, "learning_rate": 0.02}
    model = NCF(architecture, 5, loss=loss, reg=0.01, random_state=0, **settings)
    start, batches, rates = recorded(model, X, y, weight)
    module = model.to_module().double()
    module.load_state_dict({name: torch.from_numpy(one) for name, one in start.items()})
    losses = reference.train(module, batches, rates, 0.01, loss == "squared")
    assert len(set(rates)) == 4
    n = len(batches) // 4
    weights = sum(batch[3].sum() for batch in batches[:n])
    assert model.loss_curve_[0] == pytest.approx(sum(losses[:n]) / weights, rel=1e-9)
    expected = {name: one.detach().numpy() for name, one in module.named_parameters()}
    found = model.weights_ | {"user.weight": model.user_factors_}
    found |= {"item.weight": model.item_factors_}
    for name, one in found.items():
        np.testing.assert_allclose(one, expected[name], rtol=1e-6, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("architecture", ["neumf", "gmf", "mlp"])
def test_the_module_gives_the_predictions(architecture, toy):
    X, y = toy
    before, n_threads = torch.random.get_rng_state(), torch.get_num_threads()
    model = NCF(architecture, layers=(6, 5), n_epochs=2, random_state=0).fit(X, y)
    module = model.to_module()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.get_num_threads() == n_threads
    users = np.searchsorted(model.user_ids_, X[:, 0])
    items = np.searchsorted(model.item_ids_, X[:, 1])
    scores = module(torch.from_numpy(users), torch.from_numpy(items)).sigmoid()
    np.testing.assert_allclose(model.predict(X), scores.detach().numpy(), atol=1e-6)
    with torch.no_grad():
        module.item.weight.fill_(7)
    assert not (model.item_factors_ == 7).any()


def test_negatives_are_items_without_a_row_and_all_of_them():
    X, y = make_toy(12, 9, density=0.5)
    model = NCF(n_epochs=40, random_state=0)
    _, batches, _ = recorded(model, X, y - 2)
    users, items, targets, weights = (
        np.concatenate([batch[k] for batch in batches]) for k in range(4)
    )
    data = encode(X, y - 2)
    seen = {(u, i) for u, i in zip(data.users, data.items, strict=True)}
    positive = targets[:, 0] > 0
    assert 0 < positive.sum() < len(positive)
    assert (targets[:, 1:] == 0).all()
    assert (weights[~positive, 1:] == 0).all()
    assert (weights[positive] == 1).all()
    drawn = [
        (u, i) for u, its in zip(users[positive], items[positive, 1:], strict=True) for i in its
    ]
    likers = set(users[positive])
    unseen = {(u, i) for u in likers for i in range(9)} - seen
    assert set(drawn) == unseen
    # Uniform: each of a user's items about as often.
    u = users[positive][0]
    counts = np.array([drawn.count((u, i)) for i in range(9) if (u, i) in unseen])
    assert abs(counts - counts.mean()).max() < 5 * np.sqrt(counts.mean())


def test_ratings_are_estimated_and_clipped():
    X, y = make_ratings(n_users=150, n_items=60, n_ratings=4000, random_state=0)
    test = np.arange(len(X)) % 5 == 0
    model = NCF(loss="squared", learning_rate=0.01, reg=0.01, random_state=0)
    model.fit(X[~test], y[~test])
    predicted = model.predict(X[test])
    assert np.mean((predicted - y[test]) ** 2) < 0.9 * y[test].var()
    assert model.global_bias_ == pytest.approx(y[~test].mean())
    assert model.rating_range_ == (1, 5)
    extreme = NCF(loss="squared", learning_rate=0.5, random_state=0).fit(X[~test], y[~test])
    assert 1 <= extreme.predict(X).min() <= extreme.predict(X).max() <= 5


@pytest.mark.parametrize("loss", ["bce", "squared"])
def test_early_stopping_keeps_the_best_epoch(loss):
    X, y = make_ratings(n_users=60, n_items=40, n_ratings=1200, random_state=0)
    options = {"loss": loss, "learning_rate": 0.02, "learning_rate_decay": 1.0, "reg": 0.0}
    options |= {"early_stopping": True, "validation_fraction": 0.2, "random_state": 0}
    model = NCF(n_epochs=100, n_iter_no_change=3, **options).fit(X, y)
    curve = model.validation_curve_
    assert 0 < model.best_epoch_ < model.n_epochs_ < 100
    assert model.best_epoch_ == np.argmin(curve)
    until = NCF(n_epochs=model.best_epoch_, **options).fit(X, y)
    np.testing.assert_array_equal(until.predict(X), model.predict(X))
    if loss == "bce":
        assert curve[0] == pytest.approx(np.log(2), abs=0.1)


def test_a_warm_start_goes_on_where_it_ended(toy):
    X, y = toy
    options = {"batch_size": 16, "random_state": 0}
    warm = NCF(n_epochs=2, warm_start=True, **options).fit(X, y)
    warm = pickle.loads(pickle.dumps(warm)).set_params(n_epochs=5).fit(X, y)
    cold = NCF(n_epochs=5, **options).fit(X, y)
    np.testing.assert_array_equal(warm.user_factors_, cold.user_factors_)
    np.testing.assert_array_equal(warm.predict(X), cold.predict(X))
    assert warm.loss_curve_ == cold.loss_curve_


def test_a_new_user_gets_what_neighbours_like_whoever_else_is_new():
    rng = np.random.default_rng(0)
    # Two groups, each with items of its own.
    X = [[u, i] for u in range(60) for i in rng.choice(20, 8, replace=False) + 20 * (u % 2)]
    options = {"batch_size": 32, "n_epochs": 30, "learning_rate_decay": 1.0}
    model = NCF("gmf", random_state=0, **options).fit(X)
    new = [[100, 1], [100, 2], [100, 3], [101, 21], [101, 22], [101, 23]]
    found, scores = model.recommend([100, 101], 5, interactions=new)
    assert (found[0] < 20).all()
    assert (found[1] >= 20).all()
    alone = model.recommend([101], 5, interactions=new[3:])
    np.testing.assert_array_equal(alone[0], found[1:])
    np.testing.assert_allclose(alone[1], scores[1:], rtol=1e-5)


def test_an_unknown_user_is_the_mean_user(toy):
    X, y = toy
    model = NCF(random_state=0).fit(X, y)
    before = model.predict([[-1, X[0, 1]], [-1, -1], [X[0, 0], -1]])
    module = model.to_module()
    with torch.no_grad():
        module.user.weight[0] = module.user.weight.mean(axis=0)
        item = np.searchsorted(model.item_ids_, X[0, 1])
        score = module(torch.tensor([0]), torch.tensor([item])).item()
    assert before[0] == pytest.approx(1 / (1 + np.exp(-score)))
    model.fold_in([[7, X[0, 1]]])
    np.testing.assert_array_equal(model.predict([[-1, X[0, 1]], [-1, -1], [X[0, 0], -1]]), before)


def test_bad_settings_are_named(toy):
    for layers in ((), (8, 0), (8, 2.5), (1, 4), ("a", "b")):
        with pytest.raises(ValueError, match=r"layers=.* must be whole numbers"):
            NCF(layers=layers).fit(*toy)
    with pytest.raises(ValueError, match=r"NCF diverged: .*learning_rate"):
        NCF(learning_rate=1e15, loss="squared").fit(*toy)
