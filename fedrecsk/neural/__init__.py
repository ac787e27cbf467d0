"""Neural methods; they need torch."""

from fedrecsk.neural.ncf import NCF

__all__ = ["NCF"]
