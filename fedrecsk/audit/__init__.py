"""Audits: what a server or any party with the model can infer about the clients' data.

And whether a program's scores depend on its test items.
"""

from fedrecsk.audit._leakage import LeakReport, measure_leak, register_inversion
from fedrecsk.audit._membership import (
    ForgettingReport,
    MembershipReport,
    PrivacyAudit,
    audit_privacy,
    measure_forgetting,
    measure_membership,
)
from fedrecsk.audit._placebo import PlaceboReport, placebo
from fedrecsk.audit._server_view import Reconstruction

__all__ = [
    "ForgettingReport",
    "LeakReport",
    "MembershipReport",
    "PlaceboReport",
    "PrivacyAudit",
    "Reconstruction",
    "audit_privacy",
    "measure_forgetting",
    "measure_leak",
    "measure_membership",
    "placebo",
    "register_inversion",
]
