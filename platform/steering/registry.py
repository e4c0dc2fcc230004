"""Registry of engines that can be steered.

A built-in engine is one line in `BUILT_IN`. A package adds an engine through an entry point in the
group `loadmaster.engines` that refers to an `EngineSpec`. Listing engines imports those modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from loadmaster.envs.errors import unknown_name
from loadmaster.envs.registry import resolve
from loadmaster.envs.settings import Settings
from loadmaster.platform.steering.core import Mode

GROUP = "loadmaster.engines"  # of entry points
BUILT_IN = {
    "flink": "loadmaster.platform.steering.flink.engine:SPEC",
    "keda": "loadmaster.platform.steering.keda.engine:SPEC",
    "kubernetes": "loadmaster.platform.steering.kubernetes.engine:SPEC",
    "kubernetes-gpu": "loadmaster.platform.steering.kubernetes_gpu.engine:SPEC",
    "ray-serve": "loadmaster.platform.steering.ray_serve.engine:SPEC",
    "slurm": "loadmaster.platform.steering.slurm.engine:SPEC",
    "spark": "loadmaster.platform.steering.spark.engine:SPEC",
}
# (settings, names of applications, mode) -> a function that lists the applications to step now:
# each a core.Engine, or a jobs.JobEngine. It raises SilentError and InputError.
Connect = Callable[[Any, Sequence[str], Mode], AbstractContextManager[Callable[[], Sequence[Any]]]]


@dataclass(frozen=True)
class EngineSpec:
    """An engine: the endpoint whose states it writes, its settings, and how to reach it."""

    name: str
    endpoint: str  # MODULE:NAME
    summary: str
    settings: type[Settings]
    connect: Connect
    by_jobs: bool = False  # its applications are jobs.JobEngine, not core.Engine
    every_s: float = 60.0  # default time between steps
    pause_s: float | None = None  # default of jobs.Cadence.pause_s, if another one than there

    @property
    def system(self) -> str:
        """The name of the system that decides."""
        return str(resolve(self.endpoint).system)


def engines() -> dict[str, str]:
    """References to all engines by name."""
    added = {entry.name: entry.value for entry in entry_points(group=GROUP)}
    return dict(sorted((added | BUILT_IN).items()))


def find_engine(name: str) -> EngineSpec:
    """Return the engine of that name; an InputError suggests the nearest."""
    known = engines()
    if name not in known:
        raise unknown_name("engine", name, known)
    spec: EngineSpec = resolve(known[name])
    return spec
