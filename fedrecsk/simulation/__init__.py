"""The simulated federation: blocks, participation, messages, transport and ledger."""

from fedrecsk.simulation.federation import Federation
from fedrecsk.simulation.ledger import Ledger
from fedrecsk.simulation.messages import Dense, Message, Rows, Total, Upload

__all__ = ["Dense", "Federation", "Ledger", "Message", "Rows", "Total", "Upload"]
