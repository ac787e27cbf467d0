"""Neural methods; they need torch."""

from fedrecsk.neural.metamf import MetaMF

__all__ = ["MetaMF"]
