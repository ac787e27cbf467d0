"""The federated methods, one file each."""

from fedrecsk._codes import pack_codes, unpack_codes
from fedrecsk.federated.colr import CoLR
from fedrecsk.federated.explicit_fcf import ExplicitFCF
from fedrecsk.federated.fcf import FCF
from fedrecsk.federated.fedease import FedEASE
from fedrecsk.federated.fedeb import FedEB
from fedrecsk.federated.fedfast import FedFast
from fedrecsk.federated.fedmf import FedMF
from fedrecsk.federated.fedrec import FedRec
from fedrecsk.federated.fedspectral import FedSpectral
from fedrecsk.federated.globsgd import GlobSGD
from fedrecsk.federated.lightfr import LightFR
from fedrecsk.federated.locals import LocALS
from fedrecsk.federated.locsgd import LocSGD
from fedrecsk.federated.privfedeb import PrivFedEB
from fedrecsk.federated.privrec import PrivRec
from fedrecsk.federated.rfrec import RFRec
from fedrecsk.federated.rfrecf import RFRecF
from fedrecsk.federated.scolr import SCoLR
from fedrecsk.federated.semidfegl import SemiDFEGL

__all__ = [
    "FCF",
    "CoLR",
    "ExplicitFCF",
    "FedEASE",
    "FedEB",
    "FedFast",
    "FedMF",
    "FedRec",
    "FedSpectral",
    "GlobSGD",
    "LightFR",
    "LocALS",
    "LocSGD",
    "PrivFedEB",
    "PrivRec",
    "RFRec",
    "RFRecF",
    "SCoLR",
    "SemiDFEGL",
    "pack_codes",
    "unpack_codes",
]
