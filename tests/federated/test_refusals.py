"""What a method cannot protect, it refuses by name before any work."""

import numpy as np
import pytest

from fedrecsk import Federation
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
