"""Attacks: clients that poison the model, and a server that infers the clients' data."""

from fedrecsk.attacks._adversary import Adversary
from fedrecsk.attacks._label_flip import LabelFlip
from fedrecsk.attacks._leakage import LeakReport, measure_leak
from fedrecsk.attacks._promotion import Promotion
from fedrecsk.attacks._simple import RandomDirection, RandomUpload, SignFlip
from fedrecsk.attacks._view import View

__all__ = [
    "Adversary",
    "LabelFlip",
    "LeakReport",
    "Promotion",
    "RandomDirection",
    "RandomUpload",
    "SignFlip",
    "View",
    "measure_leak",
]
