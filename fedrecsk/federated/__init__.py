"""The federated methods, one file each."""

from fedrecsk.federated._codes import pack_codes, unpack_codes
from fedrecsk.federated.colr import CoLR
from fedrecsk.federated.fedmf import FedMF
from fedrecsk.federated.fedrec import FedRec
from fedrecsk.federated.globsgd import GlobSGD
from fedrecsk.federated.lightfr import LightFR
from fedrecsk.federated.locals import LocALS
from fedrecsk.federated.locsgd import LocSGD
from fedrecsk.federated.rfrec import RFRec
from fedrecsk.federated.rfrecf import RFRecF
from fedrecsk.federated.scolr import SCoLR

__all__ = [
    "CoLR",
    "FedMF",
    "FedRec",
    "GlobSGD",
    "LightFR",
    "LocALS",
    "LocSGD",
    "RFRec",
    "RFRecF",
    "SCoLR",
    "pack_codes",
    "unpack_codes",
]
