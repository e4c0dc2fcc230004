"""Sums of chosen rows of a table in vector registers, for graph layers, and their prefetch.

The sums of all columns stay in registers until they are complete, which numba cannot express: its
loops read and write a sum once for each row.
"""

from functools import partial
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
    blocks,
    cell,
    for_columns,
    registers_at,
    relu,
    shared_function,
)

_REGISTERS = 16 if LANES > 1 else 8  # of sums that are formed at once; x86 has fewer
_PLACES = INTEGER.as_pointer()
_LINE = 16  # float32 numbers in a cache line
_READ, _LEVEL_2, _DATA = map(ir.IntType(32), (0, 2, 1))  # of LLVM's prefetch


@intrinsic  # type: ignore[untyped-decorator]
def sum_rows(
    typing: Any, table: Any, places: Any, counts: Any, target: Any, rows: Any, size: Any
) -> Any:
    """target[r, :size] = the sum of table[places[r, k], :size], k < counts[r].

    For r < rows. As in `simd_dense.dense`, nothing is checked, and columns up to the next multiple
    of VECTOR are computed as well. table, target (rows, columns): float32; places, counts: int64,
    cells of a row side by side.
    """
    return types.void(table, places, counts, target, types.int64, types.int64), _generate_plain


@intrinsic  # type: ignore[untyped-decorator]
def relu_of_sums(
    typing: Any, table: Any, places: Any, counts: Any, bias: Any, target: Any, rows: Any, size: Any
) -> Any:
    """As `sum_rows`: the ReLU of bias[:size] and the sums."""
    kinds = [table, places, counts, bias, target, types.int64, types.int64]
    return types.void(*kinds), _generate_relu


def _generate_plain(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    tables = Tables(context, builder, signature, arguments)
    name, write = "loadmaster_sum_rows", partial(_write, False)
    no_bias = tables.data(0)  # not read
    return _call(context, builder, tables, no_bias, 3, arguments[-2:], name, write)


def _generate_relu(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    tables = Tables(context, builder, signature, arguments)
    name, write = "loadmaster_relu_of_sums", partial(_write, True)
    return _call(context, builder, tables, tables.data(3), 4, arguments[-2:], name, write)


def _call(
    context: Any, builder: Any, tables: Tables, bias: list[Any], target: int, sizes: Any,
    name: str, write: Any,
) -> Any:  # fmt: skip
    pointers = [NUMBERS, _PLACES, _PLACES, NUMBERS, NUMBERS]
    function = shared_function(builder.module, name, [*pointers, *[INTEGER] * 5], write)
    # Places have 64 bits, twice those of numbers.
    across, step, wide = tables.widths(0, 1, target)
    widths = [across, builder.sdiv(step, INTEGER(2)), wide]
    builder.call(function, [*tables.data(0, 1, 2), *bias, *tables.data(target), *widths, *sizes])
    return context.get_dummy_value()


def _write(with_relu: bool, builder: Any, arguments: Any) -> None:
    table, places, counts, bias, target, columns, step, wide, rows, size = arguments

    def write(column: Any, width: int) -> None:
        kind = ir.VectorType(ir.FloatType(), VECTOR)
        zero = ir.Constant(kind, [0.0] * VECTOR)
        sums = [cgutils.alloca_once(builder, kind) for _ in range(width)]  # become registers
        starts = [zero] * width
        if with_relu:
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
                whole = builder.load(total)
                builder.store(relu(builder, whole) if with_relu else whole, at, align=4)

    for_columns(builder, size, _REGISTERS, write)
    builder.ret_void()


@intrinsic  # type: ignore[untyped-decorator]
def prefetch_row(typing: Any, table: Any, row: Any) -> Any:
    """Fetch table[row] into the second level of the cache, without waiting for it."""
    return types.void(table, types.int64), _generate_prefetch


def _generate_prefetch(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    tables, (_, row) = Tables(context, builder, signature, arguments), arguments
    (data,), (width,) = tables.data(0), tables.widths(0)
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, *[ir.IntType(32)] * 3])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    last = builder.sub(width, INTEGER(1))  # a row need not begin with a line
    with cgutils.for_range(builder, builder.add(blocks(builder, last, _LINE), INTEGER(1))) as loop:
        column = builder.mul(loop.index, INTEGER(_LINE))
        inside = builder.icmp_signed("<", column, last)
        at = cell(builder, data, width, row, builder.select(inside, column, last))
        builder.call(prefetch, [builder.bitcast(at, byte), _READ, _LEVEL_2, _DATA])
    return context.get_dummy_value()
