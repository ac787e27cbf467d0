"""Quantisation: send numbers of fewer bits, rounded up or down at random."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from fedrecsk import _kernels
from fedrecsk._sklearn import StrOptions
from fedrecsk.compression._base import (
    After,
    AfterRagged,
    Compressed,
    Compressor,
    Lengths,
    Shortener,
    check_array,
)
from fedrecsk.uploads import Common, Ragged, Update

_LARGEST_FLOAT16 = 65504.0


class Quantization(Shortener):
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
        rounded = {"float16": _to_float16, "int8": _to_int8}[self.dtype]
        # A draw for each number, zeros included, so that zeros do not change the other draws.
        received = rounded(values.astype(np.float64), generator.random(values.shape))
        return Compressed(received.astype(values.dtype), *self._lengths(values.size, 1))

    def _lengths(self, n_rows, width):
        itemsize, n_scales = (2, 0) if self.dtype == "float16" else (1, 1)
        size = n_rows * width
        return Lengths(size, size, n_scales=n_scales, itemsize=itemsize)

    def _encoded(self, change, received):
        if self.dtype == "float16":
            return received.astype(np.float16), None
        step, _ = _scales(np.abs(change).max(initial=0))
        codes = np.rint(received / np.float64(step)).astype(np.int8)
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

    def _compressed(self, changes, form, sends, seeds, summed):
        seeds = (seeds ^ (seeds >> np.uint64(32))).astype(np.uint32)
        if not isinstance(changes, Ragged):
            kind = {"float16": _Float16, "int8": _Int8}[self.dtype]
            return kind(changes, self, seeds)
        if self.dtype == "int8":
            return _Int8Ragged(changes, self, seeds)
        return _Float16Ragged(changes, self, seeds, summed)


def _to_float16(values, draws):
    most = float(np.finfo(np.float16).max)
    too_large = np.copysign(np.inf, values)
    fits, values = np.abs(values) <= most, np.clip(values, -most, most)
    nearest = values.astype(np.float16)
    above = nearest.astype(np.float64) > values
    with np.errstate(over="ignore"):
        low = np.where(above, np.nextafter(nearest, np.float16(-np.inf)), nearest)
        high = np.nextafter(low, np.float16(np.inf)).astype(np.float64)
    low = low.astype(np.float64)
    rounded = np.where(draws < (values - low) / (high - low), high, low)
    return np.where(fits, rounded, too_large)


def _to_int8(values, draws):
    largest = np.abs(values).max(initial=0)
    if largest > np.finfo(np.float32).max:
        raise ValueError(
            "Quantization(dtype='int8') sends its scale as float32, but the largest number is "
            f"{largest:.3g} in size; scale the numbers down to at most 3.4e38."
        )
    step = np.float64(_int8_step(largest))
    return np.floor(values / step + draws) * step


def _int8_step(largest):
    """Step for numbers up to `largest`: float32, large enough that none exceeds 127 steps."""
    with np.errstate(over="ignore"):
        step = np.float32(largest / 127 * (1 + 2.0**-21))
    return np.maximum(step, np.finfo(np.float32).smallest_subnormal)


# Stochastic rounding of uploads: a draw is a hash of the client's seed and the number's place.
# Unlike those of a generator, such draws can be computed for all clients at once, and repeated.


def _draws(seed, rows, width):
    """24 random bits for each number in these rows of the field, as in `_kernels.rounding`."""
    places = (np.asarray(rows)[:, None] * width + np.arange(width)).astype(np.uint32)
    x = places * np.uint32(0x9E3779B1) + seed
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> np.uint32(13)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    return (x >> np.uint32(8)).astype(np.int32)


def _float16_grid(values):
    """Distance of each number's float16 neighbours, and the lower one in units of it."""
    exponents = np.frexp(values)[1] - 1
    grid = np.exp2(np.maximum(np.where(values == 0, -14, exponents), -14) - 10.0)
    return grid, np.floor(values / grid)


def _scales(largest):
    """Each client's step for int8, and 2^24 times its inverse, as the kernels need them."""
    # The inverse of a smaller step would be infinite, and all numbers would be lost.
    steps = np.maximum(_int8_step(largest), np.float32(2.0**-100))
    with np.errstate(divide="ignore"):
        return steps, np.float32(2.0**24) / steps


class _Quantized(After):
    """Changes of any kind, rounded by hashed draws.

    Parameters
    ----------
    seeds : ndarray of shape (n_clients,), dtype uint32
    """

    deferred: Deferred | None = None

    def __init__(self, changes, compressor, seeds):
        super().__init__(changes, compressor)
        self.seeds = seeds

    @abstractmethod
    def _rounded(self, change, draws):
        """The change rounded by the draws."""

    def update(self, client):
        rows, change = self.changes.update(client)
        numbers = np.arange(self.shape[0])[rows] if isinstance(rows, slice) else rows
        draws = _draws(self.seeds[client], numbers, self.shape[1])
        return Update(rows, self._rounded(change, draws))


class _Float16(_Quantized):
    def _rounded(self, change, draws):
        grid, _ = _float16_grid(change)
        rounded = grid * np.floor(change / grid + draws * 2.0**-24)
        return np.where(np.abs(change) <= _LARGEST_FLOAT16, rounded, np.copysign(np.inf, change))


class _Int8(_Quantized):
    def _rounded(self, change, draws):
        if not np.abs(change).max(initial=0) <= np.finfo(np.float32).max:
            return np.full_like(change, np.nan)
        step, inverse = _scales(np.abs(change).max(initial=0))
        fixed = (change.astype(np.float32) * inverse).astype(np.int32)
        return ((fixed + draws) >> 24) * np.float64(step)


class _QuantizedRagged(AfterRagged, _Quantized):
    """Ragged changes, rounded by hashed draws in `_kernels.rounding`."""

    _limit: float

    @cached_property
    def _sizes(self):
        """Largest size in each change before rounding; exact, unlike `Ragged.largest`.

        NaN or infinite if a number is.
        """
        sizes, common = np.zeros(self.n_clients), None
        if self._change is not None:
            by_row = np.abs(self._change).max(axis=1)
            order = np.argsort(-by_row, kind="stable")
            common = order, by_row[order]
        everyone = np.ones(self.n_clients, dtype=bool)
        _kernels.rounding.largest(*self.changes._matrix, common, everyone, sizes)
        return sizes

    def finite(self, mask):
        finite = self._sizes <= self._limit
        if self.common is not None and not self.common.is_finite:
            finite[:] = False
        return finite | ~mask

    def _groups(self, *arrays):
        """Pad these arrays for kernels that take four clients at a time."""
        return [np.append(array, np.zeros(-len(array) % 4, array.dtype)) for array in arrays]


class _Int8Ragged(_QuantizedRagged, _Int8):
    _limit = float(np.finfo(np.float32).max)

    @cached_property
    def _steps(self):
        # Clients with larger numbers are not finite, and the server rejects them.
        return _scales(np.where(self._sizes <= self._limit, self._sizes, 0))

    @property
    def _change32(self):
        with np.errstate(over="ignore"):
            return None if self._change is None else self._change.astype(np.float32)

    def largest(self, mask):
        """An upper bound: 127 steps."""
        return np.where(mask, 127 * self._steps[0].astype(np.float64), 0)

    def norms(self, mask):
        squares, (steps, inverses) = np.zeros(self.n_clients), self._steps
        _kernels.rounding.int8_squares(
            *self.changes._matrix, self._change32, self.seeds, inverses, mask, squares
        )
        return steps * np.sqrt(squares)

    def add_to(self, sums, weights):
        steps, inverses = self._steps
        factors, change = weights * steps.astype(np.float64), self._change32
        if change is not None:
            here = weights != 0
            groups = self._groups(self.seeds[here], inverses[here], factors[here])
            _kernels.rounding.add_int8_common(change.ravel(), *groups, sums.reshape(-1))
        _kernels.rounding.add_int8_own(
            *self.changes._matrix, change, self.seeds, inverses, factors, sums
        )


@dataclass(eq=False)
class Deferred:
    """A common change that many clients round to float16, still to be added to the sum.

    Attributes
    ----------
    common : Common
        The change.
    counts : ndarray of shape (n_rows,), dtype int64
        How many clients send each row.
    """

    common: Common
    counts: np.ndarray

    def merged(self, other):
        """Both together, for the same common change."""
        return Deferred(self.common, self.counts + other.counts)

    def total(self, generator):
        """Draw the sum over the clients: n * low + Binomial(n, chance) steps."""
        change, n = self.common.change, self.counts[:, None]
        if not self.counts.any():
            return np.zeros_like(change)
        grid, low = _float16_grid(change)
        return grid * (n * low + generator.binomial(n, change / grid - low))


class _Float16Ragged(_QuantizedRagged, _Float16):
    _limit = _LARGEST_FLOAT16

    def __init__(self, changes, compressor, seeds, summed):
        super().__init__(changes, compressor, seeds)
        self.summed = summed

    def largest(self, mask):
        """An upper bound: the next larger float16."""
        grid, _ = _float16_grid(self._sizes)
        rounded = grid * np.ceil(self._sizes / grid)
        return np.where(mask, np.where(self._sizes <= self._limit, rounded, np.inf), 0)

    def _ups(self):
        """Draws from which on common numbers are rounded up, steps, and numbers rounded down."""
        grid, low = _float16_grid(self._change)
        # There are no limits for infinity and NaN, which the server rejects.
        with np.errstate(invalid="ignore"):
            limits = np.ceil((1 - (self._change / grid - low)) * 2.0**24).astype(np.int32)
        return limits, grid, grid * low

    def norms(self, mask):
        squares, common = np.zeros(self.n_clients), None
        if self.common is not None:
            limits, grid, low = self._ups()
            common = limits, (low + grid) ** 2 - low**2, np.einsum("if,if->i", low, low)
        _kernels.rounding.float16_squares(*self.changes._matrix, common, self.seeds, mask, squares)
        return np.sqrt(np.maximum(squares, 0))

    def add_to(self, sums, weights):
        weights, held = np.asarray(weights, dtype=np.float64), np.zeros(self.shape[0])
        _kernels.rounding.add_float16_own(*self.changes._matrix, self.seeds, weights, sums, held)
        if self.common is None:
            return
        others = weights.sum() - held
        if self.summed:
            self.deferred = Deferred(self.common, np.rint(others).astype(np.int64))
        else:
            self._add_common(sums, weights, others)

    def _add_common(self, sums, weights, others):
        limits, grid, low = self._ups()
        ups, here = np.zeros(self.shape), weights != 0
        groups = self._groups(self.seeds[here], weights[here])
        _kernels.rounding.count_ups(limits.ravel(), *groups, ups.reshape(-1))
        indptr, rows, *_ = self.changes._matrix
        _kernels.rounding.take_back_ups(indptr, rows, limits, self.seeds, weights, ups)
        sums += others[:, None] * low + ups * grid
