"""Parquet files of the decision log, each written atomically, and their readers."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from loadmaster.envs.errors import InputError
from loadmaster.models.files import atomic_binary_file
from loadmaster.models.manifest import visible

SUFFIX = ".parquet"
UNFINISHED = ".partial"  # suffix of atomic_binary_file's temporary files

TIME = pa.timestamp("us", tz="UTC")


class DecisionRow(NamedTuple):
    """A decision. Policy and version are the bundle's, or the rule's if the source is fallback."""

    id: str
    time: float  # seconds since 1970
    system: str
    mode: str
    source: str
    cause: str | None
    policy: str
    version: str
    state: str  # JSON, as received
    decision: str  # JSON
    shadow: str | None  # JSON: decision, agrees, policy
    reason: str  # JSON
    guard: Sequence[str]
    latency_ms: float


class FeedbackRow(NamedTuple):
    id: str | None  # of the decision, if the client sent it
    time: float
    system: str
    outcome: str  # JSON
    reward: float


COLUMNS = {  # Python type -> column type, nullable
    str: (pa.string(), False),
    str | None: (pa.string(), True),
    float: (pa.float64(), False),
    Sequence[str]: (pa.list_(pa.string()), False),
}


class Kind:
    """The kind of a file's rows. `name` is the prefix of its files."""

    def __init__(self, name: str, row: type[Any]) -> None:
        self.name, self.row = name, row
        types = {column: COLUMNS[hint] for column, hint in get_type_hints(row).items()}
        types["time"] = (TIME, False)
        self.schema = pa.schema(
            [pa.field(column, kind, nullable) for column, (kind, nullable) in types.items()]
        )


DECISIONS = Kind("decisions", DecisionRow)
FEEDBACK = Kind("feedback", FeedbackRow)


def write_part(folder: Path, kind: Kind, rows: Sequence[Any], serial: int) -> tuple[Path, int]:
    """Write rows as a new file of a folder; return its path and size in bytes.

    It is synced before it gets its name, so that neither a crash nor a power cut leaves a broken
    file. A missing folder is created.
    """
    table = _table(kind, rows)
    folder.mkdir(parents=True, exist_ok=True)
    start = datetime.fromtimestamp(min(row.time for row in rows), UTC)
    # Names sort by time; process id and serial number make them unique.
    path = folder / f"{kind.name}-{start:%Y%m%dT%H%M%S.%fZ}-{os.getpid()}-{serial:06d}{SUFFIX}"
    with atomic_binary_file(path, "the log file") as file:
        pq.write_table(table, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    return path, size


def _table(kind: Kind, rows: Sequence[Any]) -> pa.Table:
    columns = dict(zip(kind.schema.names, map(list, zip(*rows, strict=True)), strict=True))
    columns["time"] = [round(time * 1e6) for time in columns["time"]]
    try:
        return pa.Table.from_pydict(columns, kind.schema)
    except UnicodeEncodeError:  # lone surrogates: valid JSON, not valid UTF-8
        return pa.Table.from_pydict(
            {k: [_utf8(v) for v in c] for k, c in columns.items()}, kind.schema
        )


def _utf8(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return [_utf8(each) for each in value] if isinstance(value, list | tuple) else value


def read_log(
    folder: Path,
    since: float | None = None,
    until: float | None = None,
    warn: Callable[[str], None] | None = None,
) -> Iterator[DecisionRow]:
    """Yield the decisions logged in a folder and its subfolders, with since <= time < until.

    Files are read in order of time. Files that are damaged or not of this log are skipped with a
    warning.
    """
    return _rows(folder, DECISIONS, since, until, warn or _warn)


def read_feedback(
    folder: Path,
    since: float | None = None,
    until: float | None = None,
    warn: Callable[[str], None] | None = None,
) -> Iterator[FeedbackRow]:
    """Yield the logged feedback, as `read_log` does the decisions."""
    return _rows(folder, FEEDBACK, since, until, warn or _warn)


def _rows(
    folder: Path,
    kind: Kind,
    since: float | None,
    until: float | None,
    warn: Callable[[str], None],
) -> Iterator[Any]:
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {problem}; expected the folder of a decision log")
    bounds = [
        ("time", operator, pa.scalar(round(time * 1e6), TIME))
        for operator, time in ((">=", since), ("<", until))
        if time is not None
    ]
    others = {each.name for each in (DECISIONS, FEEDBACK) if each is not kind}
    for file in sorted(folder.rglob(f"*{SUFFIX}"), key=lambda file: (file.name, file)):
        if file.name.startswith((".", *(f"{other}-" for other in others))):
            continue
        try:
            _check(pq.read_schema(file), kind)
            table = pq.read_table(file, columns=kind.schema.names, filters=bounds or None)
        except (OSError, pa.ArrowException, ValueError) as fault:
            line = " ".join(str(fault).split())
            warn(f"{visible(str(file), 400)} is passed over: {visible(line)}")
            continue
        yield from _records(table, kind)


def _check(found: pa.Schema, kind: Kind) -> None:
    """Refuse a file without the expected columns; further ones are ignored."""
    for field in kind.schema:
        index = found.get_field_index(field.name)
        if index < 0 or found.field(index).type != field.type:
            raise ValueError(f"expected {field.type} in column {field.name!r} of {kind.name}")


def _records(table: pa.Table, kind: Kind) -> Iterator[Any]:
    columns = [
        column.cast(pa.int64()).to_pylist() if name == "time" else column.to_pylist()
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    time = kind.row._fields.index("time")
    for row in zip(*columns, strict=True):
        yield kind.row(*row[:time], row[time] / 1e6, *row[time + 1 :])


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=2)
