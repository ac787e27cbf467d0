import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from fedrecsk.datasets import make_ratings

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = [DOCS / "index.md", DOCS / "getting_started.md", *sorted(DOCS.glob("user_guide/*.md"))]


def blocks_of(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    X, y = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    table = np.column_stack([X, y])[:, [0, 1, 3, 2]].astype(int).astype(object)
    table[:, 0] = [f"user {user}" for user in table[:, 0]]
    np.savetxt("ratings.csv", table, "%s", ",", header="user,item,rating,timestamp", comments="")
    blocks = blocks_of(page)
    assert blocks
    names = {}
    for block in blocks:
        with warnings.catch_warnings():
            # The made-up negatives are often seen, and the scorer says so.
            warnings.simplefilter("ignore", UserWarning)
            exec(block, names)


def test_every_page_of_the_guide_is_listed_in_it():
    guide = (DOCS / "user_guide.md").read_text()
    for page in DOCS.glob("user_guide/*.md"):
        assert f"](user_guide/{page.name})" in guide
        assert f"\nuser_guide/{page.stem}\n" in guide
