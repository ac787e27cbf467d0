"""Leaks of methods that sample negatives, and of binary codes."""

import numpy as np
import pytest

from fedrecsk import CoLR, FedMF, LightFR, SCoLR
from fedrecsk.attacks import measure_leak
from tests.conftest import make_toy

pytestmark = pytest.mark.full


@pytest.fixture
def toy():
    return make_toy(n_users=30, n_items=200, density=0.05)


@pytest.mark.parametrize("user_bits", [1, 3])
@pytest.mark.parametrize("aggregation", ["full", "gradient"])
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


@pytest.mark.parametrize("model", [FedMF(8), CoLR(4, n_factors=8), SCoLR(4, n_factors=8)], ids=str)
def test_positives_are_separated_from_sampled_negatives(model, toy):
    one, two = (measure_leak(model.set_params(random_state=0), *toy, n_rounds=n) for n in (1, 2))
    assert one.vectors == 0.0
    assert one.interactions > 0.9
    assert two.interactions > 0.9


def test_a_whole_basis_reveals_the_direction(toy):
    whole, narrow = (measure_leak(CoLR(rank, n_factors=8, random_state=0), *toy) for rank in (8, 2))
    assert whole.directions > 0.5 > narrow.directions
