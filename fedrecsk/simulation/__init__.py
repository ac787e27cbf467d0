"""The simulated federation: blocks, participation, messages, transport and ledger."""

from fedrecsk.simulation.federation import Federation
from fedrecsk.simulation.ledger import Ledger
from fedrecsk.simulation.messages import Dense, Derived, Message, Rows, Total, Upload
from fedrecsk.simulation.network import NetworkProfile, estimate_training_time

__all__ = [
    "Dense",
    "Derived",
    "Federation",
    "Ledger",
    "Message",
    "NetworkProfile",
    "Rows",
    "Total",
    "Upload",
    "estimate_training_time",
]
