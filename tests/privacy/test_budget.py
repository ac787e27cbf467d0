"""Budgets: what several fits and searches cost together."""

import dp_accounting
import numpy as np
import pytest
from scipy.stats import norm
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from fedrecsk import BiasOnly, Federation, RFRec
from fedrecsk.privacy import CentralDP, GaussianMechanism, PrivacyBudget, PrivacyReport
from tests.conftest import make_toy

PUBLIC = {"items": np.arange(9) * 3 + 1000, "rating_scale": (1, 5), "aggregation": "clients"}


def make(**parameters):
    mechanism = CentralDP(noise_multiplier=4.0, delta=1e-3)
    federation = Federation(central_dp=mechanism)
    return RFRec(3, n_rounds=2, random_state=0, federation=federation, **PUBLIC, **parameters)


@pytest.fixture(scope="module")
def toy():
    return make_toy(20, 9, seed=1)


COHORTS = {"client_fraction": 0.3, "n_rounds": 7}


@pytest.mark.parametrize(
    ("setting", "sampling"),
    [
        ({}, "every client may be in every round"),
        (COHORTS, "cohorts at random, which count as known"),
        (COHORTS | {"federation__sampling": "rotating"}, "cohorts take turns"),
        (
            COHORTS | {"federation__sampling": "random"},
            "cohorts at random, which count as known",
        ),
        (
            COHORTS | {"federation__sampling": "poisson"},
            "each client joins a round with probability 0.3, in secret",
        ),
        ({"federation__central_dp__noise": "clients"}, "every client may be in every round"),
    ],
)
def test_what_is_planned_is_what_a_fit_reports(setting, sampling, toy):
    model = make().set_params(**setting)
    planned = model.planned_privacy(20)
    report = model.fit(*toy).privacy_
    assert planned.epsilon == pytest.approx(report.epsilon, rel=1e-9)
    assert planned.sampling == report.sampling == sampling
    one = planned.epsilon_per_coordinate
    assert one == pytest.approx(report.epsilon_per_coordinate, rel=1e-9)
    assert 0 < one < planned.epsilon
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
    assert "exceeded: The fits' epsilon" in repr(budget)
    assert PrivacyBudget(epsilon=100, delta=0).charge(make().fit(*toy)).is_exceeded


def test_fits_without_noise_exceed_every_budget(toy):
    budget = PrivacyBudget(epsilon=1e6).charge(make().set_params(federation=None).fit(*toy))
    assert budget.is_exceeded
    assert budget.spent == float("inf")


@pytest.mark.parametrize("epsilon", [0.3, 5, 40])
@pytest.mark.parametrize("setting", [{}, COHORTS, {"federation__central_dp__noise": "clients"}])
def test_a_fit_stays_within_its_epsilon(epsilon, setting, toy):
    mechanism = CentralDP(epsilon=epsilon, delta=1e-3)
    model = make().set_params(federation__central_dp=mechanism).set_params(**setting)
    spent = model.fit(*toy).privacy_.epsilon
    assert 0.98 * epsilon < spent <= epsilon
    assert 0.98 * epsilon < model.planned_privacy(20).epsilon <= epsilon


def test_what_reports_no_privacy_is_named(toy):
    budget, plain = PrivacyBudget(epsilon=5), RFRec(3, n_rounds=1)
    pipeline = make_pipeline("passthrough", plain).fit(*toy)
    search = GridSearchCV(BiasOnly(), {"reg_user": [1.0]}, cv=2).fit(*toy)
    for wrong in (pipeline, search, BiasOnly().fit(*toy), 5, [plain]):
        with pytest.raises(TypeError, match="has no privacy_; charge a fitted federated estimator"):
            budget.charge(wrong)
    with pytest.raises(NotFittedError):
        budget.charge(make())
    with pytest.raises(TypeError, match="BiasOnly plans no privacy; pass a federated estimator"):
        budget.check(BiasOnly(), 20)
    assert budget.report is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("epsilon", 0), ("epsilon", -1), ("epsilon", "1"), ("delta", 1), ("delta", -1e-9)],
)
def test_bad_budgets(name, value):
    with pytest.raises(ValueError, match=f"The '{name}' parameter of PrivacyBudget must be"):
        PrivacyBudget(**{"epsilon": 1.0, name: value})
    for name in ("n_clients", "n_fits"):
        message = f"'{name}' parameter of PrivacyBudget.check must be an"
        with pytest.raises(ValueError, match=message):
            PrivacyBudget(epsilon=1.0).check(make(), **{"n_clients": 20, name: 0})


def test_what_cannot_be_planned():
    with pytest.raises(ValueError, match="there is nothing to plan"):
        RFRec().planned_privacy(20)
    with pytest.raises(ValueError, match="the catalogue must be public"):
        make().set_params(items=None).planned_privacy(20)


@pytest.mark.parametrize(("delta", "epsilon"), [(1e-6, 5.57), (1e-5, 5.0), (1e-4, 4.36)])
def test_a_budget_counts_at_its_own_delta(delta, epsilon, toy):
    mechanism = CentralDP(epsilon=5, delta=1e-5)
    model = make().set_params(federation__central_dp=mechanism).fit(*toy)
    budget = PrivacyBudget(epsilon=5.3, delta=delta).charge(model)
    assert budget.spent == pytest.approx(epsilon, abs=0.005)
    assert budget.report.delta == delta
    assert budget.is_exceeded == (epsilon > 5.3)
    # By the definition: the delta of a Gaussian whose sensitivity is mu standard deviations.
    mu = sum(one.count / one.noise_multiplier**2 for one in budget.report.events) ** 0.5
    spent = budget.spent
    tail = norm.cdf(mu / 2 - spent / mu) - np.exp(spent) * norm.cdf(-mu / 2 - spent / mu)
    assert tail == pytest.approx(delta, rel=1e-6)


def test_central_fits_have_the_delta_that_local_ones_leave(toy):
    central = make().fit(*toy).privacy_
    local = PrivacyReport.of(GaussianMechanism(1.0, 5.0, delta=3e-6), [2], [20])
    budget = PrivacyBudget(epsilon=100, delta=1e-5).charge(central).charge(local)
    rest = dp_accounting.get_epsilon_gaussian(4.0 / np.sqrt(2), 7e-6)
    assert budget.spent == pytest.approx(rest + local.epsilon, rel=1e-6)
    assert not budget.is_exceeded
    with pytest.raises(ValueError, match="add noise, fit less often, or raise the budget's delta"):
        PrivacyBudget(epsilon=100, delta=3e-6).charge(local).check(make(), 20)
    with pytest.raises(ValueError, match="fits' delta 3e-06 is above the budget's 1e-06"):
        PrivacyBudget(epsilon=100, delta=1e-6).charge(local).check(make(), 20)
