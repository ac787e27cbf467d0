"""A shop: reads its own file, and nobody else's."""

import numpy as np

from fedrecsk.deployment.flower import client_app
from shops.method import method


def load_data(context):
    """The shop's name and its rows: customer, item, time."""
    file = context.node_config["data"]
    return {"client_id": file, "X": np.loadtxt(file, delimiter=",", dtype=int)}


app = client_app(method, load_data)
