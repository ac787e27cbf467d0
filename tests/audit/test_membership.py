"""Membership inference from the final model, and from noisy sums."""

import numpy as np
import pytest

from fedrecsk import FedEASE, Federation, LocALS, Popularity, RFRec
from fedrecsk.audit import audit_privacy, measure_forgetting, measure_membership
from fedrecsk.audit._membership import _proved, _ratios
from fedrecsk.datasets import make_interactions
from fedrecsk.privacy import CentralDP, central_dp
from tests.conftest import make_toy


@pytest.fixture
def toy():
    return make_toy(n_users=40, n_items=60, density=0.15)


class Deaf(Popularity):
    """Ignores its data: items are ranked by their ids."""

    def predict(self, X):
        return np.asarray(X)[:, 1].astype(float)


@pytest.mark.parametrize("level", ["user", "pair"])
def test_a_model_that_ignores_its_data_reveals_nobody(level, toy):
    X, _ = toy
    report = measure_membership(Deaf(), X, level=level, n_models=8, random_state=0)
    assert report.advantage == pytest.approx(0, abs=0.1)
    assert report.auc == pytest.approx(0.5, abs=0.1)
    assert report.tpr_at_1_fpr < 0.1


def test_an_overfitted_model_reveals_its_users(toy):
    X, _ = toy
    model = LocALS(32, reg_user=0.1, reg_item=0.0, n_rounds=10)
    report = measure_membership(model, X, n_models=8, random_state=0)
    assert report.n_targets == 40
    assert "40 users, 8 models" in report._repr_html_()
    assert report.advantage > 0.3
    assert report.auc > 0.75
    assert report.tpr_at_1_fpr > 0.05


def test_ratings_are_judged_by_their_errors(toy):
    X, y = toy
    report = measure_membership(RFRec(4, n_rounds=5), X, y, level="pair", n_models=4)
    assert report.n_targets == len(X)
    assert 0.3 < report.auc < 1


def test_ratios_follow_from_the_other_models_only():
    """Two targets: of the first, members' numbers are about 1 and others' about 0."""
    is_member = np.array([[1, 0], [1, 1], [0, 1], [0, 0], [1, 1], [0, 0]], dtype=bool)
    signals = np.array([[1.0, 5], [1.1, 5], [0.1, 5], [0.0, 5], [0.9, 5], [-0.1, 5]])
    ratios = np.stack([_ratios(signals, is_member, model) for model in range(6)])
    np.testing.assert_array_equal(ratios[:, 0] > 0, is_member[:, 0])
    np.testing.assert_array_equal(ratios[:, 1], 0)
    # Model 0: members' mean (1.1 + .9) / 2, others' 0; variance (.02 + .02) / 3, half and half
    # with the median of that and 0.
    variance = (0.04 / 3 + 0.02 / 3) / 2
    assert ratios[0, 0] == pytest.approx(1 / (2 * variance))


EVEN = "must be an even whole number, at least 4"
OTHER = Popularity().fit([[1, 2], [2, 3]])


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (LocALS, {}, TypeError, r"got a class; pass LocALS\(\)"),
        (3, {}, TypeError, "int has no fold_in"),
        (LocALS(3), {"n_models": 2}, ValueError, EVEN),
        (LocALS(3), {"n_models": 5}, ValueError, EVEN),
        (LocALS(3), {"n_models": 4.0}, ValueError, EVEN),
        (LocALS(3), {"level": "row"}, ValueError, 'level=\'row\' must be "user" or "pair"'),
        (OTHER, {}, ValueError, "measure_membership fits copies .* fitted on other data"),
    ],
)
def test_wrong_input_is_named(model, options, error, message, toy):
    with pytest.raises(error, match=message):
        measure_membership(model, toy[0], **options)


@pytest.mark.parametrize(
    "model",
    [
        FedEASE(reg=5.0, warm_start=True),
        LocALS(16, reg_user=1.0, reg_item=1.0, warm_start=True),
    ],
    ids=lambda model: type(model).__name__,
)
def test_the_forgotten_are_found_before_and_not_after(model):
    X = make_interactions(n_users=160, n_items=80, n_interactions=2400, random_state=0)[:, :2]
    report = measure_forgetting(model, X, n_models=8, random_state=0)
    assert (report.n_forgotten, report.n_others) == (20, 80)
    assert report.auc_before > 0.9
    assert 0.3 < report.auc_after < 0.7
    assert report.n_rounds == (1 if isinstance(model, FedEASE) else 2)
    assert report.n_bytes > 0
    assert not hasattr(model, "item_ids_")
    assert report == measure_forgetting(model, X, n_models=8, random_state=0)


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (FedEASE(), {}, TypeError, "has no forget; set warm_start=True"),
        (FedEASE(warm_start=True), {"share": 1}, ValueError, "share=1 must be between 0 and 1"),
        (FedEASE(warm_start=True), {"n_models": 3}, ValueError, "n_models"),
        (RFRec, {}, TypeError, "measure_forgetting"),
    ],
)
def test_forgetting_needs_a_model_that_forgets(model, options, error, message, toy):
    with pytest.raises(error, match=message):
        measure_forgetting(model, *toy, **options)


# -------- Audits: lower bounds on epsilon stay below the promise, and find noise that is too small


pytestmark = pytest.mark.filterwarnings("ignore:CentralDP.delta=")

PUBLIC = {"items": np.arange(40) * 3 + 1000, "rating_scale": (1, 5), "aggregation": "clients"}


@pytest.fixture(scope="module")
def rated():
    return make_toy(30, 40, seed=1)


def make(seed=0, **parameters):
    federation = {n: parameters.pop(n) for n in list(parameters) if n in Federation().get_params()}
    model = {n: parameters.pop(n) for n in list(parameters) if n in RFRec().get_params()}
    mechanism = CentralDP(clip=0.3, **({"epsilon": 3.0, "delta": 1e-3} | parameters))
    federation = Federation(central_dp=mechanism, **federation)
    return RFRec(10, n_rounds=4, random_state=seed, federation=federation, **PUBLIC, **model)


SETTINGS = {
    "all clients": {},
    "shares": {"noise": "clients", "dropout": 0.2},
    "adaptive clip": {"quantile": 0.5, "epsilon": 8.0},
    "secret cohorts": {"sampling": "poisson", "client_fraction": 0.4},
    "rotating cohorts": {"sampling": "rotating", "client_fraction": 0.5},
}


@pytest.mark.sampled
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_attack_proves_less_than_the_promise(setting, rated):
    audit = audit_privacy(make(**SETTINGS[setting]), *rated, random_state=0)
    assert audit.lower_bound < audit.promised
    assert audit.longest_upload <= 1 + 1e-9
    if setting == "all clients":
        assert "at most 3.00 by promise" in repr(audit)
        assert "<table" in audit._repr_html_()
        # It is not an empty bound either.
        assert audit.lower_bound > 0.1 * audit.promised


@pytest.mark.parametrize("noise", ["server", "clients"])
def test_too_little_noise_is_found_out(noise, rated, monkeypatch):
    if noise == "server":
        honest = central_dp.noisy_sum
        monkeypatch.setattr(
            central_dp,
            "noisy_sum",
            lambda sums, clip, z, size, generator: honest(sums, clip, z / 4, size, generator),
        )
    else:
        honest = central_dp.share_variance
        monkeypatch.setattr(central_dp, "share_variance", lambda *a: honest(*a) / 16)
    audit = audit_privacy(make(epsilon=1.0, noise=noise), *rated, random_state=0)
    assert audit.lower_bound > audit.promised


def test_the_bound_of_known_rates():
    # 900 of 1,000 found with 100 of 1,000 alarms: log(.9 / .1), less what 1,000 cannot tell.
    inside = np.repeat([1.0, 0.0], [900, 100])
    outside = np.repeat([1.0, 0.0], [100, 900])
    assert 1.8 < _proved(inside, outside, 0.5, 0.0, 0.05) < np.log(9)
    assert _proved(inside, inside, 0.5, 0.0, 0.05) == 0


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (RFRec(), {}, "no central privacy to audit"),
        (make(), {"n_canaries": 1}, "two canaries"),
        (make(), {"confidence": 1}, "between 0 and 1"),
        (make().set_params(items=None), {}, "the catalogue must be public"),
    ],
)
def test_bad_input(model, options, message, rated):
    with pytest.raises(ValueError, match=message):
        audit_privacy(model, *rated, **options)
