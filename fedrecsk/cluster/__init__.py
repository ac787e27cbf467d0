"""Models whose users live on the workers of a Dask cluster."""

from fedrecsk.cluster._checkpoints import checkpoints
from fedrecsk.cluster._frames import gather

__all__ = ["checkpoints", "gather"]
