"""Attacks: clients that poison the model, and servers or others that infer the clients' data."""

from fedrecsk.attacks._leakage import LeakReport, measure_leak
from fedrecsk.attacks._membership import MembershipReport, measure_membership
from fedrecsk.attacks._poisoning import (
    Adversary,
    LabelFlip,
    Promotion,
    RandomDirection,
    RandomUpload,
    SignFlip,
)

__all__ = [
    "Adversary",
    "LabelFlip",
    "LeakReport",
    "MembershipReport",
    "Promotion",
    "RandomDirection",
    "RandomUpload",
    "SignFlip",
    "measure_leak",
    "measure_membership",
]
