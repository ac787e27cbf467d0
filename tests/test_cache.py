"""A fit that compiles its kernels and one that finds them in numba's cache."""

import os
import subprocess
import sys

PROGRAM = """
import hashlib
import numpy as np
from fedrecsk import RFRec
from fedrecsk.datasets import make_ratings
X, y = make_ratings(n_users=300, n_items=100, n_ratings=9_000, random_state=0)
model = RFRec(n_rounds=4, random_state=0).fit(X, y)
print(hashlib.md5(model.item_factors_.tobytes() + model.user_factors_.tobytes()).hexdigest())
"""


def test_a_first_fit_equals_later_ones_bit_for_bit(tmp_path):
    place = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    first, second = (
        subprocess.run(
            [sys.executable, "-c", PROGRAM], env=place, check=True, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    )
    assert list(tmp_path.rglob("*.nbc"))
    assert first == second
