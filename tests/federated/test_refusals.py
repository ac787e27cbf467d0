"""What a method cannot protect, it refuses by name before any work."""

from dataclasses import replace

import numpy as np
import pytest

from fedrecsk import Federation, FedMF
from fedrecsk.aggregation import NormClipping
from fedrecsk.compression import TopK
from fedrecsk.federated.fedmf import FedMFAlgorithm
from fedrecsk.privacy import LaplaceMechanism, SecAggPlus
from tests.listed import THINGS

WITHOUT_NOISE = [
    name
    for name, one in sorted(THINGS.items())
    if hasattr(one, "_algorithm") and "local_dp" in one()._algorithm().traits.refuses
]
# These send whole matrices only if asked to.
OWN_ROWS = ["ExplicitFCF", "FedEB", "FedRec", "GlobSGD", "LightFR", "LocALS", "LocSGD"]
OWN_ROWS_IF_TOLD = ["FCF", "FedEASE", "FedItemKNN", "FedSpectral"]


@pytest.mark.parametrize("name", WITHOUT_NOISE)
def test_local_noise_is_refused(name, toy):
    X, y = toy
    federation = Federation(local_dp=LaplaceMechanism(0.2, 0.1))
    model = THINGS[name](federation=federation, items=np.unique(X[:, 1]))
    with pytest.raises(ValueError, match=f"{name} has no local_dp: "):
        model.fit(X, y)


@pytest.mark.parametrize("name", [*OWN_ROWS, *OWN_ROWS_IF_TOLD])
def test_rows_of_some_items_are_refused_under_encryption(name, toy):
    parameters = {"upload": "local"} if name in OWN_ROWS_IF_TOLD else {}
    federation = Federation(secure_aggregation=SecAggPlus())
    model = THINGS[name](federation=federation, **parameters)
    with pytest.raises(ValueError, match=f'{name} must send whole .* encrypted; set upload="all"'):
        model.fit(*toy)


def test_all_that_does_not_go_together_is_named_at_once(toy):
    federation = Federation(
        secure_aggregation=SecAggPlus(), aggregator=NormClipping(), compression=TopK()
    )
    with pytest.raises(ValueError, match="2 settings do not suit this fit") as caught:
        FedMF(federation=federation).fit(*toy)
    assert "NormClipping looks at single uploads; set aggregator=None" in str(caught.value)
    assert "compressed by TopK cannot be; set compression=None" in str(caught.value)


def test_a_reason_against_a_part_that_there_is_not_is_an_error_of_its_author(toy):
    class Algorithm(FedMFAlgorithm):
        @property
        def traits(self):
            return replace(super().traits, refuses={"compresion": "it would not help."})

    class Method(FedMF):
        _kind = Algorithm

    with pytest.raises(AttributeError, match="compresion"):
        Method().fit(*toy)
