"""Attacks: clients that poison the model, and a server that infers the clients' data."""

from fedrecsk.attacks._leakage import LeakReport, measure_leak
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
    "Promotion",
    "RandomDirection",
    "RandomUpload",
    "SignFlip",
    "measure_leak",
]
