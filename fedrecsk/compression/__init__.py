"""Compression of messages: Top-K, low rank, and quantisation.

Each compressor returns what the receiver reconstructs and what the message costs. Compressors are
for real numbers; counts and indices are sent as they are.

To write your own compressor, implement one method, `_compress`, for one array. The built-in
compressors work on the updates of all clients of a block at once.
"""

from fedrecsk.compression._compressors import Compressed, Compressor, LowRank, Quantization, TopK

__all__ = ["Compressed", "Compressor", "LowRank", "Quantization", "TopK"]
