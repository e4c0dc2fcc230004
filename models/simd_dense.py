"""Dense layers in vector registers: a block of outputs and of columns at once.

The sums stay in registers until they are complete, which numba cannot express; LLVM can. Measured
with Decima's network on one core, the three variants by turns in one process: a decision on 100
stages takes 21 microseconds with this layer, 53 with plain numba loops and 66 with loops that take
four inputs a pass under fastmath; a rollout makes 32,700, 15,100 and 17,800 decisions a CPU second.
"""

from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba.core import cgutils, types
from numba.extending import intrinsic

# float32 numbers in a register. Numba's cache is specific to the processor, too.
COLUMNS = 16 if get_host_cpu_features().get("avx512f") else 8
OUTPUTS = 8
# Inputs whose weights are loaded at once. ARM multiplies by any element of a register; x86 copies
# one number from memory into all elements at no cost.
LANES = 4 if get_host_cpu_features().get("neon") else 1
LEFT, RIGHT = 4, 2  # rows of both factors of `add_outer` whose products are summed at once

_VECTOR = ir.VectorType(ir.FloatType(), COLUMNS)
_INTEGER, _NUMBERS = ir.IntType(64), ir.FloatType().as_pointer()


@intrinsic  # type: ignore[untyped-decorator]
def dense(
    typing: Any,
    matrix: Any,
    bias: Any,
    slope: Any,
    source: Any,
    target: Any,
    given: Any,
    made: Any,
    count: Any,
) -> Any:
    """target[:made, :count] = leaky(matrix[:made, :given] @ source[:given, :count] + bias[:made]).

    matrix (outputs, inputs), bias (outputs,), source (inputs, columns), target (outputs, columns):
    float32, cells of a row side by side. Negative sums are multiplied by `slope`; a slope of 1
    makes the layer linear. Outputs and columns up to the next whole block are computed as well,
    with undefined values. Nothing is checked: tables must be large enough for whole blocks.
    """
    kinds = [matrix, bias, types.float32, source, target, types.int64, types.int64, types.int64]
    return types.void(*kinds), _generate


def _generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    tables = _Tables(context, builder, signature, arguments)
    _, _, slope, _, _, given, made, count = arguments
    kinds = [_NUMBERS] * 4 + [_INTEGER] * 3 + [ir.FloatType()] + [_INTEGER] * 3
    function = _function(builder.module, "loadmaster_dense", kinds, _write_dense)
    widths = tables.widths(0, 3, 4)
    builder.call(function, [*tables.data(0, 1, 3, 4), *widths, slope, given, made, count])
    return context.get_dummy_value()


@intrinsic  # type: ignore[untyped-decorator]
def add_outer(
    typing: Any, left: Any, right: Any, target: Any, rows: Any, columns: Any, count: Any
) -> Any:
    """target[:rows, :columns] += left[:rows, :count] @ right[:columns, :count].T.

    The gradient of a layer's matrix from the gradients of its outputs and its inputs. float32,
    cells of a row side by side. `count` must be a whole number of blocks; rows and columns up to
    the next multiple of LEFT and RIGHT are computed as well, with undefined values.
    """
    return types.void(left, right, target, types.int64, types.int64, types.int64), _generate_outer


def _generate_outer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    tables = _Tables(context, builder, signature, arguments)
    kinds = [_NUMBERS] * 3 + [_INTEGER] * 6
    function = _function(builder.module, "loadmaster_add_outer", kinds, _write_outer)
    builder.call(function, [*tables.data(0, 1, 2), *tables.widths(0, 1, 2), *arguments[3:]])
    return context.get_dummy_value()


class _Tables:
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
        return [self._builder.sdiv(stride, _INTEGER(4)) for stride in strides]


def _function(module: Any, name: str, kinds: list[Any], write_body: Any) -> Any:
    """One function for all calls in a module, since inlining it everywhere compiles for long."""
    function = cgutils.get_or_insert_function(module, ir.FunctionType(ir.VoidType(), kinds), name)
    if not function.blocks:
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        function.attributes.add("nounwind")
        write_body(ir.IRBuilder(function.append_basic_block("entry")), function.args)
    return function


def _write_dense(builder: Any, arguments: Any) -> None:
    matrix, bias, source, target, inputs, columns, wide, slope, given, made, count = arguments
    # LLVM promotes these variables to registers.
    sums = [cgutils.alloca_once(builder, _VECTOR) for _ in range(OUTPUTS)]
    with cgutils.for_range(builder, _blocks(builder, made, OUTPUTS)) as outputs:
        first = builder.mul(outputs.index, _INTEGER(OUTPUTS))
        rows = [builder.add(first, _INTEGER(k)) for k in range(OUTPUTS)]
        with cgutils.for_range(builder, _blocks(builder, count, COLUMNS)) as across:
            column = builder.mul(across.index, _INTEGER(COLUMNS))
            for row, total in zip(rows, sums, strict=True):
                start = builder.load(builder.gep(bias, [row]))
                builder.store(_broadcast(builder, start), total)

            def add_inputs(first: Any, lanes: int) -> None:
                """Add the products of `lanes` inputs, whose weights are loaded as one vector."""
                cells = [_cell(builder, matrix, inputs, row, first) for row in rows]
                kind = ir.VectorType(ir.FloatType(), lanes).as_pointer()
                weights = [builder.load(builder.bitcast(c, kind), align=4) for c in cells]
                for lane in range(lanes):
                    place = builder.add(first, _INTEGER(lane))
                    x = builder.load(_vector(builder, source, columns, place, column), align=4)
                    for weight, total in zip(weights, sums, strict=True):
                        known = _broadcast_lane(builder, weight, lane)
                        builder.store(_multiply_add(builder, known, x, builder.load(total)), total)

            whole = builder.sdiv(given, _INTEGER(LANES))
            with cgutils.for_range(builder, whole) as loop:
                add_inputs(builder.mul(loop.index, _INTEGER(LANES)), LANES)
            done = builder.mul(whole, _INTEGER(LANES))
            with cgutils.for_range(builder, builder.sub(given, done)) as loop:
                add_inputs(builder.add(done, loop.index), 1)
            for row, total in zip(rows, sums, strict=True):
                leaky = _leaky(builder, builder.load(total), slope)
                builder.store(leaky, _vector(builder, target, wide, row, column), align=4)
    builder.ret_void()


def _write_outer(builder: Any, arguments: Any) -> None:
    left, right, target, left_width, right_width, target_width, rows, columns, count = arguments
    sums = [[cgutils.alloca_once(builder, _VECTOR) for _ in range(RIGHT)] for _ in range(LEFT)]
    kind = ir.FunctionType(ir.FloatType(), [ir.FloatType(), _VECTOR])
    name = f"llvm.vector.reduce.fadd.v{COLUMNS}f32"
    reduce_add = cgutils.get_or_insert_function(builder.module, kind, name)
    with (
        cgutils.for_range(builder, _blocks(builder, rows, LEFT)) as down,
        cgutils.for_range(builder, _blocks(builder, columns, RIGHT)) as across,
    ):
        own = [
            builder.add(builder.mul(down.index, _INTEGER(LEFT)), _INTEGER(k)) for k in range(LEFT)
        ]
        other = [
            builder.add(builder.mul(across.index, _INTEGER(RIGHT)), _INTEGER(k))
            for k in range(RIGHT)
        ]
        for each in sums:
            for total in each:
                builder.store(ir.Constant(_VECTOR, [0.0] * COLUMNS), total)
        with cgutils.for_range(builder, _blocks(builder, count, COLUMNS)) as loop:
            place = builder.mul(loop.index, _INTEGER(COLUMNS))
            xs = [
                builder.load(_vector(builder, right, right_width, row, place), align=4)
                for row in other
            ]
            for row, each in zip(own, sums, strict=True):
                value = builder.load(_vector(builder, left, left_width, row, place), align=4)
                for x, total in zip(xs, each, strict=True):
                    builder.store(_multiply_add(builder, value, x, builder.load(total)), total)
        for row, each in zip(own, sums, strict=True):
            for column, total in zip(other, each, strict=True):
                cell = _cell(builder, target, target_width, row, column)
                before = builder.load(cell)
                whole = builder.call(
                    reduce_add, [before, builder.load(total)], fastmath=("reassoc",)
                )
                builder.store(whole, cell)
    builder.ret_void()


def _blocks(builder: Any, count: Any, size: int) -> Any:
    """Number of blocks of `size` that hold `count`."""
    return builder.sdiv(builder.add(count, _INTEGER(size - 1)), _INTEGER(size))


def _cell(builder: Any, data: Any, width: Any, row: Any, column: Any) -> Any:
    return builder.gep(data, [builder.add(builder.mul(row, width), column)])


def _vector(builder: Any, data: Any, width: Any, row: Any, column: Any) -> Any:
    """The cells of a row from `column` on, as one vector."""
    return builder.bitcast(_cell(builder, data, width, row, column), _VECTOR.as_pointer())


def _leaky(builder: Any, whole: Any, slope: Any) -> Any:
    shrunk = builder.fmul(whole, _broadcast(builder, slope))
    below = builder.fcmp_ordered("<", whole, ir.Constant(_VECTOR, [0.0] * COLUMNS))
    return builder.select(below, shrunk, whole)


def _broadcast(builder: Any, number: Any) -> Any:
    """A vector with the number in every element."""
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    single = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), COLUMNS), None)
    return builder.shuffle_vector(single, nothing, zeros)


def _broadcast_lane(builder: Any, vector: Any, lane: int) -> Any:
    """A vector with one element of another in every element."""
    mask = ir.Constant(ir.VectorType(ir.IntType(32), COLUMNS), [lane] * COLUMNS)
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)


def _multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once where the processor has that operation."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    name = f"llvm.fmuladd.v{COLUMNS}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [a, b, c])
