"""Workload registries and trace files: what all environments share."""

from __future__ import annotations

import csv
import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.errors import InputError, unknown_name

CSV_MAX_BYTES = 1 << 31  # of text; a larger file, or a small one that unpacks to more, is refused
_BLOCK = 1 << 20  # bytes read at a time
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}  # by a file's first bytes
_BLANK_LINE = re.compile(rb"(?:\A|\n)\r?\n")

EnvironmentSettings = TypeVar("EnvironmentSettings")
Workload = TypeVar("Workload", covariant=True)


@dataclass(frozen=True)
class WorkloadSpec(Generic[EnvironmentSettings, Workload]):
    """A workload by name; `load` generates or reads its jobs."""

    name: str
    summary: str
    load: Callable[[EnvironmentSettings], Workload]


Workloads = Mapping[str, WorkloadSpec[EnvironmentSettings, Workload]]


def find_workload(
    known: Workloads[EnvironmentSettings, Workload], name: str
) -> WorkloadSpec[EnvironmentSettings, Workload]:
    """Look a workload up by name; an InputError suggests the nearest one."""
    if name not in known:
        raise unknown_name("workload", name, known)
    return known[name]


def trace_path(workload: str, data: Path | None) -> Path:
    """Resolve the folder (or file) of traces from the setting `data` or LOADMASTER_DATA."""
    named = data or os.environ.get("LOADMASTER_DATA")
    if not named:
        raise InputError(
            f"workload {workload!r} reads traces that are not shipped; expected their "
            "folder as --set data=FOLDER or in LOADMASTER_DATA"
        )
    path = Path(named).expanduser().resolve()
    if not path.exists():
        origin = "data" if data else "LOADMASTER_DATA"
        raise InputError(f"{origin}: no file or folder {path}; expected the folder of the traces")
    return path


class CsvTable:
    """Text columns of a CSV file; errors about a value name its file, line and column."""

    def __init__(self, path: Path, lines: NDArray[np.int64], columns: Mapping[str, Any]) -> None:
        self.path = path
        self.lines = lines  # (rows,) line numbers in the file, from 1
        self._columns = columns  # name -> pyarrow array of strings

    def __len__(self) -> int:
        return len(self.lines)

    def select(self, rows: NDArray[np.bool_]) -> CsvTable:
        """Return the rows where the mask is True, with their line numbers."""
        kept = {name: values.filter(rows) for name, values in self._columns.items()}
        return CsvTable(self.path, self.lines[rows], kept)

    def text(self, column: str) -> list[str]:
        values: list[str] = self._columns[column].to_numpy(zero_copy_only=False).tolist()
        return values

    def numbers(
        self, column: str, least: float | None = 0.0, blank: float | None = None
    ) -> NDArray[np.float64]:
        """Parse a column of finite numbers, none below `least`; `blank` replaces empty fields."""
        import pyarrow as pa
        import pyarrow.compute as pc

        texts = self._columns[column]
        if blank is not None:
            texts = pc.if_else(pc.equal(texts, ""), str(blank), texts)
        try:
            values: NDArray[np.float64] = texts.cast(pa.float64()).to_numpy()
        except pa.ArrowInvalid:  # a spelling that only Python accepts, or no number
            values = np.array([_number(text) for text in texts.to_pylist()], np.float64)
        bad = ~np.isfinite(values)
        expected = "a number"
        if least is not None:
            bad |= values < least
            expected += f" of {least:g} or more"
        if bad.any():
            raise self.fault(int(np.argmax(bad)), column, expected)
        return values

    def whole_numbers(self, column: str, least: int = 0) -> NDArray[np.int64]:
        """Parse a column of whole numbers, none below `least`; "3.0" is one."""
        values = self.numbers(column, least)
        bad = values != np.floor(values)
        if bad.any():
            raise self.fault(int(np.argmax(bad)), column, f"a whole number of {least} or more")
        return values.astype(np.int64)

    def fault(self, row: int, column: str, expected: str) -> InputError:
        """Build the error for one value."""
        value = self._columns[column][row].as_py()
        return InputError(
            f"{self.path}, line {self.lines[row]}: {column} {value!r}; expected {expected}"
        )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


def column_names(path: Path) -> list[str]:
    """Names in the first line of a .csv or .csv.gz file."""
    return _first_record(path, _read_bytes(path))


def read_csv(path: Path, columns: Sequence[str], *, header_optional: bool = False) -> CsvTable:
    """Read the named columns of a .csv or .csv.gz file; each problem is an InputError.

    The first line names the columns, in any order and among others. With `header_optional`, a
    first line that names none of `columns` is data, and the fields are `columns` in that order.
    """
    # Importing pyarrow takes about as long as importing numba, and only trace workloads need it.
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    content = _read_bytes(path)
    fields = _first_record(path, content)
    has_header = not header_optional or any(name in columns for name in fields)
    names = fields if has_header else list(columns)
    for name in columns:
        if name not in names:
            raise InputError(f"{path}: no column {name!r}; expected {', '.join(columns)}")
    if blank := _BLANK_LINE.search(content):
        line = content.count(b"\n", 0, blank.end())
        raise InputError(f"{path}, line {line}: 0 fields; expected {len(names)}")
    if not content or (has_header and content.count(b"\n") == 0):
        empty = {name: pa.array([], pa.string()) for name in columns}
        return CsvTable(path, np.zeros(0, np.int64), empty)

    wrong: list[Any] = []

    def on_invalid_row(row: Any) -> str:
        wrong.append(row)
        return "skip"

    places = {name: str(names.index(name)) for name in columns}
    try:
        table = pa_csv.read_csv(
            pa.BufferReader(content),
            read_options=pa_csv.ReadOptions(
                use_threads=False,  # or rows have no numbers
                column_names=[str(place) for place in range(len(names))],
                skip_rows=int(has_header),
            ),
            parse_options=pa_csv.ParseOptions(
                newlines_in_values=True,
                ignore_empty_lines=False,
                invalid_row_handler=on_invalid_row,
            ),
            convert_options=pa_csv.ConvertOptions(
                include_columns=list(places.values()),
                column_types={place: pa.string() for place in places.values()},
            ),
        )
    except pa.ArrowInvalid:
        raise _damaged(path) from None
    if wrong:
        row = wrong[0]
        raise InputError(
            f"{path}, line {row.number}: {row.actual_columns} fields; expected {len(names)}"
        )
    lines = np.arange(table.num_rows, dtype=np.int64) + (2 if has_header else 1)
    return CsvTable(path, lines, {name: table[place] for name, place in places.items()})


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines of a text file with their numbers from 1, blank ones left out; gzip and zstd unpack.

    The file is read in blocks, so it may be larger than memory. Damage is an InputError.
    """
    import pyarrow as pa

    number, rest = 0, b""
    try:
        with path.open("rb") as file:
            start = file.read(4)
        found = (name for magic, name in _COMPRESSIONS.items() if start.startswith(magic))
        with pa.input_stream(str(path), compression=next(found, None)) as stream:
            while block := stream.read(_BLOCK):
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    number += 1
                    if line.strip():
                        yield number, line
    except (OSError, pa.ArrowException) as fault:
        reason = getattr(fault, "strerror", None) or "damaged or cut off"
        raise InputError(
            f"{path}, after line {number}: {reason}; expected plain text, gzip or zstd"
        ) from None
    if rest.strip():
        yield number + 1, rest


def _read_bytes(path: Path) -> bytes:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            content: bytes = file.read(CSV_MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error):
        raise _damaged(path) from None
    if len(content) > CSV_MAX_BYTES:
        raise InputError(f"{path}: more than {CSV_MAX_BYTES:,} bytes of text; expected fewer")
    return content


def _first_record(path: Path, content: bytes) -> list[str]:
    try:
        return next(csv.reader([content.split(b"\n", 1)[0].decode("utf-8-sig").rstrip("\r")]), [])
    except (UnicodeDecodeError, csv.Error):
        raise _damaged(path) from None


def _damaged(path: Path) -> InputError:
    return InputError(f"{path}: unreadable or damaged; expected a .csv or .csv.gz file")
