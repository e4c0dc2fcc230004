"""Sums of chosen rows of a table in vector registers, for graph layers.

The sums of all columns stay in registers until they are complete, which numba cannot express: its
loops read and write a sum once for each row.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from loadmaster.models.simd import (
    INTEGER,
    LANES,
    NUMBERS,
    VECTOR,
    Tables,
    cell,
    for_columns,
    leaky,
    registers_at,
    shared_function,
)

_REGISTERS = 16 if LANES > 1 else 8  # of sums that are formed at once; x86 has fewer
_PLACES = INTEGER.as_pointer()


@intrinsic  # type: ignore[untyped-decorator]
def sum_rows(
    typing: Any,
    table: Any,
    places: Any,
    counts: Any,
    bias: Any,
    slope: Any,
    target: Any,
    rows: Any,
    size: Any,
) -> Any:
    """target[r, :size] = leaky(bias[:size] + the sum of table[places[r, k], :size], k < counts[r]).

    For r < rows. As in `simd_dense.dense`, nothing is checked, and columns up to the next multiple
    of VECTOR are computed as well. table, target (rows, columns), bias: float32; places, counts:
    int64, cells of a row side by side.
    """
    kinds = [table, places, counts, bias, types.float32, target, types.int64, types.int64]
    return types.void(*kinds), _generate


def _generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    tables = Tables(context, builder, signature, arguments)
    pointers = [NUMBERS, _PLACES, _PLACES, NUMBERS, NUMBERS]
    kinds = [*pointers, *[INTEGER] * 3, ir.FloatType(), *[INTEGER] * 2]
    function = shared_function(builder.module, "loadmaster_sum_rows", kinds, _write)
    _, _, _, _, slope, _, rows, size = arguments
    # Places have 64 bits, twice those of numbers.
    across, step, wide = tables.widths(0, 1, 5)
    widths = [across, builder.sdiv(step, INTEGER(2)), wide]
    builder.call(function, [*tables.data(0, 1, 2, 3, 5), *widths, slope, rows, size])
    return context.get_dummy_value()


def _write(builder: Any, arguments: Any) -> None:
    table, places, counts, bias, target, columns, step, wide, slope, rows, size = arguments

    def write(column: Any, width: int) -> None:
        kind = ir.VectorType(ir.FloatType(), VECTOR)
        sums = [cgutils.alloca_once(builder, kind) for _ in range(width)]  # become registers
        biases = registers_at(builder, bias, INTEGER(0), INTEGER(0), column, width)
        starts = [builder.load(own, align=4) for own in biases]
        with cgutils.for_range(builder, rows) as down:
            for start, total in zip(starts, sums, strict=True):
                builder.store(start, total)
            count = builder.load(builder.gep(counts, [down.index]))
            with cgutils.for_range(builder, count) as loop:
                row = builder.load(cell(builder, places, step, down.index, loop.index))
                added = registers_at(builder, table, columns, row, column, width)
                for own, total in zip(added, sums, strict=True):
                    whole = builder.fadd(builder.load(total), builder.load(own, align=4))
                    builder.store(whole, total)
            cells = registers_at(builder, target, wide, down.index, column, width)
            for at, total in zip(cells, sums, strict=True):
                builder.store(leaky(builder, builder.load(total), slope), at, align=4)

    for_columns(builder, size, _REGISTERS, write)
    builder.ret_void()
