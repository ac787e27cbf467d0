"""Audits: lower bounds on epsilon stay below the promise, and find noise that is too small."""

import numpy as np
import pytest

from fedrecsk import Federation, RFRec
from fedrecsk.attacks import audit_privacy
from fedrecsk.attacks._membership import _proved
from fedrecsk.privacy import CentralDP, central_dp
from tests.conftest import make_toy

pytestmark = pytest.mark.filterwarnings("ignore:CentralDP.delta=")

PUBLIC = {"items": np.arange(40) * 3 + 1000, "rating_scale": (1, 5), "aggregation": "clients"}


@pytest.fixture(scope="module")
def toy():
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
def test_the_attack_proves_less_than_the_promise(setting, toy):
    # 10 audits in all.
    for seed in range(2):
        model = make(seed, **SETTINGS[setting])
        audit = audit_privacy(model, *toy, random_state=seed)
        assert audit.lower_bound < audit.promised
        assert audit.longest_upload <= 1 + 1e-9
        if setting == "all clients":
            assert "at most 3.00 by promise" in repr(audit)
            assert "<table" in audit._repr_html_()
            # It is not an empty bound either.
            assert audit.lower_bound > 0.1 * audit.promised


@pytest.mark.parametrize("noise", ["server", "clients"])
def test_too_little_noise_is_found_out(noise, toy, monkeypatch):
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
    audit = audit_privacy(make(epsilon=1.0, noise=noise), *toy, random_state=0)
    assert audit.lower_bound > audit.promised


def test_the_bound_of_known_rates():
    # 900 of 1,000 found with 100 of 1,000 alarms: log(.9 / .1), less what 1,000 cannot tell.
    inside = np.repeat([1.0, 0.0], [900, 100])
    outside = np.repeat([1.0, 0.0], [100, 900])
    assert 1.8 < _proved(inside, outside, 0.5, 0.0, 0.05) < np.log(9)
    assert _proved(inside, inside, 0.5, 0.0, 0.05) == 0


def test_bad_input(toy):
    with pytest.raises(ValueError, match="no central privacy to audit"):
        audit_privacy(RFRec(), *toy)
    with pytest.raises(ValueError, match="two canaries"):
        audit_privacy(make(), *toy, n_canaries=1)
    with pytest.raises(ValueError, match="between 0 and 1"):
        audit_privacy(make(), *toy, confidence=1)
    with pytest.raises(ValueError, match="the catalogue must be public"):
        audit_privacy(make().set_params(items=None), *toy)
