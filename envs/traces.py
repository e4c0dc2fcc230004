"""What a workload is to a list of them, whichever environment draws its jobs from it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from loadmaster.envs.errors import InputError, unknown_name

# Where the traces lie that a workload imports.


def trace_path(workload: str, data: Path | None) -> Path:
    """The folder (or file) of traces that the user named; traces are never shipped."""
    named = data or os.environ.get("LOADMASTER_DATA")
    if not named:
        raise InputError(
            f"workload {workload!r} reads traces that are not shipped; expected their "
            "folder as --set data=FOLDER or in LOADMASTER_DATA"
        )
    path = Path(named).expanduser().resolve()
    if not path.exists():
        said = "data" if data else "LOADMASTER_DATA"
        raise InputError(f"{said}: no file or folder {path}; expected the folder of the traces")
    return path


EnvironmentSettings = TypeVar("EnvironmentSettings")
Workload = TypeVar("Workload", covariant=True)


@dataclass(frozen=True)
class WorkloadSpec(Generic[EnvironmentSettings, Workload]):
    """A workload by name; its jobs are generated or read only when `load` is called."""

    name: str
    summary: str
    load: Callable[[EnvironmentSettings], Workload]


Workloads = Mapping[str, WorkloadSpec[EnvironmentSettings, Workload]]


def find_workload(
    known: Workloads[EnvironmentSettings, Workload], name: str
) -> WorkloadSpec[EnvironmentSettings, Workload]:
    """The one of that name; an InputError suggests the nearest."""
    if name not in known:
        raise unknown_name("workload", name, known)
    return known[name]
