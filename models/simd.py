"""SIMD registers of this processor, and what functions written in LLVM's language share."""

from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba.core import cgutils, types

# float32 numbers in a register. Numba's cache is specific to the processor, too.
COLUMNS = 16 if get_host_cpu_features().get("avx512f") else 8
OUTPUTS = 8
_NEON = bool(get_host_cpu_features().get("neon"))
# Inputs whose weights are loaded at once. ARM multiplies by any element of a register; x86 copies
# one number from memory into all elements at no cost.
LANES = 4 if _NEON else 1
# Columns of one register, and the block of outputs and registers whose sums are formed at once.
VECTOR = 4 if _NEON else COLUMNS
ROWS, ACROSS = (4, 4) if _NEON else (OUTPUTS, 1)

INTEGER, NUMBERS = ir.IntType(64), ir.FloatType().as_pointer()


class Tables:
    """Data pointers and row widths of array arguments; an array may be a part of a wider one."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self._builder = builder
        self._arrays = {
            place: context.make_array(kind)(context, builder, arguments[place])
            for place, kind in enumerate(signature.args)
            if isinstance(kind, types.Array)
        }

    def data(self, *places: int) -> list[Any]:
        return [self._arrays[place].data for place in places]

    def widths(self, *places: int) -> list[Any]:
        """Numbers from one row to the next."""
        strides = [self._builder.extract_value(self._arrays[place].strides, 0) for place in places]
        return [self._builder.sdiv(stride, INTEGER(4)) for stride in strides]


def shared_function(module: Any, name: str, kinds: list[Any], write_body: Any) -> Any:
    """One function for all calls in a module, since inlining it everywhere compiles for long."""
    function = cgutils.get_or_insert_function(module, ir.FunctionType(ir.VoidType(), kinds), name)
    if not function.blocks:
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        function.attributes.add("nounwind")
        write_body(ir.IRBuilder(function.append_basic_block("entry")), function.args)
    return function


def blocks(builder: Any, count: Any, size: int) -> Any:
    """Number of blocks of `size` that hold `count`."""
    return builder.sdiv(builder.add(count, INTEGER(size - 1)), INTEGER(size))


def for_columns(builder: Any, count: Any, across: int, write: Any) -> None:
    """Call write(column, width) for all columns: `width` registers from `column` on, or the rest.

    Code is written for each width up to `across`.
    """
    vectors = blocks(builder, count, VECTOR)
    whole = builder.sdiv(vectors, INTEGER(across))
    with cgutils.for_range(builder, whole) as loop:
        write(builder.mul(loop.index, INTEGER(across * VECTOR)), across)
    column = builder.mul(whole, INTEGER(across * VECTOR))
    end = builder.append_basic_block("end")
    choice = builder.switch(builder.srem(vectors, INTEGER(across)), end)
    for width in range(1, across):
        block = builder.append_basic_block(f"width_{width}")
        choice.add_case(INTEGER(width), block)
        builder.position_at_end(block)
        write(column, width)
        builder.branch(end)
    builder.position_at_end(end)


def cell(builder: Any, data: Any, width: Any, row: Any, column: Any) -> Any:
    return builder.gep(data, [builder.add(builder.mul(row, width), column)])


def vector_at(builder: Any, data: Any, width: Any, row: Any, column: Any, size: int) -> Any:
    """The cells of a row from `column` on, as one vector."""
    kind = ir.VectorType(ir.FloatType(), size).as_pointer()
    return builder.bitcast(cell(builder, data, width, row, column), kind)


def registers_at(
    builder: Any, data: Any, width: Any, row: Any, column: Any, count: int
) -> list[Any]:
    """The cells of a row from `column` on, as `count` registers."""
    first, kind = cell(builder, data, width, row, column), ir.VectorType(ir.FloatType(), VECTOR)
    # Constant distances from one address: these are part of the instructions that load and store.
    cells = [builder.gep(first, [INTEGER(VECTOR * k)]) for k in range(count)]
    return [builder.bitcast(own, kind.as_pointer()) for own in cells]


def leaky(builder: Any, whole: Any, slope: Any) -> Any:
    """max(x, slope * x): slopes are between 0 and 1."""
    return _larger(builder, whole, builder.fmul(whole, broadcast(builder, slope, VECTOR)))


def relu(builder: Any, whole: Any) -> Any:
    """max(x, 0)"""
    return _larger(builder, whole, ir.Constant(whole.type, [0.0] * VECTOR))


def _larger(builder: Any, one: Any, other: Any) -> Any:
    kind = ir.FunctionType(one.type, [one.type] * 2)
    name = f"llvm.maxnum.v{VECTOR}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [one, other])


def broadcast(builder: Any, number: Any, size: int) -> Any:
    """A vector with the number in every element."""
    nothing = ir.Constant(ir.VectorType(ir.FloatType(), size), ir.Undefined)
    single = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), size), None)
    return builder.shuffle_vector(single, nothing, zeros)


def broadcast_lane(builder: Any, vector: Any, lane: int, size: int) -> Any:
    """A vector with one element of another in every element."""
    mask = ir.Constant(ir.VectorType(ir.IntType(32), size), [lane] * size)
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once where the processor has that operation."""
    kind = ir.FunctionType(a.type, [a.type] * 3)
    name = f"llvm.fmuladd.v{a.type.count}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [a, b, c])
