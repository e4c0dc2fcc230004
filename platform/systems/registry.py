"""The systems this installation can train and serve, built in or added by other packages.

A package adds one by an entry point in the group `loadmaster.systems` that refers to a `System`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.registry import resolve

GROUP = "loadmaster.systems"


@dataclass(frozen=True)
class System:
    """A learned decision maker: what it is called, and the environment it acts in."""

    name: str
    environment: str
    summary: str
    recipe_at: str = ""  # "module:object", a training Recipe; imported when somebody trains
    policies_at: str = ""  # "module:object", Policies: from a bundle to something that decides
    endpoint_at: str = ""  # "module:object", an Endpoint of the decision service
    available: bool = True  # False: registered, but it cannot be loaded; the summary says why

    @property
    def recipe(self) -> Any:
        return resolve(self.recipe_at)

    @property
    def policies(self) -> Any:
        return resolve(self.policies_at)


BUILT_IN = (
    System(
        name="das",
        environment="gpu_scheduling",
        summary="Two agents order waiting GPU jobs and place them on machines.",
        recipe_at="loadmaster.platform.systems.das.training:RECIPE",
        policies_at="loadmaster.platform.systems.das.policies:POLICIES",
        endpoint_at="loadmaster.serving.systems.das.system:ENDPOINT",
    ),
    System(
        name="decima",
        environment="dag_scheduling",
        summary="A graph network chooses the next stage and how parallel its job may run.",
        recipe_at="loadmaster.platform.systems.decima.training:RECIPE",
        policies_at="loadmaster.platform.systems.decima.policies:POLICIES",
        endpoint_at="loadmaster.serving.systems.decima.system:ENDPOINT",
    ),
)


def systems() -> dict[str, System]:
    """Every registered system by name."""
    found = [*BUILT_IN, *(_load(entry) for entry in entry_points(group=GROUP))]
    return {system.name: system for system in sorted(found, key=lambda system: system.name)}


def find_system(name: str) -> System:
    """The system of that name, if it can be used; an InputError suggests the nearest."""
    known = systems()
    if name not in known:
        raise unknown_name("system", name, known)
    if not known[name].available:
        raise InputError(f"system {name!r} {known[name].summary}")
    return known[name]


def _load(entry: EntryPoint) -> System:
    """Somebody else's package may fail in any way; the list still has to come out."""
    try:
        system = entry.load()
    except Exception as fault:
        return System(entry.name, "", f"cannot be loaded: {fault}", available=False)
    if not isinstance(system, System):
        return System(entry.name, "", f"{entry.value} is not a System", available=False)
    return system
