"""Dense layers in vector registers: a block of outputs and of columns at once.

The sums stay in registers until they are complete, which numba cannot express; LLVM can. Measured
with Decima's network on one core, the three variants by turns in one process: a decision on 100
stages takes 21 microseconds with this layer, 53 with plain numba loops and 66 with loops that take
four inputs a pass under fastmath; a rollout makes 32,700, 15,100 and 17,800 decisions a CPU second.
A layer of 50 inputs and outputs on 80 rows runs at 34 GFLOP/s on a Neoverse N1, OpenBLAS at 27.
"""

from functools import partial
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from loadmaster.models.simd import (
    ACROSS,
    COLUMNS,
    INTEGER,
    LANES,
    NUMBERS,
    OUTPUTS,
    ROWS,
    VECTOR,
    Tables,
    blocks,
    broadcast,
    broadcast_lane,
    cell,
    for_columns,
    leaky,
    multiply_add,
    registers_at,
    shared_function,
    vector_at,
)

LEFT, RIGHT = 4, 2  # rows of both factors of `add_outer` whose products are summed at once
_VECTOR = ir.VectorType(ir.FloatType(), COLUMNS)


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
    makes the layer linear. Outputs up to the next multiple of OUTPUTS and columns up to the next of
    COLUMNS are computed as well, with undefined values. Nothing is checked: tables must be large
    enough for these.
    """
    kinds = [matrix, bias, types.float32, source, target, types.int64, types.int64, types.int64]
    return types.void(*kinds), _generate


@intrinsic  # type: ignore[untyped-decorator]
def dense_items(
    typing: Any,
    items: Any,
    bias: Any,
    slope: Any,
    weights: Any,
    target: Any,
    given: Any,
    made: Any,
    count: Any,
) -> Any:
    """target[:made, :count] = leaky(items[:made, :given] @ weights[:given, :count] + bias[:count]).

    As `dense`, with items in rows and a bias for each column. Items up to the next multiple of ROWS
    and columns up to the next multiple of VECTOR are computed as well.
    """
    kinds = [items, bias, types.float32, weights, target, types.int64, types.int64, types.int64]
    return types.void(*kinds), _generate_items


def _generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    *tables, made, count = arguments
    made = builder.mul(blocks(builder, made, OUTPUTS), INTEGER(OUTPUTS))
    count = builder.mul(blocks(builder, count, COLUMNS), INTEGER(COLUMNS))
    whole = [*tables, made, count]
    return _call_dense(context, builder, signature, whole, "loadmaster_dense", _row_bias)


def _generate_items(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    name = "loadmaster_dense_items"
    return _call_dense(context, builder, signature, arguments, name, _column_bias)


def _call_dense(
    context: Any, builder: Any, signature: Any, arguments: Any, name: str, start_of: Any
) -> Any:
    tables = Tables(context, builder, signature, arguments)
    _, _, slope, _, _, given, made, count = arguments
    kinds = [NUMBERS] * 4 + [INTEGER] * 3 + [ir.FloatType()] + [INTEGER] * 3
    function = shared_function(builder.module, name, kinds, partial(_write_dense, start_of))
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
    tables = Tables(context, builder, signature, arguments)
    kinds = [NUMBERS] * 3 + [INTEGER] * 6
    function = shared_function(builder.module, "loadmaster_add_outer", kinds, _write_outer)
    builder.call(function, [*tables.data(0, 1, 2), *tables.widths(0, 1, 2), *arguments[3:]])
    return context.get_dummy_value()


def _row_bias(builder: Any, bias: Any, row: Any, column: Any, width: int) -> list[Any]:
    return [broadcast(builder, builder.load(builder.gep(bias, [row])), VECTOR)] * width


def _column_bias(builder: Any, bias: Any, row: Any, column: Any, width: int) -> list[Any]:
    cells = registers_at(builder, bias, INTEGER(0), row, column, width)
    return [builder.load(own, align=4) for own in cells]


def _write_dense(start_of: Any, builder: Any, arguments: Any) -> None:
    made, count = arguments[-2:]

    def write_rows(column: Any, width: int) -> None:
        """All outputs of some columns, whose numbers stay in the L1 cache."""
        with cgutils.for_range(builder, blocks(builder, made, ROWS)) as down:
            first = builder.mul(down.index, INTEGER(ROWS))
            rows = [builder.add(first, INTEGER(k)) for k in range(ROWS)]
            _write_block(start_of, builder, arguments, rows, column, width)

    for_columns(builder, count, ACROSS, write_rows)
    builder.ret_void()


def _write_block(
    start_of: Any, builder: Any, arguments: Any, rows: list[Any], column: Any, width: int
) -> None:
    """Some outputs and `width` registers of columns."""
    matrix, bias, source, target, inputs, columns, wide, slope, given, _, _ = arguments
    kind = ir.VectorType(ir.FloatType(), VECTOR)
    # LLVM promotes these variables to registers.
    sums = [[cgutils.alloca_once(builder, kind) for _ in range(width)] for _ in rows]
    for row, totals in zip(rows, sums, strict=True):
        starts = start_of(builder, bias, row, column, width)
        for start, total in zip(starts, totals, strict=True):
            builder.store(start, total)

    def add_inputs(first: Any, lanes: int) -> None:
        """Add the products of `lanes` inputs, whose weights are loaded as one vector."""
        cells = [cell(builder, matrix, inputs, row, first) for row in rows]
        kind = ir.VectorType(ir.FloatType(), lanes).as_pointer()
        weights = [builder.load(builder.bitcast(c, kind), align=4) for c in cells]
        for lane in range(lanes):
            number = builder.add(first, INTEGER(lane))
            xs = registers_at(builder, source, columns, number, column, width)
            for place, at in enumerate(xs):
                x = builder.load(at, align=4)
                for weight, totals in zip(weights, sums, strict=True):
                    known, total = broadcast_lane(builder, weight, lane, VECTOR), totals[place]
                    builder.store(multiply_add(builder, known, x, builder.load(total)), total)

    whole = builder.sdiv(given, INTEGER(LANES))
    with cgutils.for_range(builder, whole) as loop:
        add_inputs(builder.mul(loop.index, INTEGER(LANES)), LANES)
    done = builder.mul(whole, INTEGER(LANES))
    if LANES > 1:
        with cgutils.for_range(builder, builder.sub(given, done)) as loop:
            add_inputs(builder.add(done, loop.index), 1)
    for row, totals in zip(rows, sums, strict=True):
        cells = registers_at(builder, target, wide, row, column, width)
        for at, total in zip(cells, totals, strict=True):
            builder.store(leaky(builder, builder.load(total), slope), at, align=4)


def _write_outer(builder: Any, arguments: Any) -> None:
    left, right, target, left_width, right_width, target_width, rows, columns, count = arguments
    sums = [[cgutils.alloca_once(builder, _VECTOR) for _ in range(RIGHT)] for _ in range(LEFT)]
    kind = ir.FunctionType(ir.FloatType(), [ir.FloatType(), _VECTOR])
    name = f"llvm.vector.reduce.fadd.v{COLUMNS}f32"
    reduce_add = cgutils.get_or_insert_function(builder.module, kind, name)
    with (
        cgutils.for_range(builder, blocks(builder, rows, LEFT)) as down,
        cgutils.for_range(builder, blocks(builder, columns, RIGHT)) as across,
    ):
        own = [builder.add(builder.mul(down.index, INTEGER(LEFT)), INTEGER(k)) for k in range(LEFT)]
        other = [
            builder.add(builder.mul(across.index, INTEGER(RIGHT)), INTEGER(k)) for k in range(RIGHT)
        ]
        for each in sums:
            for total in each:
                builder.store(ir.Constant(_VECTOR, [0.0] * COLUMNS), total)
        with cgutils.for_range(builder, blocks(builder, count, COLUMNS)) as loop:
            place = builder.mul(loop.index, INTEGER(COLUMNS))
            xs = [
                builder.load(vector_at(builder, right, right_width, row, place, COLUMNS), align=4)
                for row in other
            ]
            for row, each in zip(own, sums, strict=True):
                at = vector_at(builder, left, left_width, row, place, COLUMNS)
                value = builder.load(at, align=4)
                for x, total in zip(xs, each, strict=True):
                    builder.store(multiply_add(builder, value, x, builder.load(total)), total)
        for row, each in zip(own, sums, strict=True):
            for column, total in zip(other, each, strict=True):
                own_cell = cell(builder, target, target_width, row, column)
                before = builder.load(own_cell)
                whole = builder.call(
                    reduce_add, [before, builder.load(total)], fastmath=("reassoc",)
                )
                builder.store(whole, own_cell)
    builder.ret_void()
