"""What functions of rows are built of: lanes, chunks, and pointers instead of arrays.

Rows have some 20 to 64 numbers. They are taken as LLVM vectors: sixteen neighbours at once, then
four, then one by one. A compiler that does not know whether two rows overlap checks it before
every such loop, which costs as much as the loop and takes long to compile; such functions promise
that it does not matter.

Arrays are C-contiguous. The k-th row of a matrix, or of a stack of them, counted through, begins
at its first column, and that of a flat array with number k. Each function stands below its plain
twin, `..._plain`, which says what it does and does it where nothing is compiled.
"""

from contextlib import contextmanager
from typing import NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError

WIDE = 16
CHUNKS = WIDE, 4, 1
# A row's number, or how many of its numbers count.
PLACE = types.intp
FAST = "reassoc", "contract", "nsz"
INT32, INT64 = ir.IntType(32), ir.IntType(64)


def word(number):
    """A whole number that is known here."""
    return ir.Constant(INT64, number)


class Lanes:
    """A number of lanes of one type in a builder."""

    def __init__(self, builder, lane, n):
        self.builder, self.lane, self.n = builder, lane, n
        self.vector = ir.VectorType(lane, n)

    def load(self, row, f):
        """Numbers f, f + 1, ... of a row, as lanes of this type."""
        stored = ir.VectorType(row.type.pointee, self.n)
        vector = self.builder.load(self._place(row, f, stored), typ=stored)
        vector.align = 4
        return self.widened(vector)

    def store(self, vector, row, f):
        """The inverse."""
        self.builder.store(vector, self._place(row, f, self.vector)).align = 4

    def _place(self, row, f, vector):
        return self.builder.bitcast(self.builder.gep(row, [f]), vector.as_pointer())

    def fetch(self, row, f):
        """Prefetch number f of a row, which will be needed soon."""
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, INT32, INT32, INT32])
        declared = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        place = self.builder.bitcast(self.builder.gep(row, [f]), byte)
        # To read, into all caches, data.
        self.builder.call(declared, [place, *(INT32(number) for number in (0, 3, 1))])

    def widened(self, vector):
        """A vector of a narrower type, or of this one, as one of this type."""
        return vector if vector.type == self.vector else self.builder.fpext(vector, self.vector)

    def splat(self, number):
        """The number, of a narrower type or of this one, in every lane."""
        if number.type != self.lane:
            number = self.builder.fpext(number, self.lane)
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(undefined, number, INT32(0))
        zeros = ir.Constant(ir.VectorType(INT32, self.n), [0] * self.n)
        return self.builder.shuffle_vector(first, undefined, zeros)

    def constant(self, number):
        """The same in every lane, known here."""
        return ir.Constant(self.vector, [number] * self.n)

    def add(self, x, y):
        """The sum, lane by lane."""
        return self.builder.fadd(x, y, flags=FAST)

    def subtract(self, x, y):
        """The difference, lane by lane."""
        return self.builder.fsub(x, y, flags=FAST)

    def times(self, x, y):
        """The product, lane by lane."""
        return self.builder.fmul(x, y, flags=FAST)

    def over(self, x, y):
        """The ratio, lane by lane."""
        return self.builder.fdiv(x, y, flags=FAST)

    def root(self, x):
        """The square root, lane by lane."""
        return self.call("llvm.sqrt", x)

    def call(self, name, *vectors):
        """One of LLVM's intrinsics."""
        kind = ir.FunctionType(self.vector, [self.vector] * len(vectors))
        suffix = f"v{self.n}{self.lane.intrinsic_name}"
        declared = cgutils.get_or_insert_function(self.builder.module, kind, f"{name}.{suffix}")
        return self.builder.call(declared, vectors)

    def folded(self, vector, join):
        """All lanes joined to one."""
        n = self.n
        while n > 1:
            n //= 2
            low, high = (
                self.builder.shuffle_vector(
                    vector,
                    vector,
                    ir.Constant(ir.VectorType(INT32, n), list(range(start, start + n))),
                )
                for start in (0, n)
            )
            vector = join(low, high)
        return self.builder.extract_element(vector, INT32(0))


class Sum:
    """A vector that a loop adds to; zero, or what is given, where it is made."""

    # Made within a loop it would begin again on each pass.

    def __init__(self, lanes, start=None):
        self.lanes = lanes
        self._place = cgutils.alloca_once_value(
            lanes.builder, lanes.constant(0) if start is None else start
        )

    def get(self):
        """What it is by now."""
        return self.lanes.builder.load(self._place, typ=self.lanes.vector)

    def join(self, join, vector):
        """Replace it by ``join(it, vector)``."""
        self.lanes.builder.store(join(self.get(), vector), self._place)


@contextmanager
def loop(builder, start, stop, step):
    """Yields the place; what is built inside is run for each.

    LLVM leaves the loop as it is: it would unroll it, which takes half a kernel's time to compile
    and gains nothing.
    """
    before = builder.basic_block
    body, end = builder.append_basic_block("rows"), builder.append_basic_block("rows.end")
    builder.cbranch(builder.icmp_signed("<", start, stop), body, end)
    builder.position_at_end(body)
    place = builder.phi(start.type)
    place.add_incoming(start, before)
    yield place
    following = builder.add(place, step)
    place.add_incoming(following, builder.basic_block)
    again = builder.cbranch(builder.icmp_signed("<", following, stop), body, end)
    _leave_as_it_is(builder.module, again, id(body))
    builder.position_at_end(end)


def _leave_as_it_is(module, branch, name):
    hint = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    itself = module.add_metadata([hint, ir.MetaDataString(module, f"loop {name}")])
    # LLVM wants a loop's description to begin with itself.
    itself.operands = (itself, hint)
    branch.set_metadata("llvm.loop", itself)


def chunks(builder, n, lane, sums=None):
    """Yields (Lanes, place) of each chunk of a row; what the caller builds is the loops' body.

    `sums` receives what may be added up: a :class:`Sum` for each size of chunk.
    """
    start = n.type(0)
    for size in CHUNKS:
        stop, lanes = builder.and_(n, n.type(-size)), Lanes(builder, lane, size)
        if sums is not None:
            sums.append(Sum(lanes))
        with loop(builder, start, stop, n.type(size)) as f:
            yield lanes, f
        start = stop


class Row(NamedTuple):
    """Two arguments of an intrinsic: a matrix of this type, or None, and a row's number."""

    matrix: types.Type


def operation(name, returns, kinds, build, *, shared=True):
    """What an intrinsic has to return: its signature, and how to call what `build` builds.

    ``build(builder, *arguments)`` gets for each :class:`Row` a pointer to its first number, for
    an array that is not part of one a pointer to its first number, a list for a tuple, and None
    for None.

    If `shared`, it is called once in a module, and calls on the same types share its code, which
    keeps kernels small and quick to compile. Arguments may not be tuples or None then. Otherwise
    the code is part of its caller: for what is called once in a kernel, or is shorter than a call.
    """
    flat = []
    for kind in kinds:
        array = kind.matrix if isinstance(kind, Row) else kind
        if isinstance(array, types.Array) and array.layout != "C":
            raise TypingError(f"rows are those of C-contiguous arrays, not of {array}")
        flat += [array, PLACE] if isinstance(kind, Row) else [kind]

    def generate(context, builder, signature, values):
        rest = iter(values)
        arguments = [_argument(context, builder, kind, rest) for kind in kinds]
        if shared:
            function = _shared(context, builder, name, returns, arguments, build)
            result = builder.call(function, arguments)
        else:
            result = build(builder, *arguments)
        return context.get_dummy_value() if returns is types.void else result

    return returns(*flat), generate


def _argument(context, builder, kind, values):
    """The next argument of what is built."""
    value = next(values)
    if isinstance(kind, Row):
        return _row(context, builder, kind.matrix, value, next(values))
    if isinstance(kind, types.Array):
        return context.make_array(kind)(context, builder, value).data
    if isinstance(kind, types.NoneType):
        return None
    return cgutils.unpack_tuple(builder, value) if isinstance(kind, types.UniTuple) else value


def _row(context, builder, kind, matrix, place):
    if isinstance(kind, types.NoneType):
        return None
    matrix = context.make_array(kind)(context, builder, matrix)
    if kind.ndim > 1:
        place = builder.mul(place, cgutils.unpack_tuple(builder, matrix.shape)[-1])
    return builder.gep(matrix.data, [place])


def _shared(context, builder, name, returns, arguments, build):
    """The function of this name for arguments of these types."""
    result = ir.VoidType() if returns is types.void else context.get_value_type(returns)
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    whole = "_".join(["fedrecsk", name, *(str(argument.type) for argument in arguments)])
    function = cgutils.get_or_insert_function(builder.module, kind, whole.replace("*", "s"))
    if function.is_declaration:
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        inner = ir.IRBuilder(function.append_basic_block("entry"))
        answer = build(inner, *function.args)
        inner.ret_void() if answer is None else inner.ret(answer)
    return function


def plain_row(stack, k, n):
    """The first n numbers of a row, as plain Python sees it."""
    width = 1 if stack.ndim == 1 else stack.shape[-1]
    # A narrow integer of NumPy would overflow.
    return stack.reshape(-1)[int(k) * width :][: int(n)]
