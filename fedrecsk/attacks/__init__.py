"""Attacks: clients that poison the model."""

from fedrecsk.attacks._base import Adversary, View
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
    "LabelFlip",
    "MinMax",
    "PipAttack",
    "Promotion",
    "RandomDirection",
    "RandomUpload",
    "SignFlip",
    "TargetedAdversary",
    "View",
]
