"""The simulated federation: its parameters, the two sides of the protocol, messages, ledger."""

from fedrecsk.protocol.algorithm import Algorithm, Traits
from fedrecsk.protocol.clients import ClientGroup
from fedrecsk.protocol.devices import DeviceProfile
from fedrecsk.protocol.federation import Federation
from fedrecsk.protocol.ledger import Ledger
from fedrecsk.protocol.messages import (
    Dense,
    Derived,
    Form,
    GroupMessages,
    Message,
    PerClient,
    Rows,
    Total,
    Upload,
)
from fedrecsk.protocol.network_time import estimate_training_time
from fedrecsk.protocol.schedules import Asynchronous, Synchronous
from fedrecsk.protocol.server import Server
from fedrecsk.updates import ClientUpdates, FieldSpec, SparseRows, Summed, Updates

__all__ = [
    "Algorithm",
    "Asynchronous",
    "ClientGroup",
    "ClientUpdates",
    "Dense",
    "Derived",
    "DeviceProfile",
    "Federation",
    "FieldSpec",
    "Form",
    "GroupMessages",
    "Ledger",
    "Message",
    "PerClient",
    "Rows",
    "Server",
    "SparseRows",
    "Summed",
    "Synchronous",
    "Total",
    "Traits",
    "Updates",
    "Upload",
    "estimate_training_time",
]
