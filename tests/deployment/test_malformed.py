"""Nodes outlive whatever a server sends them."""

import os
import subprocess
import sys

import pytest

from fedrecsk.federated.base import FederatedRecommender
from tests.listed import THINGS

METHODS = [
    name
    for name, one in THINGS.items()
    if isinstance(one, type) and issubclass(one, FederatedRecommender)
]
# torch trains any module in the same way; these have other messages.
METHODS = [name for name in METHODS if name != "FederatedModule"]


@pytest.mark.full
@pytest.mark.parametrize("name", METHODS)
def test_a_node_refuses_arrays_that_were_not_declared(name):
    # In a process of its own, which a kernel that writes outside of its arrays would end.
    command = [sys.executable, "-m", "tests.deployment.malformed", name]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{result.stdout[-300:]}\n{result.stderr[-3000:]}"


@pytest.mark.full
def test_no_kernel_reads_outside_of_its_arrays(tmp_path):
    # A cache of its own, because numba's does not know whether bounds are checked.
    checked = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.deployment.malformed", "LocALS"]
    result = subprocess.run(
        command, env=os.environ | checked, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{result.stdout[-300:]}\n{result.stderr[-3000:]}"
