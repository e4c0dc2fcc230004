"""Parquet files of the decision log on disk or at a URL, each written atomically; their reader."""

import io
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from loadmaster.envs.errors import InputError
from loadmaster.models.files import atomic_write, private_folder
from loadmaster.models.manifest import visible
from loadmaster.models.storage import Location, Place
from loadmaster.serving.decisions.tenant_names import DEFAULT_TENANT

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
    tenant: str = DEFAULT_TENANT  # logs before tenants have no such column
    memory: str | None = None  # what policies remembered of the tenant before; nor this one
    lifecycle: str = ""  # state of the tenant; logs before it have no such column


class FeedbackRow(NamedTuple):
    id: str | None  # of the decision, if the client sent it
    time: float
    system: str
    outcome: str  # JSON
    reward: float
    tenant: str = DEFAULT_TENANT


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
NAME = rf"({DECISIONS.name}|{FEEDBACK.name})-\d{{8}}T[\d.]+Z-\d+-\d+\{SUFFIX}"
PART = re.compile(NAME)
UNFINISHED_PART = re.compile(rf"\.{NAME}(\.\d+)?\.partial")  # of atomic_write


def write_part(folder: Place, kind: Kind, rows: Sequence[Any], serial: int) -> tuple[str, int]:
    """Write rows as a new file of a folder, which is created if it is missing; its name and size.

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
    start = datetime.fromtimestamp(min(row.time for row in rows), UTC)
    # Names sort by time; process id and serial number make them unique.
    name = f"{kind.name}-{start:%Y%m%dT%H%M%S.%fZ}-{os.getpid()}-{serial:06d}{SUFFIX}"
    if isinstance(folder, Location):
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        (folder / name).write(buffer.getvalue())
        return name, len(buffer.getvalue())
    private_folder(folder)
    with atomic_write(folder / name, sync=True, private=True) as file:
        pq.write_table(table, file, compression="zstd")
    return name, (folder / name).stat().st_size


def list_parts(folder: Place, abandoned_s: float) -> list[tuple[str, int]]:
    """Names and sizes of a log's files, oldest first; unfinished ones of that age are deleted."""
    if isinstance(folder, Location):
        found = [(name, size) for name, size in folder.files().items() if PART.fullmatch(name)]
    else:
        private_folder(folder)
        found = []
        for file in folder.iterdir():
            if PART.fullmatch(file.name):
                found.append((file.name, file.stat().st_size))
            elif (
                UNFINISHED_PART.fullmatch(file.name)
                and time.time() - file.stat().st_mtime > abandoned_s
            ):
                file.unlink(missing_ok=True)
    return sorted(found, key=lambda part: part[0].partition("-")[2])  # by time


def remove_part(folder: Place, name: str) -> None:
    if isinstance(folder, Location):
        (folder / name).remove()
    else:
        (folder / name).unlink(missing_ok=True)


def _utf8(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return [_utf8(each) for each in value] if isinstance(value, list | tuple) else value


def read_log(
    folder: Place,
    since: float | None = None,
    until: float | None = None,
    warn: Callable[[str], object] = warnings.warn,
) -> Iterator[DecisionRow]:
    """Yield the decisions logged in a folder and its subfolders, with since <= time < until.

    Files are read in order of time. Files that are damaged or not of this log are skipped with a
    warning.
    """
    files, filesystem = _log_files(folder)
    bounds = [
        ("time", operator, pa.scalar(round(time * 1e6), TIME))
        for operator, time in ((">=", since), ("<", until))
        if time is not None
    ]
    for file in files:
        try:
            columns = _check_columns(pq.read_schema(file, filesystem=filesystem))
            table = pq.read_table(
                file, columns=columns, filters=bounds or None, filesystem=filesystem
            )
        except (OSError, pa.ArrowException, ValueError) as fault:
            line = " ".join(str(fault).split())
            warn(f"{visible(str(file), 400)} is passed over: {visible(line)}")
            continue
        time_us = table["time"].cast(pa.int64()).to_pylist()
        for row, us in zip(table.drop_columns("time").to_pylist(), time_us, strict=True):
            yield DecisionRow(**row, time=us / 1e6)


def _log_files(folder: Place) -> tuple[list[str], Any]:
    """Paths of all files of decisions in order of time, and the filesystem that they are on."""
    if isinstance(folder, Location):
        paths = {f"{folder.path}/{name}" for name in folder.files()}
        if not paths:
            raise InputError(f"{folder} has no files; expected the folder of a decision log")
        filesystem = folder.filesystem
    elif folder.is_dir():
        paths, filesystem = {str(file) for file in folder.rglob(f"*{SUFFIX}")}, None
    else:
        problem = "is a file" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {problem}; expected the folder of a decision log")
    named = sorted((path.rpartition("/")[2], path) for path in paths)
    wanted = [
        path
        for name, path in named
        if name.endswith(SUFFIX) and not name.startswith((".", f"{FEEDBACK.name}-"))
    ]
    return wanted, filesystem


def _check_columns(found: pa.Schema) -> list[str]:
    """The columns to read; raises ValueError for a file that lacks one without a default."""
    columns = []
    for field in DECISIONS.schema:
        if field.name in DecisionRow._field_defaults and field.name not in found.names:
            continue
        columns.append(field.name)
        index = found.get_field_index(field.name)
        if index < 0 or found.field(index).type != field.type:
            raise ValueError(f"expected {field.type} in column {field.name!r} of {DECISIONS.name}")
    return columns


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
