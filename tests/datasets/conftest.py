import os
from pathlib import Path

import pytest


@pytest.fixture
def real_data():
    """A folder with copies of MovieLens; whoever has none skips."""
    folder = os.environ.get("FEDRECSK_DATA")
    folder = Path(folder) if folder else Path(__file__).parents[3] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real ratings: {folder} does not exist; set FEDRECSK_DATA to a copy")
    return folder
