"""Quantisation: send numbers of fewer bits, rounded up or down at random."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from fedrecsk._utils.sklearn_compat import StrOptions
from fedrecsk.compression._base import BlockCompressor, Compressor, Lengths, check_array

_LARGEST_FLOAT16 = 65504.0


class Quantization(BlockCompressor):
    """Send numbers of fewer bits, rounded up or down at random, without bias.

    Parameters
    ----------
    dtype : {"float16", "int8"}, default="int8"
        "float16": 2 bytes per number. Numbers beyond 65504 become infinite, and the server
        rejects the upload. "int8": 1 byte per number, in 255 steps between plus and minus the
        largest size in the array, and 4 bytes for the step.
    direction : {"both", "up", "down"}, default="both"
        Which messages to compress.

    Notes
    -----
    A number between two that can be sent becomes either of them, with probabilities that make
    its expectation exact (stochastic rounding), so errors average out over clients. Zeros stay
    zeros.

    Examples
    --------
    >>> import numpy as np
    >>> from fedrecsk.compression import Quantization
    >>> sent = Quantization("int8").compress(np.linspace(-1, 1, 5), np.random.default_rng(0))
    >>> sent.nbytes()
    9
    >>> float(np.abs(sent.values - np.linspace(-1, 1, 5)).max()) < 1 / 127
    True
    """

    _parameter_constraints: ClassVar[dict] = {
        **Compressor._parameter_constraints,
        "dtype": [StrOptions({"float16", "int8"})],
    }

    def __init__(
        self,
        dtype: Literal["float16", "int8"] = "int8",
        *,
        direction: Literal["both", "up", "down"] = "both",
    ):
        self.dtype = dtype
        self.direction = direction

    @property
    def _largest_number(self):
        return _LARGEST_FLOAT16 if self.dtype == "float16" else None

    def _compress(self, values, generator):
        if not isinstance(generator, np.random.Generator):
            raise TypeError(
                "Quantization rounds at random and needs a numpy.random.Generator, such as "
                f"np.random.default_rng(0), but got {type(generator).__name__}."
            )
        largest = np.abs(values).max(initial=0)
        if self.dtype == "int8" and largest > np.finfo(np.float32).max:
            raise ValueError(
                "Quantization(dtype='int8') sends its scale as float32, but the largest number is "
                f"{largest:.3g} in size; scale the numbers down to at most 3.4e38."
            )
        return super()._compress(values, generator)

    def _received(self, rows, matrix, generators):
        steps = np.ones(rows.n_clients)
        for client, generator in enumerate(generators):
            change = matrix[rows.indptr[client] : rows.indptr[client + 1]]
            # A draw for each number, zeros included, so that zeros do not change the other draws.
            draws = generator.random(change.shape, dtype=np.float32)
            if self.dtype == "float16":
                change[:] = _to_float16(change, draws)
                continue
            steps[client] = _int8_step(max(change.max(initial=0), -change.min(initial=0)))
            # Numbers beyond float32 become NaN, and the server rejects the upload.
            with np.errstate(invalid="ignore"):
                change /= steps[client]
                change += draws
                np.floor(change, out=change)
                change *= steps[client]
        return matrix, steps if self.dtype == "int8" else None

    def _lengths(self, n_rows, width):
        itemsize, n_scales = (2, 0) if self.dtype == "float16" else (1, 1)
        size = n_rows * width
        return Lengths(size, size, n_scales=n_scales, itemsize=itemsize)

    def _encoded(self, received, step):
        if self.dtype == "float16":
            return received.astype(np.float16), None
        step = 1.0 if step is None else step
        codes = np.rint(received / step).astype(np.int8)
        return codes, np.array([step], dtype=np.float32)

    def _decoded(self, values, extra, shape):
        if self.dtype == "float16":
            check_array(values, "f", shape)
            if extra is not None:
                raise ValueError("An upload in float16 has a scale, but needs none.")
            return values.astype(np.float64)
        check_array(values, "i", shape)
        check_array(extra, "f", (1,))
        if values.dtype != np.int8 or not (np.isfinite(extra[0]) and extra[0] > 0):
            raise ValueError("An upload in int8 needs codes of that type and a positive scale.")
        return values * np.float64(extra[0])


def _to_float16(values, draws):
    """Round to a neighbour in float16 by uniform draws; numbers beyond its range are infinite."""
    # Distance of the neighbours of each number: 11 binary digits, or less close to zero.
    exponents = np.maximum(np.frexp(values)[1], -13)
    rounded = np.ldexp(np.floor(np.ldexp(values, 11 - exponents) + draws), exponents - 11)
    return np.where(np.abs(values) <= _LARGEST_FLOAT16, rounded, np.copysign(np.inf, values))


def _int8_step(largest):
    """Return the step for numbers up to `largest`: float32, so that none exceeds 127 steps."""
    with np.errstate(over="ignore"):
        step = np.float32(largest / 127 * (1 + 2.0**-21))
    return np.float64(np.maximum(step, np.finfo(np.float32).smallest_subnormal))
