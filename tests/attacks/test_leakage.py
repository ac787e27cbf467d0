import numpy as np
import pytest

from fedrecsk import Federation, FedMF, GlobSGD, LocALS, LocSGD, Popularity, RFRec, RFRecF
from fedrecsk.attacks import measure_leak
from fedrecsk.compression import TopK
from fedrecsk.privacy import CKKS, LaplaceMechanism
from tests.conftest import make_toy

WMF = [
    LocALS(4, reg_user=1.0),
    LocALS(4, reg_user=1.0, local_epochs=2, reg_item=0.0),
    LocALS(4, reg_user=1.0, aggregation="all", reg_item=40.0),
    LocALS(4, reg_user=1.0, aggregation="holders"),
    LocSGD(4, reg_user=1.0),
    LocSGD(4, reg_user=1.0, reg_item=40.0, mu=0.5),
    LocSGD(4, reg_user=1.0, aggregation="full", mu=0.5),
    GlobSGD(4, reg_user=1.0),
    GlobSGD(4, reg_user=1.0, aggregation="all"),
]


@pytest.mark.parametrize("n_rounds", [1, 2])
@pytest.mark.parametrize("model", WMF, ids=str)
def test_one_plaintext_upload_of_the_als_family_gives_everything(model, n_rounds):
    X, y = make_toy(n_users=30, n_items=20, density=0.4)
    model = model.set_params(random_state=0, init_std=0.3)
    report = measure_leak(model, X, y, n_rounds=n_rounds, max_clients=10)
    assert report.method == type(model).__name__
    assert (report.n_clients, report.n_rounds) == (10, n_rounds)
    assert report.vectors == report.directions == 1.0
    assert report.interactions == report.values == 1.0


def test_the_model_under_attack_is_left_alone():
    X, _ = make_toy()
    model = LocALS(3, n_rounds=7, client_fraction=0.5, federation=Federation(dropout=0.3))
    before = repr(model)
    measure_leak(model, X)
    assert repr(model) == before and not hasattr(model, "item_factors_")


def test_rfrec_gives_away_which_items_are_rated_but_under_noise_less():
    X, y = make_toy(n_users=30, n_items=20, density=0.3)
    plain = RFRec(3, rating_scale=(1, 5), random_state=0)
    report = measure_leak(plain, X, y)
    assert report.interactions == 1.0
    assert report.vectors == report.values == 0.0
    noisy = Federation(local_dp=LaplaceMechanism(clip=0.2, scale=1.0))
    report = measure_leak(plain.set_params(federation=noisy), X, y)
    assert report.interactions < 0.4


@pytest.mark.parametrize("Estimator", [LocALS, GlobSGD, LocSGD])
def test_a_secure_sum_gives_nobody_away(Estimator):
    pytest.importorskip("tenseal", reason="needs fedrecsk[privacy]")
    X, _ = make_toy(n_users=30, n_items=20, density=0.3)
    world = Federation(secure_aggregation=CKKS())
    model = Estimator(4, reg_user=1.0, download="all", random_state=0, federation=world)
    report = measure_leak(model, X)
    assert report.vectors == 0.0
    assert report.interactions == pytest.approx(len(X) / (30 * 20), abs=0.05)


def test_a_part_of_the_clients_can_be_attacked():
    X, _ = make_toy(n_users=30)
    report = measure_leak(LocALS(3, reg_user=1.0, random_state=0), X, max_clients=5)
    assert report.n_clients == 5


def test_what_cannot_be_inverted_is_named():
    X, _ = make_toy()
    with pytest.raises(ValueError, match="No inversion is known for Popularity.*LocALS"):
        measure_leak(Popularity(), X)


def test_compression_does_not_hide_who_has_what():
    """The server is given what it would see without; the report is an upper bound."""
    X, _ = make_toy(n_users=30)
    model = LocALS(3, reg_user=1.0, random_state=0, federation=Federation(compression=TopK(0.1)))
    assert measure_leak(model, X).interactions == 1.0


def test_both_uploads_have_to_agree():
    from fedrecsk.attacks._inversion import Guess, agreed

    first = Guess(np.ones(2), np.array([1, 2, 3]))
    last = Guess(np.zeros(2), np.array([2, 3, 9]), np.array([4.0, 5.0, 1.0]))
    both = agreed([first, last])
    assert both.items.tolist() == [2, 3]
    assert both.values.tolist() == [4.0, 5.0]
    assert both.vector is last.vector


@pytest.mark.parametrize("parameters", [{"loss": "squared"}, {"n_negatives": 0}], ids=str)
def test_without_negatives_every_item_that_moves_is_the_users_own(parameters):
    X, y = make_toy(n_users=20, n_items=15, density=0.3)
    model = FedMF(4, random_state=0, **parameters)
    report = measure_leak(model, X, y)
    assert report.interactions == 1.0


def test_a_model_that_would_stop_early_or_says_nothing():
    X, y = make_toy(n_users=20)
    model = LocALS(3, reg_user=1.0, early_stopping=True, n_iter_no_change=1, tol=10, random_state=0)
    assert measure_leak(model, X, n_rounds=5).interactions == 1.0
    with pytest.raises(ValueError, match="RFRecF uploaded nothing in n_rounds=1"):
        measure_leak(RFRecF(3, aggregation_probability=1e-9, random_state=0), X, y)
    with pytest.raises(ValueError, match="max_clients=0"):
        measure_leak(model, X, max_clients=0)
