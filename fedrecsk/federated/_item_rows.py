"""Names of :mod:`fedrecsk.protocol.blocks` for methods that still use these."""

from __future__ import annotations


class OwnRows:
    """The rows of the active clients."""

    @staticmethod
    def of(block, active):
        """Those of the clients of a mask."""
        return block.own_rows(active)


def layout_of(block):
    """Which users and items belong to which client."""
    return block.layout
