"""Applications by name: the generated set, segments, the published list, or a YAML file.

A file has a list `applications`, of which each episode draws one:

    applications:
      - {name: shop, segments: [webServe, dynamoRead], slo_s: 0.4}
      - {name: thumbnails, cpu_s: 0.08, io_s: 0.02, memory_mib: 150, request_mib: 4, slo_s: 0.6}
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.pod_scaling.applications import (
    SEGMENTS,
    TEST,
    TRAIN,
    Application,
    compose,
    generated_split,
)
from loadmaster.envs.traces import trace_path

PUBLISHED = "published"
FILE = "aware/generatedFunctions_1000apps.txt"
_FIELDS = tuple(field.name for field in fields(Application))
_REQUIRED = ("cpu_s", "io_s", "memory_mib", "request_mib", "slo_s")


def load_applications(name: str, data: Path | None) -> tuple[Application, ...]:
    """The applications among which an episode draws; one that is named is alone."""
    part, _, number = name.partition(":")
    if part in (TRAIN, TEST):
        found = _composed(generated_split(part))
        return found if not number else (_numbered(name, found, number),)
    if name == PUBLISHED:
        return _published(trace_path(PUBLISHED, data))
    if name.endswith((".yaml", ".yml")):
        return _from_file(Path(name).expanduser())
    segments = [part.strip() for part in name.split("+")]
    for segment in segments:
        if segment not in SEGMENTS:
            known = (*SEGMENTS, TRAIN, TEST, PUBLISHED, "FILE.yaml")
            raise unknown_name("application", segment, known)
    return (compose(segments),)


def _numbered(name: str, found: Sequence[Application], number: str) -> Application:
    if not number.isdecimal() or int(number) >= len(found):
        raise InputError(f"application {name!r}; expected a number from 0 to {len(found) - 1}")
    return found[int(number)]


@lru_cache(maxsize=4)
def _composed(lists: Sequence[Sequence[str]]) -> tuple[Application, ...]:
    return tuple(compose(segments) for segments in lists)


@lru_cache(maxsize=4)
def _published(path: Path) -> tuple[Application, ...]:
    """The list of the paper's artifact: a line of names, separated by commas, each."""
    places = (path, path / FILE, path / Path(FILE).name)
    file = next((place for place in places if place.is_file()), path)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise InputError(f"{path}: no list of applications; expected {FILE} in it") from None
    found = []
    for number, line in enumerate(lines, 1):
        names = [name.strip() for name in line.split(",")] if line.strip() else []
        unknown = [name for name in names if name not in SEGMENTS]
        if unknown or not names:
            reason = f"segment {unknown[0]!r}" if unknown else "no segments"
            raise InputError(f"{file}, line {number}: {reason}; expected {', '.join(SEGMENTS)}")
        found.append(compose(names))
    if not found:
        raise InputError(f"{file}: no applications; expected one a line")
    return tuple(found)


def _from_file(path: Path) -> tuple[Application, ...]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as fault:
        reason = " ".join(str(fault).split())[:120]
        raise InputError(
            f"application {path}: cannot be read ({reason}); expected a YAML file"
        ) from None
    rows = content.get("applications") if isinstance(content, Mapping) else None
    if not isinstance(rows, list) or not rows:
        raise InputError(f"application {path}: no list 'applications'; expected one or more in it")
    return tuple(_application(f"application {path}, {n}", row) for n, row in enumerate(rows, 1))


def _application(where: str, row: Any) -> Application:
    """One application of a file: of segments, of numbers, or of segments with some numbers."""
    if not isinstance(row, Mapping):
        raise InputError(f"{where}: {row!r}; expected a mapping")
    known = ("segments", *_FIELDS)
    for name, value in row.items():
        if name not in known:
            raise unknown_name(f"field of {where}", str(name), known)
        kind: type | tuple[type, ...] = (int, float)
        if name in ("segments", "name"):
            kind = list if name == "segments" else str
        if not isinstance(value, kind) or isinstance(value, bool):
            expected = {"segments": "a list of names", "name": "a text"}.get(name, "a number")
            raise InputError(f"{where}: {name} is {value!r}; expected {expected}")
    numbers = {name: value for name, value in row.items() if name not in ("segments", "name")}
    if "segments" in row:
        return replace(compose(row["segments"], row.get("name")), **numbers)
    for name in ("name", *_REQUIRED):
        if name not in row:
            raise InputError(f"{where}: no {name}; expected one, or segments")
    return Application(**{str(name): value for name, value in row.items()})
