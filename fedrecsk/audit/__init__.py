"""Audits: what a server, or any party with the model, can infer about the clients' data."""

from fedrecsk.audit._leakage import LeakReport, measure_leak, register_inversion
from fedrecsk.audit._membership import (
    ForgettingReport,
    MembershipReport,
    PrivacyAudit,
    audit_privacy,
    measure_forgetting,
    measure_membership,
)
from fedrecsk.audit._server_view import Reconstruction

__all__ = [
    "ForgettingReport",
    "LeakReport",
    "MembershipReport",
    "PrivacyAudit",
    "Reconstruction",
    "audit_privacy",
    "measure_forgetting",
    "measure_leak",
    "measure_membership",
    "register_inversion",
]
