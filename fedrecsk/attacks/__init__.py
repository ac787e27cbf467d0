"""Attacks: clients that poison the model, and servers or others that infer the clients' data."""

from fedrecsk.attacks._a_hum import AHum
from fedrecsk.attacks._adversary import Adversary
from fedrecsk.attacks._audit import PrivacyAudit, audit_privacy
from fedrecsk.attacks._fed_rec_attack import FedRecAttack
from fedrecsk.attacks._label_flip import LabelFlip
from fedrecsk.attacks._leakage import LeakReport, measure_leak
from fedrecsk.attacks._membership import MembershipReport, measure_membership
from fedrecsk.attacks._min_max import MinMax
from fedrecsk.attacks._pieck import PIECK
from fedrecsk.attacks._pip_attack import PipAttack
from fedrecsk.attacks._promotion import Promotion
from fedrecsk.attacks._psmu import PSMU
from fedrecsk.attacks._simple import RandomDirection, RandomUpload, SignFlip
from fedrecsk.attacks._targeted import TargetedAdversary
from fedrecsk.attacks._untargeted import ALIE, Fang
from fedrecsk.attacks._view import View

__all__ = [
    "ALIE",
    "PIECK",
    "PSMU",
    "AHum",
    "Adversary",
    "Fang",
    "FedRecAttack",
    "LabelFlip",
    "LeakReport",
    "MembershipReport",
    "MinMax",
    "PipAttack",
    "PrivacyAudit",
    "Promotion",
    "RandomDirection",
    "RandomUpload",
    "SignFlip",
    "TargetedAdversary",
    "View",
    "audit_privacy",
    "measure_leak",
    "measure_membership",
]
