"""Compression of messages: Top-K, low rank, and quantisation.

Each says what the receiver gets and what it costs. They are for messages of real numbers;
counts and indices stay as they are.

A compressor of your own has one method, `_compress`, for one array. For uploads, the built-in ones
also compress all clients of a block at once, without writing down what any of them sends.
"""

from fedrecsk.compression._base import Compressed, Compressor
from fedrecsk.compression._low_rank import LowRank
from fedrecsk.compression._quantization import Quantization
from fedrecsk.compression._top_k import TopK

__all__ = ["Compressed", "Compressor", "LowRank", "Quantization", "TopK"]
