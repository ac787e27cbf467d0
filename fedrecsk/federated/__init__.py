"""The federated methods, one file each."""

from fedrecsk.federated.rfrec import RFRec
from fedrecsk.federated.rfrecf import RFRecF

__all__ = ["RFRec", "RFRecF"]
