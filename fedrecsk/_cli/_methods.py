"""The package's methods, by name: what each is for, in one line."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

import fedrecsk

_GROUPS = {
    (True, True): "Ratings, federated",
    (True, False): "Ratings, centralised",
    (False, True): "Ranking (implicit feedback), federated",
    (False, False): "Ranking (implicit feedback), centralised",
}


def names() -> list[str]:
    """List all methods."""
    found = [name for name in fedrecsk.__all__ if hasattr(getattr(fedrecsk, name), "fit")]
    return sorted(found, key=str.lower)


def find(name: str) -> type:
    """Find a method by its name, in upper or lower case.

    Raises
    ------
    ValueError
        If there is none; proposes similar names.
    """
    by_lower = {known.lower(): known for known in names()}
    known = by_lower.get(name.lower())
    if known is not None:
        return getattr(fedrecsk, known)
    similar = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(by_lower[one] for one in similar)}? " if similar else ""
    raise ValueError(f"there is no such method; {hint}--list shows all")


def predicts_ratings(method: type) -> bool:
    """Whether a method predicts ratings; otherwise it ranks items."""
    return method().__sklearn_tags__().target_tags.required


def is_federated(method: type) -> bool:
    """Whether a method trains by messages between clients and a server."""
    return "federation" in method().get_params(deep=False)


def label(model: Any) -> str:
    """Say whether a model is federated."""
    return "federated" if is_federated(type(model)) else "centralised"


def listed() -> str:
    """Describe all methods, a line each."""
    groups: dict[str, list[str]] = {title: [] for title in _GROUPS.values()}
    for name in names():
        method = getattr(fedrecsk, name)
        summary = (inspect.getdoc(method) or "").partition("\n")[0]
        title = _GROUPS[predicts_ratings(method), is_federated(method)]
        groups[title].append(f"  {name:<15}{summary}")
    return "\n\n".join("\n".join([title, *lines]) for title, lines in groups.items())
