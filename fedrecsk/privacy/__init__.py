"""Mechanisms that protect uploads, and the accounting of what they guarantee."""

from fedrecsk.privacy._secure_sum import (
    Ciphertext,
    Keys,
    SecureAggregation,
    SecureSum,
    secure_sum,
)
from fedrecsk.privacy.accounting import Event, epsilon_of
from fedrecsk.privacy.central_dp import CentralDP
from fedrecsk.privacy.ckks import CKKS
from fedrecsk.privacy.local_dp import LaplaceMechanism
from fedrecsk.privacy.paillier import Paillier
from fedrecsk.privacy.report import PrivacyReport

__all__ = [
    "CKKS",
    "CentralDP",
    "Ciphertext",
    "Event",
    "Keys",
    "LaplaceMechanism",
    "Paillier",
    "PrivacyReport",
    "SecureAggregation",
    "SecureSum",
    "epsilon_of",
    "secure_sum",
]
