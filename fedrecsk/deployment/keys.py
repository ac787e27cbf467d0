"""Keys of secure sums, which an operator makes and gives to the machines.

The server's file lets it add ciphertexts. The clients' file decrypts everything: give it to the
nodes over the same secure channel as their own keys, and never to the server's machine.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from fedrecsk.privacy import Party

__all__ = ["read_keys", "write_keys"]

CLIENTS, SERVER = "clients.key", "server.key"


def write_keys(estimator: Any, n_clients: int, folder: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Make new keys for one fit, and write them into files.

    Parameters
    ----------
    estimator : federated estimator
        Its federation has `secure_aggregation`.
    n_clients : int
        Number of clients of the fit.
    folder : str or Path
        Made if it does not exist.

    Returns
    -------
    clients, server : Path
        ``clients.key``, which only its owner can read, and ``server.key``.

    Raises
    ------
    ValueError
        If the federation has no `secure_aggregation`.
    FileExistsError
        If there are keys in the folder already.

    Examples
    --------
    >>> import tempfile
    >>> from fedrecsk import Federation, FedMF
    >>> from fedrecsk.deployment.keys import write_keys
    >>> from fedrecsk.privacy import CKKS
    >>> method = FedMF(items=range(40), federation=Federation(secure_aggregation=CKKS()))
    >>> folder = tempfile.mkdtemp()
    >>> [path.name for path in write_keys(method, n_clients=3, folder=folder)]
    ['clients.key', 'server.key']
    """
    keys = _scheme(estimator).generate_keys(n_clients=n_clients)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    clients, server = folder / CLIENTS, folder / SERVER
    for path in (clients, server):
        if path.exists():
            raise FileExistsError(f"{path} exists already; remove it, or choose another folder.")
    for path, party, mode in ((clients, keys.clients, 0o600), (server, keys.server, 0o644)):
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(party.to_bytes())
    return clients, server


def read_keys(estimator: Any, path: str | os.PathLike[str] | None, side: str) -> Party:
    """Read the keys of one side from its file.

    Parameters
    ----------
    estimator : federated estimator
    path : str or Path
    side : {"clients", "server"}

    Returns
    -------
    Party

    Raises
    ------
    ValueError
        If the path is missing; or if the keys are those of the other side, or of a scheme with
        other parameters.
    FileNotFoundError
        If there is no such file.
    PermissionError
        If other users can read the clients' keys.
    """
    if not path:
        raise ValueError(
            f"The federation has secure_aggregation, so this machine needs keys; make them "
            f"with fedrecsk.deployment.keys.write_keys, and pass keys= the path of {side}.key."
        )
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(
            f"There are no keys in {path}; make them with fedrecsk.deployment.keys.write_keys."
        )
    party = _scheme(estimator).load_party(path.read_bytes())
    if side == "server" and party.holds_secret_key:
        raise ValueError(
            f"{path} has the clients' keys, with which the server could decrypt every upload; "
            "delete it from this machine, and pass the path of server.key."
        )
    if side == "clients" and not party.holds_secret_key:
        raise ValueError(
            f"{path} has the server's keys, which cannot encrypt; pass the path of clients.key."
        )
    if os.name == "posix" and party.holds_secret_key:
        _check_private(path)
    return party


def _scheme(estimator):
    scheme = estimator._setting().secure_aggregation
    if scheme is None:
        raise ValueError(
            "The federation has no secure_aggregation, so there is nothing to make keys for; set "
            "it to CKKS(), for example."
        )
    return scheme


def _check_private(path):
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise PermissionError(
            f"Other users can read {path}, which decrypts all uploads; chmod 600 {path}."
        )
