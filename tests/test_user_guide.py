import re
import warnings
from pathlib import Path

import numpy as np

from fedrecsk.datasets import make_ratings

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "user_guide.md"


def test_the_guides_code_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    X, y = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    table = np.column_stack([X, y])[:, [0, 1, 3, 2]]
    np.savetxt("ratings.csv", table, "%d", ",", header="user,item,rating,timestamp", comments="")
    names = {
        "shop_of_row": X[:, 0] % 3,
        "negatives": [[user, item] for user in range(60) for item in range(12)],
    }
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(blocks) >= 8
    for block in blocks:
        code = block.replace('["ann", "bob"]', "[0, 1]")
        with warnings.catch_warnings():
            # The made-up negatives are often seen, and the scorer says so.
            warnings.simplefilter("ignore", UserWarning)
            exec(code, names)
