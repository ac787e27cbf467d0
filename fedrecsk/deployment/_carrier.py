"""What the server needs of an engine that carries bytes to nodes and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable


class Request(NamedTuple):
    """Bytes for a node.

    Attributes
    ----------
    node : int
        Its address.
    kind : str
        What the node is to do.
    content : bytes
    """

    node: int
    kind: str
    content: bytes


class Reply(NamedTuple):
    """What came back.

    Attributes
    ----------
    ticket : hashable
        Of the request.
    content : bytes or None
        None: there was an error.
    error : str
    """

    ticket: Hashable
    content: bytes | None
    error: str = ""


class Carrier(ABC):
    """Carries requests to nodes and their replies back; it does not look into them."""

    @abstractmethod
    def nodes(self) -> set[int]:
        """Addresses of the nodes that are connected."""

    @abstractmethod
    def send(self, requests: list[Request]) -> list[Hashable]:
        """Send requests and return a ticket for each, by which its reply is recognised."""

    @abstractmethod
    def receive(self, tickets: Iterable[Hashable]) -> list[Reply]:
        """Replies to these requests that have arrived since, without waiting for the others."""

    @abstractmethod
    def pause(self) -> None:
        """Wait a moment before looking again."""
