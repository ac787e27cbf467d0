"""What several uploads of a client reveal together."""

import numpy as np
import pytest

from benchmarks._variants import variant
from fedrecsk import CoLR, Federation, FedMF, LightFR, RFRec, RFRecF, SCoLR
from fedrecsk.audit import measure_leak, register_inversion
from fedrecsk.audit._inversion_rfrec import rfrec
from fedrecsk.audit._leakage import inversion_of
from fedrecsk.audit._server_view import Exchange
from fedrecsk.privacy import GaussianMechanism, LaplaceMechanism
from fedrecsk.protocol import Dense, Message
from fedrecsk.protocol.keys import Key
from fedrecsk.updates import Update
from tests.conftest import make_toy

pytestmark = pytest.mark.full


@pytest.fixture
def rated():
    return make_toy(n_users=24, n_items=60, density=0.4)


@pytest.mark.parametrize(
    ("model", "n_rounds"),
    [
        (RFRec(5), 4),
        (variant(RFRec, 5, LINK="identity"), 2),
        (RFRec(5, optimizer="gd"), 1),
        (RFRec(5, aggregation="holders"), 2),
        (RFRecF(5), 18),
    ],
    ids=str,
)
def test_rfrecs_ratings_are_exact(model, n_rounds, rated):
    X, y = rated
    model = model.set_params(rating_scale=(1, 5), random_state=0)
    report = measure_leak(model, X, y, n_rounds=n_rounds, max_clients=6)
    assert report.interactions == 1.0
    assert report.values > 0.9
    assert report.cosine > 0.97
    assert report.chance["values"] < 0.3


@pytest.mark.parametrize(
    ("weak", "strong"),
    [
        (LaplaceMechanism(clip=0.5, scale=0.02), LaplaceMechanism(clip=0.5, scale=2.0)),
        (GaussianMechanism(50.0, 0.0004), GaussianMechanism(1.0, 2.0)),
    ],
    ids=["laplace", "gaussian"],
)
def test_noise_hides_ratings_from_one_upload_and_less_from_ten(rated, weak, strong):
    X, y = rated
    model = RFRec(5, rating_scale=(1, 5), items=np.unique(X[:, 1]), random_state=0)
    found = []
    for mechanism in (weak, strong):
        noisy = model.set_params(federation=Federation(local_dp=mechanism))
        found.append([measure_leak(noisy, X, y, n_rounds=n, max_clients=10) for n in (1, 10)])
    (one, ten), hidden = found
    assert one.interactions > 0.8
    assert ten.values > ten.chance["values"]
    for report in hidden:
        assert report.values < report.chance["values"] + 0.05
        assert report.vectors == report.directions == 0.0


@pytest.mark.parametrize("Model", [CoLR, SCoLR])
def test_bases_of_many_rounds_show_the_whole_direction(Model):
    X, _ = make_toy(n_users=20, n_items=60, density=0.2)
    model = Model(2, n_factors=12, batch_size=16, random_state=0)
    one, many = (measure_leak(model, X, n_rounds=n, max_clients=10) for n in (1, 20))
    assert one.cosine < 0.8
    assert many.cosine > 0.9
    assert many.interactions > 0.9


def listening_to_noise(Base, field):
    """The method with uploads of noise in place of the clients' own."""

    class Silent(Base):
        pass

    def invert(method, exchanges, n_items):
        random, false = np.random.default_rng(0), []
        for one in exchanges:
            noise = random.normal(size=(n_items, one.upload[field].change.shape[1]))
            upload = one.upload | {field: Update(slice(None), noise)}
            false.append(one._replace(upload=upload))
        return inversion_of(Base).invert(method, false, n_items)

    register_inversion(Silent, invert)
    return Silent


@pytest.mark.parametrize(
    ("Base", "field", "parameters"),
    [(RFRec, "item_vectors", {"rating_scale": (1, 5)}), (FedMF, "updates", {})],
)
def test_inversions_of_noise_find_nothing(Base, field, parameters):
    X, y = make_toy(n_users=20, n_items=40, density=0.3)
    model = listening_to_noise(Base, field)(4, random_state=0, **parameters)
    report = measure_leak(model, X, y, n_rounds=2, max_clients=6)
    assert report.vectors == report.directions == 0.0
    assert report.interactions <= report.chance["interactions"] + 0.05
    assert report.values <= report.chance["values"] + 0.05


def test_an_upload_without_a_change_is_no_rated_item():
    model = RFRec(3, rating_scale=(1, 5))
    scale = Dense(np.array([1.0, 5.0, 0.0]))
    message = Message(scale=scale, item_vectors=Dense(np.zeros((7, 4), dtype=np.float32)))
    nothing = {"item_vectors": Update(slice(None), np.zeros((7, 4)))}
    guess = rfrec(model, [Exchange(Key(0, 0), message, nothing)], 7)
    assert len(guess.items) == 0


# --------------------------------------------------------------------- negatives and binary codes


@pytest.fixture
def toy():
    return make_toy(n_users=30, n_items=200, density=0.05)


@pytest.mark.parametrize(("aggregation", "user_bits"), [("full", 3), ("gradient", 1)])
def test_codes_and_items_are_read_off_one_upload(aggregation, user_bits, toy):
    model = LightFR(16, aggregation=aggregation, user_bits=user_bits, random_state=0)
    report = measure_leak(model, *toy)
    assert report.vectors == report.directions == 1.0
    # A sampled negative may be drawn so often that it looks like a positive.
    assert report.interactions == report.values > 0.85


def test_ratings_are_read_with_their_code_or_mirrored_with_its_opposite(toy):
    X, y = toy
    model = LightFR(16, aggregation="gradient", user_bits=1, targets="ratings", n_negatives=0)
    report = measure_leak(model.set_params(random_state=0), X, y)
    assert report.interactions == 1.0
    likes = np.array([y[X[:, 0] == user].mean() > 3 for user in np.unique(X[:, 0])])
    assert 0 < report.vectors < 1
    assert report.vectors == pytest.approx(likes.mean(), abs=0.15)


def test_votes_reveal_only_the_visited_items(toy):
    model = LightFR(16, aggregation="parameter", user_bits=1, random_state=0)
    report = measure_leak(model, *toy)
    assert report.vectors == 0.0
    assert 0.1 < report.interactions < 0.5


@pytest.mark.parametrize("model", [FedMF(8), SCoLR(4, n_factors=8)], ids=str)
def test_positives_are_separated_from_sampled_negatives(model, toy):
    one, two = (measure_leak(model.set_params(random_state=0), *toy, n_rounds=n) for n in (1, 2))
    assert one.vectors == 0.0
    assert one.interactions > 0.9
    assert two.interactions > 0.9


def test_a_whole_basis_reveals_the_direction(toy):
    whole, narrow = (measure_leak(CoLR(rank, n_factors=8, random_state=0), *toy) for rank in (8, 2))
    assert whole.directions > 0.5 > narrow.directions
