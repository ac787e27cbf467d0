"""Whatever a program has set in torch, fits and predictions are the same, and it stays set."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from sklearn.base import clone

from fedrecsk.neural import NCF, FederatedModule, FedNCF, FedRAP, GPFedRec, MetaMF, PFedRec
from fedrecsk.neural.modules import GMF


def double_precision():
    return in_turn(torch.set_default_dtype, torch.float64, torch.float32)


def another_device():
    return in_turn(torch.set_default_device, "meta", None)


@contextmanager
def in_turn(change, value, before):
    change(value)
    try:
        yield
    finally:
        change(before)


SETTINGS = {
    "float64": double_precision,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "device": another_device,
}


def state():
    device = torch.get_default_device()
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return torch.get_default_dtype(), device, torch.get_num_threads(), modes


METHODS = [
    FederatedModule(GMF, private="user*"),
    *(Method() for Method in (PFedRec, FedRAP, FedNCF, GPFedRec, MetaMF, NCF)),
]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_a_fit_is_the_same(method, setting, toy):
    X, y = toy
    small = {"n_rounds": 2, "n_epochs": 2, "n_factors": 3, "random_state": 0, "n_jobs": 2}
    known = method.get_params(deep=False)
    method = clone(method).set_params(**{n: v for n, v in small.items() if n in known})
    y = y if method.__sklearn_tags__().target_tags.required else None
    new = np.add(X[:5], [1000, 0]), None if y is None else y[:5]

    def found():
        model = clone(method).fit(X, y)
        scores = model.predict(X), model.recommend(model.user_ids_[:3], 4)[1]
        return model, [*scores, model.fold_in(*new).predict(new[0])]

    plain, expected = found()
    with SETTINGS[setting]():
        before = state()
        model, scores = found()
        again = plain.predict(X)
        assert state() == before
    for one, other in zip(scores, expected, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    np.testing.assert_array_equal(again, plain.predict(X))
    np.testing.assert_array_equal(model.predict(X), plain.predict(X))
    if not hasattr(model, "to_module"):
        return
    user = () if isinstance(model, NCF) else model.user_ids_[:1].tolist()
    with SETTINGS[setting]():
        module = model.to_module(*user)
    for parameter in module.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.device.type == "cpu"
        assert not parameter.is_inference()


def test_modules_without_a_gradient_of_their_own_are_still_named(toy):
    class Constant(GMF):
        def forward(self, users, items):
            return super().forward(users, items).detach()

    with pytest.raises(ValueError, match="returns scores without a gradient"):
        FederatedModule(Constant, private="user*", n_rounds=1).fit(toy[0])
