"""Attacks: clients that poison the model, and servers or others that infer the clients' data."""

from fedrecsk.attacks._base import Adversary, View
from fedrecsk.attacks._leakage import LeakReport, measure_leak, register_inversion
from fedrecsk.attacks._membership import (
    ForgettingReport,
    MembershipReport,
    PrivacyAudit,
    audit_privacy,
    measure_forgetting,
    measure_membership,
)
from fedrecsk.attacks._server_view import Reconstruction
from fedrecsk.attacks._targeted import (
    PIECK,
    PSMU,
    AHum,
    FedRecAttack,
    PipAttack,
    Promotion,
    TargetedAdversary,
)
from fedrecsk.attacks._untargeted import (
    ALIE,
    Fang,
    LabelFlip,
    MinMax,
    RandomDirection,
    RandomUpload,
    SignFlip,
)

__all__ = [
    "ALIE",
    "PIECK",
    "PSMU",
    "AHum",
    "Adversary",
    "Fang",
    "FedRecAttack",
    "ForgettingReport",
    "LabelFlip",
    "LeakReport",
    "MembershipReport",
    "MinMax",
    "PipAttack",
    "PrivacyAudit",
    "Promotion",
    "RandomDirection",
    "RandomUpload",
    "Reconstruction",
    "SignFlip",
    "TargetedAdversary",
    "View",
    "audit_privacy",
    "measure_forgetting",
    "measure_leak",
    "measure_membership",
    "register_inversion",
]
