"""The server."""

from fedrecsk.deployment.flower import server_app
from shops.method import method

app = server_app(method)
