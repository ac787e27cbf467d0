"""What dishonest clients can do to a model."""

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
    "Promotion",
    "RandomDirection",
    "RandomUpload",
    "SignFlip",
]
