"""Mechanisms that protect what clients send, and the accounting of what they promise."""

from fedrecsk.privacy.local_dp import LaplaceMechanism, PrivacyReport

__all__ = ["LaplaceMechanism", "PrivacyReport"]
