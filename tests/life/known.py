"""Defects that the machine finds, by the item that mends them: delete a line when it is closed."""

from __future__ import annotations

import re
from typing import NamedTuple


class Known(NamedTuple):
    """A defect, by the setting and step in which it shows, and by what it says."""

    item: str
    values: dict
    step: str
    says: str


KNOWN: tuple[Known, ...] = ()


def known_as(setting, step, message):
    """Return the item of a known defect that shows as this message, or None."""
    for one in KNOWN:
        is_there = all(setting[axis] in values for axis, values in one.values.items())
        if is_there and re.match(one.step, step) and re.search(one.says, message, re.DOTALL):
            return one.item
    return None
