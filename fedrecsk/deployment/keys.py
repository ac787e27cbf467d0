"""Identities of nodes under `SecAggPlus`, which an operator makes and gives to the machines.

Each node has an identity of its own, certified by the operator, with which it signs the keys that
it makes for each sum. The operator can unmask nothing, and the server needs no keys.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from fedrecsk.privacy import Identity
from fedrecsk.privacy._secagg_protocol import FEWEST_CLIENTS

__all__ = ["read_identity", "write_identities"]

OPERATOR = "operator.key"


def write_identities(
    client_ids: Iterable[float | str], folder: str | os.PathLike[str], *, fewest: int | None = None
) -> dict[float | str, Path]:
    """Write an identity for each client, for fits under `SecAggPlus`.

    Call it again with the same folder for clients that join later: ``operator.key`` is kept. Do not
    copy that file to any machine of the fit.

    Parameters
    ----------
    client_ids : iterable of int, float or str
    folder : str or Path
        Made if it does not exist.
    fewest : int or None, default=None
        Smallest number of clients in a sum that these clients accept, at least 3, whatever number a
        server announces. In sums over fewer clients, a lying server needs fewer colluding clients.
        If None, as in the first call, where it is half of `client_ids`.

    Returns
    -------
    paths : dict of {id: Path}
        ``client-ID.key``, which only its owner can read; give it to the client's node.

    Raises
    ------
    FileExistsError
        If a client has an identity in the folder already.
    ValueError
        If `fewest` is below 3, or ``operator.key`` is damaged.

    Examples
    --------
    >>> import tempfile
    >>> from fedrecsk.deployment.keys import write_identities
    >>> paths = write_identities(["shop-0", "shop-1"], tempfile.mkdtemp())
    >>> [path.name for path in paths.values()]
    ['client-shop-0.key', 'client-shop-1.key']
    """
    if fewest is not None and fewest < FEWEST_CLIENTS:
        raise ValueError(
            f"fewest={fewest}: a sum over fewer than {FEWEST_CLIENTS} clients shows single "
            f"uploads; set fewest to at least {FEWEST_CLIENTS}."
        )
    folder, client_ids = Path(folder).expanduser(), list(client_ids)
    folder.mkdir(parents=True, exist_ok=True)
    keys = folder / OPERATOR
    if not keys.exists():
        half = max(FEWEST_CLIENTS, len(client_ids) // 2)
        own = {"private": secrets.token_hex(32), "fewest": half if fewest is None else fewest}
        _write(keys, json.dumps(own).encode())
    try:
        operator = json.loads(keys.read_bytes())
        secret, usual = bytes.fromhex(operator["private"]), int(operator["fewest"])
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"{keys} does not hold the key of an operator; restore it, or choose another folder."
        ) from error
    paths = {}
    for name in client_ids:
        identity = Identity.new(secret, str(name), usual if fewest is None else fewest)._asdict()
        content = json.dumps({part: one.hex() for part, one in identity.items()}).encode()
        paths[name] = folder / f"client-{quote(str(name), safe='')}.key"
        _write(paths[name], content)
    return paths


def read_identity(path: str | os.PathLike[str] | None) -> Identity:
    """Read a node's identity.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    Identity

    Raises
    ------
    ValueError
        If the path is missing, or the file has no identity.
    FileNotFoundError
        If there is no such file.
    PermissionError
        If other users can read it.
    """
    hint = "make it with fedrecsk.deployment.keys.write_identities"
    if not path:
        raise ValueError(
            "The federation has SecAggPlus, so this node needs an identity of its own, certified "
            f"by the operator; {hint}, and pass keys= the path of its file."
        )
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"There is no identity in {path}; {hint}.")
    if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise PermissionError(
            f"Other users can read {path}, which has secret keys; chmod 600 {path}."
        )
    try:
        content = json.loads(path.read_bytes())
        identity = Identity(*(bytes.fromhex(content[name]) for name in Identity._fields))
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path} does not hold the identity of a node; {hint}.") from error
    if not identity.certifies(identity.certificate):
        raise ValueError(f"The identity in {path} is not certified by its operator; {hint}.")
    return identity


def _write(path, content):
    """Write a new file that only its owner can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
