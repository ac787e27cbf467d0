"""The logistic function of many numbers at once."""

from llvmlite import ir
from numba import types

from fedrecsk._kernels._jit import intrinsic
from fedrecsk._kernels._lanes import (
    INT32,
    INT64,
    PLACE,
    WIDE,
    Lanes,
    loop,
    operation,
    word,
)


def room(n):
    """So many numbers that :func:`logistic` can be taken of the first n."""
    return -(-n // WIDE) * WIDE


def logistic_plain(x, n):
    """``1 / (1 + exp(-x))`` of the first n numbers, in place; whole groups of 16 are replaced."""
    from scipy.special import expit

    x[: room(n)] = expit(x[: room(n)])


@intrinsic(logistic_plain)
def logistic(_, x, n):
    """``1 / (1 + exp(-x))`` of the first n numbers, in place; whole groups of 16 are replaced."""

    def build(builder, x, n):
        lanes = Lanes(builder, x.type.pointee, WIDE)
        with loop(builder, word(0), n, word(WIDE)) as k:
            lanes.store(_logistic(lanes, lanes.load(x, k)), x, k)

    return operation("logistic", types.void, (x, PLACE), build)


def _logistic(lanes, x):
    """``e / (1 + e)`` with e = exp(x) below zero, ``1 / (1 + e)`` with e = exp(-x) above."""
    builder, exponential = lanes.builder, _Exponential(lanes)
    negative = builder.fcmp_ordered("<", x, lanes.constant(0.0))
    below = builder.select(negative, x, builder.fsub(lanes.constant(-0.0), x))
    limit = lanes.constant(-exponential.limit)
    outside = builder.fcmp_ordered("<", below, limit)
    e = exponential.of(builder.select(outside, limit, below))
    e = builder.select(outside, lanes.constant(0.0), e)
    one = lanes.constant(1.0)
    return builder.fdiv(builder.select(negative, e, one), builder.fadd(one, e))


class _Exponential:
    """The exponential function of numbers from -limit to 0, after Cephes (Moshier 1992).

    With k the whole number next to x / log 2, it is ``2^k exp(x - k log 2)``. The rest x - k log 2
    takes two constants that add up to log 2. Adding `magic` to k leaves it in the lowest bits of
    the sum. Compilers may rearrange sums here, so both go through intrinsics that they leave alone.
    """

    def __init__(self, lanes):
        self.lanes, self.builder = lanes, lanes.builder
        if lanes.lane == ir.FloatType():
            self.limit, self.magic, self.digits, self.bias = 87.0, 1.5 * 2**23, 23, 127
            self.high, self.low, self.word = 0.693359375, -2.12194440e-4, INT32
        else:
            self.limit, self.magic, self.digits, self.bias = 708.0, 1.5 * 2**52, 52, 1023
            self.high, self.low, self.word = 6.93145751953125e-1, 1.42860682030941723212e-6, INT64

    def of(self, x):
        """exp(x) of a vector."""
        builder, lanes = self.builder, self.lanes
        k = lanes.call("llvm.rint", lanes.times(x, lanes.constant(1.4426950408889634)))
        rest = lanes.call("llvm.fma", k, lanes.constant(-self.high), x)
        rest = lanes.call("llvm.fma", k, lanes.constant(-self.low), rest)
        words = ir.VectorType(self.word, lanes.n)
        bits = builder.bitcast(lanes.add(k, lanes.constant(self.magic)), words)
        bits = builder.shl(bits, ir.Constant(words, [self.digits] * lanes.n))
        one = ir.Constant(words, [self.bias << self.digits] * lanes.n)
        power = builder.bitcast(builder.add(bits, one), lanes.vector)
        return lanes.times(power, self.near_zero(rest))

    def near_zero(self, x):
        """exp(x) where x is at most log(2) / 2."""
        lanes, builder = self.lanes, self.builder
        square, one = lanes.times(x, x), lanes.constant(1.0)
        if self.word is INT32:
            return lanes.add(one, lanes.add(x, lanes.times(square, self.polynomial(x, _P32))))
        upper = lanes.times(x, self.polynomial(square, _P64))
        lower = lanes.subtract(self.polynomial(square, _Q64), upper)
        ratio = builder.fdiv(upper, lower)
        return lanes.add(one, lanes.times(lanes.constant(2.0), ratio))

    def polynomial(self, x, coefficients):
        """Horner's rule, from the highest power down."""
        lanes, total = self.lanes, self.lanes.constant(coefficients[0])
        for coefficient in coefficients[1:]:
            total = lanes.add(lanes.times(total, x), lanes.constant(coefficient))
        return total


_P32 = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
    5.0000001201e-1,
)  # fmt: skip
_P64 = 1.26177193074810590878e-4, 3.02994407707441961300e-2, 9.99999999999999999910e-1
_Q64 = (
    3.00198505138664455042e-6, 2.52448340349684104192e-3, 2.27265548208155028766e-1,
    2.00000000000000000009e0,
)  # fmt: skip
