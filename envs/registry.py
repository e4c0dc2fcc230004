"""Registry of systems and environments.

A built-in system is one line in `SYSTEMS`. A package adds a system through an entry point in the
group `loadmaster.systems` that refers to a `System`. Everything else is found by file name
(`PARTS`), so listing systems and environments imports none of their modules.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np

from loadmaster.envs.calibration import Tuning
from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.settings import Settings

GROUP = "loadmaster.systems"  # of entry points


class Part(NamedTuple):
    """Location of a part of a system: the package, the module in it, and the name in that."""

    package: str  # {system} stands for the system's name
    module: str
    attribute: str


MODELS, SERVING, PLATFORM = (
    f"loadmaster.{package}.{{system}}"
    for package in ("models", "serving.systems", "platform.systems")
)
PARTS = {
    "network": Part(MODELS, "network", "build_network"),
    "trained_on": Part(MODELS, "settings", "trained_on"),  # of a bundle, in words; no torch
    "training_settings": Part(MODELS, "settings", "training_settings"),
    "distance": Part(MODELS, "settings", "distance"),
    "endpoint": Part(SERVING, "system", "ENDPOINT"),
    "training": Part(PLATFORM, "training", "RECIPE"),
    "evaluation": Part(PLATFORM, "evaluation", "EVALUATION"),
    "load_policy": Part(PLATFORM, "evaluation", "load_policy"),
    "replay": Part(PLATFORM, "replay", "REPLAY"),
    "bench": Part(PLATFORM, "bench", "measure"),
    "adaptation": Part(PLATFORM, "adaptation", "ADAPTATION"),  # of a policy to one application
    "adaptation_bench": Part(PLATFORM, "adaptation_bench", "measure"),
    "bootstrapping_bench": Part(PLATFORM, "bootstrapping_bench", "measure"),
    "shift_bench": Part(PLATFORM, "shift_bench", "measure"),
    "foresight_bench": Part(PLATFORM, "foresight_bench", "measure"),
}


@dataclass(frozen=True)
class System:
    """A learned system: its name, the environment it decides in, and where its parts are.

    The parts of a system from another package are modules of `package` with the names in `PARTS`,
    or attributes of `package` if that is a single module.
    """

    name: str
    environment: str
    summary: str
    package: str = ""  # of a system that is not built in
    available: bool = True  # False: the entry point cannot be loaded; `summary` has the reason

    def has(self, part: str) -> bool:
        return self._reference(part) is not None

    def load(self, part: str) -> Any:
        """Import a part; an InputError names what is missing."""
        reference = self._reference(part)
        if reference is None:
            raise InputError(f"system {self.name!r} has no {part}")
        return resolve(reference)

    def _reference(self, part: str) -> str | None:
        location = PARTS[part]
        package = self.package or location.package.format(system=self.name)
        spec = find_spec(package)
        if spec is None:
            return None
        if spec.submodule_search_locations is None:  # one module that holds all parts
            found = hasattr(import_module(package), location.attribute)
            return f"{package}:{location.attribute}" if found else None
        module = f"{package}.{location.module}"
        return f"{module}:{location.attribute}" if find_spec(module) is not None else None


SYSTEMS = (
    System(
        "aware",
        "pod_scaling",
        "One agent for all applications scales pods by margins it adapts to each.",
    ),
    System(
        "das",
        "gpu_scheduling",
        "Two agents order waiting GPU jobs and place them on machines.",
    ),
    System(
        "decima",
        "dag_scheduling",
        "A graph network chooses the next stage and how parallel its job may run.",
    ),
    System(
        "sure",
        "stream_scaling",
        "A network over sampled subgraphs scales every task of a streaming job.",
    ),
)


def systems() -> dict[str, System]:
    """Every registered system by name."""
    found = [*SYSTEMS, *(_load_entry(entry) for entry in entry_points(group=GROUP))]
    return {system.name: system for system in sorted(found, key=lambda system: system.name)}


def find_system(name: str) -> System:
    """Return the system of that name; an InputError suggests the nearest."""
    known = systems()
    if name not in known:
        raise unknown_name("system", name, known)
    if not known[name].available:
        raise InputError(f"system {name!r} {known[name].summary}")
    return known[name]


def _load_entry(entry: EntryPoint) -> System:
    """Load an entry point; its package may raise anything, and the list must still appear."""
    try:
        system = entry.load()
    except Exception as fault:
        return System(entry.name, "", f"cannot be loaded: {fault}", available=False)
    if not isinstance(system, System):
        return System(entry.name, "", f"{entry.value} is not a System", available=False)
    return system


class Named(Protocol):
    """A baseline or a workload in a list."""

    @property
    def name(self) -> str: ...
    @property
    def summary(self) -> str: ...


class LegalActionSampler(Protocol):
    """Draws an action that the observation marks as legal."""

    def __call__(self, observation: Any, rng: np.random.Generator) -> Any: ...


@dataclass(frozen=True)
class EnvironmentSpec:
    """An environment; its package has the modules that the properties below refer to.

    An environment with `agents` has PettingZoo's parallel API, so Gymnasium cannot make it. Its
    vector form has Gymnasium's API, with a mapping from agents to actions as action.
    """

    name: str
    prefix: str  # of its class names: "DagScheduling"
    summary: str
    package: str
    agents: tuple[str, ...] = ()

    @property
    def gym_id(self) -> str:
        return f"loadmaster/{self.prefix}-v0"

    @property
    def entry_point(self) -> str:
        return f"{self.package}.env:{self.prefix}Env"

    @property
    def vector_entry_point(self) -> str:
        return f"{self.package}.vector_env:{self.prefix}VectorEnv"

    @property
    def multi_agent(self) -> bool:
        return bool(self.agents)

    def make(self, **settings: Any) -> Any:
        """Make the environment: Gymnasium's, or PettingZoo's if it has agents."""
        if self.multi_agent:
            return resolve(self.entry_point)(**settings)
        return gymnasium.make(self.gym_id, **settings)

    def make_vec(self, num_envs: int, **settings: Any) -> Any:
        """Make `num_envs` environments that step together."""
        if self.multi_agent:
            return resolve(self.vector_entry_point)(num_envs, **settings)
        return gymnasium.make_vec(
            self.gym_id, num_envs, vectorization_mode="vector_entry_point", **settings
        )

    @property
    def settings(self) -> type[Settings]:
        kind: type[Settings] = resolve(f"{self.package}.settings:{self.prefix}Settings")
        return kind

    @property
    def baseline_records(self) -> Mapping[str, Named]:
        records: Mapping[str, Named] = resolve(f"{self.package}.baselines:BASELINES")
        return records

    @property
    def workload_records(self) -> Mapping[str, Named]:
        records: Mapping[str, Named] = resolve(f"{self.package}.workloads:WORKLOADS")
        return records

    @property
    def sample_legal_action(self) -> LegalActionSampler:
        sampler: LegalActionSampler = resolve(f"{self.package}.actions:sample_legal_action")
        return sampler

    @property
    def tuning(self) -> Tuning:
        """What `loadmaster calibrate` tunes."""
        tuning: Tuning = resolve(f"{self.package}.tuning:TUNING")
        return tuning

    @property
    def baselines(self) -> tuple[str, ...]:
        return tuple(self.baseline_records)

    @property
    def workloads(self) -> tuple[str, ...]:
        return tuple(self.workload_records)


def environments() -> dict[str, EnvironmentSpec]:
    """Every built-in environment, by name."""
    names = sorted({system.environment for system in SYSTEMS})
    return {name: resolve(f"loadmaster.envs.{name}:SPEC") for name in names}


def find_environment(name: str) -> EnvironmentSpec:
    """Return the environment of that name or Gymnasium id; an InputError suggests the nearest."""
    for spec in environments().values():
        if name in (spec.name, spec.gym_id):
            return spec
    raise unknown_name("environment", name, environments())


def register_environments() -> None:
    """Register the environments with Gymnasium, which imports them when they are made."""
    for spec in environments().values():
        if not spec.multi_agent and spec.gym_id not in gymnasium.registry:
            gymnasium.register(
                spec.gym_id,
                entry_point=spec.entry_point,
                vector_entry_point=spec.vector_entry_point,
            )


def resolve(reference: str) -> Any:
    """Import the object of a reference "module:object"."""
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)
