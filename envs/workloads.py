"""What a workload is to a list of them, whichever environment draws its jobs from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from loadmaster.envs.errors import unknown_name

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
