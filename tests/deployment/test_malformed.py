"""Nodes outlive whatever a server sends them."""

import os
import subprocess
import sys

import pytest

from fedrecsk.federated.base import FederatedRecommender
from tests.listed import THINGS, is_neural

FEDERATED = {
    name: one
    for name, one in THINGS.items()
    if isinstance(one, type) and issubclass(one, FederatedRecommender)
}
# It has the messages of the other neural methods.
FEDERATED.pop("FederatedModule", None)
NEURAL = [name for name, one in FEDERATED.items() if is_neural(one)]
OTHERS = [name for name in FEDERATED if name not in NEURAL]

pytestmark = pytest.mark.full


def fuzz(*names, **environment):
    """Fuzz methods in a process of its own, which a kernel that leaves its arrays would end."""
    command = [sys.executable, "-m", "tests.deployment.malformed", *names]
    result = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{result.stdout[-300:]}\n{result.stderr[-3000:]}"


@pytest.mark.parametrize("part", range(3))
def test_a_node_refuses_arrays_that_were_not_declared(part):
    fuzz(*OTHERS[part::3])


@pytest.mark.skipif(not NEURAL, reason="needs torch")
def test_a_node_of_a_neural_method_refuses_arrays_that_were_not_declared():
    fuzz(*NEURAL)


def test_no_kernel_reads_outside_of_its_arrays(tmp_path):
    # A cache of its own, because numba's does not know whether bounds are checked.
    fuzz("LocALS", NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(tmp_path))
