"""Files of Spark event logs: which belong to an application, and their events in order.

An application's log is one file, or since Spark 3 a folder `eventlog_v2_APP` of files
`events_N_APP`, of which `*.compact` replaces all before it. Files are JSON lines, plain or packed
by gzip or zstd.
"""

import json
import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from loadmaster.envs.errors import InputError
from loadmaster.envs.traces import read_lines

_EVENT = re.compile(rb'\s*\{\s*"Event"\s*:\s*"(?:[\w.$]*\.)?(\w+)"')
_ROLLED = re.compile(r"events_(\d+)_")
_RUNNING = ".inprogress"
_PACKED = (".lz4", ".lzf", ".snappy")  # Spark's own framings


class LogEvent(NamedTuple):
    """An event and its origin."""

    kind: str  # without "SparkListener" and its package: TaskEnd
    values: dict[str, Any]
    path: Path
    line: int

    def get(self, *keys: str, kind: type = object, default: Any = ...) -> Any:
        """The value at nested keys, of type `kind`; `default` where it is missing, if given."""
        value: Any = self.values
        for key in keys:
            if not isinstance(value, dict) or value.get(key) is None:
                if default is not ...:
                    return default
                raise self.fault(f"no {' / '.join(map(repr, keys))}", "one")
            value = value[key]
        if not isinstance(value, kind):
            expected = {int: "a whole number", list: "a list", str: "text"}.get(kind, "an object")
            raise self.fault(f"{' / '.join(map(repr, keys))} {value!r}", expected)
        return value

    def fault(self, text: str, expected: str) -> InputError:
        where = f"{self.path}, line {self.line}"
        return InputError(f"{where}: {text} in SparkListener{self.kind}; expected {expected}")


def is_event_log(path: Path) -> bool:
    """Whether a file begins with an event, or a folder holds a rolled log or event logs."""
    if path.is_dir():
        return any(is_event_log(file) for file in _visible(path))
    if path.suffix in _PACKED or _ROLLED.match(path.name):
        return True
    try:
        first = next(read_lines(path), None)
    except InputError:
        return False
    return first is not None and _EVENT.match(first[1]) is not None


def applications(path: Path) -> list[tuple[str, list[Path]]]:
    """Logs of a file or folder: each application's name and its files in order."""
    if not path.is_dir():
        return [(path.name, [path])]
    if rolled := _rolled(path):
        return [(path.name, rolled)]
    found = [each for inside in _visible(path) for each in applications(inside)]
    if not found:
        raise InputError(f"{path}: no event logs; expected files or folders eventlog_v2_*")
    return found


def read_events(files: list[Path], wanted: Container[str]) -> Iterator[LogEvent]:
    """Events of the kinds `wanted`; the last line of a log in progress may be incomplete."""
    for path in files:
        if path.suffix in _PACKED:
            expected = "plain text, gzip or zstd (spark.eventLog.compression.codec)"
            raise InputError(f"{path}: packed by {path.suffix[1:]}; expected {expected}")
        running = path.name.endswith(_RUNNING) or _is_running(path.parent)
        incomplete: InputError | None = None
        for number, line in read_lines(path):
            if incomplete is not None:
                raise incomplete
            match = _EVENT.match(line)
            kind = match[1].decode().removeprefix("SparkListener") if match else ""
            if match and kind not in wanted:
                continue
            try:
                values = json.loads(line) if match else None
            except (ValueError, RecursionError):
                values = None
            if isinstance(values, dict):
                yield LogEvent(kind, values, path, number)
                continue
            incomplete = InputError(
                f"{path}, line {number}: no event; expected JSON that begins with "
                '{"Event":"SparkListener...'
            )
        if incomplete is not None and not running:
            raise incomplete


def _visible(folder: Path) -> list[Path]:
    """Entries of a folder without checksums, other hidden files and marks of an application."""
    inside = sorted(folder.iterdir())
    return [each for each in inside if not each.name.startswith((".", "_", "appstatus_"))]


def _rolled(folder: Path) -> list[Path]:
    """Files of a rolled log, from the last compacted one on; empty where it is none."""
    numbered = [(m, each) for each in _visible(folder) if (m := _ROLLED.match(each.name))]
    ordered = sorted(numbered, key=lambda one: (int(one[0][1]), one[1].suffix != ".compact"))
    files = [each for _, each in ordered]
    compact = [place for place, each in enumerate(files) if each.suffix == ".compact"]
    if not compact:
        return files
    last = compact[-1]
    through = int(ordered[last][0][1])
    later = [each for match, each in ordered if int(match[1]) > through]
    return [files[last], *later]


def _is_running(folder: Path) -> bool:
    return any(folder.glob(f"appstatus_*{_RUNNING}"))
