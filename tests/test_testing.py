"""The checks for methods of other people: ours pass them, broken ones fail."""

import importlib.util
import pickle
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from fedrecsk import BiasOnly, RFRec, testing
from fedrecsk.base import RatingMixin
from fedrecsk.federated import estimator_of
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.federated.rfrec import RFRecAlgorithm
from fedrecsk.models import clipped
from fedrecsk.protocol import Algorithm
from fedrecsk.selection import federated_evaluate
from fedrecsk.testing import check_federated_estimator
from tests.conftest import make_toy
from tests.test_contract import FEDERATED

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "add_a_method.py"


def worked_method():
    """The estimator and the algorithm of examples/add_a_method.py, which are not in the package."""
    spec = importlib.util.spec_from_file_location("worked_method_under_check", EXAMPLE)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FederatedRidge, module.FederatedRidgeAlgorithm


Ridge, RidgeAlgorithm = worked_method()


def test_the_worked_method_passes_all_checks():
    check_federated_estimator(Ridge(n_factors=2))


@pytest.mark.full
@pytest.mark.parametrize("Estimator", FEDERATED)
def test_every_method_passes_the_checks_that_its_other_tests_lack(Estimator):
    testing.check_parts_of_a_federation_work_or_are_refused(Estimator())
    testing.check_hooks_keep_to_their_side(Estimator())
    testing.check_uploads_change_the_model(Estimator())
    testing.check_the_halves_make_the_same_model(Estimator())


def broken(**functions):
    """An estimator of the worked algorithm with other functions."""
    Kind = type("BrokenAlgorithm", (RidgeAlgorithm,), functions | {"__module__": __name__})
    Estimator = estimator_of(Kind, n_rounds=3)
    # Pickles find them by their names.
    globals().update({"BrokenAlgorithm": Kind, "Broken": Estimator})
    return Estimator


def draws_from_numpy(self, catalogue, sums, key):
    server = RidgeAlgorithm.begin(self, catalogue, sums, key)
    return replace(server, items=server.items + np.random.default_rng().normal())


def sets_attributes(self, block, clients, message, turn, key):
    object.__setattr__(self, "seen", block.items)
    return RidgeAlgorithm.update(self, block, clients, message, turn, key)


def looks_at_neighbours(self, block, clients):
    attributes = RidgeAlgorithm.user_attributes(self, block, clients)
    return attributes | {"user_bias_": attributes["user_bias_"] - clients.users[:, 0].mean()}


def keeps_a_lambda(self, catalogue, sums, key):
    server = RidgeAlgorithm.begin(self, catalogue, sums, key)
    object.__setattr__(server, "rate", lambda: 1)
    return server


def counts_calls(self, server, key):
    server.items[:] *= 1.01
    return RidgeAlgorithm.broadcast(self, server, key)


def ignores_uploads(self, server, upload, key):
    return server


def is_infinite(self, server, upload, key):
    server = RidgeAlgorithm.step(self, server, upload, key)
    return replace(server, items=np.where(server.items > 0, server.items * 1e200, 0))


@pytest.mark.parametrize(
    ("functions", "check"),
    [
        ({"begin": draws_from_numpy}, testing.check_equal_seeds_give_equal_models),
        ({"update": sets_attributes}, testing.check_hooks_keep_to_their_side),
        ({"user_attributes": looks_at_neighbours}, testing.check_blocks_do_not_matter),
        ({"broadcast": counts_calls}, testing.check_hooks_keep_to_their_side),
        ({"step": ignores_uploads}, testing.check_uploads_change_the_model),
    ],
)
def test_a_broken_method_fails(functions, check):
    with pytest.raises(AssertionError):
        check(broken(**functions)(n_factors=2))


def scores_on_the_scale(self, fitted):
    return replace(RidgeAlgorithm.model(self, fitted), response=clipped(2.0, 3.0))


def always_worse(self, model, held_out, seen):
    assert np.isin(model.predict(held_out.users, held_out.items), [2, 3]).any()
    first = len(MEASURED)
    MEASURED.append(first)
    return np.full((2, len(held_out.users)), [[1.0 + first], [1.0]])


MEASURED = []


def test_a_model_of_ones_own_predicts_recommends_and_is_evaluated():
    X, y = make_toy(20, 12, density=0.6)
    MEASURED.clear()
    Own = broken(model=scores_on_the_scale, losses=always_worse)
    model = Own(n_factors=2, early_stopping=True, random_state=0).fit(X, y)
    assert len(MEASURED) == 3
    assert model.best_round_ == 0
    predicted = model.predict(X)
    assert predicted.min() == 2
    assert predicted.max() == 3
    assert model.recommend(X[:4, 0], 3)[1].max() == 3
    found = federated_evaluate(model, X, y, metrics="rmse", largest_error=4).values
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((y - predicted) ** 2)))


def test_a_method_that_no_device_could_store_fails():
    with pytest.raises((AttributeError, pickle.PicklingError), match=r"local object .*lambda"):
        testing.check_the_halves_make_the_same_model(broken(begin=keeps_a_lambda)(n_factors=2))


def test_errors_name_their_check(monkeypatch):
    monkeypatch.setattr(testing, "check_estimator", lambda *_, **__: [])
    with pytest.raises(ValueError, match=r"diverged|infinite|NaN") as error:
        check_federated_estimator(broken(step=is_infinite)(n_factors=2))
    assert "fedrecsk.testing.check_equal_seeds" in error.value.__notes__[0]


def is_upset_by_negative_values(self, block, message, key):
    assert (block.values >= 0).all()
    return RidgeAlgorithm.enter(self, block, message, key)


def test_errors_name_the_check_of_scikit_learn():
    with pytest.raises(AssertionError) as error:
        check_federated_estimator(broken(enter=is_upset_by_negative_values)(n_factors=2))
    assert "In scikit-learn's check_" in error.value.__notes__[0]
    assert "It was raised in enter(...)" in error.value.__notes__[1]


def test_an_error_in_a_function_names_it(monkeypatch):
    def fails(self, *given):
        return given["not there"]

    monkeypatch.setattr(testing, "check_estimator", lambda *_, **__: [])
    for name in ("answer", "enter", "update", "step", "final", "personalize"):
        with pytest.raises(TypeError) as error:
            check_federated_estimator(broken(**{name: fails})(n_factors=2))
        assert any(f"It was raised in {name}(...)" in note for note in error.value.__notes__)


def test_other_estimators_are_refused():
    with pytest.raises(TypeError, match="instance of a federated method, got BiasOnly"):
        check_federated_estimator(BiasOnly())
    with pytest.raises(TypeError, match="instance of a federated method"):
        check_federated_estimator(Ridge)


def test_an_estimator_without_an_algorithm_is_told():
    class Mine(RatingMixin, FederatedRecommender):
        pass

    with pytest.raises(TypeError, match="Mine has no algorithm; set _kind"):
        Mine().fit(*make_toy(20, 10))


def test_a_function_is_not_taken_for_a_parameter():
    @dataclass
    class RuleAlgorithm(RFRecAlgorithm):
        plan: int = 1

    @dataclass(eq=False, repr=False)
    class Mine(RFRec):
        plan: int = 3
        _kind = RuleAlgorithm

    # `_plan` is a function of every estimator.
    assert Mine()._algorithm().plan == 3


def test_what_an_algorithm_lacks_is_named():
    with pytest.raises(ValueError, match='learns should be "ratings" or "likes"'):
        estimator_of(RidgeAlgorithm, learns="clicks")
    with pytest.raises(TypeError, match=r"Only lacks begin, .*, user_attributes; see"):
        estimator_of(dataclass(type("Only", (Algorithm,), {})))
    with pytest.raises(TypeError, match="'n_round' is not a parameter of every federated method"):
        estimator_of(RidgeAlgorithm, n_round=3)
