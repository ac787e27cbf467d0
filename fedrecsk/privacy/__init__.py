"""Mechanisms that protect uploads, and the accounting of what they guarantee."""

from fedrecsk.privacy._secagg_protocol import Identity, MaskingFailed
from fedrecsk.privacy._secure_aggregation import (
    Ciphertext,
    Encryption,
    Keys,
    Party,
    SecureAggregation,
    SecureSum,
    secure_sum,
)
from fedrecsk.privacy.accounting import Event, epsilon_of, shuffled_epsilon
from fedrecsk.privacy.central_dp import CentralDP
from fedrecsk.privacy.encryption import CKKS, Paillier
from fedrecsk.privacy.local_dp import (
    GaussianMechanism,
    LaplaceMechanism,
    LocalMechanism,
    SphereMechanism,
)
from fedrecsk.privacy.report import PrivacyBudget, PrivacyReport
from fedrecsk.privacy.secagg import SecAggPlus

__all__ = [
    "CKKS",
    "CentralDP",
    "Ciphertext",
    "Encryption",
    "Event",
    "GaussianMechanism",
    "Identity",
    "Keys",
    "LaplaceMechanism",
    "LocalMechanism",
    "MaskingFailed",
    "Paillier",
    "Party",
    "PrivacyBudget",
    "PrivacyReport",
    "SecAggPlus",
    "SecureAggregation",
    "SecureSum",
    "SphereMechanism",
    "epsilon_of",
    "secure_sum",
    "shuffled_epsilon",
]
