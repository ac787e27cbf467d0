"""Four neighbouring numbers at once, as LLVM vectors.

Rows have some 20 numbers. A compiler that does not know whether two rows overlap checks it before
every such loop, which costs as much as the loop; these functions promise that they do not. All
arrays are C-contiguous and of two dimensions.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 4
_FAST = ("reassoc", "contract", "nsz")


def _pointer(context, builder, array_type, array, row, column):
    struct = context.make_array(array_type)(context, builder, array)
    place = cgutils.get_item_pointer(
        context, builder, array_type, struct, [row, column], wraparound=False
    )
    lane = context.get_value_type(array_type.dtype)
    return builder.bitcast(place, ir.VectorType(lane, LANES).as_pointer())


def _load(builder, pointer):
    vector = builder.load(pointer)
    vector.align = 4
    return vector


def _store(builder, vector, pointer):
    builder.store(vector, pointer).align = 4


def _splat(builder, number):
    vector = ir.VectorType(number.type, LANES)
    first = builder.insert_element(
        ir.Constant(vector, ir.Undefined), number, ir.Constant(ir.IntType(32), 0)
    )
    nobody = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), nobody)


@intrinsic
def add_lanes(_, total, i, vectors, k, f):
    """``total[i, f:f + 4] += vectors[k, f:f + 4]``; the total may be of the wider type."""

    def generate(context, builder, signature, arguments):
        total_type, _, vectors_type, _, _ = signature.args
        total, i, vectors, k, f = arguments
        to = _pointer(context, builder, total_type, total, i, f)
        vector = _load(builder, _pointer(context, builder, vectors_type, vectors, k, f))
        if total_type.dtype != vectors_type.dtype:
            lane = context.get_value_type(total_type.dtype)
            vector = builder.fpext(vector, ir.VectorType(lane, LANES))
        _store(builder, builder.fadd(_load(builder, to), vector, flags=_FAST), to)
        return context.get_dummy_value()

    return types.void(total, types.intp, vectors, types.intp, types.intp), generate


@intrinsic
def gradient_lanes(_, item_gradient, r, user_gradient, items, k, centres, i, partner, f, factors):
    """Of four coordinates of an item q with the server's c and the user's p, given (a, b, g):

    ``item_gradient[r] = a q - b c + g p`` and ``user_gradient[0] += g q``, where q is row k of
    `items`, c row i of `centres` and p row 0 of `partner`.
    """

    def generate(context, builder, signature, arguments):
        def at(array, row, place=0):
            kind, column = signature.args[array], arguments[8]
            row = context.get_constant(types.intp, 0) if row is None else arguments[row]
            return _pointer(context, builder, kind, arguments[array], row, column)

        def times(x, y):
            return builder.fmul(x, y, flags=_FAST)

        a, b, g = (_splat(builder, builder.extract_value(arguments[9], n)) for n in range(3))
        item, centre = _load(builder, at(3, 4)), _load(builder, at(5, 6))
        own = builder.fsub(times(a, item), times(b, centre), flags=_FAST)
        own = builder.fadd(own, times(g, _load(builder, at(7, None))), flags=_FAST)
        _store(builder, own, at(0, 1))
        users = at(2, None)
        _store(builder, builder.fadd(_load(builder, users), times(g, item), flags=_FAST), users)
        return context.get_dummy_value()

    place = types.intp
    factors = types.UniTuple(items.dtype, 3)
    arrays = item_gradient, place, user_gradient, items, place, centres, place, partner, place
    return types.void(*arrays, factors), generate
