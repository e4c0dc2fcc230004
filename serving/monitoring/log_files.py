"""Files of the decision log: Parquet, one part after the other, each there whole or not at all."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from loadmaster.envs.errors import InputError
from loadmaster.models.manifest import visible

SUFFIX = ".parquet"
UNFINISHED = ".partial"

TIME = pa.timestamp("us", tz="UTC")
TEXT = pa.string()


class DecisionRow(NamedTuple):
    """A decision as it was answered. Policy and version are those of whoever decided: the bundle,
    or the rule where the source is the fallback."""

    id: str
    time: float  # seconds since 1970
    system: str
    mode: str
    source: str
    cause: str | None
    policy: str
    version: str
    state: str  # JSON, as it was asked
    decision: str  # JSON
    shadow: str | None  # JSON: decision, agrees, policy
    reason: str  # JSON
    guard: Sequence[str]
    latency_ms: float


class FeedbackRow(NamedTuple):
    id: str | None  # of the decision, where the client told it
    time: float
    system: str
    outcome: str  # JSON
    reward: float


Row = TypeVar("Row", DecisionRow, FeedbackRow)


class Kind(NamedTuple):
    """What a file's rows are."""

    name: str  # files begin with it
    row: type[Any]
    schema: pa.Schema


DECISIONS = Kind(
    "decisions",
    DecisionRow,
    pa.schema(
        [
            pa.field("id", TEXT, nullable=False),
            pa.field("time", TIME, nullable=False),
            pa.field("system", TEXT, nullable=False),
            pa.field("mode", TEXT, nullable=False),
            pa.field("source", TEXT, nullable=False),
            pa.field("cause", TEXT),
            pa.field("policy", TEXT, nullable=False),
            pa.field("version", TEXT, nullable=False),
            pa.field("state", TEXT, nullable=False),
            pa.field("decision", TEXT, nullable=False),
            pa.field("shadow", TEXT),
            pa.field("reason", TEXT, nullable=False),
            pa.field("guard", pa.list_(TEXT), nullable=False),
            pa.field("latency_ms", pa.float64(), nullable=False),
        ]
    ),
)
FEEDBACK = Kind(
    "feedback",
    FeedbackRow,
    pa.schema(
        [
            pa.field("id", TEXT),
            pa.field("time", TIME, nullable=False),
            pa.field("system", TEXT, nullable=False),
            pa.field("outcome", TEXT, nullable=False),
            pa.field("reward", pa.float64(), nullable=False),
        ]
    ),
)


def write_part(folder: Path, kind: Kind, rows: Sequence[Any], serial: int) -> tuple[Path, int]:
    """Rows as the next file of a folder, which is made if it is gone; its path and bytes.

    Only a whole file ever has its final name: it is written under another, and synced before it is
    renamed, so that neither a crash nor a power cut leaves a broken one.
    """
    table = _table(kind, rows)
    folder.mkdir(parents=True, exist_ok=True)
    begun = datetime.fromtimestamp(min(row.time for row in rows), UTC)
    # Names sort by time; process and serial number keep two writers apart.
    name = f"{kind.name}-{begun:%Y%m%dT%H%M%S.%fZ}-{os.getpid()}-{serial:06d}{SUFFIX}"
    scratch, path = folder / f".{name}{UNFINISHED}", folder / name
    try:
        with scratch.open("wb") as file:
            pq.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    return path, size


def _table(kind: Kind, rows: Sequence[Any]) -> pa.Table:
    columns = dict(zip(kind.schema.names, map(list, zip(*rows, strict=True)), strict=True))
    columns["time"] = [round(time * 1e6) for time in columns["time"]]
    try:
        return pa.Table.from_pydict(columns, kind.schema)
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can write and UTF-8 cannot
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
    """Decisions logged in a folder and those below it, from `since` up to before `until`.

    Files come in order of their time, rows in the order they were written. A file that is damaged
    or of somebody else is passed over, and named in a warning.
    """
    return _rows(folder, DECISIONS, since, until, warn or _warn)


def read_feedback(
    folder: Path,
    since: float | None = None,
    until: float | None = None,
    warn: Callable[[str], None] | None = None,
) -> Iterator[FeedbackRow]:
    """The same for feedback."""
    return _rows(folder, FEEDBACK, since, until, warn or _warn)


def _rows(
    folder: Path,
    kind: Kind,
    since: float | None,
    until: float | None,
    warn: Callable[[str], None],
) -> Iterator[Any]:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {what}; expected the folder of a decision log")
    bounds = [
        ("time", sign, pa.scalar(round(moment * 1e6), TIME))
        for sign, moment in ((">=", since), ("<", until))
        if moment is not None
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
    """Columns that a later version adds do no harm; one that is missing does."""
    for field in kind.schema:
        place = found.get_field_index(field.name)
        if place < 0 or found.field(place).type != field.type:
            raise ValueError(f"no log of {kind.name}; expected {field.type} under {field.name!r}")


def _records(table: pa.Table, kind: Kind) -> Iterator[Any]:
    columns = [
        column.cast(pa.int64()).to_pylist() if name == "time" else column.to_pylist()
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    place = kind.row._fields.index("time")
    for row in zip(*columns, strict=True):
        yield kind.row(*row[:place], row[place] / 1e6, *row[place + 1 :])


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=2)
