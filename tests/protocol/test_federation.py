"""The federation as an object of parameters."""

import pytest

from fedrecsk import Federation, LocALS
from fedrecsk.compression import LowRank, TopK


@pytest.mark.parametrize("federation", [None, Federation()], ids=str)
def test_a_parameter_of_a_part_that_is_not_there_is_refused(federation):
    model = LocALS(federation=federation)
    with pytest.raises(ValueError, match=r"compression__ratio .* because compression is None; set"):
        model.set_params(federation__compression__ratio=0.5)


def test_a_part_and_its_parameter_are_set_in_one_call():
    model = LocALS()
    model.set_params(federation__compression=TopK(), federation__compression__ratio=0.5)
    assert model.federation.compression.ratio == 0.5
    model.federation.set_params(compression=LowRank(), compression__rank=2)
    assert model.federation.compression.rank == 2


def test_a_name_that_is_no_parameter_is_refused_as_always():
    with pytest.raises(ValueError, match="Invalid parameter 'dropot'"):
        LocALS().set_params(federation__dropot=0.5)
    with pytest.raises(ValueError, match="Invalid parameter 'dropot'"):
        LocALS().set_params(federation__dropot__x=0.5)
