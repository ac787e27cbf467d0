"""One file from the web: with time-outs, retries, a limit on its size, and its checksum."""

from __future__ import annotations

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from pathlib import Path

from fedrecsk._version import __version__
from fedrecsk._warnings import warn

_CHUNK = 2**16
# A server that sends less than this within the time-out counts as one that has stopped sending.
_LEAST_BYTES = 2**10
_LONGEST_WAIT = 60.0
# Answers that may change: time-out, too many requests, and errors of the server.
_WORTH_A_RETRY = {408, 425, 429, 500, 502, 503, 504}


class _Failed(Exception):
    """A try failed in a way that another try may mend."""


def download(
    url: str,
    path: Path,
    *,
    timeout: float = 30.0,
    n_retries: int = 3,
    delay: float = 1.0,
    max_bytes: int = 2**31,
) -> str:
    """Download `url` to `path`.

    Parameters
    ----------
    url : str
    path : Path
        Overwritten. Of no use if an exception is raised.
    timeout : float
        Seconds after which a try fails if the server is silent.
    n_retries : int
        Number of further tries after one that failed.
    delay : float
        Seconds before the first further try; twice as many before each next one.
    max_bytes : int
        Size above which the file cannot be the right one.

    Returns
    -------
    sha256 : str
        Hexadecimal checksum of what was written.

    Raises
    ------
    OSError
        If all tries fail, the server refuses, the file is too large, or it cannot be written.
    """
    for attempt in range(n_retries + 1):
        try:
            return _try(url, path, timeout, max_bytes)
        except _Failed as error:
            if attempt == n_retries:
                tries = "1 try" if n_retries == 0 else f"{n_retries + 1} tries"
                raise OSError(f"{error}; {tries}") from error
            wait = min(delay * 2**attempt, _LONGEST_WAIT)
            warn(
                f"Downloading {url} failed ({error}). Next try in {wait:g} s; "
                f"{n_retries - attempt} left.",
            )
            time.sleep(wait)
    raise AssertionError("unreachable")


def _try(url: str, path: Path, timeout: float, max_bytes: int) -> str:
    request = urllib.request.Request(url, headers={"User-Agent": f"fedrecsk/{__version__}"})
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code in _WORTH_A_RETRY:
            raise _Failed(f"HTTP Error {error.code}: {error.reason}") from error
        raise
    except (OSError, http.client.HTTPException) as error:
        raise _Failed(_reason(error)) from error
    with response, path.open("wb") as file:
        return _copy(response, file, timeout, max_bytes)


def _copy(response, file, timeout: float, max_bytes: int) -> str:
    expected = response.headers.get("Content-Length")
    expected = int(expected) if expected and expected.isdigit() else None
    if expected is not None and expected > max_bytes:
        raise OSError(f"the server offers {expected:,} bytes, more than {max_bytes:,}")
    digest, size = hashlib.sha256(), 0
    since, size_then = time.monotonic(), 0
    while True:
        try:
            chunk = response.read1(_CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise _Failed(_reason(error)) from error
        if not chunk:
            break
        file.write(chunk)
        digest.update(chunk)
        size += len(chunk)
        if size > max_bytes:
            raise OSError(f"the server sent more than {max_bytes:,} bytes")
        now = time.monotonic()
        if now - since > timeout:
            if size - size_then < _LEAST_BYTES:
                raise _Failed(f"only {size - size_then} bytes came in {now - since:.0f} s")
            since, size_then = now, size
    if expected is not None and size != expected:
        raise _Failed(f"the connection broke off after {size:,} of {expected:,} bytes")
    return digest.hexdigest()


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return str(reason) or type(error).__name__
