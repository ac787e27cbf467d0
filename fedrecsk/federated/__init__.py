"""The federated methods, one file each."""

from fedrecsk.federated.globsgd import GlobSGD
from fedrecsk.federated.locals import LocALS
from fedrecsk.federated.locsgd import LocSGD
from fedrecsk.federated.rfrec import RFRec
from fedrecsk.federated.rfrecf import RFRecF

__all__ = ["GlobSGD", "LocALS", "LocSGD", "RFRec", "RFRecF"]
