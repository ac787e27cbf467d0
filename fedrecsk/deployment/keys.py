"""Keys of secure sums, which an operator makes and gives to the machines.

Under `SecAggPlus` each node has an identity of its own, certified by the operator, by which it
signs the keys that it makes for each sum. The operator can unmask nothing, and the server needs no
keys. Under `CKKS` and `Paillier` the server's file lets it add ciphertexts, and the clients' file
decrypts everything: give it to the nodes over the same secure channel as their own keys, and never
to the server's machine.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from fedrecsk.privacy import Identity
from fedrecsk.privacy._masked_sum import FEWEST_CLIENTS
from fedrecsk.protocol.checks import check_side

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Literal

    from fedrecsk.privacy import Party

__all__ = ["read_identity", "read_keys", "write_identities", "write_keys"]

CLIENTS, SERVER, OPERATOR = "clients.key", "server.key", "operator.key"


def write_keys(estimator: Any, n_clients: int, folder: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Make new keys for one fit, and write them into files.

    Parameters
    ----------
    estimator : federated estimator
        Its federation encrypts (`CKKS` or `Paillier`).
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
        If the federation does not encrypt.
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
        _write(path, party.to_bytes(), mode)
    return clients, server


def read_keys(
    estimator: Any, path: str | os.PathLike[str] | None, side: Literal["server", "clients"]
) -> Party:
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
            f"The federation encrypts (CKKS or Paillier), so this machine needs keys; make them "
            f"with fedrecsk.deployment.keys.write_keys, and pass keys= the path of {side}.key."
        )
    hint = "make them with fedrecsk.deployment.keys.write_keys"
    path = _found(path, "There are no keys in", hint)
    party = _scheme(estimator).load_party(path.read_bytes())
    check_side(party, side, f"The keys in {path}")
    if party.holds_secret_key:
        _check_private(path)
    return party


def write_identities(
    client_ids: Iterable[Any], folder: str | os.PathLike[str], *, fewest: int | None = None
) -> dict[Any, Path]:
    """Write an identity for each client, for fits under `SecAggPlus`.

    Call it again with the same folder for clients that join later: ``operator.key`` is kept. Keep
    that file from all machines of the fit.

    Parameters
    ----------
    client_ids : iterable of int, float or str
    folder : str or Path
        Made if it does not exist.
    fewest : int or None, default=None
        The fewest clients of a sum in which these clients take part, at least 3, whatever number a
        server names. Over fewer clients, fewer helpers are enough for a server that lies. None: as
        in the first call, where it is half of `client_ids`.

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
    folder, client_ids = Path(folder), list(client_ids)
    folder.mkdir(parents=True, exist_ok=True)
    keys = folder / OPERATOR
    if not keys.exists():
        half = max(FEWEST_CLIENTS, len(client_ids) // 2)
        own = {"private": secrets.token_hex(32), "fewest": half if fewest is None else fewest}
        _write(keys, json.dumps(own).encode(), 0o600)
    try:
        operator = json.loads(keys.read_bytes())
        secret, usual = bytes.fromhex(operator["private"]), int(operator["fewest"])
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"{keys} has no key of an operator; restore it, or choose another folder."
        ) from error
    paths = {}
    for name in client_ids:
        identity = Identity.new(secret, str(name), usual if fewest is None else fewest)._asdict()
        content = json.dumps({part: one.hex() for part, one in identity.items()}).encode()
        paths[name] = folder / f"client-{quote(str(name), safe='')}.key"
        _write(paths[name], content, 0o600)
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
    path = _found(path, "There is no identity in", hint)
    _check_private(path)
    try:
        content = json.loads(path.read_bytes())
        identity = Identity(*(bytes.fromhex(content[name]) for name in Identity._fields))
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path} has no identity of a node; {hint}.") from error
    if not identity.certifies(identity.certificate):
        raise ValueError(f"{path} has no identity that its operator has certified; {hint}.")
    return identity


def _found(path, lacking, hint):
    """Return the path of an existing file."""
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"{lacking} {path}; {hint}.")
    return path


def _write(path, content, mode):
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)


def _scheme(estimator):
    scheme = estimator._setting().secure_aggregation
    if scheme is None:
        raise ValueError(
            "The federation has no secure_aggregation, so there is nothing to make keys for; set "
            "it to CKKS(), for example."
        )
    if not scheme.hides_sums:
        raise ValueError(
            "Under SecAggPlus clients make their own keys; give each an identity to sign them with "
            "write_identities(client_ids, folder)."
        )
    return scheme


def _check_private(path):
    if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise PermissionError(
            f"Other users can read {path}, which has secret keys; chmod 600 {path}."
        )
