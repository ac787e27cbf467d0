import numpy as np
import pytest

from benchmarks._variants import variant
from fedrecsk import Federation, FedRec
from fedrecsk.audit import measure_leak
from fedrecsk.data.interactions import encode
from fedrecsk.simulation.run import watch
from tests.conftest import BLOCK_SIZES, fits_in_blocks, make_toy
from tests.federated.turns import PLAIN_SETTINGS, key_of, spans_of, turns_of, two_fits
from tests.reference import fedrec as reference
from tests.reference.colr import Stream

pytestmark = pytest.mark.usefixtures("float64")


def reference_fit(model, X, y, clients=None, sample_weight=None):
    """Run the naive reference in the setting of `model`; returns its clients and items."""
    data = encode(X, y, clients=clients, sample_weight=sample_weight)
    low, high = model.rating_scale or (y.min(), y.max())
    ratings = np.full((data.n_users, data.n_items), np.nan)
    weights = np.zeros(ratings.shape)
    ratings[data.users, data.items] = 1 + 4 * (data.values - low) / (high - low)
    weights[data.users, data.items] = data.weights
    key = key_of(model)
    level = np.nansum(weights * np.nan_to_num(ratings)) / weights.sum() * model.biases

    width = model.n_factors + model.biases
    items = key.generator("item vectors").uniform(-1, 1, (data.n_items, width))
    users = 2 * key.uniform("user vectors", np.arange(data.n_users * width)) - 1
    items, users = model.INIT_RANGE * items, model.INIT_RANGE * users.reshape(-1, width)
    if model.biases:
        items[:, 0] = users[:, 0] = 0

    def virtual(t, client):
        drawn = key.at(t if model.virtual_items == "redrawn" else -1)
        of_users = []
        for u in range(*data.client_indptr[client : client + 2]):
            rated = ~np.isnan(ratings[u])
            n_wanted = min(model.n_virtual * rated.sum(), (~rated).sum())
            stream = Stream(drawn.hashed("virtual items", u))
            of_users.append(reference.virtual_items(rated, n_wanted, stream))
        return of_users

    spans = spans_of(data)
    everyone = [reference.Client(model, ratings[s], weights[s], users[s], level) for s in spans]
    reference.fedrec(model, everyone, items, turns_of(model, data.n_clients), virtual)
    return everyone, items


def assert_equals_reference(model, X, y, block_sizes=BLOCK_SIZES[:1], **fit_params):
    everyone, items = reference_fit(model, X, y, **fit_params)
    users = np.concatenate([c.users for c in everyone])
    trained = np.concatenate([np.full(len(c.users), c.has_trained) for c in everyone])
    first = int(model.biases)
    assert trained.any()
    for fitted in fits_in_blocks(model, X, y, block_sizes=block_sizes, **fit_params):
        np.testing.assert_allclose(fitted.item_factors_, items[:, first:], atol=1e-9)
        np.testing.assert_allclose(fitted.user_factors_[trained], users[trained, first:], atol=1e-9)
        if model.biases:
            np.testing.assert_allclose(fitted.item_bias_, items[:, 0], atol=1e-9)
            np.testing.assert_allclose(fitted.user_bias_[trained], users[trained, 0], atol=1e-9)


def make(**parameters):
    small = {"n_factors": 3, "n_rounds": 8, "n_virtual": 1, "hybrid_start": 3, "HYBRID_STEPS": 2}
    small |= {"random_state": 0, "INIT_RANGE": 0.3, "client_fraction": 1.0}
    return variant(FedRec, **small | parameters)


PAPER = {"biases": False, "learning_rate_decay": 0.9, "reg": 0.001, "user_steps": 1}
METHODS = [
    {},
    PAPER | {"virtual_items": "redrawn", "learning_rate": 0.2},
    {"filling": "average", "user_steps": 2, "learning_rate_decay": 0.5},
    {"n_virtual": 3, "virtual_items": "redrawn", "hybrid_start": 0},
    {"n_virtual": 0, "rating_scale": (0, 6)},
    {"upload": "all", "virtual_items": "redrawn"},
]


@pytest.mark.parametrize("parameters", METHODS, ids=str)
def test_equals_the_naive_reference(parameters, toy):
    for arguments, options in two_fits(*toy):
        assert_equals_reference(make(**parameters), *arguments, **options)


ROTATING = {"client_fraction": 1 / 12, "federation": Federation(sampling="rotating")}


@pytest.mark.parametrize("setting", [*PLAIN_SETTINGS, ROTATING | {"n_rounds": 60}], ids=str)
@pytest.mark.parametrize("virtual_items", ["fixed", "redrawn"])
def test_equals_the_naive_reference_in_any_setting(setting, virtual_items, toy):
    assert_equals_reference(make(virtual_items=virtual_items, **setting), *toy)


def uploads_of(model, X, y, n_rounds):
    """Rows that each client sends, round by round."""
    data = model._prepared(X, y)
    rounds = []
    for _, _, seen in watch(model, data, n_rounds):
        rounds.append({})
        for tile in seen.tiles():
            for place, client in enumerate(tile.clients):
                rounds[-1][client] = tile.upload(place)["gradients"].rows
    return data, rounds


def test_every_set_of_virtual_items_is_equally_likely():
    X = [[u, 0] for u in range(3000)] + [[-1, i] for i in range(5)]
    model = make(n_virtual=2)
    data, (sent,) = uploads_of(model, X, np.arange(3005) % 5, 1)
    pairs, counts = np.unique(
        [sent[c] for c in sent if len(sent[c]) == 3], axis=0, return_counts=True
    )
    assert len(pairs) == 6
    assert data.n_items == 5
    assert counts == pytest.approx(500, abs=4 * np.sqrt(500))


def test_weights_do_not_tell_which_items_are_virtual(toy):
    X, y = toy
    model = make(n_virtual=1)
    data = model._prepared(X, y, sample_weight=np.full(len(y), 2.5))
    for _, _, seen in watch(model, data, 1):
        for tile in seen.tiles():
            assert (tile.fields["weights"].values == 2.5).all()


def test_intersecting_rounds_finds_redrawn_virtual_items_out():
    fedrec = pytest.importorskip("benchmarks.fedrec", reason="run pytest from the repository")
    X, y = make_toy(40, 200, density=0.05)
    redrawn = make(n_virtual=3, virtual_items="redrawn")
    shares = fedrec.rated_among_repeated(redrawn, X, y, (1, 3, 10))
    assert shares[0] == pytest.approx(0.25, abs=0.01)
    assert shares[1] > 0.7
    assert shares[2] > 0.99
    fixed = redrawn.set_params(virtual_items="fixed")
    assert fedrec.rated_among_repeated(fixed, X, y, (1, 3, 10)) == [shares[0]] * 3


@pytest.mark.parametrize(("hybrid_start", "virtual_items"), [(0, "fixed"), (10, "redrawn")])
def test_values_of_one_plaintext_upload_find_them_out(hybrid_start, virtual_items):
    X, y = make_toy(30, 200, density=0.1)
    model = make(n_virtual=3, hybrid_start=hybrid_start, virtual_items=virtual_items)
    report = measure_leak(model, X, y)
    assert report.interactions > 0.95
    assert report.directions == 1
    assert report.values > 3 * report.chance["values"]


def test_newcomers_get_the_vector_of_least_loss(toy):
    X, y = toy
    model = make(reg=0.1, learning_rate=0.2).fit(X, y)
    model.fold_in(np.column_stack([np.full(5, -1), model.item_ids_[:5]]), y[:5])
    low, high = model.rating_scale_
    rest = 1 + 4 * (y[:5] - low) / (high - low) - model.global_bias_ - model.item_bias_[:5]
    design = np.column_stack([np.ones(5), model.item_factors_[:5]])
    expected = np.linalg.solve(design.T @ design / 5 + 0.1 * np.eye(4), design.T @ rest / 5)
    found = np.r_[model.user_bias_[-1], model.user_factors_[-1]]
    np.testing.assert_allclose(found, expected, atol=1e-6)
