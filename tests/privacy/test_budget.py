"""Budgets: what several fits and searches cost together."""

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

from fedrecsk import Federation, RFRec
from fedrecsk.privacy import CentralDP, PrivacyBudget, PrivacyReport
from tests.conftest import make_toy

PUBLIC = {"items": np.arange(9) * 3 + 1000, "rating_scale": (1, 5), "aggregation": "all"}


def make(**parameters):
    mechanism = CentralDP(noise_multiplier=4.0, delta=1e-3)
    federation = Federation(central_dp=mechanism)
    return RFRec(3, n_rounds=2, random_state=0, federation=federation, **PUBLIC, **parameters)


@pytest.fixture(scope="module")
def toy():
    return make_toy(20, 9, seed=1)


@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"client_fraction": 0.3, "federation__sampling": "rotating", "n_rounds": 7},
        {"client_fraction": 0.3, "federation__sampling": "random", "n_rounds": 7},
        {"client_fraction": 0.3, "federation__sampling": "poisson", "n_rounds": 7},
        {"federation__central_dp__noise": "clients"},
    ],
)
def test_what_is_planned_is_what_a_fit_reports(setting, toy):
    model = make().set_params(**setting)
    planned = model.planned_privacy(20)
    report = model.fit(*toy).privacy_
    assert planned.epsilon == pytest.approx(report.epsilon, rel=1e-9)
    assert planned.sampling == report.sampling
    if setting.get("federation__sampling") != "poisson":
        assert planned.n_coordinates == report.n_coordinates


def test_a_search_costs_all_its_fits(toy):
    search = GridSearchCV(make(), {"n_factors": [2, 3]}, cv=2, error_score="raise").fit(*toy)
    budget = PrivacyBudget(epsilon=100, delta=1e-3).charge(search)
    one = make().fit(*toy).privacy_
    assert budget.spent == pytest.approx(PrivacyReport.joined([one] * 5).epsilon)
    assert not budget.is_exceeded
    assert "5 fits" in repr(budget)
    assert "5" in budget._repr_html_()


def test_a_budget_refuses_what_it_cannot_pay(toy):
    budget = PrivacyBudget(epsilon=2, delta=1e-3)
    assert budget.spent == 0
    assert budget.report is None
    budget.check(make(), 20)
    budget.charge(make().fit(*toy))
    first = budget.spent
    with pytest.raises(ValueError, match="10 more fits would spend epsilon"):
        budget.check(make(), 20, n_fits=10)
    assert budget.spent == first
    for _ in range(10):
        budget.charge(budget.report)
    assert budget.is_exceeded
    assert PrivacyBudget(epsilon=100, delta=1e-4).charge(make().fit(*toy)).is_exceeded


def test_fits_without_noise_exceed_every_budget(toy):
    budget = PrivacyBudget(epsilon=1e6).charge(make().set_params(federation=None).fit(*toy))
    assert budget.is_exceeded
    assert budget.spent == float("inf")


@pytest.mark.parametrize("parameters", [(0, 1e-5), (-1, 1e-5), (1, 1), (1, -1e-9)])
def test_bad_budgets(parameters):
    with pytest.raises(ValueError, match="epsilon must be positive"):
        PrivacyBudget(*parameters)


def test_what_cannot_be_planned():
    with pytest.raises(ValueError, match="there is nothing to plan"):
        RFRec().planned_privacy(20)
    with pytest.raises(ValueError, match="the catalogue must be public"):
        make().set_params(items=None).planned_privacy(20)
