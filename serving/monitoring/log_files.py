"""Parquet files of the decision log, each written atomically, and their reader."""

import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from loadmaster.envs.errors import InputError
from loadmaster.models.files import atomic_write
from loadmaster.models.manifest import visible

SUFFIX = ".parquet"
TIME = pa.timestamp("us", tz="UTC")
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


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
        self.name = name
        types = {column: COLUMNS[hint] for column, hint in get_type_hints(row).items()}
        types["time"] = (TIME, False)
        self.schema = pa.schema([pa.field(column, *kind) for column, kind in types.items()])


DECISIONS = Kind("decisions", DecisionRow)
FEEDBACK = Kind("feedback", FeedbackRow)


def write_part(folder: Path, kind: Kind, rows: Sequence[Any], serial: int) -> Path:
    """Write rows as a new file of a folder, which is created if it is missing.

    The file is synced before it gets its name, so that neither a crash nor a power cut leaves a
    broken one.
    """
    columns = dict(zip(kind.schema.names, map(list, zip(*rows, strict=True)), strict=True))
    columns["time"] = [round(time * 1e6) for time in columns["time"]]
    try:
        table = pa.Table.from_pydict(columns, kind.schema)
    except UnicodeEncodeError:  # lone surrogates: valid JSON, not valid UTF-8
        columns = {name: [_utf8(value) for value in column] for name, column in columns.items()}
        table = pa.Table.from_pydict(columns, kind.schema)
    folder.mkdir(parents=True, exist_ok=True)
    start = datetime.fromtimestamp(min(row.time for row in rows), UTC)
    # Names sort by time; process id and serial number make them unique.
    path = folder / f"{kind.name}-{start:%Y%m%dT%H%M%S.%fZ}-{os.getpid()}-{serial:06d}{SUFFIX}"
    with atomic_write(path, sync=True) as file:
        pq.write_table(table, file, compression="zstd")
    return path


def _utf8(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return [_utf8(each) for each in value] if isinstance(value, list | tuple) else value


def read_log(
    folder: Path,
    since: float | None = None,
    until: float | None = None,
    warn: Callable[[str], object] = warnings.warn,
) -> Iterator[DecisionRow]:
    """Yield the decisions logged in a folder and its subfolders, with since <= time < until.

    Files are read in order of time. Files that are damaged or not of this log are skipped with a
    warning.
    """
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {problem}; expected the folder of a decision log")
    bounds = [
        ("time", operator, pa.scalar(round(time * 1e6), TIME))
        for operator, time in ((">=", since), ("<", until))
        if time is not None
    ]
    for file in sorted(folder.rglob(f"*{SUFFIX}"), key=lambda file: (file.name, file)):
        if file.name.startswith((".", f"{FEEDBACK.name}-")):
            continue
        try:
            _check_columns(pq.read_schema(file))
            table = pq.read_table(file, columns=DECISIONS.schema.names, filters=bounds or None)
        except (OSError, pa.ArrowException, ValueError) as fault:
            line = " ".join(str(fault).split())
            warn(f"{visible(str(file), 400)} is passed over: {visible(line)}")
            continue
        time_us = table["time"].cast(pa.int64()).to_pylist()
        for row, us in zip(table.drop_columns("time").to_pylist(), time_us, strict=True):
            yield DecisionRow(**row, time=us / 1e6)


def _check_columns(found: pa.Schema) -> None:
    """Raise ValueError for a file without the expected columns; further ones are ignored."""
    for field in DECISIONS.schema:
        index = found.get_field_index(field.name)
        if index < 0 or found.field(index).type != field.type:
            raise ValueError(f"expected {field.type} in column {field.name!r} of {DECISIONS.name}")


def parse_timestamp(text: str, option: str, now: float) -> float:
    """Parse `2026-05-01`, `2026-05-01T12:30` (UTC if it names no zone) or an age before `now`, such
    as `90m`, to seconds since 1970. `option` is the command-line option, for the error."""
    ago = re.fullmatch(r"(\d{1,6})([smhd])", text.strip())
    if ago:
        return now - int(ago[1]) * UNITS_S[ago[2]]
    try:
        parsed = datetime.fromisoformat(text.strip())
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise InputError(
            f"{option} {text!r} is not a time; expected 2026-05-01, 2026-05-01T12:30 (UTC) or "
            "an age such as 90m, 6h or 2d"
        ) from None
