"""The simulated federation: its parameters, the two sides of the protocol, messages, ledger."""

from fedrecsk.simulation.clients import Clients
from fedrecsk.simulation.device import Device
from fedrecsk.simulation.exchange import GroupMessages
from fedrecsk.simulation.federation import Federation
from fedrecsk.simulation.ledger import Ledger
from fedrecsk.simulation.messages import (
    Dense,
    Derived,
    Message,
    PerClient,
    Rows,
    Summed,
    Total,
    Upload,
    Uploads,
)
from fedrecsk.simulation.network import NetworkProfile, estimate_training_time
from fedrecsk.simulation.parcel import Numbers, Parcel
from fedrecsk.simulation.secure_device import SecureDevice, SecureUpload
from fedrecsk.simulation.secure_server import SecureServer
from fedrecsk.simulation.server import Server
from fedrecsk.uploads import Form, Ragged

__all__ = [
    "Clients",
    "Dense",
    "Derived",
    "Device",
    "Federation",
    "Form",
    "GroupMessages",
    "Ledger",
    "Message",
    "NetworkProfile",
    "Numbers",
    "Parcel",
    "PerClient",
    "Ragged",
    "Rows",
    "SecureDevice",
    "SecureServer",
    "SecureUpload",
    "Server",
    "Summed",
    "Total",
    "Upload",
    "Uploads",
    "estimate_training_time",
]
