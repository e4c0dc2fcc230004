"""One step of a small layer in vector registers: four outputs for eight columns at once.

Written as loops, a layer of this size spends its time between the loops, not in them: each is
over after a few turns, and must first make sure that the tables it reads and writes do not overlap.
Here the sums stay in registers until they are whole; a decision of Decima's network takes two
thirds of the time. numba has no word for that; LLVM, which it compiles with, has.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

COLUMNS = 8
OUTPUTS = 4

_VECTOR = ir.VectorType(ir.FloatType(), COLUMNS)


@intrinsic  # type: ignore[untyped-decorator]
def layer_block(
    typing: Any,
    matrix: Any,
    bias: Any,
    slope: Any,
    source: Any,
    target: Any,
    given: Any,
    output: Any,
    column: Any,
) -> Any:
    """target[output:][:OUTPUTS, column:][:COLUMNS] = leaky(matrix @ source + bias).

    matrix (outputs, inputs), bias (outputs,), source (inputs, columns), target (outputs, columns):
    float32, row after row. `given` inputs count. What is below 0 shrinks to `slope` of it; a slope
    of 1 leaves everything as it is. Nothing is checked: tables must have room for whole blocks.
    """
    kinds = [matrix, bias, types.float32, source, target, types.int64, types.int64, types.int64]
    return types.void(*kinds), _generate


def _generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    def table(place: int) -> Any:
        return context.make_array(signature.args[place])(context, builder, arguments[place])

    weights, biases, inputs, outputs = table(0), table(1), table(3), table(4)
    _, _, slope, _, _, given, first, column = arguments
    rows = [builder.add(first, ir.Constant(first.type, k)) for k in range(OUTPUTS)]
    # Variables until LLVM sees that registers will do.
    sums = [cgutils.alloca_once(builder, _VECTOR) for _ in rows]
    for row, total in zip(rows, sums, strict=True):
        start = builder.load(builder.gep(biases.data, [row]))
        builder.store(_spread(builder, start), total)
    with cgutils.for_range(builder, given) as loop:
        x = builder.load(_lanes(builder, inputs, loop.index, column), align=4)
        for row, total in zip(rows, sums, strict=True):
            weight = _spread(builder, builder.load(_cell(builder, weights, row, loop.index)))
            builder.store(_multiply_add(builder, weight, x, builder.load(total)), total)
    for row, total in zip(rows, sums, strict=True):
        whole = builder.load(total)
        shrunk = builder.fmul(whole, _spread(builder, slope))
        below = builder.fcmp_ordered("<", whole, ir.Constant(_VECTOR, [0.0] * COLUMNS))
        leaky = builder.select(below, shrunk, whole)
        builder.store(leaky, _lanes(builder, outputs, row, column), align=4)
    return context.get_dummy_value()


def _cell(builder: Any, table: Any, row: Any, column: Any) -> Any:
    width = builder.extract_value(table.shape, 1)
    return builder.gep(table.data, [builder.add(builder.mul(row, width), column)])


def _lanes(builder: Any, table: Any, row: Any, column: Any) -> Any:
    """A row's cells from `column` on, as one vector."""
    return builder.bitcast(_cell(builder, table, row, column), _VECTOR.as_pointer())


def _spread(builder: Any, number: Any) -> Any:
    """The number in every lane."""
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    single = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), COLUMNS), None)
    return builder.shuffle_vector(single, nothing, zeros)


def _multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once where the processor can."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    name = f"llvm.fmuladd.v{COLUMNS}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [a, b, c])
