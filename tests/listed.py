"""All that users import by name: from fedrecsk and, where torch is installed, fedrecsk.neural."""

from importlib.util import find_spec

import pytest

import fedrecsk

# Stand for all: baselines, matrix factorisation, closed form, Bayes, and three ways to federate.
REPRESENTATIVES = {"BiasOnly", "SVDpp", "EASE", "FedEB", "RFRec", "LocALS", "FedMF"}

THINGS = {name: getattr(fedrecsk, name) for name in fedrecsk.__all__}
if find_spec("torch"):
    from fedrecsk import neural

    THINGS |= {name: getattr(neural, name) for name in neural.__all__}

needs_callbacks = pytest.mark.skipif(
    not find_spec("sklearn.callback"), reason="callbacks came with scikit-learn 1.9"
)


def is_neural(Estimator):
    """Whether torch trains it, which makes each round of a test slow."""
    return Estimator.__module__.startswith("fedrecsk.neural")


def tolerance(Estimator, otherwise=1e-9):
    """How far two fits may differ that compute the same in other groups of clients.

    torch multiplies many small matrices at once, and rounds by how many they are.
    """
    return 1e-5 if is_neural(Estimator) else otherwise


def cases(estimators, settings, step, also=(), often=1):
    """Return parameters for pytest: pairs of estimators and settings.

    Representatives, and those of the names `also`, come in every `often`-th setting; others in
    every `step`-th, each beginning at another, so that all settings have several estimators.
    """
    return [
        pytest.param(Estimator, setting, id=f"{Estimator.__name__}-{setting}")
        for first, Estimator in enumerate(estimators)
        for place, setting in enumerate(settings, start=first)
        if place % (often if Estimator.__name__ in {*REPRESENTATIVES, *also} else step) == 0
    ]
