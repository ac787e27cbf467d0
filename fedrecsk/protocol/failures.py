"""Clients that cannot go on, by name."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np


class ClientFailed(ValueError):
    """A client that cannot go on, whatever the server does.

    Parameters
    ----------
    client : int
        Its number in the block.
    what : str
        What went wrong, and the cure.
    """

    def __init__(self, client: int, what: str) -> None:
        super().__init__(what)
        self.client = client


@contextmanager
def naming_clients(client_ids: np.ndarray, when: str) -> Iterator[None]:
    """Let errors of clients give the client's id.

    Parameters
    ----------
    client_ids : ndarray of shape (n_clients,)
        Ids of the clients of the block.
    when : str
        For example "in round 3".
    """
    try:
        yield
    except ClientFailed as error:
        raise ValueError(f"Client {client_ids[error.client]!s} {when}: {error}") from error
