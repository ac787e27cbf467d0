"""The checks for methods of other people: ours pass them, broken ones fail."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from fedrecsk import BiasOnly, testing
from fedrecsk.protocol import Dense, Message
from fedrecsk.testing import check_federated_estimator
from tests.test_contract import FEDERATED

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "add_a_method.py"


def worked_method():
    """The class of examples/add_a_method.py, which is not in the package."""
    spec = importlib.util.spec_from_file_location("worked_method_under_check", EXAMPLE)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FederatedRidge


Ridge = worked_method()


def test_the_worked_method_passes_all_checks():
    check_federated_estimator(Ridge(n_factors=2))


@pytest.mark.full
@pytest.mark.parametrize("Estimator", FEDERATED)
def test_every_method_passes_the_checks_that_its_other_tests_lack(Estimator):
    testing.check_parts_of_a_federation_work_or_are_refused(Estimator())
    testing.check_hooks_keep_to_their_side(Estimator())
    testing.check_uploads_change_the_model(Estimator())
    testing.check_the_halves_make_the_same_model(Estimator())


class DrawsFromNumPy(Ridge):
    def _begin(self, catalogue, sums, key):
        server = super()._begin(catalogue, sums, key)
        noise = np.random.default_rng().normal(size=server["items"].shape)
        return server | {"items": server["items"] + noise}


class SetsAttributes(Ridge):
    def _client_update(self, block, state, message, turn, key):
        self.seen = block.items
        return super()._client_update(block, state, message, turn, key)


class LooksAtNeighbours(Ridge):
    def _user_attributes(self, block, state):
        attributes = super()._user_attributes(block, state)
        return attributes | {"user_bias_": attributes["user_bias_"] - state["users"][:, 0].mean()}


class KeepsALambda(Ridge):
    def _begin(self, catalogue, sums, key):
        return super()._begin(catalogue, sums, key) | {"rate": lambda: 1}


class CountsCalls(Ridge):
    def _model(self, server):
        server["calls"] = server.get("calls", 0) + 1
        return Message(items=Dense(server["items"] * server["calls"]))


class IgnoresUploads(Ridge):
    def _aggregate(self, server, message, upload, key):
        return server


class IsInfinite(Ridge):
    def _aggregate(self, server, upload, key):
        server = super()._aggregate(server, upload, key)
        return server | {"items": np.where(server["items"] > 0, server["items"] * 1e200, 0)}


@pytest.mark.parametrize(
    ("Broken", "check"),
    [
        (DrawsFromNumPy, testing.check_equal_seeds_give_equal_models),
        (SetsAttributes, testing.check_hooks_keep_to_their_side),
        (LooksAtNeighbours, testing.check_blocks_do_not_matter),
        (CountsCalls, testing.check_hooks_keep_to_their_side),
        (IgnoresUploads, testing.check_uploads_change_the_model),
    ],
)
def test_a_broken_method_fails(Broken, check):
    with pytest.raises(AssertionError):
        check(Broken(n_factors=2))


def test_a_method_that_no_device_could_store_fails():
    with pytest.raises(AttributeError, match="pickle"):
        testing.check_the_halves_make_the_same_model(KeepsALambda(n_factors=2))


def test_errors_name_their_check(monkeypatch):
    monkeypatch.setattr(testing, "check_estimator", lambda estimator: None)
    with pytest.raises(ValueError, match=r"diverged|infinite|NaN") as error:
        check_federated_estimator(IsInfinite(n_factors=2))
    assert "fedrecsk.testing.check_equal_seeds" in error.value.__notes__[0]


def test_other_estimators_are_refused():
    with pytest.raises(TypeError, match="instance of a federated method, got BiasOnly"):
        check_federated_estimator(BiasOnly())
    with pytest.raises(TypeError, match="instance of a federated method"):
        check_federated_estimator(Ridge)
