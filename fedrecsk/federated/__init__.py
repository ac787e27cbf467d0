"""The federated methods: one file for each and its variants."""

from fedrecsk.federated.colr import CoLR, SCoLR
from fedrecsk.federated.estimator import estimator_of
from fedrecsk.federated.fcf import FCF
from fedrecsk.federated.fedease import FedEASE
from fedrecsk.federated.fedeb import FedEB
from fedrecsk.federated.feditemknn import FedItemKNN
from fedrecsk.federated.fedmf import FedMF
from fedrecsk.federated.lightfr import LightFR
from fedrecsk.federated.locals import LocALS
from fedrecsk.federated.papers.explicit_fcf import ExplicitFCF
from fedrecsk.federated.papers.fedfast import FedFast
from fedrecsk.federated.papers.fedrec import FedRec
from fedrecsk.federated.papers.fedspectral import FedSpectral
from fedrecsk.federated.papers.globsgd import GlobSGD
from fedrecsk.federated.papers.locsgd import LocSGD
from fedrecsk.federated.papers.privrec import PrivRec
from fedrecsk.federated.papers.semidfegl import SemiDFEGL
from fedrecsk.federated.privfedeb import PrivFedEB
from fedrecsk.federated.rfrec import RFRec
from fedrecsk.federated.rfrecf import RFRecF
from fedrecsk.models._codes import pack_codes, unpack_codes

__all__ = [
    "FCF",
    "CoLR",
    "ExplicitFCF",
    "FedEASE",
    "FedEB",
    "FedFast",
    "FedItemKNN",
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
    "estimator_of",
    "pack_codes",
    "unpack_codes",
]
