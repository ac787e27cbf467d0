import numpy as np
import pytest
from scipy import stats

from fedrecsk.protocol.keys import Key


def test_uniform_draws_are_uniform():
    draws = Key(3, 7).uniform("dropout", np.arange(20_000))
    assert stats.kstest(draws, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.03


def test_a_draw_depends_on_its_address_alone():
    key = Key(3, 7)
    assert np.array_equal(key.uniform("a", np.arange(9))[4:6], key.uniform("a", [4, 5]))


@pytest.mark.parametrize("other", [Key(4, 7), Key(3, 8), Key(3, -1)])
def test_other_addresses_give_other_draws(other):
    index = np.arange(1000)
    here = Key(3, 7).uniform("a", index)
    for there in (other.uniform("a", index), Key(3, 7).uniform("b", index)):
        assert abs(np.corrcoef(here, there)[0, 1]) < 0.15


def test_generators_repeat():
    assert Key(1).generator("x").random() == Key(1).generator("x").random()
    assert Key(1).generator("x").random() != Key(1).generator("y").random()
