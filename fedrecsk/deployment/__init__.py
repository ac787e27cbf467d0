"""Run a federated estimator on real machines.

:mod:`fedrecsk.deployment.flower` does it with Flower. What the other modules of this package do
(bytes, a node's files, the server's loop) does not depend on Flower.
"""

from fedrecsk.deployment.client_message import ClientMessage, Numbers
from fedrecsk.deployment.device import Device
from fedrecsk.deployment.device_server import DeviceServer

__all__ = ["ClientMessage", "Device", "DeviceServer", "Numbers"]
