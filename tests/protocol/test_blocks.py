import numpy as np
import pytest

from fedrecsk.data.interactions import encode
from fedrecsk.protocol.blocks import block_size, cut


@pytest.mark.parametrize("n_items", [2, 90_000])
def test_blocks_are_few_and_catalogues_never_outweigh_ratings(n_items):
    rng = np.random.default_rng(0)
    X = np.stack([rng.integers(0, 5000, 200_000), rng.integers(0, n_items, 200_000)], axis=1)
    data = encode(X)
    blocks = cut(data)
    assert block_size(len(data.items), data.n_items) >= 2**16
    assert len(blocks) <= 64
    assert (len(blocks) - 1) * data.n_items <= len(data.items)
